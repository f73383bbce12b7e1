"""The linear systems that the solvers solve.

Notation: K (n, n) kernel matrix, Σ = diag(noise) with ``noise`` a variance or n of them, H = K + Σ, B (n, s) right-hand sides.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from surrogates import checks
from surrogates.operators import Dense, KernelOperator
from surrogates.operators.tiles import Index


class Targets(NamedTuple):
    """What the representer weights have to fit at the n data points, in two parts.

    Attributes:
        values: (n, s) function values f: ``y − μ(X)`` for the mean, prior values for samples.
        noise_draw: (n, s) noise ε ~ N(0, Σ) of the samples, 0 for the mean. Solvers that reduce variance by it keep it apart.
    """

    values: Tensor
    noise_draw: Tensor


class KernelSystem:
    """The system H W = B with H = K + Σ.

    Args:
        kernel: K over one set of n points.
        noise: σ², a number or scalar tensor, or (n,) variances, all above 0.

    Attributes:
        entries: kernel entries used so far in products and evaluations; n² of them are one epoch.

    Raises:
        ValueError: if the noise is not positive and finite, or of the wrong shape.
    """

    def __init__(self, kernel: KernelOperator, noise: Tensor | float):
        if not kernel.symmetric:
            raise ValueError(f"`kernel` must be an operator over one set of points, got k(X1, X2) of shape {kernel.shape}.")
        self.kernel = kernel
        self.noise = torch.as_tensor(noise, dtype=kernel.dtype, device=kernel.device)
        self.entries = 0
        if self.noise.shape not in ((), (self.n,)):
            raise ValueError(f"`noise` must be a scalar or have shape ({self.n},), got {tuple(self.noise.shape)}.")
        bad = ~(torch.isfinite(self.noise) & (self.noise > 0))
        if bad.any():
            worst = self.noise[bad][0].item()
            raise ValueError(f"`noise` must be finite variances above 0, got {worst:g}. Use a small value such as 1e-6 for exact data.")

    @property
    def n(self) -> int:
        return self.kernel.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        return self.kernel.dtype

    @property
    def device(self) -> torch.device:
        return self.kernel.device

    @property
    def epochs(self) -> float:
        """Kernel entries used so far, in units of n²."""
        return self.entries / self.n**2

    def rhs(self, targets: Targets) -> Tensor:
        """Return the right-hand side B = f + ε."""
        return targets.values + targets.noise_draw

    def __matmul__(self, W: Tensor) -> Tensor:
        """Return H W."""
        return self.kernel_matmul(W).addcmul_(self._noise_column(), W)

    def kernel_matmul(self, W: Tensor) -> Tensor:
        """Return K W, without the noise."""
        self.entries += self.n**2
        return self.kernel @ W

    def kernel_rows(self, index: Tensor) -> Tensor:
        """Return K[index], (b, n), evaluated, without the noise."""
        self.entries += len(index) * self.n
        return self.kernel.rows(index).to_dense()

    def rows_matmul(self, index: Tensor, W: Tensor) -> Tensor:
        """Return the rows ``index`` of H W, (b, s)."""
        self.entries += len(index) * self.n
        noise = self._noise_column()
        return (self.kernel.rows(index) @ W).addcmul_(noise[index] if noise.ndim == 2 else noise, W[index])

    def block(self, index: Tensor) -> Tensor:
        """Return H[index][:, index], (b, b)."""
        self.entries += len(index) ** 2
        block = self.kernel.block(index)
        block.diagonal().add_(self.noise[index] if self.noise.ndim else self.noise)
        return block

    def restrict(self, index: Tensor) -> "KernelSystem":
        """Return the system of the points ``index`` alone, its block of K evaluated; the entries count here."""
        self.entries += len(index) ** 2
        kernel = Dense(self.kernel.tiles.rows(index).columns(index), True, self.kernel.block(index))
        return KernelSystem(kernel, self.noise[index] if self.noise.ndim else self.noise)

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

    def norm(self, R: Tensor) -> Tensor:
        """Return the Euclidean norm of each column, (s,)."""
        return torch.linalg.vector_norm(R, dim=0)

    def dot(self, A: Tensor, B: Tensor) -> Tensor:
        """Return the inner product of each pair of columns, (s,)."""
        return torch.linalg.vecdot(A, B, dim=0)

    def _noise_column(self) -> Tensor:
        return self.noise.unsqueeze(1) if self.noise.ndim else self.noise


def check_right_hand_sides(system: KernelSystem, B: Tensor, initial: Tensor | None) -> None:
    """Require finite B (n, s) of the system's dtype and device, and a warm start of the same shape."""
    for name, value in (("rhs", B), ("initial", initial)):
        if value is None:
            continue
        checks.floating_tensor(name, value)
        if value.ndim != 2 or len(value) != system.n:
            raise ValueError(f"`{name}` must have shape ({system.n}, s), got {tuple(value.shape)}.")
        if value.dtype != system.dtype:
            raise TypeError(f"`{name}` must have the system's dtype {system.dtype}, got {value.dtype}.")
        if value.device != system.device:
            raise ValueError(f"`{name}` must be on the system's device {system.device}, got {value.device}.")
    if initial is not None and initial.shape != B.shape:
        raise ValueError(f"`initial` must have the shape of `rhs`, {tuple(B.shape)}, got {tuple(initial.shape)}.")
