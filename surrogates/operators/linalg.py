"""Dense linear algebra: matrix products at the processor's own rate, and Cholesky factors.

PyTorch multiplies float32 matrices by MKL, which uses AVX-512 on Intel's processors alone and stops
at AVX2 on others. oneDNN, which comes with PyTorch, uses what it finds: on an AMD processor with
AVX-512 it is twice as fast, and four times for fewer than ten columns, in the same precision. Large
factorisations, and solves by their factors, are made of products there. With AVX2 alone MKL is as
fast, but for columns that do not fill its vectors: it multiplies 208 columns in two thirds of the
time of 201. Columns of zeros fill them up.
"""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from surrogates import memory

FEW_COLUMNS = 16
# Inner dimension times columns, of which so many count, from which on oneDNN is taken. How many
# rows a product has, and how many more columns, which sharing paths changes, must not decide how it
# is rounded
LEAST_TERMS = 64
LEAST_WORK = 2**20  # m · n · s, below which filling up columns takes longer than it saves
WHOLE_VECTORS = 8  # columns
FEWEST_ALIKE = 16  # rows of A: fewer are rounded in another way, transposed
# Below which copying takes longer than whole vectors save: of A the copy of B, of B the product's
FEWEST_ROWS_OF_A = 256
FEWEST_ROWS = 64
TOLERANCE = 1e-5  # of float32 products; one in bfloat16 is off by 2e-3
STEP = 512  # rows that a factorisation by products takes at a time
LEAST_FACTORISED = 4 * STEP  # with fewer rows it saves little
# Times eps · trace: below 4, blocks of clustered points in float32 were found to diverge; 10 slows
# the largest blocks
SHIFT = 5.0


def matmul(A: Tensor, B: Tensor, add_to: Tensor | None = None) -> Tensor:
    """Return A @ B, (m, s), for A (m, n) and B (n, s), in the precision of both; added to
    ``add_to``, in place, if that is given.
    """
    if A.is_cuda:
        with memory.full_precision():
            return A @ B if add_to is None else add_to.addmm_(A, B)
    is_float32 = (
        A.dtype == B.dtype == torch.float32
        and B.shape[1] > 1
        and A.device.type == "cpu"
        and not (torch.is_grad_enabled() and (A.requires_grad or B.requires_grad))
    )
    terms = A.shape[-1] * min(B.shape[1], FEW_COLUMNS)
    if is_float32 and terms >= LEAST_TERMS and onednn_is_faster():
        # A part of a wider matrix would take a thousand times as long
        weight = B.T if B.T.is_contiguous() else B.contiguous().T
        product = torch.ops.mkldnn._linear_pointwise(A, weight, None, "none", [], "")
        return product if add_to is None else add_to.add_(product)
    lacks_columns = B.shape[1] < FEW_COLUMNS < B.shape[0]
    if is_float32 and lacks_columns and mkl_wants_vectors() and not onednn_is_faster():
        lacking = FEWEST_ALIKE - len(A)
        rows = A if lacking <= 0 else torch.nn.functional.pad(A, (0, 0, 0, lacking))
        product = (B.T @ rows.T)[:, : len(A)].T
        return product.contiguous() if add_to is None else add_to.add_(product)
    is_large_float32 = is_float32 and A.numel() * B.shape[1] >= LEAST_WORK
    if is_large_float32 and (filled := with_whole_vectors(B, len(A))) is not B:
        product = (A @ filled)[:, : B.shape[1]]
        return product.contiguous() if add_to is None else add_to.add_(product)
    return A @ B if add_to is None else add_to.addmm_(A, B)


def with_whole_vectors(B: Tensor, num_rows: int) -> Tensor:
    """Return float32 B (n, s) with columns of zeros that fill up the processor's vectors; B itself
    where that is no gain in the product A @ B of ``num_rows`` rows.
    """
    n, s = B.shape
    pays = s > FEW_COLUMNS and n >= FEWEST_ROWS and num_rows >= FEWEST_ROWS_OF_A
    lacking = -s % WHOLE_VECTORS
    if not (pays and lacking) or B.dtype != torch.float32 or B.device.type != "cpu":
        return B
    if not mkl_wants_vectors() or onednn_is_faster():
        return B
    return torch.nn.functional.pad(B, (0, lacking))


@cache
def mkl_wants_vectors() -> bool:
    """Whether MKL's float32 product is slow for columns that do not fill its vectors."""
    return _mkl_on_another_processor()


