"""The system of the weights on inducing points.

Notation: n data X, m inducing points Z, K_XZ (n, m), K_ZZ (m, m), Σ = diag(noise), B (m, s)
right-hand sides, W (m, s) unknowns.
"""

from collections.abc import Callable
from copy import copy
from typing import Self

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from surrogates import checks, memory
from surrogates.operators.kernel_matrix import kernel_operator
from surrogates.operators.linalg import stable_cholesky, times_inverse_transpose
from surrogates.operators.tiles import spans, tile_side
from surrogates.systems.system import LinearSystem, Regression, Rows, Targets


class InducingSystem(LinearSystem):
    """The system A W = B of the weights on m inducing points Z: the least squares fit of K_XZ w to
    the data, regularised by K_ZZ,

        A = K_ZX Σ⁻¹ K_XZ + K_ZZ,    B = K_ZX Σ⁻¹ (f + ε).

    Divided by the noise, not multiplied as in ``K_ZX K_XZ + σ² K_ZZ``, so that one variance and n
    of them read the same. K_XZ is kept if it fits ``memory_budget``; otherwise rows of at most as
    many bytes are evaluated, used and discarded. n · m entries are one epoch. A has about the
    square of K's spectrum, and so has its residual: a relative residual of 1e-2 says less here than
    of K + Σ (what it says of a posterior, ``Solution.error`` tells). For the same reason direct
    solves need float64, see :meth:`to`, whatever the precision of the data.

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
        checks.valid_inducing_points(Z, "X", checks.floating_tensor("X", X))
        super().__init__(Rows(len(Z)), len(X), noise, like=Z)
        self.kernel = kernel_operator(kernel, Z, memory_budget=memory_budget)
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
        system._begin(self.rows, self.num_data, self.noise.to(dtype))
        return system

    def precise(self) -> Self:
        """Return the system in float64, its kernel evaluated anew there: in float32 a direct solve
        loses the solution in rounding, where n k(x, x) exceeds 10⁵ σ², and close inducing points
        need a shift of K_ZZ that moves the solution.
        """
        system = self.to(torch.float64)
        if self.dtype == torch.float64:
            return system
        system.kernel = self.kernel.anew(torch.float64)
        system.cross = self.cross.anew(torch.float64)
        system.precision = torch.float64
        return system

    @property
    def bytes_to_whiten(self) -> int:
        return memory.squares_bytes(self.n**2, self.kernel.tiles.X1.dtype)

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
        weighted = V / self.noise_column
        return self._sum_over_rows(
            lambda: V.new_zeros(self.n, V.shape[1]),
            lambda out, part, rows: out.addmm_(rows.T, weighted[part]),
        )

    def __matmul__(self, W: Tensor) -> Tensor:
        """Return A W; every entry is evaluated once."""
        noise = self.noise_column
        return self._sum_over_rows(
            lambda: self.kernel_matmul(W),
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
        memory.require(
            self.bytes_to_whiten,
            self.device,
            f"Whitening a system of {self.n} inducing points",
            "Use fewer, or an iterative solver.",
        )
        self.entries += self.n**2
        L = stable_cholesky(self.kernel.to_dense(), self.precision)
        root = self.noise_column.sqrt()

        def add(M: Tensor, part: slice, rows: Tensor) -> None:
            whitened = times_inverse_transpose(rows / (root[part] if root.ndim else root), L)
            M.addmm_(whitened.T, whitened)

        return L, self._sum_over_rows(
            lambda: torch.eye(self.n, dtype=self.dtype, device=self.device), add
        )

    def _sum_over_rows(
        self, start: Callable[[], Tensor], add: Callable[[Tensor, slice, Tensor], object]
    ) -> Tensor:
        """Return ``out = start()`` after ``add(out, part, rows)`` for all rows of K_XZ, in parts;
        of half the size from then on whenever memory runs out.
        """

        def total(size: int) -> Tensor:
            out = start()
            self._chunk = size
            for part in spans(self.num_data, size):
                rows = self.cross.rows(part).to_dense().to(self.dtype)
                self.entries += rows.numel()
                add(out, part, rows)
            return out

        return memory.halving(total, self._chunk, "A part")
