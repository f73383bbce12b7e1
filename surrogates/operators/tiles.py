"""Evaluate any tile of a kernel matrix, and its gradient, and multiply tile by tile.

Notation: X1 (m, d) rows, X2 (n, d) columns, W (n, s) weights; a tile is ``k(X1[i], X2[j])`` for
slices or index tensors i, j.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import cached_property, reduce, wraps
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel
from torch import Tensor

from surrogates import memory
from surrogates.operators import cuda, native
from surrogates.operators.forms import PROFILES, StationaryKernel, composed, kind_of, unscaled
from surrogates.operators.linalg import matmul
from surrogates.operators.tanimoto import TanimotoKernel, squared_lengths

Index = slice | Tensor
ALL = slice(None)
Others = ParamSpec("Others")
Result = TypeVar("Result")

TILE_SIDE = {"cpu": 512}
DEFAULT_SIDE = 8192  # elsewhere, where it fits


class KernelTiles(ABC):
    """The tiles of k(X1, X2): values, and weighted contractions that also have gradients in X1."""

    def __init__(self, X1: Tensor, X2: Tensor):
        self.X1 = X1
        self.X2 = X2

    @staticmethod
    def of(kernel: Kernel, X1: Tensor, X2: Tensor) -> "KernelTiles":
        """Return closed-form tiles where the kernel has them, its own evaluation otherwise."""
        stationary = StationaryKernel.of(kernel)
        if stationary is not None:
            return StationaryTiles(stationary, X1, X2)
        outputscale, base = unscaled(kernel)
        if type(base) is TanimotoKernel and not base.batch_shape:
            return TanimotoTiles(outputscale, kernel.active_dims, X1, X2)
        return ComposedTiles.of_parts(kernel, X1, X2) or GenericTiles(kernel, X1, X2)

    @abstractmethod
    def tile(self, i: Index, j: Index, out: Tensor | None = None) -> Tensor:
        """Return k(X1[i], X2[j]), written to ``out``, contiguous, if that is given."""

    def blocks(self, index: Tensor) -> Tensor:
        """Return k(X1[i], X2[i]) for every row i of ``index`` (t, b), (t, b, b)."""
        return torch.stack([self.tile(row, row) for row in index])

    @abstractmethod
    def contract(self, i: Index, j: Index, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``v = Σ_j k(x_i, z_j) w_ij`` (r,) and its gradient ``∂v_i/∂x_i`` (r, d).

        Args:
            weights: (g, 1, c) or (g, r/g, c) for r rows i, in g equal groups, and c columns j.
        """

    @abstractmethod
    def rows(self, i: Index) -> "KernelTiles":
        """Return the tiles of k(X1[i], X2)."""

    @abstractmethod
    def columns(self, j: Index) -> "KernelTiles":
        """Return the tiles of k(X1, X2[j])."""

    @abstractmethod
    def between(self, X1: Tensor) -> "KernelTiles":
        """Return the tiles of k(X1, X2) for other points X1; what is kept of X2 is shared."""

    @abstractmethod
    def to(self, dtype: torch.dtype) -> "KernelTiles":
        """Return the tiles in another precision."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """Return k(x, x) for the rows x of X1, (m,)."""

    @property
    def variance(self) -> Tensor | None:
        """k(x, x), a scalar, where it is the same everywhere."""
        return None

    @property
    def stationary(self) -> StationaryKernel | None:
        """The closed form of the kernel, ``None`` where its own evaluation is used."""
        return None

    def _of_all_columns(self, gradient: Tensor, columns: Tensor | None) -> Tensor:
        """Return a gradient in some ``columns`` of X1, or in all if ``None``, as one in X1."""
        if columns is None:
            return gradient
        whole = gradient.new_zeros(len(gradient), self.X1.shape[1])
        return whole.index_add_(1, columns.to(gradient.device), gradient)

    def fused_matmul(self, W: Tensor) -> Tensor | None:
        """Return k(X1, X2) @ W by one kernel of the device; ``None`` where it has none for this."""
        return None

    def fused_rowwise(self, W: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return values (m,) and gradients (m, d) of each function at its own points, likewise."""
        return None


