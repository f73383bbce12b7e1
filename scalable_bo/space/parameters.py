"""The kinds of parameters, and how each is written on the unit cube.

Every value has a number: a ``Float`` or an ``Int`` its own, a choice of a ``Categorical`` its
position. Numbers are what ``X`` holds; ``normalize`` maps them to ``num_columns`` columns of the
unit cube, and ``unnormalize`` back, to values that exist.

``to_dict`` and ``from_dict`` are the one form in which parameters are written down: in TOML, in a
study's record and in JSON.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

LARGEST_INT = 2**40  # up to here an integer survives the way to the unit cube and back in float64
Choice = str | bool | int | float
T = TypeVar("T")


@dataclass(frozen=True)
class Float:
    """A real parameter between ``low`` and ``high``, both included.

    Args:
        low: smallest value, in the user's units.
        high: largest value, above ``low``.
        log: spread the search evenly over log(value); needs ``low`` > 0.
    Raises:
        TypeError: if a bound is not a number.
        ValueError: if a bound is not finite, the bounds are reversed or equal, or ``log`` is set
            with ``low`` <= 0.
    """

    low: float
    high: float
    log: bool = False
    type: ClassVar[str] = "float"
    num_columns: ClassVar[int] = 1
    num_values: ClassVar[float] = math.inf

    def __post_init__(self) -> None:
        # 0, 0.0 and NumPy's zeros make the same space.
        object.__setattr__(self, "low", finite("low", self.low))
        object.__setattr__(self, "high", finite("high", self.high))
        object.__setattr__(self, "log", _flag("log", self.log))
        if self.low >= self.high:
            raise ValueError(
                f"`low` must be below `high`, got low = {self.low} and high = {self.high}. Swap"
                " them?"
            )
        if self.log and self.low <= 0:
            raise ValueError(
                f"`low` must be positive with `log=True`, got {self.low}. Raise it or use"
                " `log=False`."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the parameter as a table of plain values."""
        return {"type": self.type, "low": self.low, "high": self.high, "log": self.log}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any], place: str = "parameter") -> Self:
        """Return the parameter of a table; ``place`` is what errors call it."""
        return _of_kind(cls, read_parameter(table, place), place)

    @property
    def requirement(self) -> str:
        """What a value must be, in words."""
        return f"between {self.low} and {self.high}"

    def valid(self, numbers: Tensor) -> Tensor:
        """Return which numbers are values of this parameter; NaN is none."""
        return (numbers >= self.low) & (numbers <= self.high)

    def normalize(self, values: Tensor) -> Tensor:
        """Map values in [``low``, ``high``] to [0, 1]."""
        low = self.low
        high = self.high
        if self.log:
            low = math.log(low)
            high = math.log(high)
            values = values.log()
        return ((values - low) / (high - low)).clamp(0.0, 1.0)

    def unnormalize(self, units: Tensor) -> Tensor:
        """Map numbers in [0, 1] to values in [``low``, ``high``];
        the ends to the bounds themselves, whatever the rounding.
        """
        if self.log:
            values = torch.exp(
                math.log(self.low) + units * (math.log(self.high) - math.log(self.low))
            )
        else:
            values = self.low + units * (self.high - self.low)
        values = torch.where(units == 1, self.high, torch.where(units == 0, self.low, values))
        return values.clamp(self.low, self.high)

    @property
    def line(self) -> Float:
        """The real interval behind the parameter: itself."""
        return self

    def number(self, value: Any) -> float:
        """Return the number of a value; NaN for what is not a number."""
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan

    def value(self, number: float) -> float:
        """Return the value of a number."""
        return number


