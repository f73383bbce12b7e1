"""BoTorch's acquisition functions on the posterior of paths: near exact values,
nearer with more paths, and no large Cholesky.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from botorch.acquisition import (
    LogExpectedImprovement,
    UpperConfidenceBound,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
    qUpperConfidenceBound,
)
from botorch.acquisition.max_value_entropy_search import (
    qLowerBoundMaxValueEntropy,
    qMaxValueEntropy,
)
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.sampling import manual_seed
from torch import Tensor

from surrogates import CG, PathwiseGP, gaussian_likelihood
from tests import problems

D = 3
X = problems.uniform(60, D)
Y = 10 + 4 * torch.sin(3 * X.sum(1, keepdim=True))  # standardised by the models
EXACT_SOLVE = CG(tolerance=1e-8, preconditioner=None, max_epochs=2000)


def settings() -> dict[str, Any]:
    return {
        "covar_module": problems.scaled(problems.matern(2.5, 0.5), 1.2),
        "likelihood": gaussian_likelihood(0.02),
    }


def sampler() -> SobolQMCNormalSampler:
    return SobolQMCNormalSampler(torch.Size([2048]), seed=0)


def candidates() -> Tensor:
    return problems.uniform(200, D, seed=9)


# Each with its q, and the error that 1024 paths of 2048 features may leave.
ACQUISITIONS: dict[str, tuple[Callable[[SingleTaskGP, Tensor, Tensor], Any], int, float]] = {
    "LogEI": (lambda m, X, Y: LogExpectedImprovement(m, Y.median()), 1, 0.15),
    "UCB": (lambda m, X, Y: UpperConfidenceBound(m, beta=4.0), 1, 0.04),
    "qLogEI": (lambda m, X, Y: qLogExpectedImprovement(m, Y.median(), sampler=sampler()), 3, 0.04),
    "qLogNEI": (
        lambda m, X, Y: qLogNoisyExpectedImprovement(
            m, lowest(X, Y), sampler=sampler(), prune_baseline=False
        ),
        3,
        0.1,
    ),
    "qUCB": (lambda m, X, Y: qUpperConfidenceBound(m, beta=4.0, sampler=sampler()), 3, 0.05),
    "qMES": (
        lambda m, X, Y: qMaxValueEntropy(m, candidates(), num_mv_samples=16, num_fantasies=1),
        1,
        0.5,
    ),
    "GIBBON": (
        lambda m, X, Y: qLowerBoundMaxValueEntropy(m, candidates(), num_mv_samples=16),
        1,
        0.4,
    ),
}


def lowest(X: Tensor, Y: Tensor) -> Tensor:
    """Return points that are easily improved on: log values of what is hardly ever improved on are
    those of a rounding rule.
    """
    return X[Y.squeeze(1).argsort()[:10]]


def values(name: str, model: SingleTaskGP) -> Tensor:
    acquisition, q, _ = ACQUISITIONS[name]
    with manual_seed(0), torch.no_grad():
        return acquisition(model, X, Y)(problems.uniform(20, q, D, seed=6))


def error(name: str, num_paths: int, num_features: int, num_seeds: int = 2) -> float:
    """Return the root mean square error of values by paths,
    relative to how exact values vary over points.
    """
    exact = values(name, SingleTaskGP(X, Y, **settings()))
    squares = []
    for seed in range(num_seeds):
        paths = {"num_paths": num_paths, "num_features": num_features, "seed": seed}
        squares.append(
            (values(name, PathwiseGP(X, Y, **settings(), **paths, solver=EXACT_SOLVE)) - exact)
            .square()
            .mean()
        )
    return (torch.stack(squares).mean().sqrt() / exact.std()).item()


@pytest.mark.parametrize(
    "name",
    [
        "qUCB",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ACQUISITIONS if name != "qUCB"),
    ],
)
def test_values_by_paths_near_exact_ones_as_paths_and_features_grow(name: str) -> None:
    few = error(name, num_paths=64, num_features=256)
    many = error(name, num_paths=1024, num_features=2048)
    assert many < ACQUISITIONS[name][2]
    assert many < few / 1.5


@contextmanager
def factorisations() -> Iterator[list[int]]:
    """Collect the sides of all matrices that torch factorises meanwhile."""
    sides: list[int] = []
    with ExitStack() as stack:
        for name in (
            "cholesky",
            "cholesky_ex",
            "eigh",
            "svd",
            "qr",
            "lu_factor",
            "ldl_factor",
            "solve",
            "inv",
        ):
            factorise = getattr(torch.linalg, name)

            def recorded(
                A: Tensor, *args: Any, factorise: Callable[..., Any] = factorise, **kwargs: Any
            ) -> Any:
                sides.append(min(A.shape[-2:]))
                return factorise(A, *args, **kwargs)

            stack.enter_context(patch.object(torch.linalg, name, recorded))
        yield sides


@pytest.mark.filterwarnings("ignore::surrogates.UnsolvedWarning")  # few epochs are given
@pytest.mark.parametrize(
    ("n", "num_paths", "max_epochs"),
    [(1000, 16, 4.0), pytest.param(20_000, 64, 3.0, marks=pytest.mark.slow)],
    ids=["1000", "20000"],
)
def test_nothing_larger_than_a_batch_and_the_paths_is_factorised(
    n: int, num_paths: int, max_epochs: float
) -> None:
    data = problems.uniform(n, D, seed=1)
    targets = torch.sin(3 * data.sum(1, keepdim=True))
    solver = CG(tolerance=0.1, preconditioner=None, max_epochs=max_epochs)
    own = {
        "solver": solver,
        "num_paths": num_paths,
        "num_features": 256,
        "outcome_transform": Standardize(m=1),
    }
    model = PathwiseGP(data, targets, **settings(), **own)
    points = problems.uniform(4, 3, D, seed=6)
    with factorisations() as sides, manual_seed(0):
        for acquisition, q, _ in ACQUISITIONS.values():
            inputs = points[:, :q].clone().requires_grad_()
            (gradient,) = torch.autograd.grad(
                acquisition(model, data, targets)(inputs).sum(), inputs
            )
            assert torch.isfinite(gradient).all()
    # The paths' noise is balanced in the leading directions of at most 64 prior functions
    assert max(sides, default=0) <= min(num_paths, 64)
    with factorisations() as sides:
        SingleTaskGP(X, Y).posterior(X[:2]).variance.sum()
    assert max(sides) == len(X)  # what is counted
