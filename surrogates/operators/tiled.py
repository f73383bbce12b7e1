"""The kernel matrix as tiles that are evaluated, multiplied and discarded."""

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from surrogates import memory
from surrogates.operators.base import KernelOperator
from surrogates.operators.dense import Dense, evaluate
from surrogates.operators.tiles import Index, KernelTiles, tiled_matmul


class Tiled(KernelOperator):
    """K = k(X1, X2), never stored: a product evaluates cache-sized tiles and needs O(tile) memory
    beside its result.
    """

    def __matmul__(self, W: Tensor) -> Tensor:
        return tiled_matmul(self.tiles, W)

    def rows(self, index: Index) -> "Tiled":
        return Tiled(self.tiles.rows(index), False)

    def columns(self, index: Index) -> Tensor:
        return evaluate(self.tiles.columns(index))

    def block(self, index: Index) -> Tensor:
        self._require_symmetric("block(index)")
        return evaluate(self.tiles.rows(index).columns(index))

    def to_dense(self) -> Tensor:
        return evaluate(self.tiles)

    def to(self, dtype: torch.dtype) -> "Tiled":
        return Tiled(self.tiles.to(dtype), self.symmetric)

    @property
    def T(self) -> "Tiled":
        return self if self.symmetric else Tiled(self.tiles.transposed(), False)


def kernel_operator(
    kernel: Kernel, X1: Tensor, X2: Tensor | None = None, *, memory_budget: int | None = None
) -> KernelOperator:
    """Return k(X1, X2) as an operator: :class:`Dense` if it fits ``memory_budget``, :class:`Tiled`
    otherwise.

    Args:
        kernel: any GPyTorch kernel without a batch shape; RBF and Matérn (ν = 1/2, 3/2, 5/2), alone
            or in ``ScaleKernel``, have a fast path. Its hyperparameters are read now.
        X1: (m, d).
        X2: (n, d); ``None`` for X1 itself.
        memory_budget: bytes a kept matrix may take; ``None`` for 2 GiB on a CPU and a quarter of
            the memory of a CUDA device.
    """
    budget = memory.default_budget(X1.device) if memory_budget is None else memory_budget
    tiles = KernelTiles.of(kernel, X1, X1 if X2 is None else X2)
    num_bytes = len(tiles.X1) * len(tiles.X2) * X1.element_size()
    kind = Dense if num_bytes <= budget else Tiled
    return kind(tiles, symmetric=X2 is None)
