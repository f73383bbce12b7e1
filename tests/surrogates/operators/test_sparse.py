"""Products of sparse rows are those of the dense ones."""

import pytest
import torch
from torch import Tensor

from surrogates import TanimotoKernel
from surrogates.functions.features import PriorPaths
from surrogates.operators import sparse, tiles
from surrogates.operators.differentiable import KernelBasis
from surrogates.operators.sparse import matmul_rows, sparse_rows
from tests import problems

BITS = 300


def fingerprints(kind: str, m: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return m rows of few entries, the first and the last of them zero."""
    generator = torch.Generator().manual_seed(m)
    X = (torch.rand(m, BITS, generator=generator) < 0.03).to(dtype)
    if kind == "counts":
        X *= torch.randint(1, 9, (m, BITS), generator=generator)
    X[[0, -1]] = 0.0
    return X


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["binary", "counts"])
def test_products_of_all_rows_and_of_some_agree_with_dense_ones(
    kind: str, dtype: torch.dtype
) -> None:
    X = fingerprints(kind, 40, dtype)
    W = problems.uniform(BITS, 1100).to(dtype)
    rows = sparse_rows(X)
    assert rows is not None and (rows.values is None) == (kind == "binary")
    torch.testing.assert_close(rows.matmul(W), X @ W)
    for part in (slice(0, 7), slice(7, 40), slice(39, 40), slice(5, 5)):
        torch.testing.assert_close(rows.part(part).matmul(W), X[part] @ W)
    torch.testing.assert_close(matmul_rows(X, W), X @ W)


def test_rows_that_are_dense_or_short_or_carry_gradients_stay_dense() -> None:
    X = fingerprints("binary", 10)
    assert sparse_rows(X) is not None
    assert sparse_rows(torch.ones(10, BITS)) is None
    assert sparse_rows(X[:, : sparse.FEWEST_COLUMNS - 1]) is None
    assert sparse_rows(X.clone().requires_grad_()) is None


@pytest.mark.parametrize("kind", ["binary", "counts"])
def test_values_of_kernel_functions_and_of_prior_paths_are_the_dense_ones(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = fingerprints(kind, 50)
    Z = fingerprints(kind, 33)
    kernel = problems.scaled(TanimotoKernel(), 2.0).double()
    basis = KernelBasis(kernel, Z)
    W = problems.uniform(33, 3)
    prior = PriorPaths.draw(
        kernel, BITS, 4, num_features=64, generator=torch.Generator().manual_seed(0), like=X
    )
    monkeypatch.setattr(tiles, "TILE_SIDE", {"cpu": 4})
    values = basis.matmul(X, W), prior(X)
    torch.testing.assert_close(values[0], kernel(X, Z).to_dense() @ W)
    dense = prior(X.clone().requires_grad_()).detach()  # which stays dense
    torch.testing.assert_close(values[1], dense)
