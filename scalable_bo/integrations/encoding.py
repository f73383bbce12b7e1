"""Optuna's distributions as columns of the unit cube, and back.

Notation: d columns, U (..., d) on the unit cube; a numeric parameter has one column, a categorical
one a column for each choice.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from torch import Tensor


@dataclass(frozen=True)
class Numeric:
    """A float or an integer, linear or logarithmic, on a grid if it has steps."""

    distribution: FloatDistribution | IntDistribution

    width = 1

    @property
    def step(self) -> float:
        """The largest distance between neighbouring values on the unit interval,
        0 for a continuous parameter.
        """
        low = self.distribution.low
        step = self.distribution.step
        return (
            0.0
            if step is None
            else float(self._unit(torch.tensor(low + step, dtype=torch.float64, device="cpu")))
        )

    def encode(self, value: Any) -> list[float]:
        """Return the columns of a value on the unit cube."""
        return [float(self._unit(torch.tensor(float(value), dtype=torch.float64, device="cpu")))]

    def decode(self, row: Tensor) -> float | int:
        """Return the value of a row (width,) of them."""
        low = self.distribution.low
        high = self.distribution.high
        value = min(max(self._value(row).item(), low), high)
        return int(value) if isinstance(self.distribution, IntDistribution) else value

    def to_grid(self, U: Tensor) -> Tensor:
        """Return points (..., width) where they would be evaluated."""
        return U if self.distribution.step is None else self._unit(self._value(U)).to(U)

    def _unit(self, value: Tensor) -> Tensor:
        low = float(self.distribution.low)
        high = float(self.distribution.high)
        if self.distribution.log:
            return (value.log() - math.log(low)) / (math.log(high) - math.log(low))
        return (value - low) / (high - low)

    def _value(self, U: Tensor) -> Tensor:
        low = float(self.distribution.low)
        high = float(self.distribution.high)
        step = self.distribution.step
        U = U.double()
        value = (
            (math.log(low) + U * (math.log(high) - math.log(low))).exp()
            if self.distribution.log
            else low + U * (high - low)
        )
        return value if step is None else low + ((value - low) / step).round() * step


@dataclass(frozen=True)
class Categorical:
    """One of k choices, none of them nearer to another: the k columns of a unit vector."""

    distribution: CategoricalDistribution

    step = 1.0

    @property
    def width(self) -> int:
        """The number of choices, k."""
        return len(self.distribution.choices)

    def encode(self, value: Any) -> list[float]:
        """Return the columns of a value on the unit cube."""
        row = [0.0] * self.width
        row[int(self.distribution.to_internal_repr(value))] = 1.0
        return row

    def decode(self, row: Tensor) -> Any:
        """Return the value of a row (width,) of them."""
        return self.distribution.choices[int(row.argmax())]

    def to_grid(self, U: Tensor) -> Tensor:
        """Return points (..., width) where they would be evaluated."""
        return torch.nn.functional.one_hot(U.argmax(-1), self.width).to(U)


class UnitCube:
    """Parameters of a search space as points of the unit cube.

    Args:
        space: distributions by name, each of two values or more.
    """

    def __init__(self, space: Mapping[str, BaseDistribution]) -> None:
        self.columns: dict[str, tuple[Numeric | Categorical, slice]] = {}
        start = 0
        for name, distribution in space.items():
            column = _column(name, distribution)
            self.columns[name] = column, slice(start, start + column.width)
            start += column.width
        self.dim = start

    @property
    def steps(self) -> Tensor:
        """The distance between neighbouring values (d,), 0 for continuous columns."""
        return torch.tensor(
            [column.step for column, _ in self.columns.values() for _ in range(column.width)],
            dtype=torch.float64,
            device="cpu",
        )

    def encode(self, params: Mapping[str, Any]) -> list[float]:
        """Return the point (d,) of ``params``, which may hold others, too."""
        return [
            entry
            for name, (column, _) in self.columns.items()
            for entry in column.encode(params[name])
        ]

    def decode(self, point: Tensor) -> dict[str, Any]:
        """Return the parameters of a point (d,), with values that the distributions contain."""
        return {name: column.decode(point[part]) for name, (column, part) in self.columns.items()}

    def to_grid(self, U: Tensor) -> Tensor:
        """Return the nearest points to U (..., d) that are parameters' values."""
        return torch.cat(
            [column.to_grid(U[..., part]) for column, part in self.columns.values()], dim=-1
        )


def _column(name: str, distribution: BaseDistribution) -> Numeric | Categorical:
    if isinstance(distribution, CategoricalDistribution):
        return Categorical(distribution)
    if isinstance(distribution, FloatDistribution | IntDistribution):
        return Numeric(distribution)
    raise TypeError(
        f"`{name}` must have a float, int or categorical distribution, got"
        f" {type(distribution).__name__}."
    )
