"""Random partitions of the rows into batches, what the residuals over each tell, and the descent
that backs off by it.

Methods that touch a few rows a step know the exact residual of those rows. Over an epoch, a random
partition, they cover every row once, so that the sum of their squares estimates ‖b − H w‖² at no
extra product.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from surrogates.solvers.solver import CLEAR_CHANGE
from surrogates.solvers.state import Order, State
from surrogates.systems.system import Rows

STEP_REDUCTION = 0.25

Arrange = Callable[[Order, torch.Generator], Order]


@dataclass
class EpochMonitor(State):
    """Deals out batches and watches the residual of every column."""

    order: Order  # what is left of the epoch, of the system's rows or the data it is fitted to
    # Steps between two judgements, at least; they end with whole epochs. Momentum swings: a few
    # steps alone mislead
    window: int
    steps: int  # begun since the last judgement
    epochs: int  # likewise
    squares: Tensor  # (s,) sum since then of the squared residuals of the rows dealt
    # (s,) root mean square residual norm of the last window; infinite before, and at a restart
    residual: Tensor
    best: Tensor  # (s,) smallest such residual
    checkpoint: Tensor  # (n, s) what had it, at the window's end

    @classmethod
    def start(cls, initial: Tensor, norms: Tensor, num_rows: int, window: int = 10) -> Self:
        """Return the monitor of a run from ``initial`` (n, s) with known residual norms (s,)."""
        return cls(
            Order(num_rows),
            window,
            0,
            0,
            torch.zeros_like(norms),
            torch.full_like(norms, math.inf),
            norms,
            initial.clone(),
        )

    def deal(
        self, batch_size: int, generator: torch.Generator, arrange: Arrange | None = None
    ) -> tuple[Tensor, Self]:
        """Return the rows of the next step, ≤ ``batch_size``; an epoch's parts differ by ≤ 1 row.

        Args:
            arrange: makes another order of a random one.
        """
        order, epochs = self.order, self.epochs
        if order.is_at_end:
            order = order.shuffled(batch_size, generator, self.checkpoint.device)
            order = order if arrange is None else arrange(order, generator)
            epochs += 1
        batch, rest = order.next()
        return batch, replace(self, order=rest, steps=self.steps + 1, epochs=epochs)

    def observe(self, gap: Tensor) -> Self:
        """Take note of the residuals ``gap`` (b, s) of the rows just dealt, before the step."""
        square = gap.square().sum(0)
        best = self.best
        if self.steps == 1:
            # At a restart the batch shows the checkpoint itself, which may be worse than the points
            # before it that made it the best. Without this, the smaller the step the surer the
            # column would restart again.
            norm = (self.order.num_rows / len(gap) * square).sqrt()
            best = torch.where(self.residual.isinf(), torch.maximum(best, norm), best)
        return replace(self, squares=self.squares + square, best=best)

    @property
    def is_due(self) -> bool:
        """Whether ``judge`` is to be called after this step."""
        return self.order.is_at_end and self.steps >= self.window

    @property
    def has_judged(self) -> bool:
        """Whether a window ended with this step, and ``residual`` is new."""
        return self.steps == 0

    def judge(self, iterates: Tensor, growth_allowed: float = CLEAR_CHANGE) -> tuple[Self, Tensor]:
        """End the window; return the columns (s,) that diverged, and must go back to the
        checkpoint.

        Args:
            iterates: (n, s).
            growth_allowed: infinite for a method whose objective cannot rise, though its residual
                may: only NaN is divergence then.
        """
        residual = (self.squares / self.epochs).sqrt()
        diverged = ~(residual <= growth_allowed * self.best)
        improved = residual < self.best
        judged = replace(
            self,
            steps=0,
            epochs=0,
            squares=torch.zeros_like(residual),
            residual=torch.where(diverged, math.inf, residual),
            best=torch.where(improved, residual, self.best),
            checkpoint=torch.where(improved, iterates, self.checkpoint, out=self.checkpoint),
        )
        return judged, diverged


@dataclass
class AveragedDescent(State):
    """Iterates with momentum, their average, and a step size reduced for columns that diverge."""

    # (n, s) where the next gradient is taken: the iterates A plus momentum times velocities
    point: Tensor
    V: Tensor  # (n, s) velocities
    average: Tensor  # (n, s)
    step: Tensor  # (s,) step size
    monitor: EpochMonitor

    def end_step(self) -> Self:
        """Return the state in which columns that diverged, if a window ends here,
        are back at their checkpoint, with a shorter step.
        """
        if not self.monitor.is_due:
            return self
        monitor, diverged = self.monitor.judge(self.point)
        return replace(
            self,
            point=torch.where(diverged, monitor.checkpoint, self.point, out=self.point),
            V=self.V.masked_fill_(diverged, 0.0),
            average=torch.where(diverged, monitor.checkpoint, self.average, out=self.average),
            step=torch.where(diverged, STEP_REDUCTION * self.step, self.step),
            monitor=monitor,
        )

    def estimate(self, rows: Rows) -> Tensor:
        """Return the average; the checkpoint where a run cut short in its first diverging window
        averaged what no check has seen.
        """
        sound = rows.all(torch.isfinite(self.average))
        return torch.where(sound, self.average, self.monitor.checkpoint)

    def describe(self, step: float | Tensor) -> str:
        """Return how far below ``step`` the steps are; empty if they are not."""
        return describe_reduction(self.step / step)


def describe_reduction(factors: Tensor) -> str:
    """Return how far steps were reduced, by the factors (s,) of the columns; empty if none was."""
    least = factors.min().item() if factors.numel() else 1.0
    if least == 1.0:
        return ""
    return f"step size reduced to as little as {least:.1e} of itself where the residual grew"
