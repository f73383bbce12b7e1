"""The kernel matrix as an operator: products, rows, blocks,
without deciding whether it is stored.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from surrogates.operators import rough
from surrogates.operators.tiles import Index, KernelTiles


class KernelOperator(ABC):
    """The matrix K = k(X1, X2), of which only what is asked for is evaluated.

    Args:
        tiles: evaluates any part of K.
        symmetric: whether X1 and X2 are the same points; ``block`` and ``diagonal`` need it.
    """

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

    def rough_matmul(self, W: Tensor) -> Tensor:
        """Return about K @ W for W (n, s): by values rounded to bfloat16, with sums in float32,
        where that is faster.

        The error is about 0.3 % of ``√(Σ_j (k_ij w_j)²)``, however small the sum: weights that
        cancel leave nothing of it. It is for steps that later ones correct, and no residual may be
        computed by it. A CPU that multiplies bfloat16 takes 0.6 of the time for 1000 columns and
        saves nothing for less than 128. A CUDA device of capability 8.0 or higher uses TF32, an
        eighth of the error; elsewhere this is ``K @ W``.
        """
        return rough.matmul(self._part, self.shape[0], W) if rough.pays(W) else self @ W

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
        parts = [
            self.block(torch.arange(i, min(i + 64, n), device=self.device)).diagonal()
            for i in range(0, n, 64)
        ]
        return torch.cat(parts)

    def _part(self, i: slice, j: slice) -> Tensor:
        """Return K[i, j], at most a tile."""
        return self.tiles.tile(i, j)

    def _require_symmetric(self, what: str) -> None:
        if not self.symmetric:
            raise ValueError(
                f"`{what}` needs an operator over one set of points, got k(X1, X2) of shape"
                f" {self.shape}."
            )
