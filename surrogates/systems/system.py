"""What a linear system gives the solvers: products, parts of its matrix, an account of its cost;
the rows of its matrices; and what it is solved for.

Notation: K (n, n) kernel matrix, Σ = diag(noise) with ``noise`` a variance or n of them, H = K + Σ,
B (n, s) right-hand sides, W (n, s) unknowns.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from surrogates import checks, memory

Apply = Callable[[Tensor], Tensor]


class Rows:
    """n rows, all of them in this process.

    Solvers ask it for every sum over rows and every choice of some: what they need of the other
    processes, if there are any, is here. Every method but ``owned`` and ``add`` is called by all
    processes, in the same order.

    Attributes:
        n: the number of rows.
        num_held: of them in this process.
        rank, size: the number of this process, and how many there are.
        start: the first row that this process holds.
        is_shared: whether other processes may hold other rows.
    """

    is_shared: ClassVar[bool] = False

    def __init__(self, n: int):
        self.n = n
        self.num_held = n
        self.rank = 0
        self.size = 1
        self.start = 0

    @property
    def own(self) -> slice:
        """Which rows this process holds."""
        return slice(self.start, self.start + self.num_held)

    def norm(self, R: Tensor) -> Tensor:
        """Return the Euclidean norm of each column of R (n, s), (s,)."""
        return torch.linalg.vector_norm(R, dim=0)

    def dot(self, A: Tensor, B: Tensor) -> Tensor:
        """Return the inner product of each pair of columns, (s,)."""
        return torch.linalg.vecdot(A, B, dim=0)

    def all(self, mask: Tensor) -> Tensor:
        """Return whether every row of each column of ``mask`` (n, s) is true, (s,)."""
        return mask.all(0)

    def sum(self, part: Tensor) -> Tensor:
        """Return the sum of all processes' parts, the same bits in all; may overwrite ``part``."""
        return part

    def max(self, part: Tensor) -> Tensor:
        """Return the largest of the processes' entries; ``part`` may be overwritten."""
        return part

    def of(self, rank: int, value: Tensor) -> Tensor:
        """Return the ``value`` of process ``rank``; that of others, contiguous, is overwritten."""
        return value

    def owned(self, index: Tensor) -> tuple[slice | Tensor, Tensor]:
        """Return which of the rows ``index`` are held here, as positions in ``index``,
        and where they lie in the matrices held here.
        """
        return slice(None), index

    def take(self, W: Tensor, index: Tensor) -> Tensor:
        """Return the rows ``index`` of W (n, s), (b, s), to all processes."""
        return W[index]

    def largest(self, values: Tensor, count: int) -> Tensor:
        """Return the indices of the ``count`` largest entries in each row of ``values`` (b, n), as
        (b, count), to all processes; each process passes the columns that it holds.
        """
        return values.topk(count, dim=1).indices

    def add(self, W: Tensor, index: Tensor, D: Tensor, alpha: float = 1.0) -> Tensor:
        """Add ``alpha`` D (b, s) to the distinct rows ``index`` of W (n, s), in place; return W."""
        positions, held = self.owned(index)
        return W.index_add_(0, held, D[positions], alpha=alpha)

    def gather(self, W: Tensor) -> Tensor:
        """Return all rows of W (n, ...), of which every process gives its own, to all processes."""
        return W

    def least(self, number: int) -> int:
        """Return the smallest of the processes' numbers; whether one is lost is known by then."""
        return int(number)

    def agree(self, decision: bool) -> bool:
        """Return the decision of the first process, where clocks may lead to several."""
        return decision

    def agreed(self, generator: torch.Generator, num_columns: int) -> torch.Generator:
        """Return ``generator``, once it is known to be in the same state in all processes,
        and right-hand sides to have as many columns.
        """
        return generator

    def require_all(self, what: str, remedy: str) -> None:
        """Require that this process holds all rows."""
        if self.is_shared:
            raise TypeError(
                f"{what} needs all rows of the system in one process, got one whose rows are"
                f" shared. {remedy}"
            )


