"""What passes between the caller of a solve, the loop and the method: start, sweep, progress,
solution.

Notation: H (n, n) the system's matrix, B (n, s) right-hand sides, W (n, s) their solutions.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from surrogates.solvers.state import State
from surrogates.systems.targets import Targets

PreparedT = TypeVar("PreparedT")
StateT = TypeVar("StateT", bound=State)


class UnsolvedWarning(UserWarning):
    """A model uses the solution of a linear system whose residual missed the tolerance."""


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

    def warn_if_unsolved(self, what: str, stacklevel: int = 2) -> None:
        """Warn if a column missed the tolerance.

        Args:
            what: is computed from the solution, in the plural.
            stacklevel: of the warning, 1 for the caller.

        Warns:
            UnsolvedWarning: with the number of these columns, the worst residual, and what helps.
        """
        missed = int((~self.converged).sum())
        if not missed:
            return
        precision = "float64, " if self.value.dtype == torch.float32 else ""
        warnings.warn(
            f"{what} are those of an unsolved linear system: {missed} of {self.converged.numel()}"
            " columns missed the solver's tolerance, the worst with a relative residual of"
            f" {self.residual.max().item():.1e}. Use {precision}a solver with a"
            " larger budget such as `Auto(max_epochs=1000)`, or `Cholesky()` where n² numbers fit"
            " in memory.",
            UnsolvedWarning,
            stacklevel=stacklevel + 1,
        )

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


def columns_of(matrix: Tensor, columns: Tensor) -> Tensor:
    """Return the given columns, without a copy if they are all."""
    return matrix if len(columns) == matrix.shape[1] else matrix[:, columns]


def selected(state: StateT, columns: Tensor) -> StateT:
    """Return the state of these columns."""
    changed: dict[str, Any] = {}
    for name in (entry.name for entry in fields(state)):
        value = getattr(state, name)
        if isinstance(value, Tensor):
            changed[name] = value[..., columns]
        elif isinstance(value, State):
            changed[name] = selected(value, columns)
    return replace(state, **changed)
