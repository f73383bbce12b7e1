"""What a solve makes of a warm start, of right-hand sides of any size, and of those that few rows
hold.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from surrogates import (
    CG,
    Auto,
    Checkpoint,
    Cholesky,
    IterativeSolver,
    KernelSystem,
    SketchAndProject,
    Solver,
    kernel_operator,
)
from surrogates.checks import DataError
from surrogates.solvers.run import STALLED, TOLERANCE
from tests import problems

F32 = torch.float32


def system_of(
    X: Tensor, lengthscale: float, noise: float, smoothness: float = 1.5
) -> tuple[KernelSystem, Tensor]:
    """Return a system, and its matrix in float64."""
    kernel = problems.matern(smoothness, lengthscale)
    system = KernelSystem(problems.operator(problems.OPERATORS[0], kernel, X), noise)
    H = problems.own_evaluation(kernel, X, X)
    H.diagonal().add_(system.noise)
    return system, H


def residual(H: Tensor, B: Tensor, W: Tensor) -> Tensor:
    largest = B.double().abs().amax(0)
    B, W = B.double() / largest, W.double() / largest
    return (B - H @ W).norm(dim=0) / B.norm(dim=0)


@pytest.mark.parametrize(
    "solver",
    [
        SketchAndProject.asap(max_epochs=3.0),
        SketchAndProject.asap(max_epochs=5.0),
        SketchAndProject.asap(refine=False),
        CG(max_epochs=3.0),
        CG(max_seconds=1e-6),
        Auto(direct=False, max_epochs=10.0),
    ],
)
def test_what_is_returned_is_no_worse_than_a_warm_start_of_large_weights(solver: Solver) -> None:
    system, H = system_of(problems.uniform(300, 2, dtype=F32), 5.0, 1e-4)
    rhs = problems.normal(300, 3, seed=2, dtype=F32)
    start = (0.98 * torch.linalg.solve(H, rhs.double())).float()
    solution = solver.solve(system, rhs, initial=start)
    true = residual(H, rhs, solution.value)
    assert (true <= 1.1 * residual(H, rhs, start)).all()
    torch.testing.assert_close(solution.residual.double(), true, rtol=0.1, atol=0.0)


@pytest.mark.parametrize("max_epochs", [6.0, 10.0, 20.0])
def test_a_descent_above_the_residual_of_zero_does_not_cost_the_warm_start(
    max_epochs: float,
) -> None:
    system, H = system_of(problems.uniform(300, 2), 1.0, 1e-4)
    rhs = problems.normal(300, 3)
    start = 0.5 * torch.linalg.solve(H, rhs)
    solution = CG(None, max_epochs=max_epochs).solve(system, rhs, initial=start)
    assert (residual(H, rhs, solution.value) <= 0.501).all()


def test_a_right_hand_side_of_zeros_has_that_solution_whatever_it_starts_from() -> None:
    system, _ = system_of(problems.uniform(60, 2), 0.5, 1e-2)
    solution = CG().solve(
        system, torch.zeros(60, 2, dtype=torch.float64), initial=problems.normal(60, 2)
    )
    assert (solution.value == 0).all()
    assert solution.converged.all()


@pytest.mark.parametrize(
    "solver", [CG(), CG(refine=False), SketchAndProject.asap(), Auto(), Cholesky()]
)
def test_columns_of_any_size_are_solved_like_others(solver: Solver) -> None:
    system, H = system_of(problems.uniform(120, 2, dtype=F32), 0.5, 1e-2)
    for factor in (1e-36, 1e-24, 1e20, 1e30):
        sizes = torch.tensor([1.0, factor, 0.0, factor])
        rhs = problems.normal(120, 4, dtype=F32) * sizes
        solution = solver.solve(system, rhs)
        assert solution.converged.all()
        used = [0, 1, 3]
        true = residual(H, rhs[:, used], solution.value[:, used])
        assert (true < 1e-2).all()
        assert ((solution.residual[used] - true).abs() < 1e-3).all()  # a tenth of the tolerance
        assert (solution.value[:, 2] == 0).all()


@pytest.mark.parametrize(
    ("solver", "seed", "apart"),
    [
        (CG(), 2, 1e-3),
        (SketchAndProject.asap(), 3, 3e-4),
        (SketchAndProject.asap(refine=False), 2, 3e-3),
    ],
)
def test_the_residual_of_what_few_rows_hold_is_told_by_all(
    solver: IterativeSolver, seed: int, apart: float
) -> None:
    n = 2000
    X = problems.uniform(n, 3, seed=seed, dtype=F32)
    X[n - 10 :] = X[:10] + apart * problems.normal(10, 3, seed=seed + 9, dtype=F32)
    system, H = system_of(X, 0.1, 1e-6)
    rhs = torch.eye(n, 10)
    solution = solver.solve(system, rhs)
    true = residual(H, rhs, solution.value)
    assert not (solution.converged & (true > 1.1 * TOLERANCE)).any()


def test_auto_leaves_a_direct_solve_its_part_of_the_budget() -> None:
    half = problems.uniform(1000, 3, seed=3, dtype=F32)
    X = torch.cat([half, half + 1e-4 * problems.normal(1000, 3, dtype=F32)])
    system, H = system_of(X, 0.05, 1e-5)  # harder than a sample of the points shows
    rhs = torch.eye(2000, 6)
    solution = Auto().solve(system, rhs)
    assert solution.converged.all()
    assert (residual(H, rhs, solution.value) < 1e-2).all()
    assert "Cholesky() takes over" in solution.note


def test_a_kept_preconditioner_serves_the_refinement_in_float64() -> None:
    system, H = system_of(problems.uniform(300, 2, dtype=F32), 0.5, 3e-3)
    rhs = problems.normal(300, 4, dtype=F32)
    solve = CG(tolerance=1e-4, max_epochs=300.0).inverse(system, 4, seed=0, what="values")
    assert (residual(H, rhs, solve(rhs)) < 1.1e-4).all()


def test_a_note_of_columns_that_stalled_is_of_unsolved_ones() -> None:
    system, _ = system_of(problems.uniform(300, 2), 0.5, 1e-3)
    rhs = problems.normal(300, 3)
    short = SketchAndProject.asap(block_size=60, max_epochs=3.0).solve(system, rhs)
    assert not short.converged.all()
    assert STALLED not in short.note  # the budget ended
    hard, _ = system_of(problems.uniform(300, 2, dtype=F32), 5.0, 1e-6)
    for tolerance in (1e-2, 1e-3):
        solver = CG(tolerance=tolerance, max_epochs=400.0)
        solution = solver.solve(hard, problems.normal(300, 6, dtype=F32))
        assert (STALLED in solution.note) <= (not solution.converged.all())


def test_a_kept_solution_that_time_cut_short_goes_on_with_more(tmp_path: Path) -> None:
    system, H = system_of(problems.uniform(300, 2), 0.5, 1e-2)
    rhs = problems.normal(300, 3)
    checkpoint = Checkpoint(tmp_path, keep_solution=True)
    solver = CG(None, tolerance=1e-6, max_epochs=400.0, checkpoint=checkpoint)
    short = replace(solver, max_seconds=1e-9).solve(system, rhs)
    assert not short.converged.any()
    solution = replace(solver, max_seconds=60.0).solve(system, rhs)
    assert solution.converged.all()
    assert (residual(H, rhs, solution.value) < 1.1e-6).all()


@pytest.mark.parametrize("stop", [2, 4, 6])
def test_a_float32_solve_that_was_watched_goes_on_bit_by_bit(tmp_path: Path, stop: int) -> None:
    X = problems.uniform(300, 2, dtype=F32)
    system, H = system_of(X, 5.0, 1e-6)
    prior = (torch.linalg.cholesky(H) @ problems.normal(300, 4)).float()
    rhs = torch.cat([prior, problems.normal(300, 4, seed=2, dtype=F32)], dim=1)
    solver = CG(tolerance=1e-3, max_epochs=60.0)
    whole = solver.solve(system, rhs)
    calls = 0

    def interrupt(_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == stop:
            raise KeyboardInterrupt

    kept = replace(solver, checkpoint=Checkpoint(tmp_path, every_steps=1))
    with pytest.raises(KeyboardInterrupt):
        kept.solve(system, rhs, callback=interrupt)
    resumed = kept.solve(system, rhs)
    assert torch.equal(resumed.value, whole.value)
    assert resumed.epochs == whole.epochs
    assert torch.equal(resumed.steps, whole.steps)


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e20])
def test_covariances_of_any_scale_are_solved_alike_in_float32(scale: float) -> None:
    X = problems.uniform(200, 2, dtype=torch.float32)
    kernel = problems.scaled(problems.rbf(0.4), scale).float()
    system = KernelSystem(kernel_operator(kernel, X), 1e-3 * scale)
    B = system.kernel @ torch.eye(200)[:, :3]
    inverse = CG(max_epochs=300.0).inverse(system, 4, seed=0, what="values")
    gap = system.to_dense().double() @ inverse(B).double() - B.double()
    assert gap.norm(dim=0).max() < 1.1 * 0.1 * 1e-3 * scale


def test_what_is_not_finite_is_said_of_the_columns() -> None:
    system = problems.system(30)
    inverse = CG().inverse(system, 2, seed=0, what="values")
    with pytest.raises(DataError, match="`rhs` must be finite"):
        inverse(torch.full((30, 1), torch.nan).double())
