"""Matrix products: in the precision of their factors, whatever the shapes and layouts."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from surrogates import Dense, Tiled
from surrogates.operators import linalg
from tests import problems

EPS = torch.finfo(torch.float32).eps
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "dense": lambda A: A,
    "transposed": lambda A: A.T.contiguous().T,
    "rows-of-more": lambda A: torch.cat([A, A])[len(A) :],
    "columns-of-more": lambda A: torch.cat([A, A], 1)[:, A.shape[1] :],
    "every-other": lambda A: A.repeat_interleave(2, 1)[:, ::2],
}


def require_single_precision(product: Tensor, A: Tensor, B: Tensor) -> None:
    exact = A.double() @ B.double()
    bound = A.double().abs() @ B.double().abs()
    assert product.dtype == torch.float32
    assert ((product - exact).abs() <= (A.shape[1] + 1) * EPS * bound).all()


@settings(max_examples=60)
@given(
    m=st.integers(1, 70),
    n=st.integers(1, 70),
    s=st.integers(2, 40),
    left=st.sampled_from([*LAYOUTS]),
    right=st.sampled_from([*LAYOUTS]),
)
def test_products_have_single_precision_in_any_shape_and_layout(
    m: int, n: int, s: int, left: str, right: str
) -> None:
    A = LAYOUTS[left](problems.normal(m, n, dtype=torch.float32))
    B = LAYOUTS[right](problems.normal(n, s, seed=1, dtype=torch.float32))
    product = linalg.matmul(A, B)
    require_single_precision(product, A, B)
    assert product.is_contiguous()


@pytest.mark.parametrize("kind", [Dense, Tiled])
@pytest.mark.parametrize("s", [1, 2, 70])
def test_kernel_products_have_single_precision(kind: type[Dense | Tiled], s: int) -> None:
    X = problems.uniform(1100, 3, dtype=torch.float32)
    Z = problems.uniform(1000, 3, seed=1, dtype=torch.float32)
    K = problems.operator(kind, problems.rbf(), X, Z)
    W = problems.normal(len(Z), s, dtype=torch.float32)
    require_single_precision(K @ W, K.to_dense(), W)


def test_products_of_few_columns_have_gradients() -> None:
    A = problems.normal(5, 4).requires_grad_()
    B = problems.normal(4, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(linalg.matmul, (A, B))
