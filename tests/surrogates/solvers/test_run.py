"""Columns of a state: taken from it, and dropped."""

from dataclasses import dataclass

import torch
from torch import Tensor

from surrogates.solvers.run import drop_others, selected
from surrogates.solvers.state import State
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


def test_columns_are_taken_of_all_tensors_and_leave_the_state_as_it_is() -> None:
    whole = state()
    part = selected(whole, torch.tensor([2, 0]))
    assert part.inner is not None and whole.inner is not None
    assert part.count == 3
    for taken, of in (
        (part.W, whole.W),
        (part.checkpoint, whole.checkpoint),
        (part.inner.V, whole.inner.V),
        (part.inner.mu, whole.inner.mu),
    ):
        assert torch.equal(taken, of[..., [2, 0]])
        taken.zero_()
        assert of.shape[-1] == 4 and bool(of.any())
    assert selected(Outer(0, whole.W, whole.W, None), torch.tensor([1])).inner is None


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
