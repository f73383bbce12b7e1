"""The solver that treats the posterior mean and the samples apart,
and the budgets of the methods.
"""

import pytest
import torch

from scalable_bo.experiments.models import matern_kernel
from scalable_bo.experiments.regression.methods import Budget, SplitSolver, heeded, solver_within
from surrogates import (
    CG,
    SDD,
    Cholesky,
    KernelSystem,
    Progress,
    SketchAndProject,
    Targets,
    kernel_operator,
)


@pytest.fixture
def system(generator: torch.Generator) -> KernelSystem:
    X = torch.rand(60, 2, generator=generator, dtype=torch.float64)
    return KernelSystem(kernel_operator(matern_kernel(0.5, 1.0), X), 0.1)


@pytest.fixture
def targets(generator: torch.Generator) -> Targets:
    values, noise = (torch.randn(60, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    return Targets(values, noise)


@pytest.mark.parametrize("in_parts", [True, False])
def test_columns_solved_apart_are_the_columns_solved_together(
    system: KernelSystem, targets: Targets, in_parts: bool
) -> None:
    rhs = targets if in_parts else system.rhs(targets)
    together = Cholesky().solve(system, rhs)
    apart = SplitSolver(Cholesky(), CG(tolerance=1e-12)).solve(system, rhs)
    torch.testing.assert_close(apart.value, together.value, rtol=1e-8, atol=1e-8)
    assert apart.converged.all()
    assert apart.steps[0] == 1
    assert apart.steps.shape == (4,)


def test_without_a_solver_samples_stay_at_zero_and_say_so(
    system: KernelSystem, targets: Targets
) -> None:
    solution = SplitSolver(Cholesky(), None).solve(system, targets)
    assert solution.value[:, 1:].eq(0).all()
    torch.testing.assert_close(
        solution.value[:, :1], Cholesky().solve(system, targets).value[:, :1]
    )
    assert solution.residual[1:].eq(1).all()
    assert solution.converged.tolist() == [True, False, False, False]


def test_epochs_of_both_solves_are_counted_and_reported_on_end(
    system: KernelSystem, targets: Targets
) -> None:
    seen: list[Progress] = []
    cg = CG(None, tolerance=1e-10)
    solver = SplitSolver(cg, cg)
    solution = solver.solve(system, targets, callback=seen.append)
    epochs = [progress.epochs for progress in seen]
    assert len(epochs) > 10
    assert epochs == sorted(epochs)
    assert {progress.num_columns for progress in seen} == {1, 3}
    assert epochs[-1] <= solution.epochs
    assert solver.max_epochs == 200.0
    assert SplitSolver(CG(), Cholesky()).max_epochs is None
    assert SplitSolver(CG(), None).max_epochs == 100.0


def test_a_warm_start_reaches_both(system: KernelSystem, targets: Targets) -> None:
    exact = Cholesky().solve(system, targets).value
    solution = SplitSolver(CG(), CG()).solve(system, targets, initial=exact)
    assert solution.steps.eq(0).all()


@pytest.mark.parametrize(("name", "step"), [("sdd-1", 1.0), ("sdd-10", 10.0), ("sdd-100", 100.0)])
def test_dual_descent_has_the_step_in_its_name_and_the_published_blocks(
    name: str, step: float
) -> None:
    solver = solver_within(name, 5000, Budget(tolerance=1e-3, max_epochs=50.0))
    assert isinstance(solver, SDD)
    assert (solver.step_size, solver.batch_size, solver.momentum) == (step, 50, 0.9)
    assert (solver.tolerance, solver.max_epochs) == (1e-3, 50.0)


def test_adasap_has_the_published_blocks() -> None:
    solver = solver_within("adasap", 20_000, Budget())
    assert isinstance(solver, SketchAndProject)
    assert solver.block_size == 200


def test_gradient_descent_has_the_published_settings() -> None:
    solver = solver_within("sgd", 13_500, Budget())
    assert isinstance(solver, SplitSolver)
    for part, step in ((solver.mean, 0.5), (solver.samples, 0.1)):
        assert (part.step_size, part.batch_size, part.num_features, part.momentum, part.clip) == (
            step,
            512,
            100,
            0.9,
            0.1,
        )
        assert (part.max_epochs - 1.0) * 13_500 / 512 == pytest.approx(100_000)


def test_methods_heed_the_budgets_that_concern_them() -> None:
    budget = Budget(tolerance=0.1, max_epochs=2.0, sgd_steps=3, num_points=4)
    assert heeded("cg", budget) == {"tolerance": 0.1, "max_epochs": 2.0}
    assert heeded("sgd", budget) == {"sgd_steps": 3}
    assert heeded("subset", budget) == {"num_points": 4}
    assert heeded("cholesky", budget) == {}
    with pytest.raises(ValueError, match="`sgd_steps` must be at least 1, got 0"):
        Budget(sgd_steps=0)
