"""Rules whose weights solve a linear system, the first of them a weight at every data point,
that of an exact posterior; and what they condition by.

Notation: X (n, d) data, y (n,) their values, Σ noise variances, H = k(X, X) + Σ, μ the prior mean,
s paths; v and a the representer weights of :mod:`surrogates.functions.paths`; Q (*T, k, d) sets of
points, A (..., a, d) any points. Of several processes, each holds n_r of the n rows.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor

from surrogates import memory
from surrogates.functions.draws import balanced_normal, balanced_rows
from surrogates.functions.features import PriorPaths
from surrogates.functions.paths import SamplePaths
from surrogates.operators.differentiable import KernelBasis, combine
from surrogates.operators.expressions import kernel_values
from surrogates.operators.kernel_matrix import kernel_operator
from surrogates.operators.linalg import DIRECT_SOLVE_UP_TO
from surrogates.rules.data_set import DataSet
from surrogates.rules.limits import check_codes
from surrogates.rules.rule import Covariance, CovarianceWith, Draw, Rule
from surrogates.solvers.accuracy import PosteriorError
from surrogates.solvers.auto import Auto
from surrogates.solvers.cholesky import Cholesky
from surrogates.solvers.solver import Judge, Solution, Solver
from surrogates.systems.processes import own_rows
from surrogates.systems.shared import DistributedKernelSystem
from surrogates.systems.system import Apply, KernelSystem, LinearSystem, Targets, require_blocks

COLUMNS_HELD = 13  # copies of an (n, s) matrix that the hungriest solver and the paths hold at once
ONCE = (
    "A posterior of fantasies that was solved for is differentiable once, in reverse mode and"
    " without `torch.func.vmap`. Fantasise from a model with `solver=Cholesky()` for further"
    " derivatives."
)


@dataclass(frozen=True, eq=False)
class SolvedRule(Rule):
    """Weights at centres that solve a linear system."""

    takes_start: ClassVar[bool] = True
    solver: Solver | None  # ``None`` for the rule's default
    num_features: int  # of the prior paths
    memory_budget: int | None  # bytes a kept kernel matrix may take; ``None`` for the default
    seed: int  # of the solves for the covariance

    @abstractmethod
    def centres(self, data: DataSet) -> Tensor:
        """Return the points (m, d) that carry the weights."""

    @abstractmethod
    def system(self, data: DataSet) -> LinearSystem:
        """Return the system that the weights solve."""

    @abstractmethod
    def judge(self, system: Any, targets: Targets) -> Judge | None:
        """Return the estimator of the posterior's error; ``None`` if it does not fit in memory."""

    @abstractmethod
    def default_solver(self, num_centres: int) -> Solver:
        """Return the solver for a model that was given none."""

    def solver_for(self, num_centres: int) -> Solver:
        """Return the solver given, or else the default."""
        return self.default_solver(num_centres) if self.solver is None else self.solver

    def draw(self, wanted: Draw) -> tuple[SamplePaths, Solution | None]:
        """Solve for v (first column) and the a of every path (the others) in one block: H v = y −
        μ(X), H a = f(X) + ε, with ε ~ N(0, Σ).
        """
        prior = prior_of(wanted, self.num_features)
        data, num_paths, generator = wanted.data, wanted.num_paths, wanted.generator
        X = data.X
        _require_memory(X, num_paths)
        centres = self.centres(data)
        system = self.system(data)
        solver = self.solver_for(len(centres))
        precise = solver.gains_precision(system, num_paths + 1)
        if precise:
            system = system.precise()
        residuals = (data.y - data.mean_module(X)).unsqueeze(1)
        values = prior_values(prior, X).T
        std = data.noise.sqrt().unsqueeze(-1)
        noise = std * balanced_normal(values / std, generator)
        targets = joined_targets(residuals, values, noise)
        if precise:
            targets = targets.to(system.dtype)
        initial = None if precise else _initial(system, residuals, wanted)
        arguments = solve_arguments(system, targets, solver, self.judge)
        del targets, values, noise  # many columns: only one copy of them is kept
        solution = solver.solve(
            system, **arguments, initial=initial, generator=generator, callback=wanted.callback
        )
        del arguments
        mean_weights = solution.value[:, :1].clone()
        paths = SamplePaths(
            prior=prior,
            data=KernelBasis(data.kernel, centres),
            weights=mean_weights - solution.value[:, 1:],
            mean_weights=mean_weights,
            prior_mean=data.mean_module,
        )
        return settled(paths, X), solution


