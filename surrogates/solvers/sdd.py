"""Stochastic dual descent."""

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from surrogates import checks
from surrogates.solvers.epochs import AveragedDescent, EpochMonitor
from surrogates.solvers.run import IterativeSolver, Start
from surrogates.systems.preconditioners import largest_eigenvalue
from surrogates.systems.system import KernelSystem, LinearSystem, require_blocks


@dataclass(frozen=True)
class SDDSettings:
    """What one solve fixes: batch size b, β before any reduction, averaging weight r."""

    batch_size: int
    step: float
    averaging: float


@dataclass
class SDDState(AveragedDescent):
    """The average is geometric, the step β."""

    settings: SDDSettings


@dataclass(frozen=True)
class SDD(IterativeSolver[KernelSystem, SDDSettings, SDDState]):
    """Solve (K + Σ) W = B by stochastic dual descent.

    Each step touches ``batch_size`` rows of K; with g the gradient on those rows, at the
    extrapolated point, and zero elsewhere, ``v ← ρ v − β g``, ``a ← a + v``,
    ``ā ← r a + (1 − r) ā``, and ā is returned. A column whose residual grows returns to its best
    iterate and goes on with a quarter of its step.

    Args:
        step_size: βn, dimensionless; ``None`` for b / λ_max(H_bb), by power iterations on sampled
            blocks (three times more diverges).
        batch_size: b, at most n of which are used; ``None`` for n / 100, between 64 and 512. Small
            batches make more progress an epoch, large ones more an hour.
        momentum: ρ in [0, 1).
        averaging: r; ``None`` for 100 / T, T the steps that ``max_epochs`` allows.

    References:
        Lin et al. (2024), "Stochastic Gradient Descent for Gaussian Processes Done Right",
        Algorithm 1.
        Differs: (1) an epoch is a random partition into batches, so that its residual covers every
        row once; (2) the step is estimated, and reduced a column at a time when the residual grows;
        (3) the velocity starts at zero under a warm start, too.
    """

    step_size: float | None = None
    batch_size: int | None = None
    momentum: float = 0.9
    averaging: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fields(self, ["step_size"], checks.positive_float)
        checks.fields(self, ["batch_size"], checks.positive_int)
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"`momentum` must be in [0, 1), got {self.momentum}.")
        if self.averaging is not None and not 0.0 < self.averaging <= 1.0:
            raise ValueError(f"`averaging` must be in (0, 1], got {self.averaging}.")

    @classmethod
    def paper(cls, **settings: float) -> Self:
        """Return the published settings: batches of 500, βn = 50, ρ = 0.9."""
        return cls(**{"step_size": 50.0, "batch_size": 500, "momentum": 0.9, **settings})  # type: ignore[arg-type]

    def accepts(self, system: LinearSystem) -> KernelSystem:
        return require_blocks(system)

    def epochs_per_step(self, system: KernelSystem, num_columns: int) -> float:
        return self._batch_size(system.n) / system.n

    def _batch_size(self, n: int) -> int:
        return min(n, self.batch_size or max(64, min(512, n // 100)))

    def prepare(self, system: KernelSystem, generator: torch.Generator) -> SDDSettings:
        b = self._batch_size(system.n)
        step_size = self.step_size
        if step_size is None:
            orders = [
                torch.randperm(system.n, generator=generator, device=generator.device)
                for _ in range(3)
            ]
            blocks = [system.restrict(order[:b].to(system.device)) for order in orders]
            step_size = b / max(
                largest_eigenvalue(block, torch.clone, generator).item() for block in blocks
            )
        num_steps = self.max_epochs * math.ceil(system.n / b)
        averaging = min(1.0, 100.0 / num_steps) if self.averaging is None else self.averaging
        return SDDSettings(b, step_size / system.n, averaging)

    def init(self, system: KernelSystem, start: Start[SDDSettings]) -> SDDState:
        initial = start.initial
        norms = system.rows.norm(start.gap)
        return SDDState(
            settings=start.prepared,
            point=initial.clone(),
            V=torch.zeros_like(initial),
            average=initial.clone(),
            step=torch.full_like(norms, start.prepared.step),
            monitor=EpochMonitor.start(initial, norms, system.n),
        )

    def step(
        self, system: KernelSystem, rhs: Tensor, state: SDDState, generator: torch.Generator
    ) -> SDDState:
        index, monitor = state.monitor.deal(state.settings.batch_size, generator)
        point = state.point
        V = state.V
        average = state.average
        gap = system.rows_matmul(index, point, minus=rhs)
        D = gap * state.step
        scale = -system.n / state.settings.batch_size
        system.rows.add(V.mul_(self.momentum), index, D, alpha=scale)
        # Point = A + momentum · V, so that A + V moves those rows alone
        A = system.rows.add(point, index, D, alpha=scale)
        average.lerp_(A, state.settings.averaging)
        A.add_(V, alpha=self.momentum)  # the next point
        return replace(state, monitor=monitor.observe(gap)).end_step()

    def estimate(self, system: KernelSystem, state: SDDState) -> Tensor:
        return state.estimate(system.rows)

    def residual_norm(self, system: KernelSystem, state: SDDState) -> Tensor | None:
        return state.monitor.residual if state.monitor.has_judged else None

    def describe(self, state: SDDState) -> str:
        return state.describe(state.settings.step)
