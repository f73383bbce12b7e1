"""Searches that go most of the way by sums in float32, where paths ask for sums in float64."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from acquisition import AcquisitionProgress, ParallelThompsonSampling, ascend, multistart
from acquisition.multistart import ascend_finely, coarse
from surrogates import PathwiseGP, SamplePaths
from surrogates.operators.differentiable import KernelBasis
from surrogates.systems.base import Rows
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


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_quick_functions_lead_to_the_maxima_and_the_others_to_their_tops(sign: float) -> None:
    paths = doubled_paths()
    rough = replace(paths, weights=paths.weights + 0.02 * problems.normal(60, 5))
    starts = problems.uniform(100, 2, seed=1, dtype=torch.float32).reshape(5, 20, 2)
    lengths = []

    def climb(functions, points: Tensor, **settings: object) -> tuple[Tensor, Tensor]:
        lengths.append((functions is paths, points.shape[1], settings["num_steps"]))
        return ascend(functions, points, BOX, prune=True, sign=sign, **settings)

    settings = {"num_steps": 60, "learning_rate": torch.tensor(0.02), "sign": sign}
    points, values = ascend_finely(paths, rough, starts, climb, **settings)
    assert lengths == [(False, 20, 60), (True, multistart.NUM_REACHED, 30)]
    torch.testing.assert_close(values, paths.each(points))
    _, exact = ascend_finely(paths, paths, starts, climb, **settings)
    assert lengths[2:] == [(True, 20, 60)]
    shortfall = sign * ((sign * exact).amax(1) - (sign * values).amax(1))
    assert shortfall.abs().max() < 1e-3 * exact.std()


@pytest.mark.parametrize("maximize", [True, False])
def test_a_batch_is_as_good_as_one_searched_in_float64(
    maximize: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = doubled_paths()
    reports: list[AcquisitionProgress] = []

    def batch(callback: object) -> Tensor:
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
        return sampler.generate(5, paths=paths)

    found = batch(reports.append)
    assert reports[-1] == AcquisitionProgress("ascent", 60, 60)
    monkeypatch.setattr(multistart, "LARGEST_ROUNDING", 0.0)
    exact = batch(None)
    values = [paths.each(X.unsqueeze(1)).squeeze(1) for X in (found, exact)]
    assert (values[0] - values[1]).abs().max() < 1e-3 * paths(problems.uniform(50, 2)).std()
