"""Preconditioners: cheap approximations P of H = K + Σ, applied as R → P⁻¹R.

Each is a frozen dataclass; called with a system and a generator it returns the map. Both low-rank
ones have the form P = L Lᵀ + D with L (n, r) and a positive diagonal D, inverted by Woodbury's
identity, ``P⁻¹ = D⁻¹ − D⁻¹ L (I + Lᵀ D⁻¹ L)⁻¹ Lᵀ D⁻¹``, in O(n r s) an application.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from surrogates import checks, memory
from surrogates.operators.linalg import (
    left_singular,
    shifted_cholesky,
    stable_cholesky,
    times_inverse_transpose,
)
from surrogates.systems.system import Apply, KernelSystem, LinearSystem, require_blocks


class Preconditioner(ABC):
    """Approximates a system's matrix by one that is cheap to invert.

    Attributes:
        is_exact: whether P is H itself.
        rank: of a low-rank approximation; ``None`` for its default, or if P is none.
    """

    is_exact: ClassVar[bool] = False
    rank: int | None = None

    @abstractmethod
    def __call__(self, system: LinearSystem, generator: torch.Generator) -> Apply:
        """Return the map R (n, s) → P⁻¹R for ``system``."""

    def rank_for(self, n: int) -> int:
        """Return the rank of P for n points, 0 if it is no low-rank approximation."""
        return 0


@dataclass(frozen=True)
class Identity(Preconditioner):
    """P = I."""

    def __call__(self, system: LinearSystem, generator: torch.Generator) -> Apply:
        return torch.clone  # callers may update what they get in place


@dataclass(frozen=True)
class Computed(Preconditioner):
    """A preconditioner that has been computed, for the one system that it belongs to, in whatever
    arithmetic.

    Args:
        dtype: in which it was computed.
    """

    apply: Apply
    dtype: torch.dtype

    def __call__(self, system: LinearSystem, generator: torch.Generator) -> Apply:
        if system.dtype == self.dtype:
            return self.apply
        return lambda R: self.apply(R.to(self.dtype)).to(R.dtype)


@dataclass(frozen=True)
class Exact(Preconditioner):
    """P = H, by a Cholesky factorisation: for the blocks of sketch-and-project."""

    is_exact: ClassVar[bool] = True

    def __call__(self, system: LinearSystem, generator: torch.Generator) -> Apply:
        factor = stable_cholesky(require_blocks(system).to_dense(), overwrite=True)
        return lambda R: torch.cholesky_solve(R, factor)


@dataclass(frozen=True)
class LowRank(Preconditioner):
    """P of rank r, and a diagonal.

    Args:
        rank: r, at most n of which are used; ``None`` for n / 5, between 500 and 2000.
    """

    rank: int | None = None

    def __post_init__(self) -> None:
        checks.fields(self, ["rank"], checks.positive_int)

    def rank_for(self, n: int) -> int:
        # With many paths, r columns of K and an r × r factorisation cost less than what they save
        return min(n, self.rank or max(500, min(n // 5, 2000)))


@dataclass(frozen=True)
class Nystrom(LowRank):
    """P = K̂ + δ I + Σ with a Nyström approximation K̂ of rank r.

    ``sketch="columns"``: K̂ = K_{·C} K_CC⁻¹ K_{C·} for r columns C drawn uniformly, δ the mean of
    what they leave of K's diagonal. It costs r n entries, and δ keeps the part of the spectrum that
    the columns miss from being amplified by Σ⁻¹.

    ``sketch="gaussian"``: K̂ = U S Uᵀ from the product of K with r random orthonormal columns (n²
    entries), δ = S_rr, the smallest eigenvalue kept.

    Args:
        sketch: ``"columns"`` or ``"gaussian"``.
    References:
        Frangella, Tropp, Udell (2023), "Randomized Nyström Preconditioning". Differs: (1) by
        default, a column sample, and δ from the diagonal. Rathore et al. (2025), "Turbocharging
        Gaussian Process Inference with Approximate Sketch-and-Project", Algorithm 5.
    """

    sketch: str = "columns"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("sketch", self.sketch, ("columns", "gaussian"))

    def __call__(self, system: LinearSystem, generator: torch.Generator) -> Apply:
        system = require_blocks(system)
        rank = self.rank_for(system.n)
        if self.sketch == "gaussian":
            return self._from_sketch(system, rank, generator)
        L = column_factor(system, rank, generator)
        missed = (system.diagonal - L.square().sum(1)).clamp_min(0.0)
        return _woodbury(system, L, system.noise + system.rows.sum(missed.sum()) / system.n)

    def _from_sketch(self, system: KernelSystem, rank: int, generator: torch.Generator) -> Apply:
        system.rows.require_all("Nystrom(sketch='gaussian')", "Use sketch='columns'.")
        own = memory.generator_for(generator, system.device, system.n * rank)
        shape = (system.n, rank)
        test = torch.randn(shape, generator=own, device=own.device, dtype=system.dtype)
        test = torch.linalg.qr(test.to(system.device)).Q
        U, eigenvalues = nystrom_approximation(system.kernel_matmul(test), test)
        return _woodbury(system, U * eigenvalues.sqrt(), system.noise + eigenvalues[-1])


@dataclass(frozen=True)
class PivotedCholesky(LowRank):
    """P = L Lᵀ + δ I + Σ with L the partial Cholesky factor of K, pivoted greedily on the largest
    remaining diagonal.

    The factorisation takes r sequential steps.

    References:
        Harbrecht, Peters, Schneider (2012), "On the low-rank approximation by the pivoted Cholesky
        decomposition".
        Differs: δ, the mean of the remaining diagonal, is added to the damping.
    """

    def __call__(self, system: LinearSystem, generator: torch.Generator) -> Apply:
        system = require_blocks(system)
        system.rows.require_all("PivotedCholesky()", "Use Nystrom().")
        rank = self.rank_for(system.n)
        remaining = system.diagonal.clone()
        floor = torch.finfo(system.dtype).eps * remaining.max() * system.n
        L = remaining.new_zeros(system.n, rank)
        for k in range(rank):
            pivot = remaining.argmax()
            if remaining[pivot] <= floor:
                L = L[:, :k]
                break
            column = system.columns(pivot.reshape(1)).squeeze(1) - L[:, :k] @ L[pivot, :k]
            L[:, k] = column / remaining[pivot].sqrt()
            remaining -= L[:, k].square()
            remaining[pivot] = 0.0
            remaining.clamp_min_(0.0)
        return _woodbury(system, L, system.noise + remaining.mean())


def nystrom_approximation(sketch: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Return U (n, r) and the eigenvalues S (r,), descending, of the Nyström approximation of K
    with ``sketch = K test``.

    Args:
        test: (n, r) with orthonormal columns.
    """
    # The shift goes into the sketch and, by it, into the core, and comes off the eigenvalues again.
    factor, shift = shifted_cholesky(test.T @ sketch, torch.finfo(test.dtype).eps)
    shifted = sketch + shift * test
    U, singular = left_singular(times_inverse_transpose(shifted, factor))
    return U, (singular.square() - shift).clamp_min(0.0)