class Targets(NamedTuple):
    """What the representer weights have to fit at the n data points, in two parts.

    Attributes:
        values: (n, s) function values f: ``y − μ(X)`` for the mean, prior values for samples.
        noise_draw: (n, s) noise ε ~ N(0, Σ) of the samples, 0 for the mean. Solvers that reduce
            variance by it keep it apart.
    """

    values: Tensor
    noise_draw: Tensor

    def to(self, dtype: torch.dtype) -> "Targets":
        """Return both parts in another precision."""
        return Targets(self.values.to(dtype), self.noise_draw.to(dtype))


class Regression(NamedTuple):
    """What the weights are fitted to, for methods that draw batches of data."""

    rhs: Tensor  # (num_data, s) f + ε
    noise_draw: Tensor  # (num_data, s) ε, 0 if it is not known apart
    # (n, s) K_ZX Σ⁻¹ ε, exactly; ``None`` where the unknowns weigh the data themselves
    projected_noise: Tensor | None


class LinearSystem(ABC):
    """A symmetric positive definite system, of which products are computed and the cost counted.

    Args:
        rows: the n unknowns, and who holds which.
        num_data: the number of data points.
        noise: σ², a number or scalar tensor, or (num_data,) variances, all above 0.
        like: of the arithmetic's dtype and device.

    Attributes:
        kernel: K between the points of the unknowns, a ``KernelOperator``.
        n: the number of unknowns.
        entries: kernel entries used so far in products and evaluations.
        entries_per_epoch: those between all data and all unknowns, which a pass over the data uses.
        dtype, device: of the arithmetic.
        noise_column: σ², to be multiplied by (num_data, s) matrices.

    Raises:
        ValueError: if the noise is not positive and finite, or of the wrong shape.
    """

    kernel: Any

    def __init__(self, rows: Rows, num_data: int, noise: Tensor | float, like: Tensor):
        self._begin(rows, num_data, torch.as_tensor(noise, dtype=like.dtype, device=like.device))
        # A shared system holds the noise of its own data alone
        own_data = rows.num_held if rows.is_shared else num_data
        if self.noise.shape not in ((), (own_data,)):
            raise ValueError(
                f"`noise` must be a scalar or have shape ({own_data},), got"
                f" {tuple(self.noise.shape)}."
            )
        bad = ~(torch.isfinite(self.noise) & (self.noise > 0))
        if bad.any():
            worst = self.noise[bad][0].item()
            raise ValueError(
                f"`noise` must be finite variances above 0, got {worst:g}. Use a small value such"
                " as 1e-6 for exact data."
            )

    def _begin(self, rows: Rows, num_data: int, noise: Tensor) -> None:
        """Set the rows, the data and the noise, of the arithmetic's dtype; count entries from 0."""
        for name in ("largest_entry", "smallest_noise", "mean_noise", "diagonal"):
            vars(self).pop(name, None)  # a copy still holds those of the original
        self.rows = rows
        self.n = rows.n
        self.num_data = num_data
        self.entries_per_epoch = num_data * rows.n
        self.noise = noise
        self.noise_column = noise.unsqueeze(1) if noise.ndim else noise
        self.dtype = noise.dtype
        self.device = noise.device
        self.entries = 0

    @property
    @abstractmethod
    def epochs_per_product(self) -> float:
        """What one product with the matrix uses."""

    @property
    def points(self) -> Tensor:
        """The points of the unknowns that are held here."""
        return self.kernel.tiles.X1

    @property
    def stationary(self) -> Any:
        """The closed form of the kernel, a ``StationaryKernel``; ``None`` if it has none."""
        return self.kernel.tiles.stationary

    @cached_property
    def largest_entry(self) -> Tensor:
        """The largest diagonal entry of K over the points of the unknowns, a scalar."""
        return self.kernel.diagonal().max()

    @cached_property
    def smallest_noise(self) -> Tensor:
        """The smallest noise variance, a scalar."""
        return self.noise.min()

    @cached_property
    def mean_noise(self) -> Tensor:
        """The mean noise variance, a scalar."""
        return self.noise.mean()

    @abstractmethod
    def rhs(self, targets: Targets) -> Tensor:
        """Return the right-hand side B (n, s) of ``targets``."""

    @abstractmethod
    def regression(self, rhs: Tensor, targets: Targets | None) -> Regression:
        """Return what the data say, for B = ``rhs`` of ``targets``, if those are known."""

    @abstractmethod
    def __matmul__(self, W: Tensor) -> Tensor:
        """Return the matrix times W (n, s)."""

    def kernel_matmul(self, W: Tensor) -> Tensor:
        """Return K W, K between the points of the unknowns."""
        self.entries += self.n**2
        return self.kernel @ W

    @abstractmethod
    def kernel_rows(self, index: Tensor) -> Tensor:
        """Return the kernel between the data ``index`` and the points of the unknowns that are held
        here, (b, n), evaluated, without the noise.
        """

    @abstractmethod
    def whitened(self) -> tuple[Tensor | None, Tensor]:
        """Return L, lower triangular (``None`` for I), and M, (n, n) each: the matrix is L M Lᵀ."""

    def precise(self) -> "LinearSystem":
        """Return the system in the arithmetic that a direct solve needs, which may be this one."""
        return self

    def doubled(self) -> "KernelSystem | None":
        """Return a float32 system in float64, its kernel evaluated anew, at no memory; ``None``
        where that is not offered, or nothing is gained.
        """
        return None

    def fingerprint(self) -> list[Tensor]:
        """Return what tells the system from others."""
        return [*self.kernel.fingerprint(), self.noise]


