"""The kernel matrix as an operator: K(X, Z) @ W, stored whole only if it fits a stated budget."""

from surrogates.operators.differentiable import Basis, KernelBasis, combine, combine_rowwise
from surrogates.operators.kernel_matrix import Dense, KernelOperator, Tiled, kernel_operator
from surrogates.operators.tiles import KernelTiles

__all__ = [
    "Basis",
    "Dense",
    "KernelBasis",
    "KernelOperator",
    "KernelTiles",
    "Tiled",
    "combine",
    "combine_rowwise",
    "kernel_operator",
]