@dataclass(frozen=True, eq=False)
class AllData(SolvedRule):
    """Weights at all data points, which solve (k(X, X) + Σ) W = B: an exact posterior."""

    is_exact: ClassVar[bool] = True

    def centres(self, data: DataSet) -> Tensor:
        return data.X

    def system(self, data: DataSet) -> KernelSystem:
        K = kernel_operator(data.kernel, data.X, memory_budget=self.memory_budget)
        return KernelSystem(K, data.noise)

    def judge(self, system: KernelSystem, targets: Targets) -> Judge:
        return PosteriorError.for_targets(system, targets)

    def default_solver(self, num_centres: int) -> Solver:
        return default_solver(num_centres)

    def draw_share(self, wanted: Draw, own: slice) -> tuple[SamplePaths, Solution | None]:
        """Return the paths ``own``: iterative solvers share the rows of the data, and messages from
        each process to each make columns of the solution's rows; a direct solve is done by all.
        """
        data, generator = wanted.data, wanted.generator
        solver = self.solver_for(len(data.X))
        if isinstance(solver, Cholesky):
            return super().draw_share(wanted, own)
        prior = prior_of(wanted, self.num_features)
        rows = own_rows(len(data.X))
        X = data.X[rows]
        _require_memory(X, wanted.num_paths)
        noise = data.noise[rows] if data.noise.ndim else data.noise
        system = DistributedKernelSystem(data.kernel, X, noise)
        misfit = (data.y[rows] - data.mean_module(X)).unsqueeze(1)
        initial = _initial(system, misfit, wanted)
        targets = shared_targets(system, misfit, prior_values(prior, X).T, generator)
        arguments = solve_arguments(system, targets, solver)
        del targets
        solution = solver.solve(
            system, **arguments, initial=initial, generator=generator, callback=wanted.callback
        )
        del arguments
        mean_weights = system.rows.gather(solution.value[:, :1])
        paths = SamplePaths(
            prior=prior.part(own),
            data=KernelBasis(data.kernel, data.X),
            weights=mean_weights - system.rows.to_columns(solution.value[:, 1:]),
            mean_weights=mean_weights,
            prior_mean=data.mean_module,
        )
        return settled(paths, data.X, system.rows.agree), solution

    def covariance(self, data: DataSet, paths: SamplePaths) -> Covariance:
        basis = KernelBasis(data.kernel, data.X)
        is_precise = paths.weights.dtype != data.X.dtype
        return Solved(basis.doubled if is_precise else basis, partial(self._inverse, data, paths))

    def _inverse(self, data: DataSet, paths: SamplePaths) -> Apply:
        system = self.system(data)
        if paths.weights.dtype != system.dtype:
            system = system.doubled() or system
        return self.solver_for(len(data.X)).inverse(
            system, 1 + paths.num_samples, seed=self.seed, what="The posterior's covariances"
        )


def solve_arguments(
    system: LinearSystem,
    targets: Targets,
    solver: Solver,
    judge: Callable[[Any, Targets], Judge | None] = PosteriorError.for_targets,
) -> dict[str, Any]:
    """Return the arguments ``rhs`` and ``posterior`` of a solve for a posterior's ``targets``."""
    return {
        "rhs": targets if solver.splits_targets else system.rhs(targets),
        "posterior": judge(system, targets),
    }


def joined_targets(misfits: Tensor, values: Tensor, noise: Tensor) -> Targets:
    """Return the targets of means (n, r), in the first columns, and of samples (n, s)."""
    noise_draw = torch.cat([torch.zeros_like(misfits), noise], dim=1)
    return Targets(torch.cat([misfits, values], dim=1), noise_draw)


def shared_targets(
    system: DistributedKernelSystem, misfit: Tensor, values: Tensor, generator: torch.Generator
) -> Targets:
    """Return what a shared ``system`` is solved for, by all processes together: the mean's weights,
    in the first column, and those of every path. The noise of a row is drawn by the row's number:
    whoever holds it draws the same.

    Args:
        misfit: (n_r, 1) y − μ(X) of this process's rows.
        values: (n_r, s) the prior functions there.
        generator: in the same state in all processes.
    """
    std = system.noise.sqrt().unsqueeze(-1)
    draws = system.rows.normal(values.shape[1], generator, like=values)
    noise = std * balanced_rows(values / std, draws, system.rows.product)
    return joined_targets(misfit, values, noise)


