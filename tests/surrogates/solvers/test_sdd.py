"""Stochastic dual descent beyond the contract: its published steps, the automatic step,
back-off, averaging.
"""

import pytest
import torch

from surrogates import SDD
from surrogates.solvers.run import Start
from surrogates.solvers.sdd import SDDState
from tests import problems


def test_steps_are_those_of_the_algorithm() -> None:
    n = 30
    b = 10
    rho = 0.8
    step_size = 3.0
    averaging = 0.2
    system = problems.system(n, 0.1)
    rhs = problems.normal(n, 2)
    solver = SDD(step_size=step_size, batch_size=b, momentum=rho, averaging=averaging)
    state: SDDState = solver.init(
        system,
        Start(rhs, torch.zeros_like(rhs), rhs, prepared=solver.prepare(system, torch.Generator())),
    )
    generator = problems.seeded(4)

    H = system.to_dense()
    a = torch.zeros_like(rhs)
    v = torch.zeros_like(rhs)
    average = torch.zeros_like(rhs)
    batches = torch.randperm(n, generator=problems.seeded(4)).split(b)
    for batch in batches:
        state = solver.step(system, rhs, state, generator)
        g = torch.zeros_like(rhs)
        g[batch] = n / b * (H[batch] @ (a + rho * v) - rhs[batch])
        v = rho * v - step_size / n * g
        a = a + v
        average = averaging * a + (1 - averaging) * average
        torch.testing.assert_close(solver.estimate(system, state), average)


@pytest.mark.parametrize("step_size", [5000.0, 1e6])
def test_an_absurd_step_is_reduced_until_it_converges_and_the_note_says_so(
    step_size: float,
) -> None:
    system = problems.system(200, 0.5)
    rhs = problems.normal(200, 3)
    solution = SDD(step_size=step_size, batch_size=50, max_epochs=2000, averaging=0.1).solve(
        system, rhs
    )
    assert solution.converged.all()
    assert "step size reduced" in solution.note


def test_the_automatic_step_needs_no_reduction() -> None:
    for seed in range(5):
        system = problems.system(X=problems.uniform(200, 2, seed=seed))
        solution = SDD(max_epochs=300).solve(
            system, problems.normal(200, 3, seed=seed), generator=problems.seeded(seed)
        )
        assert solution.converged.all()
        assert not solution.note


def test_a_step_is_not_reduced_for_ever_by_noise_in_the_residual() -> None:
    # A few far points carry the residual: batches that miss them see next to none of it.
    X = torch.cat([0.02 * problems.uniform(90, 2), 10.0 * problems.uniform(6, 2, seed=1)])
    system = problems.system(X=X, noise=0.1)
    rhs = system @ problems.normal(96, 3)
    solution = SDD(batch_size=8, max_epochs=400, averaging=0.1).solve(system, rhs)
    assert solution.converged.all(), str(solution)
