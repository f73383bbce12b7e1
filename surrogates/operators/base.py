"""The kernel matrix as an operator: products, rows, blocks, without deciding whether it is stored."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from surrogates.operators.tiles import Index, KernelTiles


class KernelOperator(ABC):
    """The matrix K = k(X1, X2), of which only what is asked for is evaluated.

    Args:
        tiles: evaluates any part of K.
        symmetric: whether X1 and X2 are the same points; ``block`` and ``diagonal`` need it.
    """

    def __init__(self, tiles: KernelTiles, symmetric: bool):
        self.tiles, self.symmetric = tiles, symmetric

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
    def block(self, index: Index) -> Tensor:
        """Return K[index][:, index], evaluated. Needs a symmetric operator."""

    @abstractmethod
    def to_dense(self) -> Tensor:
        """Return K, evaluated."""

    @abstractmethod
    def to(self, dtype: torch.dtype) -> "KernelOperator":
        """Return K in another precision."""

    @property
    @abstractmethod
    def T(self) -> "KernelOperator":
        """The operator of Kᵀ."""

    def diagonal(self) -> Tensor:
        """Return the n diagonal entries. Needs a symmetric operator."""
        self._require_symmetric("diagonal()")
        n = self.shape[0]
        parts = [self.block(torch.arange(i, min(i + 64, n), device=self.device)).diagonal() for i in range(0, n, 64)]
        return torch.cat(parts)

    def _require_symmetric(self, what: str) -> None:
        if not self.symmetric:
            raise ValueError(f"`{what}` needs an operator over one set of points, got k(X1, X2) of shape {self.shape}.")
