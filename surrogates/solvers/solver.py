"""What a solver is, and the one loop behind every iterative method.

Notation: H (n, n) the system's matrix, B (n, s) right-hand sides, W (n, s) their solutions; the
relative residual of a column is ‖b − H w‖ / ‖b‖.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar, final

import torch
from torch import Tensor

from surrogates import checks, memory
from surrogates.solvers.checkpoint import ENDED, Checkpoint, Keeper, digest
from surrogates.solvers.run import (
    CLEAR_CHANGE,
    DIGIT,
    MARGIN,
    STALLED,
    TOO_LARGE,
    ZEROS,
    Judge,
    Progress,
    Run,
    Solution,
    Start,
    Sweep,
    columns_of,
    drop_others,
    joined_notes,
    now,
    targets_of,
)
from surrogates.solvers.run import Callback as Callback
from surrogates.solvers.run import Request as Request
from surrogates.solvers.state import Parts, State, parts, restore
from surrogates.systems.system import (
    Apply,
    LinearSystem,
    Targets,
    check_right_hand_sides,
)

SystemT = TypeVar("SystemT", bound=LinearSystem)
PreparedT = TypeVar("PreparedT")
StateT = TypeVar("StateT", bound=State)

ROW_COUNTS = ("block_size", "batch_size", "rank")  # settings that count rows
# Sweeps in a row without progress: a single one may be a stochastic method's bad luck
STALLS_ALLOWED = 2
FIRST_LOOK = 4.0  # epochs before the first scheduled look; each later one comes after twice as many


class Solver(ABC):
    """Solves H W = B. Concrete solvers are frozen dataclasses: a solver is its own configuration.

    A ``block_size``, a ``batch_size`` and a preconditioner's ``rank`` count rows. If a system has
    fewer rows, all of them are used and the solution's note says so.

    Attributes:
        splits_targets: whether the method benefits from :class:`Targets`, the two parts of B, over
            their sum.
        keep_descent: whether to return columns whose residual is larger than that of 0.
    """

    splits_targets: ClassVar[bool] = False
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
        """Return W with H W ≈ ``rhs``; a column for which nothing better than 0 was found is 0.

        Args:
            rhs: B (n, s), or the targets that sum to it.
            initial: warm start (n, s); zeros if ``None``.
            generator: source of all randomness; a generator seeded with 0 if ``None``.
            callback: called with :class:`Progress` during the solve.
            posterior: estimates the errors of weights that are a posterior's.

        Raises:
            TypeError, ValueError: if the shapes, dtypes, devices or values of the arguments do not
                fit, or the method needs parts of the matrix that the system does not offer.
        """
        started = now()
        entries = system.entries
        targets = rhs if isinstance(rhs, Targets) else None
        B = system.rhs(rhs) if isinstance(rhs, Targets) else rhs
        check_right_hand_sides(system, B, initial)
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        generator = system.rows.agreed(generator, B.shape[1])
        request = Request(
            system, B, targets, initial, generator, callback, started, entries, posterior
        )
        scale = _into_range(request)
        with memory.full_precision_on(system.device):
            solution = self._solve(request)
        if scale is not None:
            solution = replace(solution, value=solution.value / scale)
        for note in _reduced_settings(self, system.num_data):
            solution = replace(solution, note=joined_notes(solution.note, note))
        if not self.keep_descent:
            solution = solution.no_worse_than_zero()
        if posterior is not None and solution.error is None:
            posterior.scale.fill_(1.0)
            posterior.look(torch.arange(B.shape[1], device=B.device), solution.value)
            solution = replace(solution, error=posterior.errors().to(solution.residual))
        return solution

    @abstractmethod
    def _solve(self, request: Request) -> Solution:
        """Return the solution of ``request``, whose arguments have been checked."""

    def gains_precision(self, system: LinearSystem, num_columns: int) -> bool:
        """Return whether the caller should solve ``system.precise()`` instead, and keep the
        solution in that precision: it would lose accuracy in a lower one.
        """
        return False

    def inverse(
        self,
        system: LinearSystem,
        num_columns: int,
        *,
        seed: int,
        what: str,
        otherwise: "Solver | None" = None,
    ) -> Apply:
        """Return the map B → H⁻¹ B, for many B of about ``num_columns`` columns. Whatever depends
        on H alone, such as a factor or a preconditioner, is computed once.

        Args:
            seed: seed of every solve.
            what: names what is computed from the solutions, in the plural, for a warning if one
                misses the tolerance.
            otherwise: the solver that continues where this one misses it; this one if ``None``.
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
        """Return this solver with its preparation for ``system`` cached, for that system alone."""
        return self