@cache
def onednn_is_faster() -> bool:
    """Whether oneDNN's float32 product uses wider vectors than MKL's here, and gives the same."""
    if not (_mkl_on_another_processor() and _capabilities().get("avx512_f", False)):
        return False
    generator = torch.Generator().manual_seed(0)
    A, B = (
        torch.rand(64, 64, generator=generator, dtype=torch.float64, device="cpu") for _ in range(2)
    )
    try:
        product = torch.ops.mkldnn._linear_pointwise(
            A.float(), B.float().T.contiguous(), None, "none", [], ""
        )
    except (AttributeError, RuntimeError, TypeError):  # the operator is not of the public interface
        return False
    gap = torch.linalg.matrix_norm(product.double() - A @ B)
    return bool(gap <= TOLERANCE * torch.linalg.matrix_norm(A @ B))


def _mkl_on_another_processor() -> bool:
    """Whether products are MKL's, on a processor that is not of its maker."""
    not_intel = "Intel" not in str(_capabilities().get("cpu_name", "Intel"))
    return not_intel and torch.backends.mkl.is_available()


def _capabilities() -> dict[str, object]:
    """Return what the processor is and can do; nothing where PyTorch is too old to tell."""
    found: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return found


def stable_cholesky(
    matrix: Tensor, precision: torch.dtype | None = None, *, overwrite: bool = False
) -> Tensor:
    """Return the Cholesky factor of a positive semi-definite matrix, shifted by as little as
    rounding makes necessary.

    Args:
        matrix: (m, m).
        precision: in which what is solved for will be used, which the shift keeps from becoming too
            large for it; ``None`` for the matrix's own.
        overwrite: shift ``matrix`` itself, not a copy.

    Raises:
        ValueError: if the matrix is not finite, or not positive semi-definite to within its own
            trace.
    """
    return shifted_cholesky(
        matrix, SHIFT * torch.finfo(precision or matrix.dtype).eps, overwrite=overwrite
    )[0]


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
        by_products = len(shifted) >= LEAST_FACTORISED and _by_products(shifted)
        factor, info = (_factorised if by_products else torch.linalg.cholesky_ex)(shifted)
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


def cholesky_solve(B: Tensor, factor: Tensor) -> Tensor:
    """Return (L Lᵀ)⁻¹ B, (n, s), for the Cholesky factor L (n, n)."""
    n = len(factor)
    is_large = n >= LEAST_FACTORISED and B.shape[1] >= FEW_COLUMNS
    if not (is_large and _by_products(factor)):
        return torch.cholesky_solve(B, factor)
    X = torch.empty_like(B)
    steps = [slice(start, min(start + STEP, n)) for start in range(0, n, STEP)]
    for step in steps:
        known = slice(0, step.start)
        rest = B[step] - matmul(factor[step, known].contiguous(), X[known])
        X[step] = torch.linalg.solve_triangular(factor[step, step], rest, upper=False)
    for step in reversed(steps):
        known = slice(step.stop, n)
        rest = X[step] - matmul(factor[known, step].T.contiguous(), X[known])
        X[step] = torch.linalg.solve_triangular(factor[step, step].T, rest, upper=True)
    return X


def _factorised(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the Cholesky factor of a matrix (n, n), and whether it has none, as
    :func:`torch.linalg.cholesky_ex` does, by matrix products.
    """
    factor = torch.zeros_like(matrix)
    info = torch.zeros((), dtype=torch.int32, device=matrix.device)
    for start in range(0, len(matrix), STEP):
        step = slice(start, start + STEP)
        known = slice(0, start)
        row = factor[step, known].contiguous()
        columns = matrix[start:, step] - matmul(factor[start:, known].contiguous(), row.T)
        corner, info = torch.linalg.cholesky_ex(columns[:STEP])
        if bool(info != 0):
            break
        factor[step, step] = corner
        factor[start + STEP :, step] = times_inverse_transpose(columns[STEP:], corner)
    return factor, info


def _by_products(matrix: Tensor) -> bool:
    """Return whether matrix products are so much faster than LAPACK's factorisations that large
    ones are best made of them.
    """
    is_float32 = matrix.dtype == torch.float32 and matrix.device.type == "cpu"
    has_gradient = torch.is_grad_enabled() and matrix.requires_grad
    return is_float32 and not has_gradient and onednn_is_faster()


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
    U = (rows @ V.flip(1)) / singular.maximum(smallest)
    return U.to(A.dtype), singular.to(A.dtype)


def precise_matmul(A: Tensor, B: Tensor) -> Tensor:
    """Return A @ B by PyTorch's own route, on CUDA in full precision whatever the user chose for
    other work; for any batch, and differentiable.
    """
    with memory.full_precision_on(A.device):
        return A @ B


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return the parts below one another; a single one without a copy."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
