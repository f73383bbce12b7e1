"""The one loop behind every iterative method, and what it keeps of a solve.

Notation: H (n, n) the system's matrix, B (n, s) right-hand sides, W (n, s) their solutions.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar, cast

import torch
from torch import Tensor

from surrogates import memory
from surrogates.solvers.checkpoint import ENDED, Keeper, digest
from surrogates.solvers.solver import (
    CLEAR_CHANGE,
    TOO_LARGE,
    ZEROS,
    Callback,
    GoalSolver,
    Progress,
    Request,
    ResidualRows,
    Solution,
    Watch,
    joined_notes,
    now,
)
from surrogates.solvers.state import Parts, State, parts, restore
from surrogates.systems.system import LinearSystem, Targets, require_blocks

SystemT = TypeVar("SystemT", bound=LinearSystem)
PreparedT = TypeVar("PreparedT")
StateT = TypeVar("StateT", bound=State)

TOLERANCE = 1e-2  # default relative residual of a system that is not a posterior's
STALLED = "some columns stopped improving: the precision or the step is exhausted"
# A decimal digit: a sweep that leaves more of a residual hands over to a finer arithmetic, rounding
# below so much of what is allowed is accepted, and rounding may explain what is below its inverse
DIGIT = 0.1
MARGIN = 1.0 - DIGIT  # safety factor of a predicted fall
# Sweeps in a row without progress: a single one may be a stochastic method's bad luck
STALLS_ALLOWED = 2


@dataclass(frozen=True)
class Start(Generic[PreparedT]):
    """The start of a sweep, over the columns that are still to be solved."""

    rhs: Tensor  # B (n, s)
    initial: Tensor  # (n, s), with ``gap = rhs − H initial``
    gap: Tensor
    prepared: PreparedT  # the result of ``prepare``
    targets: Targets | None = None  # f and ε, if they are known separately


@dataclass
class Sweep(Generic[StateT]):
    """A pass of the method over the unsolved columns. The first sweep computes the solution, each
    later one a correction to it. Notation: c the number of its columns.
    """

    SAVED: ClassVar = [
        *("columns", "running", "proposal", "aim", "error", "residual"),
        *("before", "began", "next_look", "num_lost", "steps", "next_report"),
    ]

    columns: Tensor  # (c,) indices of the right-hand sides in this sweep
    rhs: Tensor  # (n, c) B, or the residuals to be corrected
    base: Tensor | None  # (n, c) the values to be corrected; ``None`` in the first sweep
    state: StateT  # the method's, for the columns still running, ``columns[running]``
    running: Tensor
    proposal: Tensor  # (n, c) the method's results for the columns that have stopped
    aim: Tensor  # (c,) relative residual, by the method's own estimate, at which a column stops
    error: Tensor  # (c,) at the last look
    residual: Tensor  # (c,) relative, likewise
    before: Tensor  # (c,) relative residual at the last scheduled look
    began: float  # epochs at the start of the sweep
    next_look: float  # epochs at the next scheduled look
    num_lost: int = 0  # columns that have stopped and wait for a correction
    steps: int = 0
    next_report: float = 0.0

    def solutions(self, part: Tensor, estimate: Tensor) -> Tensor:
        """Return the solutions that ``estimate`` stands for, in the given part of the columns."""
        return estimate if self.base is None else columns_of(self.base, part) + estimate


class Run(Generic[SystemT]):
    """The progress of a solve: the best value of every column so far.

    Residuals B − H W are evaluated in float64 where float32 might hide them. Corrections are
    computed in the fastest arithmetic that still makes progress.

    Attributes:
        systems: H in the precisions that the method may use, the fastest first.
        system: the one in use, number ``level``.
        finest: the last of them, in which residuals are evaluated that rounding might hide.
        value: (n, s).
        error, residual: (s,) its errors and relative residuals; the same numbers if the weights
            are not a posterior's.
        aim: (s,) relative residual, by the method's own estimate, at which a column stops.
        gap: (n, s) B − H W if it is known, else ``None``.
        is_held: (s,) whether rounding the value to its dtype alone exceeds the tolerance.
        is_lost: (s,) whether the last sweep made a column far worse.
    """

    level: int
    system: SystemT

    SAVED: ClassVar = [
        *("level", "num_sweeps", "stalls", "value", "error", "residual", "aim", "is_held"),
        *("is_lost", "column_steps", "prepared_from", "steps", "note"),
    ]

    def __init__(
        self, system: SystemT, request: Request, tolerance: float | None, error: float
    ) -> None:
        self.request = request
        self.given = system
        self.finest: LinearSystem = system.doubled() or system
        precisions = (request.coarse, system, self.finest)
        self.systems: list[Any] = list(dict.fromkeys(filter(None, precisions)))
        self.use(0)
        self.rhs = request.rhs
        norms = system.rows.norm(self.rhs)
        self.norms = torch.where(norms > 0, norms, torch.ones_like(norms))
        self.residual = norms / self.norms
        self.largest_entry = system.largest_entry
        # A tolerance given by the user is a relative residual
        self.judge = request.posterior if tolerance is None else None
        if self.judge is None:
            self.allowed = TOLERANCE if tolerance is None else tolerance
            self.error = self.residual.clone()
            self.first_tolerance = torch.full_like(norms, self.allowed)
        else:
            self.allowed = error
            self.error = torch.full_like(norms, math.inf)
            self.first_tolerance = (error * self.judge.first_tolerance()).to(norms)
        self.aim = self.first_tolerance.clone()
        self.value = self.rhs.new_zeros(()).expand_as(self.rhs)  # which takes no memory
        self.gap: Tensor | None = self.rhs
        self.is_held = torch.zeros_like(norms, dtype=torch.bool)
        self.is_lost = self.is_held.clone()
        if request.initial is not None:
            self._begin_warm(request.initial)
        self.column_steps = torch.zeros(len(norms), dtype=torch.long, device=self.rhs.device)
        self.steps = 0
        self.num_sweeps = 0
        self.stalls = 0
        self.note = ""
        # State of the generator before ``prepare``, so that a resumed solve prepares the same
        self.prepared_from = request.generator.get_state()

    def use(self, level: int) -> None:
        """Switch to the precision number ``level``."""
        self.level = level
        self.system = self.systems[level]

    @cached_property
    def watched(self) -> Watch | None:
        """The estimator of errors; ``None`` if nothing finer than the given precision exists and
        the weights are not a posterior's.
        """
        if self.judge is not None or self.finest is self.given:
            return self.judge
        return ResidualRows.of(require_blocks(self.given), self.rhs)

    @property
    def is_unsolved(self) -> Tensor:
        """Which columns miss the tolerance, (s,)."""
        return ~(self.error <= self.allowed)

    def count(self) -> None:
        """Add the entries used in other precisions to the given system's count."""
        for system in set(self.systems) - {self.given}:
            self.given.entries += system.entries
            system.entries = 0

    def tolerance(self, columns: Tensor, error: Tensor, residual: Tensor) -> Tensor:
        """Return the relative residuals at which the given columns would meet the tolerance, if
        errors stay proportional to residuals.
        """
        tolerance = self.allowed * residual / error
        known = torch.isfinite(tolerance) & (tolerance > 0)
        return torch.where(known, tolerance, self.first_tolerance[columns])

    def residuals(self, columns: Tensor, W: Tensor) -> Tensor:
        """Return B − H W for the given columns, (n, len(columns))."""
        tolerance = self.tolerance(columns, self.error[columns], self.residual[columns])
        hidden = self.rounding(W) > DIGIT * tolerance * self.norms[columns]
        system = self.finest if bool(hidden.any()) else self.given
        gap = (system @ W.to(system.dtype)).neg_().add_(columns_of(self.rhs, columns))
        self.count()
        return gap.to(self.rhs)

    def rounding(self, W: Tensor) -> Tensor:
        """Return a bound on the rounding error of H W in the precision of W, (s,)."""
        eps = torch.finfo(W.dtype).eps * self.given.n**0.5
        return (eps * self.largest_entry * self.given.rows.norm(W)).to(self.norms)

    def accept(self, sweep: Sweep[Any], *, as_it_is: bool) -> Tensor:
        """Keep the results of ``sweep`` that improve on the values before; return the share of the
        residual that is left, for each column of the sweep that is still unsolved.

        Args:
            as_it_is: keep every finite result of the first sweep, and evaluate residuals in all
                rows.
        """
        columns = sweep.columns
        rows = self.given.rows
        W = sweep.solutions(torch.arange(len(columns), device=columns.device), sweep.proposal)
        finite = rows.all(torch.isfinite(W))
        W[:, ~finite] = 0.0
        found = W
        W = W.to(self.value)
        is_rounded = W.dtype == torch.float32 and found.dtype != W.dtype
        gap = None
        if self.judge is None or as_it_is:
            gap = self.residuals(columns, W)
        if self.judge is not None:
            is_looked_at = not sweep.running.numel() and bool(torch.isfinite(sweep.error).all())
            if is_rounded or not is_looked_at:
                looked_at = self.judge.look(columns, W)
                sweep.error, sweep.residual = (part.to(self.error) for part in looked_at)
        else:
            assert gap is not None
            sweep.error = sweep.residual = rows.norm(gap) / self.norms[columns]
            # Lower the aim by the factor by which the method was too optimistic, at most halve it
            aim = self.aim[columns]
            claim = MARGIN * self.allowed / sweep.residual
            self.aim[columns] = aim * claim.clamp(0.5, 1.0)
        left = sweep.residual / self.residual[columns]
        self.is_lost[columns] = ~(DIGIT * left <= 1.0)
        better = sweep.error < self.error[columns]
        if as_it_is and self.num_sweeps == 0:
            better = finite
        better &= finite
        if is_rounded and self.watched is not None:
            lost = self.watched.rounded(columns, found - W).to(self.error)
            self.is_held[columns] = sweep.error * lost > self.allowed * sweep.residual
        taken = columns[better]
        self.error[taken] = sweep.error[better]
        self.residual[taken] = sweep.residual[better]
        self.value = _with_columns(self.value, taken, W, better)
        if gap is None or self.gap is None:
            self.gap = None
        else:
            before = self.gap.clone() if self.gap is self.rhs else self.gap
            self.gap = _with_columns(before, taken, gap, better)
        left = torch.where(better, left, 1.0)[self.is_unsolved[columns]]
        self.num_sweeps += 1
        gets_on = not len(left) or bool((left < MARGIN).any())
        self.stalls = 0 if gets_on else self.stalls + 1
        return left

    def _begin_warm(self, initial: Tensor) -> None:
        rows = self.given.rows
        warm = ~rows.all(initial == 0) & ~rows.all(self.rhs == 0)
        everything = torch.arange(len(warm), device=warm.device)
        gap = self.residuals(everything, initial)
        residual = rows.norm(gap) / self.norms
        warm &= residual < self.residual
        self.value = torch.where(warm, initial, self.value)
        self.gap = torch.where(warm, gap, self.rhs)
        self.residual = torch.where(warm, residual, self.residual)
        if self.judge is None:
            self.error = self.residual.clone()
        else:
            found = self.judge.look(everything, self.value)
            self.error, self.residual = (part.to(self.error) for part in found)

    def parts(self) -> Parts:
        entries = self.given.entries - self.request.entries_before
        account: Parts = {"run.seconds": self.request.seconds, "run.entries": entries}
        account["generator"] = self.request.generator.get_state()
        if self.gap is not None and self.gap is not self.rhs:
            account["run.gap"] = self.gap
        return parts(self, self.SAVED, "run.") | account

    def restore(self, saved: Mapping[str, Any]) -> None:
        restore(self, self.SAVED, "run.", saved)
        if "run.gap" in saved:
            self.gap = saved["run.gap"].to(self.rhs.device)
        elif self.num_sweeps:
            self.gap = None
        self.request.started = now() - saved["run.seconds"]
        self.request.entries_before = self.given.entries - saved["run.entries"]
        self.request.generator.set_state(saved["generator"])


