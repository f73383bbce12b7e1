"""Data of several tasks in one model: the kernel of tasks, and that which ``PathwiseGP`` takes."""

from typing import Any

import torch
from botorch.models.kernels.positive_index import PositiveIndexKernel
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.models.utils.priors import BetaPrior
from gpytorch.kernels import Kernel, ProductKernel
from gpytorch.priors import Prior
from torch import Tensor

from surrogates import checks


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


def multi_task_kernel(
    dim: int,
    num_tasks: int,
    *,
    task_feature: int = -1,
    rank: int | None = None,
    covar_module: Kernel | None = None,
) -> ProductKernel:
    """Return the kernel k(x, x') K_tt' of functions of x that are related: those of T tasks.

    The data have the task, 0, 1, … T − 1, in a column of their own, as BoTorch's ``MultiTaskGP``
    takes them, and each task may be observed at points of its own. Paths, posteriors and Thompson
    sampling are of the task that their points have there: fix it where points are sought, such as
    by ``fixed_features``, as 0.7 counts as task 0.

    Args:
        dim: the number of input columns, that of the task among them.
        num_tasks: T.
        task_feature: the column of the task.
        rank: of K beyond its diagonal; T if ``None``.
        covar_module: k, of the other columns; RBF with dimension-scaled priors if ``None``.

    Raises:
        ValueError: if a number is out of range.
    References:
        Bonilla, Chai, Williams (2007), "Multi-task Gaussian Process Prediction". The priors are
        those of ``MultiTaskGP``. Differs from it: the mean is common to all tasks, and so is the
        noise, unless the model's likelihood is a ``HadamardGaussianLikelihood``.

    ```python
    kernel = multi_task_kernel(dim=3, num_tasks=2)
    model = fit(PathwiseGP(train_X, train_Y, covar_module=kernel))
    values = model.paths(100)(torch.tensor([[0.2, 0.7, 1.0]]))  # of the second task
    ```
    """
    dim = checks.integer("dim", dim, 2)
    num_tasks = checks.positive_int("num_tasks", num_tasks)
    if not -dim <= task_feature < dim:
        raise ValueError(
            f"`task_feature` must be a column of {dim}, between {-dim} and {dim - 1}, got"
            f" {task_feature}."
        )
    rank = num_tasks if rank is None else checks.positive_int("rank", rank)
    if rank > num_tasks:
        raise ValueError(f"`rank` must be at most the number of tasks, {num_tasks}, got {rank}.")
    task = task_feature % dim
    others = [column for column in range(dim) if column != task]
    if covar_module is None:
        covar_module = get_covar_module_with_dim_scaled_prior(
            ard_num_dims=dim - 1, active_dims=others
        )
    elif covar_module.active_dims is None:
        covar_module.active_dims = torch.tensor(others, device="cpu")
    tasks = TaskKernel(
        num_tasks=num_tasks, rank=rank, task_prior=BetaPrior(2.5, 1.5), active_dims=[task]
    )
    # In place of random numbers: correlations of a half to two thirds, by columns that differ, as a
    # fit moves equal columns alike
    square = 1.0 / (rank + 2)
    own = torch.eye(rank, device="cpu").repeat(-(-num_tasks // rank), 1)[:num_tasks]
    tasks.covar_factor = square**0.5 * (1.0 + own)
    tasks.var = torch.full((num_tasks,), 1.0 - square, device="cpu")
    return covar_module * tasks
