"""A solver that chooses itself: direct, conjugate gradients or accelerated sketch-and-project,
whichever is predicted to be fastest.

Costs are counted in floating-point operations of a large matrix product by MKL, which
factorisations use, too. The constants come from a sweep over systems easy and hard on a CPU
(``benchmarks/solver_sweep.py``); only their ratios matter.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from surrogates import checks, memory
from surrogates.operators.linalg import onednn_is_faster
from surrogates.solvers.base import IterativeSolver, Request, Solver
from surrogates.solvers.cg import CG
from surrogates.solvers.cholesky import Cholesky
from surrogates.solvers.forecast import SpectrumModel
from surrogates.solvers.run import Solution
from surrogates.solvers.sketch_and_project import SketchAndProject, default_block_size
from surrogates.systems.base import BlockSystem, LinearSystem
from surrogates.systems.preconditioners import Nystrom
from surrogates.systems.targets import Targets

SolverT = TypeVar("SolverT", bound=Solver)

EVALUATE = 300.0  # operations that a kernel entry is worth to evaluate
READ = 20.0  # likewise to read, one after another
GATHER = 160.0  # likewise to read in random blocks
# operations an entry and column
COLUMN = 2.2
COLUMN_BY_ONEDNN = 1.1
# of a direct solve: n³/3 operations below the rate of a product, and n² entries brought into place
FACTORISE = 1.2
COPY = 400.0
BLOCK_FACTORISE = 1.5  # of smaller factorisations
# Operations n r² that a preconditioner of r columns is worth, of which the triangular solve is half
PRECONDITION = 7.0
DIRECT_ADVANTAGE = 1.15  # a direct solve may cost so much more: it ends far below the tolerance
PLAIN_SLOWER = 1.5  # times the forecast of CG(None), the median found
LEAST = 1e-3  # epochs, and seconds, of a solver that may only evaluate what it is given
WORTH_GOING_ON = 3.0  # epochs, of which one evaluates the start and one the end
SMALLEST_ITERATIVE = 1000  # below, nothing is worth predicting
FLOAT32_RANGE = (1e-30, 1e30)  # of noise and right-hand sides, with room for their products
FLOAT32_REACHES = 1e-3  # the tolerance down to which a float64 system is first solved in float32


class Choice(NamedTuple):
    """A solver, and why it was chosen, in one line."""

    solver: Solver
    reason: str


class _Candidate(NamedTuple):
    solver: Solver
    name: str
    epochs: float
    cost: float


@dataclass(frozen=True)
class Auto(Solver):
    """Solve (K + Σ) W = B by the method that is predicted to be the fastest for this system.

    With n points, s columns, and m_r the mean of what r random columns leave of K's diagonal
    (measured for up to n/20 and 400 columns, extrapolated beyond), the candidates are

    * ``Cholesky()``, if it fits in memory and its rounding error allows the tolerance;
    * ``CG(Nystrom(r))`` for r = n/20, n/10, n/5, and ``CG(None)`` for nearly diagonal K: the
      recursion itself is run on a model of the spectrum, see :class:`SpectrumModel`. Of the
      preconditioned solves that reached 1e-2, four in five took within a factor 1.4 of the
      iterations forecast; those near the limit of the precision are deliberately forecast to take
      far more;
    * ``SketchAndProject.asap()``, found to take 5 … 12 epochs, modelled by 5 + 1.3 log₁₀(1 + 30 m /
      λ_n) with m for the block size and the smallest eigenvalue λ_n of the model: small noise and
      clustered points hardly hurt it.

    Where the others fall short of the tolerance (a factorisation in need of jitter, a recursion
    that broke down), the last takes over. A float64 system is solved in float32 first, down to a
    tolerance of 1e-3, and in float64 from there if it is not converged: the residual reported is
    that of the float64 system. Systems of inducing points are solved by ``Cholesky()``, those whose
    rows are shared by several processes by ``SketchAndProject.asap()``.

    Args:
        tolerance: relative residual wanted.
        max_epochs: budget of the iterative methods, in n² kernel entries.
        max_seconds: budget of time; ``None`` for none. A direct solve, once begun, is not stopped.
        direct: whether ``Cholesky()`` may be chosen.

    The solution's note begins with the choice and its reason.
    """

    splits_targets: ClassVar[bool] = True  # as Cholesky

    tolerance: float = field(default=1e-2, kw_only=True)
    max_epochs: float = field(default=100.0, kw_only=True)
    max_seconds: float | None = field(default=None, kw_only=True)
    direct: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        checks.budget(self.tolerance, self.max_epochs, self.max_seconds)
        if not isinstance(self.direct, bool):
            raise TypeError(
                f"`direct` must be True or False, got {type(self.direct).__name__} {self.direct!r}."
            )

    @torch.no_grad()
    def choose(
        self, system: LinearSystem, num_columns: int, generator: torch.Generator | None = None
    ) -> Choice:
        """Return the solver for ``system`` and ``num_columns`` right-hand sides, and the reason."""
        n = system.n
        blocks = system.blocks
        if blocks is None:
            return Choice(Cholesky(), f"Cholesky(): the system has {n} unknowns")
        if system.rows.is_shared:
            return Choice(
                self._asap(),
                "SketchAndProject.asap(): the rows are shared by several processes, and it moves"
                " the least between them",
            )
        size = torch.finfo(system.dtype).bits // 8
        fits = self.direct and 2 * n**2 * size <= memory.available(system.device)
        if n < SMALLEST_ITERATIVE and fits:
            return Choice(Cholesky(), f"Cholesky(): n = {n} is small")
        probe = SpectrumModel.of(
            blocks, torch.Generator().manual_seed(0) if generator is None else generator
        )
        candidates = self._candidates(blocks, num_columns, probe)
        if fits and probe.direct_residual <= self.tolerance:
            cost = (
                n**2
                * (FACTORISE * n / 3 + COPY + 4.0 * num_columns)
                * (2.0 if system.dtype == torch.float64 else 1.0)
            )
            candidates.append(_Candidate(Cholesky(), "Cholesky()", 1.0, cost / DIRECT_ADVANTAGE))
        best = min(candidates, key=lambda candidate: candidate.cost)
        others = ", ".join(
            f"{c.name} {c.cost / best.cost:.1f}"
            for c in sorted(candidates, key=lambda c: c.cost)[1:3]
        )
        return Choice(
            best.solver,
            f"{best.name}: about {best.epochs:.0f} epochs for n = {n} and {num_columns} columns,"
            f" where {len(probe.missed)} columns leave {probe.missed[-1]:.1e} of K's diagonal;"
            f" relative cost of others: {others}",
        )

    def _candidates(
        self, system: BlockSystem, num_columns: int, probe: SpectrumModel
    ) -> list[_Candidate]:
        n = system.n
        s = num_columns
        column = COLUMN
        free = memory.available(system.device)
        if system.dtype == torch.float32 and system.device.type == "cpu" and onednn_is_faster():
            column = COLUMN_BY_ONEDNN
        digits = max(1.0, -math.log10(self.tolerance)) / 2.0
        evaluate = 0.0 if system.is_stored else EVALUATE
        epoch = n**2 * (max(evaluate, READ) + column * s)
        limits: dict[str, Any] = {
            "tolerance": self.tolerance,
            "max_epochs": self.max_epochs,
            "max_seconds": self.max_seconds,
        }

        def candidate(
            solver: Solver, name: str, epochs: float, extra: float, setup: float = 0.0
        ) -> _Candidate:
            return _Candidate(solver, name, epochs + 1.0, setup + epochs * (epoch + extra) + epoch)

        block = default_block_size(n, s)
        blocks = n * block * (BLOCK_FACTORISE * block / 3.0 + 2.0 * s + evaluate) + (
            0.0 if evaluate else GATHER * n**2
        )
        epochs = digits * (
            5.0 + 1.3 * math.log10(1.0 + 30.0 * probe.missed_by(block) / probe.smallest)
        )
        found = [
            candidate(
                self._asap(),
                f"SketchAndProject.asap(), blocks of {block}",
                epochs,
                blocks,
            )
        ]
        found.append(
            candidate(
                CG(None, **limits),
                "CG(None)",
                PLAIN_SLOWER * probe.iterations(0, self.tolerance),
                0.0,
            )
        )
        for rank in sorted({max(1, n // 20), max(1, n // 10), max(1, n // 5)}):
            if 3 * n * rank * torch.finfo(system.dtype).bits // 8 > free:
                continue
            epochs = 1.0 + probe.iterations(rank, self.tolerance)
            setup = n * rank * (PRECONDITION * rank + evaluate)
            applied = 2.0 * n * rank * (READ + column * s)
            found.append(
                candidate(
                    CG(Nystrom(rank), **limits), f"CG(Nystrom({rank}))", epochs, applied, setup
                )
            )
        return found

    def _solve(self, request: Request) -> Solution:
        system = request.system
        blocks = system.blocks
        B = request.rhs
        initial = request.initial
        choice = self.choose(system, B.shape[1], request.generator)
        notes = [choice.reason]
        steps = torch.zeros(B.shape[1], dtype=torch.long, device=B.device)

        def run(
            solver: Solver, system: LinearSystem, B: Tensor | Targets, initial: Tensor | None
        ) -> Solution:
            solution = solver.solve(
                system,
                B,
                initial=initial,
                generator=request.generator,
                callback=request.callback,
            )
            steps.add_(solution.steps)
            if solution.note:
                notes.append(solution.note)
            return solution

        if blocks is not None and self._begins_in_float32(blocks, B, choice.solver):
            single = blocks.to(torch.float32)
            start = None if initial is None else initial.float()
            first = run(self._left(choice.solver, request, reserve=1.0), single, B.float(), start)
            system.entries += single.entries
            initial = first.value.to(B.dtype)
            del single, first
        # Of inducing points, B itself would have lost too much in rounding.
        given = B if blocks is not None or request.targets is None else request.targets
        solution = run(self._left(choice.solver, request), system, given, initial)
        falls_short = not bool((solution.residual <= self.tolerance).all())
        projects = isinstance(choice.solver, SketchAndProject)
        if blocks is not None and not projects and falls_short:
            rest = self._left(SketchAndProject.asap(tolerance=self.tolerance), request)
            if rest.max_epochs > WORTH_GOING_ON:
                # What rounding left of a direct solve has large weights, whose rounding no
                # iteration gets rid of: start anew.
                start = initial if isinstance(choice.solver, Cholesky) else solution.value
                notes.append("SketchAndProject.asap() takes over, as the residual fell short")
                solution = _better_columns(solution, run(rest, system, B, start))
        return replace(
            solution,
            converged=solution.residual <= self.tolerance,
            steps=steps,
            epochs=request.epochs,
            seconds=request.seconds,
            note="; ".join(dict.fromkeys(notes)),
        )

    def _asap(self) -> SketchAndProject:
        return SketchAndProject.asap(
            tolerance=self.tolerance, max_epochs=self.max_epochs, max_seconds=self.max_seconds
        )

    def _left(self, solver: SolverT, request: Request, reserve: float = 0.0) -> SolverT:
        """Return ``solver`` with what is left of the budget, but for ``reserve`` epochs, or itself
        if it has none.
        """
        if not isinstance(solver, IterativeSolver):
            return solver
        seconds = None
        if self.max_seconds is not None:
            seconds = max(LEAST, self.max_seconds - request.seconds)
        epochs = self.max_epochs - request.epochs - reserve
        return replace(solver, max_epochs=max(LEAST, epochs), max_seconds=seconds)

    def _begins_in_float32(self, system: BlockSystem, B: Tensor, solver: Solver) -> bool:
        if (
            system.dtype != torch.float64
            or not isinstance(solver, IterativeSolver)
            or self.tolerance < FLOAT32_REACHES
        ):
            return False
        low, high = FLOAT32_RANGE
        return bool(system.smallest_noise > low) and bool(system.rows.all(B.abs() < high).all())


def _better_columns(first: Solution, second: Solution) -> Solution:
    """Return ``second`` with the columns of ``first`` that have the smaller residual."""
    better = first.residual < second.residual
    return replace(
        second,
        value=torch.where(better, first.value, second.value),
        residual=torch.where(better, first.residual, second.residual),
    )
