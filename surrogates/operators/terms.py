"""Derivatives of any order of sums over many functions, a tile at a time.

A term is a function of rows that go together, such as points and cotangents, which is summed over
functions φ_j with weights: ``Σ_j term(φ_j, W_j, *rows)``. Its derivatives are terms, too, so that
forward and reverse mode need one autograd function. Notation: X (m, d), W (N, s).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from surrogates import memory

FunctionMap = Callable[[Tensor], Tensor]
Term = Callable[..., Tensor]  # of functions, their weights W, and tensors with a row a point


class Parted(Protocol):
    """N functions in parts that autograd differentiates."""

    def pieces(self, width: int) -> Iterable[tuple[slice, FunctionMap]]: ...

    def total(self, part: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class _Pullback:
    """The product of ``cotangent`` with the derivative of ``term`` in its row argument ``index``,
    as another term: of one row argument more, the cotangent.
    """

    term: Term
    index: int

    def __call__(self, functions: FunctionMap, W: Tensor, *rows: Tensor) -> Tensor:
        *inner, cotangent = rows
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            x = inner[self.index]
            if not x.requires_grad:
                x = inner[self.index] = x.detach().requires_grad_()
            value = self.term(functions, W, *inner)
            if not value.requires_grad:  # it is constant
                return torch.zeros_like(x)
            (gradient,) = torch.autograd.grad(
                value, x, cotangent, create_graph=again, allow_unused=True, materialize_grads=True
            )
        return gradient


@dataclass(frozen=True)
class _Pushforward:
    """The derivative of ``term`` in its row arguments ``indices`` along tangents, as another term:
    of the row arguments of ``term``, zeros of the shape of its value, and the tangents.
    """

    term: Term
    indices: tuple[int, ...]

    def __call__(self, functions: FunctionMap, W: Tensor, *rows: Tensor) -> Tensor:
        num_inner = len(rows) - len(self.indices) - 1
        tangents = rows[num_inner + 1 :]
        # A gradient is linear in its cotangent; its derivative in that is the one along a tangent
        slopes = [
            _Pullback(_Pullback(self.term, index), num_inner)(
                functions, W, *rows[: num_inner + 1], tangent
            )
            for index, tangent in zip(self.indices, tangents, strict=True)
        ]
        return sum(slopes[1:], slopes[0])


def together(functions: FunctionMap, W: Tensor, X: Tensor) -> Tensor:
    """The term of all combinations at every point."""
    return functions(X) @ W


def each_own(functions: FunctionMap, W: Tensor, X: Tensor, own: Tensor) -> Tensor:
    """The term of one combination at a point, the one with the number ``own``."""
    return (functions(X) * W.T[own]).sum(-1)


GRADIENT = _Pullback(together, 0)  # of rows X, C
OWN_GRADIENT = _Pullback(each_own, 0)  # of rows X, own, C


class _Derivative(torch.autograd.Function):
    """Σ over the functions of a term, row by row, for rows that go together; its derivatives are
    of the same kind.

    A tile of a part of the functions and of the rows is evaluated by autograd, and discarded: the
    memory that a derivative of any order takes is bounded.
    """

    @staticmethod
    def forward(term: Term, basis: Parted, W: Tensor, *rows: Tensor) -> Tensor:
        rows = tuple(part.detach() for part in rows)
        entries = memory.chunk_entries(W.device)
        side = max(1, math.isqrt(entries) // 4)  # autograd keeps many tiles

        def total(size: int) -> Tensor:
            sums: list[Tensor] = []
            for j, functions in basis.pieces(size):
                height = max(1, size**2 // max(1, len(W[j])))
                tiles = [
                    term(functions, W[j], *(part[i : i + height] for part in rows)).detach()
                    for i in range(0, max(1, len(rows[0])), height)
                ]
                part = torch.cat(tiles) if len(tiles) > 1 else tiles[0]  # without a copy
                sums.append(sums.pop() + part if sums else part)
            return sums[0]

        return basis.total(memory.halving(total, side, "A tile"))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.term, ctx.basis, *tensors = inputs
        ctx.shape = output.shape
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        W, *rows = ctx.saved_tensors
        needed = ctx.needs_input_grad[3:]
        return None, None, None, *pulled_back(ctx.term, ctx.basis, W, rows, cotangent, needed)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        W, *rows = ctx.saved_tensors
        zeros = rows[0].new_zeros(ctx.shape)
        along = [
            tangent if row.is_floating_point() else None
            for row, tangent in zip(rows, tangents[3:], strict=True)
        ]
        return pushed_forward(ctx.term, ctx.basis, W, rows, along, zeros)

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, term: Term, basis: Parted, W: Tensor, *rows: Tensor
    ) -> tuple[Tensor, int]:
        check_unbatched(in_dims[2])
        result: Tensor = _Derivative.apply(term, basis, W, *below(info, in_dims[3:], *rows))
        return result.unflatten(0, (info.batch_size, -1)), 0


def pulled_back(
    term: Term,
    basis: Parted,
    W: Tensor,
    rows: Sequence[Tensor],
    cotangent: Tensor,
    needed: Sequence[bool],
) -> list[Tensor | None]:
    """Return the gradients of ``Σ cotangent ∘ term`` in the rows where they are needed."""
    return [
        _Derivative.apply(_Pullback(term, k), basis, W, *rows, cotangent) if wanted else None
        for k, wanted in enumerate(needed)
    ]


def pushed_forward(
    term: Term,
    basis: Parted,
    W: Tensor,
    rows: Sequence[Tensor],
    tangents: Sequence[Tensor | None],
    zeros: Tensor,
) -> Tensor:
    """Return the derivative of ``term`` along the tangents of its rows, ``None`` for zero.

    It is a single call: operations around it would lose the tangents of an outer forward mode,
    which PyTorch switches off in here.
    """
    known = [(k, tangent) for k, tangent in enumerate(tangents) if tangent is not None]
    pushforward = _Pushforward(term, tuple(k for k, _ in known))
    along = (tangent for _, tangent in known)
    slope: Tensor = _Derivative.apply(pushforward, basis, W, *rows, zeros, *along)
    return slope


def in_front(info: Any, in_dims: Any, *rows: Tensor) -> Iterator[Tensor]:
    """Yield the rows with the dimension that ``vmap`` maps over first."""
    for part, dim in zip(rows, in_dims, strict=False):
        yield part.expand(info.batch_size, *part.shape) if dim is None else part.movedim(dim, 0)


def below(info: Any, in_dims: Any, *rows: Tensor) -> list[Tensor]:
    """Return the rows of all elements of a batch, one element below the other."""
    return [part.flatten(0, 1) for part in in_front(info, in_dims, *rows)]


def check_unbatched(dim: int | None) -> None:
    """Require weights that ``vmap`` does not map over.

    Raises:
        NotImplementedError: if it does.
    """
    if dim is not None:
        raise NotImplementedError(
            "`torch.func.vmap` must map over the points alone, got a batch of weights W. Give the"
            " weights of all combinations as the columns of one W."
        )
