"""Random features of Tanimoto kernels: their variance, their mean, and paths made of them."""

import math
from collections.abc import Callable
from itertools import cycle

import pytest
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from surrogates import PriorPaths, RandomFeatures, TanimotoKernel
from tests import problems
from tests.problems import seeded

BITS = 20
OTHERS = [BITS, BITS + 1]  # further columns, which are no part of the fingerprint

FIRST = list(range(BITS // 2))
SECOND = list(range(BITS // 2, BITS))
KERNELS: dict[str, Callable[[], Kernel]] = {
    "alone": lambda: TanimotoKernel(active_dims=FIRST + SECOND),
    "scaled": lambda: problems.scaled(TanimotoKernel(active_dims=FIRST + SECOND), 2.5),
    "times-matern": lambda: problems.scaled(
        TanimotoKernel(active_dims=FIRST + SECOND) * problems.matern(1.5, active_dims=OTHERS), 1.5
    ),
    "matern-times": lambda: (
        problems.matern(2.5, active_dims=OTHERS) * TanimotoKernel(active_dims=FIRST + SECOND)
    ),
    "two": lambda: TanimotoKernel(active_dims=FIRST) * TanimotoKernel(active_dims=SECOND),
    "sum": lambda: (
        problems.scaled(TanimotoKernel(active_dims=FIRST), 0.7)
        + problems.rbf(active_dims=OTHERS)
        + problems.scaled(TanimotoKernel(active_dims=SECOND), 2.0)
    ),
    "sum-times-sum": lambda: (
        (TanimotoKernel(active_dims=FIRST) + problems.rbf(active_dims=OTHERS))
        * (TanimotoKernel(active_dims=SECOND) + problems.matern(0.5, active_dims=OTHERS))
    ),
}
# Each kernel meets one of the two kinds of fingerprints
each_kernel = pytest.mark.parametrize(
    ("name", "kind"), [*zip(KERNELS, cycle(["binary", "counts"]), strict=False)]
)


def points(kind: str, n: int = 14) -> Tensor:
    """Return n points: a fingerprint, of which the first three are zero in a part or wholly, and
    two further columns.
    """
    uniform = problems.uniform(n, BITS)
    bits = (uniform < 0.3).double() if kind == "binary" else (6.0 * uniform - 3.0).clamp_min(0.0)
    bits = bits.ceil()
    bits[0] = 0.0
    bits[1, FIRST] = 0.0
    bits[2, SECOND] = 0.0
    return torch.cat([bits, problems.uniform(n, 2, seed=1)], 1)


@each_kernel
def test_features_in_float64_are_those_in_float32(name: str, kind: str) -> None:
    X = points(kind)
    features = RandomFeatures.draw(
        KERNELS[name](), X.shape[1], 200, generator=seeded(), like=X.float(), points=X.float()
    )
    values = features.doubled(X)
    assert values.dtype == torch.float64
    torch.testing.assert_close(values, features(X.float()).double(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "given",
    [True, pytest.param(False, marks=pytest.mark.slow)],
    ids=["lengths-of-the-data", "any-lengths"],
)
@each_kernel
def test_the_prior_variance_is_exact_and_the_mean_kernel_is_right(
    name: str, kind: str, given: bool
) -> None:
    kernel = KERNELS[name]().double()
    X = points(kind)
    num_waves = 2_000
    draws = 12
    generator = seeded(1)
    values = []
    for _ in range(draws):
        features = RandomFeatures.draw(
            kernel,
            X.shape[1],
            2 * num_waves,
            generator=generator,
            like=X,
            points=X if given else None,
        )
        values.append(features(X) @ features(X).T)
    K = problems.own_evaluation(kernel, X, X)
    for covariance in values:
        torch.testing.assert_close(covariance.diagonal(), K.diagonal())
    standard_error = (torch.stack(values).var(0) / draws).sqrt()
    error = (torch.stack(values).mean(0) - K).abs() / K.diagonal().max()
    # Of waves divided by their root mean square the mean is right but for O(1 / num_waves)
    assert (error <= 5.0 * standard_error + 4.0 / num_waves).all()
    served = given or kind == "binary"  # counts are longer than binary vectors
    assert standard_error.max() < (0.12 if served else 0.2) * K.diagonal().max() / math.sqrt(draws)


def test_every_draw_has_the_variance_between_dense_data() -> None:
    noise = 1e-6
    X = 0.2 + problems.uniform(300, 2)
    Z = 0.2 + problems.uniform(40, 2, seed=1)
    kernel = TanimotoKernel()
    H = problems.own_evaluation(kernel, X, X) + noise * torch.eye(len(X), dtype=X.dtype)
    K_XZ = problems.own_evaluation(kernel, X, Z)
    A = torch.linalg.solve(H, K_XZ).T
    exact = len(Z) - (A.T * K_XZ).sum()
    for seed in range(6):
        features = RandomFeatures.draw(kernel, 2, 2048, generator=seeded(seed), like=X, points=X)
        deviation = features(Z) - A @ features(X)
        variance = deviation.square().sum() + noise * A.square().sum()
        assert variance / exact == pytest.approx(1.0, abs=0.1)  # .2 without a tail


def test_lengths_far_from_those_served_keep_their_variance() -> None:
    kernel = TanimotoKernel()
    X = points("counts")[:, :BITS]
    for dtype in (torch.float32, torch.float64):
        features = RandomFeatures.draw(
            kernel, BITS, 64, generator=seeded(), like=X.to(dtype), points=X
        )
        for scale in (1e-3, 1.0, 1e3):
            variance = features((scale * X).to(dtype)).square().sum(1)
            torch.testing.assert_close(variance, torch.ones_like(variance))


@pytest.mark.parametrize("name", KERNELS)
def test_paths_are_differentiable(name: str) -> None:
    X = points("counts")[3:] + 0.1
    paths = PriorPaths.draw(
        KERNELS[name]().double(),
        X.shape[1],
        3,
        num_features=24,
        num_draws=2,
        generator=seeded(),
        like=X,
        points=X,
    )
    own = X[:6].reshape(3, 2, -1).clone().requires_grad_()
    torch.testing.assert_close(
        paths.each(own), torch.stack([paths(x)[i] for i, x in enumerate(own)])
    )
    assert torch.autograd.gradcheck(paths, (own[0].detach().requires_grad_(),), fast_mode=True)
    assert torch.autograd.gradcheck(paths.each, (own,), fast_mode=True)


def test_second_derivatives_of_paths_are_right() -> None:
    X = points("counts")[3:5, :BITS] + 0.1
    paths = PriorPaths.draw(
        TanimotoKernel(), BITS, 2, num_features=16, generator=seeded(), like=X, points=X
    )
    assert torch.autograd.gradgradcheck(paths, (X.requires_grad_(),))
