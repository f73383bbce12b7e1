"""What a surrogate is trained on: values of a study, standardised, on the scale that suits them:
their own, one on which values of many magnitudes are alike, or one for values that are wild.

Notation: n values; ``U (n, e)`` on the unit cube; y values of which the largest is best, gap: the
best of them less a value, z: on a scale. Wild are values more than a hundred interquartile ranges
from the quartiles, where they are at most a tenth of all; the others are ordinary.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from scalable_bo.space.space import Space
from scalable_bo.storage.rows import Rows

# What values are taken as, by name, in the order of their numbers in a checkpoint
SCALES = {
    "plain": "",
    "gaps": "values as the logarithm of their gaps",
    "near": "a few wild values brought nearer",
    "aside": "a few wild values aside",
}
FEWEST_VALUES = 2  # for a model, unless the design is smaller
ACCIDENTS = ("withdrawn", "lost:")  # how reasons begin that do not lie in the point
# Values farther from 0 are taken to lie there: such as the largest float, for sums and differences
FARTHEST = 0.01 * torch.finfo(torch.float64).max


@dataclass(frozen=True)
class LogGap:
    """z = −log(1 + gap / unit): linear near the best value, logarithmic far below it. What is
    below the smallest value on the scale lies below it in proportion, not exponentially: the values
    tell nothing of magnitudes beyond their own.

    Args:
        best: the largest value.
        unit: a quarter of the median gap.
        reach: the z of the smallest value.
    """

    best: float
    unit: float
    reach: float

    @classmethod
    def of(cls, values: Tensor) -> Self | None:
        """Return the scale of values (n,); ``None`` where half of them are the best."""
        gaps = values.max() - values
        unit = 0.25 * float(gaps.median())
        reach = -math.log1p(float(gaps.max()) / unit) if unit > 0 else -math.inf
        return cls(float(values.max()), unit, reach) if reach > -math.inf else None

    def __call__(self, values: Tensor) -> Tensor:
        return -torch.log1p((self.best - values) / self.unit)

    def inverse(self, scaled: Tensor) -> Tensor:
        """Return values from those on the scale."""
        inside = scaled.clamp_min(self.reach)
        slope = self.unit * math.exp(-self.reach)
        return self.best - self.unit * torch.expm1(-inside) + slope * (scaled - inside)

    def log_slope(self, values: Tensor) -> Tensor:
        """Return log(dz/dy), the logarithm of the change of variables."""
        return -torch.log(self.unit + self.best - values)


@dataclass(frozen=True)
class Fences:
    """z = y among ordinary values, and little more beyond: upper + room · x / (1 + x), x = log(1 +
    (y − upper) / unit), and likewise below; room = unit / 2.

    Args:
        lower, upper: the smallest and largest ordinary value; infinite on a side without wild ones.
        unit: the interquartile range.
        reach: the farthest value beyond a fence, where nothing farther is believed.
    """

    lower: float
    upper: float
    unit: float
    reach: float

    @classmethod
    def of(cls, values: Tensor, wild: float = 100.0) -> Self | None:
        """Return the scale of values (n,); ``None`` where none is wild, farther from the others
        than values of one magnitude are: by ``wild`` interquartile ranges.
        """
        ordered = values.sort().values
        first = ordered[len(values) // 4]
        third = ordered[(3 * len(values)) // 4]
        unit = third - first
        bad = values < first - wild * unit
        good = values > third + wild * unit
        if unit <= 0 or not 0 < int((bad | good).sum()) <= 0.1 * len(values):
            return None
        lower, upper = (float(end) for end in values[~(bad | good)].aminmax())
        reach = max(lower - float(ordered[0]), float(ordered[-1]) - upper)
        return cls(
            lower if bad.any() else -math.inf, upper if good.any() else math.inf, float(unit), reach
        )

    @property
    def room(self) -> float:
        """How much of the scale there is for all wild values on a side."""
        return 0.5 * self.unit

    def __call__(self, values: Tensor) -> Tensor:
        inside = values.clamp(self.lower, self.upper)
        x = torch.log1p((values - inside).abs() / self.unit)
        return inside + self.room * (values - inside).sign() * x / (1.0 + x)

    def inverse(self, scaled: Tensor) -> Tensor:
        """Return values from those on the scale."""
        inside = scaled.clamp(self.lower, self.upper)
        out = (scaled - inside).abs() / self.room
        farthest = math.log1p(self.reach / self.unit)
        x = torch.where(out < 1.0, out / (1.0 - out), farthest).clamp_max(farthest)
        return inside + self.unit * (scaled - inside).sign() * torch.expm1(x)

    def log_slope(self, values: Tensor) -> Tensor:
        """Return log(dz/dy), the logarithm of the change of variables."""
        beyond = (values - values.clamp(self.lower, self.upper)).abs() / self.unit
        x = torch.log1p(beyond)
        slope = math.log(self.room / self.unit) - 2.0 * torch.log1p(x) - x
        return torch.where(beyond > 0, slope, 0.0)

    def log_density(self, values: Tensor) -> Tensor:
        """Return the log density of wild values, which lie evenly on the scale's part for them."""
        return self.log_slope(values) - math.log(self.room)


