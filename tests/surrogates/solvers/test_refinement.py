"""Float32 systems whose residuals float32 cannot show, or whose tolerance it cannot reach."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from surrogates import CG, Auto, KernelSystem, SketchAndProject, Solver, memory
from surrogates.solvers.cg import CGState
from surrogates.systems.system import LinearSystem
from tests import problems

N = 300
TOLERANCE = 3e-4
ASAP = SketchAndProject.asap(tolerance=TOLERANCE)


class Hard:
    """A float32 system of smooth functions and little noise, with right-hand sides of its own
    prior, and its matrix in float64.
    """

    def __init__(self, noise: float = 1e-5, num_columns: int = 4) -> None:
        kernel = problems.matern(1.5, 5.0)
        X = problems.uniform(N, 2, dtype=torch.float32)
        self.system = KernelSystem(problems.operator(problems.OPERATORS[0], kernel, X), noise)
        self.H = problems.own_evaluation(kernel, X, X)
        self.H.diagonal().add_(self.system.noise)
        self.rhs = (torch.linalg.cholesky(self.H) @ problems.normal(N, num_columns)).float()

    def residual(self, value: Tensor) -> Tensor:
        gap = self.rhs.double() - self.H @ value.double()
        return gap.norm(dim=0) / self.rhs.double().norm(dim=0)


@pytest.fixture(scope="module")
def hard() -> Hard:
    return Hard()


@pytest.fixture
def steps(spy: Any) -> Any:
    return spy(SketchAndProject, "step")


def used(steps: Any) -> set[torch.dtype]:
    """Return the arithmetics that these steps work in."""
    return {call.args[1].dtype for call in steps.call_args_list}


@pytest.mark.parametrize("refine", [False, True])
def test_residuals_are_those_of_float64(hard: Hard, refine: bool) -> None:
    solution = replace(ASAP, refine=refine).solve(hard.system, hard.rhs)
    exact = hard.residual(solution.value)
    torch.testing.assert_close(solution.residual.double(), exact, rtol=1e-3, atol=1e-7)
    gap = hard.rhs - hard.system @ solution.value
    in_float32 = gap.norm(dim=0) / hard.rhs.norm(dim=0)
    assert ((in_float32 / exact).log().abs() > 0.2).any()  # or there is nothing to get wrong


def test_corrections_reach_in_float32_what_its_products_hide(steps: Any) -> None:
    hard = Hard(noise=1e-4, num_columns=8)
    solution = replace(ASAP, max_epochs=400.0).solve(hard.system, hard.rhs)
    assert solution.converged.all()
    assert (hard.residual(solution.value) <= TOLERANCE).all()
    assert solution.value.dtype == solution.residual.dtype == torch.float32
    assert used(steps) == {torch.float32}
    assert solution.note == ""


def test_a_solve_goes_on_in_float64_where_float32_gets_nowhere(steps: Any) -> None:
    hard = Hard(noise=1e-6)
    rhs = problems.normal(N, 4, seed=2, dtype=torch.float32)
    solution = replace(ASAP, max_epochs=400.0).solve(hard.system, rhs)
    assert used(steps) == {torch.float32, torch.float64}
    assert solution.epochs < 200.0
    assert "went on in float64" in solution.note
    steps.reset_mock()
    replace(ASAP, max_epochs=400.0, refine=False).solve(hard.system, rhs)
    assert used(steps) == {torch.float32}


def test_weights_that_float32_cannot_hold_are_named(hard: Hard) -> None:
    solution = replace(ASAP, tolerance=1e-6, max_epochs=400.0).solve(hard.system, hard.rhs)
    assert not solution.converged.all()
    assert "float32 cannot hold the solution" in solution.note
    exact = torch.linalg.solve(hard.H, hard.rhs.double())
    # As near as the solution itself, rounded
    assert solution.residual.double().norm() < 2.0 * hard.residual(exact.float()).norm()


def test_what_float32_solves_and_shows_stays_in_float32(hard: Hard, steps: Any) -> None:
    solution = replace(ASAP, tolerance=1e-2).solve(hard.system, hard.rhs)
    assert solution.converged.all()
    assert solution.note == ""
    assert used(steps) == {torch.float32}


def test_a_recursion_that_left_the_residual_is_given_up() -> None:
    hard = Hard(1e-6)
    solver = CG(tolerance=1e-2, max_epochs=60.0)
    rhs = problems.normal(N, 4, seed=2, dtype=torch.float32)
    solution = solver.solve(hard.system, rhs)
    assert solution.epochs < 30.0
    assert "went on in float64" in solution.note
    alone = replace(solver, refine=False).solve(hard.system, rhs)
    assert (solution.residual < alone.residual).all()


def test_conjugate_gradients_stay_in_float32_where_it_shows_their_tolerance() -> None:
    system = problems.system(N, 0.1, dtype=torch.float32)
    rhs = problems.normal(N, 4, dtype=torch.float32)
    solution = CG(tolerance=1e-3).solve(system, rhs)
    alone = CG(tolerance=1e-3, refine=False).solve(system, rhs)
    assert solution.converged.all()
    assert solution.note == ""
    assert torch.equal(solution.value, alone.value)


@pytest.mark.parametrize("more", [0.5, 2.5, 10.0])
def test_corrections_keep_to_what_is_left_of_the_budget(hard: Hard, more: float) -> None:
    alone = replace(ASAP, refine=False).solve(hard.system, hard.rhs)
    budget = alone.epochs + more
    brief = replace(ASAP, max_epochs=budget).solve(hard.system, hard.rhs)
    assert brief.epochs <= budget


def test_float64_is_left_out_where_it_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, steps: Any
) -> None:
    hard = Hard(noise=1e-6)
    monkeypatch.setattr(memory, "available", lambda device: 1000)
    rhs = problems.normal(N, 4, seed=2, dtype=torch.float32)
    solution = ASAP.solve(hard.system, rhs)
    assert not solution.converged.all()
    assert "float64 does not fit in free memory" in solution.note
    assert used(steps) == {torch.float32}


@pytest.mark.parametrize("share", [1e3, 0.88])
def test_a_correction_that_makes_a_column_worse_is_dropped(
    hard: Hard, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    exact = torch.linalg.solve(hard.H, hard.rhs.double()).float()
    near = 0.9 * exact
    near[:, 1] *= -1.0

    def wrong(self: SketchAndProject, system: KernelSystem, state: Any) -> Tensor:
        return (share * exact[:, : state.W.shape[1]]).to(state.W)

    monkeypatch.setattr(SketchAndProject, "estimate", wrong)
    solution = replace(ASAP, max_epochs=20.0).solve(hard.system, hard.rhs, initial=near)
    is_warm = hard.residual(near) < 1.0
    assert is_warm.tolist() == [True, False, True, True]
    assert torch.equal(solution.value[:, is_warm], near[:, is_warm])
    # There, weights that are better than zero are taken
    cold = share * exact[:, 1] if share < 2.0 else torch.zeros(N)
    torch.testing.assert_close(solution.value[:, 1], cold)
    assert not solution.converged.any()


class Opposed:
    """A float32 system of pairs of near neighbours, and weights of opposite signs on each, which
    cancel in every product but for its rounding.
    """

    def __init__(self) -> None:
        first = problems.uniform(N, 8)
        X = torch.cat([first, first + 1e-4 * problems.normal(N, 8)]).float()
        self.kernel = problems.matern(1.5, 0.5)
        self.system = KernelSystem(problems.operator(problems.OPERATORS[0], self.kernel, X), 1e-6)
        self.rhs = torch.sin(3.0 * X).sum(1, keepdim=True) - 1.0
        large = 5e4 * problems.normal(N, 1, seed=2, dtype=torch.float32)
        self.weights = torch.cat([large, -large])


@pytest.mark.parametrize(
    "solver", [SketchAndProject.asap(), CG(), Auto()], ids=["asap", "cg", "auto"]
)
def test_a_warm_start_that_float32_loses_costs_little(solver: Solver) -> None:
    opposed = Opposed()
    solution = solver.solve(opposed.system, opposed.rhs, initial=opposed.weights)
    cold = solver.solve(opposed.system, opposed.rhs)
    assert solution.converged.all()
    assert solution.epochs <= 2.0 * cold.epochs + 4.0


def test_a_warm_start_of_large_weights_that_solve_is_kept(hard: Hard) -> None:
    exact = torch.linalg.solve(hard.H, hard.rhs.double()).float()
    solver = replace(ASAP, tolerance=1e-2)
    solution = solver.solve(hard.system, hard.rhs, initial=exact)
    assert torch.equal(solution.value, exact)


class Straggling(CG):
    """Conjugate gradients whose float32 recursions drift, but for the first column's, which never
    reports that it is solved.
    """

    def recursion(self, state: CGState) -> Tensor:
        if state.R.dtype == torch.float64 or state.R.shape[1] == 1:
            return state.R
        return state.R + torch.arange(state.R.shape[1])

    def residual_norm(self, system: LinearSystem, state: CGState) -> Tensor:
        norms = super().residual_norm(system, state)
        if norms.dtype == torch.float32:
            norms[0] = norms[0].clamp_min(1.0)
        return norms


def test_a_column_that_goes_on_alone_is_corrected_with_those_that_wait() -> None:
    system = problems.system(200, 0.1, dtype=torch.float32)
    rhs = problems.normal(200, 4, dtype=torch.float32)
    solution = Straggling(None, tolerance=1e-3, max_epochs=300.0).solve(system, rhs)
    assert bool(solution.converged.all())
    assert solution.epochs < 100.0


def test_a_solve_that_rounding_holds_soon_goes_on_in_float64() -> None:
    n = 1000
    solver = SketchAndProject.asap(block_size=150, tolerance=1e-3)
    epochs = []
    for dtype in (torch.float32, torch.float64):
        X = problems.uniform(n, 2, dtype=dtype)
        kernel = problems.operator(problems.OPERATORS[0], problems.matern(2.5), X)
        solution = solver.solve(KernelSystem(kernel, 1e-3), problems.normal(n, 4, dtype=dtype))
        assert solution.converged.all()
        epochs.append(solution.epochs)
    assert epochs[0] < 1.6 * epochs[1]
