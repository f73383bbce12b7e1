"""Scales on which values of many magnitudes are alike, and values that are wild.

Notation: y (n,) values of which the largest is best, gap: the best of them less a value, z: on the
scale. Wild are values more than a hundred interquartile ranges from the quartiles, where they are
at most a tenth of all; the others are ordinary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

FRACTION_OF_MEDIAN = 0.25
WILD = 100.0  # interquartile ranges: farther than values of one magnitude are
MOST_WILD = 0.1
ROOM = 0.5  # interquartile ranges beyond the ordinary values, for all wild ones on a side


class Warp(Protocol):
    """A scale: increasing, so that the best value stays the best."""

    def __call__(self, values: Tensor) -> Tensor:
        """Return values on the scale."""

    def inverse(self, scaled: Tensor) -> Tensor:
        """Return values from those on the scale."""

    def log_slope(self, values: Tensor) -> Tensor:
        """Return log(dz/dy), the logarithm of the change of variables."""


@dataclass(frozen=True)
class LogGap:
    """z = −log(1 + gap / unit): linear near the best value, logarithmic far below it.

    Args:
        best: the largest value.
        unit: a quarter of the median gap.
    """

    best: float
    unit: float

    @classmethod
    def of(cls, values: Tensor) -> Self | None:
        """Return the scale of values (n,); ``None`` where half of them are the best."""
        gaps = values.max() - values
        unit = FRACTION_OF_MEDIAN * float(gaps.median())
        return cls(float(values.max()), unit) if unit > 0 else None

    def __call__(self, values: Tensor) -> Tensor:
        return -torch.log1p((self.best - values) / self.unit)

    def inverse(self, scaled: Tensor) -> Tensor:
        """Return values from those on the scale."""
        return self.best - self.unit * torch.expm1(-scaled)

    def log_slope(self, values: Tensor) -> Tensor:
        """Return log(dz/dy), as :class:`Warp` has it."""
        return -torch.log(self.unit + self.best - values)


@dataclass(frozen=True)
class Fences:
    """z = y among ordinary values, and little more beyond: upper + unit/2 · x / (1 + x), x = log(1
    + (y − upper) / unit), and likewise below.

    Args:
        lower, upper: the smallest and the largest ordinary value; infinite on a side without wild
            ones.
        unit: the interquartile range.
        reach: the farthest value beyond a fence, where nothing farther is believed.
    """

    lower: float
    upper: float
    unit: float
    reach: float

    @classmethod
    def of(cls, values: Tensor) -> Self | None:
        """Return the scale of values (n,); ``None`` where none is wild."""
        ordered = values.sort().values
        first = ordered[len(values) // 4]
        third = ordered[(3 * len(values)) // 4]
        unit = third - first
        bad = values < first - WILD * unit
        good = values > third + WILD * unit
        if unit <= 0 or not 0 < int((bad | good).sum()) <= MOST_WILD * len(values):
            return None
        lower, upper = (float(end) for end in values[~(bad | good)].aminmax())
        reach = max(lower - float(ordered[0]), float(ordered[-1]) - upper)
        return cls(
            lower if bad.any() else -math.inf,
            upper if good.any() else math.inf,
            float(unit),
            reach,
        )

    def __call__(self, values: Tensor) -> Tensor:
        inside = values.clamp(self.lower, self.upper)
        x = torch.log1p((values - inside).abs() / self.unit)
        return inside + ROOM * self.unit * (values - inside).sign() * x / (1.0 + x)

    def inverse(self, scaled: Tensor) -> Tensor:
        """Return values from those on the scale."""
        inside = scaled.clamp(self.lower, self.upper)
        out = (scaled - inside).abs() / (ROOM * self.unit)
        farthest = math.log1p(self.reach / self.unit)
        x = torch.where(out < 1.0, out / (1.0 - out), farthest).clamp_max(farthest)
        return inside + self.unit * (scaled - inside).sign() * torch.expm1(x)

    def log_slope(self, values: Tensor) -> Tensor:
        """Return log(dz/dy), as :class:`Warp` has it."""
        beyond = (values - values.clamp(self.lower, self.upper)).abs() / self.unit
        x = torch.log1p(beyond)
        slope = math.log(ROOM) - 2.0 * torch.log1p(x) - x
        return torch.where(beyond > 0, slope, 0.0)

    def log_density(self, values: Tensor) -> Tensor:
        """Return the logarithm of the density of wild values that lie anywhere on the scale's
        part for them, evenly.
        """
        return self.log_slope(values) - math.log(ROOM * self.unit)