# A scale: increasing, so that the best value stays the best
Warp = LogGap | Fences


@dataclass(frozen=True, eq=False)
class TrainingData:
    """What a surrogate is trained on.

    Attributes:
        U: (n, e), on the unit cube.
        y: (n, 1) standardised values, of which the largest is best.
        noise: (n, 1) known variances in the units of ``y``, or ``None``.
        scale: the units of the values, or of their warp, in one of ``y``.
        signed: (n,) the values, of which the largest is best.
        warp: the scale that they are standardised on; ``None`` for their own.
        kept: (N,) which of the values told these are, where wild ones were left out.
        log_density: (N,) of values that are left out.
    """

    U: Tensor
    y: Tensor
    noise: Tensor | None
    scale: float
    offset: float
    signed: Tensor
    warp: Warp | None = None
    scale_name: str = "plain"
    kept: Tensor | None = None
    log_density: Tensor | None = None

    @classmethod
    def of(cls, U: Tensor, values: Tensor, noise: Tensor | None, maximize: bool) -> TrainingData:
        """Standardise values (n,) and their variances (n,)."""
        signed = (values * (1.0 if maximize else -1.0)).clamp(-FARTHEST, FARTHEST)
        y, offset, scale = _standardised(signed, noise)
        known = None if noise is None else noise[:, None] / scale / scale
        return cls(U, y[:, None], known, scale, offset, signed)

    @classmethod
    def of_each(cls, U: Tensor, Y: Tensor, signs: Sequence[float]) -> list[TrainingData]:
        """Standardise the values Y (n, m) of each outcome, of the points U (n, e) that have it, NaN
        where one is not known; the signs are 1 where the largest value is best, −1 elsewhere.
        """
        data = []
        for values, sign in zip(Y.T, signs, strict=True):
            told = values.isfinite()
            data.append(cls.of(U[told], values[told], None, sign > 0))
        return data

    @classmethod
    def of_success(cls, rows: Rows, space: Space) -> TrainingData | None:
        """Return 1 at the points with a value, be it of one of several outcomes, and 0 where
        evaluations failed, but for what was taken back or lost on disk; ``None`` as in
        :meth:`of_failures`.
        """
        told = rows.observed + rows.partly_told.tolist()
        failed = [r for r, why in rows.reasons.items() if not why.startswith(ACCIDENTS)]
        return cls.of_failures(space.normalize(rows.X[told]), space.normalize(rows.X[failed]))

    @classmethod
    def of_failures(cls, told: Tensor, failed: Tensor) -> TrainingData | None:
        """Return 1 at points with a value (n, e) and 0 at those that failed (k, e); ``None`` where
        there are fewer than two failures to learn from.
        """
        if len(failed) < FEWEST_VALUES:
            return None
        numbers = torch.arange(len(told) + len(failed), dtype=torch.float64, device="cpu")
        return cls.of(torch.cat([told, failed]), (numbers < len(told)).double(), None, True)

    def on(self, scale_name: str) -> TrainingData:
        """Return data on one of ``SCALES``; as they are if it changes nothing or noise is known."""
        if scale_name == "plain" or self.noise is not None:
            return self
        warp = LogGap.of(self.signed) if scale_name == "gaps" else Fences.of(self.signed)
        if warp is None:
            return self
        U = self.U
        signed = self.signed
        kept = None
        density = None
        if isinstance(warp, Fences) and scale_name == "aside":
            if warp.lower == -math.inf:
                return self
            kept = signed >= warp.lower
            density = warp.log_density(signed)
            U = U[kept]
            signed = signed[kept]
            warp = replace(warp, lower=-math.inf)
        y, offset, scale = _standardised(warp(signed))
        return TrainingData(
            U, y[:, None], None, scale, offset, signed, warp, scale_name, kept, density
        )

    def equals(self, other: TrainingData) -> bool:
        """Whether both are of the same points and values."""
        return torch.equal(self.signed, other.signed) and torch.equal(self.U, other.U)

    def part(self, rows: Tensor) -> TrainingData:
        """Return plain data of some rows (m,), standardised by themselves."""
        noise = None if self.noise is None else self.noise[rows, 0] * self.scale * self.scale
        return TrainingData.of(self.U[rows], self.signed[rows], noise, True)

    def in_units(self, rows: Tensor) -> TrainingData:
        """Return some rows (m,) in the units, and on the scale, of all."""
        noise = None if self.noise is None else self.noise[rows]
        return replace(
            self,
            U=self.U[rows],
            y=self.y[rows],
            noise=noise,
            signed=self.signed[rows],
            kept=None,
            log_density=None,
        )

    def values_of(self, y: Tensor) -> Tensor:
        """Return values of which the largest is best from standardised ones."""
        values = self.offset + self.scale * y
        return values if self.warp is None else self.warp.inverse(values)

    def log_jacobian(self, told: Tensor) -> float:
        """Return what the log likelihood of ``rows_of`` values lacks to be that of all told."""
        values = self.signed[self.rows_of(told)]
        slopes = 0.0 if self.warp is None else float(self.warp.log_slope(values).sum())
        if self.kept is not None and self.log_density is not None:
            slopes += float(self.log_density[told[~self.kept[told]]].sum())
        return slopes - len(values) * math.log(self.scale)

    def rows_of(self, told: Tensor) -> Tensor:
        """Return the rows here of values told, by the numbers of those, but for those left out."""
        if self.kept is None:
            return told
        return (self.kept.cumsum(0) - 1)[told[self.kept[told]]]


