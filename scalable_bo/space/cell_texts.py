"""How choices and texts are written in the cells of a table, and found again."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from scalable_bo.space.plain_values import Choice, plain

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def guarded(text: str) -> str:
    """Return a text with a ``'`` before it if a spreadsheet would run it as a formula, or if it
    looks like such a text with its ``'``, so that ``unguarded`` knows every one.
    """
    return f"'{text}" if text.lstrip("'").startswith(FORMULA_STARTS) else text


def unguarded(text: str) -> str:
    """Return the text that ``guarded`` was given."""
    return text[1:] if text.startswith("'") and guarded(text[1:]) == text else text


def cell_texts(choices: Sequence[Choice]) -> dict[Choice, str]:
    """Return the text of each choice in a cell, no two the same: strings are guarded, numbers and
    flags written as in Python, and None is an empty cell; all are JSON if two would look alike.
    """
    values = [plain(choice) for choice in choices]
    texts = [
        guarded(value) if isinstance(value, str) else "" if value is None else str(value)
        for value in values
    ]
    if len(set(texts)) < len(texts):
        texts = [json.dumps(value, ensure_ascii=False) for value in values]
    return dict(zip(choices, texts, strict=True))


def choice_reader(choices: Sequence[Choice], comma: bool = False) -> Callable[[Any], Any]:
    """Return what makes a choice of its text; other texts become bare, with points for commas."""
    known = with_bare({text: choice for choice, text in cell_texts(choices).items()})

    def read(cell: Any) -> Any:
        if not isinstance(cell, str):
            return cell
        point = bare(cell.replace(",", ".") if comma else cell)
        return known.get(cell, known.get(bare(cell), known.get(point, point)))

    return read


def bare(text: str) -> str:
    """Return a text as spreadsheets may leave it, without blanks around it or no-break spaces."""
    return text.replace("\xa0", " ").strip()


def with_bare(meanings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what texts mean, and each bare text that comes of one of them alone."""
    count = Counter(map(bare, meanings))
    return {b: m for t, m in meanings.items() if (b := bare(t)) and count[b] == 1} | {**meanings}


def position(value: Any, choices: Sequence[Choice]) -> float:
    """Return the position of a choice; NaN for what is none."""
    for place, choice in enumerate(choices):
        # True is no 1 here: a boolean stands for booleans alone.
        if isinstance(value, bool) is isinstance(choice, bool) and value == choice:
            return float(place)
    return math.nan


def distinct(names: Iterable[str], taken: Iterable[str]) -> list[str]:
    """Return the names, with underscores that tell each from those taken and those before it."""
    used = list(taken)
    start = len(used)
    for name in names:
        while name in used:
            name += "_"
        used.append(name)
    return used[start:]
