"""The kernel matrix as an operator: products, rows and blocks, of one that is evaluated once and
kept, or tile by tile for every product.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from surrogates import memory
from surrogates.operators.linalg import matmul
from surrogates.operators.tiles import Index, KernelTiles, evaluate, tiled_matmul


class KernelOperator(ABC):
    """The matrix K = k(X1, X2), of which only what is asked for is evaluated.

    Args:
        tiles: evaluates any part of K.
        symmetric: whether X1 and X2 are the same points; ``block`` and ``diagonal`` need it.
    """

    is_stored: ClassVar[bool] = False  # so that entries are read, and not evaluated

    def __init__(self, tiles: KernelTiles, symmetric: bool):
        self.tiles = tiles
        self.symmetric = symmetric

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.tiles.X1), len(self.tiles.X2)

    @property
    def dtype(self) -> torch.dtype:
        return self.tiles.X1.dtype

    @property
    def device(self) -> torch.device:
        return self.tiles.X1.device

    @abstractmethod
    def __matmul__(self, W: Tensor) -> Tensor:
        """Return K @ W for W (n, s)."""

    @abstractmethod
    def rows(self, index: Index) -> "KernelOperator":
        """Return the operator of the rows ``index`` of K."""

    @abstractmethod
    def columns(self, index: Index) -> Tensor:
        """Return K[:, index], evaluated."""

    @abstractmethod
    def part(self, index: Index) -> "KernelOperator":
        """Return the operator of the points ``index`` alone. Needs a symmetric operator."""

    def block(self, index: Index) -> Tensor:
        """Return K[index][:, index], evaluated. Needs a symmetric operator."""
        self._require_symmetric("block(index)")
        return self.part(index).to_dense()

    @abstractmethod
    def to_dense(self) -> Tensor:
        """Return K, evaluated."""

    @abstractmethod
    def to(self, dtype: torch.dtype) -> "KernelOperator":
        """Return K in another precision."""

    def anew(self, dtype: torch.dtype) -> "Tiled":
        """Return K evaluated anew in another precision, at no memory."""
        return Tiled(self.tiles.to(dtype), self.symmetric)

    def diagonal(self) -> Tensor:
        """Return the n diagonal entries. Needs a symmetric operator."""
        self._require_symmetric("diagonal()")
        return self.tiles.diagonal()

    def fingerprint(self) -> list[Tensor]:
        """Return tensors that tell this operator from others: the points, and a few values."""
        few = slice(0, 16)
        return [self.tiles.X1, self.tiles.tile(few, few)]

    def _require_symmetric(self, what: str) -> None:
        if not self.symmetric:
            raise ValueError(
                f"`{what}` needs an operator over one set of points, got k(X1, X2) of shape"
                f" {self.shape}."
            )


class Dense(KernelOperator):
    """K = k(X1, X2), held in memory: m · n numbers, the fastest products."""

    is_stored = True

    def __init__(self, tiles: KernelTiles, symmetric: bool, matrix: Tensor | None = None):
        super().__init__(tiles, symmetric)
        self.matrix = evaluate(tiles) if matrix is None else matrix

    def __matmul__(self, W: Tensor) -> Tensor:
        return matmul(self.matrix, W)

    def rows(self, index: Index) -> KernelOperator:
        return Dense(self.tiles.rows(index), False, self.matrix[index])

    def columns(self, index: Index) -> Tensor:
        # Rows lie together in memory
        if self.symmetric and isinstance(index, Tensor):
            return self.matrix.index_select(0, index).T
        return self.matrix[index].T if self.symmetric else self.matrix[:, index]

    def part(self, index: Index) -> "Dense":
        if isinstance(index, Tensor):
            matrix = self.matrix.index_select(0, index).index_select(1, index)
        else:
            matrix = self.matrix[index][:, index]
        return Dense(self.tiles.rows(index).columns(index), True, matrix)

    def diagonal(self) -> Tensor:
        self._require_symmetric("diagonal()")
        return self.matrix.diagonal()

    def to_dense(self) -> Tensor:
        return self.matrix

    def to(self, dtype: torch.dtype) -> "Dense":
        return Dense(self.tiles.to(dtype), self.symmetric, self.matrix.to(dtype))


class Tiled(KernelOperator):
    """K = k(X1, X2), never stored: products evaluate cache-sized tiles, in O(tile) memory."""

    def __matmul__(self, W: Tensor) -> Tensor:
        return tiled_matmul(self.tiles, W)

    def rows(self, index: Index) -> "Tiled":
        return Tiled(self.tiles.rows(index), False)

    def columns(self, index: Index) -> Tensor:
        return evaluate(self.tiles.columns(index))

    def part(self, index: Index) -> KernelOperator:
        return operator_of(self.tiles.rows(index).columns(index), True)

    def to_dense(self) -> Tensor:
        return evaluate(self.tiles)

    def to(self, dtype: torch.dtype) -> "Tiled":
        return Tiled(self.tiles.to(dtype), self.symmetric)


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
    tiles = KernelTiles.of(kernel, X1, X1 if X2 is None else X2)
    return operator_of(tiles, X2 is None, memory_budget)


def operator_of(
    tiles: KernelTiles, symmetric: bool, memory_budget: int | None = None
) -> KernelOperator:
    """Return the operator that ``tiles`` evaluate: :class:`Dense` if it fits, or :class:`Tiled`."""
    budget = memory.default_budget(tiles.X1.device) if memory_budget is None else memory_budget
    num_bytes = len(tiles.X1) * len(tiles.X2) * tiles.X1.element_size()
    return (Dense if num_bytes <= budget else Tiled)(tiles, symmetric)
