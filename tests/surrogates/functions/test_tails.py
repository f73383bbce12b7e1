"""Weighted features: laws of radii, exact prior variances, posterior variances of every draw."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from gpytorch.kernels import Kernel, LinearKernel, PeriodicKernel, RQKernel
from scipy.special import gammaln
from torch import Tensor

from surrogates import RandomFeatures
from surrogates.functions.draws import (
    NormalLaw,
    PiecewisePolynomialLaw,
    RadialLaw,
    ScaledNormalLaw,
    StudentLaw,
    orthogonal_directions,
)
from tests import problems
from tests.problems import seeded

N = 300
NUM_DRAWS = 4
LAWS = [
    NormalLaw(1),
    NormalLaw(8),
    StudentLaw(1, 1),
    StudentLaw(8, 3),
    StudentLaw(2, 0.3, 1e3),
    ScaledNormalLaw(1, 0.4),
    ScaledNormalLaw(4, 3.0),
    PiecewisePolynomialLaw(1, 1, (1.0,)),
    PiecewisePolynomialLaw(3, 4, (1.0, 4.0)),
    PiecewisePolynomialLaw(100, 55, (1.0, 55.0, 989.333)),
]


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_radii_follow_the_density(law: RadialLaw) -> None:
    d = law.dim
    log_r = np.linspace(-20.0, 14.0, 400_001)
    sphere = math.log(2.0) + 0.5 * d * math.log(math.pi) - gammaln(0.5 * d)
    density = np.exp(sphere + d * log_r + law.log_density(np.exp(log_r)))
    cumulative = np.cumsum(density) * (log_r[1] - log_r[0])
    assert cumulative[-1] == pytest.approx(1.0, abs=1e-4)
    radii = law.radii(50_000, seeded())
    assert (np.diff(radii) >= 0).all()
    for level in (0.1, 0.5, 0.9, 0.99):
        expected = math.exp(log_r[np.searchsorted(cumulative, level)])
        assert np.quantile(radii, level) == pytest.approx(expected, rel=0.02)


def test_directions_are_orthogonal_within_blocks() -> None:
    for dim, count in ((3, 7), (5, 2)):
        directions = orthogonal_directions(dim, count, torch.ones(1).double(), seeded())
        assert directions.shape == (dim, count)
        block = directions[:, : min(dim, count)]
        torch.testing.assert_close(block.T @ block, torch.eye(min(dim, count)).double())


def rq() -> Kernel:
    kernel = problems.with_lengthscale(RQKernel(), 1.0)
    kernel.alpha = 0.5
    return kernel


def periodic(period: float, lengthscale: float) -> Kernel:
    kernel = problems.with_lengthscale(PeriodicKernel(), lengthscale)
    kernel.period_length = period
    return kernel


KERNELS: dict[str, tuple[int, float, Callable[[], Kernel]]] = {
    "matern32-4d": (4, 1e-6, lambda: problems.matern(1.5, 3.0)),
    "matern32-2d": (2, 1e-6, lambda: problems.matern(1.5, 1.0)),
    "matern12-1d": (1, 1e-6, lambda: problems.matern(0.5, 5.0)),
    "matern52-8d": (8, 1e-4, lambda: problems.matern(2.5, 5.0)),
    "matern32-20d": (20, 1e-6, lambda: problems.matern(1.5, 5.0)),
    "rbf-1d": (1, 1e-6, lambda: problems.rbf(1.0)),
    "rbf-2d": (2, 1e-6, lambda: problems.rbf(0.1)),
    "rq-2d": (2, 1e-6, rq),
    "active": (3, 1e-6, lambda: problems.matern(1.5, 2.0, active_dims=[2, 0])),
    "ard": (2, 1e-6, lambda: problems.matern(1.5, torch.tensor([[0.5, 5.0]]), ard_num_dims=2)),
    "sum": (2, 1e-6, lambda: problems.scaled(problems.matern(1.5, 2.0), 2.0) + problems.rbf(0.5)),
    "trend": (2, 1e-6, lambda: LinearKernel() + problems.matern(1.5, 3.0)),
    "product": (2, 1e-6, lambda: problems.matern(1.5, 3.0) * problems.matern(2.5, 2.0)),
    "product-of-columns": (
        2,
        1e-6,
        lambda: (
            problems.matern(1.5, 3.0, active_dims=[0]) * problems.matern(1.5, 1.0, active_dims=[1])
        ),
    ),
    "growing": (4, 1e-6, lambda: LinearKernel() * problems.matern(1.5, 3.0)),
    "season": (1, 1e-3, lambda: periodic(0.1, 2.0) * problems.matern(2.5, 2.0)),
    "seasons": (2, 1e-2, lambda: periodic(0.5, 0.5) * problems.rbf(1.0)),
    "sharp-season": (1, 1e-3, lambda: periodic(0.5, 0.01)),
    "smooth-product": (4, 1e-6, lambda: problems.matern(1.5, 3.0) * problems.rbf(2.0)),
}


def variance_ratios(kernel: Kernel, dim: int, noise: float, **settings: bool) -> list[float]:
    """Return, for several draws of 2048 features, the variance of paths of these features over the
    exact one, expected over weights and averaged over points.
    """
    kernel = kernel.double()
    X = problems.uniform(N, dim)
    Z = problems.uniform(40, dim, seed=1)
    H = problems.own_evaluation(kernel, X, X) + noise * torch.eye(N, dtype=torch.float64)
    K_XZ = problems.own_evaluation(kernel, X, Z)
    L = torch.linalg.cholesky(H)
    A = torch.cholesky_solve(K_XZ, L).T
    explained = torch.linalg.solve_triangular(L, K_XZ, upper=False).square().sum(0)
    exact: Tensor = problems.own_evaluation(kernel, Z, Z).diagonal() - explained
    ratios = []
    for seed in range(NUM_DRAWS):
        features = RandomFeatures.draw(kernel, dim, 2048, generator=seeded(seed), **settings)
        deviation = features(Z) - A @ features(X)
        variance = deviation.square().sum(1) + noise * A.square().sum(1)
        ratios.append((variance.mean() / exact.mean()).item())
    return ratios


@pytest.mark.parametrize("name", KERNELS)
def test_every_draw_has_the_posterior_variance(name: str) -> None:
    dim, noise, make = KERNELS[name]
    ratios = variance_ratios(make(), dim, noise)
    assert min(ratios) > 0.85 and max(ratios) < 1.15
    assert sum(ratios) / NUM_DRAWS == pytest.approx(1.0, abs=0.05)


def test_unweighted_draws_lack_the_variance_between_dense_data() -> None:
    dim, noise, make = KERNELS["matern32-4d"]
    assert min(variance_ratios(make(), dim, noise, weighted=False)) < 0.3


@pytest.mark.parametrize("name", ["matern32-4d", "active", "ard", "sum", "seasons"])
def test_the_prior_variance_is_exact(name: str) -> None:
    dim, _, make = KERNELS[name]
    kernel = make().double()
    X = problems.uniform(5, dim)
    features = RandomFeatures.draw(kernel, dim, 12, generator=seeded())
    torch.testing.assert_close(
        features(X).square().sum(1), problems.own_evaluation(kernel, X, X).diagonal()
    )
