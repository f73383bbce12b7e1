"""Conjugate gradients beyond the contract: exactness, preconditioning, breakdown."""

import pytest
import torch

from surrogates import CG, Nystrom, PivotedCholesky, Preconditioner
from tests import problems
from tests.contracts import true_residual


def test_as_many_steps_as_distinct_eigenvalues_are_enough() -> None:
    system = problems.system(40, 0.1)
    values, vectors = torch.linalg.eigh(system.to_dense())
    rhs = vectors[:, [0, 10, 20]].sum(1, keepdim=True)
    solution = CG(preconditioner=None, tolerance=1e-8).solve(system, rhs)
    assert solution.steps.item() == 3


@pytest.mark.parametrize(
    "preconditioner", [Nystrom(150), PivotedCholesky(150)], ids=["nystrom", "pivoted"]
)
def test_preconditioning_saves_steps_on_a_hard_system(preconditioner: Preconditioner) -> None:
    system = problems.system(300, 1e-3)
    rhs = problems.normal(300, 2)
    plain = CG(preconditioner=None, tolerance=1e-6, max_epochs=500).solve(system, rhs)
    preconditioned = CG(preconditioner=preconditioner, tolerance=1e-6, max_epochs=500).solve(
        system, rhs
    )
    assert preconditioned.converged.all()
    assert 2 * preconditioned.steps.max() < plain.steps.min()


def test_float32_beyond_its_precision_says_why_it_ended_and_the_residual_it_has() -> None:
    system = problems.system(200, 1e-7, dtype=torch.float32)
    rhs = problems.normal(200, 2, dtype=torch.float32)
    solver = CG(Nystrom(20), tolerance=1e-7, max_epochs=3000, refine=False)
    solution = solver.solve(system, rhs)
    assert not solution.converged.all()
    # Rounding decides whether the recursion gets stuck or goes on to the end of its budget
    assert "stopped improving" in solution.note or solution.epochs > 2990
    assert solution.epochs < 3000
    assert solution.value.isfinite().all()
    rounding = (
        200
        * torch.finfo(torch.float32).eps
        * (solution.value.norm(dim=0) / rhs.norm(dim=0)).max().item()
    )
    torch.testing.assert_close(
        solution.residual.double(),
        true_residual(system, rhs, solution.value),
        rtol=0.1,
        atol=rounding,
    )
