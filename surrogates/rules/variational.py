"""Weights of a sparse variational posterior.

Notation: X (n, d) inputs, Z (m, d) inducing points, K_ZZ = L Lᵀ, inducing values u = μ(Z) + L v
with v ~ N(0, I) a priori and q(v) = N(c, R Rᵀ) for the posterior. The features a(x) = L⁻¹ k(Z, x)
give, in standardised units,

    mean       μ(x) + a(x)ᵀ c
    variance   k(x, x) − a(x)ᵀ a(x) + ‖Rᵀ a(x)‖²
    paths      μ(·) + f(·) + k(·, Z) K_ZZ⁻¹ (L v − f(Z)),   f a prior path, v ~ q.
"""

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from linear_operator import LinearOperator, to_linear_operator
from linear_operator.operators import MatmulLinearOperator, RootLinearOperator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from surrogates import memory
from surrogates.functions.draws import standard_normal
from surrogates.functions.paths import SamplePaths
from surrogates.operators.differentiable import KernelBasis
from surrogates.operators.kernel_matrix import kernel_operator
from surrogates.operators.linalg import stable_cholesky
from surrogates.rules.data_set import DataSet
from surrogates.rules.rule import Draw, FiniteRank, Rule
from surrogates.rules.solved import prior_of, settled
from surrogates.systems.inducing_system import InducingSystem
from surrogates.systems.system import Targets


class WhitenedPosterior(NamedTuple):
    """q(u) = N(μ(Z) + L c, L R Rᵀ Lᵀ), in float64, whatever the dtype of the data."""

    # L (m, m), lower triangular. Jitter in K_ZZ = L Lᵀ: what rounding makes necessary, or for a
    # fitted q GPyTorch's, by the data's dtype 1e-6 in float64 and 1e-4 in float32
    factor: Tensor
    mean: Tensor  # c (m,)
    root: Tensor  # R (m, m), triangular


