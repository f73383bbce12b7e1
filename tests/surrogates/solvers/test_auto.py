"""The solver that chooses itself: what it chooses and why, what takes over,
and the account it gives of all stages.
"""

import math
from dataclasses import replace
from types import NoneType
from typing import Any

import pytest
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from surrogates import (
    CG,
    Auto,
    Cholesky,
    Dense,
    IterativeSolver,
    KernelSystem,
    Nystrom,
    PathwiseGP,
    SketchAndProject,
    Solution,
    Solver,
    memory,
)
from surrogates.operators.rates import OF_A_CPU
from surrogates.solvers import auto
from surrogates.solvers.auto import Choice
from surrogates.solvers.cg import CGState
from surrogates.solvers.forecast import SpectrumModel
from surrogates.solvers.run import TOLERANCE, Run
from surrogates.solvers.sketch_and_project import default_block_size
from surrogates.solvers.solver import Request
from surrogates.systems.system import LinearSystem
from tests import problems
from tests.contracts import CountingOperator, assert_no_worse, true_residual
from tests.pairs import each_pair
from tests.problems import seeded

N = 300
GIBIBYTE = 2**30


def kernel_system(
    n: int,
    noise: float | Tensor,
    kernel: Kernel | None = None,
    *,
    spread: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> KernelSystem:
    X = spread * problems.uniform(n, 2, dtype=dtype)
    return KernelSystem(
        problems.operator(Dense, problems.matern(1.5, 0.4) if kernel is None else kernel, X), noise
    )


def name(solver: Solver, n: int, num_columns: int) -> str:
    """Return what the reason must call ``solver``."""
    if isinstance(solver, CG):
        return (
            "CG(None)"
            if solver.preconditioner is None
            else f"CG(Nystrom({solver.preconditioner.rank}))"
        )  # type: ignore[attr-defined]
    if isinstance(solver, SketchAndProject):
        size = default_block_size(n, num_columns)
        return f"SketchAndProject.asap(), blocks of {size}"
    return "Cholesky()"


@pytest.fixture
def iterating(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small systems be solved by iterations."""
    monkeypatch.setattr(memory, "available", lambda device: 0)  # for a factor


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Auto, "choose", lambda *_: Choice(Cholesky(), "Cholesky(): by order"))


SYSTEMS = {
    "small": lambda: kernel_system(90, 0.1),
    "easy": lambda: kernel_system(1500, 1.0),
    "nearly-diagonal": lambda: kernel_system(1500, 0.1, spread=100.0),
    "smooth-float32": lambda: kernel_system(1200, 1e-6, problems.rbf(2.0), dtype=torch.float32),
    "hard": lambda: kernel_system(1500, 1e-6),
}


@pytest.mark.parametrize("label", SYSTEMS)
@pytest.mark.parametrize("num_columns", [1, 16])
def test_the_reason_is_one_line_that_begins_with_the_solver_chosen(
    label: str, num_columns: int
) -> None:
    system = SYSTEMS[label]()
    choice = Auto().choose(system, num_columns)
    assert choice.reason.startswith(name(choice.solver, system.n, num_columns) + ":")
    assert "\n" not in choice.reason
    assert f"n = {system.n}" in choice.reason


@pytest.mark.parametrize("label", ["small", "easy", "nearly-diagonal"])
def test_the_choice_and_its_reason_begin_the_note(label: str) -> None:
    system = SYSTEMS[label]()
    choice = Auto().choose(system, 1, seeded())
    solution = Auto().solve(system, problems.normal(system.n, 1), generator=seeded())
    assert solution.note.startswith(choice.reason)
    assert choice.reason in str(solution)
    assert "\n" not in solution.note
    assert solution.converged.all()


def test_a_small_system_is_solved_directly_and_without_a_probe() -> None:
    for n in (1, 90, 999):
        system = kernel_system(n, 1.0)
        assert Auto().choose(system, 2).solver == Cholesky()
        assert system.entries == 0


@pytest.mark.parametrize(("label", "kind"), [("easy", Nystrom), ("nearly-diagonal", NoneType)])
def test_one_column_is_solved_by_conjugate_gradients_with_the_preconditioner_that_pays(
    label: str, kind: type
) -> None:
    solver = Auto().choose(SYSTEMS[label](), 1).solver
    assert isinstance(solver, CG) and isinstance(solver.preconditioner, kind)


@pytest.fixture
def too_large_for_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KernelSystem, "doubled", lambda self: None)


def test_tiny_noise_is_left_to_blocks_where_rounding_forbids_a_direct_solve(
    too_large_for_float64: None,
) -> None:
    system = SYSTEMS["smooth-float32"]()
    probe = SpectrumModel.of(system, seeded())
    assert probe.direct_residual(torch.float32) > TOLERANCE
    choice = Auto().choose(system, 1)
    assert isinstance(choice.solver, SketchAndProject)
    assert choice.solver.accelerated
    assert "Cholesky" not in choice.reason


def test_tiny_noise_is_left_to_iterations_where_a_direct_solve_is_dear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = SYSTEMS["hard"]()
    assert Auto().choose(system, 16).solver == Cholesky()
    # Ten times the points make a direct solve, n³, ten times dearer beside an epoch, n².
    dear = replace(OF_A_CPU, factorise=10.0 * OF_A_CPU.factorise, copy=10.0 * OF_A_CPU.copy)
    monkeypatch.setattr(auto, "rates_of", lambda device: dear)
    assert isinstance(Auto().choose(system, 16).solver, IterativeSolver)


def test_a_float32_system_is_solved_directly_in_float64_where_that_fits() -> None:
    system = SYSTEMS["smooth-float32"]()
    assert Auto().choose(system, 1).solver == Cholesky()


def test_limits_are_passed_on_to_the_solver_chosen(too_large_for_float64: None) -> None:
    limits: dict[str, Any] = {"tolerance": 3e-3, "max_epochs": 17.0, "max_seconds": 5.0}
    for label in ("easy", "nearly-diagonal", "smooth-float32"):
        solver = Auto(**limits).choose(SYSTEMS[label](), 1).solver
        assert {limit: getattr(solver, limit) for limit in limits} == limits


@pytest.mark.parametrize(
    ("free", "largest"),
    [
        (0, 0),
        (24 * N * 15 - 1, 0),
        (24 * N * 15, 15),
        (24 * N * 30, 30),
        (24 * N * 60 - 1, 30),
        (GIBIBYTE, 60),
    ],
)
def test_a_preconditioner_that_does_not_fit_in_memory_is_no_candidate(
    iterating: None, monkeypatch: pytest.MonkeyPatch, free: int, largest: int
) -> None:
    monkeypatch.setattr(memory, "available", lambda device: free)
    system = kernel_system(N, 1.0)
    candidates = Auto()._candidates(system, 1, SpectrumModel.of(system, seeded()), TOLERANCE)
    preconditioners = [c.solver.preconditioner for _, c in candidates if isinstance(c.solver, CG)]
    ranks = [p.rank for p in preconditioners if isinstance(p, Nystrom) and p.rank]
    assert max(ranks, default=0) == largest
    assert len(candidates) == 2 + len(ranks)


@pytest.mark.parametrize("n", [90, 1200])
def test_a_direct_solve_that_does_not_fit_in_memory_is_not_chosen(
    monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    system = kernel_system(n, 1e-6)
    bytes_needed = 2 * n**2 * 8
    monkeypatch.setattr(memory, "available", lambda device: 4 * bytes_needed // 3)
    assert Auto().choose(system, 16).solver == Cholesky()
    monkeypatch.setattr(memory, "available", lambda device: 4 * bytes_needed // 3 - 2)
    choice = Auto().choose(system, 16)
    assert isinstance(choice.solver, IterativeSolver)
    assert "Cholesky" not in choice.reason


def test_vector_noise_is_judged_by_its_smallest_variance() -> None:
    equal = kernel_system(1200, torch.full((1200,), 0.3))
    chosen = Auto().choose(equal, 1, seeded())
    alike = Auto().choose(kernel_system(1200, 0.3), 1, seeded())
    assert (chosen.solver, chosen.reason) == (alike.solver, alike.reason)
    assert chosen.epochs == pytest.approx(alike.epochs, rel=1e-6)
    noise = 0.3 + problems.uniform(1200)
    noise[700] = 1e-4
    assert SpectrumModel.of(kernel_system(1200, noise), seeded()).noise == 1e-4


def test_inducing_points_are_solved_directly() -> None:
    system = problems.inducing_system(60, 20)
    rhs = system.project(problems.normal(60, 2))
    assert Auto().choose(system, 2) == Choice(Cholesky(), "Cholesky(): the system has 20 unknowns")
    solution = Auto(tolerance=1e-9).solve(system, rhs)
    assert solution.note.startswith("Cholesky(): the system has 20 unknowns")
    assert solution.converged.all()
    assert torch.equal(solution.value, Cholesky().solve(system, rhs).value)


@pytest.mark.parametrize("n", [N, 1200])
def test_blocks_take_over_where_a_direct_solve_falls_short(
    direct: None, n: int, too_large_for_float64: None
) -> None:
    system = kernel_system(n, 1e-6, problems.rbf(2.0), dtype=torch.float32)
    rhs = problems.normal(n, 2, dtype=torch.float32)
    alone = Cholesky().solve(system, rhs)
    assert "jitter" in alone.note
    assert (alone.residual > 1e-2).all()
    solution = Auto(tolerance=1e-2).solve(system, rhs)
    assert solution.note.startswith("Cholesky(): by order; jitter")
    assert "SketchAndProject.asap() takes over, as the residual fell short" in solution.note
    assert (solution.steps > 1).all()
    assert torch.equal(solution.converged, solution.residual <= 1e-2)
    assert_no_worse(system, rhs, solution.value, torch.zeros_like(rhs))


def test_nothing_takes_over_where_float32_cannot_hold_a_direct_solution(direct: None) -> None:
    # Weights of 3e5 leave residuals of about 1e-2 when they are rounded
    system = kernel_system(N, 1e-5, problems.rbf(2.0), dtype=torch.float32)
    solution = Auto(tolerance=1e-6).solve(system, problems.normal(N, 2, dtype=torch.float32))
    said = "Cholesky(): by order; float32 cannot hold the solution: its weights are too large"
    assert solution.note.startswith(said) and "takes over" not in solution.note
    assert solution.epochs == 2.0


class Stalling(CG):
    """Conjugate gradients that give up early."""

    def _is_spent(self, run: Run, further: float = 0.0) -> bool:
        return run.request.epochs > 3


class Hopeless(CG):
    """Conjugate gradients that never find a column solved."""

    def residual_norm(self, system: LinearSystem, state: CGState) -> Tensor:
        return torch.full_like(super().residual_norm(system, state), math.inf)


@pytest.mark.parametrize("num_direct", [3.0, 10.3])
@pytest.mark.parametrize("max_epochs", [20.0, 40.0])
def test_the_budget_is_kept_for_a_direct_solve_in_the_epochs_of_the_chosen_method(
    monkeypatch: pytest.MonkeyPatch, num_direct: float, max_epochs: float
) -> None:
    def choose(_: Auto, system: KernelSystem, num_columns: int, *others: object) -> Choice:
        hopeless = Hopeless(None, max_epochs=max_epochs)
        cost = auto._direct_cost(system, num_columns) / num_direct
        return Choice(hopeless, "by order", max_epochs / 3.0, cost)

    monkeypatch.setattr(Auto, "choose", choose)
    X = problems.uniform(N, 2)
    model = PathwiseGP(X, X.sin().sum(1, keepdim=True), solver=Auto(max_epochs=max_epochs)).eval()
    model.paths(4)
    assert "Cholesky() takes over" in model.solution.note
    assert model.solution.converged.all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_a_direct_solve_takes_over_where_an_iteration_falls_short(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    stalling = Stalling(None, tolerance=3e-3)
    monkeypatch.setattr(Auto, "choose", lambda *_: Choice(stalling, "CG(None): by order"))
    system = kernel_system(N, 1e-4, problems.matern(1.5, 2.0), dtype=dtype)
    solution = Auto(tolerance=3e-3).solve(system, problems.normal(N, 2, dtype=dtype))
    assert solution.converged.all()
    assert "Cholesky() takes over, as the residual fell short" in solution.note


@pytest.mark.parametrize(("direct", "cheaper"), [(1.5, Cholesky()), (1e3, None), (math.inf, None)])
def test_a_solve_that_a_direct_one_would_have_beaten_says_so(
    monkeypatch: pytest.MonkeyPatch, direct: float, cheaper: Solver | None
) -> None:
    choice = Choice(CG(), "by order", direct=direct)
    monkeypatch.setattr(Auto, "choose", lambda *_: choice)
    solution = Auto().solve(problems.system(N, 0.1), problems.normal(N, 2))
    assert solution.converged.all() and solution.epochs > 1.5
    assert solution.cheaper == cheaper


def test_a_direct_solve_that_costs_more_than_the_budget_does_not_take_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stalling = Stalling(None, tolerance=3e-3)
    monkeypatch.setattr(Auto, "choose", lambda *_: Choice(stalling, "by order", epoch_cost=1e8))
    dear = replace(auto.rates_of(torch.device("cpu")), factorise=1e9)
    monkeypatch.setattr(auto, "rates_of", lambda device: dear)
    system = kernel_system(N, 1e-4, problems.matern(1.5, 2.0))
    solution = Auto(tolerance=3e-3).solve(system, problems.normal(N, 2))
    assert "Cholesky()" not in solution.note


def test_blocks_get_the_rest_done_where_precision_allows(
    direct: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Rough(Cholesky):
        def _solve(self, request: Request) -> Solution:
            solution = super()._solve(request)
            return replace(
                solution,
                value=0.9 * solution.value,
                residual=solution.residual + 0.1,
                note="jitter",
            )

    monkeypatch.setattr(Auto, "choose", lambda *_: Choice(Rough(), "by order"))
    system = problems.system(N, 0.1)
    rhs = problems.normal(N, 2)
    solution = Auto(tolerance=1e-6).solve(system, rhs)
    assert solution.converged.all()
    assert "takes over" in solution.note
    torch.testing.assert_close(
        solution.residual, true_residual(system, rhs, solution.value), rtol=1e-6, atol=1e-14
    )


@pytest.mark.parametrize("max_epochs", [6.0, 50.0])
def test_the_result_is_no_worse_than_the_direct_solve_that_fell_short(
    direct: None, max_epochs: float
) -> None:
    system = problems.system(N, 1e-6)
    rhs = problems.normal(N, 2)
    alone = Cholesky().solve(system, rhs)
    solution = Auto(tolerance=1e-14, max_epochs=max_epochs).solve(system, rhs)
    assert not solution.converged.any()
    assert (solution.residual <= alone.residual * (1 + 1e-9)).all()


@pytest.mark.parametrize("direct_solve", [False, True], ids=["without", "with"])
def test_a_direct_solve_may_be_ruled_out(direct_solve: bool) -> None:
    for label in ("small", "hard"):
        choice = Auto(direct=direct_solve).choose(SYSTEMS[label](), 16)
        assert isinstance(choice.solver, Cholesky) == direct_solve
        assert ("Cholesky" in choice.reason) == direct_solve


def test_a_direct_solve_within_the_tolerance_is_not_taken_over(direct: None) -> None:
    system = problems.system(N, 0.1)
    rhs = problems.normal(N, 2)
    solution = Auto(tolerance=1e-10).solve(system, rhs)
    assert solution.note == "Cholesky(): by order"
    assert (solution.steps == 1).all()


@pytest.mark.parametrize(("tolerance", "warm"), [(1e-1, False), (1e-2, True), (1e-3, False)])
def test_a_float64_system_is_solved_in_float32_first(
    iterating: None, spy: Any, tolerance: float, warm: bool
) -> None:
    counting = CountingOperator(problems.system(N, 0.1).kernel)
    system = KernelSystem(counting, 0.1)
    rhs = problems.normal(N, 2)
    initial = 0.1 * problems.normal(N, 2, seed=1) if warm else None
    convert = spy(KernelSystem, "to")
    steps = [spy(method, "step") for method in (CG, SketchAndProject)]
    solution = Auto(tolerance=tolerance).solve(system, rhs, initial=initial)
    convert.assert_called_once_with(system, torch.float32)
    calls = [call.args for step in steps for call in step.call_args_list]
    assert {stepping.dtype for _, stepping, *_ in calls} == {torch.float32}
    assert system.entries == counting.entries
    assert solution.epochs == pytest.approx(counting.entries / N**2)
    assert solution.value.dtype == solution.residual.dtype == torch.float64
    assert solution.converged.all()
    torch.testing.assert_close(
        solution.residual, true_residual(system, rhs, solution.value), rtol=1e-9, atol=0
    )


@pytest.mark.parametrize("tolerance", [1e-6, 1e-10])
def test_what_float32_finds_is_corrected_down_to_a_finer_tolerance(
    iterating: None, spy: Any, tolerance: float
) -> None:
    system = problems.system(N, 0.1)
    rhs = problems.normal(N, 2)
    convert = spy(KernelSystem, "to")
    solution = Auto(tolerance=tolerance, max_epochs=1000.0).solve(system, rhs)
    assert convert.call_count == 1
    assert solution.converged.all()
    assert (true_residual(system, rhs, solution.value) <= tolerance).all()


def test_float32_systems_and_direct_solves_are_not_converted(
    spy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert = spy(KernelSystem, "to")
    assert Auto().solve(problems.system(N, 0.1), problems.normal(N, 2)).converged.all()
    monkeypatch.setattr(memory, "available", lambda device: 0)
    rhs = problems.normal(N, 2, dtype=torch.float32)
    assert Auto().solve(problems.system(N, 1.0, dtype=torch.float32), rhs).converged.all()
    assert not convert.called


def test_what_float32_leaves_is_finished_in_float64(iterating: None) -> None:
    # Beyond float32: its products round by eps times weights of the size of 1 / σ².
    system = kernel_system(N, 1e-5, problems.rbf(0.5))
    rhs = problems.normal(N, 2)
    single = SketchAndProject.asap(tolerance=1e-3, max_epochs=400.0).solve(
        system.to(torch.float32), rhs.float()
    )
    assert not single.converged.any()
    solution = Auto(tolerance=1e-3, max_epochs=400.0).solve(system, rhs)
    assert solution.converged.all(), str(solution)


@each_pair(
    max_epochs=[4.0, 6.3, 8.5, 30.0], warm=[False, True], dtype=[torch.float32, torch.float64]
)
def test_the_epochs_of_all_stages_are_kept_to(
    iterating: None, dtype: torch.dtype, max_epochs: float, warm: bool
) -> None:
    system = problems.system(N, 1e-5, dtype=dtype)
    rhs = problems.normal(N, 2, dtype=dtype)
    initial = 0.1 * problems.normal(N, 2, seed=1, dtype=dtype) if warm else torch.zeros_like(rhs)
    solution = Auto(tolerance=1e-3, max_epochs=max_epochs).solve(system, rhs, initial=initial)
    assert not solution.converged.any()
    assert solution.epochs <= max_epochs
    assert_no_worse(system, rhs, solution.value, initial)


@pytest.mark.parametrize(
    ("max_seconds", "dtype"), [(3.0, torch.float32), (6.0, torch.float64), (12.0, torch.float32)]
)
def test_the_seconds_of_all_stages_are_kept_to(
    iterating: None, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, max_seconds: float
) -> None:
    counting = CountingOperator(problems.system(N, 1e-4, dtype=dtype).kernel)
    # An epoch takes a second
    clock = type("Clock", (), {"perf_counter": lambda _: counting.entries / N**2})()
    monkeypatch.setattr("surrogates.solvers.solver.time", clock)
    solution = Auto(tolerance=1e-3, max_seconds=max_seconds).solve(
        KernelSystem(counting, 1e-4), problems.normal(N, 2, dtype=dtype)
    )
    assert not solution.converged.any()
    # By that clock, what is evaluated in float64 takes no time
    assert solution.epochs - 2.0 < solution.seconds < solution.epochs + 1e-6
    # A method ends a step that it has begun and evaluates one product; what follows it evaluates
    # one more.
    assert max_seconds <= solution.seconds <= max_seconds + 3.0


@pytest.mark.parametrize(
    ("scale", "noise"), [(1e39, 0.1), (1.0, 1e-46)], ids=["large-targets", "no-noise"]
)
def test_a_float64_system_beyond_the_range_of_float32_is_solved(
    iterating: None, scale: float, noise: float
) -> None:
    rhs = scale * problems.normal(N, 1)
    solution = Auto(max_epochs=10.0).solve(problems.system(N, noise), rhs)
    assert solution.value.isfinite().all()


def test_what_float32_cannot_do_leaves_most_of_the_budget_to_float64() -> None:
    """In float32, prior values of such smooth and quiet data stall."""
    X = problems.uniform(1000, 1)
    kernel = problems.matern(1.5, 1.0)
    operator = problems.operator(Dense, kernel, X)
    system = KernelSystem(operator, 1e-4)
    factor = torch.linalg.cholesky(operator.to_dense() + 1e-8 * torch.eye(1000).double())
    B = factor @ torch.randn(1000, 257, dtype=torch.float64, generator=seeded())
    solution = Auto().solve(system, B, generator=seeded())
    assert solution.converged.all(), solution.note
    assert solution.epochs < 50.0
