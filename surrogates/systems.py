"""The linear systems that the solvers solve.

Notation: K (n, n) kernel matrix, Σ = diag(noise) with ``noise`` a variance or n of them, H = K + Σ,
B (n, s) right-hand sides; with m inducing points Z, K_XZ (n, m) and K_ZZ (m, m) in place of K, and
m unknowns.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from typing import NamedTuple, NoReturn, Self

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from surrogates import checks, memory
from surrogates.linalg import stable_cholesky, times_inverse_transpose
from surrogates.operators import Dense, KernelOperator, kernel_operator
from surrogates.operators.tiles import SMALLEST_SIDE, Index, spans, tile_side

SQUARES_TO_WHITEN = 4  # (m, m) matrices held at once by InducingSystem.whitened


class Targets(NamedTuple):
    """What the representer weights have to fit at the n data points, in two parts.

    Attributes:
        values: (n, s) function values f: ``y − μ(X)`` for the mean, prior values for samples.
        noise_draw: (n, s) noise ε ~ N(0, Σ) of the samples, 0 for the mean. Solvers that reduce
            variance by it keep it apart.
    """

    values: Tensor
    noise_draw: Tensor


class Regression(NamedTuple):
    """What the weights are fitted to, for methods that draw batches of data.

    Attributes:
        rhs: (num_data, s) f + ε.
        noise_draw: (num_data, s) ε, 0 if it is not known apart.
        projected_noise: (n, s) K_ZX Σ⁻¹ ε, exactly, where the unknowns weigh other points than the
            data; ``None`` where they weigh those.
    """

    rhs: Tensor
    noise_draw: Tensor
    projected_noise: Tensor | None


class LinearSystem(ABC):
    """A symmetric positive definite system, of which products are computed and the cost counted.

    Args:
        kernel: K over the points that the unknowns weigh.
        num_data: the number of data points.
        noise: σ², a number or scalar tensor, or (num_data,) variances, all above 0.

    Attributes:
        entries: kernel entries used so far in products and evaluations.

    Raises:
        ValueError: if the noise is not positive and finite, or of the wrong shape.
    """

    def __init__(self, kernel: KernelOperator, num_data: int, noise: Tensor | float):
        self.kernel = kernel
        self.num_data = num_data
        self.noise = torch.as_tensor(noise, dtype=kernel.dtype, device=kernel.device)
        self.entries = 0
        if self.noise.shape not in ((), (num_data,)):
            raise ValueError(
                f"`noise` must be a scalar or have shape ({num_data},), got"
                f" {tuple(self.noise.shape)}."
            )
        bad = ~(torch.isfinite(self.noise) & (self.noise > 0))
        if bad.any():
            worst = self.noise[bad][0].item()
            raise ValueError(
                f"`noise` must be finite variances above 0, got {worst:g}. Use a small value such"
                " as 1e-6 for exact data."
            )

    @property
    def n(self) -> int:
        """The number of unknowns."""
        return self.kernel.shape[0]

    @property
    def num_rows(self) -> int:
        """The number of rows of an (n, s) matrix that this process holds: n,
        but for a shared system.
        """
        return self.n

    @property
    def is_shared(self) -> bool:
        """Whether other processes hold other rows."""
        return False

    @property
    def dtype(self) -> torch.dtype:
        return self.kernel.dtype

    @property
    def device(self) -> torch.device:
        return self.kernel.device

    @property
    def entries_per_epoch(self) -> int:
        """Kernel entries between all data and all unknowns: what one pass over the data uses."""
        return self.num_data * self.n

    @property
    @abstractmethod
    def epochs_per_product(self) -> float:
        """What one product with the matrix uses."""

    @property
    def epochs(self) -> float:
        """Kernel entries used so far, in epochs."""
        return self.entries / self.entries_per_epoch

    @abstractmethod
    def rhs(self, targets: Targets) -> Tensor:
        """Return the right-hand side B (n, s) of ``targets``."""

    @abstractmethod
    def regression(self, rhs: Tensor, targets: Targets | None) -> Regression:
        """Return what the data say, for the right-hand side B = ``rhs`` of ``targets``,
        if those are known.
        """

    @abstractmethod
    def __matmul__(self, W: Tensor) -> Tensor:
        """Return the matrix times W (n, s)."""

    @abstractmethod
    def kernel_rows(self, index: Tensor) -> Tensor:
        """Return the kernel between the data ``index`` and the points of the unknowns, (b, n),
        evaluated, without the noise.
        """

    @abstractmethod
    def whitened(self) -> tuple[Tensor | None, Tensor]:
        """Return L, lower triangular (``None`` for I), and M, both (n, n),
        such that the matrix is L M Lᵀ.
        """

    @property
    def diagonal(self) -> Tensor:
        """The diagonal of K over the points of the unknowns, of the rows held here."""
        return self.kernel.diagonal()

    @property
    def largest_entry(self) -> Tensor:
        """The largest diagonal entry of K over the points of the unknowns, a scalar."""
        return self.kernel.diagonal().max()

    @property
    def smallest_noise(self) -> Tensor:
        """The smallest noise variance, a scalar."""
        return self.noise.min()

    @property
    def mean_noise(self) -> Tensor:
        """The mean noise variance, a scalar."""
        return self.noise.mean()

    def norm(self, R: Tensor) -> Tensor:
        """Return the Euclidean norm of each column, (s,)."""
        return torch.linalg.vector_norm(R, dim=0)

    def dot(self, A: Tensor, B: Tensor) -> Tensor:
        """Return the inner product of each pair of columns, (s,)."""
        return torch.linalg.vecdot(A, B, dim=0)

    def all_rows(self, mask: Tensor) -> Tensor:
        """Return whether every row of each column of ``mask`` (n, s) is true, (s,)."""
        return mask.all(0)

    def total(self, part: Tensor) -> Tensor:
        """Return the sum over all processes of their parts; ``part`` may be overwritten."""
        return part

    def owned(self, index: Tensor) -> tuple[Index, Tensor]:
        """Return which of the rows ``index`` are held here, as positions in ``index``,
        and where they lie in the matrices held here.
        """
        return slice(None), index

    def take_rows(self, W: Tensor, index: Tensor) -> Tensor:
        """Return the rows ``index`` of W (n, s), (b, s)."""
        return W[index]

    def add_rows(self, W: Tensor, index: Tensor, D: Tensor, alpha: float = 1.0) -> Tensor:
        """Add ``alpha`` times D (b, s) to the distinct rows ``index`` of W (n, s), in place,
        and return it.
        """
        positions, rows = self.owned(index)
        return W.index_add_(0, rows, D[positions], alpha=alpha)

    @property
    def place(self) -> tuple[int, int]:
        """The number of this process, and how many there are."""
        return 0, 1

    def least(self, number: int) -> int:
        """Return the smallest of the processes' numbers, once all have given theirs."""
        return int(number)

    def agree(self, decision: bool) -> bool:
        """Return the decision of the first process, where clocks may lead to several."""
        return decision

    def agreed(self, generator: torch.Generator, num_columns: int) -> torch.Generator:
        """Return ``generator``, once it is known to be in the same state in all processes,
        and right-hand sides to have as many columns.
        """
        return generator

    def require_all_rows(self, what: str, remedy: str) -> None:
        """Require that this process holds all rows."""
        if self.is_shared:
            raise TypeError(
                f"{what} needs all rows of the system in one process, got one whose rows are"
                f" shared. {remedy}"
            )

    def _noise_column(self) -> Tensor:
        return self.noise.unsqueeze(1) if self.noise.ndim else self.noise


