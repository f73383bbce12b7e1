"""How far a solve has come: the best value of every column so far, and the sweep that is under way.

Notation: H (n, n) the system's matrix, B (n, s) right-hand sides, W (n, s) their solutions.
"""

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from surrogates.solvers.state import Number, Parts, State
from surrogates.systems.base import LinearSystem, Targets

CLEAR_DESCENT = 1e-3  # relative decrease of the objective beyond what rounding feigns


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


@dataclass
class Sweep:
    """A pass of the method over the columns that are not solved yet.

    Attributes:
        columns: of the right-hand sides.
        target: relative residual asked of the method.
        stalls: sweeps before this one, in a row, that got nowhere.
        state: of the columns still running, which are ``columns[running]``.
        proposal: (n, len(columns)) the method's solutions of those that have stopped.
    """

    columns: Tensor
    target: float
    stalls: int
    state: State
    proposal: Tensor
    running: Tensor
    steps: int = 0
    next_report: float = 0.0

    def parts(self) -> Parts:
        tensors = {
            "sweep.columns": self.columns,
            "sweep.proposal": self.proposal,
            "sweep.running": self.running,
        }
        numbers = {
            "target": self.target,
            "stalls": self.stalls,
            "steps": self.steps,
            "next_report": self.next_report,
        }
        return Parts(tensors, {f"sweep.{name}": value for name, value in numbers.items()})

    def restored(self, saved: Parts) -> "Sweep":
        device = self.columns.device
        return Sweep(
            columns=self.columns,
            proposal=saved.tensors["sweep.proposal"].to(device),
            running=saved.tensors["sweep.running"].to(device),
            state=self.state.with_parts(saved, "state."),
            **{
                name: saved.numbers[f"sweep.{name}"]
                for name in ("target", "stalls", "steps", "next_report")
            },  # type: ignore[arg-type]
        )


class Run:
    """The best value of every column so far, with its evaluated gap B − H W."""

    def __init__(
        self,
        system: LinearSystem,
        rhs: Tensor,
        targets: Targets | None,
        initial: Tensor | None,
        started: float,
        entries: int,
    ):
        self.system = system
        self.rhs = rhs
        self.targets = targets
        self.started = started
        self.entries_before = entries
        self.value = torch.zeros_like(rhs) if initial is None else initial.clone()
        self.gap = rhs.clone()
        if initial is not None and (warm := ~system.all_rows(initial == 0)).any():
            self.gap[:, warm] -= system @ initial[:, warm]
        norms = system.norm(rhs)
        self.norms = torch.where(norms > 0, norms, torch.ones_like(norms))
        self.rounding = torch.finfo(rhs.dtype).eps * system.n**0.5 * system.largest_entry
        self.residual = system.norm(self.gap) / self.norms
        self.column_steps = torch.zeros(rhs.shape[1], dtype=torch.long, device=rhs.device)
        self.steps = 0
        self.note = ""
        # The generator's state when the method prepared itself
        self.prepared_from: Tensor | None = None

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
        targets = (
            None
            if self.targets is None
            else Targets(*(columns_of(part, columns) for part in self.targets))
        )
        rhs, value, gap = (
            columns_of(matrix, columns) for matrix in (self.rhs, self.value, self.gap)
        )
        return Start(rhs, value, gap, targets, prepared)

    def accept(self, columns: Tensor, proposal: Tensor) -> bool:
        """Take over the columns of ``proposal`` that are better than before;
        return whether one is clearly so.
        """
        finite = self.system.all_rows(torch.isfinite(proposal))
        proposal[:, ~finite] = 0.0
        gap = (self.system @ proposal).neg_().add_(columns_of(self.rhs, columns))
        residual = self.system.norm(gap) / self.norms[columns]
        before = self.residual[columns]
        # A residual can rise on the way to the solution (that of conjugate gradients does): the
        # objective then decides.
        objective = self._objective(columns, proposal, gap)
        objective_before = self._objective(
            columns, columns_of(self.value, columns), columns_of(self.gap, columns)
        )
        # Products of large weights round: what may be that is no descent, nor is a residual to be
        # raised for it.
        rounding = self.rounding * self.system.norm(proposal).square()
        descended = objective < objective_before - CLEAR_DESCENT * objective_before.abs() - rounding
        better = (finite & ((residual < before) | descended)).nonzero().squeeze(1)
        if better.numel() < columns.numel():
            self.note = "some columns stopped improving: the precision or the step is exhausted"
        taken = columns[better]
        if len(taken) == len(self.norms):
            self.value = proposal
            self.gap = gap
        else:
            self.value[:, taken] = proposal[:, better]
            self.gap[:, taken] = gap[:, better]
        self.residual[taken] = residual[better]
        return bool((finite & ((residual < 0.9 * before) | descended)).any())

    def _objective(self, columns: Tensor, value: Tensor, gap: Tensor) -> Tensor:
        """Return ½ wᵀHw − wᵀb of each column, from ``gap = b − H w``."""
        return -0.5 * (
            self.system.dot(value, columns_of(self.rhs, columns)) + self.system.dot(value, gap)
        )

    def parts(self) -> Parts:
        assert self.prepared_from is not None
        tensors = {
            name: getattr(self, name)
            for name in ("value", "gap", "residual", "column_steps", "prepared_from")
        }
        entries = self.system.entries - self.entries_before
        numbers: dict[str, Number] = {
            "run.steps": self.steps,
            "run.note": self.note,
            "run.seconds": self.seconds,
            "run.entries": entries,
        }
        return Parts({f"run.{name}": value for name, value in tensors.items()}, numbers)

    def restore(self, saved: Parts) -> None:
        for name in ("value", "gap", "residual", "column_steps"):
            setattr(self, name, saved.tensors[f"run.{name}"].to(self.rhs.device))
        numbers: dict[str, Any] = saved.numbers
        self.steps = numbers["run.steps"]
        self.note = numbers["run.note"]
        self.started = time.perf_counter() - numbers["run.seconds"]
        self.entries_before = self.system.entries - numbers["run.entries"]

    def solution(self, tolerance: float) -> Solution:
        converged = self.residual <= tolerance
        return Solution(
            self.value,
            self.residual,
            converged,
            self.column_steps,
            self.epochs,
            self.seconds,
            self.note,
        )


def columns_of(matrix: Tensor, columns: Tensor) -> Tensor:
    """Return the given columns, without a copy if they are all."""
    return matrix if len(columns) == matrix.shape[1] else matrix[:, columns]
