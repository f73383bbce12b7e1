"""What passes between the caller of a solve, the loop and the method: request, run, start, sweep,
progress, solution.

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

from surrogates.callers import warn
from surrogates.solvers.state import Parts, State, parts, restore
from surrogates.systems.base import BlockSystem, LinearSystem, Targets

SystemT = TypeVar("SystemT", bound=LinearSystem)
PreparedT = TypeVar("PreparedT")
StateT = TypeVar("StateT", bound=State)

NUM_ROWS = 256  # that speak for all
WEIGHTS_AT_ONCE = 2**23  # numbers held beside a solve's own, or those of a few columns
FEWEST_COLUMNS = 64
TOLERANCE = 1e-2  # of a linear system that stands for nothing else
STALLED = "some columns stopped improving: the precision or the step is exhausted"
ZEROS = "0 is returned for columns whose residual was above 1, which is that of 0"
# Of weights that float64 arithmetic has found, rounded to float32
TOO_LARGE = "float32 cannot hold the solution: its weights are too large"
CLEAR_FALL = 0.5  # of a residual
DIGIT = 0.1  # of a residual: what is left where the arithmetic is worth another sweep
MARGIN = 0.9  # of the fall that is wanted, or claimed
HIDDEN = 0.1  # of what a residual may be, that rounding may hide
EXPLAINED = 8.0  # times eps √n k(x, x) ‖w‖: a residual that rounding may explain


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


@dataclass(eq=False)
class ResidualRows:
    """Tells the residuals of a solve by random rows in float64.

    Attributes:
        system: of all data.
        index: (m,) the rows.
        rhs: (m, s) B there.
        weights, gaps: (m, s) the weights there, and their residuals, of when each column was looked
            at last; NaN before.
        scale: (s,) by which the columns that are looked at have been multiplied.
    """

    system: BlockSystem
    index: Tensor
    rhs: Tensor
    weights: Tensor = field(init=False)
    gaps: Tensor = field(init=False)
    scale: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.weights = torch.full_like(self.rhs, math.nan)
        self.gaps = self.weights.clone()
        self.scale = torch.ones_like(self.rhs[0])

    @classmethod
    def of(cls, system: BlockSystem, rhs: Tensor) -> "ResidualRows":
        """Return the rows of a solve for ``rhs``."""
        index = random_rows(system)
        return cls(system, index, system.rows.take(rhs, index).double())

    def look(self, columns: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        """Return the errors of these columns with weights W (n, c), and their relative residuals,
        (c,) each.
        """
        double = self._double
        before = double.entries
        size = max(FEWEST_COLUMNS, WEIGHTS_AT_ONCE // self.system.n)
        for part, weights in zip(columns.split(size), W.split(size, dim=1), strict=True):
            product = double.rows_matmul(self.index, weights.to(double.dtype))
            self.gaps[:, part] = self.rhs[:, part] - product / self.scale[part]
            own = self.system.rows.take(weights, self.index)
            self.weights[:, part] = own.double() / self.scale[part]
        if double is not self.system:
            self.system.entries += double.entries - before
        return self.errors()[columns], self._relative(columns, self.gaps[:, columns])

    def errors(self) -> Tensor:
        """Return the error of every column when it was looked at last, (s,): of what is no
        posterior, its relative residual.
        """
        return self._relative(slice(None), self.gaps)

    def drift(self, columns: Tensor, R: Tensor) -> Tensor:
        """Return how far R (n, c), the residuals of these columns by a recursion, have left those
        that were found when they were looked at last, relative to B, (c,).
        """
        claimed = self.system.rows.take(R, self.index).double() / self.scale[columns]
        return self._relative(columns, self.gaps[:, columns] - claimed)

    def rounded(self, columns: Tensor, D: Tensor) -> Tensor:
        """Return the relative residuals that these columns would have if D (n, c), which rounding
        has taken from their weights, were all that these lack, (c,).
        """
        product = self._double.rows_matmul(self.index, D.to(self._double.dtype))
        return self._relative(columns, product / self.scale[columns])

    def _relative(self, columns: Tensor | slice, gaps: Tensor) -> Tensor:
        norms = torch.linalg.vector_norm(self.rhs[:, columns], dim=0)
        return torch.linalg.vector_norm(gaps, dim=0) / torch.where(norms > 0, norms, 1.0)

    @cached_property
    def _double(self) -> BlockSystem:
        return self.system.doubled() or self.system


class Judge(ResidualRows, ABC):
    """Tells errors of another kind, see :class:`surrogates.solvers.accuracy.PosteriorError`."""

    @abstractmethod
    def first_tolerance(self) -> Tensor: ...

    @abstractmethod
    def of_residuals(self, W: Tensor, R: Tensor) -> Tensor: ...


@dataclass
class Request:
    """A solve that was asked for, checked, and its account.

    Attributes:
        system: H.
        rhs: B (n, s).
        targets: f and ε, if B was given by them.
        initial: (n, s), if there is a warm start.
        started, entries_before: the clock, and the system's count of entries, at its beginning.
        posterior: tells errors, of weights that stand for a posterior.
        coarse: the system in float32, if that may begin the solve of a float64 one.
        an_epoch: entries that one takes.
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
        """What has been spent since the solve began, in n² entries."""
        return (self.system.entries - self.entries_before) / self.an_epoch

    @property
    def seconds(self) -> float:
        """Seconds since the solve began."""
        return now() - self.started


