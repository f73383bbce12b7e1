"""Automatic choice between a direct solve, conjugate gradients and accelerated sketch-and-project,
by predicted cost.

Costs are counted in floating-point operations of a large matrix product, at the rates of the
system's device, see :mod:`surrogates.operators.rates`; only their ratios matter. The constants were
fitted on a CPU to a sweep over easy and hard systems (``benchmarks/results/solver_sweep.json``).
"""

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from surrogates import memory
from surrogates.operators.linalg import CHEAP_FACTOR_UP_TO
from surrogates.operators.rates import rates_of
from surrogates.solvers.cells import SMOOTH
from surrogates.solvers.cg import CG
from surrogates.solvers.cholesky import JITTER, Cholesky
from surrogates.solvers.forecast import SpectrumModel
from surrogates.solvers.run import TOLERANCE, IterativeSolver
from surrogates.solvers.sketch_and_project import SketchAndProject, default_block_size
from surrogates.solvers.solver import TOO_LARGE, GoalSolver, Request, Solution, Solver, random_rows
from surrogates.systems.preconditioners import Nystrom
from surrogates.systems.system import Apply, KernelSystem, LinearSystem, require_blocks

EPOCHS_AROUND = 2.0  # a solve takes one before its steps, for its start or a factor, and one after


class Choice(NamedTuple):
    """A solver, why it was chosen, the epochs that it is forecast to take, the cost of each in
    operations, and how many a direct solve is worth; infinite where unknown or ruled out.
    """

    solver: Solver
    reason: str
    epochs: float = math.inf
    epoch_cost: float = math.inf
    direct: float = math.inf


