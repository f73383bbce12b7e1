"""The kernel matrix evaluated once and kept."""

import torch
from torch import Tensor

from surrogates.operators.base import KernelOperator
from surrogates.operators.gemm import matmul
from surrogates.operators.tiles import Index, KernelTiles, spans, tile_side, with_tiles_that_fit

ROWS_IN_TILES = 4  # entries gathered at a time, in tiles
# Entries evaluated at a time, in tiles: written where they stay, they need no buffer that fits a
# cache
TILES_IN_ROWS = 2
FEWEST_ROWS = 8  # of fewer, the product for d² takes twice as long


class Dense(KernelOperator):
    """K = k(X1, X2), held in memory: m · n numbers, the fastest products."""

    def __init__(self, tiles: KernelTiles, symmetric: bool, matrix: Tensor | None = None):
        super().__init__(tiles, symmetric)
        self.matrix = evaluate(tiles) if matrix is None else matrix

    def __matmul__(self, W: Tensor) -> Tensor:
        return matmul(self.matrix, W)

    def rows(self, index: Index) -> KernelOperator:
        if isinstance(index, Tensor):
            return Gathered(self.tiles.rows(index), self.matrix, index)
        return Dense(self.tiles.rows(index), False, self.matrix[index])

    def columns(self, index: Index) -> Tensor:
        # Rows lie together in memory
        return _gather(self.matrix, index).T if self.symmetric else self.matrix[:, index]

    def block(self, index: Index) -> Tensor:
        self._require_symmetric("block(index)")
        if not isinstance(index, Tensor):
            return self.matrix[index][:, index]
        return torch.cat(
            [
                _gather(self.matrix, part).index_select(1, index)
                for part in index.split(_rows_at_once(self.matrix))
            ]
        )

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


class Gathered(KernelOperator):
    """Some rows of a matrix that is held, in any order, read a few at a time:
    a copy of all of them would be new memory at every step.
    """

    def __init__(self, tiles: KernelTiles, matrix: Tensor, index: Tensor):
        super().__init__(tiles, False)
        self.matrix = matrix
        self.index = index

    def __matmul__(self, W: Tensor) -> Tensor:
        out = W.new_empty(len(self.index), W.shape[1])
        for part in spans(len(self.index), _rows_at_once(self.matrix)):
            out[part] = matmul(_gather(self.matrix, self.index[part]), W)
        return out

    def rows(self, index: Index) -> KernelOperator:
        return Gathered(self.tiles.rows(index), self.matrix, self.index[index])

    def columns(self, index: Index) -> Tensor:
        return self.to_dense()[:, index]

    def block(self, index: Index) -> Tensor:
        self._require_symmetric("block(index)")
        return self.rows(index).columns(index)

    def to_dense(self) -> Tensor:
        return _gather(self.matrix, self.index)

    def to(self, dtype: torch.dtype) -> KernelOperator:
        return Dense(self.tiles.to(dtype), False, self.to_dense().to(dtype))

    @property
    def T(self) -> KernelOperator:
        return Dense(self.tiles.transposed(), False, self.to_dense().T)


def _gather(matrix: Tensor, index: Index) -> Tensor:
    """Return the rows ``index``."""
    return matrix.index_select(0, index) if isinstance(index, Tensor) else matrix[index]


def _rows_at_once(matrix: Tensor) -> int:
    return max(1, ROWS_IN_TILES * tile_side(matrix.device) ** 2 // max(1, matrix.shape[1]))


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