def _initial(system: LinearSystem, misfit: Tensor, wanted: Draw) -> Tensor | None:
    """Return the weights (n_r, 1 + s) that a solve for a ``misfit`` y − μ(X) (n_r, 1) starts from:
    zero but for the mean's, which go on from ``wanted.warm``; ``None`` where all are zero, as they
    are beyond so many new points that their own block is a system to iterate on.
    """
    warm = wanted.warm
    if warm is None or not 0 <= system.n - len(warm) <= DIRECT_SOLVE_UP_TO:
        return None
    start = extended(system, misfit, warm)
    return torch.cat([start, start.new_zeros(len(start), wanted.num_paths)], dim=1)


def extended(system: LinearSystem, B: Tensor, W: Tensor) -> Tensor:
    """Return W, which solves the system of the first k rows, and at new points what solves their
    own rows of H W = B beside it: a step of block coordinate descent, at the cost of (n − k) n
    kernel entries.

    New rows that start at zero hold all that is wrong, in a residual that is small beside the norm
    of B: a solver may stop before it has seen them.

    Args:
        B: (n_r, s); of no account without new points.
        W: (k, s), the solution of the earlier system, in every process.
    Returns:
        (n_r, s), in the system's dtype.
    """
    rows = system.rows
    start = system.noise.new_zeros(rows.num_held, W.shape[1])
    held = W[rows.own]
    start[: len(held)] = held
    if len(W) < system.n:
        blocks = require_blocks(system)
        new = torch.arange(len(W), system.n, device=B.device)
        gap = blocks.rows_matmul(new, start, minus=B).neg_()
        own_block = blocks.restrict(new)
        rows.add(start, new, Cholesky().solve(own_block, gap).value)
    return start


def default_solver(n: int) -> Solver:
    """Return the solver of a model of n points that was given none."""
    return Cholesky() if n <= DIRECT_SOLVE_UP_TO else Auto()


def _require_memory(X: Tensor, num_paths: int) -> None:
    memory.require(
        COLUMNS_HELD * len(X) * (num_paths + 1) * X.element_size(),
        X.device,
        f"Solving for {num_paths} paths at {len(X)} points",
        "Draw fewer paths at a time.",
    )


def prior_values(prior: PriorPaths, X: Tensor) -> Tensor:
    """Return f(X), (s, n), summed in float64: where points lie many lengthscales apart, sums in
    float32 are off by more than the noise.
    """
    return prior.summed_in(torch.float64)(X)


def settled(paths: SamplePaths, X: Tensor, agree: Callable[[bool], bool] = bool) -> SamplePaths:
    """Return ``paths`` of data X (n, d). Those of float32 data are summed in float64 if sums in
    float32 would lose them; ``agree`` makes that one answer of all processes.
    """
    if X.dtype != torch.float32:
        return paths
    is_lost = agree(loses_in_float32(paths, X))
    return paths.summed_in(torch.float64 if is_lost else torch.float32)


def loses_in_float32(
    paths: SamplePaths, X: Tensor, num_looks: int = 64, largest_loss: float = 0.01
) -> bool:
    """Return whether sums in float32 would lose ``paths`` of data X (n, d).

    They would where data are dense and noise is little: the weights of a path, of both signs, are
    then thousands of times as large as its update. What the mean and a few paths lose is measured
    at some of the data, where the posterior's standard deviation is smallest. The variance of few
    paths at a datum is uncertain: what is typical of the data counts as one path more.

    Args:
        num_looks: at most so many paths, at as many points, are summed in both.
        largest_loss: the share of the posterior's variance that may be lost.
    """
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(len(X), (num_looks,), generator=generator, device=generator.device)
    Q = X[places.to(X.device)]
    exact, rounded = (
        _mean_and_deviations(paths, Q, dtype) for dtype in (torch.float64, torch.float32)
    )
    lost = (rounded - exact).square()
    squares = exact[1:].square()
    variance = torch.cat([squares, squares.mean(0).median().expand_as(squares[:1])]).mean(0)
    return bool((torch.maximum(lost[0], lost[1:].mean(0)) > largest_loss * variance).any())


