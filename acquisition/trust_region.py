"""A trust region: the part of the box in which the next batch is sought, growing with success and
shrinking with failure.

Notation: d inputs, q points a batch, L side length in units of the box, λ (d,) lengthscales.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from surrogates import checks


@dataclass(frozen=True)
class TrustRegion:
    """Where a local search stands; ``update`` returns where it stands next.

    A batch that improves on the best value is a success, another a failure. ``success_tolerance``
    successes in a row double L, up to ``max_length``; ``failure_tolerance`` failures in a row halve
    it. Below ``min_length`` the search is over: ``restart``.

    Args:
        dim: d.
        batch_size: q.
        length: L.
        best_value: of all evaluations so far; ``None`` before the first, which is neither success
            nor failure.
        maximize: ``False`` if smaller values are better.
        success_tolerance: batches.
        failure_tolerance: batches; ⌈max(4, d) / q⌉ if ``None``, so that about d points are tried at
            a length.
        min_length: in units of the box.
        max_length: in units of the box; beyond 1 the region is the box, if lengthscales are equal.
        num_successes: in a row, since L last changed.
        num_failures: in a row, since L last changed.

    Raises:
        TypeError, ValueError: for arguments out of their range.
    References:
        Eriksson et al. (2019), "Scalable Global Optimization via Local Bayesian Optimization",
        Section 2 (TuRBO).
        Differs: (1) at least 4 points are tried at a length, as in the authors' code, when d < 4.
    """

    dim: int
    batch_size: int
    length: float = 0.8
    best_value: float | None = None
    maximize: bool = True
    success_tolerance: int = 3
    failure_tolerance: int | None = None
    min_length: float = 0.5**7
    max_length: float = 1.6
    num_successes: int = 0
    num_failures: int = 0

    def __post_init__(self) -> None:
        counts = ["dim", "batch_size", "success_tolerance", "failure_tolerance"]
        checks.fields(self, counts, checks.positive_int)
        if self.failure_tolerance is None:
            object.__setattr__(
                self, "failure_tolerance", math.ceil(max(4, self.dim) / self.batch_size)
            )
        checks.fields(self, ["length", "min_length", "max_length"], checks.positive_float)
        checks.fields(self, ["num_successes", "num_failures"], checks.integer, 0)
        if self.length > self.max_length:
            raise ValueError(
                f"`length` must be at most `max_length` = {self.max_length:g}, got {self.length:g}."
                " Lower it."
            )
        if self.best_value is not None and not math.isfinite(self.best_value):
            raise ValueError(
                f"`best_value` must be finite, got {self.best_value}. Use None before the first"
                " evaluation."
            )

    @property
    def restart(self) -> bool:
        """Whether the region has become too small to go on: start another from new points."""
        return self.length < self.min_length

    def update(self, Y_new: Tensor) -> Self:
        """Return the region after a batch with the values ``Y_new``, (q,) or (q, 1); NaN for an
        evaluation that failed.

        Raises:
            TypeError, ValueError: if ``Y_new`` is not a tensor of one value or more.
        """
        checks.tensor("Y_new", Y_new)
        if not Y_new.numel() or Y_new.ndim > 2 or (Y_new.ndim == 2 and Y_new.shape[1] != 1):
            raise ValueError(
                f"`Y_new` must have shape (q,) or (q, 1) with q ≥ 1, got {tuple(Y_new.shape)}."
            )
        values = Y_new[torch.isfinite(Y_new)]
        best = None
        if len(values):
            best = (values.max() if self.maximize else values.min()).item()
        if self.best_value is None:
            return replace(self, best_value=best)
        if best is not None and (
            best > self.best_value if self.maximize else best < self.best_value
        ):
            return replace(
                self, best_value=best, num_successes=self.num_successes + 1, num_failures=0
            )._resized()
        return replace(self, num_successes=0, num_failures=self.num_failures + 1)._resized()

    def bounds(self, center: Tensor, box: Tensor, lengthscale: Tensor | None = None) -> Tensor:
        """Return the region's corners (2, d): sides L λ_i / (Π_j λ_j)^(1/d) in units of the box,
        around ``center``, cut off at the box.

        Args:
            center: (d,), inside the box: the best point.
            box: (2, d).
            lengthscale: λ, one number or (d,), in the units of the inputs; only their ratios
                matter. All sides are L if ``None``.
        """
        box = checks.box(box, "box")
        lower, upper = box
        if box.shape[1] != self.dim or center.shape != (self.dim,):
            received = f"{tuple(box.shape)} and {tuple(center.shape)}"
            raise ValueError(
                f"`box` and `center` must have shapes (2, {self.dim}) and ({self.dim},), got"
                f" {received}."
            )
        if not bool(((center >= lower) & (center <= upper)).all()):
            raise ValueError(
                f"`center` must lie in `box`, got {center.tolist()}. Take the best point inside."
            )
        width = upper - lower
        relative = torch.ones_like(width)
        if lengthscale is not None:
            relative = (lengthscale.to(width) / width).expand_as(width)
        if not bool((torch.isfinite(relative) & (relative > 0)).all()):
            raise ValueError(
                f"`lengthscale` must be finite and above 0, got {lengthscale}. Pass None for equal"
                " sides."
            )
        half = 0.5 * self.length * width * torch.exp(relative.log() - relative.log().mean())
        return torch.stack(
            [torch.maximum(center - half, lower), torch.minimum(center + half, upper)]
        )

    def _resized(self) -> Self:
        if self.num_successes == self.success_tolerance:
            return replace(self, length=min(2.0 * self.length, self.max_length), num_successes=0)
        if self.num_failures == self.failure_tolerance:
            return replace(self, length=0.5 * self.length, num_failures=0)
        return self
