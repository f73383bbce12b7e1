"""The system H W = B with its rows shared over the processes of ``torch.distributed``.

Notation: process r of p holds the points X_r (n_r, d), their noise, and W_r, B_r (n_r, s) of all n
rows; b is the size of a block.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import NoReturn

import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from torch.distributed import ProcessGroup

from surrogates import checks
from surrogates.operators.kernel_matrix import Dense, KernelOperator, Tiled, kernel_operator
from surrogates.operators.tiles import Index, KernelTiles
from surrogates.systems.kernel import KernelSystem
from surrogates.systems.shared_rows import SharedRows


class DistributedKernelSystem(KernelSystem):
    """The system H W = B with H = k(X, X) + Σ, of which every process holds some rows: memory O(n
    (d + s) / p) each.

    Every process runs the same program on its own rows. Right-hand sides, warm starts and solutions
    are then the process's rows, while residuals, steps and epochs are those of the whole system,
    the same in all processes, bit by bit. A step on a block gathers the block's points (b · d
    numbers), each process multiplies k(X_b, X_r) with its weights, and one sum over the processes
    (b · s numbers) makes the block's residual; SGD needs two, and one of features. Exact blocks are
    factorised side by side, one by each process, which gets the block's residual and sends the step
    that it makes of it. A product with H, of which conjugate gradients take one a step and every
    method one at the end, passes X and W around in chunks. All processes need the same software,
    solver and generator state; any number of them finds the same solution, but for rounding.

    Args:
        kernel: a GPyTorch kernel without a batch shape, the same in all processes. Its
            hyperparameters are read now.
        X: (n_r, d) the points of this process, at least one; the first process has the first rows.
        noise: σ², a number or scalar tensor, the same in all processes, or (n_r,) variances of this
            process's points, all above 0.
        group: the processes; ``None`` for all. Without ``torch.distributed``, this process alone.

    Attributes:
        rows: who holds which rows; draws random ones, and counts the bytes moved.

    Raises:
        TypeError, ValueError: if the points are not finite, or differ in kind between the
            processes, or the noise is not positive.
        ConnectionError: here and in solves, if another process ended, or was not heard of within
            the group's timeout.
    """

    def __init__(
        self, kernel: Kernel, X: Tensor, noise: Tensor | float, *, group: ProcessGroup | None = None
    ):
        checks.floating_tensor("X", X)
        if X.ndim != 2 or 0 in X.shape:
            raise ValueError(
                f"`X` must have shape (n_r, d) with n_r, d ≥ 1, got {tuple(X.shape)}. Use as many"
                " processes as have rows."
            )
        super().__init__(kernel_operator(kernel, X, memory_budget=0), noise)
        self.gpytorch_kernel = kernel
        self.rows = SharedRows(len(X), X.device, group)
        self.num_data = self.rows.n
        kinds = [X.shape[1], X.element_size(), self.noise.ndim]
        if [self.least(kind) for kind in kinds] != [-self.least(-kind) for kind in kinds]:
            raise ValueError(
                "`X` must have the same columns and dtype in all processes, and `noise` be a scalar"
                " in all or in none."
            )
        with torch.no_grad():
            self._diagonal = kernel(X, diag=True)
        variances = self.noise.expand(len(X)).double()
        extremes = self.rows.max(torch.stack([self._diagonal.max().double(), -variances.min()]))
        self._largest_entry = extremes[0].to(X)
        self._smallest_noise = -extremes[1].to(X)
        self._mean_noise = (self.rows.sum(variances.sum()) / self.n).to(X)
        # Rows asked for last, their points and noise
        self._gathered: list[tuple[Tensor, Tensor, Tensor]] = []

    @property
    def n(self) -> int:
        return self.rows.n

    @property
    def num_rows(self) -> int:
        return self.kernel.shape[0]

    @property
    def is_shared(self) -> bool:
        return True

    @property
    def place(self) -> tuple[int, int]:
        return self.rows.rank, self.rows.size

    @property
    def bytes_moved(self) -> int:
        """What this process has sent so far, and as much received,
        on average over the processes.
        """
        return self.rows.bytes_moved

    @property
    def diagonal(self) -> Tensor:
        return self._diagonal

    @property
    def largest_entry(self) -> Tensor:
        return self._largest_entry

    @property
    def smallest_noise(self) -> Tensor:
        return self._smallest_noise

    @property
    def mean_noise(self) -> Tensor:
        return self._mean_noise

    def norm(self, R: Tensor) -> Tensor:
        return (
            self.rows.sum(torch.linalg.vector_norm(R, dim=0, dtype=torch.float64).square())
            .sqrt()
            .to(R.dtype)
        )

    def dot(self, A: Tensor, B: Tensor) -> Tensor:
        return self.rows.sum(torch.linalg.vecdot(A, B, dim=0))

    def all_rows(self, mask: Tensor) -> Tensor:
        return self.rows.max((~mask).any(0).to(torch.uint8)) == 0

    def total(self, part: Tensor) -> Tensor:
        return self.rows.sum(part)

    def owned(self, index: Tensor) -> tuple[Index, Tensor]:
        return self.rows.owned(index)

    def take_rows(self, W: Tensor, index: Tensor) -> Tensor:
        return self.rows.take(W, index)

    def least(self, number: int) -> int:
        return -int(self.rows.max(torch.tensor(-int(number), device=self.device)))

    def agree(self, decision: bool) -> bool:
        return bool(
            self.rows.of(0, torch.tensor(int(decision), dtype=torch.uint8, device=self.device))
        )

    def agreed(self, generator: torch.Generator, num_columns: int) -> torch.Generator:
        own = torch.cat([generator.get_state(), torch.tensor([num_columns]).view(torch.uint8)]).to(
            self.device
        )
        if not self.least(torch.equal(self.rows.of(0, own.clone()), own)):
            raise ValueError(
                "`generator` must be in the same state in all processes, and `rhs` have as many"
                " columns, got others. Seed it alike."
            )
        return generator

    def kernel_matmul(self, W: Tensor) -> Tensor:
        """Return this process's rows of K W."""
        self.entries += self.n**2
        X = self.kernel.tiles.X1
        out = torch.zeros_like(W)
        for X_part, W_part in self.rows.chunks(X, W):
            out += (
                kernel_operator(self.gpytorch_kernel, X, X_part, memory_budget=0)
                @ W_part.contiguous()
            )
        return out

    def columns(self, index: Index) -> Tensor:
        """Return this process's rows of K[:, index], (n_r, b), without the noise."""
        points, _ = self._gather(
            torch.arange(self.n, device=self.device)[index] if isinstance(index, slice) else index
        )
        self.entries += self.n * len(points)
        return kernel_operator(
            self.gpytorch_kernel, self.kernel.tiles.X1, points, memory_budget=0
        ).to_dense()

    def block(self, index: Tensor) -> Tensor:
        return self.restrict(index).to_dense()

    def restrict(self, index: Tensor) -> KernelSystem:
        """Return the system of the points ``index`` alone, the same in all processes;
        the entries count here.
        """
        self.entries += len(index) ** 2
        return self._of_points(*self._gather(index))

    def restrict_own(self, blocks: Sequence[Tensor]) -> KernelSystem | None:
        """Return the system of the points of this process's one of the ``blocks``, at most p;
        ``None`` if it has none.

        The points of all are gathered, in one message. The entries of a block count in
        ``rows_matmul_for``.
        """
        points, noise = self._gather(torch.cat(list(blocks)))
        sizes = [len(block) for block in blocks]
        noises = noise.split(sizes) if noise.ndim else [noise] * len(blocks)
        self._gathered = list(zip(blocks, points.split(sizes), noises, strict=True))
        return (
            self._of_points(*self._gathered[self.rows.rank][1:])
            if self.rows.rank < len(blocks)
            else None
        )

    def rows_matmul_for(self, rank: int, index: Tensor, W: Tensor, minus: Tensor) -> Tensor:
        """Return to process ``rank`` the rows ``index`` of H W less those of ``minus``, (b, s), and
        nothing of use to the others.

        The entries of the block that process ``rank`` has of them count here: in all processes, and
        once a step.
        """
        self.entries += len(index) ** 2
        return self.rows.sum_for(rank, self._part_of_rows_matmul(index, W, minus))

    def _of_points(self, points: Tensor, noise: Tensor) -> KernelSystem:
        return KernelSystem(
            Dense(KernelTiles.of(self.gpytorch_kernel, points, points), True), noise
        )

    def to(self, dtype: torch.dtype) -> "DistributedKernelSystem":
        kernel = deepcopy(self.gpytorch_kernel).to(dtype)
        return DistributedKernelSystem(
            kernel, self.kernel.tiles.X1.to(dtype), self.noise.to(dtype), group=self.rows.group
        )

    def to_dense(self) -> NoReturn:
        raise TypeError(
            "`system` whose rows are shared is never held whole. Use an iterative solver such as"
            " SketchAndProject.asap()."
        )

    def whitened(self) -> NoReturn:
        self.to_dense()

    def _rows(self, index: Tensor) -> KernelOperator:
        return Tiled(self.kernel.tiles.between(self._gather(index)[0]), False)

    def _gather(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the points ``index`` and their noise; those asked for last are kept,
        as steps need them twice.
        """
        for rows, points, noise in self._gathered:
            if rows is index:
                return points, noise
        X = self.kernel.tiles.X1
        each_noise = self.noise.ndim
        found = X.new_zeros(len(index), X.shape[1] + each_noise)
        positions, held = self.rows.owned(index)
        found[positions, : X.shape[1]] = X[held]
        if each_noise:
            found[positions, -1] = self.noise[held]
        self.rows.sum(found)
        points = found[:, : X.shape[1]].contiguous()
        noise = found[:, -1] if each_noise else self.noise
        self._gathered = [(index, points, noise)]
        return points, noise
