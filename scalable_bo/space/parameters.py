"""The kinds of parameters, and how each is written on the unit cube.

Every value has a number: a ``Float`` or an ``Int`` its own, a choice of a ``Categorical`` its
position. Numbers are what ``X`` holds; ``normalize`` maps them to ``num_columns`` columns of the
unit cube, and ``unnormalize`` back, to values that exist.

``to_dict`` and ``from_dict`` are the one form in which parameters are written down: in TOML, in a
study's record and in JSON.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from scalable_bo.space.cell_texts import position
from scalable_bo.space.plain_values import (
    Choice,
    Condition,
    condition,
    finite,
    flag,
    nearest,
    read_fields,
    read_plain,
    short,
    write_plain,
)
from scalable_bo.space.quoting import legible, quote

LARGEST_INT = 2**40  # up to here an integer survives the way to the unit cube and back in float64
GRID_TOLERANCE = 1e-9  # steps by which a value may miss the grid
# Arguments that older versions did not have, which are written where they are not the default
LATER = frozenset({"step", "ordered", "active_if"})


class _Written:
    """A parameter that can be written down: what all kinds share."""

    type: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the parameter as a table of plain values."""
        return {"type": self.type} | {name: write_plain(value) for name, value in self._given()}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any], place: str = "parameter") -> Self:
        """Return the parameter of a table; ``place`` is what errors call it."""
        found = read_parameter(table, place)
        if not isinstance(found, cls):
            raise ValueError(f"`{place}` must be the table of a `{cls.__name__}`, got {found!r}.")
        return found

    def number(self, value: Any) -> float:
        """Return the number of a value; NaN for what is none, or beyond those of a float."""
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        return float(value) if is_number and abs(value) <= sys.float_info.max else math.nan

    def values(self: Any) -> Tensor:
        """Return the numbers of all values, finitely many, in their order."""
        positions = torch.arange(int(self.num_values), dtype=torch.float64, device="cpu")
        step = getattr(self, "step", None) or 1.0
        return self.placed(self.low + positions * step)

    def observed(self: Any, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return numbers at which something may have been observed, those on the grid to the last
        bit, and which may: steps bound what is asked for alone.
        """
        valid = self.valid(numbers)
        inside = self._inside(numbers)
        return torch.where(valid, self.placed(numbers), numbers), valid | inside

    def spread(self: Any, count: int) -> Tensor:
        """Return at most so many numbers of values, from one end to the other, evenly on the scale
        of the parameter; all where there are no more.
        """
        if self.num_values <= count:
            return self.values()
        ends = torch.tensor([self.low, self.high], dtype=torch.float64, device="cpu")
        low, high = (ends.log() if self.axis == "log" else ends).tolist()
        numbers = torch.linspace(low, high, count, dtype=torch.float64, device="cpu")
        numbers = numbers.exp() if self.axis == "log" else numbers
        return self.placed(numbers.clamp(*ends)).unique()

    def rounded(self, number: float) -> float:
        """Return a number of a value without the digits that nobody sets."""
        return float(number)

    def may_be_shown_as(self, number: float, shown: float) -> bool:
        """Return whether what a spreadsheet shows may stand for the number of a value."""
        return shown in (number, self.rounded(number)) or math.isnan(shown) and math.isnan(number)

    def labels(self, numbers: Iterable[float]) -> list[Any]:
        """Return numbers as they stand at an axis."""
        return list(numbers)

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self._given())
        return f"{type(self).__name__}({given})"

    def _given(self) -> list[tuple[str, Any]]:
        """Return the arguments by name, but for what an older version would not have written."""
        found = [(one, getattr(self, one.name)) for one in fields(self) if one.init]  # type: ignore[arg-type]
        return [
            (one.name, value)
            for one, value in found
            if one.name not in LATER or value != one.default
        ]


class _Number(_Written):
    """A number between two others, in steps or not: what ``Float`` and ``Int`` share."""

    low: float
    high: float
    log: bool
    step: float | None
    active_if: Condition | None
    num_columns: ClassVar[int] = 1
    all_steps: ClassVar[float | None]  # that say nothing
    _unit: Any = None  # of a ``Float`` the number by which all values are whole ones

    def _settle(self, lowest: str) -> None:
        """Check what all bounds must be; ``lowest`` says from where on logarithms are allowed."""
        object.__setattr__(self, "log", flag("log", self.log))
        object.__setattr__(self, "active_if", condition(self.active_if))
        if self.low >= self.high:
            raise ValueError(
                f"`low` must be below `high`, got low = {self.low} and high = {self.high}. Swap"
                " them?"
            )
        if not math.isfinite(self.high - self.low):
            raise ValueError(
                f"`high` must be less than 1.8e+308 above `low`, got low = {self.low} and high ="
                f" {self.high}. Narrow them."
            )
        if self.log and self.low <= 0:
            raise ValueError(
                f"`low` must be {lowest} with `log=True`, got {self.low}. Raise it or use"
                " `log=False`."
            )
        if self.step is not None and self.step != self.all_steps:
            _check_step(self.step, self.low, self.high, self.log)

    @cached_property
    def num_values(self) -> float:
        """How many values there are."""
        return math.inf if self.step is None else 1 + round((self.high - self.low) / self.step)

    @property
    def requirement(self) -> str:
        """What a value must be, in words."""
        steps = "" if self.step == self.all_steps else f" in steps of {self.step}"
        return f"between {self.low} and {self.high}{steps}"

    @property
    def axis(self) -> str:
        """What it is drawn on: "linear", "log" or "category"."""
        return "log" if self.log else "linear"

    @property
    def in_words(self) -> str:
        """What a value may be, as people say it."""
        text = f"{self.low:.10g} to {self.high:.10g}"
        text += " in whole numbers" * (self.type == "int")
        text += "" if self.step == self.all_steps else f" in steps of {self.step:.10g}"
        return text + ", on a logarithmic scale" * self.log

    def valid(self, numbers: Tensor) -> Tensor:
        """Return which numbers are values of this parameter; NaN is none."""
        inside = self._inside(numbers)
        if self.step is None:
            return inside
        return inside & ((numbers - self.placed(numbers)).abs() <= GRID_TOLERANCE * self.step)

    def _inside(self, numbers: Tensor) -> Tensor:
        return (numbers >= self.low) & (numbers <= self.high)

    def placed(self, numbers: Tensor) -> Tensor:
        """Return the nearest values to numbers."""
        if self.step is None:
            return numbers
        values = self.low + ((numbers - self.low) / self.step).round() * self.step
        if self._unit is not None:  # 0.3, where three steps of 0.1 are 0.30000000000000004
            values = (values * self._unit).round() / self._unit
        return values.clamp(self.low, self.high)

    def may_be_shown_as(self, number: float, shown: float) -> bool:
        # Three digits are off by at most half a percent: of the number, and here of its range
        is_rounded = abs(shown - number) <= 0.005 * (self.high - self.low)
        has_three_digits = f"{shown:.3g}" == f"{number:.3g}"
        return (is_rounded and has_three_digits) or super().may_be_shown_as(number, shown)

    def normalize(self, values: Tensor) -> Tensor:
        """Map values so that the range becomes [0, 1]; with steps, to the middle of the share."""
        low, high = map(math.log, self._ends) if self.log else self._ends
        values = values.log().clamp(low, high) if self.log else values
        return (values - low) / (high - low)

    def unnormalize(self, units: Tensor) -> Tensor:
        """Map numbers in [0, 1] to values, with steps to those whose share they lie in;
        the ends to the bounds themselves, whatever the rounding.
        """
        low, high = map(math.log, self._ends) if self.log else self._ends
        values = low + units * (high - low)
        values = values.exp() if self.log else values
        low, high = self._ends
        values = torch.where(units == 1, high, torch.where(units == 0, low, values))
        return self.placed(values.clamp(low, high))

    @property
    def line(self) -> Float:
        """The real interval behind the parameter; with steps, the one that the values share."""
        return Float(*self._ends, self.log)

    @cached_property
    def _ends(self) -> tuple[float, float]:
        """The ends of the line: with steps, half of one beyond the bounds."""
        half = 0.5 * (self.step or 0.0)
        return self.low - half, self.high + half


@dataclass(frozen=True, repr=False)
class Float(_Number):
    """A real parameter between ``low`` and ``high``, both included.

    Args:
        low: smallest value, in the user's units.
        high: largest value, above ``low``.
        log: spread the search evenly over log(value); needs ``low`` > 0.
        step: the distance of the values, ``low`` and ``high`` two of them; ``None`` for all reals.
        active_if: where there is this parameter at all: by the names of parameters before it, one
            of their values or a list of them, such as ``{"optimizer": "sgd"}``; ``None`` for
            everywhere.
    Raises:
        TypeError: if a bound is not a number.
        ValueError: if a bound is not finite, the bounds are reversed or equal, or ``log`` is set
            with ``low`` <= 0 or ``step``.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None
    active_if: Condition | None = field(default=None, hash=False)
    type: ClassVar[str] = "float"
    all_steps: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        # 0, 0.0 and NumPy's zeros make the same space.
        object.__setattr__(self, "low", finite("low", self.low))
        object.__setattr__(self, "high", finite("high", self.high))
        if self.step is not None:
            object.__setattr__(self, "step", finite("step", self.step))
        self._settle("positive")

    @cached_property
    def _unit(self) -> float | None:
        """The number by which all values are whole ones, a power of ten; ``None`` if too large."""
        decimals = max(_num_decimals(self.low), _num_decimals(self.step or 0.0))
        unit = 10.0**decimals
        largest = unit * max(abs(self.low), abs(self.high))
        return unit if largest < 10.0**sys.float_info.dig else None

    def value(self, number: float) -> float:
        """Return the value of a number."""
        return number

    def rounded(self, number: float) -> float:
        """Return a number without the digits that nobody sets: beyond four of the range or, on a
        logarithmic axis, beyond four of itself.
        """
        if self.step is not None:
            return float(number)
        if self.log:
            return float(f"{number:.4g}")
        return round(float(number), 4 - math.floor(math.log10(self.high - self.low)))


@dataclass(frozen=True, repr=False)
class Int(_Number):
    """An integer parameter between ``low`` and ``high``, both included.

    Each integer has the same share of the unit interval (with ``log``: of the logarithmic one) and
    stands in its middle.

    Args:
        low: smallest value.
        high: largest value, above ``low``.
        log: spread the search evenly over log(value); needs ``low`` ≥ 1.
        step: the distance of the values, ``low`` and ``high`` two of them.
        active_if: as in ``Float``.
    Raises:
        TypeError: if a bound is not an int.
        ValueError: if the bounds are reversed or equal, beyond ±2⁴⁰, or ``log`` is set with ``low``
            < 1 or ``step``.
    """

    low: int
    high: int
    log: bool = False
    step: int = 1
    active_if: Condition | None = field(default=None, hash=False)
    type: ClassVar[str] = "int"
    all_steps: ClassVar[float | None] = 1

    def __post_init__(self) -> None:
        for name in ("low", "high", "step"):
            bound = getattr(self, name)
            if isinstance(bound, bool) or not isinstance(bound, Integral):
                raise TypeError(
                    f"`{name}` must be an int, got {quote(bound)}. Use `Float` for real numbers."
                )
            if abs(int(bound)) > LARGEST_INT:
                raise ValueError(
                    f"`{name}` must lie within ±2**40, got {short(bound)}. Use `Float`."
                )
            object.__setattr__(self, name, int(bound))
        self._settle("at least 1")

    @property
    def requirement(self) -> str:
        """What a value must be, in words."""
        return f"an integer {super().requirement}"

    def _inside(self, numbers: Tensor) -> Tensor:
        return super()._inside(numbers) & (numbers == numbers.round())

    def value(self, number: float) -> int:
        """Return the value of a number."""
        return int(number)


@dataclass(frozen=True, repr=False)
class Categorical(_Written):
    """A choice among values; the surrogate sees one column of the unit cube for each choice, 1 for
    the one taken or, where they are ordered, one column for all.

    Args:
        choices: at least two different strings, booleans, finite numbers or ``None``.
        ordered: whether choices beside each other are alike, as in "low", "medium", "high".
        active_if: as in ``Float``.
    Raises:
        TypeError: if ``choices`` is a string, or a choice is of another kind.
        ValueError: if there are fewer than two, or two are equal.
    """

    choices: Sequence[Choice]
    ordered: bool = False
    active_if: Condition | None = field(default=None, hash=False)
    type: ClassVar[str] = "categorical"
    low: ClassVar[int] = 0  # the first position

    def __post_init__(self) -> None:
        given: Any = self.choices
        try:
            values = given.tolist() if hasattr(given, "tolist") else given
            if isinstance(values, str) or not isinstance(values, Sequence):
                raise TypeError("they have no order")
            choices = tuple(getattr(one, "item", lambda one=one: one)() for one in values)
        except Exception as error:  # also of an array without values, or of several for one
            raise TypeError(
                f"`choices` must be a list of values, got {quote(given)}. Use"
                f" `Categorical([{quote(given)}, ...])`."
            ) from error
        for choice in choices:
            if not isinstance(choice, Choice):
                raise TypeError(
                    f"`choices` must be strings, booleans, numbers or None, got {quote(choice)}."
                    " Name the choices, and map the names."
                )
            if isinstance(choice, float) and not math.isfinite(choice):
                raise ValueError(f"`choices` must be finite, got {choice}. Use a name for it.")
        if len(choices) < 2:
            raise ValueError(
                f"`choices` must be at least two, got {quote(list(choices))}. Give the space a"
                " fixed value instead."
            )
        if len(set(choices)) < len(choices):
            raise ValueError(
                f"`choices` must be different, got {quote(list(choices))}. Give each once; Python"
                " takes True for 1, False for 0 and 1.0 for 1: use names in place of such pairs."
            )
        object.__setattr__(self, "choices", choices)
        object.__setattr__(self, "ordered", flag("ordered", self.ordered))
        object.__setattr__(self, "active_if", condition(self.active_if))

    @property
    def num_columns(self) -> int:
        """The number of columns of the unit cube."""
        return 1 if self.ordered else len(self.choices)

    @property
    def num_values(self) -> float:
        """How many values there are."""
        return len(self.choices)

    @property
    def axis(self) -> str:
        """What it is drawn on."""
        return "category"

    @property
    def in_words(self) -> str:
        """What a value may be, as people say it."""
        return f"one of {', '.join(map(legible, self.choices))}" + ", in this order" * self.ordered

    def labels(self, numbers: Iterable[float]) -> list[Any]:
        """Return the names of the choices at positions."""
        return [legible(self.value(number)) for number in numbers]

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

    _inside = valid

    def placed(self, numbers: Tensor) -> Tensor:
        """Return the nearest positions to numbers."""
        return numbers.round().clamp(0, self.high)

    def normalize(self, values: Tensor) -> Tensor:
        """Map positions (...) to one-hot columns (..., number of choices); of ordered choices, to
        the middles of their shares (...).
        """
        if self.ordered:
            return (values + 0.5) / len(self.choices)
        return torch.nn.functional.one_hot(values.long(), len(self.choices)).to(values.dtype)

    def unnormalize(self, units: Tensor) -> Tensor:
        """Map columns (..., number of choices) to the position of the largest, (...); of ordered
        choices, numbers (...) to the choice whose share they lie in.
        """
        if self.ordered:
            return (units * len(self.choices)).floor().clamp(0, self.high)
        return units.argmax(-1).to(units.dtype)

    def number(self, value: Any) -> float:
        """Return the position of a choice; NaN for what is none."""
        return position(value, self.choices)

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
    """Return the parameter of a table; what is no table stands for itself, as a fixed value. Raise
    TypeError or ValueError, which names the ``place``, if the table is none of a parameter.
    """
    if not isinstance(value, Mapping):
        return value
    name = value.get("type")
    if not isinstance(name, str) or name not in KINDS:
        raise ValueError(
            f"`{place}.type` must be {', '.join(KINDS)}, got {name!r}.{nearest(name, KINDS)}"
        )
    table = {key: read_plain(value[key]) for key in value if key != "type"}
    return read_fields(KINDS[name], table, place)


def _check_step(step: float, low: float, high: float, log: bool) -> None:
    if log:
        raise ValueError(f"`step` must not be given with `log=True`, got {step}. Leave one out.")
    if step <= 0:
        raise ValueError(f"`step` must be positive, got {step}.")
    num_steps = round((high - low) / step)
    if abs(low + num_steps * step - high) > GRID_TOLERANCE * step * max(1, num_steps):
        raise ValueError(
            f"`high` must be a whole number of steps above `low`, got {high}, {step} and {low}."
            f" Try `high={low + max(1, num_steps) * step:.15g}`."
        )
    if num_steps > LARGEST_INT:
        raise ValueError(f"`step` must be no less than 2**-40 of the interval, got {step}.")


def _num_decimals(number: float) -> int:
    """Return how many decimals a number has as Python writes it."""
    digits, _, exponent = repr(number).partition("e")
    fraction = digits.partition(".")[2].rstrip("0")
    return max(0, len(fraction) - int(exponent or 0))
