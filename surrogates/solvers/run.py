"""The data that the caller of a solve, the solver's loop and its method exchange: request, run,
start, sweep, progress and solution.

Notation: H (n, n) the system's matrix, B (n, s) right-hand sides, W (n, s) their solutions.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from surrogates import memory
from surrogates.callers import warn
from surrogates.solvers.state import Parts, State, parts, restore
from surrogates.systems.system import Apply, BlockSystem, LinearSystem, Targets

SystemT = TypeVar("SystemT", bound=LinearSystem)
PreparedT = TypeVar("PreparedT")
StateT = TypeVar("StateT", bound=State)

NUM_ROWS = 256  # random rows by which a residual or an error is estimated
NUM_GROUPS = 8  # of these rows, in which an error is averaged: the worst group counts
TOLERANCE = 1e-2  # default relative residual of a system that is not a posterior's
STALLED = "some columns stopped improving: the precision or the step is exhausted"
ZEROS = "0 is returned for columns whose residual was above 1, which is that of 0"
# Note for weights solved in float64 and then rounded to float32
TOO_LARGE = "float32 cannot hold the solution: its weights are too large"
# A factor beyond what noise explains: a residual that has fallen by less between two looks has
# stalled, and one that has risen by more diverges
CLEAR_CHANGE = 2.0
# A decimal digit: a sweep that leaves more of a residual hands over to a finer arithmetic, rounding
# below so much of what is allowed is accepted, and rounding may explain what is below its inverse
DIGIT = 0.1
MARGIN = 1.0 - DIGIT  # safety factor of a predicted fall


class UnsolvedWarning(UserWarning):
    """A model uses the solution of a linear system whose residual missed the tolerance."""


@dataclass(frozen=True)
class Progress:
    """A moment of a running solve, given to its callback.

    Attributes:
        residual: largest relative residual among the running columns, as the method estimates it;
            infinite while it has no estimate.
        num_active: columns still running, of ``num_columns``.
        max_epochs: the budget of the method that runs, at which it ends, solved or not.
    """

    steps: int
    epochs: float
    seconds: float
    residual: float
    num_active: int
    num_columns: int
    max_epochs: float


Callback = Callable[[Progress], None]


class Watch(ABC):
    """Estimates the errors of a solve's columns.

    Attributes:
        scale: (s,) factors by which the columns given to ``look`` have been multiplied.
        epochs_per_look: what a look uses, where that is as much as a product.
    """

    scale: Tensor
    epochs_per_look: float = 0.0

    @abstractmethod
    def look(self, columns: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluate the given columns for weights W (n, c); return their errors and their relative
        residuals, (c,) each.
        """

    @abstractmethod
    def errors(self) -> Tensor:
        """Return the error of every column as of its last look, (s,)."""

    @abstractmethod
    def drift(self, columns: Tensor, R: Tensor) -> Tensor:
        """Return the distance between the residuals R (n, c) that a recursion carries and those
        evaluated at the last look, relative to B, (c,).
        """

    @abstractmethod
    def rounded(self, columns: Tensor, D: Tensor) -> Tensor:
        """Return the relative residuals, (c,), of columns whose weights are exact but for D (n, c),
        the part that rounding has removed.
        """


class Judge(Watch):
    """Estimates errors in posterior standard deviations."""

    @abstractmethod
    def first_tolerance(self) -> Tensor:
        """Return the relative residual at which each column's error is about one posterior standard
        deviation, (s,), before any weights are known.
        """

    @abstractmethod
    def of_residuals(self, W: Tensor, R: Tensor, solve: Apply) -> Tensor:
        """Return the errors of all columns of a direct solve, (s,), given W and R (n, s) and its
        map B → H⁻¹ B. They come from rounding alone, so that no bound for unconverged weights is
        needed.
        """