def _standardised(values: Tensor, noise: Tensor | None = None) -> tuple[Tensor, float, float]:
    """Return values (n,) less their mean, in units of their standard deviation, and both.

    Values are divided by a power of 2 first, which rounds nothing: squares of large ones would be
    infinite, of small ones 0.
    """
    _, exponent = math.frexp(values.abs().max().item() if len(values) else 1.0)
    largest = -math.frexp(torch.finfo(torch.float64).tiny)[1]  # that a number and its inverse have
    unit = 2.0 ** max(-largest, min(exponent, largest))
    shares = values / unit
    scale = shares.std().item() if len(values) > 1 else 0.0
    offset = shares.mean()
    if noise is not None and scale > 0:
        offset, scale = _weighted_units(shares, (noise / unit / unit).clamp_max(FARTHEST))
    scale = scale if scale > 0 else 1.0 / unit
    return (shares - offset) / scale, unit * offset.item(), unit * scale


def _weighted_units(values: Tensor, noise: Tensor) -> tuple[Tensor, float]:
    """Return a mean and a standard deviation of values (n,) of known variances that those which say
    little hardly move. Where the variances are equal, both are the plain ones.

    A value counts by the inverse of τ² and its own variance. What is measured has the variance τ²
    where the weighted squares sum to n − 1 (Paule and Mandel, 1982). Where values differ by no more
    than their noise, the less noisy half counts or, if that is of one value, all do.
    """

    def weigh(variance: float) -> tuple[Tensor, Tensor]:
        weights = (variance + noise.min()) / (variance + noise)
        return weights, weights @ values / weights.sum()

    def is_exceeded(variance: float) -> bool:
        weights, mean = weigh(variance)
        expected = (len(values) - 1) * (variance + noise.min())
        return bool(weights @ (values - mean).square() > expected)

    high = values.var().item()
    rounding = len(values) * sys.float_info.epsilon * weigh(sys.float_info.min)[1].item()
    low = max(sys.float_info.min, rounding**2)
    if not is_exceeded(low):
        half = values[noise <= noise.median()]
        chosen = half if half.min() < half.max() else values
        return chosen.mean(), chosen.std().item()
    for _ in range(60):  # to the last bit
        middle = math.sqrt(low) * math.sqrt(high)
        low, high = (middle, high) if is_exceeded(middle) else (low, middle)
    weights, mean = weigh(high)
    own = weights.square() @ noise / weights.square().sum()
    return mean, math.sqrt(high + own.item())
