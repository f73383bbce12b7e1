"""How errors and pages show what was given. It needs the standard library alone."""


def quote(value: object) -> str:
    """Return a value as errors show it: its ``repr``, cut, or its kind where that raises."""
    try:
        return f"{value!r:.80}"
    except Exception:  # whatever the value's own code raises, or a nesting that is too deep
        return f"<{type(value).__name__}>"


def shorten(text: object, length: int) -> str:
    """Cut a text to so many characters."""
    whole = str(text)
    return whole if len(whole) <= length else whole[: length - 1] + "…"
