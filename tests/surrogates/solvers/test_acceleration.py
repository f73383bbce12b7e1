"""Nesterov's scheme against its equations, in the order in which they have to be."""

import math

import torch

from surrogates.solvers.sketch_and_project import Momentum, accelerate
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
