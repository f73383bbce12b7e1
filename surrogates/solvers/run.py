"""What passes between the caller of a solve, the loop and the method: start, sweep, progress,
solution.

Notation: H (n, n) the system's matrix, B (n, s) right-hand sides, W (n, s) their solutions.
"""

from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from torch import Tensor

from surrogates.solvers.state import State
from surrogates.systems.targets import Targets

PreparedT = TypeVar("PreparedT")
StateT = TypeVar("StateT", bound=State)


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


@dataclass(frozen=True)
class Solution:
    """The returned estimate and an honest account of it.

    Attributes:
        value: (n, s); of a shared system, the rows held by this process.
        residual: (s,) relative residual of ``value``, evaluated, not estimated.
        converged: (s,) whether the tolerance was reached.
        steps: (s,) steps each column ran.
        epochs: kernel entries used, checks and preconditioner included; n² of them, between all
            data and all unknowns, are one epoch.
        note: what a user should know: jitter added, a step size reduced, precision exhausted. Empty
            if nothing.
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
            f"{done}/{self.converged.numel()} columns converged, worst residual {worst:.1e},"
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
        target: relative residual asked of the method.
        stalls: sweeps before this one, in a row, that got nowhere.
        state: of the columns still running, which are ``columns[running]``.
        proposal: (n, len(columns)) the method's solutions of those that have stopped.
    """

    SAVED: ClassVar = ["columns", "proposal", "running", "target", "stalls", "steps", "next_report"]

    columns: Tensor
    target: float
    stalls: int
    state: StateT
    proposal: Tensor
    running: Tensor
    steps: int = 0
    next_report: float = 0.0
