"""Float32 systems whose residuals float32 cannot show, or whose tolerance it cannot reach."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from surrogates import CG, Auto, KernelSystem, SketchAndProject, Solver, memory
from surrogates.solvers import run, sketch_and_project
from surrogates.solvers.run import Run
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


def test_residuals_that_float32_gets_wrong_are_those_of_float64(
    hard: Hard, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver = replace(ASAP, refine=False)
    solution = solver.solve(hard.system, hard.rhs)
    exact = hard.residual(solution.value)
    torch.testing.assert_close(solution.residual.double(), exact, rtol=0.1, atol=0.0)
    monkeypatch.setattr(Run, "correct", lambda *_: False)
    in_float32 = solver.solve(hard.system, hard.rhs)
    assert torch.equal(in_float32.value, solution.value)
    assert (in_float32.residual > 1.5 * exact).any()  # or there is nothing to correct here


def test_a_tolerance_beyond_float32_is_reached_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    hard = Hard(noise=1e-4, num_columns=8)
    solver = replace(ASAP, max_epochs=400.0)
    alone = replace(solver, refine=False).solve(hard.system, hard.rhs)
    assert not alone.converged.all()
    solution = solver.solve(hard.system, hard.rhs)
    # Rounding the weights to float32 may lose some again
    assert solution.converged.sum() >= 7
    assert (hard.residual(solution.value)[solution.converged] <= 1.1 * TOLERANCE).all()
    assert solution.value.dtype == solution.residual.dtype == torch.float32
    assert "went on in float64" in solution.note
    monkeypatch.setattr(run, "NO_FURTHER", 0.0)
    stubborn = solver.solve(hard.system, hard.rhs)
    assert solution.epochs < stubborn.epochs  # no further sweeps for what float32 cannot show
    assert torch.equal(stubborn.value[:, alone.converged], alone.value[:, alone.converged])
    assert alone.epochs < stubborn.epochs
    assert (stubborn.steps >= alone.steps).all()


def test_a_column_that_gets_nowhere_is_left_to_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    hard = Hard(noise=1e-4)
    monkeypatch.setattr(sketch_and_project, "RESOLUTION", 0.0)  # rounding that nothing explains
    solution = replace(ASAP, max_epochs=400.0).solve(hard.system, hard.rhs)
    assert "went on in float64" in solution.note
    assert solution.epochs < 300.0


def test_what_float32_solves_and_shows_stays_in_float32(
    hard: Hard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Run, "in_float64", None)
    solution = replace(ASAP, tolerance=1e-2).solve(hard.system, hard.rhs)
    assert solution.converged.all()
    assert solution.note == ""


def test_the_rows_that_are_looked_at_count_for_nothing(hard: Hard) -> None:
    before = hard.system.entries
    again = CG(tolerance=2e-2).solve(
        hard.system, hard.rhs, initial=ASAP.solve(hard.system, hard.rhs).value
    )
    assert again.epochs == 1.0
    assert hard.system.entries > before


def test_conjugate_gradients_leave_weights_that_float32_loses_to_float64() -> None:
    hard = Hard(1e-6)
    solver = CG(tolerance=1e-2, max_epochs=60.0)
    rhs = problems.normal(N, 4, seed=2, dtype=torch.float32)
    alone = replace(solver, refine=False).solve(hard.system, rhs)
    assert alone.epochs > 50.0
    assert not alone.converged.all()
    solution = solver.solve(hard.system, rhs)
    assert solution.epochs < 30.0
    assert "went on in float64" in solution.note
    assert (solution.residual < alone.residual).all()


def test_conjugate_gradients_stay_in_float32_where_it_shows_their_tolerance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Run, "in_float64", None)
    system = problems.system(N, 0.1, dtype=torch.float32)
    rhs = problems.normal(N, 4, dtype=torch.float32)
    solution = CG(tolerance=1e-3).solve(system, rhs)
    alone = CG(tolerance=1e-3, refine=False).solve(system, rhs)
    assert solution.converged.all()
    assert torch.equal(solution.value, alone.value)


def test_float64_keeps_to_what_is_left_of_the_budget(hard: Hard) -> None:
    alone = replace(ASAP, refine=False).solve(hard.system, hard.rhs)
    budget = alone.epochs + 2.5
    brief = replace(ASAP, max_epochs=budget).solve(hard.system, hard.rhs)
    assert brief.epochs <= budget


def test_float64_is_left_out_where_it_does_not_fit(
    hard: Hard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available", lambda device: 1000)
    solution = ASAP.solve(hard.system, hard.rhs)
    assert not solution.converged.all()
    assert "float64 does not fit in free memory" in solution.note


def test_a_float64_system_is_looked_at_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "correct", None)
    system = problems.system(N, 0.1)
    assert ASAP.solve(system, problems.normal(N, 2)).converged.all()


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
def test_a_warm_start_that_float32_loses_begins_at_zero(solver: Solver) -> None:
    opposed = Opposed()
    solution = solver.solve(opposed.system, opposed.rhs, initial=opposed.weights)
    cold = solver.solve(opposed.system, opposed.rhs)
    assert solution.converged.all()
    assert solution.epochs <= cold.epochs + 1.0
    assert torch.equal(solution.value, cold.value)


def test_a_warm_start_of_large_weights_that_solve_is_kept(hard: Hard) -> None:
    exact = torch.linalg.solve(hard.H, hard.rhs.double()).float()
    solver = replace(ASAP, tolerance=1e-2)
    solution = solver.solve(hard.system, hard.rhs, initial=exact)
    assert torch.equal(solution.value, exact)
