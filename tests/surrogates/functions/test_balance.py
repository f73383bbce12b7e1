"""Balanced normal draws: exact covariance in the smoothest directions, normal everywhere."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from gpytorch.means import ZeroMean
from torch import Tensor

from surrogates import PathwiseGP, gaussian_likelihood
from surrogates.functions.draws import balanced_normal, balanced_rows, standard_normal
from tests import problems
from tests.problems import seeded

N = 60
S = 256
NUM_DIRECTIONS = 8  # by default
NUM_VALUES = 8 * NUM_DIRECTIONS  # which show them


def smooth_values(num_draws: int = S, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return values (N, num_draws) of which few directions make up nearly all."""
    scales = 0.3 ** torch.arange(20, dtype=torch.float64)
    directions = torch.linalg.qr(problems.normal(N, 20, seed=1)).Q
    return (directions @ (scales.unsqueeze(1) * problems.normal(20, num_draws))).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_the_covariance_in_the_leading_directions_is_exact(dtype: torch.dtype) -> None:
    values = smooth_values(dtype=dtype)
    draws = balanced_normal(values, seeded())
    U, lengths, _ = torch.linalg.svd(values[:, :NUM_VALUES].double(), full_matrices=False)
    parts = (U[:, :NUM_DIRECTIONS].T @ draws.double()).to(dtype)
    # Rounding of squared lengths, in float64, beside the shortest of them
    of_squares = torch.finfo(torch.float64).eps * (lengths[0] / lengths[NUM_DIRECTIONS - 1]) ** 2
    tolerance = max(100 * torch.finfo(dtype).eps, of_squares.item())
    identity = torch.eye(NUM_DIRECTIONS, dtype=dtype)
    torch.testing.assert_close(parts @ parts.T / S, identity, rtol=0, atol=tolerance)


def test_other_directions_are_as_drawn() -> None:
    values = smooth_values()
    plain = standard_normal(values.shape, values, seeded())
    difference = balanced_normal(values, seeded()) - plain
    assert torch.linalg.matrix_rank(difference, rtol=1e-9) == NUM_DIRECTIONS
    assert difference.square().mean() < 0.05


def test_draws_are_normal_in_the_leading_directions() -> None:
    direction = torch.linalg.svd(smooth_values()[:, :NUM_VALUES], full_matrices=False).U[:, 0]
    repeats = 200
    parts = torch.stack(
        [direction @ balanced_normal(smooth_values(), seeded(i)) for i in range(repeats)]
    )
    num = repeats * S
    assert parts.mean().abs() < 5 / math.sqrt(num)
    assert parts.square().mean().item() == pytest.approx(1.0, abs=1e-6)
    assert parts.pow(4).mean().item() == pytest.approx(3.0, abs=0.1)


def test_rows_that_processes_share_are_balanced_together() -> None:
    values = smooth_values()
    draws = standard_normal(values.shape, values, seeded())
    alone = balanced_rows(values, draws, lambda A, B: A.T @ B)
    assert torch.equal(alone, balanced_normal(values, seeded()))
    parts: dict[int, Tensor] = {}
    barrier = threading.Barrier(2)

    def half(rows: slice) -> Tensor:
        def product(A: Tensor, B: Tensor) -> Tensor:
            parts[rows.start] = A.T @ B
            barrier.wait(10)
            both = parts[0] + parts[25]
            barrier.wait(10)
            return both

        return balanced_rows(values[rows], draws[rows], product)

    with ThreadPoolExecutor(2) as pool:
        together = torch.cat(list(pool.map(half, [slice(0, 25), slice(25, N)])))
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-9)


@pytest.mark.parametrize("num_draws", [1, 7])
def test_few_draws_are_left_alone(num_draws: int) -> None:
    values = smooth_values(num_draws)
    assert torch.equal(
        balanced_normal(values, seeded()), standard_normal(values.shape, values, seeded())
    )


def test_values_that_are_not_finite_are_left_to_the_solver() -> None:
    values = smooth_values()
    values[0, 0] = math.nan
    assert balanced_normal(values, seeded()).isfinite().all()


def test_256_paths_have_the_variance_of_a_posterior_of_few_directions() -> None:
    # Two directions: without balance, 6 % off in every seed
    X = problems.uniform(200, 1)
    Z = problems.uniform(40, 1, seed=1)
    kernel = problems.rbf(5.0).double()
    noise = 0.1
    exact = problems.exact_posterior(kernel, X, X[:, 0], noise, Z)[1].diagonal()
    gp = PathwiseGP(
        X,
        torch.zeros_like(X),
        likelihood=gaussian_likelihood(noise),
        covar_module=kernel,
        mean_module=ZeroMean(),
        outcome_transform=None,
    )
    ratios = []
    for seed in range(8):
        paths = gp.paths(256, generator=seeded(seed))
        with torch.no_grad():
            variance = (paths(Z) - paths.mean(Z)).square().mean(0)
        ratios.append((variance.mean() / exact.mean()).item())
    assert torch.tensor(ratios).sub(1).square().mean().sqrt() < 0.025