class KernelSystem(LinearSystem):
    """The system H W = B with H = K + Σ; n² entries are one epoch.

    Args:
        kernel: K over one set of n points.
        noise: σ², a number or scalar tensor, or (n,) variances, all above 0.

    Raises:
        ValueError: if the noise is not positive and finite, or of the wrong shape.
    """

    def __init__(self, kernel: KernelOperator, noise: Tensor | float):
        if not kernel.symmetric:
            raise ValueError(
                "`kernel` must be an operator over one set of points, got k(X1, X2) of shape"
                f" {kernel.shape}."
            )
        super().__init__(kernel, kernel.shape[0], noise)

    @property
    def epochs_per_product(self) -> float:
        return 1.0

    def rhs(self, targets: Targets) -> Tensor:
        """Return the right-hand side B = f + ε."""
        return targets.values + targets.noise_draw

    def regression(self, rhs: Tensor, targets: Targets | None) -> Regression:
        return Regression(
            rhs, torch.zeros_like(rhs) if targets is None else targets.noise_draw, None
        )

    def __matmul__(self, W: Tensor) -> Tensor:
        """Return H W."""
        return self.kernel_matmul(W).addcmul_(self._noise_column(), W)

    def kernel_matmul(self, W: Tensor) -> Tensor:
        """Return K W, without the noise."""
        self.entries += self.n**2
        return self.kernel @ W

    def kernel_rows(self, index: Tensor) -> Tensor:
        """Return K[index], (b, n), evaluated, without the noise; of a shared system,
        its columns of the points held here.
        """
        self.entries += len(index) * self.n
        return self._rows(index).to_dense()

    def rows_matmul(self, index: Tensor, W: Tensor, minus: Tensor | None = None) -> Tensor:
        """Return the rows ``index`` of H W, less those of ``minus`` (n, s), (b, s)."""
        return self.total(self._part_of_rows_matmul(index, W, minus))

    def _part_of_rows_matmul(self, index: Tensor, W: Tensor, minus: Tensor | None) -> Tensor:
        """Return what this process has of them; the sum of all processes' parts is the whole."""
        self.entries += len(index) * self.n
        product = self._rows(index) @ W
        noise = self._noise_column()
        positions, rows = self.owned(index)
        own = product[positions].addcmul_(noise[rows] if noise.ndim == 2 else noise, W[rows])
        product[positions] = own if minus is None else own.sub_(minus[rows])
        return product

    def _rows(self, index: Tensor) -> KernelOperator:
        return self.kernel.rows(index)

    def block(self, index: Tensor) -> Tensor:
        """Return H[index][:, index], (b, b)."""
        self.entries += len(index) ** 2
        block = self.kernel.block(index)
        block.diagonal().add_(self.noise[index] if self.noise.ndim else self.noise)
        return block

    def restrict(self, index: Tensor) -> "KernelSystem":
        """Return the system of the points ``index`` alone, its block of K evaluated;
        the entries count here.
        """
        self.entries += len(index) ** 2
        part = copy(self)  # not a new one, which would wait for the device to check the noise again
        part.kernel = Dense(
            self.kernel.tiles.rows(index).columns(index), True, self.kernel.block(index)
        )
        part.noise = self.noise[index] if self.noise.ndim else self.noise
        part.num_data = len(index)
        part.entries = 0
        return part

    def columns(self, index: Index) -> Tensor:
        """Return K[:, index], (n, b), without the noise."""
        columns = self.kernel.columns(index)
        self.entries += columns.numel()
        return columns

    def to_dense(self) -> Tensor:
        """Return H, (n, n), a new tensor."""
        self.entries += self.n**2
        matrix = self.kernel.to_dense().clone()
        matrix.diagonal().add_(self.noise)
        return matrix

    def to(self, dtype: torch.dtype) -> "KernelSystem":
        """Return the system in another precision, with its own count of entries."""
        return KernelSystem(self.kernel.to(dtype), self.noise.to(dtype))

    def whitened(self) -> tuple[None, Tensor]:
        """Return ``None`` and H."""
        return None, self.to_dense()


