"""What a linear system gives the solvers: products, sums over rows, an account of its cost.

Notation: K (n, n) kernel matrix, Σ = diag(noise) with ``noise`` a variance or n of them, H = K + Σ,
B (n, s) right-hand sides, W (n, s) unknowns.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from surrogates import checks
from surrogates.operators.kernel_matrix import KernelOperator
from surrogates.operators.tiles import Index


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
