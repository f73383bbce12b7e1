"""Sparse variational Gaussian processes (SVGP), the usual approximation to compare with, as models
whose posterior is its paths.

Notation: X (n, d) inputs, Z (m, d) inducing points, K_ZZ = L Lᵀ, inducing values u = μ(Z) + L v
with v ~ N(0, I) a priori and q(v) = N(c, R Rᵀ) for the posterior. The features a(x) = L⁻¹ k(Z, x)
give, in the model's standardised units,

    mean       μ(x) + a(x)ᵀ c
    variance   k(x, x) − a(x)ᵀ a(x) + ‖Rᵀ a(x)‖²
    paths      μ(·) + f(·) + k(·, Z) K_ZZ⁻¹ (L v − f(Z)),   f a prior path, v ~ q.
"""

import math
from typing import Any, NamedTuple

import gpytorch
import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.means import Mean
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from surrogates import checks, memory
from surrogates.functions.features import CHUNK_ENTRIES, PriorPaths, standard_normal
from surrogates.functions.paths import SamplePaths
from surrogates.models.batches import DataSet, data_sets
from surrogates.models.covariances import FiniteRank
from surrogates.models.inducing import (
    DEFAULT_NUM_INDUCING,
    check_one_data_set,
    place_inducing_points,
)
from surrogates.models.pathwise import DEFAULT_NUM_FEATURES, DEFAULT_NUM_PATHS, PathwiseGP
from surrogates.operators.differentiable import KernelBasis
from surrogates.operators.kernel_matrix import kernel_operator
from surrogates.operators.linalg import stable_cholesky
from surrogates.operators.tiles import spans
from surrogates.rules.inducing_points import check_choice
from surrogates.solvers.base import Callback
from surrogates.solvers.run import Solution
from surrogates.systems.base import Targets
from surrogates.systems.inducing import InducingSystem

SQUARES_HELD = 6  # copies of an (m, m) matrix at once


class WhitenedPosterior(NamedTuple):
    """q(u) = N(μ(Z) + L c, L R Rᵀ Lᵀ), in float64, whatever the dtype of the data.

    Attributes:
        factor: L (m, m), lower triangular. Jitter in K_ZZ = L Lᵀ: what rounding in the data's dtype
            makes necessary, or for a fitted q GPyTorch's, which is 1e-6 in float64 and 1e-4 in
            float32.
        mean: c (m,).
        root: R (m, m), triangular.
    """

    factor: Tensor
    mean: Tensor
    root: Tensor


