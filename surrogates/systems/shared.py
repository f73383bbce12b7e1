"""The system H W = B with its rows shared over the processes of ``torch.distributed``.

Notation: process r of p holds the consecutive points X_r (n_r, d), their noise, and W_r, B_r (n_r,
s) of all n rows; b is the size of a block.
"""

from copy import copy, deepcopy
from typing import NoReturn

import torch
import torch.distributed as dist
from gpytorch.kernels import Kernel
from torch import Tensor

from surrogates import checks
from surrogates.operators.forms import StationaryKernel
from surrogates.operators.kernel_matrix import KernelOperator, Tiled, kernel_operator, operator_of
from surrogates.operators.tiles import KernelTiles
from surrogates.systems.shared_rows import SharedRows
from surrogates.systems.system import KernelSystem


class Divided(Tiled):
    """K over the points of a block, all of which are in every process; of a product each process
    computes a share of the rows, and gets those of the others.

    Args:
        shared: which rows are whose.

    References:
        Rathore et al. (2025), "Turbocharging Gaussian Process Inference with Approximate
        Sketch-and-Project", Algorithm 4.
    """

    def __init__(self, tiles: KernelTiles, shared: SharedRows):
        super().__init__(tiles, True)
        self.shared = shared
        self.own = operator_of(tiles.rows(shared.own), False)

    def __matmul__(self, W: Tensor) -> Tensor:
        return self.shared.gather(self.own @ W)


