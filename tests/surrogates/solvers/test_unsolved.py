"""What is returned, and said, where a system could not be solved."""

import re
import warnings

import pytest
import torch
from botorch.posteriors import GPyTorchPosterior
from gpytorch.means import ZeroMean

from surrogates import (
    CG,
    SGD,
    Cholesky,
    KernelSystem,
    PathwiseGP,
    Solution,
    Solver,
    UnsolvedWarning,
    gaussian_likelihood,
    kernel_operator,
)
from tests import problems

N = 300


@pytest.fixture(scope="module")
def hard() -> KernelSystem:
    """A system of smooth functions and little noise, on which CG's residual first rises."""
    kernel = problems.matern(1.5, 2.0)
    X = problems.uniform(N, 2, dtype=torch.float32)
    return KernelSystem(kernel_operator(kernel, X), 1e-4)


def test_no_value_worse_than_zero_is_returned(hard: KernelSystem) -> None:
    rhs = problems.normal(N, 3, dtype=torch.float32)
    kept = CG(None, max_epochs=9.0, keep_descent=True).solve(hard, rhs)
    assert (kept.residual > 1.0).any()
    solution = CG(None, max_epochs=9.0).solve(hard, rhs)
    worse = kept.residual > 1.0
    assert solution.value[:, worse].eq(0).all() and solution.residual[worse].eq(1).all()
    assert torch.equal(solution.value[:, ~worse], kept.value[:, ~worse])
    assert not solution.converged.any()
    assert "0 is returned" in solution.note


def test_a_descent_that_is_kept_is_not_said_to_be_zero(hard: KernelSystem) -> None:
    rhs = problems.normal(N, 3, dtype=torch.float32)
    for max_epochs in range(77, 100, 3):  # some of which end after a correction that failed
        kept = CG(None, max_epochs=float(max_epochs), keep_descent=True).solve(hard, rhs)
        assert kept.value.norm(dim=0).all() and "0 is returned" not in kept.note


def test_a_warm_start_worse_than_zero_is_not_returned(hard: KernelSystem) -> None:
    rhs = problems.normal(N, 1, dtype=torch.float32)
    solution = CG(None, max_epochs=2.0).solve(hard, rhs, initial=1e6 * rhs)
    assert (solution.residual <= 1.0).all()
    exact = (rhs - hard @ solution.value).norm() / rhs.norm()
    assert exact.item() == pytest.approx(solution.residual.item(), rel=1e-4)


def test_a_value_that_is_not_a_number_is_not_returned() -> None:
    nan = torch.full((4, 2), torch.nan)
    none = torch.zeros(2, dtype=torch.bool)
    solution = Solution(nan, nan[0], none, none.long(), 1.0, 1.0).no_worse_than_zero()
    assert solution.value.eq(0).all() and solution.residual.eq(1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_of_an_unsolved_system_says_so(dtype: torch.dtype) -> None:
    X = problems.uniform(N, 2, dtype=dtype)
    model = PathwiseGP(X, X.sum(1, keepdim=True).sin(), solver=CG(None, max_epochs=3.0))
    model.likelihood.noise = 1e-4
    with pytest.warns(
        UnsolvedWarning, match=r"6 of 6 columns .* relative residual of \d"
    ) as caught:
        model.paths(5)
    assert ("float64" in str(caught[0].message)) is (dtype == torch.float32)
    assert "max_epochs" in str(caught[0].message) and "Cholesky()" in str(caught[0].message)
    assert model.solution is not None and not model.solution.converged.all()
    with pytest.warns(UnsolvedWarning, match="257 columns"):
        model.posterior(X[:2])


def test_weights_that_float32_cannot_hold_are_said_to_be_so_and_the_remedies_help() -> None:
    X = problems.uniform(N, 1, dtype=torch.float32)

    def draw(solver: Solver, dtype: torch.dtype) -> None:
        PathwiseGP(
            X.to(dtype),
            X.to(dtype).sin(),
            likelihood=gaussian_likelihood(1e-6),
            covar_module=problems.rbf(0.3),
            solver=solver,
        ).paths(5)

    with pytest.warns(
        UnsolvedWarning, match=r"whatever the budget. Use float64, or `Cholesky\(\)`"
    ):
        draw(CG(tolerance=1e-4), torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw(CG(tolerance=1e-4), torch.float64)
        draw(Cholesky(), torch.float32)


def test_gradient_descent_by_default_is_right_among_dense_data_or_says_how_wrong_it_is() -> None:
    noise = 1e-3
    X = problems.uniform(400, 2)
    inside = 0.2 + 0.6 * problems.uniform(100, 2, seed=1)
    kernel = problems.matern(1.5, 0.8).double()
    with torch.no_grad():
        K = kernel(X).to_dense() + 1e-9 * torch.eye(400)
    y = torch.linalg.cholesky(K) @ problems.normal(400, 1)
    y += noise**0.5 * problems.normal(400, 1, seed=1)

    def posterior(solver: Solver) -> GPyTorchPosterior:
        model = PathwiseGP(
            X,
            y,
            covar_module=kernel,
            likelihood=gaussian_likelihood(noise),
            mean_module=ZeroMean(),
            outcome_transform=None,
            solver=solver,
        )
        return model.posterior(inside)

    exact = posterior(Cholesky())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = posterior(SGD())
    off = ((found.mean - exact.mean) / exact.variance.sqrt()).square().mean().sqrt().item()
    said = [re.search(r"mean may be off by (\S+) posterior", str(w.message)) for w in caught]
    assert off <= 0.2 or any(one and off / 2 < float(one[1]) < 2 * off for one in said)
