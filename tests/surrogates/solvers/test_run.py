"""Columns of a state are dropped, and a solve holds as many matrices as it says."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from surrogates import IterativeSolver
from surrogates.solvers.run import drop_others
from surrogates.solvers.state import State
from tests import problems
from tests.card import CARD
from tests.live_matrices import LiveMatrices


@dataclass
class Inner(State):
    V: Tensor
    mu: Tensor


@dataclass
class Outer(State):
    count: int
    W: Tensor
    checkpoint: Tensor
    inner: Inner | None


def state(n: int = 5, s: int = 4) -> Outer:
    W = torch.arange(float(n * s)).reshape(n, s)
    return Outer(3, W, W + 100.0, Inner(W + 200.0, W[0] + 300.0))


def test_columns_are_dropped_a_tensor_at_a_time() -> None:
    with LiveMatrices(torch.zeros(5, 4)) as live:
        whole = state()
        held = len(live.live)
        live.most = 0
        expected = whole.W[:, [3, 1, 0, 2]]
        assert live.most == held + 1
        live.most = 0
        drop_others(whole, torch.tensor([3, 1, 0, 2]))
        assert live.most == held + 2  # with what is expected
        assert torch.equal(whole.W, expected)
    assert whole.inner is not None
    assert torch.equal(whole.inner.V, expected + 200.0)
    assert torch.equal(whole.inner.mu, expected[0] + 300.0)


@pytest.mark.parametrize(
    # Samplers of blocks hold factors that happen to be of the same size
    "name",
    [
        name
        for name, solver in CARD.items()
        if isinstance(solver, IterativeSolver) and name not in ("sap-leverage", "sap-dpp")
    ],
)
def test_a_solve_holds_as_many_matrices_as_it_says(name: str) -> None:
    solver = CARD[name]
    assert isinstance(solver, IterativeSolver)
    system = problems.system(700)
    rhs = problems.normal(700, 7)
    with LiveMatrices(rhs) as live:
        replace(solver, max_epochs=3.0).solve(system, rhs)
    assert 1 < live.most + 1 <= solver.matrices_held  # with B
