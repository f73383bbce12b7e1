"""A weight at every data point: the rule of an exact posterior.

Notation: X (n, d) data, H = k(X, X) + Σ, Q (*T, k, d) sets of points, A (..., a, d) any points.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor

from surrogates import memory
from surrogates.functions.paths import SamplePaths
from surrogates.operators.differentiable import KernelBasis
from surrogates.operators.kernel_matrix import kernel_operator
from surrogates.rules.base import (
    DIRECT_SOLVE_UP_TO,
    Covariance,
    CovarianceWith,
    SolvedRule,
)
from surrogates.rules.data import DataSet
from surrogates.solvers.auto import Auto
from surrogates.solvers.base import Solver
from surrogates.solvers.cg import CG
from surrogates.solvers.cholesky import Cholesky, factorise
from surrogates.systems.base import Apply, LinearSystem
from surrogates.systems.kernel import KernelSystem
from surrogates.systems.preconditioners import Preconditioner

ONCE = (
    "A posterior of fantasies that was solved for is differentiable once, in reverse mode and"
    " without `torch.func.vmap`. Fantasise from a model with `solver=Cholesky()` for further"
    " derivatives."
)


def default_solver(n: int) -> Solver:
    """Return the solver of a model of n points that was given none."""
    return Cholesky() if n <= DIRECT_SOLVE_UP_TO else Auto()


@dataclass(frozen=True, eq=False)
class AllData(SolvedRule):
    """Weights at all data points, which solve H."""

    is_exact: ClassVar[bool] = True

    def centres(self, data: DataSet) -> Tensor:
        return data.X

    def system(self, data: DataSet) -> KernelSystem:
        K = kernel_operator(data.kernel, data.X, memory_budget=self.memory_budget)
        return KernelSystem(K, data.noise)

    def default_solver(self, num_centres: int) -> Solver:
        return default_solver(num_centres)

    def covariance(self, data: DataSet, paths: SamplePaths) -> Covariance:
        return Solved(data, self.system(data), self.solver_for(len(data.X)), self.seed)


class Solved(Covariance):
    """c(·, Q) = k(·, Q) − k(·, X) W with W = H⁻¹ k(X, Q), of all data.

    Args:
        data: with n points X.
        system: H.
        solver: for W, a column a point.
        seed: of the solver.
    """

    def __init__(self, data: DataSet, system: KernelSystem, solver: Solver, seed: int):
        self.kernel = data.kernel
        self.basis = KernelBasis(data.kernel, data.X)
        self._system = system
        self._solver = solver
        self._seed = seed
        self._inverse: Apply | None = None

    @torch.no_grad()
    def solve(self, B: Tensor) -> Tensor:
        """Return H⁻¹ B for B (n, s). What depends on H alone, a factor or a preconditioner,
        is computed the first time, and kept.
        """
        if self._inverse is None:
            self._inverse = self._prepare(B.shape[1])
        return self._inverse(B)

    def _between(self, Q: Tensor) -> CovarianceWith:
        with torch.no_grad():
            cross = kernel_operator(
                self.kernel, self.basis.Z, Q.reshape(-1, Q.shape[-1])
            ).to_dense()
            W = self.solve(cross).reshape(len(cross), *Q.shape[:-1])
        return lambda A: self._with(A, Q, W)

    def _with(self, A: Tensor, Q: Tensor, W: Tensor) -> Tensor:
        front = A.shape[:-2]
        k = Q.shape[-2]
        num_own = Q.ndim - 2
        lead = front[: len(front) - num_own]
        own = front[len(front) - num_own :]
        Q = Q.expand(*own, *Q.shape[-2:])
        W = W.expand(len(W), *own, k)
        # (T, lead · a, d)
        points = A.reshape(lead.numel(), own.numel(), *A.shape[-2:]).transpose(0, 1).flatten(1, 2)
        Q = Q.reshape(own.numel(), *Q.shape[-2:])
        W = W.reshape(len(W), own.numel(), k)
        values = (
            self.kernel(points, Q).to_dense()
            - _Reduction.apply(points, Q, W, self.basis, self.solve)[0]
        )
        return (
            values.reshape(own.numel(), lead.numel(), A.shape[-2], k)
            .transpose(0, 1)
            .reshape(*front, A.shape[-2], k)
        )

    def _prepare(self, num_columns: int) -> Apply:
        system = self._system
        solver = self._solver
        if isinstance(solver, Auto):
            solver = solver.choose(system, num_columns).solver
        if isinstance(solver, Cholesky):
            system = system.precise()
            num_bytes = 2 * system.n**2 * system.dtype.itemsize
            memory.require(
                num_bytes,
                system.device,
                f"A factor of {system.n} points",
                "Use an iterative solver such as CG().",
            )
            factor, _ = factorise(system.to_dense())
            del self._system  # which may hold as much again
            return lambda B: torch.cholesky_solve(B.to(factor), factor).to(B)
        if isinstance(solver, CG) and solver.preconditioner is not None:
            solver = replace(
                solver, preconditioner=_Kept(solver.preconditioner(system, self._generator()))
            )

        def inverse(B: Tensor) -> Tensor:
            solution = solver.solve(system, B, generator=self._generator())
            if solver is self._solver or bool(solution.converged.all()):
                solution.warn_if_unsolved("The posterior's covariances")
                return solution.value
            solution = self._solver.solve(
                system, B, initial=solution.value, generator=self._generator()
            )
            solution.warn_if_unsolved("The posterior's covariances")
            return solution.value

        return inverse

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self._seed)


@dataclass(frozen=True)
class _Kept(Preconditioner):
    """A preconditioner that has been computed, for the one system that it belongs to."""

    apply: Apply

    def __call__(self, system: LinearSystem, generator: torch.Generator) -> Apply:
        return self.apply


class _Reduction(torch.autograd.Function):
    """k(A, X) H⁻¹ k(X, Q) for every t, (T, a, k), and its slopes in A (T, k, a, d): by tiles, with
    one more solve for the gradient in Q.
    """

    @staticmethod
    def forward(
        A: Tensor, Q: Tensor, W: Tensor, basis: KernelBasis, solve: Apply
    ) -> tuple[Tensor, Tensor]:
        T, a, d = A.shape
        k = Q.shape[1]
        repeated = A.unsqueeze(1).expand(T, k, a, d).reshape(T * k, a, d)
        values, gradient = basis.rowwise(repeated, W.reshape(len(W), T * k))
        return values.reshape(T, k, a).mT, gradient.reshape(T, k, a, d)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        A, Q, _, ctx.basis, ctx.solve = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(A, Q, output[1])

    @staticmethod
    def backward(
        ctx: Any, cotangent: Tensor, _: Tensor
    ) -> tuple[Tensor, Tensor | None, None, None, None]:
        A, Q, gradient = ctx.saved_tensors
        with torch.no_grad():
            of_A = torch.einsum("tak,tkad->tad", cotangent, gradient)
            of_Q = None
            if ctx.needs_input_grad[1]:
                basis = ctx.basis
                T, k, d = Q.shape
                adjoint = [
                    KernelBasis(basis.kernel, A[t]).matmul(basis.Z, cotangent[t]) for t in range(T)
                ]
                _, slopes = basis.rowwise(Q.reshape(T * k, 1, d), ctx.solve(torch.cat(adjoint, 1)))
                of_Q = slopes.reshape(T, k, d)
        if torch.is_grad_enabled():  # a second derivative may follow, and would be wrong
            of_A = _Last.apply(of_A, A, Q, cotangent)
            of_Q = None if of_Q is None else _Last.apply(of_Q, A, Q, cotangent)
        return of_A, of_Q, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        raise NotImplementedError(ONCE)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> NoReturn:
        raise NotImplementedError(ONCE)


class _Last(torch.autograd.Function):
    """A gradient that has none itself."""

    @staticmethod
    def forward(gradient: Tensor, *inputs: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> NoReturn:
        raise NotImplementedError(ONCE)