def _mean_and_deviations(paths: SamplePaths, X: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mean's update, q paths less the mean at X (q, d), in ``dtype``: (1 + s, q)."""
    weights = torch.cat([paths.mean_weights, paths.weights[:, : len(X)]], 1)
    updates = combine(paths.data, X, weights.to(dtype))
    prior = paths.prior
    values = 0.0 if prior is None else prior.summed_in(dtype)(X)[: len(X)]
    return torch.cat([updates[:1], updates[1:] - updates[:1] + values])


def prior_of(wanted: Draw, num_features: int, paths_per_draw: int = 32) -> PriorPaths:
    """Return the prior paths given, or else some by random features: by several draws of them, if
    their covariance is that of a posterior, in which these average the features' own error out.
    """
    if wanted.prior is not None:
        return wanted.prior
    data, num_paths = wanted.data, wanted.num_paths
    check_codes(data.kernel, data.X)
    return PriorPaths.draw(
        data.kernel,
        data.X.shape[1],
        num_paths,
        num_features=num_features,
        num_draws=math.ceil(num_paths / paths_per_draw) if wanted.spanning else 1,
        generator=wanted.generator,
        like=data.X,
        points=data.X,
    )


class Solved(Covariance):
    """c(·, Q) = k(·, Q) − k(·, X) W with W = H⁻¹ k(X, Q), of all data.

    Args:
        basis: k(·, X), in the precision of the arithmetic.
        prepare: makes the map B → H⁻¹ B; called at the first need.
    """

    def __init__(self, basis: KernelBasis, prepare: Callable[[], Apply]):
        self.basis = basis
        self._inverse = cache(prepare)

    @torch.no_grad()
    def solve(self, B: Tensor) -> Tensor:
        """Return H⁻¹ B for B (n, s); what depends on H alone is computed once, and kept."""
        return self._inverse()(B)

    def _between(self, Q: Tensor) -> CovarianceWith:
        Q = Q.to(self.basis.dtype)
        with torch.no_grad():
            cross = kernel_operator(
                self.basis.kernel, self.basis.Z, Q.reshape(-1, Q.shape[-1])
            ).to_dense()
            W = self.solve(cross).reshape(len(cross), *Q.shape[:-1])
        return lambda A: self._with(A.to(Q), Q, W).to(A)

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
        # First, as it refuses what it does not have
        reduction = _Reduction.apply(points, Q, W, self.basis, self.solve)[0]
        values = kernel_values(self.basis.kernel, points, Q) - reduction
        values = values.reshape(own.numel(), lead.numel(), A.shape[-2], k).transpose(0, 1)
        return values.reshape(*front, A.shape[-2], k)


class _Once(torch.autograd.Function):
    """A function that refuses what it does not have by name."""

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        raise NotImplementedError(ONCE)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        raise NotImplementedError(ONCE)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> NoReturn:
        raise NotImplementedError(ONCE)


class _Reduction(_Once):
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
        of_A, of_Q = _ReductionGradient.apply(
            A, Q, cotangent, gradient, ctx.basis, ctx.solve if ctx.needs_input_grad[1] else None
        )
        return of_A, of_Q, None, None, None


class _ReductionGradient(_Once):
    """Its gradients in A and, if there is a solve, in Q; they have none themselves."""

    @staticmethod
    def forward(
        A: Tensor,
        Q: Tensor,
        cotangent: Tensor,
        gradient: Tensor,
        basis: KernelBasis,
        solve: Apply | None,
    ) -> tuple[Tensor, Tensor | None]:
        of_A = torch.einsum("tak,tkad->tad", cotangent, gradient)
        if solve is None:
            return of_A, None
        T, k, d = Q.shape
        lengths = torch.linalg.vector_norm(cotangent, dim=1, keepdim=True)
        units = cotangent / torch.where(lengths > 0, lengths, 1.0)
        adjoint = [KernelBasis(basis.kernel, A[t]).matmul(basis.Z, units[t]) for t in range(T)]
        _, slopes = basis.rowwise(Q.reshape(T * k, 1, d), solve(torch.cat(adjoint, 1)))
        return of_A, slopes.reshape(T, k, d) * lengths.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass
