"""The kernel matrix as tiles that are evaluated, multiplied and discarded."""

import torch
from torch import Tensor

from surrogates.operators.base import KernelOperator
from surrogates.operators.dense import evaluate
from surrogates.operators.tiles import Index, tiled_matmul


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
