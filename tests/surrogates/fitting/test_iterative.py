"""The marginal likelihood of all data by iterative solves."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from botorch.models.kernels.infinite_width_bnn import InfiniteWidthBNNKernel
from gpytorch.kernels import MaternKernel
from torch import Tensor

from surrogates import CG, Cholesky, PathwiseGP, Solution, fit_exact, fit_iterative
from surrogates.fitting import iterative
from surrogates.fitting.iterative import backward_log_likelihood, draw_probes
from surrogates.rules.limits import LONGEST
from surrogates.solvers.solver import Request, Solver
from tests import problems
from tests.problems import exact_likelihood
from tests.refusals import assert_refused

N = 120
X = problems.uniform(N, 2)
Y = torch.sin(6.0 * X.sum(1, keepdim=True)) + 0.3 * problems.normal(N, 1, seed=1)
KNOWN = 0.05 + 0.1 * problems.uniform(N, 1, seed=2)


def make_model(n: int = N, known_noise: bool = False) -> PathwiseGP:
    model = PathwiseGP(X[:n], Y[:n], KNOWN[:n] if known_noise else None)
    model.covar_module.lengthscale = 0.4
    if not known_noise:
        model.likelihood.noise = 0.1
    return model.eval()


def objective(model: PathwiseGP) -> Tensor:
    """Return the exact log marginal likelihood with priors, in nats."""
    return len(model.train_targets) * exact_likelihood(model)


def take_gradient(model: PathwiseGP) -> Tensor:
    gradient = torch.cat(
        [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    )
    model.zero_grad()
    return gradient


def exact_gradient(model: PathwiseGP) -> Tensor:
    objective(model).backward()
    return take_gradient(model)


@pytest.mark.parametrize("known_noise", [False, True])
@pytest.mark.parametrize("symmetric", [False, True], ids=["rademacher", "pathwise"])
def test_probes_with_the_exact_second_moment_give_the_exact_gradient(
    symmetric: bool, known_noise: bool
) -> None:
    model = make_model(known_noise=known_noise)
    with torch.no_grad():
        H = model.covar_module(X).to_dense() + torch.diag(model.noise.expand(N))
    root = torch.linalg.cholesky(H) if symmetric else torch.eye(N, dtype=X.dtype)
    backward_log_likelihood(model, math.sqrt(N) * root, symmetric=symmetric, solver=Cholesky())
    torch.testing.assert_close(take_gradient(model), exact_gradient(model), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("probes", iterative.PROBES)
def test_the_estimate_is_exact_within_its_monte_carlo_error(probes: str) -> None:
    model = make_model()
    estimates = []
    for seed in range(40):
        Z = draw_probes(model, X, 8, probes, torch.Generator().manual_seed(seed))
        backward_log_likelihood(model, Z, symmetric=probes == "pathwise", solver=Cholesky())
        estimates.append(take_gradient(model))
    drawn = torch.stack(estimates)
    error = drawn.std(0) / math.sqrt(len(drawn))
    exact = exact_gradient(model)
    moving = error > 1e-9 * exact.abs().max()  # the mean's part is not estimated
    assert moving.sum() == 3  # noise and two lengthscales
    assert ((drawn.mean(0) - exact).abs() <= 4.0 * error + 1e-7).all()
    assert (error[moving] < 0.1 * exact[moving].abs().max()).all()


def test_pathwise_probes_have_the_covariance_of_the_targets() -> None:
    model = make_model(20)
    X20 = X[:20]
    random = torch.Generator().manual_seed(0)
    Z = draw_probes(model, X20, 1000, "pathwise", random, num_features=64)
    with torch.no_grad():
        H = model.covar_module(X20).to_dense() + model.noise * torch.eye(20, dtype=X.dtype)
    assert (Z @ Z.T / Z.shape[1] - H).abs().max() < 5.0 * 1.1 * math.sqrt(2.0 / Z.shape[1])


class Recording(Solver):
    """A solver that keeps accounts; ``cold`` throws the start away."""

    def __init__(self, cold: bool):
        self.cold = cold
        self.epochs = []

    def _solve(self, request: Request) -> Solution:
        initial = None if self.cold else request.initial
        solution = CG(None, tolerance=1e-3).solve(request.system, request.rhs, initial=initial)
        self.epochs.append(solution.epochs)
        return solution


@pytest.mark.parametrize("probes", iterative.PROBES)
def test_warm_starts_spend_fewer_epochs_and_find_the_same(probes: str) -> None:
    fitted = []
    spent = []
    for cold in (True, False):
        solver = Recording(cold)
        model = make_model()
        fit_iterative(
            model, num_steps=12, first_step=0.01, num_probes=4, probes=probes, solver=solver
        )
        fitted.append(model.covar_module.lengthscale.detach())
        spent.append(sum(solver.epochs[1:]))
    assert spent[1] < 0.9 * spent[0]
    torch.testing.assert_close(fitted[0], fitted[1], rtol=0.05, atol=0.0)


def test_a_step_is_solved_by_what_would_have_solved_the_last_one_for_less() -> None:
    solved: list[Solution] = []

    class Dear(CG):
        def _solve(self, request: Request) -> Solution:
            solved.append(replace(super()._solve(request), cheaper=Cholesky()))
            return solved[-1]

    steps: list[int] = []
    fit_iterative(make_model(), solver=Dear(), num_steps=3, callback=lambda k, _: steps.append(k))
    assert steps == [1, 2, 3] and len(solved) == 1


def test_a_step_that_the_cheaper_solver_leaves_unsolved_is_solved_by_the_given_one() -> None:
    class Lazy(Solver):
        def _solve(self, request: Request) -> Solution:
            found = Cholesky()._solve(request)
            return replace(found, value=0 * found.value, residual=torch.ones_like(found.residual))

    class Dear(CG):
        def _solve(self, request: Request) -> Solution:
            return replace(super()._solve(request), cheaper=Lazy())

    fitted = []
    for solver in (CG(), Dear()):
        model = fit_iterative(make_model(), solver=solver, num_steps=3)
        fitted.append(model.covar_module.lengthscale.detach())
    torch.testing.assert_close(fitted[0], fitted[1], rtol=1e-2, atol=0.0)


def test_the_optimum_is_near_the_exact_one() -> None:
    start = make_model()
    exact = fit_exact(make_model())
    ours = make_model()
    rises: list[float] = []
    assert (
        fit_iterative(ours, num_probes=64, callback=lambda step, rise: rises.append(rise)) is ours
    )
    assert not ours.training and len(rises) < 50  # it ended by itself
    gained = (objective(ours) - objective(start)).item()
    possible = (objective(exact) - objective(start)).item()
    assert possible > 10.0 and gained > possible - 1.0
    assert rises[-1] == pytest.approx(gained, rel=0.3)


def test_a_kernel_without_random_features_is_fitted_with_random_signs() -> None:
    model = PathwiseGP(X, Y, covar_module=InfiniteWidthBNNKernel().to(X))
    before = objective(model).item()
    fit_iterative(model, num_steps=10)
    assert objective(model).item() > before
    with pytest.raises(
        ValueError, match="`kernel` must be .* to have random features, got InfiniteWidthBNNKernel"
    ):
        fit_iterative(model, num_steps=1, probes="pathwise")


class Unsolving(Solver):
    """A solver that solves the systems of so many steps, and leaves the others as they were."""

    keep_descent = True

    def __init__(self, steps: int):
        self.steps = steps
        self.calls = 0

    def _solve(self, request: Request) -> Solution:
        self.calls += 1
        solution = Cholesky().solve(request.system, request.rhs)
        residual = torch.full_like(solution.residual, 0.0 if self.calls <= self.steps else 208.0)
        return replace(solution, residual=residual)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_nothing_is_learned_from_an_unsolved_system(steps: int) -> None:
    model = make_model()
    seen = [model.covar_module.lengthscale.detach().clone()]
    solver = Unsolving(steps)
    with pytest.warns(iterative.UnsolvedFitWarning, match=r"residual of 2\.1e\+02 only"):
        fit_iterative(
            model,
            solver=solver,
            callback=lambda *_: seen.append(model.covar_module.lengthscale.detach().clone()),
        )
    assert len(seen) == steps + 1
    # The last hyperparameters whose systems were solved, to the rounding of their coordinates
    torch.testing.assert_close(model.covar_module.lengthscale, seen[max(0, steps - 1)])
    assert solver.calls == steps + iterative.MOST_SOLVES


def test_the_lengthscale_of_an_irrelevant_input_stays_in_its_range() -> None:
    inputs = torch.cat([X[:, :1], problems.uniform(N, 1, seed=3)], dim=1)
    targets = torch.sin(6.0 * X[:, :1])
    model = PathwiseGP(inputs, targets, covar_module=MaternKernel(nu=2.5, ard_num_dims=2).to(X))
    fit_iterative(model, first_step=1.0, tolerance=1e-9, num_steps=40)
    longest = LONGEST * (inputs[:, 1].max() - inputs[:, 1].min())
    assert model.covar_module.lengthscale[0, 1] <= 1.0001 * longest


def test_bad_settings_are_named() -> None:
    fit = partial(fit_iterative, make_model())
    assert_refused(ValueError, fit, num_steps=[0], first_step=[0.0], probes=["gaussian"])
    assert_refused(TypeError, fit, solver=["cg"])


@pytest.mark.slow
def test_a_thousand_points_are_fitted_as_by_the_exact_likelihood() -> None:
    inputs = problems.uniform(1000, 3)
    targets = torch.sin(6.0 * inputs.sum(1, keepdim=True)) + 0.3 * problems.normal(1000, 1, seed=1)

    def make() -> PathwiseGP:
        return PathwiseGP(
            inputs, targets, covar_module=MaternKernel(nu=2.5, ard_num_dims=3).to(inputs)
        )

    exact = fit_exact(make())
    ours = fit_iterative(make())
    assert objective(ours).item() > objective(exact).item() - 5.0
    assert ours.noise.item() == pytest.approx(exact.noise.item(), rel=0.1)