@dataclass(frozen=True)
class Int:
    """An integer parameter between ``low`` and ``high``, both included.

    Each integer has the same share of the unit interval (with ``log``: of the logarithmic one) and
    stands in its middle.

    Args:
        low: smallest value.
        high: largest value, above ``low``.
        log: spread the search evenly over log(value); needs ``low`` ≥ 1.
    Attributes:
        line: the real interval that is shared out among the integers.
    Raises:
        TypeError: if a bound is not an int.
        ValueError: if the bounds are reversed or equal, beyond ±2⁴⁰, or ``log`` is set with ``low``
            < 1.
    """

    low: int
    high: int
    log: bool = False
    line: Float = field(init=False, repr=False, compare=False)
    type: ClassVar[str] = "int"
    num_columns: ClassVar[int] = 1

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            bound = getattr(self, name)
            if isinstance(bound, bool) or not isinstance(bound, Integral):
                raise TypeError(
                    f"`{name}` must be an int, got {bound!r}. Use `Float` for real numbers."
                )
            if abs(int(bound)) > LARGEST_INT:
                raise ValueError(
                    f"`{name}` must lie within ±2**40, got {_short(bound)}. Use `Float`."
                )
            object.__setattr__(self, name, int(bound))
        object.__setattr__(self, "log", _flag("log", self.log))
        if self.low >= self.high:
            raise ValueError(
                f"`low` must be below `high`, got low = {self.low} and high = {self.high}. Swap"
                " them?"
            )
        if self.log and self.low < 1:
            raise ValueError(
                f"`low` must be at least 1 with `log=True`, got {self.low}. Raise it or use"
                " `log=False`."
            )
        # Made once: every point of every search needs it.
        object.__setattr__(self, "line", Float(self.low - 0.5, self.high + 0.5, self.log))

    def to_dict(self) -> dict[str, Any]:
        """Return the parameter as a table of plain values."""
        return {"type": self.type, "low": self.low, "high": self.high, "log": self.log}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any], place: str = "parameter") -> Self:
        """Return the parameter of a table; ``place`` is what errors call it."""
        return _of_kind(cls, read_parameter(table, place), place)

    @property
    def num_values(self) -> float:
        """How many values there are."""
        return self.high - self.low + 1

    @property
    def requirement(self) -> str:
        """What a value must be, in words."""
        return f"an integer between {self.low} and {self.high}"

    def valid(self, numbers: Tensor) -> Tensor:
        """Return which numbers are values of this parameter; NaN is none."""
        return (numbers >= self.low) & (numbers <= self.high) & (numbers == numbers.round())

    def normalize(self, values: Tensor) -> Tensor:
        """Map values to [0, 1], each to the middle of its share."""
        return self.line.normalize(values)

    def unnormalize(self, units: Tensor) -> Tensor:
        """Map numbers in [0, 1] to the integers whose share they lie in."""
        return self.line.unnormalize(units).round().clamp(self.low, self.high)

    def number(self, value: Any) -> float:
        """Return the number of a value; NaN for what is not a number."""
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan

    def value(self, number: float) -> int:
        """Return the value of a number."""
        return int(number)


@dataclass(frozen=True)
class Categorical:
    """A choice among values without an order; the surrogate sees one column of the unit cube for
    each choice, 1 for the one taken.

    Args:
        choices: at least two different strings, booleans or finite numbers.
    Raises:
        TypeError: if ``choices`` is a string, or a choice is of another kind.
        ValueError: if there are fewer than two, or two are equal.
    """

    choices: Sequence[Choice]
    type: ClassVar[str] = "categorical"

    def __post_init__(self) -> None:
        if isinstance(self.choices, str) or not isinstance(self.choices, Sequence):
            raise TypeError(f"`choices` must be a list of values, got {self.choices!r}.")
        choices = tuple(self.choices)
        for choice in choices:
            if not isinstance(choice, str | bool | int | float):
                raise TypeError(
                    f"`choices` must be strings, booleans or numbers, got {choice!r}. Name the"
                    " choices, and map the names."
                )
            if isinstance(choice, float) and not math.isfinite(choice):
                raise ValueError(f"`choices` must be finite, got {choice}. Use a name for it.")
        if len(choices) < 2:
            raise ValueError(
                f"`choices` must be at least two, got {list(choices)!r}. Give the space a fixed"
                " value instead."
            )
        if len(set(choices)) < len(choices):
            raise ValueError(f"`choices` must be different, got {list(choices)!r}.")
        object.__setattr__(self, "choices", choices)

    def to_dict(self) -> dict[str, Any]:
        """Return the parameter as a table of plain values."""
        return {"type": self.type, "choices": [plain(choice) for choice in self.choices]}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any], place: str = "parameter") -> Self:
        """Return the parameter of a table; ``place`` is what errors call it."""
        return _of_kind(cls, read_parameter(table, place), place)

    @property
    def num_columns(self) -> int:
        """The number of columns of the unit cube."""
        return len(self.choices)

    @property
    def num_values(self) -> float:
        """How many values there are."""
        return len(self.choices)

    @property
    def low(self) -> int:
        """The first position."""
        return 0

    @property
    def high(self) -> int:
        """The last position."""
        return len(self.choices) - 1

    @property
    def requirement(self) -> str:
        """What a value must be, in words."""
        return f"one of {', '.join(map(repr, self.choices))}"

    def valid(self, numbers: Tensor) -> Tensor:
        """Return which numbers are positions of choices; NaN is none."""
        return (numbers >= 0) & (numbers <= self.high) & (numbers == numbers.round())

    def normalize(self, values: Tensor) -> Tensor:
        """Map positions (...) to one-hot columns (..., number of choices)."""
        return torch.nn.functional.one_hot(values.long(), len(self.choices)).to(values.dtype)

    def unnormalize(self, units: Tensor) -> Tensor:
        """Map columns (..., number of choices) to the position of the largest, (...)."""
        return units.argmax(-1).to(units.dtype)

    def number(self, value: Any) -> float:
        """Return the position of a choice; NaN for what is none."""
        for position, choice in enumerate(self.choices):
            # True is no 1 here: a boolean stands for booleans alone.
            if isinstance(value, bool) is isinstance(choice, bool) and value == choice:
                return float(position)
        return math.nan

    def value(self, number: float) -> Choice:
        """Return the choice at a position."""
        return self.choices[int(number)]


