"""Nesterov's scheme against its equations, in the order in which they have to be, and its pace."""

import math
from dataclasses import replace

import pytest
import torch

from surrogates import KernelSystem, PriorPaths, SketchAndProject, kernel_operator
from surrogates.solvers.acceleration import Momentum, accelerate
from surrogates.solvers.run import Start
from tests import problems

N = 60
B = 15


def test_acceleration_follows_the_corrected_equations() -> None:
    system = problems.system(N, 0.1)
    rhs = problems.normal(N, 1)
    mu = 0.05
    nu = N / B
    H = system.to_dense()
    W = V = Z = torch.zeros_like(rhs)
    ours_W = W.clone()
    printed = torch.zeros_like(rhs)
    beta = 1 - math.sqrt(mu / nu)
    gamma = 1 / math.sqrt(mu * nu)
    alpha = 1 / (1 + gamma * nu)
    ours = Momentum.start(V, mu)
    for step in range(8):
        index = torch.randperm(N, generator=torch.Generator().manual_seed(step))[:B]
        D = torch.zeros_like(rhs)
        # At the extrapolated point
        D[index] = torch.linalg.solve(H[index][:, index], (H @ Z - rhs)[index])
        ours_W, ours = accelerate(system.rows, ours_W, ours, index, D[index], nu)
        W = Z - D
        V_new = beta * V + (1 - beta) * Z - gamma * D
        printed = alpha * V + (1 - alpha) * W
        V = V_new
        Z = alpha * V_new + (1 - alpha) * W
        for mine, theirs in ((ours_W, W), (ours.V, V), (ours.Z, Z)):
            torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(ours.Z, printed, rtol=1e-3)  # Z made of the old V, as printed


def test_a_column_has_a_longer_memory_where_its_residual_falls_slowly() -> None:
    nu = 20.0
    start = replace(
        Momentum.start(torch.zeros(3, 6), 0.5 / nu),
        residual=torch.tensor([1.0, 1.0, 1.0, 1.0, math.inf, 1.0]),
    )
    start.mu[5] = 1.0 / nu  # as if without acceleration
    residual = torch.tensor([0.3, 0.9, 0.62, 1.1, 0.9, 0.9])
    paced = start.paced(residual, nu)
    between = 0.4 * (2.0 * math.log(0.62)) ** 2
    expected = torch.tensor([0.5, 0.2, between, 0.5, 0.5, 1.0])
    torch.testing.assert_close(nu * paced.mu, expected)
    torch.testing.assert_close(paced.residual, residual)
    again = paced.paced(0.3 * residual, nu)
    torch.testing.assert_close(nu * again.mu, torch.tensor([0.5] * 5 + [1.0]))


def epochs(nu: float, mu: float | None) -> float:
    """Return the epochs of two solves of a Matérn kernel in eight dimensions, by thirty blocks."""
    n = 3000
    X = problems.uniform(n, 8, dtype=torch.float32)
    kernel = problems.matern(nu, 2.0)
    system = KernelSystem(kernel_operator(kernel, X), 1e-4)
    total = 0.0
    for seed in (0, 1):
        generator = torch.Generator().manual_seed(seed)
        draw = PriorPaths.draw(kernel, 8, 4, num_features=1000, generator=generator, like=X)
        solver = SketchAndProject.asap(
            block_size=n // 30, mu=mu, tolerance=0.02, max_epochs=60.0, refine=False
        )
        solution = solver.solve(system, draw(X).mT.contiguous())
        assert solution.converged.all()
        total += solution.epochs
    return total


@pytest.mark.slow
def test_residuals_that_fall_slowly_take_fewer_epochs_and_others_as_many() -> None:
    # Far from what float32 cannot resolve, the ratio is between .6 and .9
    assert epochs(2.5, None) < 0.97 * epochs(2.5, 0.5 / 30)
    assert epochs(0.5, None) == epochs(0.5, 0.5 / 30)


def test_a_given_mu_stays(generator: torch.Generator) -> None:
    system = problems.system(N, 1e-6)
    rhs = problems.normal(N, 2)
    solver = SketchAndProject.asap(block_size=B, mu=0.1)
    state = solver.init(system, Start(rhs, torch.zeros_like(rhs), rhs, None))
    for _ in range(40):
        state = solver.step(system, rhs, state, generator)
    assert state.momentum is not None
    assert state.momentum.mu.tolist() == pytest.approx([0.1, 0.1])
