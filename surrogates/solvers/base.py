"""What a solver is, what it returns, and the one loop behind every iterative method.

Notation: H (n, n) the system's matrix, B (n, s) right-hand sides, W (n, s) their solutions; the relative residual of a column is
‖b − H w‖ / ‖b‖.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from surrogates import checks
from surrogates.systems import LinearSystem, Targets, check_right_hand_sides


@dataclass(frozen=True)
class Progress:
    """A moment of a running solve, given to its callback.

    Attributes:
        residual: largest relative residual among the running columns, as the method estimates it; infinite while it has no estimate.
        num_active: columns still running, of ``num_columns``.
    """

    steps: int
    epochs: float
    seconds: float
    residual: float
    num_active: int
    num_columns: int


Callback = Callable[[Progress], None]

STALLS_ALLOWED = 2  # sweeps in a row without progress: the first may be a stochastic method's bad luck
CLEAR_DESCENT = 1e-3  # relative decrease of the objective beyond what rounding feigns


@dataclass(frozen=True)
class Solution:
    """The returned estimate and an honest account of it.

    Attributes:
        value: (n, s).
        residual: (s,) relative residual of ``value``, evaluated, not estimated.
        converged: (s,) whether the tolerance was reached.
        steps: (s,) steps each column ran.
        epochs: kernel entries used, checks and preconditioner included; n² of them, between all data and all unknowns, are one epoch.
        note: what a user should know: jitter added, a step size reduced, precision exhausted. Empty if nothing.
    """

    value: Tensor
    residual: Tensor
    converged: Tensor
    steps: Tensor
    epochs: float
    seconds: float
    note: str = ""

    def __str__(self) -> str:
        done = int(self.converged.sum())
        worst = self.residual.max().item() if self.residual.numel() else 0.0
        text = (
            f"{done}/{self.converged.numel()} columns converged, worst residual {worst:.1e}, {self.epochs:.1f} epochs, {self.seconds:.1f} s"
        )
        return f"{text}; {self.note}" if self.note else text


class Solver(ABC):
    """Solves H W = B. Concrete solvers are frozen dataclasses, which are their own configuration.

    Attributes:
        splits_targets: whether the method gains from :class:`Targets`, the two parts of B, in place of their sum.
    """

    splits_targets: ClassVar[bool] = False

    @abstractmethod
    def solve(
        self,
        system: LinearSystem,
        rhs: Tensor | Targets,
        *,
        initial: Tensor | None = None,
        generator: torch.Generator | None = None,
        callback: Callback | None = None,
    ) -> Solution:
        """Return W with H W ≈ ``rhs``.

        Args:
            rhs: B (n, s), or the targets whose sum it is.
            initial: warm start (n, s); zeros if ``None``.
            generator: source of all randomness; a generator seeded with 0 if ``None``.
            callback: called with :class:`Progress` as the solve goes on.

        Raises:
            TypeError, ValueError: if the shapes, dtypes, devices or values of the arguments do not fit, or the method needs parts of
                the matrix that the system does not give.
        """


@dataclass(frozen=True)
class State:
    """The running columns of an iterative solve: every tensor field, also of a state inside, has them as its last dimension.

    A state owns its tensors: a step may update them in place, and the state it was given is not used again.
    """

    def select(self, keep: Tensor) -> Self:
        """Return the state of the columns ``keep``."""
        selected: dict[str, Any] = {}
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            if isinstance(value, Tensor):
                selected[name] = value[..., keep]
            elif isinstance(value, State):
                selected[name] = value.select(keep)
        return replace(self, **selected)


@dataclass(frozen=True)
class Start:
    """What a method starts from, for the columns that are still to be solved.

    Attributes:
        rhs: B (n, s).
        initial: (n, s), with ``gap = rhs − H initial``.
        targets: f and ε, if they are known apart.
        prepared: what ``prepare`` returned.
    """

    rhs: Tensor
    initial: Tensor
    gap: Tensor
    targets: Targets | None = None
    prepared: Any = None


@dataclass(frozen=True)
class IterativeSolver(Solver):
    """The loop that iterative methods share. A method defines what it prepares, its state, a step, and two readings of the state.

    Columns that reach ``tolerance`` are taken out of the state, so that steps never touch them again. What the method *estimates*
    decides when to stop; what is returned is *evaluated* in one more product, and columns that fell short go on from there. Where a
    sweep lowered neither a column's residual nor its objective ½ wᵀHw − wᵀb, the value before it is kept. The hooks' ``system`` is of
    whatever kind the method can solve.

    Args:
        tolerance: relative residual at which a column stops.
        max_epochs: budget, in n² kernel entries, preconditioner and checks included. A spent budget is a result, not an error.
        max_seconds: budget of time; ``None`` for none.
    """

    tolerance: float = field(default=1e-2, kw_only=True)
    max_epochs: float = field(default=100.0, kw_only=True)
    max_seconds: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        checks.positive_float("tolerance", self.tolerance)
        checks.positive_float("max_epochs", self.max_epochs)
        if self.max_seconds is not None:
            checks.positive_float("max_seconds", self.max_seconds)

    def prepare(self, system: Any, generator: torch.Generator) -> Any:
        """Compute what depends on the system alone (a preconditioner, a step size), once a solve."""
        return None

    @abstractmethod
    def init(self, system: Any, start: Start) -> State:
        """Return the first state; what ``start`` holds stays as it is."""

    @abstractmethod
    def step(self, system: Any, rhs: Tensor, state: Any, generator: torch.Generator) -> State:
        """Return the next state."""

    @abstractmethod
    def estimate(self, state: Any) -> Tensor:
        """Return the solution that the state stands for (an average of iterates, for some methods)."""

    @abstractmethod
    def residual_norm(self, state: Any) -> Tensor:
        """Return the method's estimate of ‖b − H w‖ for each running column, (s,), at no extra product; infinite if it has none."""

    def epochs_per_step(self, system: Any, num_columns: int) -> float:
        """Return the epochs that a step uses, of a solve for so many columns."""
        return 1.0

    def describe(self, state: Any) -> str:
        """Return what a user should know of how the columns of ``state`` fared; empty if nothing."""
        return ""

    @torch.no_grad()
    def solve(
        self,
        system: LinearSystem,
        rhs: Tensor | Targets,
        *,
        initial: Tensor | None = None,
        generator: torch.Generator | None = None,
        callback: Callback | None = None,
    ) -> Solution:
        started, entries = time.perf_counter(), system.entries
        targets = rhs if isinstance(rhs, Targets) else None
        B = system.rhs(rhs) if isinstance(rhs, Targets) else rhs
        check_right_hand_sides(system, B, initial)
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        run = _Run(system, B, targets, initial, started, entries)
        prepared, target, stalls = None, self.tolerance, 0
        while (columns := run.unfinished(self.tolerance)).numel() and not self._is_spent(run):
            prepared = self.prepare(system, generator) if prepared is None else prepared
            stalls = 0 if self._sweep(run, columns, prepared, target, generator, callback) else stalls + 1
            if stalls == STALLS_ALLOWED:
                break
            target = max(0.5 * target, 0.1 * self.tolerance)  # what the method took for the tolerance was not: ask it for more
        return run.solution(self.tolerance)

    def _is_spent(self, run: "_Run") -> bool:
        # One product is kept back for evaluating the residual of what is returned.
        epochs = run.epochs + self.epochs_per_step(run.system, run.rhs.shape[1]) + run.system.epochs_per_product
        return epochs > self.max_epochs or (self.max_seconds is not None and run.seconds > self.max_seconds)

    def _sweep(
        self, run: "_Run", columns: Tensor, prepared: Any, target: float, generator: torch.Generator, callback: Callback | None
    ) -> bool:
        """Run the method on ``columns`` until it claims ``target`` for all or the budget is spent; return whether it got anywhere."""
        rhs, norms = _columns(run.rhs, columns), run.norms[columns]
        state = self.init(run.system, run.start(columns, prepared))
        proposal = torch.empty_like(rhs)
        running = torch.arange(len(columns), device=columns.device)
        steps, next_report = 0, 0.0
        while running.numel() and not (steps and self._is_spent(run)):
            state = self.step(run.system, rhs, state, generator)
            steps += 1
            residual = self.residual_norm(state) / norms
            if callback is not None and run.epochs >= next_report:
                next_report = run.epochs + 1.0
                worst = residual.max().item()
                callback(Progress(run.steps + steps, run.epochs, run.seconds, worst, len(running), len(run.norms)))
            # `not >` so that a column whose estimate is not a number stops, too; it is evaluated below like the others.
            running_mask = residual > target
            if not bool(running_mask.all()):
                stopped = (~running_mask).nonzero().squeeze(1)
                proposal[:, running[stopped]] = self.estimate(state.select(stopped))
                run.column_steps[columns[running[stopped]]] += steps
                keep = running_mask.nonzero().squeeze(1)
                running, rhs, norms, note = running[keep], rhs[:, keep], norms[keep], self.describe(state)
                run.note = note or run.note
                state = state.select(keep)
        if running.numel():
            proposal[:, running] = self.estimate(state)
            run.column_steps[columns[running]] += steps
            run.note = self.describe(state) or run.note
        run.steps += steps
        del state, rhs  # before the product below, to hold fewer (n, s) matrices at once
        return run.accept(columns, proposal)


