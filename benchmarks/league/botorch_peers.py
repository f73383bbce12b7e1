"""BoTorch's loops in the league, as its tutorials write them.

BoTorch draws from torch's global generator, which is left alone: these runs do not repeat exactly.

Notation: U (n, e) points of the unit cube, Y (n, k) values of which the largest are best.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.exceptions.errors import ModelFittingError
from botorch.fit import fit_gpytorch_mll
from botorch.generation.sampling import MaxPosteriorSampling
from botorch.models import SingleTaskGP
from botorch.optim.optimize import optimize_acqf
from botorch.utils.multi_objective.hypervolume import infer_reference_point
from botorch.utils.multi_objective.pareto import is_non_dominated
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.constraints import Interval
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from acquisition import TrustRegion
from benchmarks.league.base import Optimiser, SobolSearch
from scalable_bo.space.space import Space


class ExpectedImprovementSearch(Optimiser):
    """``SingleTaskGP`` and ``qLogNoisyExpectedImprovement``, q points jointly, after 2 (e + 1)
    Sobol points; integers and choices by rounding. Several objectives have independent models and
    the improvement of their hypervolume, from a reference point that BoTorch infers, one point of
    a batch after the other.

    Args:
        failed: "out" to leave points out that failed, "worst" to give them the worst value so far.
        num_restarts, raw_samples, max_iterations: of ``optimize_acqf``.
    """

    def __init__(
        self,
        space: Space,
        seed: int,
        q: int,
        failed: str = "out",
        num_restarts: int = 10,
        raw_samples: int = 512,
        max_iterations: int = 200,
        num_objectives: int = 1,
    ) -> None:
        super().__init__(space, seed, q, num_objectives)
        self._failed = failed
        self._search: dict[str, Any] = {
            "num_restarts": num_restarts,
            "raw_samples": raw_samples,
            "options": {"batch_limit": 5, "maxiter": max_iterations},
        }
        self._design = SobolSearch(space, seed, q)
        self._num_initial = 2 * (space.encoded_dim + 1)

    def ask(self, q: int) -> Tensor:
        if len(self.X) < self._num_initial:
            return self._design.ask(q)
        Y = -self.values.view(len(self.X), -1)
        known = Y.isfinite().all(1)
        used = known | (self._failed == "worst")
        U = self.space.normalize(self.X[used])
        Y = torch.where(known[:, None], Y, Y[known].amin(0))[used]
        with warnings.catch_warnings(action="ignore"):
            model = SingleTaskGP(U, Y)
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
            several = self.num_objectives > 1
            improvement: AcquisitionFunction
            if several:
                corner = infer_reference_point(Y[is_non_dominated(Y)])
                improvement = qLogNoisyExpectedHypervolumeImprovement(
                    model, corner, U, prune_baseline=True
                )
            else:
                improvement = qLogNoisyExpectedImprovement(model, U, prune_baseline=True)
            candidates, _ = optimize_acqf(
                improvement, self.space.cube, q, sequential=several, **self._search
            )
        return self.space.unnormalize(candidates.clamp(0.0, 1.0))


class TrustRegionSearch(Optimiser):
    """TuRBO-1: after 2 e Sobol points, Thompson sampling among candidates of a trust region, which
    begins anew elsewhere when it has become too small.

    References:
        Eriksson et al. (2019), "Scalable Global Optimization via Local Bayesian Optimization", as
        in BoTorch's tutorial.
    """

    def __init__(self, space: Space, seed: int, q: int, most_candidates: int = 5000) -> None:
        super().__init__(space, seed, q)
        self._most_candidates = most_candidates
        self._design = SobolSearch(space, seed, q)
        self._begin()

    def _begin(self) -> None:
        dim = self.space.encoded_dim
        self._region = TrustRegion(dim, self.q)
        self._first = len(self.X)
        self._num_initial = max(self.q, 2 * dim)

    def ask(self, q: int) -> Tensor:
        if self._region.restart:
            self._begin()
        if len(self.X) - self._first < self._num_initial:
            return self._design.ask(q)
        U = self.space.normalize(self.X[self._first :])
        Y = -self.values[self._first :, None]
        with warnings.catch_warnings(action="ignore"):
            chosen = self._chosen(U, (Y - Y.mean()) / Y.std().clamp_min(1e-12), q)
        return self.space.unnormalize(chosen.clamp(0.0, 1.0))

    def tell(self, X: Tensor, values: Tensor) -> None:
        was_initial = len(self.X) - self._first < self._num_initial
        super().tell(X, values)
        if was_initial:
            best = float(-self.values[self._first :].min())
            self._region = TrustRegion(self.space.encoded_dim, self.q, best_value=best)
        else:
            self._region = self._region.update(-values)

    def _chosen(self, U: Tensor, Y: Tensor, q: int) -> Tensor:
        """Return the candidates (q, e) that are the best of q joint draws."""
        dim = U.shape[1]
        scales = Interval(0.005, 4.0)
        kernel = ScaleKernel(MaternKernel(2.5, ard_num_dims=dim, lengthscale_constraint=scales))
        likelihood = GaussianLikelihood(noise_constraint=Interval(1e-8, 1e-3))
        model = SingleTaskGP(
            U, Y, covar_module=kernel, likelihood=likelihood, outcome_transform=None
        )
        # A region that has become small holds points that are almost one, by which a fit may fail
        with suppress(ModelFittingError):
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        center = U[Y.argmax()]
        lengthscale = kernel.base_kernel.lengthscale.detach().squeeze(0)
        corners = self._region.bounds(center, self.space.cube, lengthscale)
        num_candidates = min(self._most_candidates, max(2000, 200 * dim))
        seed = 1000 * self.seed + len(self.X)
        points = draw_sobol_samples(corners, num_candidates, 1, seed=seed).squeeze(1)
        generator = torch.Generator().manual_seed(seed)
        changed = torch.rand(points.shape, generator=generator) < min(20 / dim, 1.0)
        one = torch.randint(dim, (num_candidates, 1), generator=generator)
        candidates = torch.where(changed.scatter(1, one, True), points, center)
        with torch.no_grad():
            return MaxPosteriorSampling(model, replacement=False)(candidates, num_samples=q)
