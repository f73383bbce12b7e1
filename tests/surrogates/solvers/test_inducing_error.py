"""The error of a solve on inducing points, held against the posterior of a direct solve."""

import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from surrogates import (
    CG,
    SGD,
    Auto,
    Cholesky,
    InducingPathwiseGP,
    InducingSystem,
    Solution,
    Solver,
    UnsolvedWarning,
)
from surrogates.solvers.inducing_error import InducingError
from tests import problems
from tests.pairs import each_pair
from tests.surrogates.exact_posteriors import (
    NUM_NEW,
    PROBLEMS,
    N,
    Problem,
    matern,
    root_mean_square,
)

M = 80
CASES = {
    "rough": Problem(3, matern(0.5, 0.5), 1e-2),
    "smooth": Problem(2, matern(2.5, 0.5), 1e-2),
    "clusters": Problem(3, matern(1.5, 0.5), 1e-2, share=0.3),
    "uneven": Problem(2, matern(1.5, 0.3), 1e-2, uneven=True),
}


def system_of(problem: Problem, dtype: torch.dtype = torch.float64) -> InducingSystem:
    X = problem.points[:N].to(dtype)
    Z = X[torch.randperm(N, generator=problems.seeded(4))[:M]]
    return InducingSystem(problem.kernel.to(dtype), X, Z, problem.variances.to(dtype))


def solve(problem: Problem, solver: Solver, dtype: torch.dtype) -> tuple[Solution, Tensor]:
    """Return the solution and the larger of its true errors anywhere and beside data, (1 + s,)."""
    system = system_of(problem, dtype)
    targets = problem.targets.to(dtype)
    posterior = InducingError(system, targets)
    rhs = targets if solver.splits_targets else system.rhs(targets)
    return (solution := solver.solve(system, rhs, posterior=posterior)), true_errors(
        problem, solution.value
    )


def true_errors(problem: Problem, W: Tensor) -> Tensor:
    system = system_of(problem)
    kernel = problem.kernel.double()
    A = system @ torch.eye(M, dtype=torch.float64)
    new = problem.points[N:]
    cross = kernel(new, system.points).to_dense().detach()
    exact = torch.linalg.solve(A, system.rhs(problem.targets))
    of_prior = (cross @ torch.linalg.solve(system.kernel.to_dense(), cross.T)).diagonal()
    of_data = (cross @ torch.linalg.solve(A, cross.T)).diagonal()
    variance = kernel(new, diag=True).detach() - of_prior + of_data
    squares = (cross @ (W.double() - exact)).square() / variance.unsqueeze(1)
    return torch.maximum(squares[:NUM_NEW].mean(0), squares[NUM_NEW:].mean(0)).sqrt()


@each_pair(name=CASES, budget=[10.0, 40.0], dtype=[torch.float32, torch.float64])
def test_a_solve_cut_short_says_how_far_off_it_is(
    name: str, budget: float, dtype: torch.dtype
) -> None:
    solution, true = solve(CASES[name], CG(preconditioner=None, max_epochs=budget), dtype)
    assert not bool(solution.converged.all())
    assert 0.5 < root_mean_square(solution.error[1:]) / root_mean_square(true[1:]) < 3.0


@pytest.mark.parametrize("name", CASES)
def test_a_solve_ends_where_the_posterior_is_right(name: str) -> None:
    solver = CG(preconditioner=None, max_epochs=20_000.0)
    solution, true = solve(CASES[name], solver, torch.float64)
    assert bool(solution.converged.all())
    assert true.max() < 0.2
    looser, _ = solve(CASES[name], replace(solver, error=0.5), torch.float64)
    assert looser.epochs < solution.epochs


def test_a_relative_residual_of_a_hundredth_is_not_called_right() -> None:
    """The system has about the square of the kernel's spectrum, and its residual says next to
    nothing.
    """
    solver = CG(preconditioner=None, tolerance=1e-2, max_epochs=3000.0)
    solution, true = solve(CASES["smooth"], solver, torch.float64)
    assert bool(solution.converged.all())
    assert root_mean_square(true[1:]) > 0.5
    assert root_mean_square(solution.error[1:]) > 0.5


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_direct_solve_has_no_error_to_speak_of(name: str) -> None:
    for solver in (Cholesky(), Auto()):
        solution, _ = solve(PROBLEMS[name], solver, torch.float64)
        assert solution.error.max() < 1e-3


def test_the_mean_alone_has_an_error() -> None:
    problem = replace(CASES["clusters"], num_paths=0)
    solution, true = solve(problem, CG(preconditioner=None, max_epochs=10.0), torch.float64)
    assert solution.error.shape == (1,)
    assert 0.3 < solution.error.item() / true.item() < 5.0


def test_the_errors_of_scaled_values_are_the_same() -> None:
    problem = CASES["rough"]
    system = system_of(problem)
    solver = CG(preconditioner=None, max_epochs=10.0, error=1e-20)
    errors = []
    for factor in (1.0, 1e-12):
        targets = type(problem.targets)(*(part * factor for part in problem.targets))
        posterior = InducingError(system, targets)
        solution = solver.solve(system, system.rhs(targets), posterior=posterior)
        errors.append(solution.error / factor)
    torch.testing.assert_close(errors[1], errors[0], rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("budget", [1.5, 30.0])
def test_looks_are_within_the_budget(budget: float) -> None:
    solver = CG(preconditioner=None, max_epochs=budget)
    solution, _ = solve(CASES["smooth"], solver, torch.float64)
    one_step_and_one_look = 2 * system_of(CASES["smooth"]).epochs_per_product
    assert solution.epochs <= max(budget, one_step_and_one_look) + 1.0


def test_a_model_says_what_its_mean_and_paths_may_be_off_by() -> None:
    problem = CASES["smooth"]
    X = problem.points[:N]
    y = problem.targets.values[:, :1]
    cut_short = SGD(max_epochs=2.0)
    for solver, is_right in ((Cholesky(), True), (cut_short, False)):
        model = InducingPathwiseGP(
            X, y, inducing_points=M, covar_module=problem.kernel.double(), solver=solver
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.posterior(problem.points[N:])
        said = [w for w in caught if issubclass(w.category, UnsolvedWarning)]
        assert model.solution.error is not None
        assert bool((model.solution.error <= 0.1).all()) == is_right
        assert bool(said) != is_right
        assert is_right or "the mean may be off by" in str(said[0].message)