def _columns(matrix: Tensor, columns: Tensor) -> Tensor:
    """Return the given columns, without a copy if they are all."""
    return matrix if len(columns) == matrix.shape[1] else matrix[:, columns]


class _Run:
    """The best value of every column so far, with its evaluated gap B − H W."""

    def __init__(self, system: LinearSystem, rhs: Tensor, targets: Targets | None, initial: Tensor | None, started: float, entries: int):
        self.system, self.rhs, self.targets, self.started, self.entries_before = system, rhs, targets, started, entries
        self.value = torch.zeros_like(rhs) if initial is None else initial.clone()
        self.gap = rhs.clone()
        if initial is not None and (warm := initial.any(0)).any():
            self.gap[:, warm] -= system @ initial[:, warm]
        norms = system.norm(rhs)
        self.norms = torch.where(norms > 0, norms, torch.ones_like(norms))
        self.rounding = torch.finfo(rhs.dtype).eps * system.n**0.5 * system.kernel.diagonal().max()
        self.residual = system.norm(self.gap) / self.norms
        self.column_steps = torch.zeros(rhs.shape[1], dtype=torch.long, device=rhs.device)
        self.steps, self.note = 0, ""

    @property
    def epochs(self) -> float:
        return (self.system.entries - self.entries_before) / self.system.entries_per_epoch

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def unfinished(self, tolerance: float) -> Tensor:
        return (self.residual > tolerance).nonzero().squeeze(1)

    def start(self, columns: Tensor, prepared: Any) -> Start:
        """Return what a sweep over ``columns`` starts from."""
        targets = None if self.targets is None else Targets(*(_columns(part, columns) for part in self.targets))
        rhs, value, gap = (_columns(matrix, columns) for matrix in (self.rhs, self.value, self.gap))
        return Start(rhs, value, gap, targets, prepared)

    def accept(self, columns: Tensor, proposal: Tensor) -> bool:
        """Take over the columns of ``proposal`` that are better than before; return whether one is clearly so."""
        finite = torch.isfinite(proposal).all(0)
        proposal[:, ~finite] = 0.0
        gap = (self.system @ proposal).neg_().add_(_columns(self.rhs, columns))
        residual, before = self.system.norm(gap) / self.norms[columns], self.residual[columns]
        # A residual can rise on the way to the solution (that of conjugate gradients does): the objective then decides.
        objective = self._objective(columns, proposal, gap)
        objective_before = self._objective(columns, _columns(self.value, columns), _columns(self.gap, columns))
        # Products of large weights round: what may be that is no descent, nor is a residual to be raised for it.
        rounding = self.rounding * self.system.norm(proposal).square()
        descended = objective < objective_before - CLEAR_DESCENT * objective_before.abs() - rounding
        better = (finite & ((residual < before) | descended)).nonzero().squeeze(1)
        if better.numel() < columns.numel():
            self.note = "some columns stopped improving: the precision or the step is exhausted"
        taken = columns[better]
        if len(taken) == len(self.norms):
            self.value, self.gap = proposal, gap
        else:
            self.value[:, taken], self.gap[:, taken] = proposal[:, better], gap[:, better]
        self.residual[taken] = residual[better]
        return bool((finite & ((residual < 0.9 * before) | descended)).any())

    def _objective(self, columns: Tensor, value: Tensor, gap: Tensor) -> Tensor:
        """Return ½ wᵀHw − wᵀb of each column, from ``gap = b − H w``."""
        return -0.5 * (self.system.dot(value, _columns(self.rhs, columns)) + self.system.dot(value, gap))

    def solution(self, tolerance: float) -> Solution:
        converged = self.residual <= tolerance
        return Solution(self.value, self.residual, converged, self.column_steps, self.epochs, self.seconds, self.note)