Parameter = Float | Int | Categorical
KINDS: dict[str, type[Parameter]] = {kind.type: kind for kind in (Float, Int, Categorical)}


def is_fixed_value(value: Any) -> bool:
    """Return whether ``value`` can stand for a parameter that does not vary."""
    return isinstance(value, str | bool | Integral) or (
        isinstance(value, float) and math.isfinite(value)
    )


def read_parameter(value: Any, place: str) -> Any:
    """Return the parameter of a table; what is no table stands for itself, as a fixed value.

    Raises:
        TypeError, ValueError: if the table is none of a parameter; ``place`` is what they call it.
    """
    if not isinstance(value, Mapping):
        return value
    name = value.get("type")
    if not isinstance(name, str) or name not in KINDS:
        raise ValueError(
            f"`{place}.type` must be {', '.join(KINDS)}, got {name!r}.{nearest(name, KINDS)}"
        )
    return read_fields(KINDS[name], {key: value[key] for key in value if key != "type"}, place)


def read_fields(kind: type[T], table: Mapping[str, Any], place: str) -> T:
    """Return the dataclass ``kind`` with the values of a table; ``place`` is what errors call it.

    Raises:
        TypeError, ValueError: with each key that is missing or unknown, or as ``kind`` does.
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


def refusal(name: str, param: Parameter, received: Any, row: int) -> ValueError:
    """Return the error of a value that is none of its parameter's."""
    return ValueError(
        f"`{name}` must be {param.requirement}, got {received!r} in row {row}. Widen the space or"
        " leave the row out."
    )


def nearest(name: Any, known: Iterable[str]) -> str:
    """Return a question for the known name that is nearest to ``name``; nothing if none is near."""
    close = get_close_matches(name, list(known), 1) if isinstance(name, str) else []
    return f" Did you mean `{close[0]}`?" if close else ""


def finite(name: str, value: Any, remedy: str = "") -> float:
    """Return a finite number as a float."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"`{name}` must be a number, got {value!r}.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"`{name}` must be finite, got {_short(value)}.{remedy}")
    return number


def plain(value: Choice) -> Choice:
    """Return a value without the subclass that it may have, such as NumPy's or an enumeration's."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bool):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def _of_kind(kind: type[T], found: Any, place: str) -> T:
    if not isinstance(found, kind):
        raise ValueError(f"`{place}` must be the table of a `{kind.__name__}`, got {found!r}.")
    return found


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"`{name}` must be True or False, got {value!r}.")
    return bool(value)


def _short(value: Any) -> str:
    """Return a number as text of bounded length, even an integer of a million digits."""
    return f"{value}" if not isinstance(value, int) or abs(value) < 10**20 else "a huge integer"
