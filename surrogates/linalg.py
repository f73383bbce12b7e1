"""Dense linear algebra that several modules share."""

import torch
from torch import Tensor

SHIFT = 5.0  # times eps · trace: below 4, blocks of clustered points in float32 were found to diverge; 10 slows the largest blocks


def stable_cholesky(matrix: Tensor) -> Tensor:
    """Return the Cholesky factor of a positive semi-definite matrix, shifted by as little as rounding makes necessary.

    Raises:
        ValueError: if the matrix is not finite, or not positive semi-definite to within its own trace.
    """
    trace = matrix.diagonal().sum().item()
    shift = max(SHIFT * torch.finfo(matrix.dtype).eps * trace, torch.finfo(matrix.dtype).tiny)
    eye = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    while True:
        factor, info = torch.linalg.cholesky_ex(matrix + shift * eye)
        if info == 0:
            return factor
        shift = 10.0 * shift
        if not shift <= max(1.0, trace):
            raise ValueError(f"`matrix` must be finite and positive semi-definite, got one of trace {trace:g}. Check the kernel.")
