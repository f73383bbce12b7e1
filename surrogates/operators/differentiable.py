"""Linear combinations of many functions, differentiable in the points, tiled forwards and
backwards.

A :class:`Basis` is a finite set of functions φ_1 … φ_N: the kernel at data points, random features.
``combine`` evaluates all combinations at all points, ``combine_rowwise`` each combination at points
of its own. Notation: X (m, d), W (N, s).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from torch.autograd.function import once_differentiable

from surrogates import memory
from surrogates.operators.tiles import (
    KernelTiles,
    spans,
    tiled_matmul,
    tiled_matmul_gradient,
    tiled_rowwise,
)


class Basis(ABC):
    """A set of N functions of a point, with products that never hold all m × N values."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """The number of coordinates of a point, d."""

    @abstractmethod
    def to(self, device: torch.device | str) -> Self:
        """Return the same functions on another device."""

    @abstractmethod
    def matmul(self, X: Tensor, W: Tensor) -> Tensor:
        """Return Φ(X) W, (m, s)."""

    @abstractmethod
    def matmul_gradient(self, X: Tensor, W: Tensor, cotangent: Tensor) -> Tensor:
        """Return the gradient in X, (m, d), of ``Σ cotangent ∘ (Φ(X) W)``."""

    @abstractmethod
    def rowwise(self, X: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        """Return values (s, q) and gradients (s, q, d) of combination i at its own points ``X[i]``,
        for X (s, q, d).
        """


@dataclass(frozen=True, eq=False)
class KernelBasis(Basis):
    """The functions k(·, z) for the rows z of Z (n, d)."""

    kernel: Kernel
    Z: Tensor

    @property
    def dim(self) -> int:
        return self.Z.shape[1]

    def to(self, device: torch.device | str) -> Self:
        return replace(self, kernel=deepcopy(self.kernel).to(device), Z=self.Z.to(device))

    def matmul(self, X: Tensor, W: Tensor) -> Tensor:
        return tiled_matmul(KernelTiles.of(self.kernel, X, self.Z), W)

    def matmul_gradient(self, X: Tensor, W: Tensor, cotangent: Tensor) -> Tensor:
        return tiled_matmul_gradient(KernelTiles.of(self.kernel, X, self.Z), W, cotangent)

    def rowwise(self, X: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        return tiled_rowwise(KernelTiles.of(self.kernel, X.reshape(-1, X.shape[-1]), self.Z), W)


def combine(basis: Basis, X: Tensor, W: Tensor) -> Tensor:
    """Return Φ(X) W, (m, s), for X (m, d); differentiable once in X,
    and computed for fewer points at once if memory runs out.
    """
    return _Combine.apply(X, basis, W)


def combine_rowwise(basis: Basis, X: Tensor, W: Tensor) -> Tensor:
    """Return combination i at ``X[i]``, (s, q), for X (s, q, d); differentiable once in X.

    The gradient is computed together with the values, in one pass over the tiles, and for fewer
    functions at once if memory runs out.
    """
    return _CombineRowwise.apply(X, basis, W)


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, X: Tensor, basis: Basis, W: Tensor) -> Tensor:
        ctx.basis = basis
        ctx.save_for_backward(X, W)
        for attempt in _attempts(X):
            with attempt:
                parts = [basis.matmul(X[rows], W) for rows in _parts(X, attempt.size)]
        return _joined(parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None]:
        X, W = ctx.saved_tensors
        gradient = ctx.basis.matmul_gradient
        for attempt in _attempts(X):
            with attempt:
                parts = [gradient(X[i], W, cotangent[i]) for i in _parts(X, attempt.size)]
        return _joined(parts), None, None


class _CombineRowwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, X: Tensor, basis: Basis, W: Tensor) -> Tensor:
        for attempt in _attempts(X):
            with attempt:
                parts = [basis.rowwise(X[i], W[:, i]) for i in _parts(X, attempt.size)]
        values, gradient = map(_joined, zip(*parts, strict=True))
        ctx.save_for_backward(gradient)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return cotangent.unsqueeze(-1) * gradient, None, None


def _attempts(X: Tensor) -> Iterator[memory.Attempt]:
    """Yield attempts with all rows of X at once or, if memory runs out, in parts."""
    return memory.attempts(max(1, len(X)), 1, "A part")


def _parts(X: Tensor, size: int) -> Iterator[slice]:
    return spans(max(1, len(X)), size)  # no rows are a part, too


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