class InducingSystem(LinearSystem):
    """The system A W = B of the weights on m inducing points Z: the least squares fit of K_XZ w to
    the data, regularised by K_ZZ,

        A = K_ZX Σ⁻¹ K_XZ + K_ZZ,    B = K_ZX Σ⁻¹ (f + ε).

    Divided by the noise, not multiplied as in ``K_ZX K_XZ + σ² K_ZZ``, so that one variance and n
    of them read the same. K_XZ is kept if it fits ``memory_budget``; otherwise rows of at most as
    many bytes are evaluated, used and discarded. n · m entries are one epoch. A has about the
    square of K's spectrum, and so has its residual: a relative residual of 1e-2 says less here than
    of K + Σ. For the same reason direct solves need float64, see :meth:`to`, whatever the precision
    of the data.

    Args:
        kernel: a GPyTorch kernel without a batch shape. Its hyperparameters are read now.
        X: (n, d) data.
        Z: (m, d) inducing points, at most n.
        noise: σ², a number or scalar tensor, or (n,) variances, all above 0.
        memory_budget: bytes of a kernel matrix that may be held; ``None`` for 2 GiB, or a quarter
            of a CUDA device's memory.

    Attributes:
        n: m, the number of unknowns, as in every system; ``num_data`` is the number of data points.
        kernel: K_ZZ.
        precision: dtype of the data.

    Raises:
        TypeError, ValueError: if the noise is not positive and finite, or the points are not finite
            or of the wrong shape or number.
    References:
        Titsias (2009), "Variational Learning of Inducing Variables in Sparse Gaussian Processes";
        Lin et al. (2023), "Sampling from Gaussian Process Posteriors using Stochastic Gradient
        Descent", Section 3.3 and Appendix C.
    """

    def __init__(
        self,
        kernel: Kernel,
        X: Tensor,
        Z: Tensor,
        noise: Tensor | float,
        *,
        memory_budget: int | None = None,
    ):
        checks.inducing_points(Z, "X", checks.floating_tensor("X", X))
        super().__init__(kernel_operator(kernel, Z, memory_budget=memory_budget), len(X), noise)
        self.cross = kernel_operator(kernel, X, Z, memory_budget=memory_budget)  # K_XZ
        budget = memory.default_budget(X.device) if memory_budget is None else memory_budget
        self._chunk = max(1, min(tile_side(X.device), budget // (len(Z) * Z.element_size())))
        self.precision = Z.dtype

    def to(self, dtype: torch.dtype) -> Self:
        """Return the system with all arithmetic in another precision, and its own count of entries.

        Kernel values between X and Z, and ``precision``, stay those of the data: what rounding does
        to single values is harmless.
        """
        system = copy(self)
        system.kernel = self.kernel.to(dtype)
        system.noise = self.noise.to(dtype)
        system.entries = 0
        return system

    @property
    def epochs_per_product(self) -> float:
        return 1.0 + self.n / self.num_data

    def rhs(self, targets: Targets) -> Tensor:
        return self.project(targets.values + targets.noise_draw)

    def regression(self, rhs: Tensor, targets: Targets | None) -> Regression:
        if targets is None:
            raise TypeError(
                "`rhs` must be Targets for a method that draws batches of data, got a Tensor, which"
                " is B. Use `Targets(f, ε)`."
            )
        return Regression(
            targets.values + targets.noise_draw,
            targets.noise_draw,
            self.project(targets.noise_draw),
        )

    def project(self, V: Tensor) -> Tensor:
        """Return K_ZX Σ⁻¹ V, (m, s), for V (num_data, s)."""
        weighted = V / self._noise_column()
        return self._sum_over_rows(
            lambda: V.new_zeros(self.n, V.shape[1]),
            lambda out, part, rows: out.addmm_(rows.T, weighted[part]),
        )

    def __matmul__(self, W: Tensor) -> Tensor:
        """Return A W; every entry is evaluated once."""
        self.entries += self.n**2
        noise = self._noise_column()
        return self._sum_over_rows(
            lambda: self.kernel @ W,
            lambda out, part, rows: out.addmm_(
                rows.T, (rows @ W).div_(noise[part] if noise.ndim else noise)
            ),
        )

    def kernel_rows(self, index: Tensor) -> Tensor:
        self.entries += len(index) * self.n
        return self.cross.rows(index).to_dense().to(self.dtype)

    def whitened(self) -> tuple[Tensor, Tensor]:
        """Return L with K_ZZ = L Lᵀ (plus as little jitter as ``precision`` makes necessary) and M
        = I + L⁻¹ K_ZX Σ⁻¹ K_XZ L⁻ᵀ, in O(n m²).

        A has about the squared condition number of K_ZZ; that of M is at most 1 + ‖k(X, X)‖ / min
        Σ, whatever Z: still too much for float32, where n is large and the noise is small.

        Raises:
            MemoryError: if the m × m matrices do not fit in free memory.
        """
        num_bytes = SQUARES_TO_WHITEN * self.n**2 * self.kernel.tiles.X1.element_size()
        memory.require(
            num_bytes,
            self.device,
            f"Whitening a system of {self.n} inducing points",
            "Use fewer, or an iterative solver.",
        )
        self.entries += self.n**2
        L = stable_cholesky(self.kernel.to_dense(), self.precision)
        root = self._noise_column().sqrt()

        def add(M: Tensor, part: slice, rows: Tensor) -> None:
            whitened = times_inverse_transpose(rows / (root[part] if root.ndim else root), L)
            M.addmm_(whitened.T, whitened)

        return L, self._sum_over_rows(
            lambda: torch.eye(self.n, dtype=self.dtype, device=self.device), add
        )

    def _sum_over_rows(
        self, start: Callable[[], Tensor], add: Callable[[Tensor, slice, Tensor], object]
    ) -> Tensor:
        """Return ``out = start()`` after ``add(out, part, rows)`` for all rows of K_XZ, evaluated
        in parts of bounded size.

        When memory runs out, it begins again with parts of half the size, which are kept to.
        """

        def total(size: int) -> Tensor:
            out = start()
            self._chunk = size
            for part in spans(self.num_data, size):
                rows = self.cross.rows(part).to_dense().to(self.dtype)
                self.entries += rows.numel()
                add(out, part, rows)
            return out

        return memory.halving(total, self._chunk, min(self._chunk, SMALLEST_SIDE), "A part")

    def _not_at_hand(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(
            "`system` of inducing points does not give rows, columns or blocks of its matrix, which"
            " this method needs. Use Cholesky(), SGD() or CG(preconditioner=None)."
        )

    rows_matmul = kernel_matmul = block = restrict = columns = to_dense = _not_at_hand


def check_right_hand_sides(system: LinearSystem, B: Tensor, initial: Tensor | None) -> None:
    """Require finite B (n, s) of the system's dtype and device,
    and a warm start of the same shape.
    """
    for name, value in (("rhs", B), ("initial", initial)):
        if value is None:
            continue
        checks.floating_tensor(name, value)
        if value.ndim != 2 or len(value) != system.num_rows:
            raise ValueError(
                f"`{name}` must have shape ({system.num_rows}, s), got {tuple(value.shape)}."
            )
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
