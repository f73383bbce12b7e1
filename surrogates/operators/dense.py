"""The kernel matrix evaluated once and kept."""

import torch
from torch import Tensor

from surrogates.operators.base import KernelOperator
from surrogates.operators.gemm import matmul
from surrogates.operators.tiles import Index, KernelTiles, spans, with_tiles_that_fit

TILES_IN_ROWS = 2  # entries evaluated at a time, in tiles: written where they stay, they need no buffer that fits a cache
FEWEST_ROWS = 8  # of fewer, the product for d² takes twice as long


class Dense(KernelOperator):
    """K = k(X1, X2), held in memory: m · n numbers, the fastest products."""

    def __init__(self, tiles: KernelTiles, symmetric: bool, matrix: Tensor | None = None):
        super().__init__(tiles, symmetric)
        self.matrix = evaluate(tiles) if matrix is None else matrix

    def __matmul__(self, W: Tensor) -> Tensor:
        return matmul(self.matrix, W)

    def rows(self, index: Index) -> "Dense":
        return Dense(self.tiles.rows(index), False, self.matrix[index])

    def columns(self, index: Index) -> Tensor:
        return self.matrix[index].T if self.symmetric else self.matrix[:, index]  # rows lie together in memory

    def block(self, index: Index) -> Tensor:
        self._require_symmetric("block(index)")
        return self.matrix[index][:, index]

    def diagonal(self) -> Tensor:
        self._require_symmetric("diagonal()")
        return self.matrix.diagonal()

    def _part(self, i: slice, j: slice) -> Tensor:
        return self.matrix[i, j]

    def to_dense(self) -> Tensor:
        return self.matrix

    def to(self, dtype: torch.dtype) -> "Dense":
        return Dense(self.tiles.to(dtype), self.symmetric, self.matrix.to(dtype))

    @property
    def T(self) -> "Dense":
        return self if self.symmetric else Dense(self.tiles.transposed(), False, self.matrix.T)


def evaluate(tiles: KernelTiles) -> Tensor:
    """Return the whole of k(X1, X2), evaluated a few whole rows at a time."""
    matrix = tiles.X1.new_empty(len(tiles.X1), len(tiles.X2))
    _evaluate_into(tiles, matrix)
    return matrix


@with_tiles_that_fit
def _evaluate_into(side: int, tiles: KernelTiles, matrix: Tensor) -> None:
    m, n = matrix.shape
    for i in spans(m, max(FEWEST_ROWS, TILES_IN_ROWS * side**2 // max(1, n))):
        tiles.tile(i, slice(None), out=matrix[i])
