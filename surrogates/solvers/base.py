"""What a solver is, and the one loop behind every iterative method.

Notation: H (n, n) the system's matrix, B (n, s) right-hand sides, W (n, s) their solutions; the
relative residual of a column is ‖b − H w‖ / ‖b‖.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar, final

import torch
from torch import Tensor

from surrogates import checks, memory
from surrogates.solvers.checkpoint import ENDED, Checkpoint, Keeper, digest
from surrogates.solvers.footprint import WHEN_COLUMNS_END, Footprint, Size
from surrogates.solvers.run import (
    STALLED,
    TOO_LARGE,
    Judge,
    Progress,
    Run,
    Solution,
    Start,
    Sweep,
    columns_of,
    drop_others,
    now,
    selected,
    targets_of,
)
from surrogates.solvers.run import Callback as Callback
from surrogates.solvers.run import Request as Request
from surrogates.solvers.state import Parts, State, parts, restore
from surrogates.systems.base import (
    Apply,
    BlockSystem,
    LinearSystem,
    Targets,
    check_right_hand_sides,
)

SystemT = TypeVar("SystemT", bound=LinearSystem)
PreparedT = TypeVar("PreparedT")
StateT = TypeVar("StateT", bound=State)

ROW_COUNTS = ("block_size", "batch_size", "rank")  # settings of solvers and preconditioners
# Sweeps in a row without progress: the first may be a stochastic method's bad luck
STALLS_ALLOWED = 2
MARGIN = 0.9  # of what the sweep before would have been right with
MOST_DOUBLINGS = 126  # of a factor that float32 holds
UNSCALED = (1e-9, 1e9)  # largest entries of a column whose squares float32 holds
COLUMNS_OF_A_REQUEST = 4  # (n, s) matrices that a solve holds beside what its method does


class Solver(ABC):
    """Solves H W = B. Concrete solvers are frozen dataclasses, which are their own configuration.

    A ``block_size``, a ``batch_size`` and a preconditioner's ``rank`` count rows. Where a system
    has fewer, all of them are used, and the solution's note says so.

    Attributes:
        splits_targets: whether the method gains from :class:`Targets`, the two parts of B, in place
            of their sum.
        needs_precision: whether it works in the arithmetic that ``LinearSystem.precise`` gives.
        keep_descent: whether columns are returned whose residual is larger than that of 0.
    """

    splits_targets: ClassVar[bool] = False
    needs_precision: ClassVar[bool] = False
    keep_descent: bool = False

    @final
    @torch.no_grad()
    def solve(
        self,
        system: LinearSystem,
        rhs: Tensor | Targets,
        *,
        initial: Tensor | None = None,
        generator: torch.Generator | None = None,
        callback: Callback | None = None,
        posterior: Judge | None = None,
    ) -> Solution:
        """Return W with H W ≈ ``rhs``; 0 for a column found no better than that.

        Args:
            rhs: B (n, s), or the targets whose sum it is.
            initial: warm start (n, s); zeros if ``None``.
            generator: source of all randomness; a generator seeded with 0 if ``None``.
            callback: called with :class:`Progress` as the solve goes on.
            posterior: tells the errors of weights that stand for a posterior.

        Raises:
            TypeError, ValueError: if the shapes, dtypes, devices or values of the arguments do not
                fit, or the method needs parts of the matrix that the system does not give.
        """
        started = now()
        exact = system.precise() if self.needs_precision else system
        entries = exact.entries
        if isinstance(rhs, Targets):
            targets = rhs.to(exact.dtype) if self.needs_precision else rhs
            B = exact.rhs(targets)
            check_right_hand_sides(
                system, B.to(system.dtype) if self.needs_precision else B, initial
            )
        else:
            targets = None
            check_right_hand_sides(system, rhs, initial)
            B = rhs.to(exact.dtype)
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        generator = system.rows.agreed(generator, B.shape[1])
        request = Request(
            exact,
            system.dtype,
            B,
            targets,
            initial,
            generator,
            callback,
            started,
            entries,
            posterior=posterior,
        )
        precision = memory.full_precision_on(exact.device)
        # No tensor of a small solve is mapped anew
        is_large = exact.n * max(exact.n, B.shape[1]) * B.element_size() > memory.MAPPED_ANEW
        scale = _into_range(request)
        with memory.keeping_freed() if is_large else nullcontext(), precision:
            solution = self._solve(request)
        if scale is not None:
            solution = replace(solution, value=solution.value / scale)
        if exact is not system:
            system.entries += exact.entries
        for note in _reduced_settings(self, system.num_data):
            solution = replace(solution, note=_joined(solution.note, note))
        if not self.keep_descent:
            solution = solution.no_worse_than_zero()
        if posterior is not None and solution.error is None:
            posterior.scale.fill_(1.0)
            error, _ = posterior.look(torch.arange(B.shape[1], device=B.device), solution.value)
            solution = replace(solution, error=error.to(solution.residual))
        return solution

    @abstractmethod
    def _solve(self, request: Request) -> Solution:
        """Return the solution of ``request``, whose arguments have been checked."""

    def gains_precision(self, system: LinearSystem, num_columns: int) -> bool:
        """Return whether ``system`` is better solved as ``LinearSystem.precise`` gives it, its
        solution kept in that arithmetic.
        """
        return self.needs_precision

    def inverse(
        self,
        system: LinearSystem,
        num_columns: int,
        *,
        seed: int,
        what: str,
        otherwise: "Solver | None" = None,
    ) -> Apply:
        """Return the map B → H⁻¹ B for many B of about so many columns; what depends on H alone, a
        factor or a preconditioner, is computed once.

        Args:
            seed: of every solve.
            what: is computed from the solutions, in the plural, for a warning if one falls short.
            otherwise: goes on where this solver falls short; itself, as it is, if ``None``.
        """
        last = self if otherwise is None else otherwise
        kept = self.kept(system, torch.Generator().manual_seed(seed))

        def apply(B: Tensor) -> Tensor:
            generator = torch.Generator().manual_seed(seed)
            solution = kept.solve(system, B, generator=generator)
            if kept is not last and not bool(solution.converged.all()):
                generator = torch.Generator().manual_seed(seed)
                solution = last.solve(system, B, initial=solution.value, generator=generator)
            solution.warn_if_unsolved(what)
            return solution.value

        return apply

    def kept(self, system: LinearSystem, generator: torch.Generator) -> "Solver":
        """Return this method with what it prepares for ``system`` kept, for that system alone."""
        return self

    def footprint(self, size: Size) -> Footprint | None:
        """Return what each process holds and does in a step of a solve of this size; ``None`` where
        that cannot be said.
        """
        return None


def _into_range(request: Request) -> Tensor | None:
    """Multiply the columns of ``request`` whose squares the arithmetic may not hold by powers of
    two, which rounds nothing; return these factors (s,), or ``None`` if there is no such column.
    """
    low, high = request.rhs.aminmax(dim=0)
    largest = request.system.rows.max(torch.maximum(high, -low))
    lowest, highest = UNSCALED
    fits = (largest == 0) | ((largest > lowest) & (largest < highest))
    if bool(fits.all()):
        return None
    exponent = torch.frexp(largest).exponent.clamp(-MOST_DOUBLINGS, MOST_DOUBLINGS)
    exponent = exponent.masked_fill(fits, 0)
    scale = torch.ldexp(torch.ones_like(largest), -exponent)
    request.rhs = request.rhs * scale
    if request.targets is not None:
        request.targets = Targets(*(part * scale for part in request.targets))
    if request.initial is not None:
        request.initial = request.initial * scale
    if request.posterior is not None:
        request.posterior.scale.copy_(scale)
    return scale


def _reduced_settings(solver: Solver, n: int) -> list[str]:
    """Return a note for each of the solver's settings that exceed the n rows of a system."""
    parts = (solver, getattr(solver, "preconditioner", None))
    settings = [(name, getattr(part, name, None)) for part in parts for name in ROW_COUNTS]
    return [
        f"`{name}` {count} is reduced to n = {n}" for name, count in settings if (count or 0) > n
    ]


