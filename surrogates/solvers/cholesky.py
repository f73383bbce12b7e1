"""The direct solve: the reference for every other method, and the best choice for small n."""

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from surrogates import memory
from surrogates.operators.linalg import jittered_cholesky
from surrogates.solvers.solver import Request, Solution, Solver
from surrogates.systems.system import Apply, LinearSystem

Factors = tuple[Tensor | None, Tensor, float]  # L, the factor of M, and its jitter
TOLERANCE = {torch.float32: 1e-2, torch.float64: 1e-6}
JITTER = "jitter"


@dataclass(frozen=True)
class Cholesky(Solver):
    """Solve H W = B by a Cholesky factorisation: n³/3 flops, 2 n² numbers of memory.

    A system of inducing points is solved as ``W = L⁻ᵀ M⁻¹ L⁻¹ B``, whitened by the factor L of
    K_ZZ: factorising its matrix A itself would square the condition number. All of it is in
    float64, whatever the system's dtype: in float32, M and B lose the solution in rounding where n
    k(x, x) exceeds 10⁵ σ². The jitter that L may need is not in ``jitter`` below.

    A float32 system of all data is evaluated and factorised in float64, too, where 16 n² bytes are
    free: only the solution is rounded to float32.

    Jitter, growing by tens from 10 eps · max diag(H), is added only if the factorisation fails, and
    the solution's note says how much. The residual is against H without jitter; ``converged`` means
    at most 1e-2 in float32 and 1e-6 in float64.

    Raises:
        MemoryError: if the matrix and its factor do not fit in free memory.
    """

    splits_targets: ClassVar[bool] = True  # for B of inducing points in float64
    _kept: ClassVar[Factors | None] = None  # of a system that it is kept for

    def gains_precision(self, system: LinearSystem, num_columns: int) -> bool:
        return True

    def _solve(self, request: Request) -> Solution:
        given = request.system
        system = given.precise()
        dtype = request.rhs.dtype
        B = request.rhs.to(system.dtype)
        if request.targets is not None and system is not given:
            B = system.rhs(request.targets.to(system.dtype))
        entries = system.entries
        L, factor, jitter = self._kept or _factorised(system)
        solve = partial(substituted, L, factor)
        value = solve(B).to(dtype)
        norms = system.rows.norm(B)
        gap = B - system @ value.to(B)
        if system is not given:
            given.entries += system.entries - entries
        residual = system.rows.norm(gap) / torch.where(norms > 0, norms, torch.ones_like(norms))
        residual = residual.to(dtype)
        posterior = request.posterior
        error = None
        if posterior is not None:
            error = posterior.of_residuals(value, gap, solve).to(residual)
        return Solution(
            value,
            residual,
            residual <= TOLERANCE[dtype],
            torch.ones(B.shape[1], dtype=torch.long, device=B.device),
            request.epochs,
            request.seconds,
            f"{JITTER} {jitter:.1e} added to the diagonal" if jitter else "",
            error,
        )

    def kept(
        self, system: LinearSystem, num_columns: int, generator: torch.Generator
    ) -> Solver | Apply:
        L, factor, jitter = factors = _factorised(system.precise())
        if jitter:  # whose effect the residual of every solve tells
            kept = replace(self)
            object.__setattr__(kept, "_kept", factors)
            return kept
        return lambda B: substituted(L, factor, B.to(factor)).to(B)


def _factorised(system: LinearSystem) -> Factors:
    """Return L, the factor of M and its jitter, for the matrix L M Lᵀ of ``system``."""
    memory.require(
        2 * system.n**2 * system.dtype.itemsize,
        system.device,
        f"Cholesky() of {system.n} points",
        "Use an iterative solver such as CG().",
    )
    L, M = system.whitened()
    return L, *factorise(M)


def substituted(L: Tensor | None, factor: Tensor, B: Tensor) -> Tensor:
    """Return L⁻ᵀ M⁻¹ L⁻¹ B by the ``factor`` of M."""
    if L is None:
        return torch.cholesky_solve(B, factor)
    whitened_rhs = torch.linalg.solve_triangular(L, B, upper=False)
    value = torch.cholesky_solve(whitened_rhs, factor)
    return torch.linalg.solve_triangular(L.T, value, upper=True)


def factorise(matrix: Tensor) -> tuple[Tensor, float]:
    """Return the lower Cholesky factor of ``matrix`` and the jitter that it needed, 0 if none.
    ``matrix`` is changed.

    Raises:
        ValueError: if no jitter up to the largest diagonal entry makes it positive definite.
    """
    largest = matrix.diagonal().max().item()
    factor, jitter = jittered_cholesky(matrix, overwrite=True)
    if jitter > largest:
        raise ValueError(
            "`system` must be positive definite, and is not even with jitter as large as its"
            " diagonal. Check the kernel."
        )
    return factor, jitter.item()