class KernelSystem(LinearSystem):
    """The system H W = B of the weights on all data, with H = K + Σ; it gives rows, columns and
    blocks of its matrix, of which n² entries are one epoch.

    Args:
        kernel: K over one set of n points, a ``KernelOperator``.
        noise: σ², a number or scalar tensor, or (n,) variances, all above 0.
        rows: who holds which; ``None`` if this process holds all.

    Raises:
        ValueError: if the noise is not positive and finite, or of the wrong shape.
    """

    def __init__(self, kernel: Any, noise: Tensor | float, rows: Rows | None = None):
        if not kernel.symmetric:
            raise ValueError(
                "`kernel` must be an operator over one set of points, got k(X1, X2) of shape"
                f" {kernel.shape}."
            )
        rows = Rows(len(kernel.tiles.X1)) if rows is None else rows
        super().__init__(rows, rows.n, noise, like=kernel.tiles.X1)
        self.kernel = kernel

    @property
    def epochs_per_product(self) -> float:
        return 1.0

    @property
    def is_stored(self) -> bool:
        """Whether K is held in memory, so that its entries are read and not evaluated."""
        return self.kernel.is_stored

    @cached_property
    def diagonal(self) -> Tensor:
        """The diagonal of K, of the rows held here."""
        return self.kernel.diagonal()

    def rhs(self, targets: Targets) -> Tensor:
        """Return the right-hand side B = f + ε."""
        return targets.values + targets.noise_draw

    def regression(self, rhs: Tensor, targets: Targets | None) -> Regression:
        return Regression(
            rhs, torch.zeros_like(rhs) if targets is None else targets.noise_draw, None
        )

    def __matmul__(self, W: Tensor) -> Tensor:
        """Return H W."""
        self.entries += self.n**2
        return (self.kernel @ W).addcmul_(self.noise_column, W)

    def kernel_rows(self, index: Tensor) -> Tensor:
        """Return K[index], (b, n), evaluated, without the noise; of a shared system,
        its columns of the points held here.
        """
        self.entries += len(index) * self.n
        return self._rows(index).to_dense()

    def rows_matmul(self, index: Tensor, W: Tensor, minus: Tensor | None = None) -> Tensor:
        """Return the rows ``index`` of H W, less those of ``minus`` (n, s), (b, s)."""
        self.entries += len(index) * self.n
        W = W.to(self.dtype)
        product = self._rows(index) @ W  # what this process has of it
        noise = self.noise_column
        positions, rows = self.rows.owned(index)
        own = product[positions].addcmul_(noise[rows] if noise.ndim == 2 else noise, W[rows])
        product[positions] = own if minus is None else own.sub_(minus[rows])
        return self.rows.sum(product)

    def _rows(self, index: Tensor) -> Any:
        return self.kernel.rows(index)

    def columns(self, index: Tensor) -> Tensor:
        """Return K[:, index], (n, b), without the noise."""
        self.entries += self.n * len(index)
        return self.kernel.columns(index)

    def block(self, index: Tensor) -> Tensor:
        """Return H[index][:, index], (b, b)."""
        self.entries += len(index) ** 2
        block = self.kernel.block(index)
        block.diagonal().add_(self.noise[index] if self.noise.ndim else self.noise)
        return block

    def small_blocks(self, index: Tensor) -> Tensor:
        """Return H[i][:, i] for every row i of ``index`` (t, b), (t, b, b)."""
        self.entries += index.numel() * index.shape[1]
        blocks = self.kernel.tiles.blocks(index)
        noise = self.noise[index] if self.noise.ndim else self.noise
        blocks.diagonal(dim1=1, dim2=2).add_(noise)
        return blocks

    def restrict(self, index: Tensor) -> "KernelSystem":
        """Return the system of the points ``index`` alone, the same in all processes. Its entries
        count here, once, whether they are held or evaluated anew for each product.
        """
        self.entries += len(index) ** 2
        part = copy(self)  # not a new one, which would wait for the device to check the noise again
        part.kernel = self.kernel.part(index)
        noise = self.noise[index] if self.noise.ndim else self.noise
        part._begin(Rows(len(index)), len(index), noise)
        return part

    def to_dense(self) -> Tensor:
        """Return H, (n, n), a new tensor."""
        self.entries += self.n**2
        matrix = self.kernel.to_dense()
        matrix = matrix.clone() if self.is_stored else matrix
        matrix.diagonal().add_(self.noise)
        return matrix

    def to(self, dtype: torch.dtype) -> "KernelSystem":
        """Return the system in another precision, with its own count of entries."""
        return KernelSystem(self.kernel.to(dtype), self.noise.to(dtype))

    def doubled(self) -> "KernelSystem | None":
        if self.dtype == torch.float64:
            return None
        return KernelSystem(self.kernel.anew(torch.float64), self.noise.double())

    def precise(self) -> "KernelSystem":
        """Return the system in float64 if its matrix and a factor fit in free memory: the jitter
        that a factorisation in float32 needs may be as large as the noise.
        """
        fits = 2 * self.n**2 * torch.float64.itemsize <= memory.available(self.device)
        doubled = self.doubled() if fits else None
        return self if doubled is None else doubled

    def whitened(self) -> tuple[None, Tensor]:
        """Return ``None`` and H."""
        return None, self.to_dense()