def _into_range(request: Request) -> Tensor | None:
    """Scale columns whose squares might overflow or underflow by powers of two, which is exact;
    return the factors (s,), or ``None`` if no column needs one.
    """
    low, high = request.rhs.aminmax(dim=0)
    largest = request.system.rows.max(torch.maximum(high, -low))
    single = torch.finfo(torch.float32)  # which holds the squares of these, and theirs
    fits = (largest == 0) | ((largest > single.tiny**0.25) & (largest < single.max**0.25))
    if bool(fits.all()):
        return None
    most = math.frexp(single.max)[1] - 2  # one doubling more is held
    exponent = torch.frexp(largest).exponent.clamp(-most, most)
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


@dataclass(frozen=True)
class GoalSolver(Solver):
    """A solver that ends at a goal or with a budget.

    Args:
        tolerance: relative residual at which a column stops; ``None`` for 1e-2, or for ``error``
            where weights stand for a posterior.
        error: error of a posterior's mean and of its paths at which a column stops, in posterior
            standard deviations.
        max_epochs: budget, in n² kernel entries, preconditioner and checks included. A spent budget
            is a result, not an error.
        max_seconds: budget of time; ``None`` for no limit.
        checkpoint: where to save the running solve, so that the same call continues one that was
            interrupted; ``None`` to save nothing.
    """

    tolerance: float | None = field(default=None, kw_only=True)
    error: float = field(default=0.1, kw_only=True)
    max_epochs: float = field(default=100.0, kw_only=True)
    max_seconds: float | None = field(default=None, kw_only=True)
    checkpoint: Checkpoint | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        checks.positive_float("error", self.error)
        checks.positive_float("max_epochs", self.max_epochs)
        for name in ("tolerance", "max_seconds"):
            if getattr(self, name) is not None:
                checks.positive_float(name, getattr(self, name))
        if self.checkpoint is not None and not isinstance(self.checkpoint, Checkpoint):
            raise TypeError(
                f"`checkpoint` must be a Checkpoint, got {type(self.checkpoint).__name__}. Use"
                " `Checkpoint(folder)`."
            )


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

    @abstractmethod
    def accepts(self, system: LinearSystem) -> SystemT:
        """Return ``system``, typed as the kind of system that the method solves.

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
        """Return the first state, without changing the tensors of ``start``."""

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
            level = saved["run.level"]
            run.systems = run.systems if level < len(run.systems) else [run.given, run.finest]
            run.use(level)
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
        if run.level + 1 == len(run.systems):
            if not run.given.rows.agree(self._fits(run.finest, len(run.norms))):
                run.note = joined_notes(run.note, "float64 does not fit in free memory")
                return False
            run.systems.append(run.finest)
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
        """Return whether what a solve of ``system`` holds fits in free memory."""
        shape = (system.n, system.points.shape[1], num_columns)
        needed = self.bytes_needed(*shape, num_processes=system.rows.size, dtype=system.dtype)
        return needed <= memory.available(system.device)

    def _goes_on(self, run: Run[SystemT]) -> bool:
        """Return whether a column needs a correction that the budget allows."""
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
        """Return a sweep over the columns that need a correction, or resume the saved one."""
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
            targets = targets_of(targets, columns)
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
            next_look=run.request.epochs + FIRST_LOOK,
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
        """Return a digest that identifies this solve."""
        start = [run.rhs, run.value, run.request.generator.get_state()]
        targets = run.request.targets
        noise_draw = [] if targets is None else [targets.noise_draw]
        settings = repr(replace(self, checkpoint=None, max_seconds=None))
        return digest(settings, [*run.given.fingerprint(), *start, *noise_draw])

    def _sweep(self, run: Run[SystemT], sweep: Sweep[StateT], keeper: Keeper | None) -> None:
        """Run the method until every column has stopped, or the budget is spent."""
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

        A column stops when its estimate reaches its aim. If a posterior's error decides, the error
        is evaluated at that moment, and a column whose error is still too large continues with a
        smaller aim. Columns that need a correction stop, too: those whose recursion has drifted by
        more than the tolerance, and those that rounding keeps from improving.
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
            sweep.next_look = 2.0 * run.request.epochs - sweep.began
            lost = self._is_stalled(run, sweep, residual, estimate)
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

    def _parts(self, run: Run[SystemT], sweep: Sweep[StateT]) -> Parts:
        names = Sweep.SAVED if sweep.base is None else [*Sweep.SAVED, "rhs"]
        state = parts(sweep.state, sweep.state.names(), "state.")
        return run.parts() | parts(sweep, names, "sweep.") | state

    def _propose(self, run: Run[SystemT], sweep: Sweep[StateT], stopped: Tensor) -> None:
        """Store the estimates of the running columns ``stopped`` as their results."""
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
