"""What a solver is, and what the caller of a solve and its method exchange: request, progress,
estimates of errors, and solution.

Notation: H (n, n) the system's matrix, B (n, s) right-hand sides, W (n, s) their solutions; the
relative residual of a column is ‖b − H w‖ / ‖b‖.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self, final

import torch
from torch import Tensor

from surrogates import checks, memory
from surrogates.callers import warn
from surrogates.solvers.checkpoint import Checkpoint
from surrogates.systems.system import (
    Apply,
    KernelSystem,
    LinearSystem,
    Targets,
    check_right_hand_sides,
)

NUM_ROWS = 256  # random rows by which a residual or an error is estimated
NUM_GROUPS = 8  # of these rows, in which an error is averaged: the worst group counts
ROW_COUNTS = ("block_size", "batch_size", "rank")  # settings that count rows
ZEROS = "0 is returned for columns whose residual was above 1, which is that of 0"
# Note for weights solved in float64 and then rounded to float32
TOO_LARGE = "float32 cannot hold the solution: its weights are too large"
# A factor beyond what noise explains: a residual that has fallen by less between two looks has
# stalled, and one that has risen by more diverges
CLEAR_CHANGE = 2.0


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
        rhs: B, or some rows of it.
        scale: (s,) factors by which the columns given to ``look`` have been multiplied.
        epochs_per_look: what a look uses, where that is as much as a product.
    """

    rhs: Any
    scale: Tensor
    epochs_per_look: float = 0.0

    @abstractmethod
    def look(self, columns: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluate columns at weights W (n, c); return their errors and relative residuals (c,)."""

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

    def _relative(self, columns: Tensor | slice, gaps: Tensor) -> Tensor:
        norms = torch.linalg.vector_norm(self.rhs[:, columns], dim=0)
        return torch.linalg.vector_norm(gaps, dim=0) / torch.where(norms > 0, norms, 1.0)


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
    """Estimates the residuals of a solve from random rows, evaluated in float64."""

    system: KernelSystem  # of all data
    index: Tensor  # (m,) the rows
    rhs: Tensor  # (m, s) B in these rows
    looked_at: Tensor = field(init=False)  # the columns looked at last; all before the first look
    # (m, s) in these rows, as of the last look at each column; NaN before the first
    weights: Tensor = field(init=False)
    gaps: Tensor = field(init=False)  # (m, s) residuals, likewise
    scale: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.weights = torch.full_like(self.rhs, math.nan)
        self.gaps = self.weights.clone()
        self.scale = torch.ones_like(self.rhs[0])
        self.looked_at = torch.arange(len(self.scale), device=self.scale.device)

    @classmethod
    def of(cls, system: KernelSystem, rhs: Tensor) -> "ResidualRows":
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

    @cached_property
    def _double(self) -> KernelSystem:
        return self.system.doubled() or self.system


@dataclass
class Request:
    """The checked arguments of a solve, and its account so far."""

    system: LinearSystem  # H
    rhs: Tensor  # B (n, s)
    targets: Targets | None  # f and ε, if the caller gave B as their sum
    initial: Tensor | None  # warm start (n, s)
    generator: torch.Generator
    callback: Callback | None
    started: float  # the clock when the solve began
    entries_before: int  # the system's count of entries then
    posterior: Judge | None = None  # ``None`` if the weights are not a posterior's
    coarse: KernelSystem | None = None  # in float32, in which a float64 solve may begin

    @property
    def epochs(self) -> float:
        """Epochs used since the solve began."""
        return (self.system.entries - self.entries_before) / self.system.entries_per_epoch

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
        cheaper: the solver that is expected to cost less on a system much like this one, now that
            this one is solved; ``None`` if none is.
    """

    value: Tensor
    residual: Tensor
    converged: Tensor
    steps: Tensor
    epochs: float
    seconds: float
    note: str = ""
    error: Tensor | None = None
    cheaper: "Solver | None" = None

    def no_worse_than_zero(self) -> "Solution":
        """Return this with 0 for columns whose relative residual is NaN or exceeds 1, that of 0."""
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

    def inverse(self, system: LinearSystem, num_columns: int, *, seed: int, what: str) -> Apply:
        """Return the map B → H⁻¹ B, for many B as :meth:`for_covariances` takes them. Whatever
        depends on H alone, such as a factor or a preconditioner, is computed once.

        Args:
            num_columns: of the solve for the posterior, as for which a method is chosen.
            seed: seed of every solve.
            what: names what is computed from the solutions, in the plural, for a warning if one
                misses the tolerance.
        """
        kept = self.kept(system, num_columns, torch.Generator().manual_seed(seed))
        if not isinstance(kept, Solver):
            return kept

        def apply(B: Tensor) -> Tensor:
            generator = torch.Generator().manual_seed(seed)
            solution = kept.for_covariances(system, B).solve(system, B, generator=generator)
            goes_on = kept is not self and isinstance(kept, GoalSolver)
            if goes_on and not bool(solution.converged.all()):
                generator = torch.Generator().manual_seed(seed)
                solution = self.for_covariances(system, B).solve(
                    system, B, initial=solution.value, generator=generator
                )
            solution.warn_if_unsolved(what)
            return solution.value

        return apply

    def for_covariances(self, system: LinearSystem, B: Tensor) -> Self:
        """Return the solver that makes covariances of a posterior accurate, for columns B = k(X, q)
        or combinations of some by unit vectors: without a tolerance of its own, it gets one.

        A residual r of H⁻¹ k(X, q) changes the covariance c(x, q) by k(x, X) H⁻¹ r = c(x, X) Σ⁻¹ r,
        which is at most c(x, x)^½ ‖Σ^-½ r‖, wherever x is, as c(X, X) ≤ Σ. An observation at q
        varies by σ at least, so ‖Σ^-½ r‖ may be ``error`` of the smallest σ.
        """
        return self

    def kept(
        self, system: LinearSystem, num_columns: int, generator: torch.Generator
    ) -> "Solver | Apply":
        """Return a solver that keeps its preparation for ``system``, and solves that system alone;
        or the map B → H⁻¹ B itself, if a factor gives it. Where the returned solver misses its
        goal, this solver continues from its solution.
        """
        return self


@dataclass(frozen=True)
class GoalSolver(Solver):
    """A solver that ends at a goal or with a budget.

    Args:
        tolerance: relative residual at which a column stops; ``None`` for 1e-2, or for ``error``
            where weights stand for a posterior, see also :meth:`for_covariances`.
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
        goals = ["tolerance", "error", "max_epochs", "max_seconds"]
        checks.fields(self, goals, checks.positive_float)
        if self.checkpoint is not None and not isinstance(self.checkpoint, Checkpoint):
            raise TypeError(
                f"`checkpoint` must be a Checkpoint, got {type(self.checkpoint).__name__}. Use"
                " `Checkpoint(folder)`."
            )

    def for_covariances(self, system: LinearSystem, B: Tensor) -> Self:
        if self.tolerance is not None:
            return self
        noise = system.smallest_noise.double()
        share = (noise / system.rows.norm(B.double()).max().clamp_min(noise)).item()
        if not share > 0.0:  # B is not finite, which the solve reports
            return self
        return replace(self, tolerance=self.error * share)


def _into_range(request: Request) -> Tensor | None:
    """Scale columns of extreme squares by exact powers of two; return factors (s,) or ``None``."""
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
    parts = (solver, getattr(solver, "preconditioner", None))
    settings = [(name, getattr(part, name, None)) for part in parts for name in ROW_COUNTS]
    return [
        f"`{name}` {count} is reduced to n = {n}" for name, count in settings if (count or 0) > n
    ]


def shuffled_rows(system: LinearSystem) -> Tensor:
    """Return the indices of all data of ``system`` in an order that is always the same."""
    generator = torch.Generator().manual_seed(0)
    return torch.randperm(system.num_data, generator=generator, device="cpu").to(system.device)


def random_rows(system: LinearSystem) -> Tensor:
    """Return the indices of ``NUM_ROWS`` random data, or of all if there are fewer."""
    return shuffled_rows(system)[:NUM_ROWS]


def groups_by(values: Tensor, num_groups: int = NUM_GROUPS) -> Tensor:
    """Return indices of rows with similar ``values`` (m,) in equal groups, (>= num_groups, ·)."""
    size = max(1, len(values) // num_groups)
    return values.argsort()[: len(values) // size * size].view(-1, size)


def now() -> float:
    """Return the seconds on the clock of all solves."""
    return time.perf_counter()


def joined_notes(note: str, further: str) -> str:
    """Return both notes, without repeating one that the other contains."""
    return further if not note else note if further in note else f"{note}; {further}"