@dataclass(frozen=True)
class Solution:
    """The returned estimate and an honest account of it.

    Attributes:
        value: (n, s); of a shared system, the rows held by this process.
        residual: (s,) relative residual of ``value``, evaluated, not estimated by the method: of a
            posterior in 256 rows, else in all; in float64 where float32 might hide it.
        converged: (s,) whether the tolerance was reached.
        steps: (s,) steps each column ran.
        epochs: kernel entries used, checks and preconditioner included; n² of them, between all
            data and all unknowns, are one epoch.
        note: what a user should know: jitter added, a step size reduced, precision exhausted. Empty
            if nothing.
        error: (s,) of the mean, in the first column, and of the paths of a posterior, in its
            standard deviations, as 256 rows tell it, see :mod:`surrogates.solvers.accuracy`;
            ``None`` of right-hand sides that are not a posterior's.
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
        """Return this with 0, whose relative residual is 1, for the columns with a larger one, or
        one that is not a number.
        """
        worse = ~(self.residual <= 1.0)
        if not bool(worse.any()):
            return self
        return replace(
            self,
            value=self.value.masked_fill(worse, 0.0),
            residual=self.residual.masked_fill(worse, 1.0),
            converged=self.converged & ~worse,
            note=joined(self.note, ZEROS),
        )

    def warn_if_unsolved(self, what: str) -> None:
        """Warn if a column missed the tolerance.

        Args:
            what: is computed from the solution, in the plural.

        Warns:
            UnsolvedWarning: with the number of these columns, what they may be off by, and what
                helps.
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
        """What the errors say of a posterior; empty if there are none."""
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
    """What a method starts from, for the columns that are still to be solved.

    Attributes:
        rhs: B (n, s).
        initial: (n, s), with ``gap = rhs − H initial``.
        prepared: what ``prepare`` returned.
        targets: f and ε, if they are known apart.
    """

    rhs: Tensor
    initial: Tensor
    gap: Tensor
    prepared: PreparedT
    targets: Targets | None = None


