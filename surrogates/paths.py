"""Sample paths of a Gaussian process posterior: functions that are drawn once and evaluated, with gradients, anywhere.

Matheron's rule, with a prior draw f, noise ε ~ N(0, Σ), H = k(X, X) + Σ, and representer weights v = H⁻¹(y − μ(X)), a = H⁻¹(f(X) + ε):

    posterior draw   =   μ(·)  +   f(·)      +   k(·, X) (v − a)
                        mean     prior path      update by the data
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from surrogates.features import PriorPaths
from surrogates.operators import KernelBasis, combine, combine_rowwise


@dataclass(frozen=True, eq=False)
class SamplePaths:
    """s functions drawn from a posterior, and its mean; all differentiable in X and tiled, so that any number of points fits.

    Values are in the user's units: ``offset + scale · (standardised value)``; inputs too, before the model's input transform.

    Attributes:
        prior: the s prior functions f.
        data: the functions k(·, x_i) of the n data points.
        weights: (n, s), v − a for every path.
        mean_weights: (n, 1), v.
        prior_mean: μ, maps (..., q, d) to (..., q).
        input_transform: applied to X first; ``None`` for none.
    """

    prior: PriorPaths
    data: KernelBasis
    weights: Tensor
    mean_weights: Tensor
    prior_mean: Callable[[Tensor], Tensor]
    input_transform: Callable[[Tensor], Tensor] | None = None
    offset: float = 0.0
    scale: float = 1.0

    @property
    def num_samples(self) -> int:
        return self.weights.shape[1]

    def __call__(self, X: Tensor) -> Tensor:
        """Return every path at X (..., q, d): (s, ..., q)."""
        X = self._inputs(X)
        flat = X.reshape(-1, X.shape[-1])
        update = combine(self.data, flat, self.weights).T.reshape(-1, *X.shape[:-1])
        return self._outputs(self.prior_mean(X) + self.prior(X) + update)

    def each(self, X: Tensor) -> Tensor:
        """Return path i at its own points ``X[i]``: (s, q), for X (s, q, d)."""
        if X.ndim != 3 or len(X) != self.num_samples:
            raise ValueError(f"`X` must have shape ({self.num_samples}, q, d), a row of points for every path, got {tuple(X.shape)}.")
        X = self._inputs(X)
        return self._outputs(self.prior_mean(X) + self.prior.each(X) + combine_rowwise(self.data, X, self.weights))

    def mean(self, X: Tensor) -> Tensor:
        """Return the posterior mean (from the mean's own solve, not the average of the paths) at X (..., q, d): (..., q)."""
        X = self._inputs(X)
        update = combine(self.data, X.reshape(-1, X.shape[-1]), self.mean_weights)
        return self._outputs(self.prior_mean(X) + update.reshape(X.shape[:-1]))

    def to(self, device: torch.device | str) -> Self:
        """Return the same functions on another device."""

        def moved(part: Any) -> Any:
            return deepcopy(part).to(device) if isinstance(part, torch.nn.Module) else part

        return replace(
            self,
            prior=self.prior.to(device),
            data=KernelBasis(moved(self.data.kernel), self.data.Z.to(device)),
            weights=self.weights.to(device),
            mean_weights=self.mean_weights.to(device),
            prior_mean=moved(self.prior_mean),
            input_transform=moved(self.input_transform),
        )

    def _inputs(self, X: Tensor) -> Tensor:
        d = self.data.Z.shape[1]
        if X.ndim < 2 or X.shape[-1] != d:
            raise ValueError(f"`X` must have shape (..., q, {d}), got {tuple(X.shape)}.")
        return X if self.input_transform is None else self.input_transform(X)

    def _outputs(self, values: Tensor) -> Tensor:
        return values if self.scale == 1.0 and self.offset == 0.0 else self.offset + self.scale * values
