"""The points of a batch have the law of the exact posterior's maximisers: each is the maximiser of
a path of its own, or lies beside it.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from scipy.stats import chisquare, ks_2samp
from torch import Tensor

from acquisition import ParallelThompsonSampling
from acquisition.candidates import original_inputs
from acquisition.selection import DUPLICATE_DISTANCE
from surrogates import PathwiseGP, gaussian_likelihood
from tests import problems

SMALL = {"num_candidates": 200, "num_rounds": 10, "num_starts": 10, "num_steps": 40}
NOISE = 1e-2
BELOW = (torch.tensor([0, 1]), torch.tensor([-1.0, -1.0], dtype=torch.float64), -1.2)


@dataclass(frozen=True)
class Case:
    """A model of 12 points, flat or with a linear trend, and where its paths are maximised."""

    d: int
    trend: float
    lengthscale: float
    constraints: dict[str, Any] = field(default_factory=dict)

    @property
    def bounds(self) -> Tensor:
        return torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, self.d)

    def model(self, seed: int) -> PathwiseGP:
        generator = torch.Generator().manual_seed(seed)
        X = torch.rand(12, self.d, generator=generator, dtype=torch.float64)
        kernel = ScaleKernel(RBFKernel()).double()
        kernel.base_kernel.lengthscale = self.lengthscale
        kernel.outputscale = 1.0
        return PathwiseGP(
            X,
            self.trend * X.sum(1, keepdim=True),
            likelihood=gaussian_likelihood(NOISE),
            covar_module=kernel,
            outcome_transform=None,
            seed=seed,
        )

    def grid(self) -> Tensor:
        """Return points that cover the feasible set closely, its edges included."""
        line = torch.linspace(0.0, 1.0, 501, dtype=torch.float64)
        if "fixed_features" in self.constraints:
            return torch.stack([torch.ones_like(line), line], dim=1)
        if self.d == 1:
            return line.unsqueeze(1)
        side = torch.linspace(0.0, 1.0, 36, dtype=torch.float64)
        square = torch.cartesian_prod(side, side)
        if not self.constraints:
            return square
        edge = torch.stack([0.2 + 0.8 * line, 1.0 - 0.8 * line], dim=1)
        return torch.cat([square[square.sum(1) < 1.2], edge[::2]])


CASES = {
    "flat": Case(1, 0.0, 0.3),
    "trend": Case(2, 1.0, 0.5),
    "face": Case(2, 1.0, 0.5, {"fixed_features": {0: 1.0}}),
    "triangle": Case(2, 1.0, 0.5, {"inequality_constraints": [BELOW]}),
}


def exact_posterior(model: PathwiseGP, G: Tensor) -> tuple[Tensor, Tensor]:
    X = original_inputs(model)
    constant = model.mean_module(X[:1]).detach()
    targets = model.train_targets - constant
    mean, covariance = problems.exact_posterior(model.covar_module, X, targets, NOISE, G)
    return constant + mean, covariance


def exact_maxima(case: Case, model: PathwiseGP, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return maxima (count,) and maximisers (count, d) of draws from the exact posterior."""
    G = case.grid()
    mean, covariance = exact_posterior(model, G)
    eigenvalues, vectors = torch.linalg.eigh(covariance)
    root = vectors * eigenvalues.clamp_min(0.0).sqrt()
    draws = mean.unsqueeze(1) + root @ problems.normal(len(G), count, seed=seed)
    values, index = draws.max(dim=0)
    return values, G[index]


@pytest.mark.parametrize(("name", "q"), [("flat", 50), ("trend", 100), ("face", 50)])
def test_no_path_gives_up_more_than_a_trace_of_its_maximum(name: str, q: int) -> None:
    case = CASES[name]
    model = case.model(0)
    paths = model.paths(q)
    sampler = ParallelThompsonSampling(model, case.bounds, **SMALL, **case.constraints)
    batch = sampler.generate(q, paths=paths)
    assert torch.pdist(batch).min() > DUPLICATE_DISTANCE
    assert sampler.feasible_set.contains(batch).all()
    reached = paths.each(batch.unsqueeze(1)).squeeze(1)
    # Prior paths have a standard deviation of 1; most maximisers here are corners
    assert (paths(case.grid()).amax(1) - reached).max() < 1e-3


@pytest.mark.slow  # 20 batches of 200 points and as many exact posteriors, for each case
@pytest.mark.parametrize("name", CASES)
def test_maximisers_have_the_law_of_the_exact_posteriors(name: str) -> None:
    case = CASES[name]
    num_passed = 0
    for seed in range(20):
        model = case.model(seed)
        paths = model.paths(200)
        sampler = ParallelThompsonSampling(model, case.bounds, **SMALL, **case.constraints)
        batch = sampler.generate(200, paths=paths)
        values, points = exact_maxima(case, model, 2000, seed)
        reached = paths.each(batch.unsqueeze(1)).squeeze(1)
        pvalues = [ks_2samp(reached, values).pvalue]
        for j in range(case.d):
            # On the coarsest grid's scale: points beside a corner count as points in it
            coordinates = (35.0 * batch[:, j]).round()
            pvalues.append(ks_2samp(coordinates, (35.0 * points[:, j]).round()).pvalue)
        num_passed += min(pvalues) > 0.01 / len(pvalues)
    assert num_passed >= 19


def on_grid(X: Tensor) -> Tensor:
    return (5.0 * X).round() / 5.0


@pytest.mark.parametrize("maximize", [True, False])
def test_on_a_grid_paths_without_their_maximiser_take_their_next_best(maximize: bool) -> None:
    case = CASES["trend"]
    model = case.model(0)
    paths = model.paths(12)
    side = torch.linspace(0.0, 1.0, 6, dtype=torch.float64)
    points = torch.cartesian_prod(side, side)
    values = paths(points) if maximize else -paths(points)
    sampler = ParallelThompsonSampling(
        model, case.bounds, **SMALL, rounding=on_grid, maximize=maximize
    )
    batch = sampler.generate(12, paths=paths)

    best = values.argmax(1).tolist()
    expected = [j if j not in best[:i] else -1 for i, j in enumerate(best)]
    assert expected.count(-1) >= 3
    for i in range(12):
        if expected[i] < 0:
            ranking = values[i].argsort(descending=True).tolist()
            expected[i] = next(j for j in ranking if j not in expected)
    torch.testing.assert_close(batch, points[expected])


def test_repeated_maximisers_on_a_grid_have_their_law() -> None:
    case = CASES["flat"]
    model = case.model(0)
    sampler = ParallelThompsonSampling(model, case.bounds, **SMALL, rounding=on_grid, repeats=True)
    batch = sampler.generate(400)
    index = torch.linspace(0, 500, 6).long()
    mean, covariance = exact_posterior(model, case.grid()[index])
    factor = torch.linalg.cholesky(covariance + 1e-10 * torch.eye(6, dtype=mean.dtype))
    normal = torch.randn(6, 100_000, generator=torch.Generator().manual_seed(0), dtype=mean.dtype)
    expected = (mean.unsqueeze(1) + factor @ normal).argmax(0).bincount(minlength=6).double()
    counts = (5.0 * batch.squeeze(1)).round().long().bincount(minlength=6)
    assert chisquare(counts, 400.0 * expected / expected.sum()).pvalue > 0.01
