"""What a solver is, what it returns, and the one loop behind every iterative method.

Notation: H (n, n) the system's matrix, B (n, s) right-hand sides, W (n, s) their solutions; the
relative residual of a column is ‖b − H w‖ / ‖b‖.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from surrogates import checks, settings
from surrogates.solvers.checkpoint import Checkpoint, Keeper, digest
from surrogates.solvers.run import Run, Solution, Start, Sweep, columns_of
from surrogates.solvers.state import Parts, State
from surrogates.systems.base import LinearSystem, Targets, check_right_hand_sides


@dataclass(frozen=True)
class Progress:
    """A moment of a running solve, given to its callback.

    Attributes:
        residual: largest relative residual among the running columns, as the method estimates it;
            infinite while it has no estimate.
        num_active: columns still running, of ``num_columns``.
    """

    steps: int
    epochs: float
    seconds: float
    residual: float
    num_active: int
    num_columns: int


Callback = Callable[[Progress], None]

# Sweeps in a row without progress: the first may be a stochastic method's bad luck
STALLS_ALLOWED = 2


class Solver(ABC):
    """Solves H W = B. Concrete solvers are frozen dataclasses, which are their own configuration.

    Attributes:
        splits_targets: whether the method gains from :class:`Targets`, the two parts of B, in place
            of their sum.
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
            TypeError, ValueError: if the shapes, dtypes, devices or values of the arguments do not
                fit, or the method needs parts of the matrix that the system does not give.
        """


@dataclass(frozen=True)
class IterativeSolver(Solver):
    """The loop that iterative methods share. A method defines what it prepares, its state, a step,
    and two readings of the state.

    Columns that reach ``tolerance`` are taken out of the state, so that steps never touch them
    again. What the method *estimates* decides when to stop; what is returned is *evaluated* in one
    more product, and columns that fell short go on from there. Where a sweep lowered neither a
    column's residual nor its objective ½ wᵀHw − wᵀb, the value before it is kept. The hooks'
    ``system`` is of whatever kind the method can solve.

    Args:
        tolerance: relative residual at which a column stops.
        max_epochs: budget, in n² kernel entries, preconditioner and checks included. A spent budget
            is a result, not an error.
        max_seconds: budget of time; ``None`` for none.
        checkpoint: where to save the solve as it goes on, so that the same call can continue one
            that was cut short; ``None`` for nowhere.
    """

    tolerance: float = field(default=1e-2, kw_only=True)
    max_epochs: float = field(default=100.0, kw_only=True)
    max_seconds: float | None = field(default=None, kw_only=True)
    checkpoint: Checkpoint | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        checks.positive_float("tolerance", self.tolerance)
        checks.positive_float("max_epochs", self.max_epochs)
        if self.max_seconds is not None:
            checks.positive_float("max_seconds", self.max_seconds)
        if self.checkpoint is not None and not isinstance(self.checkpoint, Checkpoint):
            raise TypeError(
                f"`checkpoint` must be a Checkpoint, got {type(self.checkpoint).__name__}. Use"
                " `Checkpoint(folder)`."
            )

    def prepare(self, system: Any, generator: torch.Generator) -> Any:
        """Compute what depends on the system alone (a preconditioner, a step size),
        once a solve.
        """
        return None

    @abstractmethod
    def init(self, system: Any, start: Start) -> State:
        """Return the first state; what ``start`` holds stays as it is."""

    @abstractmethod
    def step(self, system: Any, rhs: Tensor, state: Any, generator: torch.Generator) -> State:
        """Return the next state."""

    @abstractmethod
    def estimate(self, system: Any, state: Any) -> Tensor:
        """Return the solution that the state stands for (an average of iterates, for some
        methods).
        """

    @abstractmethod
    def residual_norm(self, system: Any, state: Any) -> Tensor | None:
        """Return the method's estimate of ‖b − H w‖ for each running column, (s,), at no extra
        product; infinite if it has none.

        ``None`` if it has not changed in this step: whether a column has ended is not asked then,
        which would wait for the device.
        """

    def epochs_per_step(self, system: Any, num_columns: int) -> float:
        """Return the epochs that a step uses, of a solve for so many columns."""
        return 1.0

    def describe(self, state: Any) -> str:
        """Return what a user should know of how the columns of ``state`` fared;
        empty if nothing.
        """
        return ""

    @settings.keeping_freed()
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
        started = time.perf_counter()
        entries = system.entries
        targets = rhs if isinstance(rhs, Targets) else None
        B = system.rhs(rhs) if isinstance(rhs, Targets) else rhs
        check_right_hand_sides(system, B, initial)
        generator = system.agreed(
            torch.Generator().manual_seed(0) if generator is None else generator, B.shape[1]
        )
        run = Run(system, B, targets, initial, started, entries)
        keeper = (
            None
            if self.checkpoint is None
            else Keeper(self.checkpoint, system, self._key(run, generator))
        )
        prepared = None
        target = self.tolerance
        stalls = 0
        saved = None if keeper is None else keeper.load()
        while (columns := run.unfinished(self.tolerance)).numel() and (
            saved is not None or not self._is_spent(run)
        ):
            if prepared is None:
                run.prepared_from = (
                    generator.get_state() if saved is None else saved.tensors["run.prepared_from"]
                )
                generator.set_state(run.prepared_from)
                prepared = self.prepare(system, generator)
            sweep = (
                self._begin(run, columns, prepared, target, stalls)
                if saved is None
                else self._resume(run, prepared, saved, generator)
            )
            saved = None
            stalls = 0 if self._sweep(run, sweep, generator, callback, keeper) else sweep.stalls + 1
            if stalls == STALLS_ALLOWED:
                break
            # What the method took for the tolerance was not: ask it for more
            target = max(0.5 * sweep.target, 0.1 * self.tolerance)
        if keeper is not None:
            keeper.clear()
        return run.solution(self.tolerance)

    def _is_spent(self, run: Run) -> bool:
        # One product is kept back for evaluating the residual of what is returned.
        epochs = (
            run.epochs
            + self.epochs_per_step(run.system, run.rhs.shape[1])
            + run.system.epochs_per_product
        )
        return epochs > self.max_epochs or (
            self.max_seconds is not None and run.system.agree(run.seconds > self.max_seconds)
        )

    def _begin(self, run: Run, columns: Tensor, prepared: Any, target: float, stalls: int) -> Sweep:
        state = self.init(run.system, run.start(columns, prepared))
        proposal = torch.empty_like(columns_of(run.rhs, columns))
        return Sweep(
            columns,
            target,
            stalls,
            state,
            proposal,
            torch.arange(len(columns), device=columns.device),
        )

    def _resume(self, run: Run, prepared: Any, saved: Parts, generator: torch.Generator) -> Sweep:
        columns = saved.tensors["sweep.columns"].to(run.rhs.device)
        sweep = self._begin(run, columns, prepared, self.tolerance, 0)
        run.restore(saved)
        generator.set_state(saved.tensors["generator"])
        return sweep.restored(saved)

    def _key(self, run: Run, generator: torch.Generator) -> str:
        """Return what tells this solve from others."""
        kernel = run.system.kernel.tiles
        few = slice(0, 16)
        tensors = [
            kernel.X1,
            kernel.tile(few, few),
            run.system.noise,
            run.rhs,
            run.value,
            generator.get_state(),
        ]
        if run.targets is not None:
            tensors.append(run.targets.noise_draw)
        return digest(repr(replace(self, checkpoint=None, max_seconds=None)), tensors)

    def _sweep(
        self,
        run: Run,
        sweep: Sweep,
        generator: torch.Generator,
        callback: Callback | None,
        keeper: Keeper | None,
    ) -> bool:
        """Run the method until it claims the sweep's target for all columns or the budget is spent;
        return whether it got anywhere.
        """
        columns = sweep.columns
        running = sweep.running
        state = sweep.state
        proposal = sweep.proposal
        steps = sweep.steps
        rhs = columns_of(run.rhs, columns[running])
        norms = run.norms[columns[running]]
        residual = torch.full_like(norms, math.inf)
        del sweep.state  # the steps' alone: they update it in place
        while running.numel() and not (steps and self._is_spent(run)):
            state = self.step(run.system, rhs, state, generator)
            steps += 1
            news = self.residual_norm(run.system, state)
            if news is not None:
                residual = news / norms
            if callback is not None and run.epochs >= sweep.next_report:
                sweep.next_report = run.epochs + 1.0
                worst = residual.max().item()
                callback(
                    Progress(
                        run.steps + steps,
                        run.epochs,
                        run.seconds,
                        worst,
                        len(running),
                        len(run.norms),
                    )
                )
            # `not >` so that a column whose estimate is not a number stops, too; it is evaluated
            # below like the others.
            if news is not None and not bool((running_mask := residual > sweep.target).all()):
                stopped = (~running_mask).nonzero().squeeze(1)
                proposal[:, running[stopped]] = self.estimate(run.system, state.select(stopped))
                run.column_steps[columns[running[stopped]]] += steps
                keep = running_mask.nonzero().squeeze(1)
                running = running[keep]
                rhs = rhs[:, keep]
                norms = norms[keep]
                residual = residual[keep]
                note = self.describe(state)
                run.note = note or run.note
                state = state.select(keep)
            if keeper is not None and keeper.is_due(run.steps + steps):
                sweep.running = running
                sweep.steps = steps
                keeper.save(
                    run.steps + steps,
                    _joined(run.parts(), sweep.parts(), state.parts("state."), generator),
                )
        if running.numel():
            proposal[:, running] = self.estimate(run.system, state)
            run.column_steps[columns[running]] += steps
            run.note = self.describe(state) or run.note
        run.steps += steps
        del state, rhs  # before the product below, to hold fewer (n, s) matrices at once
        return run.accept(columns, proposal)


def _joined(run: Parts, sweep: Parts, state: Parts, generator: torch.Generator) -> Parts:
    tensors = run.tensors | sweep.tensors | state.tensors | {"generator": generator.get_state()}
    return Parts(tensors, run.numbers | sweep.numbers | state.numbers)