class DistributedKernelSystem(KernelSystem):
    """The system H W = B with H = k(X, X) + Σ, of which every process holds some rows: memory O(n
    (d + s) / p) each.

    Every process runs the same program on its own rows. Right-hand sides, warm starts and solutions
    are then the process's rows, while residuals, steps and epochs are those of the whole system,
    the same in all processes, bit by bit. A step on a block gathers the block's points (b · d
    numbers), each process multiplies k(X_b, X_r) with its weights, and one sum over the processes
    (b · s numbers) makes the block's residual; SGD needs two, and one of features. Every process
    factorises every exact block, and sketched ones in parts. A product with H, of which conjugate
    gradients take one a step and other methods one at the end where random rows leave their
    residual in doubt, passes X and W around in chunks. All processes need the same software, solver
    and generator state. Any number of them takes the same steps on blocks of the same size, but for
    rounding, which conjugate gradients amplify: solutions then agree to within the error that their
    residuals leave.

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
        ConnectionError: here and in solves, if another process ended, such as by a factorisation
            that failed there alone, or was not heard of within the group's timeout.
    """

    rows: SharedRows

    def __init__(
        self,
        kernel: Kernel,
        X: Tensor,
        noise: Tensor | float,
        *,
        group: dist.ProcessGroup | None = None,
    ):
        checks.floating_tensor("X", X)
        if X.ndim != 2 or X.shape[1] == 0:
            raise ValueError(
                f"`X` must have shape (n_r, d) with n_r, d ≥ 1, got {tuple(X.shape)}. Give a row"
                " for each point."
            )
        self.rows = SharedRows(len(X), X.device, group)
        if 0 in self.rows.counts:
            raise ValueError(
                "`X` must have a row or more in each process, got none in process"
                f" {self.rows.counts.index(0)} of {self.rows.size}, of n = {self.rows.n} rows in"
                " all. Start at most n processes, and share the rows by `own_rows(n)`."
            )
        super().__init__(kernel_operator(kernel, X, memory_budget=0), noise, self.rows)
        self.gpytorch_kernel = kernel
        kinds = [X.shape[1], X.element_size(), self.noise.ndim]
        if [self.rows.least(kind) for kind in kinds] != [-self.rows.least(-kind) for kind in kinds]:
            raise ValueError(
                "`X` must have the same columns and dtype in all processes, and `noise` be a scalar"
                " in all or in none."
            )
        with torch.no_grad():
            self.diagonal = kernel(X, diag=True)
        variances = self.noise.expand(len(X)).double()
        extremes = self.rows.max(torch.stack([self.diagonal.max().double(), -variances.min()]))
        self.largest_entry = extremes[0].to(X)
        self.smallest_noise = -extremes[1].to(X)
        self.mean_noise = (self.rows.sum(variances.sum()) / self.n).to(X)
        # What moves together of a point: its inputs and, if it has its own, its noise
        self._held = torch.cat([X, self.noise.unsqueeze(1)], 1) if self.noise.ndim else X
        # Rows asked for last, their points and noise
        self._gathered: tuple[Tensor, Tensor, Tensor] | None = None

    @property
    def bytes_moved(self) -> int:
        """What this process has sent so far; on average over processes, as much is received."""
        return self.rows.bytes_moved

    @property
    def points(self) -> Tensor:
        return self.kernel.tiles.X1.to(self.dtype)

    @property
    def stationary(self) -> StationaryKernel | None:
        return StationaryKernel.of(self.gpytorch_kernel)

    def __matmul__(self, W: Tensor) -> Tensor:
        return self.kernel_matmul(W).addcmul_(self.noise_column, W)

    def kernel_matmul(self, W: Tensor) -> Tensor:
        """Return this process's rows of K W."""
        self.entries += self.n**2
        X = self.points
        out = torch.zeros_like(W)
        for X_part, W_part in self.rows.chunks(X, W):
            out += self._tiled(X, X_part) @ W_part.contiguous()
        return out

    def columns(self, index: Tensor) -> Tensor:
        """Return this process's rows of K[:, index], (n_r, b), without the noise."""
        points, _ = self._gather(index)
        self.entries += self.n * len(points)
        return self._tiled(self.points, points).to_dense()

    def block(self, index: Tensor) -> Tensor:
        self.entries += len(index) ** 2
        points, noise = self._gather(index)
        return KernelSystem(kernel_operator(self.gpytorch_kernel, points), noise).to_dense()

    def small_blocks(self, index: Tensor) -> Tensor:
        self.entries += index.numel() * index.shape[1]
        points, noise = self._gather(index.flatten())
        order = torch.arange(len(points), device=index.device).view_as(index)
        return KernelSystem(self._tiled(points), noise).small_blocks(order)

    def restrict(self, index: Tensor) -> KernelSystem:
        self.entries += len(index) ** 2
        points, noise = self._gather(index)
        tiles = KernelTiles.of(self.gpytorch_kernel, points, points)
        return KernelSystem(Divided(tiles, self.rows.split(len(index))), noise)

    def to(self, dtype: torch.dtype) -> "DistributedKernelSystem":
        """Return the system in another precision; of what n_r points have, all that is in it are
        noises and diagonals: points and weights are converted as they are used.
        """
        system = copy(self)
        system.gpytorch_kernel = deepcopy(self.gpytorch_kernel).to(dtype)
        system._begin(self.rows, self.num_data, self.noise.to(dtype))
        for name in ("diagonal", "largest_entry", "smallest_noise", "mean_noise"):
            setattr(system, name, getattr(self, name).to(dtype))
        system._gathered = None
        return system

    def doubled(self) -> "DistributedKernelSystem | None":
        return None if self.dtype == torch.float64 else self.to(torch.float64)

    def to_dense(self) -> NoReturn:
        raise TypeError(
            "`system` whose rows are shared is never held whole. Use an iterative solver such as"
            " SketchAndProject.asap()."
        )

    def whitened(self) -> NoReturn:
        self.to_dense()

    def _rows(self, index: Tensor) -> KernelOperator:
        points, _ = self._gather(index)
        return self._tiled(points, self.points)

    def _tiled(self, X: Tensor, Z: Tensor | None = None) -> KernelOperator:
        return kernel_operator(self.gpytorch_kernel, X, Z, memory_budget=0)

    def _gather(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the points ``index`` and their noise; the last are kept for a second use."""
        if self._gathered is not None and self._gathered[0] is index:
            return self._gathered[1:]
        found = self.rows.take(self._held, index)
        d = self.kernel.tiles.X1.shape[1]
        points = found[:, :d].to(self.dtype).contiguous()
        noise = found[:, -1].to(self.dtype) if self.noise.ndim else self.noise
        self._gathered = index, points, noise
        return points, noise
