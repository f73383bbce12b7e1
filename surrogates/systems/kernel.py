"""The system (K + Σ) W = B of the weights on all data.

Notation: K (n, n) kernel matrix, Σ = diag(noise) with ``noise`` a variance or n of them, H = K + Σ,
B (n, s) right-hand sides, W (n, s) unknowns.
"""

from copy import copy
from functools import cached_property

import torch
from torch import Tensor

from surrogates import memory
from surrogates.operators.kernel_matrix import KernelOperator, Tiled
from surrogates.systems.system import BlockSystem, Regression, Rows, Targets


class KernelSystem(BlockSystem):
    """The system H W = B with H = K + Σ; n² entries are one epoch.

    Args:
        kernel: K over one set of n points.
        noise: σ², a number or scalar tensor, or (n,) variances, all above 0.
        rows: who holds which; ``None`` if this process holds all.

    Raises:
        ValueError: if the noise is not positive and finite, or of the wrong shape.
    """

    def __init__(self, kernel: KernelOperator, noise: Tensor | float, rows: Rows | None = None):
        if not kernel.symmetric:
            raise ValueError(
                "`kernel` must be an operator over one set of points, got k(X1, X2) of shape"
                f" {kernel.shape}."
            )
        rows = Rows(len(kernel.tiles.X1)) if rows is None else rows
        super().__init__(rows, rows.n, noise, like=kernel.tiles.X1)
        self.kernel = kernel

    @property
    def epochs_per_product(self) -> float:
        return 1.0

    @property
    def is_stored(self) -> bool:
        return self.kernel.is_stored

    @cached_property
    def diagonal(self) -> Tensor:
        return self.kernel.diagonal()

    def rhs(self, targets: Targets) -> Tensor:
        """Return the right-hand side B = f + ε."""
        return targets.values + targets.noise_draw

    def regression(self, rhs: Tensor, targets: Targets | None) -> Regression:
        return Regression(
            rhs, torch.zeros_like(rhs) if targets is None else targets.noise_draw, None
        )

    def __matmul__(self, W: Tensor) -> Tensor:
        """Return H W."""
        self.entries += self.n**2
        return (self.kernel @ W).addcmul_(self.noise_column, W)

    def kernel_rows(self, index: Tensor) -> Tensor:
        """Return K[index], (b, n), evaluated, without the noise; of a shared system,
        its columns of the points held here.
        """
        self.entries += len(index) * self.n
        return self._rows(index).to_dense()

    def rows_matmul(self, index: Tensor, W: Tensor, minus: Tensor | None = None) -> Tensor:
        self.entries += len(index) * self.n
        W = W.to(self.dtype)
        product = self._rows(index) @ W  # what this process has of it
        noise = self.noise_column
        positions, rows = self.rows.owned(index)
        own = product[positions].addcmul_(noise[rows] if noise.ndim == 2 else noise, W[rows])
        product[positions] = own if minus is None else own.sub_(minus[rows])
        return self.rows.sum(product)

    def _rows(self, index: Tensor) -> KernelOperator:
        return self.kernel.rows(index)

    def columns(self, index: Tensor) -> Tensor:
        self.entries += self.n * len(index)
        return self.kernel.columns(index)

    def block(self, index: Tensor) -> Tensor:
        self.entries += len(index) ** 2
        block = self.kernel.block(index)
        block.diagonal().add_(self.noise[index] if self.noise.ndim else self.noise)
        return block

    def small_blocks(self, index: Tensor) -> Tensor:
        self.entries += index.numel() * index.shape[1]
        blocks = self.kernel.tiles.blocks(index)
        noise = self.noise[index] if self.noise.ndim else self.noise
        blocks.diagonal(dim1=1, dim2=2).add_(noise)
        return blocks

    def restrict(self, index: Tensor) -> "KernelSystem":
        self.entries += len(index) ** 2
        part = copy(self)  # not a new one, which would wait for the device to check the noise again
        part.kernel = self.kernel.part(index)
        noise = self.noise[index] if self.noise.ndim else self.noise
        part._begin(Rows(len(index)), len(index), noise)
        return part

    def to_dense(self) -> Tensor:
        self.entries += self.n**2
        matrix = self.kernel.to_dense()
        matrix = matrix.clone() if self.is_stored else matrix
        matrix.diagonal().add_(self.noise)
        return matrix

    def to(self, dtype: torch.dtype) -> "KernelSystem":
        return KernelSystem(self.kernel.to(dtype), self.noise.to(dtype))

    def doubled(self) -> "KernelSystem | None":
        if self.dtype == torch.float64:
            return None
        return KernelSystem(Tiled(self.kernel.tiles.to(torch.float64), True), self.noise.double())

    def precise(self) -> "KernelSystem":
        """Return the system in float64 if its matrix and a factor fit in free memory: the jitter
        that a factorisation in float32 needs may be as large as the noise.
        """
        fits = 2 * self.n**2 * torch.float64.itemsize <= memory.available(self.device)
        doubled = self.doubled() if fits else None
        return self if doubled is None else doubled

    def whitened(self) -> tuple[None, Tensor]:
        """Return ``None`` and H."""
        return None, self.to_dense()
