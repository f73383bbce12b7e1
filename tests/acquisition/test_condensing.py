"""Ascents by functions of few terms beside those by the paths themselves."""

from functools import partial

import pytest
import torch
from gpytorch.means import ZeroMean
from torch import Tensor

from acquisition import AcquisitionProgress, ParallelThompsonSampling, multistart, thompson
from acquisition.multistart import OWN_STEPS, condensed
from surrogates import Cholesky, PathwiseGP, SamplePaths, gaussian_likelihood
from surrogates.operators.differentiable import KernelBasis
from tests import problems

UNIT = torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.float64)
NUM_DATA = 400
NUM_PATHS = 12
REACH = torch.full((3,), 0.05, dtype=torch.float64)
SMALL = {"num_candidates": 100, "num_rounds": 20, "num_starts": 20, "num_steps": 40}


condense = partial(condensed, num_centres=100)  # a quarter of the data


def model(lengthscale: float = 0.7, dtype: torch.dtype = torch.float64) -> PathwiseGP:
    """Return a model whose data know about where the maximum is, if not on which side of it."""
    X = problems.uniform(NUM_DATA, 3, dtype=dtype)
    y = -8.0 * (X - 0.45).square().sum(1, keepdim=True) + torch.sin(5.0 * X).sum(1, keepdim=True)
    return PathwiseGP(
        X,
        y + 0.3 * problems.normal(NUM_DATA, 1, dtype=dtype),
        likelihood=gaussian_likelihood(0.1),
        covar_module=problems.rbf(lengthscale),
        mean_module=ZeroMean(),
        solver=Cholesky(),
        num_features=512,
        num_paths=NUM_PATHS,
    )


def starts(k: int = 20) -> Tensor:
    return 0.25 + 0.5 * problems.uniform(NUM_PATHS, k, 3, seed=1)


def values_at(paths: SamplePaths, batch: Tensor) -> Tensor:
    return paths.each(batch.unsqueeze(1)).squeeze(1)


@pytest.mark.parametrize(("maximize", "dtype"), [(True, torch.float64), (False, torch.float32)])
def test_condensed_ascents_lose_nothing_that_counts(dtype, maximize, monkeypatch) -> None:
    gp = model(dtype=dtype)
    paths = gp.paths(NUM_PATHS)
    reports: list[AcquisitionProgress] = []
    settings = {**SMALL, "maximize": maximize, "repeats": True}
    bounds = UNIT.to(dtype)
    sampler = ParallelThompsonSampling(gp, bounds, **settings, callback=reports.append)
    monkeypatch.setattr(thompson, "condensed", condense)
    batch = sampler.generate(NUM_PATHS, paths=paths)
    assert reports[-1] == AcquisitionProgress("ascent", 40 + OWN_STEPS, 40 + OWN_STEPS)

    monkeypatch.undo()
    exact = ParallelThompsonSampling(gp, bounds, **settings).generate(NUM_PATHS, paths=paths)
    sign = 1.0 if maximize else -1.0
    loss = sign * (values_at(paths, exact) - values_at(paths, batch))
    deviation = (values_at(paths, exact) - paths.mean(exact)).std()
    assert loss.mean() < 0.01 * deviation
    assert loss.max() < 0.1 * deviation


def test_paths_that_few_terms_do_not_describe_are_ascended_themselves() -> None:
    rough = model(lengthscale=0.05).paths(NUM_PATHS)
    assert condense(rough, starts(), REACH) is None


def test_starts_that_are_all_centres_say_nothing_for_few_terms() -> None:
    rough = model(lengthscale=0.05).paths(NUM_PATHS)
    few = starts(3).repeat(1, 7, 1)[:1].expand(NUM_PATHS, -1, -1)
    assert condense(rough, few, REACH) is None


def test_few_data_or_starts_are_not_condensed() -> None:
    paths = model().paths(NUM_PATHS)
    assert condense(paths, starts(), REACH) is not None
    assert condense(paths, starts(multistart.FEWEST_STARTS - 1), REACH) is None
    assert condense(paths, starts(), REACH, num_centres=101) is None


def test_few_distinct_starts_have_centres_around_them() -> None:
    paths = model(lengthscale=0.4).paths(NUM_PATHS)
    few = starts(3).repeat(1, 7, 1)[:1].expand(NUM_PATHS, -1, -1)
    functions = condense(paths, few, REACH)
    assert functions is not None and isinstance(functions.data, KernelBasis)
    centres = functions.data.Z
    distances = torch.cdist(centres, few[0, :3], compute_mode="donot_use_mm_for_euclid_dist").amin(
        1
    )
    assert int((distances == 0).sum()) == 3
    assert len(centres) == 100 and 0.02 < distances[3:].mean() < 0.15

    def slopes(functions: SamplePaths) -> Tensor:
        points = few[:, :3].clone().requires_grad_()
        (slope,) = torch.autograd.grad(functions.each(points).sum(), points)
        return slope

    exact = slopes(paths)
    assert (slopes(functions) - exact).norm() < 0.1 * exact.norm()
