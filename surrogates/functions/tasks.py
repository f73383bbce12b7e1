"""The kernel of tasks: a covariance of each two of them, looked up by their numbers."""

from typing import Any

from botorch.models.kernels.positive_index import PositiveIndexKernel
from torch import Tensor


class TaskKernel(PositiveIndexKernel):
    """``PositiveIndexKernel`` of one column, evaluated by indexing its matrix.

    The same values and gradients; GPyTorch's own products with sparse matrices take many times as
    long.
    """

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Return K_tt' of the tasks t, t' in x1 (..., n, 1) and x2 (..., m, 1)."""
        first = x1[..., 0].long()
        second = x2[..., 0].long()
        if diag:
            return self.covar_matrix[first, second]
        return self.covar_matrix[first.unsqueeze(-1), second.unsqueeze(-2)]
