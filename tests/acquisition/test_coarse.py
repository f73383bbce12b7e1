"""Searches that go most of the way by sums in float32, where paths ask for sums in float64."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from acquisition import AcquisitionProgress, ParallelThompsonSampling, thompson
from acquisition.multistart import coarse
from surrogates import PathwiseGP, SamplePaths
from surrogates.operators.differentiable import KernelBasis
from surrogates.systems.system import Rows
from tests import problems

BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]])


class Outvoted(Rows):
    """Functions whose other process says no."""

    def least(self, number: int) -> int:
        return 0


def model() -> PathwiseGP:
    X = problems.uniform(60, 2, dtype=torch.float32)
    return PathwiseGP(X, torch.sin(6.0 * X).sum(1, keepdim=True), num_features=256)


def doubled_paths() -> SamplePaths:
    """Return paths of float32 data that ask for sums in float64."""
    return model().paths(5).summed_in(torch.float64)


def test_paths_summed_in_float64_are_told_apart_in_float32() -> None:
    paths = doubled_paths()
    candidates = problems.uniform(100, 2, seed=1, dtype=torch.float32)
    quick = coarse(paths, candidates, Rows(5))
    assert isinstance(quick, SamplePaths) and quick.weights.dtype == torch.float32
    assert coarse(quick, candidates, Rows(5)) is quick
    assert coarse(paths, candidates, Outvoted(5)) is paths
    torch.testing.assert_close(quick(candidates), paths(candidates), atol=1e-4, rtol=0.0)


def test_paths_that_float32_sums_lose_are_told_apart_in_float64() -> None:
    paths = doubled_paths()
    # Of data that are all but equal, weights that cancel
    assert isinstance(paths.data, KernelBasis)
    Z = torch.cat([paths.data.Z, paths.data.Z + 1e-7])
    large = 1e8 * torch.ones_like(paths.weights)
    lost = replace(
        paths,
        data=replace(paths.data, Z=Z),
        weights=torch.cat([paths.weights + large, -large]),
        mean_weights=torch.cat([paths.mean_weights, torch.zeros_like(paths.mean_weights)]),
    )
    assert coarse(lost, problems.uniform(100, 2, seed=1, dtype=torch.float32), Rows(5)) is lost


def batch(maximize: bool, callback: object = None, paths: SamplePaths | None = None) -> Tensor:
    sampler = ParallelThompsonSampling(
        model(),
        BOX,
        num_candidates=200,
        num_rounds=20,
        num_starts=20,
        num_steps=40,
        maximize=maximize,
        repeats=True,
        seed=0,
        callback=callback,
    )
    return sampler.generate(5, paths=doubled_paths() if paths is None else paths)


def shortfall(found: Tensor, exact: Tensor, maximize: bool) -> Tensor:
    """Return by how much values of paths at their points fall short, in their deviations."""
    paths = doubled_paths()
    values = [paths.each(X.unsqueeze(1)).squeeze(1) for X in (exact, found)]
    sign = 1.0 if maximize else -1.0
    return sign * (values[0] - values[1]) / paths(problems.uniform(50, 2)).std()


@pytest.mark.parametrize("maximize", [True, False])
def test_a_batch_is_as_good_as_one_searched_in_float64(
    maximize: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[AcquisitionProgress] = []
    found = batch(maximize, reports.append)
    assert reports[-1] == AcquisitionProgress("ascent", 60, 60)
    monkeypatch.setattr(thompson, "coarse", lambda functions, *_: functions)
    exact = batch(maximize, reports.append)
    assert reports[-1] == AcquisitionProgress("ascent", 40, 40)
    assert shortfall(found, exact, maximize).abs().max() < 1e-3


@pytest.mark.parametrize("maximize", [True, False])
def test_the_last_ascents_correct_what_the_first_were_misled_by(
    maximize: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = doubled_paths()
    rough = replace(paths, weights=paths.weights + 0.1 * problems.normal(60, 5))
    exact = batch(maximize)
    monkeypatch.setattr(thompson, "coarse", lambda *arguments: rough)
    found = batch(maximize)
    misled = batch(maximize, paths=rough)
    lost, corrected = (shortfall(X, exact, maximize).mean() for X in (misled, found))
    assert corrected < 0.2 * lost
