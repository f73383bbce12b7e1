"""How errors and pages show what was given. It needs the standard library alone."""

import json
import re
from collections.abc import Sized

ISOLATES = "\u2068\u2069"  # around what may be read from right to left, or it turns the rest around
ISOLATED = re.compile(f"[^{ISOLATES}]*".join(ISOLATES))
_OTHER_KINDS = re.compile(r'|\s.*|.*\s|None|True|False|-?\d+(\.\d+)?(e[-+]\d+)?|".*', re.DOTALL)


def quote(value: object) -> str:
    """Return a value as errors show it: its ``repr``, cut, or its kind where that raises."""
    try:
        return f"{value!r:.80}"
    except Exception:  # whatever the value's own code raises, or a nesting that is too deep
        return f"<{type(value).__name__}>"


def legible(value: object) -> str:
    """Return a value as people read it; a text that is empty, begins or ends with a blank, or would
    pass for None, a flag, a number or a text in quotes is in quotes, so that no two choices look
    alike.
    """
    text = str(value)
    is_quoted = isinstance(value, str) and _OTHER_KINDS.fullmatch(text)
    return json.dumps(text, ensure_ascii=False) if is_quoted else text


def shorten(text: object, length: int) -> str:
    """Cut a text to so many characters."""
    whole = str(text)
    return whole if len(whole) <= length else whole[: length - 1] + "…"


def count(things: Sized | int, name: str) -> str:
    """Return the number of things with their name, in the plural if need be."""
    number = things if isinstance(things, int) else len(things)
    return f"{number} {name}" if number == 1 else f"{number} {name}s"