def require_blocks(system: LinearSystem) -> KernelSystem:
    """Return ``system``, which must give parts of its matrix.

    Raises:
        TypeError: if it does not.
    """
    if not isinstance(system, KernelSystem):
        raise TypeError(
            "`system` of inducing points does not give rows, columns or blocks of its matrix, which"
            " this method needs. Use Cholesky(), SGD() or CG(preconditioner=None)."
        )
    return system


def check_right_hand_sides(system: LinearSystem, B: Tensor, initial: Tensor | None) -> None:
    """Require finite B (n, s) of the system's dtype and device, and a start of the same shape."""
    num_rows = system.rows.num_held
    for name, value in (("rhs", B), ("initial", initial)):
        if value is None:
            continue
        checks.floating_tensor(name, value)
        if value.ndim != 2 or len(value) != num_rows:
            raise ValueError(f"`{name}` must have shape ({num_rows}, s), got {tuple(value.shape)}.")
        if value.dtype != system.dtype:
            raise TypeError(
                f"`{name}` must have the system's dtype {system.dtype}, got {value.dtype}."
            )
        if value.device != system.device:
            raise ValueError(
                f"`{name}` must be on the system's device {system.device}, got {value.device}."
            )
    if initial is not None and initial.shape != B.shape:
        raise ValueError(
            f"`initial` must have the shape of `rhs`, {tuple(B.shape)}, got {tuple(initial.shape)}."
        )