def _joined(note: str, further: str) -> str:
    return f"{note}; {further}" if note else further


def check_checkpoint(checkpoint: object) -> None:
    """Require a ``Checkpoint`` or ``None``.

    Raises:
        TypeError: if it is something else.
    """
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        raise TypeError(
            f"`checkpoint` must be a Checkpoint, got {type(checkpoint).__name__}. Use"
            " `Checkpoint(folder)`."
        )


@dataclass(frozen=True)
class IterativeSolver(Solver, Generic[SystemT, PreparedT, StateT]):
    """The loop that iterative methods share. A method defines which systems it can solve, what it
    prepares, its state, a step, and two readings of the state.

    Columns that reach ``tolerance`` are taken out of the state, so that steps never touch them
    again. What the method *estimates* decides when to stop; what is returned is *evaluated* in one
    more product, or in random rows of a large system, and columns that fell short go on from there.
    Where a sweep lowered neither a column's residual nor its objective ½ wᵀHw − wᵀb, the value
    before it is kept.

    Args:
        tolerance: relative residual at which a column stops; ``None`` for 1e-2, or for ``error``
            where weights stand for a posterior.
        error: of the mean and of the paths of a posterior, at which a column stops, in posterior
            standard deviations.
        max_epochs: budget, in n² kernel entries, preconditioner and checks included. A spent budget
            is a result, not an error.
        max_seconds: budget of time; ``None`` for none.
        checkpoint: where to save the solve as it goes on, so that the same call can continue one
            that was cut short; ``None`` for nowhere.
        keep_descent: return a column whose residual is larger than that of 0, too, if its objective
            is lower: to compare methods within a budget that is not enough, each in the arithmetic
            of its system.
        refine: go on in float64 arithmetic, within the budget and free memory, where a solve of a
            float32 system misses the tolerance, or float32 cannot show its residual.
    """

    tolerance: float | None = field(default=None, kw_only=True)
    error: float = field(default=0.1, kw_only=True)
    max_epochs: float = field(default=100.0, kw_only=True)
    max_seconds: float | None = field(default=None, kw_only=True)
    checkpoint: Checkpoint | None = field(default=None, kw_only=True)
    keep_descent: bool = field(default=False, kw_only=True)
    refine: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        checks.budget(self.tolerance, self.error, self.max_epochs, self.max_seconds)
        check_checkpoint(self.checkpoint)

    @abstractmethod
    def accepts(self, system: LinearSystem) -> SystemT:
        """Return ``system`` as the kind that the method solves.

        Raises:
            TypeError: if it is of another kind.
        """

    @abstractmethod
    def prepare(self, system: SystemT, generator: torch.Generator) -> PreparedT:
        """Compute what depends on the system alone (a preconditioner, a step size),
        once a solve.
        """

    @abstractmethod
    def init(self, system: SystemT, start: Start[PreparedT]) -> StateT:
        """Return the first state; what ``start`` holds stays as it is."""

    @abstractmethod
    def step(
        self, system: SystemT, rhs: Tensor, state: StateT, generator: torch.Generator
    ) -> StateT:
        """Return the next state."""

    @abstractmethod
    def estimate(self, system: SystemT, state: StateT) -> Tensor:
        """Return the solution that the state stands for (an average of iterates, for some
        methods).
        """

    @abstractmethod
    def residual_norm(self, system: SystemT, state: StateT) -> Tensor | None:
        """Return the method's estimate of ‖b − H w‖ for each running column, (s,), at no extra
        product; infinite if it has none.

        ``None`` if it has not changed in this step: whether a column has ended is not asked then,
        which would wait for the device.
        """

    def recursion(self, state: StateT) -> tuple[Tensor, Tensor] | None:
        """Return W and R = B − H W of the running columns, (n, s) each, of a method that finds R by
        a recursion, which does not notice what float32 products lose; ``None`` of others.
        """
        return None

    def epochs_per_step(self, system: SystemT, num_columns: int) -> float:
        """Return the epochs that a step uses, of a solve for so many columns."""
        return 1.0

    def describe(self, state: StateT) -> str:
        """Return what a user should know of how the columns of ``state`` fared;
        empty if nothing.
        """
        return ""

    def _solve(self, request: Request) -> Solution:
        # A residual above that of 0 leaves the objective to decide, which takes all rows
        may_sample = request.system.blocks is not None and not self.keep_descent
        run = Run(
            self.accepts(request.system),
            request,
            self.tolerance,
            self.error,
            is_sampled=may_sample,
        )
        generator = request.generator
        keeper = None
        saved: Mapping[str, Any] | None = None
        if self.checkpoint is not None:
            keeper = Keeper(self.checkpoint, run.system.rows, self._key(run))
            saved = keeper.load()
        if saved is not None and ENDED in saved:
            run.restore(saved)
            return self._solution(run)
        if saved is not None:
            run.prepared_from = saved["run.prepared_from"]
            generator.set_state(run.prepared_from)
        precise = run.system.doubled()
        watched = precise if precise is not None and self._would_refine(run, precise) else None
        if saved is not None or self._goes_on(run):
            prepared = self.prepare(run.system, generator)
            sweep = self._begin(run, prepared, 1.0, 0, saved)
            while True:
                stalls = 0 if self._sweep(run, sweep, keeper, watched) else sweep.stalls + 1
                if run.has_ended or run.is_exhausted or stalls == STALLS_ALLOWED:
                    break
                if watched is not None and run.gets_no_further():
                    break
                if not self._goes_on(run):
                    break
                sweep = self._begin(run, prepared, self._next_target(run, sweep), stalls, None)
            del prepared, sweep
        self._end(run, precise, keeper)
        return self._solution(run)

    def _end(self, run: Run[SystemT], precise: BlockSystem | None, keeper: Keeper | None) -> None:
        """Refine what the sweeps have left, and let the checkpoint know that this is the end, or
        that more time would help.
        """
        unsolved = run.is_unsolved
        if bool((unsolved & run.stalled).any()):
            run.note = _joined(run.note, STALLED)
        may_go_on = (
            keeper is not None
            and keeper.checkpoint.keep_solution
            and bool(unsolved.any())
            and self._is_late(run)
        )
        if precise is not None:
            self._refine(run, precise)
        if not self.keep_descent:
            run.put_back(precise)
            if not run.has_ended:
                run.judge_value()
        if keeper is not None and not may_go_on:
            keeper.end(run.steps, run.parts() | {ENDED: True})

    def _solution(self, run: Run[SystemT]) -> Solution:
        return Solution(
            run.value,
            run.residual,
            ~run.is_unsolved,
            run.column_steps,
            run.request.epochs,
            run.request.seconds,
            run.note,
            run.error,
        )

    def _refine(self, run: Run[SystemT], precise: BlockSystem) -> None:
        """State the residuals of a float32 run as they are in float64, its system ``precise``, and
        go on in that arithmetic where the tolerance is missed, or float32 was wrong about it.
        """
        wrong = run.is_unsolved
        if run.judge is None:
            everything = torch.arange(len(run.norms), device=run.residual.device)
            wrong = run.correct(everything, precise) | run.is_unsolved
        columns = wrong.nonzero().squeeze(1)
        wanted = self.refine and not self.keep_descent and bool(columns.numel())
        if not wanted:
            return
        if not self._would_refine(run, precise):
            run.note = _joined(run.note, "float64 does not fit in free memory")
            return
        # It begins with a product
        if self._is_spent(run, run.system.epochs_per_product):
            return
        request = run.in_float64(columns, precise)
        solution = replace(self, checkpoint=None)._solve(request)
        run.take_over(columns, solution, request)
        # Rounding the solution may have changed them
        if run.judge is None:
            run.correct(columns, precise, solution.value)
        run.judge_value()
        lost = run.is_unsolved[columns] & solution.converged
        if bool(lost.any()):
            run.note += f", {TOO_LARGE}"

    def _would_refine(self, run: Run[SystemT], precise: BlockSystem) -> bool:
        """Return whether a solve may go on in float64, its system ``precise``, and that fits."""
        may = self.refine and not self.keep_descent
        return may and self._fits(precise, len(run.norms))

    def _fits(self, system: LinearSystem, num_columns: int) -> bool:
        """Return whether what a solve of ``system`` holds fits in free memory."""
        need = self.footprint(Size(system.n, system.points.shape[1], num_columns))
        if need is None:
            return True
        matrices = need.held + max(need.passing, WHEN_COLUMNS_END) + COLUMNS_OF_A_REQUEST
        numbers = matrices * system.n * num_columns + sum(need.kept.values())
        return numbers * system.dtype.itemsize <= memory.available(system.device)

    def _goes_on(self, run: Run[SystemT]) -> bool:
        return bool(run.is_unsolved.any()) and not self._is_spent(run)

    def _is_spent(self, run: Run[SystemT], further: float = 0.0) -> bool:
        """Return whether the budget allows no step after so many ``further`` epochs."""
        epochs = run.request.epochs + self.epochs_per_step(run.system, run.rhs.shape[1]) + further
        return epochs + run.epochs_to_evaluate > self.max_epochs or self._is_late(run)

    def _is_late(self, run: Run[SystemT]) -> bool:
        limit = self.max_seconds
        return limit is not None and run.system.rows.agree(run.request.seconds > limit)

    def _next_target(self, run: Run[SystemT], sweep: Sweep[StateT]) -> float:
        """Return what to ask of the method, in tolerances, which took for the ``sweep``'s target
        what was not: by as much less, and at least half, or a tenth of the tolerance.
        """
        claimed = sweep.target / (run.residual / run.tolerance).max().item()
        wanted = MARGIN * min(sweep.target, claimed)
        return max(0.5 * sweep.target, 0.1, wanted)

    def _begin(
        self,
        run: Run[SystemT],
        prepared: PreparedT,
        target: float,
        stalls: int,
        saved: Mapping[str, Any] | None,
    ) -> Sweep[StateT]:
        """Return a sweep over the columns that are not solved yet, or the one that was saved."""
        columns = run.is_unsolved.nonzero().squeeze(1)
        if saved is not None:
            columns = saved["sweep.columns"].to(columns.device)
        targets = run.request.targets
        if targets is not None:
            targets = targets_of(targets, columns)
        rhs, initial, gap = (columns_of(part, columns) for part in (run.rhs, run.value, run.gap))
        state = self.init(run.system, Start(rhs, initial, gap, prepared, targets))
        del initial, gap  # for what was saved
        running = torch.arange(len(columns), device=columns.device)
        aim = target * run.tolerance[columns]
        sweep = Sweep(columns, target, stalls, state, torch.empty_like(rhs), running, aim)
        if saved is not None:
            run.restore(saved)
            restore(sweep, Sweep.SAVED, "sweep.", saved)
            restore(state, state.names(), "state.", saved)
        return sweep

    def _key(self, run: Run[SystemT]) -> str:
        """Return what tells this solve from others."""
        start = [run.rhs, run.value, run.request.generator.get_state()]
        targets = run.request.targets
        noise_draw = [] if targets is None else [targets.noise_draw]
        settings = repr(replace(self, checkpoint=None, max_seconds=None))
        return digest(settings, [*run.system.fingerprint(), *start, *noise_draw])

    def _sweep(
        self,
        run: Run[SystemT],
        sweep: Sweep[StateT],
        keeper: Keeper | None,
        precise: BlockSystem | None,
    ) -> bool:
        """Run the method until it claims the sweep's target for all columns, or float32 cannot
        reach it and ``precise``, the system in float64, could, or the budget is spent; return
        whether it got anywhere.
        """
        request = run.request
        rhs = columns_of(run.rhs, sweep.columns[sweep.running])
        norms = run.norms[sweep.columns[sweep.running]]
        residual = torch.full_like(norms, math.inf)
        while sweep.running.numel() and not (sweep.steps and self._is_spent(run)):
            sweep.state = self.step(run.system, rhs, sweep.state, request.generator)
            sweep.steps += 1
            news = self.residual_norm(run.system, sweep.state)
            if news is not None:
                residual = news / norms
            if request.callback is not None and request.epochs >= sweep.next_report:
                self._report(run, sweep, residual, request.callback)
            recursion = self.recursion(sweep.state)
            if precise is not None and recursion is not None:
                columns = sweep.columns[sweep.running]
                lost = run.beyond_float32(columns, *recursion, precise)
                residual = residual.masked_fill(lost, 0.0)
            # `not >` so that a column whose estimate is not a number stops, too; it is evaluated
            # below like the others.
            if news is not None and not bool((going := self._going(run, sweep, residual)).all()):
                stopped = (~going).nonzero().squeeze(1)
                self._propose(run, sweep, stopped, selected(sweep.state, stopped))
                run.note = self.describe(sweep.state) or run.note
                keep = going.nonzero().squeeze(1)
                sweep.running = sweep.running[keep]
                drop_others(sweep.state, keep)
                rhs = rhs[:, keep]
                norms = norms[keep]
                residual = residual[keep]
            if keeper is not None and (
                keeper.is_due(run.steps + sweep.steps)
                or (keeper.checkpoint.keep_solution and self._is_late(run))
            ):
                keeper.save(run.steps + sweep.steps, self._parts(run, sweep))
        is_cut = bool(sweep.running.numel())
        if is_cut:
            self._propose(run, sweep, torch.arange(len(sweep.running), device="cpu"), sweep.state)
            run.note = self.describe(sweep.state) or run.note
        run.steps += sweep.steps
        del sweep.state, rhs  # before the product below, to hold fewer (n, s) matrices at once
        product = run.system.epochs_per_product
        is_spent = self._is_spent(run) or request.epochs + product > self.max_epochs
        if run.ends_judged(sweep.columns, sweep.proposal):
            return True
        if run.ends_with(sweep.columns, sweep.proposal, is_spent):
            return True
        got_on = run.accept(sweep.columns, sweep.proposal, is_cut=is_cut)
        run.judge_value()
        return got_on

    def _going(self, run: Run[SystemT], sweep: Sweep[StateT], residual: Tensor) -> Tensor:
        """Return which of the running columns go on: those whose ``residual``, as the method
        estimates it, is above what is aimed at. Where an error decides, it is looked at when one is
        below that, and until it is small enough the residual is to fall as the error has to.
        """
        going = residual > sweep.aim[sweep.running]
        if run.judge is None or bool(going.all()):
            return going
        columns = sweep.columns[sweep.running]
        estimate = self.estimate(run.system, sweep.state)
        error, relative = run.judge.look(columns, estimate)
        run.take_note(columns, error, relative)
        wanting = ~(error <= self.error) & (residual > 0)
        factor = MARGIN * self.error / error
        sweep.aim[sweep.running] = torch.where(wanting, factor.to(residual) * residual, residual)
        return wanting

    def _parts(self, run: Run[SystemT], sweep: Sweep[StateT]) -> Parts:
        state = parts(sweep.state, sweep.state.names(), "state.")
        return run.parts() | parts(sweep, Sweep.SAVED, "sweep.") | state

    def _propose(
        self, run: Run[SystemT], sweep: Sweep[StateT], stopped: Tensor, state: StateT
    ) -> None:
        """Take what ``state`` stands for as the solutions of the running columns ``stopped``."""
        ended = sweep.running[stopped]
        sweep.proposal[:, ended] = self.estimate(run.system, state)
        run.column_steps[sweep.columns[ended]] += sweep.steps

    def _report(
        self, run: Run[SystemT], sweep: Sweep[StateT], residual: Tensor, callback: Callback
    ) -> None:
        epochs = run.request.epochs
        sweep.next_report = epochs + 1.0
        worst = residual.max().item()
        steps = run.steps + sweep.steps
        columns = (len(sweep.running), len(run.norms))
        callback(Progress(steps, epochs, run.request.seconds, worst, *columns, self.max_epochs))
