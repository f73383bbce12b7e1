"""Gaussian processes with finitely many features, exact in weight space at any n.

Notation: Φ (n, F) features at the data, outputscale included, so that k(X, X) = Φ Φᵀ; Σ noise
variances, r = y − μ(X) residuals. A function is μ(·) + φ(·)ᵀ w with w ~ N(0, I) a priori, and with
P = I + Φᵀ Σ⁻¹ Φ = L Lᵀ

    posterior      w | y ~ N(m, P⁻¹),   m = P⁻¹ Φᵀ Σ⁻¹ r
    log p(y)       −½ (rᵀ Σ⁻¹ r − mᵀ P m + log|P| + log|Σ| + n log 2π),
"""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.means import Mean
from torch import Tensor, nn

from surrogates import memory
from surrogates.functions.feature_maps import FeatureKernel
from surrogates.functions.features import CHUNK_ENTRIES, PriorPaths, standard_normal
from surrogates.functions.paths import BatchPaths, SamplePaths
from surrogates.models.batches import DataSet, data_sets
from surrogates.models.covariances import FiniteRank
from surrogates.models.pathwise import PathwiseGP
from surrogates.operators.differentiable import Basis
from surrogates.operators.linalg import stable_cholesky
from surrogates.operators.tiles import spans
from surrogates.solvers.base import Callback

SQUARES_HELD = 5  # copies of an (F, F) matrix, in float64, at once
TRIED_ROWS = 16  # of the data, on which a new feature map is tried


class WeightPosterior(NamedTuple):
    """The law N(m, P⁻¹) of the weights given the data, in float64.

    Attributes:
        mean: m (F,).
        factor: L (F, F), lower triangular, P = L Lᵀ.
        log_likelihood: log p(y) in nats.
    """

    mean: Tensor
    factor: Tensor
    log_likelihood: float

    def weights(self, Z: Tensor) -> Tensor:
        """Return m + L⁻ᵀ Z (F, s), draws of the weights for standard normal Z (F, s)."""
        return self.mean.unsqueeze(1) + torch.linalg.solve_triangular(self.factor.T, Z, upper=True)


class FiniteFeatureGP(PathwiseGP):
    """A Gaussian process with the kernel ``outputscale · φ(x)ᵀ φ(z)``, φ any network or finite
    feature map: exact, at any n.

    All is computed in weight space, in O(n F² + F³) and chunks of rows: the posterior's mean and
    covariance, whose root has F columns, and paths, which are draws of the F weights. Posterior,
    paths, transforms and conditioning are otherwise those of :class:`PathwiseGP`; there is no
    linear solver, so that ``solution`` stays ``None`` and a warm start changes nothing.
    Hyperparameters: :func:`fit_finite_features`.

    Args:
        train_X: (n, d), or batches (*batch, n, d).
        train_Y: (n, m), m outputs, which are independent and share the kernel.
        train_Yvar: (n, m) known noise variances; ``None`` for one inferred σ².
        likelihood: Gaussian; see :func:`gaussian_likelihood` for a given σ².
        feature_map: φ, a ``torch.nn.Module`` from (m, d), after the input transform, to (m, F),
            each row by itself: a network, :class:`FourierFeatures`, :class:`NystromFeatures`,
            :class:`AttentionFeatures`, or several in ``torch.nn.Sequential``. It is used in
            evaluation mode, and becomes part of the model.
        mean_module: any GPyTorch mean; constant if ``None``.
        outcome_transform: as in ``PathwiseGP``.
        input_transform: as in ``SingleTaskGP``.
        seed: of the paths.

    Raises:
        TypeError, ValueError: as ``PathwiseGP``, and for a feature map that does not return (m, F)
            finite features.
    """

    has_exact_posterior = False

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        likelihood: GaussianLikelihood | FixedNoiseGaussianLikelihood | None = None,
        *,
        feature_map: nn.Module,
        mean_module: Mean | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        seed: int = 0,
    ) -> None:
        kernel = ScaleKernel(FeatureKernel(feature_map))
        kernel.outputscale = 1.0
        super().__init__(
            train_X,
            train_Y,
            train_Yvar,
            likelihood,
            kernel,
            mean_module,
            outcome_transform,
            input_transform,
            seed=seed,
        )
        self.eval()
        with torch.no_grad():
            first, *_ = data_sets(self)
            basis = FeatureBasis.of(first.kernel, first.X)
            basis(first.X[:TRIED_ROWS])
        self.num_features = basis.shape[1]
        self.train()

    def weight_posterior(self) -> WeightPosterior:
        """Return the law of the weights of a model of one output and one data set, in standardised
        units.

        Raises:
            ValueError: if a feature is not finite, or the model has several outputs or data sets.
            MemoryError: if the F × F matrices do not fit in free memory.
        """
        self.eval()
        elements = data_sets(self)
        if len(elements) > 1:
            raise ValueError(
                "`weight_posterior` needs a model of one output and one data set, got"
                f" {len(elements)} of them."
            )
        return self._solve(elements[0])[1]

    def log_marginal_likelihood(self) -> float:
        """Return log p(y) of the standardised targets in nats, without the priors of the
        hyperparameters, in O(n F² + F³).

        Raises:
            ValueError, MemoryError: as :meth:`weight_posterior`.
        """
        return self.weight_posterior().log_likelihood

    def _draw(
        self,
        num_paths: int,
        num_draws: int,
        generator: torch.Generator,
        prior: PriorPaths | None = None,
        callback: Callback | None = None,
    ) -> list[SamplePaths]:
        """Return ``num_paths`` draws of the weights for every data set;
        they share the features, which are the kernel's own.
        """
        if prior is not None:
            raise ValueError(
                "`prior` must be None for a FiniteFeatureGP, whose paths are draws of the"
                " posterior's weights."
            )
        streams = iter(self._streams(generator))
        return self._paths_of(
            lambda like: standard_normal((self.num_features, num_paths), like, next(streams))
        )

    def _paths_of(self, normals: Callable[[Tensor], Tensor]) -> list[SamplePaths]:
        """Return paths with the weights m + L⁻ᵀ Z for every data set,
        with the Z (F, s) that ``normals`` makes of a tensor like it.
        """
        parts = []
        for data in data_sets(self):
            basis, law = self._solve(data)
            parts.append(
                SamplePaths(
                    prior=None,
                    data=basis,
                    weights=law.weights(normals(law.mean)).to(data.X),
                    mean_weights=law.mean.unsqueeze(1).to(data.X),
                    prior_mean=data.mean_module,
                )
            )
        return parts

    def _solve(self, data: DataSet) -> tuple["FeatureBasis", WeightPosterior]:
        basis = FeatureBasis(data.kernel, (data.X.shape[1], self.num_features))
        return basis, solve_weight_posterior(basis, data.X, data.residuals, data.noise)

    def _covariance(self, data: DataSet, paths: SamplePaths) -> FiniteRank:
        """Return φ(·)ᵀ P⁻¹ φ(·), of which the posterior's paths are the root."""
        return FiniteRank(
            paths.data, (paths.weights - paths.mean_weights) / math.sqrt(paths.num_samples)
        )

    def _posterior_paths(self) -> SamplePaths | BatchPaths:
        """Return F functions whose covariance about the mean is the posterior's:
        one for every column of L⁻ᵀ.
        """
        if self._drop_stale_state() is None:
            self._keep(
                self._paths_of(
                    lambda like: (
                        math.sqrt(self.num_features) * torch.eye(self.num_features).to(like)
                    )
                )
            )
        paths: SamplePaths | BatchPaths = self.prediction_strategy.paths
        return paths


