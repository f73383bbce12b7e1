"""The kinds of parameters, and how each is written on the unit cube.

Every value has a number: a ``Float`` or an ``Int`` its own, a choice of a ``Categorical`` its
position. Numbers are what ``X`` holds; ``normalize`` maps them to ``num_columns`` columns of the
unit cube, and ``unnormalize`` back, to values that exist.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import torch
from torch import Tensor

LARGEST_INT = 2**40  # up to here an integer survives the way to the unit cube and back in float64
Choice = str | bool | int | float


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
    num_columns: ClassVar[int] = 1
    num_values: ClassVar[float] = math.inf

    def __post_init__(self) -> None:
        for name, bound in (("low", self.low), ("high", self.high)):
            if isinstance(bound, bool) or not isinstance(bound, (int, float)):
                raise TypeError(f"`{name}` must be a number, got {bound!r}.")
            if not math.isfinite(bound):
                raise ValueError(f"`{name}` must be finite, got {bound}.")
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
        object.__setattr__(self, "low", float(self.low))  # 0 and 0.0 are the same space
        object.__setattr__(self, "high", float(self.high))

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
    Raises:
        TypeError: if a bound is not an int.
        ValueError: if the bounds are reversed or equal, beyond ±2⁴⁰, or ``log`` is set with ``low``
            < 1.
    """

    low: int
    high: int
    log: bool = False
    num_columns: ClassVar[int] = 1

    def __post_init__(self) -> None:
        for name, bound in (("low", self.low), ("high", self.high)):
            if isinstance(bound, bool) or not isinstance(bound, int):
                raise TypeError(
                    f"`{name}` must be an int, got {bound!r}. Use `Float` for real numbers."
                )
            if abs(bound) > LARGEST_INT:
                raise ValueError(f"`{name}` must lie within ±2**40, got {bound}. Use `Float`.")
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

    @property
    def line(self) -> Float:
        """The real interval that is shared out among the integers."""
        return Float(self.low - 0.5, self.high + 0.5, self.log)


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


def is_fixed_value(value: Any) -> bool:
    """Return whether ``value`` can stand for a parameter that does not vary."""
    return isinstance(value, str | bool | Integral) or (
        isinstance(value, float) and math.isfinite(value)
    )
