"""A scale on which values of many magnitudes are alike.

Notation: y (n,) values of which the largest is best, gap: the best of them less a value, z: on the
scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

FRACTION_OF_MEDIAN = 0.25


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
        """Return values on the scale."""
        return -torch.log1p((self.best - values) / self.unit)

    def inverse(self, scaled: Tensor) -> Tensor:
        """Return values from those on the scale."""
        return self.best - self.unit * torch.expm1(-scaled)

    def log_slope(self, values: Tensor) -> Tensor:
        """Return log(dz/dy), the logarithm of the change of variables."""
        return -torch.log(self.unit + self.best - values)
