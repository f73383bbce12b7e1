"""Inputs and outputs of extreme scale: a right answer, or an error that says what to do."""

import pytest
import torch

from surrogates import CG, SDD, SGD, Cholesky, PathwiseGP, kernel_operator
from tests import problems

N = 60
SOLVERS = {"none": None, "cholesky": Cholesky(), "cg": CG(None), "sdd": SDD(), "sgd": SGD()}

pytestmark = pytest.mark.filterwarnings(
    "ignore:Data \\(input features\\) is not contained", "ignore::surrogates.UnsolvedWarning"
)


def data(scale: float, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return problems.uniform(N, 2).mul(scale).to(dtype), problems.normal(N, 1, dtype=dtype)


def test_inputs_whose_distances_overflow_are_refused() -> None:
    for solver in SOLVERS.values():
        for scale, dtype in ((1e20, torch.float32), (1e160, torch.float64), (1e300, torch.float64)):
            model = PathwiseGP(*data(scale, dtype), solver=solver, num_paths=4)
            with pytest.raises(ValueError, match=r"`train_X` must lie within .* Scale the inputs"):
                model.posterior(model.train_inputs[0][:3])
            with pytest.raises(ValueError, match=r"`train_X` must lie within .* Scale the inputs"):
                model.paths(3)


def test_points_that_are_far_apart_are_independent() -> None:
    for nu in (0.5, 1.5, 2.5):
        for scale, dtype in ((1e12, torch.float32), (1e100, torch.float64)):
            X, y = data(scale, dtype)
            kernel = problems.matern(nu)
            identity = torch.eye(N, dtype=dtype)
            torch.testing.assert_close(kernel_operator(kernel, X).to_dense(), identity)
            model = PathwiseGP(
                X, y, covar_module=kernel, outcome_transform=None, solver=CG(None), num_paths=4
            )
            expected = y.squeeze(1) / (1.0 + model.noise.detach())
            torch.testing.assert_close(model.paths(2).mean(X), expected, rtol=1e-3, atol=1e-3)


def test_lengthscales_of_the_inputs_scale_make_any_scale_right() -> None:
    means = []
    for scale in (1.0, 1e18):
        X, y = data(scale, torch.float32)
        model = PathwiseGP(X, y, covar_module=problems.rbf(0.5 * scale), solver=CG(tolerance=1e-4))
        means.append(model.paths(2).mean(X))
    torch.testing.assert_close(*means, rtol=1e-3, atol=1e-3)


def test_outputs_whose_squares_overflow_are_refused() -> None:
    X, y = data(1.0, torch.float32)
    with pytest.raises(ValueError, match=r"`train_Y` must have finite squares .* Scale"):
        PathwiseGP(X, 1e30 * y)