@dataclass
class Sweep(Generic[StateT]):
    """A pass of the method over the columns that are not solved yet: the first finds the solution,
    the others what corrects it.

    Attributes:
        columns: the indices of these right-hand sides.
        rhs: (n, len(columns)) B, or the residuals to be corrected.
        base: (n, len(columns)) what is corrected; ``None`` in the first.
        state: of the columns still running, which are ``columns[running]``.
        proposal: (n, len(columns)) the method's solutions of those that have stopped.
        aim: (len(columns),) relative residual, as the method estimates it, that is asked of it.
        error, residual: (len(columns),) what was found when a column was looked at last.
        before: (len(columns),) relative residual at the last look that was due by the epochs.
        began, next_look: the epochs at the beginning, and of the next such look.
        num_lost: columns that have stopped, to be corrected.
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
        """Return what the ``estimate`` of a part of the columns makes of the value."""
        return estimate if self.base is None else columns_of(self.base, part) + estimate


class Run(Generic[SystemT]):
    """How far a solve has come: the best value of every column so far.

    Its residuals B − H W are found in float64 where float32 might hide them. What corrects it is
    found in the fastest arithmetic that gets on.

    Attributes:
        systems: H in the arithmetics that the method may work in, the fastest first.
        system: that of them in which it works, the ``level``-th.
        value: (n, s).
        error, residual: (s,) its errors, and its relative residuals, which are the errors of what
            is no posterior.
        aim: (s,) relative residual, as the method estimates it, that is asked of it.
        gap: (n, s) B − H W, if it is known.
        is_held, is_lost: (s,) whether rounding the value leaves more than is allowed, and whether
            the last sweep left a column far worse than it was.
    """

    level: int
    system: SystemT

    SAVED: ClassVar = [
        *("level", "num_sweeps", "stalls", "value", "error", "residual"),
        *(
            "aim",
            "is_held",
            "is_lost",
            "column_steps",
            "prepared_from",
            "steps",
            "note",
        ),
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
        # Told where a posterior's error decides
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
        self.value = torch.zeros_like(self.rhs)
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
        # The generator's state when the method prepares itself
        self.prepared_from = request.generator.get_state()

    def use(self, level: int) -> None:
        """Work in another of the arithmetics."""
        self.level = level
        self.system = self.systems[level]

    @cached_property
    def finest(self) -> LinearSystem:
        """H in the arithmetic that hides no residual."""
        return self.given.doubled() or self.given

    @cached_property
    def watched(self) -> ResidualRows | None:
        """Rows that show what the arithmetic hides, if a finer one may go on."""
        if self.judge is not None or self.finest is self.given or self.given.blocks is None:
            return self.judge
        return ResidualRows.of(self.given.blocks, self.rhs)

    @property
    def is_unsolved(self) -> Tensor:
        """Which columns fall short, (s,)."""
        return ~(self.error <= self.allowed)

    def count(self) -> None:
        """Count what other arithmetics have used as the system's own."""
        for system in {*self.systems, self.finest} - {self.given}:
            self.given.entries += system.entries
            system.entries = 0

    def tolerance(self, columns: Tensor, error: Tensor, residual: Tensor) -> Tensor:
        """Return the relative residuals at which these columns, whose ``error`` and relative
        ``residual`` are known, would have the error asked for.
        """
        tolerance = self.allowed * residual / error
        known = torch.isfinite(tolerance) & (tolerance > 0)
        return torch.where(known, tolerance, self.first_tolerance[columns])

    def residuals(self, columns: Tensor, W: Tensor) -> Tensor:
        """Return B − H W of these columns, (n, len(columns))."""
        tolerance = self.tolerance(columns, self.error[columns], self.residual[columns])
        hidden = self.rounding(W) > HIDDEN * tolerance * self.norms[columns]
        system = self.finest if bool(hidden.any()) else self.given
        gap = (system @ W.to(system.dtype)).neg_().add_(columns_of(self.rhs, columns))
        self.count()
        return gap.to(self.rhs)

    def rounding(self, W: Tensor) -> Tensor:
        """Return the norm of what rounding may cost products with W in its arithmetic, (s,)."""
        eps = torch.finfo(W.dtype).eps * self.given.n**0.5
        return (eps * self.largest_entry * self.given.rows.norm(W)).to(self.norms)

    def accept(self, sweep: Sweep[Any], *, as_it_is: bool) -> Tensor:
        """Take over the solutions of ``sweep`` that are better than those before; return what is
        left of the residuals of its columns that are unsolved, as shares.

        Args:
            as_it_is: whether the first sweep's are taken over if they are finite, and residuals are
                those of all rows.
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
            # As much less as the method claimed too much, and at least half
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
        if not bool((better | (self.residual[columns] < 1.0)).all()):
            self.note = joined(self.note, ZEROS)
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
        """Begin with the columns of ``initial`` that are better than zeros."""
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
    """Return ``matrix`` with its ``columns`` replaced by those of ``new`` that ``which`` marks."""
    if len(columns) == matrix.shape[1]:
        return new
    matrix[:, columns] = new[:, which]
    return matrix


def random_rows(system: BlockSystem) -> Tensor:
    """Return random rows of ``system``, or all where these are few."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(system.n, generator=generator, device="cpu")
    return order[:NUM_ROWS].to(system.device)


def now() -> float:
    """Return the seconds on the clock of all solves."""
    return time.perf_counter()


def joined(note: str, further: str) -> str:
    """Return both notes, and what they share once."""
    return further if not note else note if further in note else f"{note}; {further}"


def columns_of(matrix: Tensor, columns: Tensor) -> Tensor:
    """Return the given columns, without a copy if they are all."""
    return matrix if len(columns) == matrix.shape[1] else matrix[:, columns]


def targets_of(targets: Targets, columns: Tensor) -> Targets:
    """Return the given columns of both parts."""
    return Targets(*(columns_of(part, columns) for part in targets))


def selected(state: StateT, columns: Tensor) -> StateT:
    """Return the state of these columns, of tensors of its own."""
    changed: dict[str, Any] = {}
    for name in (entry.name for entry in fields(state)):
        value = getattr(state, name)
        if isinstance(value, Tensor):
            changed[name] = value[..., columns]
        elif isinstance(value, State):
            changed[name] = selected(value, columns)
    return replace(state, **changed)


def drop_others(state: State, columns: Tensor) -> None:
    """Drop all columns but these, one tensor after another: no two are held twice at a time."""
    for name in (entry.name for entry in fields(state)):
        value = getattr(state, name)
        if isinstance(value, Tensor):
            setattr(state, name, value[..., columns])
        elif isinstance(value, State):
            drop_others(value, columns)