@dataclass(frozen=True)
class Auto(GoalSolver):
    """Solve (K + Σ) W = B by the method that is predicted to be the fastest for this system.

    For n points and s columns, let m_r be the mean of K's diagonal that a Nyström approximation
    from r random columns misses (measured for up to n/20 and 400 columns, extrapolated beyond). The
    candidates are

    * ``Cholesky()``, if it fits in three quarters of the free memory and its rounding error allows
      the tolerance;
    * ``CG(Nystrom(r))`` for r = n/20, n/10, n/5, and ``CG(None)`` for nearly diagonal K: the
      forecast runs the recursion on a model of the spectrum, see :class:`SpectrumModel`. Near the
      limit of the precision it is deliberately pessimistic;
    * ``SketchAndProject.asap()``, whose epochs are modelled by 4.5 + h with h = log₁₀(1 + 30 m /
      λ_n), where m is m_r for the block size and λ_n the model's smallest eigenvalue; by 5 + 1.3 h
      where half a block's columns miss less than 3 % of the diagonal.

    If an iteration misses the tolerance, ``Cholesky()`` takes over if it fits in memory and costs
    no more than the rest of the budget, and otherwise ``asap()``, which also follows a
    factorisation that needed jitter. A float64 system is first solved in float32 and then
    corrected. Systems of inducing points are solved by ``Cholesky()``, those whose rows several
    processes share by ``SketchAndProject.asap()``.

    The solution's note begins with the choice and its reason.

    Args:
        tolerance, error, max_epochs, max_seconds, checkpoint: as in :class:`GoalSolver`, for the
            iterative methods; a direct solve, once begun, is not stopped.
        direct: whether ``Cholesky()`` may be chosen.
    """

    splits_targets: ClassVar[bool] = True  # as Cholesky

    direct: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.direct, bool):
            raise TypeError(
                f"`direct` must be True or False, got {type(self.direct).__name__} {self.direct!r}."
            )

    @torch.no_grad()
    def choose(
        self,
        system: LinearSystem,
        num_columns: int,
        generator: torch.Generator | None = None,
        is_posterior: bool = False,
    ) -> Choice:
        """Return the solver for ``system`` and ``num_columns`` right-hand sides, and the reason.

        Args:
            is_posterior: whether their solutions stand for a posterior.
        """
        n = system.n
        if not isinstance(system, KernelSystem):
            return Choice(Cholesky(), f"Cholesky(): the system has {n} unknowns")
        if system.rows.is_shared:
            return Choice(
                self._asap(),
                "SketchAndProject.asap(): the rows are shared by several processes, and it moves"
                " the least between them",
            )
        fits = self._fits_directly(system)
        if n <= CHEAP_FACTOR_UP_TO and fits:
            return Choice(Cholesky(), f"Cholesky(): n = {n} is small")
        probe = SpectrumModel.of(
            system, torch.Generator().manual_seed(0) if generator is None else generator
        )
        tolerance = TOLERANCE if self.tolerance is None else self.tolerance
        if is_posterior and self.tolerance is None:
            tolerance = self.error * probe.posterior_residual
        candidates = self._candidates(system, num_columns, probe, tolerance)
        direct = math.inf
        if fits and probe.direct_residual(system.precise().dtype) <= tolerance:
            direct = _direct_cost(system, num_columns)
            candidates.append((direct, Choice(Cholesky(), "Cholesky()", 1.0, direct)))
        (least, best), *rest = sorted(candidates, key=lambda candidate: candidate[0])
        others = ", ".join(f"{other.reason} {cost / least:.1f}" for cost, other in rest[:2])
        return best._replace(
            reason=f"{best.reason}: about {best.epochs:.0f} epochs for n = {n} and {num_columns}"
            f" columns, where {len(probe.missed)} columns leave {probe.missed[-1]:.1e} of K's"
            f" diagonal; relative cost of others: {others}",
            direct=direct / best.epoch_cost,
        )

    def gains_precision(self, system: LinearSystem, num_columns: int) -> bool:
        """Return whether a float32 ``system`` is solved directly: rounded to float32, the weights
        of dense data with little noise give too large a variance.
        """
        if system.dtype != torch.float32:
            return False
        return isinstance(self.choose(system, num_columns, None, True).solver, Cholesky)

    def kept(
        self, system: LinearSystem, num_columns: int, generator: torch.Generator
    ) -> Solver | Apply:
        solver = self.choose(system, num_columns, is_posterior=True).solver
        if isinstance(solver, GoalSolver):  # a stricter tolerance may make another one cheaper
            columns = require_blocks(system).kernel_rows(random_rows(system)).T
            aimed = self.for_covariances(system, columns)
            solver = aimed.choose(system, num_columns).solver
        if isinstance(solver, GoalSolver):
            solver = replace(solver, tolerance=self.tolerance)
        return solver.kept(system, num_columns, generator)

    def _candidates(
        self, system: KernelSystem, num_columns: int, probe: SpectrumModel, tolerance: float
    ) -> list[tuple[float, Choice]]:
        """Return choices by their names, each behind its whole cost."""
        n = system.n
        s = num_columns
        rates = rates_of(system.device)
        free = memory.available(system.device)
        digits = max(1.0, -math.log10(tolerance)) / 2.0
        evaluate = 0.0 if system.is_stored else rates.evaluate
        column = rates.column if system.dtype == torch.float32 else rates.double_column
        epoch = n**2 * ((rates.read if system.is_stored else rates.evaluate) + column * s)

        def candidate(
            solver: Solver, name: str, epochs: float, extra: float, setup: float = 0.0
        ) -> tuple[float, Choice]:
            own = epoch + extra
            return setup + epochs * own + epoch, Choice(solver, name, epochs + 1.0, own)

        block = default_block_size(n, s, system.device)
        is_smooth = probe.missed_by(block // 2) < SMOOTH * probe.scale
        work = n * block * (rates.block_factorise * block / 3.0 + 2.0 * s + evaluate)
        reads = 0.0 if evaluate else rates.gather * n**2
        calls = n / block * 300.0 * rates.call  # a step of small blocks: 2.3 ms on an H200
        hardness = math.log10(1.0 + 30.0 * probe.missed_by(block) / probe.smallest)
        epochs = digits * (5.0 + 1.3 * hardness if is_smooth else 4.5 + hardness)
        name = f"SketchAndProject.asap(), blocks of {block}"
        plain = 1.5 * probe.iterations(0, tolerance)  # the median of epochs over their forecast
        found = [
            candidate(self._asap(), name, epochs, work + reads + calls),
            candidate(CG(None, **self._limits), "CG(None)", plain, 0.0),
        ]
        for rank in sorted({max(1, n // 20), max(1, n // 10), max(1, n // 5)}):
            if preconditioner_bytes(n, rank, system.dtype) > free:
                continue
            epochs = 1.0 + probe.iterations(rank, tolerance)
            setup = n * rank * (7.0 * rank + evaluate)  # half of it the triangular solve
            applied = 2.0 * n * rank * (rates.read + column * s)
            solver = CG(Nystrom(rank), **self._limits)
            found.append(candidate(solver, f"CG(Nystrom({rank}))", epochs, applied, setup))
        return found

    def _solve(self, request: Request) -> Solution:
        system = request.system
        is_whole = isinstance(system, KernelSystem)
        is_posterior = request.posterior is not None
        choice = self.choose(request.system, request.rhs.shape[1], request.generator, is_posterior)
        notes = [choice.reason]
        solver = self._patient(choice, request)
        if isinstance(system, KernelSystem) and isinstance(solver, IterativeSolver):
            single = torch.finfo(torch.float32)
            is_held = bool(system.smallest_noise > single.tiny / single.eps)
            if is_held and system.dtype == torch.float64:
                request.coarse = system.to(torch.float32)
        solution = solver._solve(request)
        request.coarse = None
        notes.append(solution.note)
        is_dear = choice.direct < request.epochs and isinstance(solver, IterativeSolver)
        falls_short = not bool(self._is_solved(solution).all())
        is_all = isinstance(choice.solver, Cholesky) and JITTER not in solution.note
        if falls_short and is_all and solution.value.dtype == torch.float32:
            notes.append(TOO_LARGE)
        elif is_whole and falls_short and (rest := self._next(choice, request)):
            if not isinstance(choice.solver, Cholesky):
                request.initial = solution.value
            name = "Cholesky()" if isinstance(rest, Cholesky) else "SketchAndProject.asap()"
            notes.append(f"{name} takes over, as the residual fell short")
            solution = _better_columns(solution, rest._solve(request))
            notes.append(solution.note)
        return replace(
            solution,
            converged=self._is_solved(solution),
            epochs=request.epochs,
            seconds=request.seconds,
            note="; ".join(dict.fromkeys(filter(None, notes))),
            cheaper=Cholesky() if is_dear else None,
        )

    def _is_solved(self, solution: Solution) -> Tensor:
        if solution.error is not None and self.tolerance is None:
            return solution.error <= self.error
        return solution.residual <= (TOLERANCE if self.tolerance is None else self.tolerance)

    def _asap(self) -> SketchAndProject:
        return SketchAndProject.asap(**self._limits)

    @property
    def _limits(self) -> dict[str, Any]:
        return {entry.name: getattr(self, entry.name) for entry in fields(GoalSolver)}

    def _patient(self, choice: Choice, request: Request) -> Solver:
        """Return the chosen solver with a budget that leaves enough for a direct solve, in case the
        forecast is wrong: the epochs that one costs, or three times the forecast if that is more.
        """
        solver = choice.solver
        if not isinstance(solver, IterativeSolver) or not self._may_end_directly(choice, request):
            return solver
        direct = self._epochs_of_direct(choice, request)
        left = self.max_epochs - direct - EPOCHS_AROUND
        most = min(request.epochs + max(3.0 * choice.epochs, direct), left)
        return solver if most < choice.epochs else replace(solver, max_epochs=most)

    def _epochs_of_direct(self, choice: Choice, request: Request) -> float:
        """Return the number of the choice's epochs that take as long as a direct solve."""
        cost = _direct_cost(require_blocks(request.system), request.rhs.shape[1])
        return max(cost / choice.epoch_cost, EPOCHS_AROUND)

    def _next(self, choice: Choice, request: Request) -> Solver | None:
        first = choice.solver
        if not isinstance(first, Cholesky) and self._may_end_directly(choice, request):
            return Cholesky()
        left = self.max_epochs - request.epochs
        if isinstance(first, SketchAndProject) or left <= EPOCHS_AROUND:
            return None
        return self._asap()

    def _fits_directly(self, system: KernelSystem) -> bool:
        num_bytes = 2 * system.n**2 * system.precise().dtype.itemsize
        # Not all that is free: running out of memory ends the process
        return self.direct and num_bytes <= 0.75 * memory.available(system.device)

    def _may_end_directly(self, choice: Choice, request: Request) -> bool:
        """Return whether a direct solve fits, and costs no more than the rest of the budget."""
        system = request.system
        if not isinstance(system, KernelSystem) or system.rows.is_shared:
            return False
        if not self._fits_directly(system):
            return False
        epochs = self._epochs_of_direct(choice, request)
        if epochs > self.max_epochs - request.epochs:
            return False
        rate = request.seconds / max(request.epochs, 1.0)
        return self.max_seconds is None or request.seconds + epochs * rate <= self.max_seconds


def preconditioner_bytes(n: int, rank: int, dtype: torch.dtype) -> int:
    """Return the bytes that a preconditioner takes: three copies of its (n, ``rank``) factor."""
    return 3 * n * rank * dtype.itemsize


def _direct_cost(system: KernelSystem, num_columns: int) -> float:
    """Return the cost of a direct solve, in operations, discounted for its accuracy."""
    n = system.n
    rates = rates_of(system.device)
    slower = rates.double if system.precise().dtype == torch.float64 else 1.0
    entry = rates.factorise * n / 3 + rates.copy + 4.0 * num_columns
    return slower * n**2 * entry / 1.15  # being far more accurate, it may cost so much more


def _better_columns(first: Solution, second: Solution) -> Solution:
    better = first.residual < second.residual
    return replace(
        second,
        steps=first.steps + second.steps,
        value=torch.where(better, first.value, second.value),
        error=None
        if first.error is None or second.error is None
        else torch.where(better, first.error, second.error),
        residual=torch.where(better, first.residual, second.residual),
    )