@dataclass(frozen=True, eq=False)
class ScaledPoints:
    """Points X (n, d) in units of the lengthscale, about a centre that both sides of a tile share,
    and what products of them are made of, each made when it is first asked for.
    """

    X: Tensor

    @cached_property
    def squares(self) -> Tensor:
        return self.X.square().sum(1, keepdim=True)

    @cached_property
    def left(self) -> Tensor:
        """[x, ‖x‖², 1], (n, d + 2)."""
        return torch.cat([self.X, self.squares, torch.ones_like(self.squares)], 1)

    @cached_property
    def right(self) -> Tensor:
        """[−2x, 1, ‖x‖²], (n, d + 2)."""
        return torch.cat([-2.0 * self.X, torch.ones_like(self.squares), self.squares], 1)

    @cached_property
    def panels(self) -> native.Panels:
        return native.Panels.of(self.X)


class StationaryTiles(KernelTiles):
    """Tiles of a kernel in closed form.

    On a CPU compiled code finds differences, values and sums in one pass. Otherwise there is one
    small matrix product for d², then one fused elementwise pass: with ``L = [x, ‖x‖², 1]`` and ``R
    = [−2z, 1, ‖z‖²]``, ``d² = L Rᵀ``. Inputs are centred first, so that the cancellation error is
    eps · (radius / lengthscale)². Where that is above 1e-4, beside d² at the distances where the
    kernel changes, and for kernels that cannot bear any (Matérn-1/2), the differences are computed
    instead.
    """

    def __init__(
        self, kernel: StationaryKernel, X1: Tensor, X2: Tensor, largest_rounding: float = 1e-4
    ):
        super().__init__(X1, X2)
        self.kernel = kernel
        self.profile = PROFILES[kernel.profile]
        self.outputscale = kernel.outputscale.to(X2)
        self.lengthscale = kernel.lengthscale.to(X2)
        self.centre = kernel.scaled(X2).mean(0)
        self.right = self._scaled(X2)
        self.left = self.right if X1 is X2 else self._scaled(X1)
        squares = torch.cat([self.right.squares, self.left.squares])
        farthest = squares.max().item() if len(squares) else 0.0
        cancels = not torch.finfo(squares.dtype).eps * farthest <= largest_rounding
        self.takes_differences = self.profile.nu < 1.0 or cancels

    def _panels(self, j: Index, *weights: Tensor) -> native.Panels | None:
        """Return the columns j as compiled code takes them; ``None`` where it cannot."""
        X = self.right.X
        if not native.serves(X, self.left.X, self.outputscale, *weights):
            return None
        part = self.right.panels.part(j) if isinstance(j, slice) else None
        return native.Panels.of(X[j]) if part is None else part

    def _scaled(self, X: Tensor) -> ScaledPoints:
        X = X if self.kernel.active_dims is None else X[:, self.kernel.active_dims]
        return ScaledPoints(X / self.lengthscale - self.centre)

    def _squared_distances(self, i: Index, j: Index, out: Tensor | None = None) -> Tensor:
        if not self.takes_differences:
            L = self.left.left[i]
            R = self.right.right[j]
            if out is None:
                return matmul(L, R.T)
            with memory.full_precision_on(L.device):
                return torch.mm(L, R.T, out=out)
        d2 = torch.cdist(
            self.left.X[i], self.right.X[j], compute_mode="donot_use_mm_for_euclid_dist"
        ).square_()
        return d2 if out is None else out.copy_(d2)

    def tile(self, i: Index, j: Index, out: Tensor | None = None) -> Tensor:
        if (panels := self._panels(j)) is not None:
            return native.values(self.kernel.profile, self.left.X[i], panels, self.outputscale, out)
        d2 = self._squared_distances(i, j, out)
        # Flat: compiled once for all shapes
        return self.profile.value_(d2.view(-1), self.outputscale).view_as(d2)

    def blocks(self, index: Tensor) -> Tensor:
        d2 = torch.cdist(
            self.left.X[index], self.right.X[index], compute_mode="donot_use_mm_for_euclid_dist"
        ).square_()
        return self.profile.value_(d2.view(-1), self.outputscale).view_as(d2)

    def contract(self, i: Index, j: Index, weights: Tensor) -> tuple[Tensor, Tensor]:
        if (panels := self._panels(j, weights)) is not None:
            values, gradient = native.kernel_sums(
                self.kernel.profile, self.left.X[i], panels, weights.flatten(0, 1)
            )
        else:
            d2 = self._squared_distances(i, j)
            sums, slopes = self.profile.contract(d2.view(len(weights), -1, d2.shape[1]), weights)
            values = sums.reshape(-1)
            slopes = slopes.reshape(d2.shape)
            # ∂d²/∂x = 2 (x − z): sum over columns with R, which holds −2z and 1.
            L = self.left.left[i]
            d = L.shape[1] - 2
            sums = matmul(slopes, self.right.right[j][:, : d + 1])
            gradient = torch.addcmul(sums[:, :d], L[:, :d], sums[:, d:], value=2.0)
        gradient = self.outputscale * (gradient / self.lengthscale)
        if self.kernel.active_dims is not None:
            gradient = self._of_all_columns(gradient, self.kernel.active_dims)
        return self.outputscale * values, gradient

    def _in_units(self, values: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return sums of κ, and gradients in scaled inputs, as sums of k and gradients in X1."""
        gradient = self.outputscale * (gradient / self.lengthscale)
        return self.outputscale * values, self._of_all_columns(gradient, self.kernel.active_dims)

    def rows(self, i: Index) -> KernelTiles:
        return self._restricted(self.X1[i], self.X2, ScaledPoints(self.left.X[i]), self.right)

    def columns(self, j: Index) -> KernelTiles:
        return self._restricted(self.X1, self.X2[j], self.left, ScaledPoints(self.right.X[j]))

    def _restricted(
        self, X1: Tensor, X2: Tensor, left: ScaledPoints, right: ScaledPoints
    ) -> KernelTiles:
        part = copy(self)
        part.X1, part.X2, part.left, part.right = X1, X2, left, right
        return part

    def between(self, X1: Tensor) -> KernelTiles:
        return self._restricted(X1, self.X2, self._scaled(X1), self.right)

    def diagonal(self) -> Tensor:
        return self.outputscale.repeat(len(self.X1))

    @property
    def variance(self) -> Tensor:
        return self.outputscale

    @property
    def stationary(self) -> StationaryKernel:
        return self.kernel

    def fused_matmul(self, W: Tensor) -> Tensor | None:
        if W.device.type not in cuda.DEVICE_TYPES:
            return None
        values = cuda.fused_matmul(self.kernel.profile, self.left.X, self.right.X, W)
        return None if values is None else self.outputscale * values

    def fused_rowwise(self, W: Tensor) -> tuple[Tensor, Tensor] | None:
        profile = self.kernel.profile
        if (panels := self._panels(ALL, W)) is not None:
            return self._in_units(*native.kernel_sums(profile, self.left.X, panels, W.T))
        if W.device.type not in cuda.DEVICE_TYPES:
            return None
        fused = cuda.fused_rowwise(profile, self.left.X, self.right.X, W)
        return None if fused is None else self._in_units(*fused)

    def to(self, dtype: torch.dtype) -> KernelTiles:
        return StationaryTiles(self.kernel, self.X1.to(dtype), self.X2.to(dtype))


class ComposedTiles(KernelTiles):
    """Tiles of a sum or product of kernels, made of the parts' own.

    Args:
        parts: of the same points, at least one.
        factor: of the whole, a scalar.
    """

    combine: ClassVar[Any]  # what is done to the parts' values

    def __init__(self, parts: Sequence[KernelTiles], factor: Tensor):
        super().__init__(parts[0].X1, parts[0].X2)
        self.parts = parts
        self.factor = factor.to(self.X1)

    @staticmethod
    def of_parts(kernel: Kernel, X1: Tensor, X2: Tensor) -> "ComposedTiles | None":
        """Return the tiles of a sum or product, in ``ScaleKernel`` or not; ``None`` of another
        kernel, and of one that picks columns or has a batch shape as a whole.
        """
        active_dims = kernel.active_dims
        factor, kernel = unscaled(kernel)
        if active_dims is not None or kernel.batch_shape:
            return None
        kernel = composed(kernel, X1.shape[-1])
        kinds = {AdditiveKernel: SumTiles, ProductKernel: ProductTiles}
        tiles = kinds.get(kind_of(kernel))
        if tiles is None:
            return None
        return tiles([KernelTiles.of(part, X1, X2) for part in kernel.kernels], factor)

    def _each(self, change: Callable[[KernelTiles], KernelTiles]) -> KernelTiles:
        return type(self)([change(part) for part in self.parts], self.factor)

    def rows(self, i: Index) -> KernelTiles:
        return self._each(lambda part: part.rows(i))

    def columns(self, j: Index) -> KernelTiles:
        return self._each(lambda part: part.columns(j))

    def between(self, X1: Tensor) -> KernelTiles:
        return self._each(lambda part: part.between(X1))

    def to(self, dtype: torch.dtype) -> KernelTiles:
        return self._each(lambda part: part.to(dtype))

    def tile(self, i: Index, j: Index, out: Tensor | None = None) -> Tensor:
        values = self._whole(part.tile(i, j) for part in self.parts)
        return values if out is None else out.copy_(values)

    def blocks(self, index: Tensor) -> Tensor:
        return self._whole(part.blocks(index) for part in self.parts)

    def diagonal(self) -> Tensor:
        return self._whole(part.diagonal() for part in self.parts)

    @property
    def variance(self) -> Tensor | None:
        found = [part.variance for part in self.parts]
        known = [variance for variance in found if variance is not None]
        return self._whole(known) if len(known) == len(found) else None

    def _whole(self, values: Iterable[Tensor]) -> Tensor:
        return self.factor * reduce(self.combine, values)


class SumTiles(ComposedTiles):
    """Tiles of a sum of kernels."""

    combine = torch.add

    def contract(self, i: Index, j: Index, weights: Tensor) -> tuple[Tensor, Tensor]:
        return self._added([part.contract(i, j, weights) for part in self.parts])

    def fused_rowwise(self, W: Tensor) -> tuple[Tensor, Tensor] | None:
        found = [part.fused_rowwise(W) for part in self.parts]
        known = [both for both in found if both is not None]
        return self._added(known) if len(known) == len(found) else None

    def _added(self, parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        values, gradients = zip(*parts, strict=True)
        return self.factor * sum(values), self.factor * sum(gradients)


class ProductTiles(ComposedTiles):
    """Tiles of a product of kernels."""

    combine = torch.mul

    def contract(self, i: Index, j: Index, weights: Tensor) -> tuple[Tensor, Tensor]:
        tiles = [part.tile(i, j) for part in self.parts]
        gradient = torch.zeros_like(self.X1[i])
        for k, part in enumerate(self.parts):
            others = (
                tile.view(len(weights), -1, tile.shape[1])
                for number, tile in enumerate(tiles)
                if number != k
            )
            values, slope = part.contract(i, j, reduce(torch.mul, others, weights))
            gradient += slope
        return self.factor * values, self.factor * gradient


class TanimotoTiles(KernelTiles):
    """Tiles of a Tanimoto kernel: one matrix product ⟨x, z⟩, and one elementwise pass.

    Args:
        columns: of the fingerprint; ``None`` for all.
        squares: ‖x‖² of X1 (m,) and X2 (n,), of these columns; computed if ``None``.
    """

    def __init__(
        self,
        outputscale: Tensor,
        columns: Tensor | None,
        X1: Tensor,
        X2: Tensor,
        squares: tuple[Tensor, Tensor] | None = None,
    ):
        super().__init__(X1, X2)
        self._given = outputscale, columns
        self.outputscale = outputscale.to(X2)
        self.active_dims = columns
        self.L = self._active(X1)
        self.R = self._active(X2)
        self.squares = (
            (squared_lengths(self.L), squared_lengths(self.R)) if squares is None else squares
        )
        self.meets_zeros = bool((self.squares[0] == 0).any() & (self.squares[1] == 0).any())

    def tile(self, i: Index, j: Index, out: Tensor | None = None) -> Tensor:
        products, union = self._parts(i, j)
        return torch.div(products, union, out=out).mul_(self.outputscale)

    def contract(self, i: Index, j: Index, weights: Tensor) -> tuple[Tensor, Tensor]:
        products, union = self._parts(i, j)
        weights = weights.expand(-1, len(products) // len(weights), -1).reshape_as(union)
        values = (products / union * weights).sum(1)
        # ∂k/∂x = z (‖x‖² + ‖z‖²) / union² − 2 x ⟨x, z⟩ / union²: nothing where both are zero
        weights = weights / union.square()
        gradient = matmul(weights * (products + union), self.R[j])
        gradient -= 2.0 * (weights * products).sum(1, keepdim=True) * self.L[i]
        return self.outputscale * values, self._of_all_columns(
            self.outputscale * gradient, self.active_dims
        )

    def _parts(self, i: Index, j: Index) -> tuple[Tensor, Tensor]:
        """Return ⟨x, z⟩ and ‖x‖² + ‖z‖² − ⟨x, z⟩; 1 and 1 where both x and z are zero."""
        products = matmul(self.L[i], self.R[j].T)
        union = torch.sub(self.squares[1][j], products).add_(self.squares[0][i].unsqueeze(1))
        if self.meets_zeros:
            both_zero = union == 0.0
            products = products.masked_fill(both_zero, 1.0)
            union = union.masked_fill(both_zero, 1.0)
        return products, union

    def _active(self, X: Tensor) -> Tensor:
        return X if self.active_dims is None else X[:, self.active_dims]

    def _of(self, X1: Tensor, X2: Tensor, *squares: tuple[Tensor, Tensor]) -> KernelTiles:
        return TanimotoTiles(*self._given, X1, X2, *squares)

    def rows(self, i: Index) -> KernelTiles:
        return self._of(self.X1[i], self.X2, (self.squares[0][i], self.squares[1]))

    def columns(self, j: Index) -> KernelTiles:
        return self._of(self.X1, self.X2[j], (self.squares[0], self.squares[1][j]))

    def between(self, X1: Tensor) -> KernelTiles:
        return self._of(X1, self.X2, (squared_lengths(self._active(X1)), self.squares[1]))

    def diagonal(self) -> Tensor:
        return self.outputscale.repeat(len(self.X1))

    def to(self, dtype: torch.dtype) -> KernelTiles:
        return self._of(self.X1.to(dtype), self.X2.to(dtype))


class GenericTiles(KernelTiles):
    """Tiles of any GPyTorch kernel by the kernel's own evaluation; gradients by autograd."""

    def __init__(self, kernel: Kernel, X1: Tensor, X2: Tensor):
        super().__init__(X1, X2)
        self.kernel = kernel

    @torch.no_grad()
    def tile(self, i: Index, j: Index, out: Tensor | None = None) -> Tensor:
        values = self.kernel(self.X1[i], self.X2[j]).to_dense()
        return values if out is None else out.copy_(values)

    def contract(self, i: Index, j: Index, weights: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            x = self.X1[i].detach().requires_grad_()
            tile = self.kernel(x, self.X2[j].detach()).to_dense()
            values = (tile.view(len(weights), -1, tile.shape[1]) * weights).sum(-1).reshape(-1)
            if not values.requires_grad:  # of what is no number, such as a task
                return values, torch.zeros_like(x)
            (gradient,) = torch.autograd.grad(values.sum(), x)
        return values.detach(), gradient

    def rows(self, i: Index) -> KernelTiles:
        return GenericTiles(self.kernel, self.X1[i], self.X2)

    def columns(self, j: Index) -> KernelTiles:
        return GenericTiles(self.kernel, self.X1, self.X2[j])

    def between(self, X1: Tensor) -> KernelTiles:
        return GenericTiles(self.kernel, X1, self.X2)

    @torch.no_grad()
    def diagonal(self) -> Tensor:
        parts = spans(len(self.X1), tile_side(self.X1.device) ** 2 // max(1, self.X1.shape[1]))
        return torch.cat([self.kernel(self.X1[i], diag=True) for i in parts])

    def to(self, dtype: torch.dtype) -> KernelTiles:
        return GenericTiles(deepcopy(self.kernel).to(dtype), self.X1.to(dtype), self.X2.to(dtype))


class CrossCovariance(torch.autograd.Function):
    """k(X, Z), (m, n), from X and the tiles of k(·, Z), differentiable once in X; Z and all
    hyperparameters are constants.
    """

    @staticmethod
    def forward(ctx: Any, X: Tensor, tiles: KernelTiles) -> Tensor:
        ctx.tiles = tiles.between(X)
        return ctx.tiles.tile(ALL, ALL)

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, None]:
        if torch.is_grad_enabled():  # by `create_graph`
            raise NotImplementedError(
                "The covariance with given points has first derivatives only. Leave out"
                " `create_graph`, or differentiate `kernel_values`."
            )
        return ctx.tiles.contract(ALL, ALL, G.contiguous().unsqueeze(0))[1], None


def spans(length: int, size: int) -> Iterator[slice]:
    """Yield consecutive slices of at most ``size`` that cover ``range(length)``."""
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


def tile_spans(num_rows: int, num_columns: int, side: int) -> Iterator[tuple[slice, slice]]:
    """Yield the rows and columns of the tiles of a matrix, row after row: tiles of equal height, at
    most ``side``, with ``side`` columns, and several times as many where there are few rows.
    """
    height = max(1, math.ceil(num_rows / math.ceil(max(1, num_rows) / side)))
    for i in spans(num_rows, height):
        for j in spans(num_columns, side // height * side):
            yield i, j


def tile_side(device: torch.device) -> int:
    """Return the side of a tile on ``device``, in rows; on CUDA at most what fits free memory."""
    side = TILE_SIDE.get(device.type, DEFAULT_SIDE)
    return memory.side_that_fits(device, side) if device.type in memory.DEVICE_TYPES else side


def with_tiles_that_fit(
    product: Callable[Concatenate[int, KernelTiles, Others], Result],
) -> Callable[Concatenate[KernelTiles, Others], Result]:
    """Give ``product(side, tiles, ...)`` the device's tile side first, and half of it whenever
    memory runs out.

    Raises:
        MemoryError: if the smallest tiles do not fit.
    """

    @wraps(product)
    def fitted(tiles: KernelTiles, *others: Others.args, **named: Others.kwargs) -> Result:
        largest = tile_side(tiles.X1.device)
        try:
            return product(largest, tiles, *others, **named)
        except torch.cuda.OutOfMemoryError:
            pass
        return memory.halving(
            lambda side: product(side, tiles, *others, **named), largest // 2, "A tile"
        )

    return fitted


def evaluate(tiles: KernelTiles) -> Tensor:
    """Return the whole of k(X1, X2), evaluated a few whole rows at a time."""
    matrix = tiles.X1.new_empty(len(tiles.X1), len(tiles.X2))
    _evaluate_into(tiles, matrix)
    return matrix


@with_tiles_that_fit
def _evaluate_into(side: int, tiles: KernelTiles, matrix: Tensor) -> None:
    m, n = matrix.shape
    for i in spans(m, max(1, side**2 // max(1, n))):
        tiles.tile(i, ALL, out=matrix[i])


@with_tiles_that_fit
def tiled_matmul(side: int, tiles: KernelTiles, W: Tensor) -> Tensor:
    """Return k(X1, X2) @ W, (m, s), evaluating one tile at a time."""
    if (fused := tiles.fused_matmul(W)) is not None:
        return fused
    out = W.new_zeros(len(tiles.X1), W.shape[1])
    with memory.full_precision_on(W.device):
        for i, j in tile_spans(len(tiles.X1), len(tiles.X2), side):
            out[i].addmm_(tiles.tile(i, j), W[j])
    return out


@with_tiles_that_fit
def tiled_matmul_gradient(side: int, tiles: KernelTiles, W: Tensor, cotangent: Tensor) -> Tensor:
    """Return the gradient in X1, (m, d), of ``Σ cotangent ∘ (k(X1, X2) @ W)``."""
    gradient = torch.zeros_like(tiles.X1)
    for i in spans(len(tiles.X1), side):
        for j in spans(len(tiles.X2), side):
            gradient[i] += tiles.contract(i, j, matmul(cotangent[i], W[j].T).unsqueeze(0))[1]
    return gradient


@with_tiles_that_fit
def tiled_rowwise(side: int, tiles: KernelTiles, W: Tensor) -> tuple[Tensor, Tensor]:
    """Return values (s, q) and gradients (s, q, d) of ``f_i(x) = Σ_j k(x, z_j) W_ji``, each
    function at its own q points.

    Args:
        tiles: k(X1, X2) with X1 (s · q, d), the points of function 0 first.
        W: (n, s), one column a function.
    """
    num_functions = W.shape[1]
    points = len(tiles.X1) // num_functions
    if (fused := tiles.fused_rowwise(W)) is not None:
        return fused[0].view(num_functions, points), fused[1].view(num_functions, points, -1)
    values = W.new_zeros(len(tiles.X1))
    gradient = torch.zeros_like(tiles.X1)
    point_step = min(points, side)
    for group in spans(num_functions, side // point_step):
        weights = W[:, group].T.contiguous().unsqueeze(1)  # by columns they are read half as fast
        for part in spans(points, point_step):
            # Several functions at all of their points, or one at a part of them
            rows = slice(group.start * points + part.start, (group.stop - 1) * points + part.stop)
            for j in spans(len(tiles.X2), side):
                value, slope = tiles.contract(rows, j, weights[..., j])
                values[rows] += value
                gradient[rows] += slope
    return values.view(num_functions, points), gradient.view(num_functions, points, -1)
