"""Dense linear algebra that several modules share."""

import torch
from torch import Tensor

# Times eps · trace: below 4, blocks of clustered points in float32 were found to diverge; 10 slows
# the largest blocks
SHIFT = 5.0


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


def times_inverse_transpose(rows: Tensor, lower: Tensor) -> Tensor:
    """Return rows L⁻ᵀ, (n, r), for L lower triangular: up to half the time of solving for the
    transposed rows, of which copies are made.
    """
    return torch.linalg.solve_triangular(lower.T, rows, upper=True, left=False).contiguous()