@dataclass(eq=False)
class ResidualRows(Watch):
    """Estimates the residuals of a solve from random rows, evaluated in float64.

    Attributes:
        system: the system of all data.
        index: (m,) the rows.
        rhs: (m, s) B in these rows.
        weights, gaps: (m, s) weights and residuals in these rows, as of the last look at each
            column; NaN before the first.
        looked_at: the columns looked at last; all before the first look.
    """

    system: BlockSystem
    index: Tensor
    rhs: Tensor
    looked_at: Tensor = field(init=False)
    weights: Tensor = field(init=False)
    gaps: Tensor = field(init=False)
    scale: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.weights = torch.full_like(self.rhs, math.nan)
        self.gaps = self.weights.clone()
        self.scale = torch.ones_like(self.rhs[0])
        self.looked_at = torch.arange(len(self.scale), device=self.scale.device)

    @classmethod
    def of(cls, system: BlockSystem, rhs: Tensor) -> "ResidualRows":
        """Return the estimator for a solve with right-hand sides ``rhs``."""
        index = random_rows(system)
        return cls(system, index, system.rows.take(rhs, index).double())

    def look(self, columns: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        self.looked_at = columns
        double = self._double
        before = double.entries
        # Every part evaluates the rows anew: of fewer columns, that would be most of the work
        size = max(len(self.index), memory.part_size(self.system.n))
        for part, weights in zip(columns.split(size), W.split(size, dim=1), strict=True):
            product = double.rows_matmul(self.index, weights)
            self.gaps[:, part] = self.rhs[:, part] - product / self.scale[part]
            own = self.system.rows.take(weights, self.index)
            self.weights[:, part] = own.double() / self.scale[part]
        if double is not self.system:
            self.system.entries += double.entries - before
        return self.errors()[columns], self._relative(columns, self.gaps[:, columns])

    def errors(self) -> Tensor:
        """Return the relative residual of every column as of its last look, (s,)."""
        return self._relative(slice(None), self.gaps)

    def drift(self, columns: Tensor, R: Tensor) -> Tensor:
        claimed = self.system.rows.take(R, self.index).double() / self.scale[columns]
        return self._relative(columns, self.gaps[:, columns] - claimed)

    def rounded(self, columns: Tensor, D: Tensor) -> Tensor:
        product = self._double.rows_matmul(self.index, D)
        return self._relative(columns, product / self.scale[columns])

    def _relative(self, columns: Tensor | slice, gaps: Tensor) -> Tensor:
        norms = torch.linalg.vector_norm(self.rhs[:, columns], dim=0)
        return torch.linalg.vector_norm(gaps, dim=0) / torch.where(norms > 0, norms, 1.0)

    @cached_property
    def _double(self) -> BlockSystem:
        return self.system.doubled() or self.system


@dataclass
class Request:
    """The checked arguments of a solve, and its account so far.

    Attributes:
        system: H.
        rhs: B (n, s).
        targets: f and ε, if the caller gave B as their sum.
        initial: warm start (n, s), or ``None``.
        started, entries_before: the clock and the system's count of entries when the solve began.
        posterior: estimates posterior errors; ``None`` if the weights are not a posterior's.
        coarse: the system in float32, in which a float64 solve may begin; ``None`` to begin in
            float64.
        an_epoch: kernel entries per epoch.
    """

    system: LinearSystem
    rhs: Tensor
    targets: Targets | None
    initial: Tensor | None
    generator: torch.Generator
    callback: Callback | None
    started: float
    entries_before: int
    posterior: Judge | None = None
    coarse: BlockSystem | None = None
    an_epoch: int = field(init=False)

    def __post_init__(self) -> None:
        self.an_epoch = self.system.entries_per_epoch

    @property
    def epochs(self) -> float:
        """Epochs used since the solve began."""
        return (self.system.entries - self.entries_before) / self.an_epoch

    @property
    def seconds(self) -> float:
        """Seconds since the solve began."""
        return now() - self.started


@dataclass(frozen=True)
class Solution:
    """The solution of a solve and how accurate it is.

    Attributes:
        value: (n, s); for a shared system, the rows held by this process.
        residual: (s,) relative residual of ``value``, evaluated and not taken from the method: in
            256 random rows for a posterior, otherwise in all; in float64 where float32 might hide
            it.
        converged: (s,) whether the tolerance was reached.
        steps: (s,) steps each column ran.
        epochs: kernel entries used, checks and preconditioner included, in units of all entries
            between data and unknowns.
        note: anything a user should know, such as added jitter, a reduced step size or exhausted
            precision; usually empty.
        error: (s,) error of the posterior mean (first column) and of the paths (the others) in
            posterior standard deviations, estimated from 256 rows, see
            :mod:`surrogates.solvers.accuracy`; ``None`` if the weights are not a posterior's, or
            are those of inducing points.
    """

    value: Tensor
    residual: Tensor
    converged: Tensor
    steps: Tensor
    epochs: float
    seconds: float
    note: str = ""
    error: Tensor | None = None

    def no_worse_than_zero(self) -> "Solution":
        """Return this solution with 0 in place of the columns whose relative residual exceeds 1,
        that of 0, or is NaN.
        """
        worse = ~(self.residual <= 1.0)
        if not bool(worse.any()):
            return self
        return replace(
            self,
            value=self.value.masked_fill(worse, 0.0),
            residual=self.residual.masked_fill(worse, 1.0),
            converged=self.converged & ~worse,
            note=joined_notes(self.note, ZEROS),
        )

    def warn_if_unsolved(self, what: str) -> None:
        """Warn if a column missed the tolerance.

        Args:
            what: names what is computed from the solution, in the plural.

        Warns:
            UnsolvedWarning: with the number of these columns, how large their error may be, and a
                remedy.
        """
        missed = int((~self.converged).sum())
        if not missed:
            return
        if TOO_LARGE in self.note:
            remedy = "Float32 cannot hold weights as large, whatever the budget. Use float64"
        else:
            precision = "float64, " if self.value.dtype == torch.float32 else ""
            remedy = f"Use {precision}a solver with a larger budget such as `Auto(max_epochs=1000)`"
        warn(
            f"{what} are those of an unsolved linear system: {missed} of {self.converged.numel()}"
            " columns missed the solver's tolerance, the worst with a relative residual of"
            f" {self.residual.max().item():.1e}{self._off_by}. {remedy}, or `Cholesky()` where n²"
            " numbers fit in memory.",
            UnsolvedWarning,
        )

    @property
    def _off_by(self) -> str:
        """The sentence on the posterior's error; empty if there is none."""
        if self.error is None:
            return ""
        mean = self.error[0].item()
        paths = self.error[1:].square().mean().sqrt().item()
        return (
            f"; the mean may be off by {mean:.2g} posterior standard deviations, and paths by"
            f" {paths:.2g}"
        )

    def __str__(self) -> str:
        done = int(self.converged.sum())
        worst = self.residual.max().item() if self.residual.numel() else 0.0
        text = (
            f"{done}/{self.converged.numel()} columns converged, worst residual"
            f" {worst:.1e}{self._off_by},"
            f" {self.epochs:.1f} epochs, {self.seconds:.1f} s"
        )
        return f"{text}; {self.note}" if self.note else text


@dataclass(frozen=True)
class Start(Generic[PreparedT]):
    """The start of a sweep, over the columns that are still to be solved.

    Attributes:
        rhs: B (n, s).
        initial: (n, s), with ``gap = rhs − H initial``.
        prepared: the result of ``prepare``.
        targets: f and ε, if they are known separately.
    """

    rhs: Tensor
    initial: Tensor
    gap: Tensor
    prepared: PreparedT
    targets: Targets | None = None


@dataclass
class Sweep(Generic[StateT]):
    """A pass of the method over the unsolved columns. The first sweep computes the solution, each
    later one a correction to it.

    Attributes:
        columns: indices of the right-hand sides in this sweep.
        rhs: (n, len(columns)) B, or the residuals to be corrected.
        base: (n, len(columns)) the values to be corrected; ``None`` in the first sweep.
        state: the method's state for the columns still running, ``columns[running]``.
        proposal: (n, len(columns)) the method's results for the columns that have stopped.
        aim: (len(columns),) relative residual, by the method's own estimate, at which a column
            stops.
        error, residual: (len(columns),) error and relative residual at the last look.
        before: (len(columns),) relative residual at the last scheduled look.
        began, next_look: epochs at the start of the sweep and at the next scheduled look.
        num_lost: columns that have stopped and wait for a correction.
    """

    SAVED: ClassVar = [
        *("columns", "running", "proposal", "aim", "error", "residual"),
        *("before", "began", "next_look", "num_lost", "steps", "next_report"),
    ]

    columns: Tensor
    rhs: Tensor
    base: Tensor | None
    state: StateT
    running: Tensor
    proposal: Tensor
    aim: Tensor
    error: Tensor
    residual: Tensor
    before: Tensor
    began: float
    next_look: float
    num_lost: int = 0
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
        self.systems: list[Any] = [system]
        if request.coarse is not None:
            self.systems.insert(0, request.coarse)
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
    def finest(self) -> LinearSystem:
        """H in the precision in which residuals are evaluated."""
        return self.given.doubled() or self.given

    @cached_property
    def watched(self) -> Watch | None:
        """The estimator of errors; ``None`` if nothing finer than the given precision exists and
        the weights are not a posterior's.
        """
        if self.judge is not None or self.finest is self.given or self.given.blocks is None:
            return self.judge
        return ResidualRows.of(self.given.blocks, self.rhs)

    @property
    def is_unsolved(self) -> Tensor:
        """Which columns miss the tolerance, (s,)."""
        return ~(self.error <= self.allowed)

    def count(self) -> None:
        """Add the entries used in other precisions to the given system's count."""
        for system in {*self.systems, self.finest} - {self.given}:
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
        """Start from the columns of ``initial`` that are better than 0."""
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


def _with_columns(matrix: Tensor, columns: Tensor, new: Tensor, which: Tensor) -> Tensor:
    """Return ``matrix`` with ``columns`` replaced by the columns of ``new`` marked by ``which``."""
    if len(columns) == matrix.shape[1]:
        return new
    matrix = matrix.contiguous()
    matrix[:, columns] = new[:, which]
    return matrix


def shuffled_rows(system: LinearSystem) -> Tensor:
    """Return the indices of all data of ``system`` in an order that is always the same."""
    generator = torch.Generator().manual_seed(0)
    return torch.randperm(system.num_data, generator=generator, device="cpu").to(system.device)


def random_rows(system: LinearSystem) -> Tensor:
    """Return the indices of ``NUM_ROWS`` random data, or of all if there are fewer."""
    return shuffled_rows(system)[:NUM_ROWS]


def groups_by(values: Tensor, num_groups: int = NUM_GROUPS) -> Tensor:
    """Return the indices of equally many rows of similar ``values`` (m,) in each group, (at least
    num_groups, ·).
    """
    size = max(1, len(values) // num_groups)
    return values.argsort()[: len(values) // size * size].view(-1, size)


def now() -> float:
    """Return the seconds on the clock of all solves."""
    return time.perf_counter()


def joined_notes(note: str, further: str) -> str:
    """Return both notes, without repeating one that the other contains."""
    return further if not note else note if further in note else f"{note}; {further}"


def columns_of(matrix: Tensor, columns: Tensor) -> Tensor:
    """Return the given columns of ``matrix``, without a copy if they are all of them."""
    return matrix if len(columns) == matrix.shape[1] else matrix[:, columns]


def targets_of(targets: Targets, columns: Tensor) -> Targets:
    """Return the given columns of both parts."""
    return Targets(*(columns_of(part, columns) for part in targets))


def drop_others(state: State, columns: Tensor) -> None:
    """Drop all other columns in place, tensor by tensor, so that only one is held twice."""
    for name in (entry.name for entry in fields(state)):
        value = getattr(state, name)
        if isinstance(value, Tensor):
            setattr(state, name, value[..., columns])
        elif isinstance(value, State):
            drop_others(value, columns)
