"""Searches that tell candidates apart in float32, where paths ask for float64."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from acquisition import ParallelThompsonSampling, thompson
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


def model(dtype: torch.dtype = torch.float32) -> PathwiseGP:
    X = problems.uniform(60, 2, dtype=dtype)
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


def linear(X: Tensor) -> Tensor:
    """Return points as a user's own transform of float64 data makes them."""
    return X @ torch.tensor([[0.8, 0.1], [0.2, 0.7]], dtype=torch.float64)


def test_paths_of_float64_data_are_told_apart_in_float32() -> None:
    paths = replace(model(torch.float64).paths(5), input_transform=linear)
    candidates = problems.uniform(100, 2, seed=1)
    quick = coarse(paths, candidates, Rows(5))
    assert isinstance(quick, SamplePaths) and quick.data.dtype == torch.float32
    values = quick(candidates)
    assert values.dtype == torch.float32
    torch.testing.assert_close(values.double(), paths(candidates), atol=1e-4, rtol=0.0)


class Own(Kernel):
    """A user's kernel, which knows float64 alone."""

    has_lengthscale = True

    def forward(self, x1: Tensor, x2: Tensor, **options: Any) -> Any:
        return self.covar_dist(linear(x1), linear(x2), square_dist=True, **options).neg().exp()


def test_paths_of_a_users_own_kernel_are_told_apart_in_the_dtype_of_the_data() -> None:
    paths = model(torch.float64).paths(5)
    assert isinstance(paths.data, KernelBasis)
    paths = replace(paths, data=KernelBasis(Own().double(), paths.data.Z))
    assert coarse(paths, problems.uniform(100, 2, seed=1), Rows(5)) is paths


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


def batch(maximize: bool, paths: SamplePaths) -> Tensor:
    dtype = paths.data.dtype
    sampler = ParallelThompsonSampling(
        model(dtype),
        BOX.to(dtype),
        num_candidates=200,
        num_rounds=20,
        num_starts=20,
        num_steps=40,
        maximize=maximize,
        repeats=True,
        seed=0,
    )
    return sampler.generate(5, paths=paths)


def shortfall(found: Tensor, exact: Tensor, maximize: bool, paths: SamplePaths) -> Tensor:
    """Return by how much values of paths at their points fall short, in their deviations."""
    values = [paths.each(X.unsqueeze(1)).squeeze(1) for X in (exact, found)]
    sign = 1.0 if maximize else -1.0
    return sign * (values[0] - values[1]) / paths(problems.uniform(50, 2)).std()


@pytest.mark.parametrize(("maximize", "dtype"), [(True, torch.float32), (False, torch.float64)])
def test_a_batch_is_as_good_as_one_searched_in_float64(
    maximize: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = doubled_paths() if dtype == torch.float32 else model(dtype).paths(5)
    found = batch(maximize, paths)
    monkeypatch.setattr(thompson, "coarse", lambda functions, *_: functions)
    exact = batch(maximize, paths)
    assert shortfall(found, exact, maximize, paths).abs().max() < 1e-3
