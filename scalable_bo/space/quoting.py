"""How errors show what was given. It needs the standard library alone."""


def quote(value: object) -> str:
    """Return a value as errors show it: its ``repr``, cut, or its kind where that raises."""
    try:
        return f"{value!r:.80}"
    except Exception:  # whatever the value's own code raises, or a nesting that is too deep
        return f"<{type(value).__name__}>"
