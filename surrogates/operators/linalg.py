"""Dense linear algebra: matrix products in full precision, and Cholesky factors."""

import torch
from torch import Tensor

from surrogates import memory

DIRECT_SOLVE_UP_TO = 4096  # rows: unless asked otherwise, a larger matrix is not factorised
# Rows of a matrix that is factorised time and again before anything else is considered: in fits by
# the exact likelihood, and in searches for the best expected improvement, of about a second a point
CHEAP_FACTOR_UP_TO = 1000


def matmul(A: Tensor, B: Tensor) -> Tensor:
    """Return A @ B in the precision of both, whatever the user chose for other work on CUDA."""
    if A.device.type == "cpu":
        return A @ B
    with memory.full_precision_on(A.device):
        return A @ B


def stable_cholesky(
    matrix: Tensor, precision: torch.dtype | None = None, *, overwrite: bool = False
) -> Tensor:
    """Return the Cholesky factor of a positive semi-definite matrix, shifted by as little as
    rounding makes necessary: by 5 eps of its trace. Below 4, blocks of clustered points in float32
    were found to diverge; 10 slows the largest blocks.

    Args:
        matrix: (m, m).
        precision: in which what is solved for will be used, which the shift keeps from becoming too
            large for it; ``None`` for the matrix's own.
        overwrite: shift ``matrix`` itself, not a copy.

    Raises:
        ValueError: if the matrix is not finite, or not positive semi-definite within its trace.
    """
    share = 5.0 * torch.finfo(precision or matrix.dtype).eps
    return shifted_cholesky(matrix, share, overwrite=overwrite)[0]


def shifted_cholesky(
    matrix: Tensor, share: float, *, overwrite: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the Cholesky factor of ``matrix + shift I``, and the shift: ``share`` of the trace, or
    by tens more until it is enough.

    Raises:
        ValueError: as :func:`stable_cholesky`.
    """
    shifted = matrix if overwrite else matrix.clone()
    diagonal = matrix.diagonal().clone()
    trace = diagonal.sum()
    tiny = torch.finfo(matrix.dtype).tiny
    shift = (share * trace).clamp_min(tiny)
    while True:
        shifted.diagonal().copy_(diagonal + shift)
        factor, info = torch.linalg.cholesky_ex(shifted)
        # A number that is none may pass through the factorisation
        if bool((info == 0) & factor.sum().isfinite()):
            return factor, shift
        shift = 10.0 * shift
        if not bool(trace.isfinite() & (shift <= trace.clamp_min(tiny))):
            break
    raise ValueError(
        f"`matrix` must be finite and positive semi-definite, got one of trace {trace.item():g}."
        " Check the kernel."
    )


def jittered_cholesky(matrix: Tensor, *, overwrite: bool = False) -> tuple[Tensor, Tensor]:
    """Return the Cholesky factors of symmetric matrices (*b, m, m), and the jitter (*b,) that each
    needed: 0, or 10 eps times its largest entry, or by tens more.

    A covariance that is the difference of two may be made of their rounding alone. Jitter of m
    times the largest entry is enough even then, as that bounds the eigenvalues.

    Args:
        overwrite: add the jitter to ``matrix`` itself, not to a copy.

    Raises:
        ValueError: if a matrix that cannot be factorised is not finite.
    """
    factor, info = torch.linalg.cholesky_ex(matrix)
    jitter = matrix.new_zeros(info.shape)
    if not bool(info.any()):
        return factor, jitter
    largest = matrix.detach().abs().amax((-2, -1)).clamp_min(torch.finfo(matrix.dtype).tiny)
    shifted = matrix if overwrite else matrix.clone()
    share = 10.0 * torch.finfo(matrix.dtype).eps
    while bool((failed := info != 0).any()):
        wanted = torch.where(failed, share * largest, jitter)
        if not bool(wanted.isfinite().all()):
            raise ValueError(
                "`matrix` must be finite, got an entry of"
                f" {largest.max().item():g}. Check the kernel."
            )
        shifted.diagonal(dim1=-2, dim2=-1).add_((wanted - jitter).unsqueeze(-1))
        jitter = wanted
        factor, info = torch.linalg.cholesky_ex(shifted)
        share *= 10.0
    return factor, jitter


def times_inverse_transpose(rows: Tensor, lower: Tensor) -> Tensor:
    """Return rows L⁻ᵀ, (n, r), for L lower triangular: up to half the time of solving for the
    transposed rows, of which copies are made.
    """
    return torch.linalg.solve_triangular(lower.T, rows, upper=True, left=False).contiguous()


def left_singular(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return the left singular vectors U (n, r) and singular values (r,), descending, of a tall A
    (n, r); in float32 by the eigenvectors of AᵀA in float64: on a device, in a fraction of the time
    of a decomposition of A, and more exactly.

    Vectors of singular values below 1e-8 of the largest are not orthonormal then, which float32
    does not resolve; for float64 A itself is decomposed.
    """
    if A.dtype == torch.float64:
        U, singular, _ = torch.linalg.svd(A, full_matrices=False)
        return U, singular
    rows = A.double()
    squares, V = torch.linalg.eigh(rows.T @ rows)
    singular = squares.flip(0).clamp_min(0.0).sqrt()
    smallest = (torch.finfo(rows.dtype).eps * singular[:1]).clamp_min(torch.finfo(rows.dtype).tiny)
    U = (rows @ V.flip(1)).div_(singular.maximum(smallest))
    return U.to(A.dtype), singular.to(A.dtype)
