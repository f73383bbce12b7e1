"""Weights of the finitely many features of a kernel, exact at any n: draws of them are paths.

Notation as in :mod:`surrogates.rules.weight_space`.
"""

import math
from dataclasses import dataclass

import torch

from surrogates.functions.draws import standard_normal
from surrogates.functions.paths import SamplePaths
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
