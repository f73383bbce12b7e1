"""The kernel of tasks: a covariance of every two of them, looked up by their numbers."""

from typing import Any

import torch
from botorch.models.kernels.positive_index import PositiveIndexKernel
from gpytorch.priors import Prior
from torch import Tensor


class TaskKernel(PositiveIndexKernel):
    """``PositiveIndexKernel`` of one column, evaluated by indexing its matrix.

    It has the same values and gradients, without GPyTorch's products with sparse matrices, which
    take many times as long. Both take 0.7 for task 0; beyond the last task this one raises.
    """

    SETTINGS: tuple[str, ...] = ("num_tasks", "rank", "normalize_covar_matrix")
    SETTINGS += ("target_task_index", "unit_scale_for_target")

    @property
    def rank(self) -> int:
        return self.raw_covar_factor.shape[-1]

    def register_prior(self, name: str, prior: Prior, *closures: Any) -> None:
        """Register a prior; that of the correlations by functions that can be pickled."""
        if name == "IndexKernelPrior":
            closures = (_correlations, PositiveIndexKernel._set_lower_triangle_corr)
        super().register_prior(name, prior, *closures)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Return K_tt' of the tasks t, t' in x1 (..., n, 1) and x2 (..., m, 1)."""
        first = task_numbers(x1[..., 0], self.num_tasks)
        second = task_numbers(x2[..., 0], self.num_tasks)
        if diag:
            return self.covar_matrix[first, second]
        return self.covar_matrix[first.unsqueeze(-1), second.unsqueeze(-2)]


def _correlations(kernel: PositiveIndexKernel) -> Tensor:
    return kernel._lower_triangle_corr


def task_numbers(column: Tensor, num_tasks: int) -> Tensor:
    """Return the tasks in a column of inputs as integers, rounded down.

    Raises:
        ValueError: if a task is below 0 or above T − 1.
    """
    numbers = column.detach().floor()
    fits = (numbers >= 0) & (numbers < num_tasks)
    if not fits.all():
        raise ValueError(
            f"The column of the task must hold numbers from 0 to {num_tasks - 1}, got"
            f" {column[~fits][0].item():g}. Number the tasks from 0 on."
        )
    return numbers.to(torch.long)
