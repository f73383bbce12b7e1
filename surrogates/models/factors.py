"""The Cholesky factor of a data set, kept over the rounds of an optimisation: further data are rows
appended to it.

With H = K + Σ = L Lᵀ of n points, and m further points X',

    H' = L' L'ᵀ,    L' = [L 0; Mᵀ N],    L M = k(X, X'),    N Nᵀ = k(X', X') + Σ' − Mᵀ M,

takes n² m operations where a new factorisation takes (n + m)³/3, and gives the same numbers. Fresh
paths are then solved for directly, at the cost of two products with K, one of which evaluates the
residual.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from surrogates import memory
from surrogates.models.batches import DataSet
from surrogates.models.conditioning import StateKey
from surrogates.operators.tiled import kernel_operator
from surrogates.solvers.base import Callback, Solver
from surrogates.solvers.cholesky import TOLERANCE
from surrogates.solvers.run import Solution
from surrogates.systems.base import LinearSystem, Targets, check_right_hand_sides
from surrogates.systems.kernel import KernelSystem

RESOLUTION = 1000.0  # times the precision: no other solver is asked for a residual below


@dataclass(frozen=True, eq=False)
class KeptFactor:
    """L of the data X with noise Σ, and what K is of; never changed, so that models share it.

    Attributes:
        X: (n, d).
        noise: Σ, a scalar or (n,) variances.
        kernel: identifies the kernel and its hyperparameters.
        lower: L (n, n).
        num_kept: rows that were taken over from an earlier factor.
    """

    X: Tensor
    noise: Tensor
    kernel: StateKey
    lower: Tensor
    num_kept: int = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    @classmethod
    @torch.no_grad()
    def of(
        cls, data: DataSet, earlier: Sequence["KeptFactor"] = (), budget: int | None = None
    ) -> Self | None:
        """Return the factor of ``data``, appended to the longest of those ``earlier`` that are of
        its first points, kernel and noise.

        Args:
            budget: bytes that a kept matrix may take; ``None`` for 2 GiB, or a quarter of a CUDA
                device's memory.

        Returns:
            ``None`` if a factor exceeds the budget or twice its size the free memory, or if
            rounding leaves H indefinite.
        """
        num_bytes = len(data.X) ** 2 * data.X.element_size()
        fits = num_bytes <= (memory.default_budget(data.X.device) if budget is None else budget)
        if not fits or 2 * num_bytes > memory.available(data.X.device):
            return None
        key = StateKey.of_parts([data.kernel])
        start = max(
            (factor.lower for factor in earlier if factor._is_of_the_first(data, key)),
            key=len,
            default=data.X.new_empty(0, 0),
        )
        lower = _appended(tiled_system(data), start)
        return None if lower is None else cls(data.X, data.noise, key, lower, len(start))

    def _is_of_the_first(self, data: DataSet, key: StateKey) -> bool:
        k = len(self.X)
        noise = data.noise[:k] if data.noise.ndim else data.noise
        first = StateKey((data.X[:k], noise), ())
        return (
            k <= len(data.X)
            and self.kernel.matches(key)
            and StateKey((self.X, self.noise), ()).matches(first)
        )


@dataclass(frozen=True)
class DirectSolver(Solver):
    """Solve H W = B by a kept factor; by another solver,
    if rounding leaves a residual that this would not.
    """

    factor: KeptFactor
    otherwise: Solver

    @torch.no_grad()
    def solve(
        self,
        system: LinearSystem,
        rhs: Tensor | Targets,
        *,
        initial: Tensor | None = None,
        generator: torch.Generator | None = None,
        callback: Callback | None = None,
    ) -> Solution:
        started = time.perf_counter()
        entries = system.entries
        B = system.rhs(rhs) if isinstance(rhs, Targets) else rhs
        check_right_hand_sides(system, B, initial)
        lower = self.factor.lower
        value = torch.linalg.solve_triangular(lower, B, upper=False)
        value = torch.linalg.solve_triangular(lower.mT, value, upper=True)
        norms = system.norm(B)
        residual = system.norm((system @ value).neg_().add_(B)) / torch.where(
            norms > 0, norms, torch.ones_like(norms)
        )
        tolerance = getattr(self.otherwise, "tolerance", TOLERANCE[B.dtype])
        if not bool((residual <= max(tolerance, RESOLUTION * torch.finfo(B.dtype).eps)).all()):
            return self.otherwise.solve(
                system, rhs, initial=initial, generator=generator, callback=callback
            )
        return Solution(
            value,
            residual,
            residual <= tolerance,
            torch.ones(B.shape[1], dtype=torch.long, device=B.device),
            (system.entries - entries) / system.entries_per_epoch,
            time.perf_counter() - started,
            f"Cholesky factor, of which {self.factor.num_kept} rows were kept from earlier data",
        )


def tiled_system(data: DataSet) -> KernelSystem:
    """Return the system of ``data`` without its matrix: beside a factor,
    one product is all that is needed of it.
    """
    return KernelSystem(kernel_operator(data.kernel, data.X, memory_budget=0), data.noise)


def _appended(system: KernelSystem, lower: Tensor) -> Tensor | None:
    """Return the factor of ``system`` given that of its first points,
    or ``None`` if rounding leaves it indefinite.
    """
    k = len(lower)
    n = system.n
    if k == n:
        return lower
    if k == 0:
        lower, info = torch.linalg.cholesky_ex(system.to_dense())
        return None if info else lower
    columns = system.columns(torch.arange(k, n, device=lower.device))
    cross = torch.linalg.solve_triangular(lower, columns[:k], upper=False)
    corner = columns[k:] - cross.T @ cross
    corner.diagonal().add_(system.noise[k:] if system.noise.ndim else system.noise)
    corner, info = torch.linalg.cholesky_ex(corner)
    if info:
        return None
    appended = lower.new_empty(n, n)
    appended[:k, :k] = lower
    appended[:k, k:] = 0.0
    appended[k:, :k] = cross.T
    appended[k:, k:] = corner
    return appended