def column_factor(system: KernelSystem, rank: int, generator: torch.Generator) -> Tensor:
    """Return L (n, r) of the Nyström approximation L Lᵀ of K by r columns drawn uniformly;
    its first k columns are that of the first k.
    """
    order = torch.randperm(system.n, generator=generator, device=generator.device)
    index = order[:rank].to(system.device)
    columns = system.columns(index)
    return times_inverse_transpose(columns, stable_cholesky(system.rows.take(columns, index)))


def _woodbury(system: LinearSystem, L: Tensor, diagonal: Tensor) -> Apply:
    """Return R → (L Lᵀ + D)⁻¹ R for a diagonal D given as a scalar or (n,), and the rows of
    ``system`` that are held here.

    The scaled factor A = D^{-1/2} L is kept; the inner matrix I + AᵀA is the only one that is
    factorised. It is in float64: in float32, rounding of its largest eigenvalues, which exceed 10⁶
    where n is large and the noise is small, would swallow the I.
    """
    root = diagonal.sqrt().unsqueeze(-1)
    A = L / root
    inner = torch.zeros(A.shape[1], A.shape[1], dtype=torch.float64, device=A.device)
    for part in A.split(memory.part_size(A.shape[1])):
        rows = part.double()
        inner.addmm_(rows.T, rows)
    inner = system.rows.sum(inner)
    inner.diagonal().add_(1.0)
    factor = stable_cholesky(inner)

    def apply(R: Tensor) -> Tensor:
        scaled = R / root
        inner = torch.cholesky_solve(system.rows.sum((scaled.T @ A).T).double(), factor)
        return (scaled - A @ inner.to(R.dtype)) / root

    return apply


def largest_eigenvalue(
    block: KernelSystem, apply: Apply, generator: torch.Generator, num_iterations: int = 10
) -> Tensor:
    """Return λ_max(P⁻¹ H), (1,), by power iterations: the Rayleigh quotient of P⁻¹H in the inner
    product of H, before any normalisation.
    """
    v = torch.randn(block.n, 1, generator=generator, device=generator.device, dtype=block.dtype).to(
        block.device
    )
    for _ in range(num_iterations):
        Hv = block @ v
        PHv = apply(Hv)
        eigenvalue = block.rows.dot(Hv, PHv) / block.rows.dot(v, Hv)
        v = PHv / block.rows.norm(PHv)
    return eigenvalue
