"""Products by oneDNN: as precise as PyTorch's own whatever the shapes and layouts,
and taken only where they are faster.
"""

from collections.abc import Callable
from typing import NoReturn

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from surrogates import CG, Dense, KernelSystem, Tiled
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


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linalg, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(linalg, "LEAST_TERMS", 0)


def refuse(*_: object) -> NoReturn:
    raise AssertionError("this product must be PyTorch's own")


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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linalg, "onednn_is_faster", lambda: True)
        patch.setattr(linalg, "LEAST_TERMS", 0)
        product = linalg.matmul(A, B)
        require_single_precision(product, A, B)
        assert torch.equal(linalg.matmul(A, B, add_to=torch.ones(m, s)), product + 1.0)


@pytest.mark.parametrize(("n", "s"), [(4, 230), (10, 500), (230, 3), (512, 9), (230, 64)])
def test_products_are_rounded_alike_in_any_number_of_rows_and_further_columns(
    n: int, s: int
) -> None:
    if not linalg.onednn_is_faster():
        pytest.skip("other products are taken on this processor")
    A = problems.normal(1024, n, dtype=torch.float32)
    B = problems.normal(n, s, seed=1, dtype=torch.float32)
    product = linalg.matmul(A, B)
    for m in (16, 100, 448):
        assert torch.equal(product[:m], linalg.matmul(A[:m], B))
    for count in (16, 33, 48):
        assert torch.equal(product[:, :count], linalg.matmul(A, B[:, :count]))


@pytest.mark.parametrize("s", [2, 5, 9, 15])
def test_few_columns_are_rounded_alike_in_any_number_of_rows_by_mkl(s: int) -> None:
    if linalg.onednn_is_faster() or not linalg.mkl_wants_vectors():
        pytest.skip("other products are taken on this processor")
    A = problems.normal(500, 512, dtype=torch.float32)
    B = problems.normal(512, s, seed=1, dtype=torch.float32)
    product = linalg.matmul(A, B)
    for m in (1, 5, 11, 12, 16, 100):
        assert torch.equal(product[:m], linalg.matmul(A[:m], B))


@pytest.mark.parametrize("kind", [Dense, Tiled])
@pytest.mark.parametrize("s", [1, 2, 70])
def test_kernel_products_have_single_precision(kind: type[Dense | Tiled], s: int) -> None:
    X = problems.uniform(1100, 3, dtype=torch.float32)
    Z = problems.uniform(1000, 3, seed=1, dtype=torch.float32)
    K = problems.operator(kind, problems.rbf(), X, Z)
    assert len(X) * len(Z) * s >= linalg.LEAST_WORK
    W = problems.normal(len(Z), s, dtype=torch.float32)
    require_single_precision(K @ W, K.to_dense(), W)


@pytest.mark.usefixtures("onednn")
def test_double_precision_single_columns_and_gradients_are_left_to_pytorch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    A = problems.normal(5, 4, dtype=torch.float32)
    B = problems.normal(4, 3, dtype=torch.float32)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", refuse)
    with pytest.raises(AssertionError, match="PyTorch's own"):
        linalg.matmul(A, B)
    torch.testing.assert_close(linalg.matmul(A.double(), B.double()), A.double() @ B.double())
    torch.testing.assert_close(linalg.matmul(A, B[:, :1]), A @ B[:, :1])
    assert linalg.matmul(A, B.clone().requires_grad_()).requires_grad
    monkeypatch.setattr(linalg, "LEAST_TERMS", A.shape[1] * 3 + 1)
    torch.testing.assert_close(linalg.matmul(A, B), A @ B)


@pytest.mark.usefixtures("onednn")
def test_without_gradients_parameters_are_multiplied_like_others() -> None:
    A = problems.normal(5, 4, dtype=torch.float32).requires_grad_()
    B = problems.normal(4, 3, dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(linalg.matmul(A, B), A @ B)


@pytest.mark.parametrize(
    ("cpu_name", "avx512", "expected"),
    [
        ("AMD EPYC", True, True),
        ("AMD EPYC", False, False),
        ("Intel(R) Xeon(R)", True, False),
        (None, True, False),
    ],
)
def test_onednn_is_taken_where_mkl_holds_back(
    monkeypatch: pytest.MonkeyPatch, cpu_name: str | None, avx512: bool, expected: bool
) -> None:
    found = {"avx512_f": avx512} | ({} if cpu_name is None else {"cpu_name": cpu_name})
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.ops.mkldnn, "_linear_pointwise", lambda A, weight, *others: A @ weight.T
    )
    assert linalg.onednn_is_faster.__wrapped__() == expected


