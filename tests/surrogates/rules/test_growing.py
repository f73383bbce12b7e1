"""The start of a solve whose system has grown: old weights, and new ones that fit their rows."""

import pytest
import torch
from torch import Tensor

from surrogates import KernelSystem
from surrogates.rules.solved import extended
from tests import problems

K = 40
M = 9
S = 3
B = problems.normal(K + M, S)


def system(dtype: torch.dtype = torch.float64) -> KernelSystem:
    X = problems.uniform(K + M, problems.DIM)
    noise = (0.01 + problems.uniform(len(X), seed=1)).to(dtype)
    return problems.system(noise=noise, dtype=dtype, X=X.to(dtype))


def solved(grown: KernelSystem) -> Tensor:
    """Return the exact solution of the first K rows alone."""
    return torch.linalg.solve(grown.to_dense()[:K, :K], B[:K].to(grown.dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_new_rows_are_solved_beside_the_old_weights(dtype: torch.dtype) -> None:
    grown = system(dtype)
    weights = solved(grown)
    start = extended(grown, B.to(dtype), weights)
    assert torch.equal(start[:K], weights)
    tolerance = 100 * torch.finfo(dtype).eps
    torch.testing.assert_close(
        (grown.to_dense() @ start)[K:], B[K:].to(dtype), rtol=0, atol=tolerance
    )


def test_without_new_points_the_weights_stay() -> None:
    weights = problems.normal(K + M, S)
    grown = system()
    assert torch.equal(extended(grown, B, weights), weights)
    assert grown.entries == 0
