"""The solvers of the methods, and their budgets."""

from dataclasses import replace

import pytest

from scalable_bo.experiments.regression.methods import Budget, heeded, solver_within
from surrogates import SDD, SGD, SketchAndProject


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


def test_blocks_may_be_fewer_and_are_never_empty() -> None:
    for name, field in (("adasap", "block_size"), ("sdd-1", "batch_size")):
        for num_blocks, size in ((5, 60), (1000, 1)):
            solver = solver_within(name, 300, Budget(num_blocks=num_blocks))
            assert getattr(solver, field) == size


def test_gradient_descent_has_the_published_settings() -> None:
    solver = solver_within("sgd", 13_500, Budget())
    assert isinstance(solver, SGD)
    assert (solver.step_size, solver.sample_step_size, solver.batch_size) == (0.5, 0.1, 512)
    assert (solver.num_features, solver.momentum, solver.clip) == (100, 0.9, 0.1)
    assert (solver.max_epochs - 1.0) * 13_500 / 512 == pytest.approx(100_000)


def test_methods_heed_the_budgets_that_concern_them() -> None:
    budget = Budget(tolerance=0.1, max_epochs=2.0, sgd_steps=3, num_points=4)
    assert heeded("cg", budget) == {"tolerance": 0.1, "max_epochs": 2.0}
    assert heeded("sgd", budget) == {"sgd_steps": 3}
    assert heeded("subset", budget) == {"num_points": 4}
    assert heeded("cholesky", budget) == {}
    assert heeded("adasap", budget) == {"tolerance": 0.1, "max_epochs": 2.0}
    assert heeded("adasap", replace(budget, num_blocks=5))["num_blocks"] == 5
    with pytest.raises(ValueError, match="`sgd_steps` must be at least 1, got 0"):
        Budget(sgd_steps=0)