@dataclass(frozen=True, eq=False)
class FeatureBasis(Basis):
    """The F functions sqrt(outputscale) φ_j of a kernel, evaluated in chunks of points.

    Attributes:
        kernel: outputscale · φ(x)ᵀ φ(z).
        shape: (d, F).
    """

    kernel: ScaleKernel
    shape: tuple[int, int]

    @classmethod
    def of(cls, kernel: ScaleKernel, X: Tensor) -> Self:
        """Return the basis of ``kernel`` at points such as X (n, d),
        on some of which it is tried.
        """
        return cls(kernel, (X.shape[1], kernel.base_kernel.features(X[:TRIED_ROWS]).shape[1]))

    @property
    def dim(self) -> int:
        return self.shape[0]

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

    def matmul(self, X: Tensor, W: Tensor) -> Tensor:
        return torch.cat([self(X[rows]) @ W for rows in self.chunks(len(X))])

    def matmul_gradient(self, X: Tensor, W: Tensor, cotangent: Tensor) -> Tensor:
        return torch.cat(
            [self._gradient(X[rows], cotangent[rows] @ W.T)[1] for rows in self.chunks(len(X))]
        )

    def rowwise(self, X: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        values = X.new_empty(X.shape[:-1])
        gradient = torch.empty_like(X)
        for group in self.chunks(len(X), X.shape[1]):
            weights = W.T[group].unsqueeze(1)
            features, gradient[group] = self._gradient(X[group], weights)
            values[group] = (features * weights).sum(-1)
        return values, gradient

    def to(self, device: torch.device | str) -> Self:
        return replace(self, kernel=deepcopy(self.kernel).to(device))

    def _gradient(self, X: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return Φ(X) and the gradient in X of ``Σ weights ∘ Φ(X)``."""
        with torch.enable_grad():
            X = X.detach().requires_grad_()
            features = self(X)
            (gradient,) = torch.autograd.grad((features * weights).sum(), X)
        return features.detach(), gradient

    def chunks(self, length: int, width: int = 1) -> list[slice]:
        """Return consecutive rows of ``width`` points each, such that a chunk has about as many
        features as are evaluated at a time.
        """
        entries = CHUNK_ENTRIES.get(self.kernel.outputscale.device.type, CHUNK_ENTRIES["cuda"])
        return list(spans(length, max(1, entries // (width * self.shape[1]))))


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
    num_bytes = SQUARES_HELD * num_features**2 * torch.float64.itemsize
    memory.require(
        num_bytes, X.device, f"A posterior of {num_features} weights", "Use fewer features."
    )
    std = noise.double().sqrt().expand(len(X))
    with torch.no_grad():
        P = torch.eye(num_features, dtype=torch.float64, device=X.device)
        rhs = P.new_zeros(num_features)
        for rows in basis.chunks(len(X)):
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