@dataclass(frozen=True)
class IterativeSolver(GoalSolver, Generic[SystemT, PreparedT, StateT]):
    """The loop that iterative methods share. A method defines which systems it solves, what it
    prepares, its state, a step, and two readings of the state.

    A sweep runs the method until it reports every column as solved. Solved columns leave the state,
    and steps do not touch them again. The method's own *estimate* of a residual decides when a
    column is looked at; the look *evaluates* its error. Columns that miss the tolerance are
    corrected: the next sweep solves for their residuals, in float64 where float32 made no progress.
    A correction that makes a column worse is dropped.

    Args:
        tolerance, error, max_epochs, max_seconds, checkpoint: as in :class:`GoalSolver`.
        keep_descent: return the method's result at the end of its budget even if its residual is
            larger than that of 0, and stay in the system's precision: to compare methods within
            budgets that are too small.
        refine: continue in float64, within the budget and free memory, where a solve of a float32
            system makes no progress.

    References:
        Wilkinson (1963), "Rounding Errors in Algebraic Processes", for iterative refinement.
    """

    keep_descent: bool = field(default=False, kw_only=True)
    refine: bool = field(default=True, kw_only=True)

    @property
    def matrices_held(self) -> int:
        """How many (n, s) matrices a solve holds at once, B among them: those of the method that
        holds most, if a method does not say.
        """
        return 9

    def accepts(self, system: LinearSystem) -> SystemT:
        """Return ``system``, typed as the kind of system that the method solves: any, if a method
        does not say.

        Raises:
            TypeError: if it is of another kind.
        """
        return cast("SystemT", system)

    @abstractmethod
    def prepare(self, system: SystemT, generator: torch.Generator) -> PreparedT:
        """Compute what depends on the system alone (a preconditioner, a step size)."""

    @abstractmethod
    def init(self, system: SystemT, start: Start[PreparedT]) -> StateT:
        """Return the first state, without changing the tensors of ``start``."""

    @abstractmethod
    def step(
        self, system: SystemT, rhs: Tensor, state: StateT, generator: torch.Generator
    ) -> StateT:
        """Return the next state."""

    @abstractmethod
    def estimate(self, system: SystemT, state: StateT) -> Tensor:
        """Return the solution of the state; some methods return an average of iterates."""

    @abstractmethod
    def residual_norm(self, system: SystemT, state: StateT) -> Tensor | None:
        """Return the method's estimate of ‖b − H w‖ for each running column, (s,), at no extra
        product; infinity if it has none yet.

        ``None`` means that the estimate has not changed in this step. The loop then does not check
        whether a column has stopped, which would wait for the device.
        """

    def recursion(self, state: StateT) -> Tensor | None:
        """Return R = B − H W for the running columns, (n, s), if the method updates it by a
        recursion, from which rounding makes it drift; ``None`` otherwise.
        """
        return None

    def epochs_per_step(self, system: SystemT, num_columns: int) -> float:
        """Return the epochs that a step uses in a solve for ``num_columns`` columns."""
        return 1.0

    def describe(self, state: StateT) -> str:
        """Return a note for the user on how the columns of ``state`` fared, usually empty."""
        return ""

    def _solve(self, request: Request) -> Solution:
        run = Run(self.accepts(request.system), request, self.tolerance, self.error)
        keeper = None
        saved: Mapping[str, Any] | None = None
        if self.checkpoint is not None:
            keeper = Keeper(self.checkpoint, run.given.rows, self._key(run))
            saved = keeper.load()
        if saved is not None and ENDED in saved:
            run.restore(saved)
            return self._solution(run)
        if saved is not None:
            run.use(saved["run.level"])
            run.prepared_from = saved["run.prepared_from"]
            request.generator.set_state(run.prepared_from)
        prepared = None
        while saved is not None or self._goes_on(run):
            if prepared is None:
                prepared = self.prepare(run.system, request.generator)
                run.count()
            sweep = self._begin(run, prepared, saved)
            saved = None
            self._sweep(run, sweep, keeper)
            left = run.accept(sweep, as_it_is=self.keep_descent)
            del sweep
            if bool((left > DIGIT).any()) and self._goes_on(run) and self._gets_finer(run):
                prepared = None
            elif run.stalls == STALLS_ALLOWED:
                break
        self._end(run, keeper)
        return self._solution(run)

    def bytes_needed(
        self,
        n: int,
        dim: int,
        num_columns: int,
        *,
        num_processes: int = 1,
        dtype: torch.dtype = torch.float32,
    ) -> int:
        """Return the memory in bytes that a solve takes in each process: B, the points, scaled and
        not, and what the method holds. Corrections of a result that misses its tolerance hold two
        matrices more.

        Args:
            n, dim, num_columns: X is (n, dim), B (n, num_columns).
            num_processes: that share the rows.
        """
        rows = math.ceil(n / num_processes)
        held = rows * (self.matrices_held * num_columns + 2 * dim) * dtype.itemsize
        return held + self.bytes_of_a_step(n, num_columns, num_processes, dtype)

    def bytes_of_a_step(
        self, n: int, num_columns: int, num_processes: int, dtype: torch.dtype
    ) -> int:
        """Return what of those is not in (n, s) matrices."""
        return 0

    def _gets_finer(self, run: Run[SystemT]) -> bool:
        """Switch to the next finer precision; return whether there is one that fits in memory."""
        if run.system is run.finest or not self.refine or self.keep_descent:
            return False
        finer = run.systems[run.level + 1]
        if finer is not run.given and not run.given.rows.agree(self._fits(finer, len(run.norms))):
            run.note = joined_notes(run.note, "float64 does not fit in free memory")
            return False
        run.use(run.level + 1)
        run.stalls = 0
        run.prepared_from = run.request.generator.get_state()
        return True

    def _end(self, run: Run[SystemT], keeper: Keeper | None) -> None:
        """Complete the note, and tell the checkpoint whether the solve is over."""
        if run.system is not run.given and run.request.coarse is None:
            run.note = joined_notes(run.note, "went on in float64")
        unsolved = run.is_unsolved
        if run.num_sweeps and bool(unsolved.any()):
            unsolved_zeros = unsolved & run.given.rows.all(run.value == 0)
            run.note = joined_notes(run.note, ZEROS if bool(unsolved_zeros.any()) else "")
        if bool((unsolved & run.is_held).any()):
            run.note = joined_notes(run.note, TOO_LARGE)
        if run.stalls == STALLS_ALLOWED or bool((unsolved & run.is_lost).any()):
            run.note = joined_notes(run.note, STALLED)
        may_go_on = bool(run.is_unsolved.any()) and self._is_late(run)
        if keeper is not None and not (keeper.checkpoint.keep_solution and may_go_on):
            keeper.end(run.steps, run.parts() | {ENDED: True})

    def _solution(self, run: Run[SystemT]) -> Solution:
        return Solution(
            run.value.contiguous(),
            run.residual,
            ~run.is_unsolved,
            run.column_steps,
            run.request.epochs,
            run.request.seconds,
            run.note,
            None if run.judge is None else run.error,
        )

    def _fits(self, system: LinearSystem, num_columns: int) -> bool:
        shape = (system.n, system.points.shape[1], num_columns)
        needed = self.bytes_needed(*shape, num_processes=system.rows.size, dtype=system.dtype)
        return needed <= memory.available(system.device)

    def _goes_on(self, run: Run[SystemT]) -> bool:
        product = 0.0 if run.gap is not None else run.given.epochs_per_product
        return bool((run.is_unsolved & ~run.is_held).any()) and not self._is_spent(run, product)

    def _is_spent(self, run: Run[SystemT], further: float = 0.0) -> bool:
        """Return whether the budget leaves no step after ``further`` more epochs."""
        step = self.epochs_per_step(run.system, run.rhs.shape[1])
        if run.judge is None or self.keep_descent:
            further += run.given.epochs_per_product
        if run.judge is not None:
            further += run.judge.epochs_per_look
        return run.request.epochs + step + further > self.max_epochs or self._is_late(run)

    def _is_late(self, run: Run[SystemT]) -> bool:
        limit = self.max_seconds
        return limit is not None and run.given.rows.agree(run.request.seconds > limit)

    def _begin(
        self, run: Run[SystemT], prepared: PreparedT, saved: Mapping[str, Any] | None
    ) -> Sweep[StateT]:
        columns = (run.is_unsolved & ~run.is_held).nonzero().squeeze(1)
        if saved is not None:
            columns = saved["sweep.columns"].to(columns.device)
        value = columns_of(run.value, columns)
        gap = run.residuals(columns, value) if run.gap is None else columns_of(run.gap, columns)
        base = value if run.num_sweeps else None
        rhs = columns_of(run.rhs, columns) if base is None else gap
        initial = value if base is None else torch.zeros_like(gap)
        targets = run.request.targets
        dtype = run.system.dtype
        if targets is not None and self.splits_targets:
            targets = Targets(*(columns_of(part, columns) for part in targets))
            if base is not None:  # subtract what the value explains: K's part and the noise's
                noise_draw = targets.noise_draw - run.given.noise_column * base
                targets = Targets(gap - noise_draw, noise_draw)
            targets = targets.to(dtype)
        rhs, initial, gap = (part.to(dtype) for part in (rhs, initial, gap))
        state = self.init(run.system, Start(rhs, initial, gap, prepared, targets))
        del initial, gap  # for what was saved
        aim = run.aim[columns]
        if run.judge is not None:
            aim = run.tolerance(columns, run.error[columns], run.residual[columns])
        unknown = torch.full_like(aim, math.inf)
        sweep = Sweep(
            columns,
            rhs,
            base,
            state,
            running=torch.arange(len(columns), device=columns.device),
            proposal=rhs.new_empty(len(rhs), 0),
            aim=aim,
            error=unknown,
            residual=unknown.clone(),
            before=unknown.clone(),
            began=run.request.epochs,
            next_look=run.request.epochs + 4.0,
        )
        if saved is not None:  # preparing again is not counted
            run.restore(saved)
            restore(sweep, Sweep.SAVED, "sweep.", saved)
            restore(state, state.names(), "state.", saved)
            if run.num_sweeps:
                sweep.base = columns_of(run.value, columns)
                sweep.rhs = saved["sweep.rhs"].to(sweep.rhs.device)
        return sweep

    def _key(self, run: Run[SystemT]) -> str:
        start = [run.rhs, run.value, run.request.generator.get_state()]
        targets = run.request.targets
        noise_draw = [] if targets is None else [targets.noise_draw]
        settings = repr(replace(self, checkpoint=None, max_seconds=None))
        return digest(settings, [*run.given.fingerprint(), *start, *noise_draw])

    def _sweep(self, run: Run[SystemT], sweep: Sweep[StateT], keeper: Keeper | None) -> None:
        request = run.request
        rhs = columns_of(sweep.rhs, sweep.running)
        norms = run.norms[sweep.columns[sweep.running]]
        residual = torch.full_like(norms, math.inf)
        while sweep.running.numel() and not (sweep.steps and self._is_spent(run)):
            sweep.state = self.step(run.system, rhs, sweep.state, request.generator)
            sweep.steps += 1
            run.count()
            news = self.residual_norm(run.system, sweep.state)
            if news is not None:
                residual = news / norms
            if request.callback is not None and request.epochs >= sweep.next_report:
                self._report(run, sweep, residual, request.callback)
            going = None if news is None else self._going(run, sweep, residual)
            if going is not None and not bool(going.all()):
                stopped = (~going).nonzero().squeeze(1)
                self._propose(run, sweep, stopped)
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
        if sweep.running.numel():
            self._propose(run, sweep, torch.arange(len(sweep.running), device=rhs.device))
            run.note = self.describe(sweep.state) or run.note
        run.steps += sweep.steps
        del sweep.state, rhs  # before what is found is evaluated, to hold fewer matrices at once

    def _going(self, run: Run[SystemT], sweep: Sweep[StateT], residual: Tensor) -> Tensor | None:
        """Return which of the running columns continue, given the method's estimates of their
        relative ``residual``; ``None`` if all do.

        A column stops when its estimate reaches its aim; if a posterior's error decides, that is
        evaluated then, and may give it a smaller aim. Columns that need a correction stop, too:
        their recursion has drifted more than the tolerance, or rounding keeps them from improving.
        """
        running = sweep.running
        going = residual > sweep.aim[running]
        all_go_on = bool(going.all())
        is_scheduled = run.system is not run.finest and run.request.epochs >= sweep.next_look
        if all_go_on and not is_scheduled:
            return None
        estimate = self.estimate(run.system, sweep.state)
        columns = sweep.columns[running]
        lost = torch.zeros_like(going)
        if is_scheduled:
            lost = self._is_stalled(run, sweep, residual, estimate)
            sweep.next_look = run.request.epochs + self._epochs_to_look(run, sweep, residual)
            sweep.before[running] = residual.to(sweep.before)
        recursion = self.recursion(sweep.state)
        watched = run.watched if is_scheduled else run.judge
        if watched is not None and not (all_go_on and recursion is None):
            looked_at = watched.look(columns, sweep.solutions(running, estimate))
            error, found = (part.to(sweep.error) for part in looked_at)
            if recursion is not None:
                drift = watched.drift(columns, recursion).to(sweep.error)
                lost |= drift > run.tolerance(columns, error, found)
            if run.judge is not None and not all_go_on:
                sweep.error[running] = error
                sweep.residual[running] = found
                sweep.aim[running] = (MARGIN * run.allowed / error * residual).to(sweep.aim)
                going = ~(error <= run.allowed)  # true for NaN
        sweep.num_lost += int((going & lost).sum())
        return going & ~lost

    def _is_stalled(
        self, run: Run[SystemT], sweep: Sweep[StateT], residual: Tensor, estimate: Tensor
    ) -> Tensor:
        """Return which of the running columns have stalled: those whose ``residual`` has not
        clearly fallen since the last scheduled look, at a level that rounding may explain. If more
        columns wait for a correction already than are running, the running ones join them.
        """
        running = sweep.running
        rounding = run.rounding(estimate)
        may_be_rounding = DIGIT * residual * run.norms[sweep.columns[running]] <= rounding
        stalled = may_be_rounding & (CLEAR_CHANGE * residual > sweep.before[running])
        return stalled | (sweep.num_lost > len(running))

    def _epochs_to_look(self, run: Run[SystemT], sweep: Sweep[StateT], residual: Tensor) -> float:
        """Return the epochs until the next scheduled look: those that two clear falls of the
        ``residual`` take at the pace so far, at most as many as have passed.
        """
        fall = run.residual[sweep.columns[sweep.running]] / residual
        num_falls = fall.log().min().item() / math.log(CLEAR_CHANGE)
        passed = run.request.epochs - sweep.began
        return passed * min(1.0, 2.0 / num_falls) if num_falls > 0.0 else passed

    def _parts(self, run: Run[SystemT], sweep: Sweep[StateT]) -> Parts:
        names = Sweep.SAVED if sweep.base is None else [*Sweep.SAVED, "rhs"]
        state = parts(sweep.state, sweep.state.names(), "state.")
        return run.parts() | parts(sweep, names, "sweep.") | state

    def _propose(self, run: Run[SystemT], sweep: Sweep[StateT], stopped: Tensor) -> None:
        ended = sweep.running[stopped]
        estimate = columns_of(self.estimate(run.system, sweep.state), stopped)
        if len(ended) == len(sweep.columns):
            sweep.proposal = estimate
        else:
            if not sweep.proposal.numel():
                sweep.proposal = torch.empty_like(sweep.rhs)
            sweep.proposal[:, ended] = estimate
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


def columns_of(matrix: Tensor, columns: Tensor) -> Tensor:
    """Return the given columns of ``matrix``, without a copy if they are all of them."""
    return matrix if len(columns) == matrix.shape[1] else matrix[:, columns]


def drop_others(state: State, columns: Tensor) -> None:
    """Drop all other columns in place, tensor by tensor, so that only one is held twice."""
    for name in (entry.name for entry in fields(state)):
        value = getattr(state, name)
        if isinstance(value, Tensor):
            setattr(state, name, value[..., columns])
        elif isinstance(value, State):
            drop_others(value, columns)


def _with_columns(matrix: Tensor, columns: Tensor, new: Tensor, which: Tensor) -> Tensor:
    if len(columns) == matrix.shape[1]:
        return new
    matrix = matrix.contiguous()
    matrix[:, columns] = new[:, which]
    return matrix