class VariationalGP(PathwiseGP):
    """A sparse variational Gaussian process: the data enter through m inducing values alone.

    Until :func:`fit_variational` has been called, q(v) is the maximiser of the evidence lower bound
    for the current hyperparameters, in closed form, with M = I + L⁻¹ K_ZX Σ⁻¹ K_XZ L⁻ᵀ and in O(n
    m²):

        q(v) = N(M⁻¹ L⁻¹ K_ZX Σ⁻¹ (y − μ(X)), M⁻¹).

    ``fit_variational`` keeps the q(v) that it finds, whatever the hyperparameters and data become,
    until it is called again; convert the model's dtype before, for q(v) depends on the jitter of
    its dtype. Paths, posterior, transforms and seeds are those of :class:`PathwiseGP`; there is no
    linear solver, so that ``solution`` stays ``None`` and a warm start changes nothing.

    Args:
        inducing_points: Z (m, d) in the units of ``train_X``, or their number, of which at most n
            are chosen. They stay what they are on transformed inputs when a learnable input
            transform changes.
        inducing_method: how a number of them is chosen, see :func:`choose_inducing_points`.

    The other arguments are those of :class:`PathwiseGP`.

    Attributes:
        inducing_points: Z (m, d) on transformed inputs, a buffer.

    Raises:
        TypeError, ValueError: as ``PathwiseGP``, and for inducing points that are empty, more than
            n, not finite, or of wrong shape.

    References:
        Titsias (2009), "Variational Learning of Inducing Variables in Sparse Gaussian Processes",
        eq. 10. Hensman, Fusi, Lawrence (2013), "Gaussian Processes for Big Data". Differs: (1)
        noise variances may differ between data; (2) samples are paths.
    """

    has_exact_posterior = False

    inducing_points: Tensor
    whitened_mean: Tensor
    whitened_root: Tensor

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        likelihood: GaussianLikelihood | FixedNoiseGaussianLikelihood | None = None,
        covar_module: Kernel | None = None,
        mean_module: Mean | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        *,
        inducing_points: Tensor | int = DEFAULT_NUM_INDUCING,
        inducing_method: str = "k-means",
        num_features: int = DEFAULT_NUM_FEATURES,
        num_paths: int = DEFAULT_NUM_PATHS,
        seed: int = 0,
        memory_budget: int | None = None,
    ) -> None:
        checks.training_data(train_X, train_Y)
        check_one_data_set(train_X)
        check_choice(inducing_points, inducing_method, train_X)
        super().__init__(
            train_X,
            train_Y,
            train_Yvar,
            likelihood,
            covar_module,
            mean_module,
            outcome_transform,
            input_transform,
            num_features=num_features,
            num_paths=num_paths,
            seed=seed,
            memory_budget=memory_budget,
        )
        self.register_buffer(
            "inducing_points", place_inducing_points(self, inducing_points, inducing_method)
        )
        # Empty for the closed form. Buffers, so that a state dict and `.to` carry what was fitted.
        self.register_buffer("whitened_mean", self.inducing_points.new_empty(0))
        self.register_buffer("whitened_root", self.inducing_points.new_empty(0, 0))

    @torch.no_grad()
    def whitened_posterior(self, output: int = 0) -> WhitenedPosterior:
        """Return q(u) of ``output``: the fitted one, or else the closed-form optimum.

        Raises:
            MemoryError: if the m × m matrices do not fit in free memory.
        """
        self.eval()
        return self._whitened_posterior(data_sets(self)[output])

    @torch.no_grad()
    def elbo(self) -> float:
        """Return the evidence lower bound E_q[log p(y | f)] − KL(q(v) ‖ N(0, I)) in nats, over all
        data in standardised units.

        At the closed-form optimum it is Titsias' collapsed bound; with Z = X that is the log
        marginal likelihood. The bounds of several outputs are added.
        """
        self.eval()
        return sum(self._bound(data) for data in data_sets(self))

    def _bound(self, data: DataSet) -> float:
        q = self._whitened_posterior(data)
        X, y = data[:2]
        noise = data.noise.expand(len(y))
        total = 0.0
        for rows in spans(
            len(X), max(1, CHUNK_ENTRIES.get(X.device.type, CHUNK_ENTRIES["cuda"]) // len(q.mean))
        ):
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

    def _condition(
        self,
        data: DataSet,
        prior: PriorPaths,
        generator: torch.Generator,
        warm: Tensor | None,
        callback: Callback | None,
    ) -> tuple[SamplePaths, Solution | None]:
        L, c, R = self._whitened_posterior(data)
        Z = self.inducing_points.clone()
        draws = c.unsqueeze(1) + R @ standard_normal((len(Z), prior.num_paths), Z, generator).to(R)
        draws -= torch.linalg.solve_triangular(L, prior(Z).T.to(L), upper=False)
        paths = SamplePaths(
            prior=prior,
            data=KernelBasis(data.kernel, Z),
            weights=torch.linalg.solve_triangular(L.T, draws, upper=True).to(Z),
            mean_weights=torch.linalg.solve_triangular(L.T, c.unsqueeze(1), upper=True).to(Z),
            prior_mean=data.mean_module,
        )
        return paths, None

    def _covariance(self, data: DataSet, paths: SamplePaths) -> FiniteRank:
        """Return a(·)ᵀ R Rᵀ a(·), what the inducing values explain of the covariance;
        of the paths they explain a(·)ᵀ v.
        """
        L, _, R = self._whitened_posterior(data)
        prior: Any = paths.prior  # which they have
        values = torch.cholesky_solve(prior(self.inducing_points).T.to(L), L).to(paths.weights)
        root = torch.linalg.solve_triangular(L.T, R, upper=True).to(paths.weights)
        return FiniteRank(paths.data, root, explained=paths.weights - paths.mean_weights + values)

    def _whitened_posterior(self, data: DataSet) -> WhitenedPosterior:
        self._require_memory()
        if self.whitened_mean.numel():
            return WhitenedPosterior(
                self._fitted_factor(data), self.whitened_mean.double(), self.whitened_root.double()
            )
        return self._optimum(data)

    def _fitted_factor(self, data: DataSet) -> Tensor:
        """Return L as it was in the fit: what v stands for depends on the jitter,
        in the directions that K_ZZ hardly has.
        """
        K = kernel_operator(data.kernel, self.inducing_points).to_dense()
        jitter = gpytorch.settings.variational_cholesky_jitter.value(dtype=K.dtype)
        return psd_safe_cholesky(
            K.double() + jitter * torch.eye(len(K), dtype=torch.float64, device=K.device)
        )

    def _optimum(self, data: DataSet) -> WhitenedPosterior:
        """Return the q that maximises the evidence lower bound."""
        system = InducingSystem(
            data.kernel, data.X, self.inducing_points, data.noise, memory_budget=self.memory_budget
        ).to(torch.float64)
        L, M = system.whitened()
        residuals = data.residuals.unsqueeze(1).double()
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
        cross = kernel_operator(data.kernel, self.inducing_points, X).to_dense().to(q.factor)
        features = torch.linalg.solve_triangular(q.factor, cross, upper=False)
        # Rounding must not make a variance negative: divided by a small σ², it would raise the
        # bound without limit.
        conditional = data.kernel(X, diag=True) - features.square().sum(0)
        return data.mean_module(X) + features.T @ q.mean, conditional.clamp_min(0.0) + (
            q.root.T @ features
        ).square().sum(0)

    def _require_memory(self) -> None:
        m = len(self.inducing_points)
        num_bytes = SQUARES_HELD * m**2 * torch.float64.itemsize
        memory.require(
            num_bytes,
            self.inducing_points.device,
            f"A variational model of {m} inducing points",
            "Use fewer of them.",
        )

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        # Their sizes may differ between models
        for name in ("inducing_points", "whitened_mean", "whitened_root"):
            if prefix + name in state_dict:
                setattr(self, name, getattr(self, name).new_empty(state_dict[prefix + name].shape))
        super()._load_from_state_dict(state_dict, prefix, *args)
