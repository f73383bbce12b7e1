"""Linear combinations of many functions, differentiable in the points, tiled forwards and
backwards.

A :class:`Basis` is a finite set of functions φ_1 … φ_N: the kernel at data points, random features.
``combine`` evaluates all combinations at all points, ``combine_rowwise`` each combination at points
of its own. First derivatives have closed forms where the functions do; those of higher order are
found tile by tile from the functions as expressions. Notation: X (m, d), W (N, s).
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from surrogates import memory
from surrogates.operators.expressions import kernel_values
from surrogates.operators.linalg import matmul
from surrogates.operators.terms import (
    GRADIENT,
    OWN_GRADIENT,
    FunctionMap,
    below,
    check_unbatched,
    each_own,
    in_front,
    pulled_back,
    pushed_forward,
    together,
)
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

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The type of the numbers that points are made of."""

    @abstractmethod
    def to(self, place: memory.Place) -> Self:
        """Return the same functions on another device, or in another dtype."""

    @abstractmethod
    def matmul(self, X: Tensor, W: Tensor) -> Tensor:
        """Return Φ(X) W, (m, s)."""

    @abstractmethod
    def matmul_gradient(self, X: Tensor, W: Tensor, cotangent: Tensor) -> Tensor:
        """Return the gradient in X, (m, d), of ``Σ cotangent ∘ (Φ(X) W)``."""

    @abstractmethod
    def rowwise(self, X: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        """Return values (s, q) and gradients (s, q, d) of combination i at its ``X[i]`` (q, d)."""

    @cached_property
    def doubled(self) -> Self:
        """The same functions in float64."""
        return self.to(torch.float64)

    def pieces(self, width: int) -> Iterable[tuple[slice, FunctionMap]]:
        """Yield parts j of the functions, about ``width`` of them if the basis can be parted, and
        the map from X (r, d) to Φ(X)[:, j] that autograd differentiates in X any number of times.

        Raises:
            NotImplementedError: of a basis that has products alone.
        """
        raise NotImplementedError(
            f"A {type(self).__name__} is differentiable once: it has no `pieces`. Define them for"
            " further derivatives."
        )

    def total(self, part: Tensor) -> Tensor:
        """Return the sum of ``part`` over the processes that share the functions, if several do."""
        return part


class Features(Basis):
    """F functions, evaluated together in chunks of points and differentiated by autograd."""

    @abstractmethod
    def __call__(self, X: Tensor) -> Tensor:
        """Return Φ(X), (m, F)."""

    def matmul(self, X: Tensor, W: Tensor) -> Tensor:
        return torch.cat([matmul(self(X[rows]), W) for rows in memory.chunks(X, len(W))])

    def matmul_gradient(self, X: Tensor, W: Tensor, cotangent: Tensor) -> Tensor:
        parts = [
            self._contracted(X[rows], matmul(cotangent[rows], W.T))
            for rows in memory.chunks(X, len(W))
        ]
        return torch.cat([gradient for _, gradient in parts])

    def rowwise(self, X: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        flat = X.flatten(0, 1)
        number = torch.arange(len(X), device=X.device).repeat_interleave(X.shape[1])
        parts = [
            self._contracted(flat[rows], W.T[number[rows]]) for rows in memory.chunks(flat, len(W))
        ]
        values, gradients = (torch.cat(part) for part in zip(*parts, strict=True))
        return values.view(X.shape[:-1]), gradients.view_as(X)

    def _contracted(self, X: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums (m,) of ``weights ∘ Φ(X)`` at every point, and their gradients (m, d)."""
        with torch.enable_grad():
            X = X.detach().requires_grad_()
            values = (self(X) * weights).sum(-1)
            (gradient,) = torch.autograd.grad(values.sum(), X)
        return values.detach(), gradient

    def pieces(self, width: int) -> Iterable[tuple[slice, FunctionMap]]:
        return [(slice(None), self)]


@dataclass(frozen=True, eq=False)
class KernelBasis(Basis):
    """The functions k(·, z) for the rows z of Z (n, d). The kernel's hyperparameters are read
    at the first use and kept from then on.
    """

    kernel: Kernel
    Z: Tensor

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kernel, self.Z)

    @cached_property
    def tiles(self) -> KernelTiles:
        """The tiles of k(Z, Z), of which those of k(X, Z) share what is kept of Z."""
        return KernelTiles.of(self.kernel, self.Z, self.Z)

    @property
    def dim(self) -> int:
        return self.Z.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.Z.dtype

    def to(self, place: memory.Place) -> Self:
        return replace(self, kernel=deepcopy(self.kernel).to(place), Z=self.Z.to(place))

    def matmul(self, X: Tensor, W: Tensor) -> Tensor:
        return tiled_matmul(self.tiles.between(X), W)

    def matmul_gradient(self, X: Tensor, W: Tensor, cotangent: Tensor) -> Tensor:
        return tiled_matmul_gradient(self.tiles.between(X), W, cotangent)

    def rowwise(self, X: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        return tiled_rowwise(self.tiles.between(X.reshape(-1, X.shape[-1])), W)

    def pieces(self, width: int) -> Iterable[tuple[slice, FunctionMap]]:
        for j in spans(len(self.Z), width):
            yield j, partial(kernel_values, self.kernel, Z=self.Z[j].detach())


def combine(basis: Basis, X: Tensor, W: Tensor) -> Tensor:
    """Return the combinations with weights W (N, s) at X (..., d), (s, ...); differentiable in X,
    any number of times, and computed for fewer points at once if memory runs out.

    Float64 weights with float32 points ask for arithmetic in float64; the values are in float32.

    Raises:
        ValueError: if W requires gradients, which it would not get.
    """
    if _asks_for_float64(X, W):
        return combine(basis.doubled, X.double(), W).to(X)
    _check_weights(W)
    values: Tensor = _Combine.apply(X.reshape(-1, X.shape[-1]), basis, W)
    return values.T.reshape(W.shape[1], *X.shape[:-1])


def combine_rowwise(basis: Basis, X: Tensor, W: Tensor) -> Tensor:
    """Return combination i at ``X[i]``, (s, q), for X (s, q, d); differentiable in X, any number of
    times.

    The gradient is computed together with the values, in one pass over the tiles, and for fewer
    functions at once if memory runs out. Float64 weights as in :func:`combine`.

    Raises:
        ValueError: if W requires gradients, which it would not get.
    """
    if _asks_for_float64(X, W):
        return combine_rowwise(basis.doubled, X.double(), W).to(X)
    _check_weights(W)
    values: Tensor = _CombineRowwise.apply(X.reshape(-1, X.shape[-1]), basis, W)[0]
    return values.view(X.shape[:-1])


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(X: Tensor, basis: Basis, W: Tensor) -> Tensor:
        try:
            return basis.matmul(X, W)
        except torch.cuda.OutOfMemoryError:
            pass
        return _in_parts(X, lambda rows: (basis.matmul(X[rows], W),))[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        X, ctx.basis, W = inputs
        _save(ctx, X, W)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None]:
        X, W = ctx.saved_tensors
        # Recorded only if it is to be differentiated again, which takes a small product's time
        gradient = _CombineGradient.apply if torch.is_grad_enabled() else _CombineGradient.forward
        return gradient(X, cotangent, ctx.basis, W), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *others: Any) -> Tensor:
        X, W = ctx.saved_tensors
        return pushed_forward(
            together, ctx.basis, W, [X], [tangent], X.new_zeros(len(X), W.shape[1])
        )

    @staticmethod
    def vmap(info: Any, in_dims: Any, X: Tensor, basis: Basis, W: Tensor) -> tuple[Tensor, int]:
        check_unbatched(in_dims[2])
        (X,) = below(info, in_dims, X)
        return _Combine.apply(X, basis, W).unflatten(0, (info.batch_size, -1)), 0


class _CombineGradient(torch.autograd.Function):
    """The gradient in X, (m, d), of ``Σ C ∘ (Φ(X) W)``."""

    @staticmethod
    def forward(X: Tensor, C: Tensor, basis: Basis, W: Tensor) -> Tensor:
        try:
            return basis.matmul_gradient(X, W, C)
        except torch.cuda.OutOfMemoryError:
            pass
        return _in_parts(X, lambda rows: (basis.matmul_gradient(X[rows], W, C[rows]),))[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        X, C, ctx.basis, W = inputs
        _save(ctx, X, C, W)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        X, C, W = ctx.saved_tensors
        of_X, of_C = pulled_back(
            GRADIENT, ctx.basis, W, [X, C], cotangent, ctx.needs_input_grad[:2]
        )
        return of_X, of_C, None, None

    @staticmethod
    def jvp(ctx: Any, of_X: Tensor, of_C: Tensor, *others: Any) -> Tensor:
        X, C, W = ctx.saved_tensors
        return pushed_forward(GRADIENT, ctx.basis, W, [X, C], [of_X, of_C], torch.zeros_like(X))

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, X: Tensor, C: Tensor, basis: Basis, W: Tensor
    ) -> tuple[Tensor, int]:
        check_unbatched(in_dims[3])
        X, C = below(info, in_dims, X, C)
        gradient = _CombineGradient.apply(X, C, basis, W)
        return gradient.unflatten(0, (info.batch_size, -1)), 0


class _CombineRowwise(torch.autograd.Function):
    """Values (s · q,) at X (s · q, d), combination 0 first, and gradients for ``backward``."""

    @staticmethod
    def forward(X: Tensor, basis: Basis, W: Tensor) -> tuple[Tensor, Tensor]:
        points = X.view(W.shape[1], -1, X.shape[1])
        found: tuple[Tensor, ...] = ()
        with suppress(torch.cuda.OutOfMemoryError):
            found = basis.rowwise(points, W)
        values, gradient = found or _in_parts(points, lambda i: basis.rowwise(points[i], W[:, i]))
        return values.view(-1), gradient.view(-1, X.shape[1])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        X, ctx.basis, W = inputs
        ctx.mark_non_differentiable(output[1])
        _save(ctx, X, W, output[1])

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        X, W, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():  # what follows is to be differentiated again
            gradient = _OwnGradient.apply(X, gradient, ctx.basis, W)
        return cotangent.unsqueeze(-1) * gradient, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *others: Any) -> tuple[Tensor, None]:
        X, W, _ = ctx.saved_tensors
        rows = [X, _owners(X, W)]
        slope = pushed_forward(each_own, ctx.basis, W, rows, [tangent, None], X.new_zeros(len(X)))
        return slope, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, X: Tensor, basis: Basis, W: Tensor) -> Any:
        check_unbatched(in_dims[2])
        (X,) = _beside(info, in_dims, W, X)
        outputs = _CombineRowwise.apply(X, basis, W)
        return tuple(_apart(info, W, part) for part in outputs), 0


class _OwnGradient(torch.autograd.Function):
    """The gradients (s · q, d) that came with the values, as a function of the points."""

    @staticmethod
    def forward(X: Tensor, gradient: Tensor, basis: Basis, W: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        X, _, ctx.basis, W = inputs
        _save(ctx, X, W)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None, None]:
        return _OwnGradient.curved(ctx, cotangent), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *others: Any) -> Tensor:
        return _OwnGradient.curved(ctx, tangent)

    @staticmethod
    def curved(ctx: Any, V: Tensor) -> Tensor:
        """Return the Hessians at the points times V (s · q, d); they are symmetric."""
        X, W = ctx.saved_tensors
        rows = [X, _owners(X, W), X.new_ones(len(X))]
        return pulled_back(OWN_GRADIENT, ctx.basis, W, rows, V, [True, False, False])[0]  # type: ignore[return-value]

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, X: Tensor, gradient: Tensor, basis: Basis, W: Tensor
    ) -> tuple[Tensor, int]:
        check_unbatched(in_dims[3])
        X, gradient = _beside(info, in_dims, W, X, gradient)
        return _apart(info, W, _OwnGradient.apply(X, gradient, basis, W)), 0


for _function in (_Combine, _CombineRowwise):
    # PyTorch asks for it at every call: without, a fifth of the time of a small product
    _function.forward.__signature__ = inspect.signature(_function.forward)  # type: ignore[union-attr]


def _save(ctx: Any, *tensors: Tensor) -> None:
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)


def _asks_for_float64(X: Tensor, W: Tensor) -> bool:
    return X.dtype == torch.float32 and W.dtype == torch.float64


def _check_weights(W: Tensor) -> None:
    if W.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            "`W` must not require gradients: combinations are differentiable in their points alone."
            " Give `W.detach()`, or multiply the functions' values by W yourself."
        )


def _in_parts(X: Tensor, evaluate: Callable[[slice], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Return ``evaluate`` of all rows of X, at least two, in parts that fit a device's memory."""

    def evaluated(size: int) -> tuple[Tensor, ...]:
        parts = [evaluate(rows) for rows in spans(len(X), size)]
        return tuple(torch.cat(part) for part in zip(*parts, strict=True))

    return memory.halving(evaluated, max(1, len(X) // 2), "A part", smallest=1)


def _owners(X: Tensor, W: Tensor) -> Tensor:
    """Return the combination that each of the rows X (s · q, d) belongs to."""
    num_functions = W.shape[1]
    return torch.arange(num_functions, device=X.device).repeat_interleave(len(X) // num_functions)


def _beside(info: Any, in_dims: Any, W: Tensor, *rows: Tensor) -> list[Tensor]:
    """Return the rows (s · q, ...) of all elements of a batch as (s · batch · q, ...)."""
    return [
        part.unflatten(1, (W.shape[1], -1)).transpose(0, 1).flatten(0, 2)
        for part in in_front(info, in_dims, *rows)
    ]


def _apart(info: Any, W: Tensor, part: Tensor) -> Tensor:
    """Return (batch, s · q, ...) of (s · batch · q, ...)."""
    return part.unflatten(0, (W.shape[1], info.batch_size, -1)).transpose(0, 1).flatten(1, 2)