def test_onednn_is_not_taken_where_it_is_missing_or_less_precise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(A: Tensor, weight: Tensor, *others: object) -> Tensor:
        raise AttributeError("no attribute '_linear_pointwise'")

    monkeypatch.setattr(
        torch.cpu, "get_capabilities", lambda: {"cpu_name": "AMD EPYC", "avx512_f": True}
    )
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)

    def rounded(A: Tensor, weight: Tensor, *others: object) -> Tensor:
        return (A.bfloat16() @ weight.T.bfloat16()).float()

    for product in (missing, rounded):
        monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", product)
        assert not linalg.onednn_is_faster.__wrapped__()


@pytest.mark.parametrize("kind", [Dense, Tiled])
def test_the_residual_reported_is_evaluated_in_the_systems_precision(
    kind: type[Dense | Tiled], monkeypatch: pytest.MonkeyPatch
) -> None:
    X = problems.uniform(600, 3, dtype=torch.float32)
    B = problems.normal(600, 8, dtype=torch.float32)
    K = problems.operator(kind, problems.matern(1.5), X)
    solution = CG(tolerance=1e-4).solve(KernelSystem(K, 0.1), B)
    H = K.to_dense().double() + 0.1 * torch.eye(600, dtype=torch.float64)
    exact = torch.linalg.vector_norm(
        B - H @ solution.value.double(), dim=0
    ) / torch.linalg.vector_norm(B.double(), dim=0)
    assert exact.max() < 2e-4
    torch.testing.assert_close(solution.residual.double(), exact, rtol=0, atol=2e-5)


@settings(max_examples=40)
@given(
    m=st.integers(1, 70),
    n=st.integers(1, 100),
    s=st.integers(2, 40),
    right=st.sampled_from([*LAYOUTS]),
)
def test_products_of_columns_that_are_filled_up_have_single_precision(
    m: int, n: int, s: int, right: str
) -> None:
    A = problems.normal(m, n, dtype=torch.float32)
    B = LAYOUTS[right](problems.normal(n, s, seed=1, dtype=torch.float32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linalg, "onednn_is_faster", lambda: False)
        patch.setattr(linalg, "mkl_wants_vectors", lambda: True)
        patch.setattr(linalg, "FEWEST_ROWS_OF_A", 1)
        patch.setattr(linalg, "LEAST_WORK", 0)
        product = linalg.matmul(A, B)
        assert product.is_contiguous()
        require_single_precision(product, A, B)
        added = torch.ones(m, s)
        assert linalg.matmul(A, B, add_to=added) is added
        torch.testing.assert_close(added, product + 1.0)


def test_products_by_tiles_of_columns_that_are_filled_up_are_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(linalg, "onednn_is_faster", lambda: False)
    monkeypatch.setattr(linalg, "mkl_wants_vectors", lambda: True)
    X = problems.uniform(700, problems.DIM, dtype=torch.float32)
    K = problems.operator(Tiled, problems.matern(1.5), X)
    for s in (17, 24):
        B = problems.normal(700, s, dtype=torch.float32)
        product = K @ B
        assert product.is_contiguous()
        require_single_precision(product, K.to_dense(), B)


@pytest.mark.parametrize(
    ("m", "n", "s", "columns"),
    [
        (256, 64, 17, 24),
        (256, 64, 201, 208),
        (256, 64, 208, 208),
        (256, 64, 7, 7),
        (256, 63, 17, 17),
        (255, 64, 17, 17),
    ],
)
def test_columns_are_filled_up_to_whole_vectors_where_that_pays(
    monkeypatch: pytest.MonkeyPatch, m: int, n: int, s: int, columns: int
) -> None:
    B = problems.normal(n, s, dtype=torch.float32)
    with monkeypatch.context() as patch:
        patch.setattr(linalg, "onednn_is_faster", lambda: False)
        patch.setattr(linalg, "mkl_wants_vectors", lambda: True)
        filled = linalg.with_whole_vectors(B, m)
        assert filled.shape == (n, columns)
        assert torch.equal(filled[:, :s], B) and not filled[:, s:].any()
        assert linalg.with_whole_vectors(B.double(), m).shape == B.shape
    for name, expected in [("AMD EPYC", True), ("Intel(R) Xeon(R)", False)]:
        found = {"cpu_name": name, "avx512_f": False}
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=found: found)
        monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
        assert linalg.mkl_wants_vectors.__wrapped__() is expected
