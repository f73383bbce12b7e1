"""The stable Cholesky factor: exact where it can be, shifted by the documented size where not,
refused with an error, never a hang.
"""

import math
import signal
from collections.abc import Iterator
from types import FrameType

import pytest
import torch
from torch import Tensor

from surrogates.operators.linalg import (
    jittered_cholesky,
    left_singular,
    stable_cholesky,
    times_inverse_transpose,
)
from tests import problems

N = 30
SECONDS = 60
DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64], ids=["float32", "float64"]
)


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    """Make a hang a failure."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"still factorising after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def smallest_shift(matrix: Tensor) -> float:
    return 5.0 * torch.finfo(matrix.dtype).eps * matrix.diagonal().sum().item()


def shift_of(matrix: Tensor) -> float:
    """Return what the factor's diagonal has more than the matrix', in float64."""
    factor = stable_cholesky(matrix).double()
    return ((factor @ factor.T).diagonal() - matrix.double().diagonal()).mean().item()


@DTYPES
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_positive_definite_matrix_is_factorised_to_within_the_smallest_shift(
    dtype: torch.dtype, scale: float
) -> None:
    root = problems.normal(N, 2 * N)
    matrix = (scale * root @ root.T).to(dtype)
    factor = stable_cholesky(matrix)
    assert torch.equal(factor, factor.tril())
    assert (factor.diagonal() > 0).all()
    gap = (factor.double() @ factor.double().T - matrix.double()).abs().max().item()
    assert gap <= 2 * smallest_shift(matrix)


@DTYPES
@pytest.mark.parametrize("rank", [1, 5])
def test_a_singular_matrix_is_shifted_by_the_documented_size(dtype: torch.dtype, rank: int) -> None:
    columns = problems.uniform(N, rank).round(decimals=1)
    matrix = (columns @ columns.T).to(dtype)
    smallest = smallest_shift(matrix)
    # Rounding of the factor's own product is of the size eps · trace, a fifth of the shift.
    assert 0.5 * smallest <= shift_of(matrix) <= 1.5 * smallest


def test_a_matrix_indefinite_by_rounding_is_shifted_by_powers_of_ten() -> None:
    basis = torch.linalg.qr(problems.normal(N, N)).Q
    for negative in (1e-12, 1e-9, 1e-6):
        eigenvalues = torch.linspace(0.5, 1.5, N, dtype=torch.float64).index_fill(
            0, torch.tensor([0]), -negative
        )
        matrix = basis * eigenvalues @ basis.T
        shift = shift_of(matrix)
        smallest = smallest_shift(matrix)
        assert negative <= shift <= 10.1 * negative + 1.1 * smallest
        power = math.log10(shift / smallest)
        assert power == pytest.approx(round(power), abs=0.05)


@DTYPES
def test_a_zero_matrix_has_a_factor_that_is_all_but_zero(dtype: torch.dtype) -> None:
    factor = stable_cholesky(torch.zeros(4, 4, dtype=dtype))
    assert factor.isfinite().all()
    assert factor.diagonal().min() > 0
    assert factor.abs().max() <= 2 * torch.finfo(dtype).tiny ** 0.5


def test_a_matrix_without_rows_has_a_factor_without_rows() -> None:
    assert stable_cholesky(torch.zeros(0, 0)).shape == (0, 0)


def with_entry(value: float, i: int, j: int) -> Tensor:
    matrix = torch.eye(5, dtype=torch.float64)
    matrix[i, j] = matrix[j, i] = value
    return matrix


def test_what_is_not_finite_or_not_semi_definite_is_refused() -> None:
    numbers = (math.nan, math.inf, -math.inf)
    for matrix in (
        *(with_entry(number, 1, column) for number in numbers for column in (1, 3)),
        *(torch.full((5, 5), number) for number in numbers[:2]),
        3e38 * torch.eye(3),  # whose trace overflows
        *(-scale * torch.eye(5) for scale in (1e-3, 1.0, 1e6)),
        *(scale * with_entry(-20.0, 1, 1) for scale in (1e-3, 1.0)),
    ):
        with pytest.raises(
            ValueError,
            match="`matrix` must be finite and positive semi-definite, got one of trace .*Check",
        ):
            stable_cholesky(matrix)


def test_the_matrix_is_left_as_it_is() -> None:
    matrix = torch.ones(N, N)
    stable_cholesky(matrix)
    assert torch.equal(matrix, torch.ones(N, N))


@pytest.mark.parametrize("transposed", [False, True])
def test_rows_times_an_inverse_transpose(transposed: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    L = torch.randn(5, 5, generator=generator, dtype=torch.float64).tril() + 5 * torch.eye(5)
    rows = (
        torch.randn(5, 7, generator=generator, dtype=torch.float64).T
        if transposed
        else torch.randn(7, 5, dtype=torch.float64)
    )
    product = times_inverse_transpose(rows, L)
    torch.testing.assert_close(product @ L.T, rows)
    assert product.is_contiguous()


@DTYPES
def test_left_singular_vectors_are_those_of_a_decomposition(dtype: torch.dtype) -> None:
    spread = torch.logspace(0, -5, 8, dtype=torch.float64)
    A = (torch.linalg.qr(problems.normal(200, 8)).Q * spread @ problems.normal(8, 8)).to(dtype)
    U, singular = left_singular(A)
    exact = torch.linalg.svd(A.double(), full_matrices=False)
    assert U.dtype == singular.dtype == dtype
    eps = torch.finfo(torch.float32).eps if dtype == torch.float32 else 1e-8
    torch.testing.assert_close(
        singular.double(), exact.S, rtol=0, atol=10 * eps * exact.S[0].item()
    )
    gram = (U.T @ U).double()
    torch.testing.assert_close(gram, torch.eye(8).double(), rtol=0, atol=1e-3)
    outer = (U * singular) @ (U * singular).T
    torch.testing.assert_close(outer.double(), A.double() @ A.double().T, rtol=0, atol=1e-5)


def test_left_singular_vectors_of_a_matrix_of_lower_rank_are_numbers() -> None:
    A = problems.normal(50, 3) @ problems.normal(3, 6)
    for matrix in (A, torch.zeros_like(A)):
        U, singular = left_singular(matrix)
        assert U.isfinite().all() and (singular >= 0.0).all()
        outer = (U * singular) @ (U * singular).T
        torch.testing.assert_close(outer, matrix @ matrix.T, rtol=0, atol=1e-6)


@DTYPES
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_differences_of_covariances_are_factorised_at_any_scale(
    dtype: torch.dtype, scale: float
) -> None:
    X = problems.uniform(N, 2)
    Q = torch.cat([X[:5], X[:5], problems.uniform(5, 2, seed=1).repeat(2, 1)])
    kernel = problems.scaled(problems.matern(2.5), scale).double()
    with torch.no_grad():
        K, k, prior = (kernel(A, B).to_dense() for A, B in ((X, X), (Q, X), (Q, Q)))
    explained = torch.linalg.solve(K + 1e-8 * scale * torch.eye(N, dtype=K.dtype), k.T)
    C = prior.to(dtype) - k.to(dtype) @ explained.to(dtype)
    C = torch.stack([0.5 * (C + C.T), scale * torch.eye(len(Q), dtype=dtype)])
    factor, jitter = jittered_cholesky(C.clone())
    # What the products above round, m times at worst
    rounding = (explained.abs().amax() * k.abs().amax() * N * torch.finfo(dtype).eps).item()
    assert 0.0 < jitter[0] <= 10.0 * len(Q) * rounding
    assert jitter[1] == 0.0
    shifted = C + torch.diag_embed(jitter.unsqueeze(1).expand(-1, len(Q)))
    tolerance = len(Q) * torch.finfo(dtype).eps * shifted.abs().max().item()
    torch.testing.assert_close(factor @ factor.mT, shifted, rtol=0, atol=tolerance)


def test_jitter_is_enough_for_any_finite_matrix_and_none_is_for_another() -> None:
    A = problems.normal(40, N, N)
    for matrix in (A + A.mT, torch.zeros(N, N), -torch.eye(N)):
        factor, jitter = jittered_cholesky(matrix)
        assert factor.isfinite().all()
        assert (jitter <= 10.0 * N * matrix.abs().amax((-2, -1)).clamp_min(1e-30)).all()
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="`matrix` must be finite, got an entry of"):
            jittered_cholesky(torch.full((N, N), bad))


def test_jitter_has_no_part_in_the_gradient() -> None:
    a = problems.normal(6).requires_grad_()
    factor, jitter = jittered_cholesky(torch.outer(a, a))
    assert jitter > 0.0
    (gradient,) = torch.autograd.grad(factor.square().sum(), a)  # of the trace
    torch.testing.assert_close(gradient, 2.0 * a.detach(), rtol=1e-4, atol=1e-4)
