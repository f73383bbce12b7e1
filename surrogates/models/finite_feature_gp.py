"""Gaussian processes with finitely many features, exact in weight space at any n: draws of the
weights are paths. Notation as in :mod:`surrogates.rules.weight_space`.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from gpytorch.kernels import ScaleKernel
from torch import nn

from surrogates.functions.draws import standard_normal
from surrogates.functions.feature_maps import FeatureKernel
from surrogates.functions.paths import SamplePaths
from surrogates.models.data import data_sets
from surrogates.models.pathwise import PathwiseGP, takes_settings
from surrogates.rules.data_set import DataSet
from surrogates.rules.rule import Draw, FiniteRank, Rule
from surrogates.rules.weight_space import FeatureBasis, WeightPosterior, solve_weight_posterior


@dataclass(frozen=True)
class FiniteFeatures(Rule):
    """Weights of the F features of the kernel itself."""

    num_features: int  # F
    seed: int  # of a fit's batches

    def draw(self, wanted: Draw) -> tuple[SamplePaths, None]:
        """Return draws of the weights, or the F functions that have the posterior's
        covariance, one for every column of L⁻ᵀ; there is nothing to solve.
        """
        if wanted.prior is not None:
            raise ValueError(
                "`prior` must be None for a FiniteFeatureGP, whose paths are draws of the"
                " posterior's weights."
            )
        basis, law = self.solve(wanted.data)
        F = self.num_features
        if wanted.spanning:
            normals = math.sqrt(F) * torch.eye(F, device="cpu").to(law.mean)
        else:
            normals = standard_normal((F, wanted.num_paths), law.mean, wanted.generator)
        paths = SamplePaths(
            prior=None,
            data=basis,
            weights=law.weights(normals).to(wanted.data.X),
            mean_weights=law.mean.unsqueeze(1).to(wanted.data.X),
            prior_mean=wanted.data.mean_module,
        )
        return paths, None

    def covariance(self, data: DataSet, paths: SamplePaths) -> FiniteRank:
        """Return φ(·)ᵀ P⁻¹ φ(·), of which the posterior's paths are the root."""
        return FiniteRank(
            paths.data, (paths.weights - paths.mean_weights) / math.sqrt(paths.num_samples)
        )

    def own_fit(self, n: int) -> tuple[str, str]:
        return "finite_features", f"the kernel of {n} points has finitely many features"

    def solve(self, data: DataSet) -> tuple[FeatureBasis, WeightPosterior]:
        """Return the features, and the law of their weights."""
        basis = FeatureBasis(data.kernel, (data.X.shape[1], self.num_features))
        residuals = data.y - data.mean_module(data.X)
        return basis, solve_weight_posterior(basis, data.X, residuals, data.noise)


class FiniteFeatureGP(PathwiseGP):
    """A Gaussian process with the kernel ``outputscale · φ(x)ᵀ φ(z)``, φ any network or finite
    feature map: exact, at any n.

    All is computed in weight space, in O(n F² + F³) and chunks of rows: the posterior's mean and
    covariance, whose root has F columns, and paths, which are draws of the F weights. Posterior,
    paths, transforms and conditioning are otherwise those of :class:`PathwiseGP`; there is no
    linear solver, so that ``solution`` stays ``None`` and a warm start changes nothing.
    Hyperparameters: :func:`fit_finite_features`.

    Args:
        feature_map: φ, a ``torch.nn.Module`` from (m, d), after the input transform, to (m, F),
            each row by itself: a network, :class:`FourierFeatures`, :class:`NystromFeatures`,
            :class:`AttentionFeatures`, or several in ``torch.nn.Sequential``. It is used in
            evaluation mode, and becomes part of the model. Several outputs share it.

    The other arguments are those of :class:`PathwiseGP`.

    Raises:
        TypeError, ValueError: as ``PathwiseGP``, and for a feature map that does not return (m, F)
            finite features.
    """

    @takes_settings(
        without=("covar_module", "solver", "num_features", "num_paths", "memory_budget")
    )
    def __init__(self, *, feature_map: nn.Module, **settings: Any) -> None:
        kernel = ScaleKernel(FeatureKernel(feature_map))
        kernel.outputscale = 1.0
        super().__init__(covar_module=kernel, **settings)
        self.eval()
        with torch.no_grad():
            first, *_ = data_sets(self)
            tried = first.X[:16]
            self.num_features = first.kernel.base_kernel.features(tried).shape[1]
            FeatureBasis(first.kernel, (tried.shape[1], self.num_features))(tried)
        self.train()

    @property
    def rule(self) -> FiniteFeatures:
        return FiniteFeatures(self.num_features, self.seed)

    def weight_posterior(self) -> WeightPosterior:
        """Return the law of the weights for one output and one data set, in standardised units.

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
        return self.rule.solve(elements[0])[1]

    def log_marginal_likelihood(self) -> float:
        """Return log p(y) of the standardised targets in nats, without the priors of the
        hyperparameters, in O(n F² + F³).

        Raises:
            ValueError, MemoryError: as :meth:`weight_posterior`.
        """
        return self.weight_posterior().log_likelihood
