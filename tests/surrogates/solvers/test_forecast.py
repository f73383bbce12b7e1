"""The model of the spectrum, and the iterations of conjugate gradients that it forecasts."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from surrogates import CG, Dense, KernelSystem, Nystrom
from surrogates.solvers.forecast import SpectrumModel, _conjugate_gradients
from tests import problems
from tests.pairs import each_pair
from tests.problems import seeded

N = 300


def kernel_system(X: Tensor, noise: float | Tensor, kernel: Kernel | None = None) -> KernelSystem:
    return KernelSystem(
        problems.operator(Dense, problems.matern(1.5, 0.4) if kernel is None else kernel, X), noise
    )


def uniform(n: int, spread: float = 1.0, dim: int = 2) -> Tensor:
    return spread * problems.uniform(n, dim)


def clustered(n: int) -> Tensor:
    X = problems.uniform(n, 2)
    X[n // 2 :] = 0.3 + 0.03 * X[n // 2 :]
    return X


INPUTS: dict[str, Callable[[int], Tensor]] = {
    "smooth": uniform,
    "diagonal": lambda n: uniform(n, 1e4),
    "eight-dimensional": lambda n: uniform(n, 1.0, 8),
    "clustered": clustered,
}


@each_pair(inputs=INPUTS, noise=[1e-4, 1e-2, 1.0], rank=[0, 60, 120])
def test_conjugate_gradients_take_about_as_many_iterations_as_forecast(
    inputs: str, noise: float, rank: int
) -> None:
    system = kernel_system(INPUTS[inputs](1200), noise)
    rhs = torch.linalg.cholesky(system.to_dense()) @ problems.normal(1200, 4)  # noisy prior draws
    solution = CG(Nystrom(rank) if rank else None, tolerance=1e-2, max_epochs=400.0).solve(
        system, rhs, generator=seeded()
    )
    predicted = SpectrumModel.of(system, seeded()).iterations(rank, 1e-2)
    assert 0.4 < (predicted + 2.0) / (solution.steps.max().item() + 2.0) < 2.5


def test_a_matrix_of_k_distinct_eigenvalues_takes_k_iterations() -> None:
    for k in (1, 2, 5):
        H = np.linspace(1.0, 3.0, k)
        taken = _conjugate_gradients(H, np.ones(k), np.full(k, 100.0), 1e-10)
        assert k - 1 < taken <= k


@pytest.mark.parametrize("rank", [0, 30])
def test_a_finer_tolerance_or_less_noise_never_takes_fewer_iterations(rank: int) -> None:
    def taken(noise: float, tolerance: float) -> float:
        return SpectrumModel.of(kernel_system(uniform(600), noise), seeded()).iterations(
            rank, tolerance
        )

    finer = [taken(1e-2, tolerance) for tolerance in (0.5, 1e-1, 3e-2, 1e-2, 1e-3, 1e-6, 1e-9)]
    quieter = [taken(noise, 1e-2) for noise in (10.0, 1.0, 0.1, 1e-3, 1e-6)]
    for sequence in (finer, quieter):
        assert all(more >= fewer for fewer, more in itertools.pairwise(sequence))
        assert sequence[-1] > sequence[0]


def test_a_diagonal_matrix_is_recognised() -> None:
    model = SpectrumModel.of(kernel_system(uniform(1200, 1e4), 0.1), seeded())
    assert model.power == pytest.approx(0.0, abs=1e-3)
    assert model.smallest == pytest.approx(1.1, rel=0.01)
    assert model.iterations(0, 1e-2) <= 3.0


def test_what_the_columns_leave_of_the_diagonal_is_measured() -> None:
    system = kernel_system(uniform(N), 0.1)
    model = SpectrumModel.of(system, seeded())
    K = system.kernel.to_dense()
    columns = torch.randperm(N, generator=seeded())
    assert model.scale == pytest.approx(1.0)
    for rank in (1, 2, 10, len(model.missed) // 2, len(model.missed)):
        index = columns[:rank]
        approximation = K[:, index] @ torch.linalg.solve(K[index][:, index], K[index])
        assert model.missed_by(rank) == pytest.approx(
            1.0 - approximation.diagonal().mean().item(), rel=1e-6, abs=1e-9
        )
    left = (K - approximation).diagonal().clamp_min(0)
    expected = np.quantile(left.numpy(), np.linspace(0.05, 0.95, 10))
    assert model.shares == pytest.approx(expected / expected.mean(), rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_extrapolation_is_near_what_more_columns_show(seed: int) -> None:
    system = kernel_system(uniform(2000), 0.1)
    few = SpectrumModel.of(system, seeded(seed))
    many = SpectrumModel.of(system, seeded(seed), rank=400)
    assert len(few.missed) < len(many.missed) == 400
    for rank in (200, 399):
        assert 0.4 < few.missed_by(rank) / many.missed_by(rank) < 2.5


def test_rounding_leaves_a_direct_solve_more_the_less_the_noise() -> None:
    quiet, loud = (
        SpectrumModel.of(kernel_system(uniform(600).float(), noise), seeded()).direct_residual(
            torch.float32
        )
        for noise in (1e-6, 1.0)
    )
    assert quiet > 30.0 * loud
    assert math.isfinite(quiet)
