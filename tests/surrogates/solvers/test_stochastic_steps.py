"""Stochastic methods with steps of the papers and 100 times more, on easy and hopeless systems:
they end finite, no worse, and honest.
"""

from functools import cache

import pytest
import torch
from torch import Tensor

from surrogates import SDD, SGD, Identity, IterativeSolver, KernelSystem, Nystrom, SketchAndProject
from surrogates.solvers.run import TOLERANCE
from tests import problems
from tests.contracts import assert_no_worse, true_residual
from tests.pairs import each_pair

N = 300
S = 2
BATCH = 60
EPOCHS = 6.0
SKETCH = Nystrom(rank=100, sketch="gaussian")

SOLVERS: dict[str, IterativeSolver] = {
    **{
        f"sdd-{step:g}": SDD.paper(step_size=step, batch_size=BATCH, max_epochs=EPOCHS)
        for step in (1.0, 50.0, 1e4)
    },
    **{
        f"sgd-{step:g}": SGD(step_size=step, batch_size=BATCH, max_epochs=EPOCHS)
        for step in (0.0003, 0.5, 50.0)
    },
    **{
        f"{name}-mu-{mu or 'noise'}": SketchAndProject.adasap(
            preconditioner=preconditioner, mu=mu, block_size=N // 3, max_epochs=EPOCHS
        )
        for name, preconditioner in (("adasap", SKETCH), ("adasap-identity", Identity()))
        for mu in (None, 100.0)
    },
}


@cache
def points(name: str) -> Tensor:
    """Return N points, spread evenly or in five tight clusters."""
    if name == "uniform":
        return problems.uniform(N, 2)
    return problems.uniform(5, 2).repeat_interleave(N // 5, dim=0) + 0.01 * problems.normal(
        N, 2, seed=1
    )


def rounding(system: KernelSystem, rhs: Tensor, value: Tensor) -> Tensor:
    """Return how far rounding in H w may move the relative residual:
    large weights in float32 cancel.
    """
    return (
        N
        * torch.finfo(rhs.dtype).eps
        * system.kernel.diagonal().max()
        * value.norm(dim=0)
        / rhs.norm(dim=0)
    )


@each_pair(
    method=SOLVERS,
    layout=["uniform", "clustered"],
    noise=[1e-6, 0.1],
    dtype=[torch.float32, torch.float64],
)
def test_any_step_ends_finite_no_worse_and_says_whether_it_converged(
    method: str, layout: str, noise: float, dtype: torch.dtype
) -> None:
    solver = SOLVERS[method]
    system = problems.system(noise=noise, X=points(layout).to(dtype))
    rhs = problems.normal(N, S, dtype=dtype)
    for initial in (torch.zeros_like(rhs), 0.3 * problems.normal(N, S, seed=1, dtype=dtype)):
        solution = solver.solve(system, rhs, initial=initial)
        assert solution.value.isfinite().all()
        assert solution.residual.isfinite().all()
        exact = true_residual(system, rhs, solution.value)
        assert (
            (solution.residual - exact).abs()
            <= 1e-2 * exact + rounding(system, rhs, solution.value)
        ).all()
        assert torch.equal(solution.converged, solution.residual <= TOLERANCE)
        assert str(solution).startswith(f"{int(solution.converged.sum())}/{S} columns converged")
        # A run that gave up early says why
        assert solution.converged.all() or solution.note or solution.epochs > EPOCHS - 3.0
        assert_no_worse(system, rhs, solution.value, initial)


@pytest.mark.parametrize(
    "solver",
    [SDD(step_size=1e4, batch_size=BATCH), SGD(step_size=50.0, clip=1e3, batch_size=BATCH)],
    ids=["sdd", "sgd"],
)
def test_a_step_that_diverges_is_reduced_and_the_note_says_so(solver: IterativeSolver) -> None:
    # Otherwise the steps above would be no test of how divergence is undone.
    system: KernelSystem = problems.system(N, 0.1)
    assert "step size reduced" in solver.solve(system, problems.normal(N, S)).note
