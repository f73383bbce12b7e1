"""How parameters and constraints are read from tables of plain values, and written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np

from scalable_bo.space.quoting import quote

NONE = {"none": True}  # what stands for None where it is written down: TOML has no word for it
Choice = str | bool | int | float | None
Condition = Mapping[str, Choice | Sequence[Choice]]
T = TypeVar("T")


def read_fields(kind: type[T], table: Mapping[str, Any], place: str) -> T:
    """Return the dataclass ``kind`` with the values of a table; raise TypeError or ValueError,
    which names the ``place``, with each key that is missing or unknown, or as ``kind`` does.
    """
    known = {one.name: one.default for one in fields(kind) if one.init}  # type: ignore[arg-type]
    problems = [
        f"`{place}.{name}` must be given."
        for name, default in known.items()
        if default is MISSING and name not in table
    ]
    problems += [
        f"`{place}.{name}` is not known.{nearest(name, known)} Known are {', '.join(known)}."
        for name in table
        if name not in known
    ]
    if problems:
        raise ValueError("\n".join(problems))
    try:
        return kind(**table)
    except (TypeError, ValueError) as error:
        raise type(error)(f"`{place}`: {error}") from error


def nearest(name: Any, known: Iterable[str]) -> str:
    """Return a question for the known name that is nearest to ``name``; nothing if none is near."""
    folded = {one.casefold(): one for one in known}
    close = get_close_matches(name.casefold(), folded, 1) if isinstance(name, str) else []
    return f" Did you mean `{folded[close[0]]}`?" if close else ""


def finite(name: str, value: Any, remedy: str = "") -> float:
    """Return a finite number as a float."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"`{name}` must be a number, got {quote(value)}.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"`{name}` must be finite, got {short(value)}.{remedy}")
    return number


def flag(name: str, value: Any) -> bool:
    """Return ``value`` if it is True or False; ``name`` says of what in the error."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"`{name}` must be True or False, got {quote(value)}.")
    return bool(value)


def refusal(name: str, requirement: str, received: Any, row: int) -> ValueError:
    """Return the error of a value that is none of its parameter's."""
    return ValueError(
        f"`{name}` must be {requirement}, got {quote(received)} in row {row}. Widen the space or"
        " leave the row out."
    )


def condition(given: Any) -> Condition | None:
    """Return when a parameter is active, with a tuple of values for each name."""
    if given is None:
        return None
    if not isinstance(given, Mapping) or not given:
        raise TypeError(
            "`active_if` must be a dict of values by the names of parameters, got"
            f" {quote(given)}. Try `active_if={{'optimizer': 'sgd'}}`."
        )
    return {
        str(name): tuple(values) if isinstance(values, list | tuple) else (values,)
        for name, values in given.items()
    }


def plain(value: Choice) -> Choice:
    """Return a value without the subclass that it may have, such as NumPy's or an enumeration's."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bool) or value is None:
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def write_plain(value: Any) -> Any:
    """Return an argument of a parameter as plain values."""
    if isinstance(value, Mapping):
        return {name: write_plain(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return [write_plain(part) for part in value]
    return dict(NONE) if value is None else plain(value)


def read_plain(value: Any) -> Any:
    """Return what ``write_plain`` has written."""
    if isinstance(value, list):
        return [read_plain(part) for part in value]
    if isinstance(value, Mapping):
        return None if value == NONE else {name: read_plain(part) for name, part in value.items()}
    return value


def json_values(content: Any) -> Any:
    """Return nested values as JSON holds them: tuples as lists, ``None`` for NaN and infinities."""
    if isinstance(content, Mapping):
        return {key: json_values(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [json_values(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def short(value: Any) -> str:
    """Return a number as text of bounded length, even an integer of a million digits."""
    return f"{value}" if not isinstance(value, int) or abs(value) < 10**20 else "a huge integer"
