"""The posterior of the weights of finitely many features, at any n.

Notation: Φ (n, F) features at the data, outputscale included, so that k(X, X) = Φ Φᵀ; Σ noise
variances, r = y − μ(X) residuals. A function is μ(·) + φ(·)ᵀ w with w ~ N(0, I) a priori, and with
P = I + Φᵀ Σ⁻¹ Φ = L Lᵀ

    posterior      w | y ~ N(m, P⁻¹),   m = P⁻¹ Φᵀ Σ⁻¹ r
    log p(y)       −½ (rᵀ Σ⁻¹ r − mᵀ P m + log|P| + log|Σ| + n log 2π),
"""

import math
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from gpytorch.kernels import ScaleKernel
from torch import Tensor

from surrogates import memory
from surrogates.operators.differentiable import Features
from surrogates.operators.linalg import stable_cholesky


class WeightPosterior(NamedTuple):
    """The law N(m, P⁻¹) of the weights given the data, in float64."""

    mean: Tensor  # m (F,)
    factor: Tensor  # L (F, F), lower triangular, P = L Lᵀ
    log_likelihood: float  # log p(y) in nats

    def weights(self, Z: Tensor) -> Tensor:
        """Return m + L⁻ᵀ Z (F, s), draws of the weights for standard normal Z (F, s)."""
        return self.mean.unsqueeze(1) + torch.linalg.solve_triangular(self.factor.T, Z, upper=True)


@dataclass(frozen=True, eq=False)
class FeatureBasis(Features):
    """The F functions sqrt(outputscale) φ_j of a kernel, evaluated in chunks of points."""

    kernel: ScaleKernel  # outputscale · φ(x)ᵀ φ(z)
    shape: tuple[int, int]  # (d, F)

    @property
    def dim(self) -> int:
        return self.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        return self.kernel.raw_outputscale.dtype

    def __call__(self, X: Tensor) -> Tensor:
        """Return Φ(X), (..., m, F); differentiable in X and the hyperparameters.

        Raises:
            ValueError: if a feature is not finite, or there are not F of them.
        """
        features: Tensor = self.kernel.outputscale.sqrt() * self.kernel.base_kernel.features(X)
        if features.shape[-1] != self.shape[1]:
            raise ValueError(
                f"`feature_map` must always return {self.shape[1]} features, as it did first, got"
                f" {features.shape[-1]}."
            )
        finite = torch.isfinite(features)
        if not finite.all():
            raise ValueError(
                f"`feature_map` must return finite features, got {int((~finite).sum())} others"
                f" among {features.numel()}. Scale its inputs or its weights."
            )
        return features

    def to(self, place: memory.Place) -> Self:
        return replace(self, kernel=deepcopy(self.kernel).to(place))


def solve_weight_posterior(
    basis: FeatureBasis, X: Tensor, residuals: Tensor, noise: Tensor
) -> WeightPosterior:
    """Return the law of the weights given residuals y − μ(X) (n,) at X (n, d), whose noise is a
    scalar or (n,).

    Raises:
        ValueError: if a feature is not finite.
        MemoryError: if the F × F matrices do not fit in free memory.
    """
    num_features = basis.shape[1]
    memory.require(
        memory.squares_bytes(num_features**2),
        X.device,
        f"A posterior of {num_features} weights",
        "Use fewer features.",
    )
    std = noise.double().sqrt().expand(len(X))
    with torch.no_grad():
        P = torch.eye(num_features, dtype=torch.float64, device=X.device)
        rhs = P.new_zeros(num_features)
        for rows in memory.chunks(X, num_features):
            features = basis(X[rows]).double() / std[rows].unsqueeze(1)
            P.addmm_(features.T, features)
            rhs.addmv_(features.T, residuals[rows] / std[rows])
        L = stable_cholesky(P)
        whitened = torch.linalg.solve_triangular(L, rhs.unsqueeze(1), upper=False)
        mean = torch.linalg.solve_triangular(L.T, whitened, upper=True).squeeze(1)
        squares = (residuals / std).square().sum() - whitened.square().sum()
        log_determinants = 2.0 * (L.diagonal().log().sum() + std.log().sum())
        log_likelihood = -0.5 * (squares + log_determinants + len(X) * math.log(2.0 * math.pi))
    return WeightPosterior(mean, L, log_likelihood.item())