@dataclass(frozen=True, eq=False)
class Variational(Rule):
    """The data enter through m inducing values, whose posterior q(v) is fitted or, until then, the
    maximiser of the evidence lower bound in closed form.
    """

    points: Tensor  # Z (m, d), on transformed inputs
    whitened_mean: Tensor  # c (m,) of a fitted q(v); empty for the closed form
    whitened_root: Tensor  # R (m, m) of it
    num_features: int  # of the prior paths
    memory_budget: int | None  # bytes a kept kernel matrix may take; ``None`` for the default
    seed: int  # of a fit's batches

    def draw(self, wanted: Draw) -> tuple[SamplePaths, None]:
        """Return paths of draws of v; there is nothing to solve."""
        data = wanted.data
        prior = prior_of(wanted, self.num_features)
        L, c, R = self.posterior(data)
        Z = self.points.clone()  # a state dict is loaded into the model's
        normals = standard_normal((len(Z), wanted.num_paths), Z, wanted.generator)
        draws = c.unsqueeze(1) + R @ normals.to(R)
        draws -= torch.linalg.solve_triangular(L, prior(Z).T.to(L), upper=False)
        paths = SamplePaths(
            prior=prior,
            data=KernelBasis(data.kernel, Z),
            weights=torch.linalg.solve_triangular(L.T, draws, upper=True),
            mean_weights=torch.linalg.solve_triangular(L.T, c.unsqueeze(1), upper=True),
            prior_mean=data.mean_module,
        )
        return settled(paths, data.X), None

    def covariance(self, data: DataSet, paths: SamplePaths) -> FiniteRank:
        """Return a(·)ᵀ R Rᵀ a(·), what the inducing values explain of the covariance;
        of the paths they explain a(·)ᵀ v.
        """
        L, _, R = self.posterior(data)
        values = torch.cholesky_solve(paths.prior(self.points).T.to(L), L).to(paths.weights)
        root = torch.linalg.solve_triangular(L.T, R, upper=True).to(paths.weights)
        return FiniteRank(paths.data, root, explained=paths.weights - paths.mean_weights + values)

    def own_fit(self, n: int) -> tuple[str, str]:
        return "variational", f"the posterior of {n} points is variational"

    def posterior(self, data: DataSet) -> WhitenedPosterior:
        """Return q(u): the fitted one, or else the closed-form optimum.

        Raises:
            MemoryError: if the m × m matrices do not fit in free memory.
        """
        m = len(self.points)
        num_bytes = memory.squares_bytes(m**2)
        what = f"A variational model of {m} inducing points"
        memory.require(num_bytes, self.points.device, what, "Use fewer of them.")
        if self.whitened_mean.numel():
            return WhitenedPosterior(
                self._fitted_factor(data), self.whitened_mean.double(), self.whitened_root.double()
            )
        return self._optimum(data)

    def law(self, q: WhitenedPosterior, data: DataSet, X: Tensor) -> MultivariateNormal:
        """Return the joint law of f at X (..., k, d), in standardised units; differentiable in X.

        Args:
            q: :meth:`posterior` of ``data``.

        Raises:
            MemoryError: if what the points have in common with Z does not fit in free memory.
        """
        Z = self.points
        flat = X.reshape(-1, X.shape[-1])
        num_bytes = memory.squares_bytes(len(Z) * len(flat))
        what = f"The law of {len(flat)} values by {len(Z)} inducing points"
        memory.require(num_bytes, Z.device, what, "Ask for fewer points at a time.")
        cross = _in_float64(data.kernel, X)(Z.double(), flat.double()).to_dense()
        features = torch.linalg.solve_triangular(q.factor, cross, upper=False)
        a = features.T.reshape(*X.shape[:-1], len(Z))
        known = a @ q.root
        mean = data.mean_module(X) + (a @ q.mean).to(X)
        return MultivariateNormal(mean, _covariance(data.kernel(X), a, known))

    def bound(self, data: DataSet) -> float:
        """Return the evidence lower bound in nats."""
        q = self.posterior(data)
        X, y = data[:2]
        noise = data.noise.expand(len(y))
        total = 0.0
        for rows in memory.chunks(X, len(q.mean)):
            mean, variance = self._marginals(q, data, X[rows])
            expected = (
                torch.log(2.0 * math.pi * noise[rows])
                + ((y[rows] - mean).square() + variance) / noise[rows]
            )
            total -= 0.5 * expected.sum(dtype=torch.float64).item()
        divergence = (
            0.5 * (q.root.square().sum() + q.mean @ q.mean - len(q.mean))
            - q.root.diagonal().abs().log().sum()
        )
        return total - divergence.item()

    def _fitted_factor(self, data: DataSet) -> Tensor:
        """Return L as in the fit: its jitter decides what v means where K_ZZ is nearly singular."""
        K = kernel_operator(data.kernel, self.points).to_dense()
        jitter = gpytorch.settings.variational_cholesky_jitter.value(dtype=K.dtype)
        return psd_safe_cholesky(
            K.double() + jitter * torch.eye(len(K), dtype=torch.float64, device=K.device)
        )

    def _optimum(self, data: DataSet) -> WhitenedPosterior:
        system = InducingSystem(
            _in_float64(data.kernel, data.X),
            data.X.double(),
            self.points.double(),
            data.noise.double(),
            memory_budget=self.memory_budget,
        )
        L, M = system.whitened()
        residuals = (data.y - data.mean_module(data.X)).unsqueeze(1).double()
        b = torch.linalg.solve_triangular(
            L, system.rhs(Targets(residuals, torch.zeros_like(residuals))), upper=False
        )
        factor = stable_cholesky(M)
        root = torch.linalg.solve_triangular(
            factor.T, torch.eye(len(M), dtype=M.dtype, device=M.device), upper=True
        )
        return WhitenedPosterior(L, torch.cholesky_solve(b, factor).squeeze(1), root)

    def _marginals(self, q: WhitenedPosterior, data: DataSet, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of f(x) for each row of X, which are few."""
        kernel = _in_float64(data.kernel, X)
        cross = kernel_operator(kernel, self.points.double(), X.double()).to_dense()
        features = torch.linalg.solve_triangular(q.factor, cross, upper=False)
        # A variance that rounds below 0, divided by a small σ², would raise the bound without limit
        conditional = data.kernel(X, diag=True) - features.square().sum(0)
        explained = (q.root.T @ features).square().sum(0)
        return data.mean_module(X) + features.T @ q.mean, conditional.clamp_min(0.0) + explained


def _in_float64(kernel: Kernel, X: Tensor) -> Kernel:
    """Return ``kernel`` in float64, if X is not: L⁻¹ magnifies the rounding of its values."""
    return kernel if X.dtype == torch.float64 else deepcopy(kernel).double()


def _covariance(prior: LinearOperator, a: Tensor, known: Tensor) -> LinearOperator:
    """Return k(X, X) − a aᵀ + b bᵀ for the features a (..., k, m) of X, and b = ``known``."""
    dtype = prior.dtype
    # Usually only the variances are asked for at many points
    if a.shape[-2] > memory.part_size(a.shape[-2]):
        a = a.to(dtype)
        return prior + MatmulLinearOperator(-a, a.mT) + RootLinearOperator(known.to(dtype))
    # Rounding must not make a variance negative
    conditional = prior.to_dense().to(a) - a @ a.mT
    negative = conditional.diagonal(dim1=-2, dim2=-1).clamp_max(0.0)
    covariance = conditional - torch.diag_embed(negative) + known @ known.mT
    return to_linear_operator(covariance.to(dtype))
