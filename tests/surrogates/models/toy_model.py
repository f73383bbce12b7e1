"""The data, the settings and the law on which the tests of models agree."""

from collections.abc import Callable
from typing import Any

import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import Kernel
from torch import Tensor

from surrogates import (
    CG,
    Cholesky,
    InducingPathwiseGP,
    PathwiseGP,
    VariationalGP,
    gaussian_likelihood,
)
from tests import problems

N = 60
D = 2
X = problems.uniform(N, D)
Y = 10 + 4 * torch.sin(5 * X.sum(1, keepdim=True)) + 0.3 * problems.normal(N, 1, seed=2)
YVAR = 0.05 + 0.3 * problems.uniform(N, 1, seed=3)
Z = problems.uniform(3, 4, D, seed=1)
BOUNDS = torch.tensor([[0.0, -0.5], [1.0, 1.5]]).double()
TIGHT = CG(tolerance=1e-10, preconditioner=None, max_epochs=2000)  # paths, whose weights are exact
FEW = {"num_paths": 8, "num_features": 64}


def kernel() -> Kernel:
    return problems.scaled(problems.matern(1.5, 0.4), 1.3)


def settings(**changes: Any) -> dict[str, Any]:
    return {"covar_module": kernel(), "likelihood": gaussian_likelihood(0.02), **changes}


MODELS: dict[str, Callable[..., PathwiseGP]] = {
    "paths": lambda **changes: PathwiseGP(X, Y, **settings(**{**FEW, "solver": TIGHT, **changes})),
    "exact": lambda **changes: PathwiseGP(
        X, Y, **settings(**{**FEW, "solver": Cholesky(), **changes})
    ),
    "inducing": lambda **changes: InducingPathwiseGP(
        X, Y, inducing_points=X[:20], **settings(**{**FEW, **changes})
    ),
    "variational": lambda **changes: VariationalGP(
        X, Y, inducing_points=X[:20], **settings(**{**FEW, **changes})
    ),
}


def law(model: SingleTaskGP, points: Tensor = Z) -> tuple[Tensor, Tensor]:
    """Return the mean and the covariance of the posterior."""
    with torch.no_grad():
        posterior = model.posterior(points)
        return posterior.mean, posterior.distribution.covariance_matrix
