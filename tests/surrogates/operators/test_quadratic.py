"""Quadratic forms of kernel matrices, and their gradients in the kernel's hyperparameters."""

import itertools
from typing import Any

import pytest
import torch
from gpytorch.kernels import RQKernel, ScaleKernel
from torch import Tensor

from surrogates.fitting.iterative import backward_quadratic_form
from surrogates.operators import tiles
from tests import problems

X = problems.uniform(70, problems.DIM)
U = problems.normal(70, 3, seed=1)
WEIGHTS = torch.tensor([0.5, -0.2, 0.3], dtype=torch.float64)


def gradients(kernel: torch.nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in kernel.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("name", problems.KERNELS)
def test_value_and_gradient_are_those_of_autograd_through_the_matrix(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tiles.TILE_SIDE, "cpu", 32)
    ours = problems.KERNELS[name]().double()
    dense = problems.KERNELS[name]().double()
    value = backward_quadratic_form(ours, X, U, WEIGHTS)
    expected = (U * WEIGHTS * (dense(X, X).to_dense() @ U)).sum()
    expected.backward()
    # GPyTorch's own distances of Matérn-1/2 lose half the digits to cancellation, differently in
    # every tile.
    tolerance = 1e-6 if "matern12" in name else 1e-11
    assert value == pytest.approx(expected.item(), rel=tolerance)
    torch.testing.assert_close(gradients(ours), gradients(dense), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["scale-matern32", "rq"])
def test_parameters_held_fixed_get_no_gradient(name: str) -> None:
    kernel = problems.KERNELS[name]().double().requires_grad_(False)
    backward_quadratic_form(kernel, X, U, WEIGHTS)
    assert not gradients(kernel)


@pytest.mark.parametrize(("name", "owner"), [("scale-matern32", ScaleKernel), ("rq", RQKernel)])
def test_when_memory_runs_out_tiles_shrink_and_give_the_same(
    name: str, owner: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = problems.uniform(150, problems.DIM)
    U = problems.normal(150, 3, seed=1)
    ours = problems.KERNELS[name]().double()
    reference = problems.KERNELS[name]().double()
    expected = backward_quadratic_form(reference, X, U, WEIGHTS)
    evaluate = owner.forward
    calls = itertools.count(1)

    def limited(*arguments: Any, **named: Any) -> Any:
        if next(calls) == 2:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return evaluate(*arguments, **named)

    monkeypatch.setitem(tiles.TILE_SIDE, "cpu", 128)
    monkeypatch.setattr(owner, "forward", limited)
    assert backward_quadratic_form(ours, X, U, WEIGHTS) == pytest.approx(expected, rel=1e-12)
    assert next(calls) == 2 + 6 + 1  # two tiles of 128 rows, then all of 64 of the lower triangle
    torch.testing.assert_close(gradients(ours), gradients(reference))
