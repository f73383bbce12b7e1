"""The system (K + Σ) W = B of the weights on all data.

Notation: K (n, n) kernel matrix, Σ = diag(noise) with ``noise`` a variance or n of them, H = K + Σ,
B (n, s) right-hand sides, W (n, s) unknowns.
"""

from copy import copy

import torch
from torch import Tensor

from surrogates.operators.kernel_matrix import Dense, KernelOperator
from surrogates.operators.tiles import Index
from surrogates.systems.base import LinearSystem, Regression, Targets


class KernelSystem(LinearSystem):
    """The system H W = B with H = K + Σ; n² entries are one epoch.

    Args:
        kernel: K over one set of n points.
        noise: σ², a number or scalar tensor, or (n,) variances, all above 0.

    Raises:
        ValueError: if the noise is not positive and finite, or of the wrong shape.
    """

    def __init__(self, kernel: KernelOperator, noise: Tensor | float):
        if not kernel.symmetric:
            raise ValueError(
                "`kernel` must be an operator over one set of points, got k(X1, X2) of shape"
                f" {kernel.shape}."
            )
        super().__init__(kernel, kernel.shape[0], noise)

    @property
    def epochs_per_product(self) -> float:
        return 1.0

    def rhs(self, targets: Targets) -> Tensor:
        """Return the right-hand side B = f + ε."""
        return targets.values + targets.noise_draw

    def regression(self, rhs: Tensor, targets: Targets | None) -> Regression:
        return Regression(
            rhs, torch.zeros_like(rhs) if targets is None else targets.noise_draw, None
        )

    def __matmul__(self, W: Tensor) -> Tensor:
        """Return H W."""
        return self.kernel_matmul(W).addcmul_(self._noise_column(), W)

    def kernel_matmul(self, W: Tensor) -> Tensor:
        """Return K W, without the noise."""
        self.entries += self.n**2
        return self.kernel @ W

    def kernel_rows(self, index: Tensor) -> Tensor:
        """Return K[index], (b, n), evaluated, without the noise; of a shared system,
        its columns of the points held here.
        """
        self.entries += len(index) * self.n
        return self._rows(index).to_dense()

    def rows_matmul(self, index: Tensor, W: Tensor, minus: Tensor | None = None) -> Tensor:
        """Return the rows ``index`` of H W, less those of ``minus`` (n, s), (b, s)."""
        return self.total(self._part_of_rows_matmul(index, W, minus))

    def _part_of_rows_matmul(self, index: Tensor, W: Tensor, minus: Tensor | None) -> Tensor:
        """Return what this process has of them; the sum of all processes' parts is the whole."""
        self.entries += len(index) * self.n
        product = self._rows(index) @ W
        noise = self._noise_column()
        positions, rows = self.owned(index)
        own = product[positions].addcmul_(noise[rows] if noise.ndim == 2 else noise, W[rows])
        product[positions] = own if minus is None else own.sub_(minus[rows])
        return product

    def _rows(self, index: Tensor) -> KernelOperator:
        return self.kernel.rows(index)

    def block(self, index: Tensor) -> Tensor:
        """Return H[index][:, index], (b, b)."""
        self.entries += len(index) ** 2
        block = self.kernel.block(index)
        block.diagonal().add_(self.noise[index] if self.noise.ndim else self.noise)
        return block

    def restrict(self, index: Tensor) -> "KernelSystem":
        """Return the system of the points ``index`` alone, its block of K evaluated;
        the entries count here.
        """
        self.entries += len(index) ** 2
        part = copy(self)  # not a new one, which would wait for the device to check the noise again
        part.kernel = Dense(
            self.kernel.tiles.rows(index).columns(index), True, self.kernel.block(index)
        )
        part.noise = self.noise[index] if self.noise.ndim else self.noise
        part.num_data = len(index)
        part.entries = 0
        return part

    def columns(self, index: Index) -> Tensor:
        """Return K[:, index], (n, b), without the noise."""
        columns = self.kernel.columns(index)
        self.entries += columns.numel()
        return columns

    def to_dense(self) -> Tensor:
        """Return H, (n, n), a new tensor."""
        self.entries += self.n**2
        matrix = self.kernel.to_dense().clone()
        matrix.diagonal().add_(self.noise)
        return matrix

    def to(self, dtype: torch.dtype) -> "KernelSystem":
        """Return the system in another precision, with its own count of entries."""
        return KernelSystem(self.kernel.to(dtype), self.noise.to(dtype))

    def whitened(self) -> tuple[None, Tensor]:
        """Return ``None`` and H."""
        return None, self.to_dense()
