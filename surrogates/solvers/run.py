"""What passes between the caller of a solve, the loop and the method: request, run, start, sweep,
progress, solution.

Notation: H (n, n) the system's matrix, B (n, s) right-hand sides, W (n, s) their solutions.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from surrogates.callers import warn
from surrogates.solvers.order import permuted, random_keys
from surrogates.solvers.state import Parts, State, parts, restore
from surrogates.systems.base import BlockSystem, LinearSystem, Targets

SystemT = TypeVar("SystemT", bound=LinearSystem)
PreparedT = TypeVar("PreparedT")
StateT = TypeVar("StateT", bound=State)

CLEAR_DESCENT = 1e-3  # relative decrease of the objective beyond what rounding feigns
TOLERANCE = 1e-2  # of a linear system that stands for nothing else
STALLED = "some columns stopped improving: the precision or the step is exhausted"
# Of weights that float64 arithmetic has found, rounded to float32
TOO_LARGE = "whose solution float32 cannot hold: its weights are too large"
NUM_ROWS = 256  # whose residuals are looked at in float64
NUM_SAMPLED = 1024  # random rows, by which the residual of more than sixteen times as many is told
FEWEST_SAMPLED_FROM = 16 * NUM_SAMPLED
LEAST_SHOWN = 0.8  # of a right-hand side's norm by its random rows, for these to speak for all
STANDARD_ERRORS = 3.0  # by which a residual told by a sample is to be clear of what it is held to
# Times the rounding of a product: where a float32 sweep that ends short gets stuck
NO_FURTHER = 4.0
DIVERGED = 10.0  # times the residual before
RESOLUTION = 10.0  # times eps √n k(x, x) ‖w‖: a residual that rounding may explain
LARGEST_DRIFT = 0.5  # of a recursion, in tolerances
NEGLIGIBLE = 0.1  # an error of a residual, relative to the larger of it and the tolerance


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


class Judge(Protocol):
    """Tells the errors of a solve, see :class:`surrogates.solvers.accuracy.PosteriorError`.

    Attributes:
        scale: by which its columns have been multiplied.
    """

    scale: Tensor

    def first_tolerance(self) -> Tensor: ...

    def look(self, columns: Tensor, W: Tensor) -> tuple[Tensor, Tensor]: ...

    def of_residuals(self, W: Tensor, R: Tensor) -> Tensor: ...

    def part(self, columns: Tensor) -> Self: ...


@dataclass
class Request:
    """A solve that was asked for, checked, and its account.

    Attributes:
        system: H, in the arithmetic of the method.
        dtype: of the system that was given, and of the value to be returned.
        rhs: B (n, s).
        targets: f and ε, if B was given by them.
        initial: (n, s), if there is a warm start.
        started, entries_before: the clock, and the system's count of entries, at its beginning.
        steps_before: of a solve that it goes on with.
        posterior: tells errors, of weights that stand for a posterior.
    """

    system: LinearSystem
    dtype: torch.dtype
    rhs: Tensor
    targets: Targets | None
    initial: Tensor | None
    generator: torch.Generator
    callback: Callback | None
    started: float
    entries_before: int
    steps_before: int = 0
    posterior: Judge | None = None

    @property
    def epochs(self) -> float:
        """What has been spent since the solve began, in n² entries."""
        return (self.system.entries - self.entries_before) / self.system.entries_per_epoch

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
            solve from zero for more than 16 384 rows in 1024 random ones, where these leave no
            doubt that it is done, or its budget allows no more; where float32 does not show it, in
            256 of them in float64. Where few rows hold a right-hand side, in all rows.
        converged: (s,) whether the tolerance was reached.
        steps: (s,) steps each column ran.
        epochs: kernel entries used, checks and preconditioner included, but for these rows; n² of
            them, between all data and all unknowns, are one epoch.
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
        note = "0 is returned for columns whose residual was above 1, which is that of 0"
        return replace(
            self,
            value=self.value.masked_fill(worse, 0.0),
            residual=self.residual.masked_fill(worse, 1.0),
            converged=self.converged & ~worse,
            note=f"{self.note}; {note}" if self.note else note,
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
    """A pass of the method over the columns that are not solved yet.

    Attributes:
        columns: the indices of these right-hand sides.
        target: what is asked of the method, in tolerances.
        aim: (len(columns),) relative residual, as the method estimates it, that is asked of it.
        stalls: sweeps before this one, in a row, that got nowhere.
        state: of the columns still running, which are ``columns[running]``.
        proposal: (n, len(columns)) the method's solutions of those that have stopped.
    """

    SAVED: ClassVar = [
        *("columns", "proposal", "running", "aim", "target", "stalls", "steps"),
        "next_report",
    ]

    columns: Tensor
    target: float
    stalls: int
    state: StateT
    proposal: Tensor
    running: Tensor
    aim: Tensor
    steps: int = 0
    next_report: float = 0.0


class Run(Generic[SystemT]):
    """How far a solve has come: the best value of every column so far, with its evaluated gap
    B − H W; of a solve that :meth:`ends_with` a sweep, in the sampled rows alone.
    """

    SAVED: ClassVar = [
        *("value", "residual", "column_steps", "prepared_from", "steps", "note"),
        *("stalled", "largest_weights", "is_exhausted", "tolerance", "error"),
    ]

    def __init__(
        self,
        system: SystemT,
        request: Request,
        tolerance: float | None,
        error: float,
        *,
        is_sampled: bool = True,
    ):
        self.system = system
        self.request = request
        self.rhs = request.rhs
        norms = system.rows.norm(self.rhs)
        self.norms = torch.where(norms > 0, norms, torch.ones_like(norms))
        # Told where a posterior's error decides
        self.judge = request.posterior if tolerance is None else None
        self.error_allowed = error
        self.error = None if self.judge is None else torch.full_like(norms, math.inf)
        # Relative residual of each column at which it is solved
        self.tolerance = torch.full_like(norms, TOLERANCE if tolerance is None else tolerance)
        if self.judge is not None:
            self.tolerance = (error * self.judge.first_tolerance()).to(norms)
        self.rounding = torch.finfo(self.rhs.dtype).eps * system.n**0.5 * system.largest_entry
        self.value = torch.zeros_like(self.rhs)
        self.gap = self.rhs  # that of 0, until there is another
        # Of the warm start; that of a column which has none is no better than any
        self.given_residual = torch.full_like(self.norms, math.inf)
        if request.initial is not None:
            self._begin_warm(request.initial)
        self.residual = system.rows.norm(self.gap) / self.norms
        if request.initial is not None:
            self.judge_value()
        self.column_steps = torch.zeros(len(norms), dtype=torch.long, device=self.rhs.device)
        self.steps = request.steps_before
        self.note = ""
        # The columns of which a sweep got nowhere
        self.stalled = torch.zeros_like(self.norms, dtype=torch.bool)
        # ‖w‖ of each column from which on float32 is looked at, and whether it was found wanting
        self.largest_weights = self.tolerance * self.norms / self.rounding
        self.is_exhausted = False
        self.is_sampled = is_sampled and system.n > FEWEST_SAMPLED_FROM
        if self.is_sampled:
            everything = torch.arange(len(norms), device=norms.device)
            self.is_sampled = bool(self._is_shown(everything, NUM_SAMPLED).all())
        self.is_zero = self._is_zero()
        self.has_ended = False
        # The generator's state when the method prepares itself
        self.prepared_from = request.generator.get_state()

    @property
    def epochs_to_evaluate(self) -> float:
        """What the residual of a value may take: that of random rows, and of all if these may not
        have the last word.
        """
        whole = 0.0 if self.is_sampled and self.is_zero else self.system.epochs_per_product
        return whole + (NUM_SAMPLED / self.system.n if self.is_sampled else 0.0)

    @property
    def is_unsolved(self) -> Tensor:
        """Which columns fall short, (s,)."""
        if self.error is not None:
            return ~(self.error <= self.error_allowed)
        return self.residual > self.tolerance

    def take_note(self, columns: Tensor, error: Tensor, relative: Tensor) -> None:
        """Take note of the ``error`` and the ``relative`` residual of these columns, and thereby of
        the residual that allows them the error asked for.
        """
        assert self.error is not None
        self.error[columns] = error.to(self.error)
        allowed = self.error_allowed * relative / error
        known = torch.isfinite(allowed) & (allowed > 0)
        self.tolerance[columns] = torch.where(
            known, allowed.to(self.tolerance), self.tolerance[columns]
        )
        self.residual[columns] = relative.to(self.residual)

    def judge_value(self) -> None:
        """Look at the value, where a posterior's error decides."""
        if self.judge is not None:
            columns = torch.arange(len(self.norms), device=self.norms.device)
            self.take_note(columns, *self.judge.look(columns, self.value))

    def ends_judged(self, columns: Tensor, proposal: Tensor) -> bool:
        """Return whether all of ``columns`` were found to be solved when they were looked at last,
        and if so end with their ``proposal``.
        """
        if self.error is None or bool(self.is_unsolved[columns].any()):
            return False
        if len(columns) == len(self.norms):
            self.value = proposal
        else:
            self.value[:, columns] = proposal
        self.has_ended = True
        return True

    def ends_with(self, columns: Tensor, proposal: Tensor, is_spent: bool) -> bool:
        """End with ``proposal``, for all columns, and return true, if random rows leave no doubt
        that its residuals are below the tolerance, or the budget allows no more than these and they
        show residuals below those of zeros; otherwise change nothing.

        After a warm start a residual may be that of a few rows, which a sample has not: columns
        that had one are evaluated in all rows.
        """
        system = self.system.blocks
        if system is None or not self.is_sampled or self.judge is not None:
            return False
        is_warm = ~system.rows.all(columns_of(self.value, columns) == 0)
        if bool(is_warm.all()):
            return False
        rhs = columns_of(self.rhs, columns)
        index, share = self._random_rows(NUM_SAMPLED)
        gap = system.rows_matmul(index, proposal, minus=rhs).neg_()
        squares = gap.square()
        error = squares.std(0) / math.sqrt(len(index))
        norms = share * torch.linalg.vector_norm(gap, dim=0)
        highest = (system.n * (squares.mean(0) + STANDARD_ERRORS * error)).sqrt()
        if bool(is_warm.any()):
            whole = rhs[:, is_warm] - system @ proposal[:, is_warm]
            norms[is_warm] = highest[is_warm] = system.rows.norm(whole)
        # `not <=`, and `<`, where one is not a number
        below = highest <= self.tolerance[columns] * self.norms[columns]
        if not bool(below.all()) and not (is_spent and self.is_zero):
            return False
        norms = torch.where(below, norms, highest)  # what is in doubt is not called solved
        better = (norms < self.residual[columns] * self.norms[columns]).nonzero().squeeze(1)
        taken = columns[better]
        if len(taken) == len(self.norms):
            self.value = proposal
        else:
            self.value[:, taken] = proposal[:, better]
        positions, held = system.rows.owned(index)
        self._own_gap()[held.unsqueeze(1), taken] = gap[positions][:, better]
        self.residual[taken] = (norms / self.norms[columns])[better]
        self.has_ended = True
        return True

    def accept(self, columns: Tensor, proposal: Tensor, *, is_cut: bool) -> bool:
        """Take over the columns of ``proposal`` that are better than before;
        return whether one is clearly so.

        Args:
            is_cut: whether the budget, not the method, has ended the sweep.
        """
        self.is_zero = False
        finite = self.system.rows.all(torch.isfinite(proposal))
        proposal[:, ~finite] = 0.0
        gap = (self.system @ proposal).neg_().add_(columns_of(self.rhs, columns))
        residual = self.system.rows.norm(gap) / self.norms[columns]
        before = self.residual[columns]
        # A residual can rise on the way to the solution (that of conjugate gradients does): the
        # objective then decides.
        objective = self._objective(columns, proposal, gap)
        objective_before = self._objective(
            columns, columns_of(self.value, columns), columns_of(self.gap, columns)
        )
        # Products of large weights round: what may be that is no descent, nor is a residual to be
        # raised for it.
        rounding = self.rounding * self.system.rows.norm(proposal).square()
        descended = objective < objective_before - CLEAR_DESCENT * objective_before.abs() - rounding
        better = (finite & ((residual < before) | descended)).nonzero().squeeze(1)
        taken = columns[better]
        # A method that is cut short may have been on its way, unless it is far off
        stalled = ~(residual <= DIVERGED * before) if is_cut else finite.new_ones(len(columns))
        stalled[better] = False
        self.stalled[columns[stalled]] = True
        if len(taken) == len(self.norms):
            self.value = proposal
            self.gap = gap
        else:
            self.value[:, taken] = proposal[:, better]
            self._own_gap()[:, taken] = gap[:, better]
        self.residual[taken] = residual[better]
        return bool((finite & ((residual < 0.9 * before) | descended)).any())

    def beyond_float32(self, columns: Tensor, W: Tensor, R: Tensor, precise: BlockSystem) -> Tensor:
        """Return which of the running ``columns`` float32 cannot bring to the tolerance, and note
        it: those whose recursion of the residual has left the true one.

        The latter is looked at, by random rows in float64, when the weights are so large that
        products may be off by the tolerance, and whenever they have doubled since.

        Args:
            W, R: (n, len(columns)) the iterates, and their residuals by recursion.
            precise: the run's system in float64. The entries of the rows count for nothing.
        """
        weights = self.system.rows.norm(W)
        lost = weights > self.largest_weights[columns]
        if not bool(lost.any()):
            return lost
        large = lost.nonzero().squeeze(1)
        for part, index, share in self._looked_at(columns[large]):
            these = large[part]
            gap = self.rhs[index][:, columns[these]]
            gap = gap - precise.rows_matmul(index, W[:, these].double())
            drift = share * torch.linalg.vector_norm(gap - R[index][:, these], dim=0)
            allowed = self.tolerance[columns[these]] * self.norms[columns[these]]
            lost[these] = ~(drift <= LARGEST_DRIFT * allowed)
        self.largest_weights[columns[large]] = 2.0 * weights[large]
        self.is_exhausted |= bool(lost.any())
        return lost

    def gets_no_further(self) -> bool:
        """Return whether rounding may be all that keeps the unsolved columns from the tolerance."""
        unsolved = self.is_unsolved
        rounding = self.rounding * self.system.rows.norm(self.value)
        return bool((~unsolved | (self.residual * self.norms <= NO_FURTHER * rounding)).all())

    def _begin_warm(self, initial: Tensor) -> None:
        """Begin with ``initial`` but for its columns that fall short of the tolerance, and whose
        products may be off by it: with weights as large a method may get no further, where those
        that it finds from zero are often far smaller. A right-hand side of zeros has that solution.
        """
        rows = self.system.rows
        warm = (~rows.all(initial == 0) & ~rows.all(self.rhs == 0)).nonzero().squeeze(1)
        if not warm.numel():
            return
        gap = columns_of(self.rhs, warm) - self.system @ columns_of(initial, warm)
        rounding = self.rounding * rows.norm(initial)[warm]
        allowed = self.tolerance[warm] * self.norms[warm]
        norms = rows.norm(gap)
        self.given_residual[warm] = norms / self.norms[warm]
        # `not <=` for a number that is none
        lost = ~(norms <= allowed) & ~(rounding <= allowed)
        kept = warm[~lost]
        self.value[:, kept] = initial[:, kept]
        self._own_gap()[:, kept] = gap[:, ~lost]

    def _own_gap(self) -> Tensor:
        """Return the gap, to be changed in place, which the right-hand side is not."""
        if self.gap is self.rhs:
            self.gap = self.rhs.clone()
        return self.gap

    def put_back(self, precise: BlockSystem | None) -> None:
        """Return to the warm start in the columns that miss the tolerance and have come to no
        better residual.

        Args:
            precise: the run's system in float64, if there is one, by random rows of which the
                residual of the warm start is told: float32 may not show it.
        """
        is_missed = torch.isfinite(self.given_residual) & self.is_unsolved
        columns = is_missed.nonzero().squeeze(1)
        if self.request.initial is None or not columns.numel():
            return
        initial = columns_of(self.request.initial, columns)
        residual = self.given_residual[columns]
        if precise is not None:
            residual = self._residual_in_float64(columns, initial, precise)
        better = residual < self.residual[columns]
        taken = columns[better]
        self.value[:, taken] = initial[:, better]
        self.residual[taken] = residual[better]

    def _residual_in_float64(self, columns: Tensor, W: Tensor, precise: BlockSystem) -> Tensor:
        """Return the relative residuals of float32 values W of these columns, as 256 random rows
        have them in float64.
        """
        residual = torch.empty_like(self.norms[columns])
        for part, index, share in self._looked_at(columns):
            rhs = columns_of(self.rhs[index], columns[part])
            gap = rhs - precise.rows_matmul(index, columns_of(W, part).double())
            residual[part] = (share * torch.linalg.vector_norm(gap, dim=0)).to(residual)
        return residual / self.norms[columns]

    def _is_shown(self, columns: Tensor, count: int) -> Tensor:
        """Return for these columns whether so many random rows have their share of the right-hand
        side: what few rows hold a sample may miss, and with it the residual.
        """
        rows = self.system.rows
        index, share = self._random_rows(count)
        _, held = rows.owned(index)
        norms = share * rows.sum(columns_of(self.rhs[held], columns).square().sum(0)).sqrt()
        return norms >= LEAST_SHOWN * rows.norm(columns_of(self.rhs, columns))

    def _looked_at(self, columns: Tensor) -> list[tuple[Tensor, Tensor, float]]:
        """Return positions in ``columns``, the rows by which these are told in float64, and the
        norm of a vector over that of its entries there: 256 random rows, or all where these do not
        show the right-hand side.
        """
        is_shown = self._is_shown(columns, NUM_ROWS)
        found = []
        for shown, count in ((True, NUM_ROWS), (False, self.system.n)):
            part = (is_shown == shown).nonzero().squeeze(1)
            if len(part):
                found.append((part, *self._random_rows(count)))
        return found

    def _is_zero(self) -> bool:
        """Return whether there is no value yet, as far as that matters."""
        return self.is_sampled and bool(self.system.rows.all(self.value == 0).all())

    def _random_rows(self, count: int) -> tuple[Tensor, float]:
        """Return the first ``count`` of all rows in a random order, and the norm of a vector over
        that of its entries there.
        """
        n = self.system.n
        generator = torch.Generator().manual_seed(0)
        index = permuted(0, min(count, n), n, random_keys(generator)).to(self.value.device)
        return index, math.sqrt(n / len(index))

    def _objective(self, columns: Tensor, value: Tensor, gap: Tensor) -> Tensor:
        """Return ½ wᵀHw − wᵀb of each column, from ``gap = b − H w``."""
        rows = self.system.rows
        return -0.5 * (rows.dot(value, columns_of(self.rhs, columns)) + rows.dot(value, gap))

    def correct(
        self,
        columns: Tensor,
        precise: BlockSystem,
        unrounded: Tensor | None = None,
    ) -> Tensor:
        """Replace the residuals of this float32 run that float32 gets wrong by those that 256
        random rows have in float64, or all where few hold a right-hand side; return which of the
        ``columns`` these are.

        A float32 product with weights w is off by about eps √n k(x, x) ‖w‖. Where the noise is
        small beside n k(x, x), weights are large: their residual is then below what a float32
        product shows, and a method that looks at it believes itself done, or gets no further.

        Args:
            precise: the run's system in float64. The entries of these rows count for nothing.
            unrounded: the float64 values that the residuals are of; ``None`` for the run's own.
        """
        all_wrong = torch.zeros_like(columns, dtype=torch.bool)
        for part, index, share in self._looked_at(columns):
            these = columns[part]
            rhs = columns_of(self.rhs[index], these)
            gap = rhs - precise.rows_matmul(index, columns_of(self.value, these).double())
            if unrounded is None:
                shown = columns_of(self.gap[index], these)
            else:
                shown = rhs - precise.rows_matmul(index, columns_of(unrounded, part))
            norms = self.norms[these]
            error = share * torch.linalg.vector_norm(gap - shown, dim=0) / norms
            before = self.residual[these]
            wrong = ~(error <= NEGLIGIBLE * torch.maximum(before, self.tolerance[these]))
            residual = share * torch.linalg.vector_norm(gap, dim=0) / norms
            self.residual[these] = torch.where(wrong, residual.to(before), before)
            all_wrong[part] = wrong
        return all_wrong

    def in_float64(self, columns: Tensor, precise: BlockSystem) -> Request:
        """Return the request to go on in float64 with these columns from where this float32 run is,
        with its account; those worse than 0 begin there.
        """
        given = self.request
        used = self.system.entries - given.entries_before
        targets = given.targets
        if targets is not None:
            targets = targets_of(targets, columns).to(torch.float64)
        worse = ~(self.residual[columns] <= 1.0)
        return replace(
            given,
            system=precise,
            rhs=columns_of(self.rhs, columns).double(),
            targets=targets,
            initial=columns_of(self.value, columns).double().masked_fill(worse, 0.0),
            entries_before=precise.entries - used,
            steps_before=self.steps,
            posterior=None if given.posterior is None else given.posterior.part(columns),
        )

    def take_over(self, columns: Tensor, solution: Solution, request: Request) -> None:
        """Be where the float64 ``solution`` of ``request`` has come with these columns, with its
        account.
        """
        self.value[:, columns] = solution.value.to(self.rhs)
        self.residual[columns] = solution.residual.to(self.rhs)
        self.column_steps[columns] += solution.steps
        further = "went on in float64" if bool(solution.steps.any()) else ""
        self.note = "; ".join(filter(None, [solution.note, further]))
        used = request.system.entries - request.entries_before
        self.system.entries = self.request.entries_before + used

    def parts(self) -> Parts:
        entries = self.system.entries - self.request.entries_before
        account: Parts = {"run.seconds": self.request.seconds, "run.entries": entries}
        account["generator"] = self.request.generator.get_state()
        if self.gap is not self.rhs:
            account["run.gap"] = self.gap
        return parts(self, self.SAVED, "run.") | account

    def restore(self, saved: Mapping[str, Any]) -> None:
        restore(self, self.SAVED, "run.", saved)
        if "run.gap" in saved:
            self.gap = saved["run.gap"].to(self.rhs.device)
        self.is_zero = self._is_zero()
        self.request.started = now() - saved["run.seconds"]
        self.request.entries_before = self.system.entries - saved["run.entries"]
        self.request.generator.set_state(saved["generator"])


def now() -> float:
    """Return the seconds on the clock of all solves."""
    return time.perf_counter()


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
