"""Stochastic dual descent."""

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from surrogates import checks
from surrogates.solvers.base import IterativeSolver, State
from surrogates.systems import KernelSystem

GROWTH_ALLOWED = 2.0  # a residual this many times the best seen means divergence, not noise
STEP_REDUCTION = 0.25
NUM_SAMPLED_BLOCKS = 3
NUM_POWER_ITERATIONS = 10


@dataclass(frozen=True)
class SDDSettings:
    """What one solve fixes: batch size b, β before any reduction, averaging weight r."""

    batch_size: int
    step: float
    averaging: float


@dataclass(frozen=True)
class SDDState(State):
    settings: SDDSettings
    A: Tensor  # (n, s) iterates
    V: Tensor  # (n, s) velocities
    average: Tensor  # (n, s) geometric average of the iterates
    step: Tensor  # (s,) β
    batches: tuple[Tensor, ...]  # what is left of the current epoch
    squares: Tensor  # (s,) sum over the current epoch of the squared residuals of its rows
    residual: Tensor  # (s,) residual norm over the last whole epoch; infinite before, and at a restart
    best: Tensor  # (s,) smallest such residual
    checkpoint: Tensor  # (n, s) the iterates that had it


@dataclass(frozen=True)
class SDD(IterativeSolver):
    """Solve (K + Σ) W = B by stochastic dual descent.

    Each step touches ``batch_size`` rows of K; with g the gradient on those rows, at the extrapolated point, and zero elsewhere,
    ``v ← ρ v − β g``, ``a ← a + v``, ``ā ← r a + (1 − r) ā``, and ā is returned. A column whose residual grows returns to its best
    iterate and goes on with a quarter of its step.

    Args:
        step_size: βn, dimensionless; ``None`` for b / λ_max(H_bb), by power iterations on sampled blocks (three times more diverges).
        batch_size: b; ``None`` for n / 100, between 64 and 512. Small batches make more progress an epoch, large ones more an hour.
        momentum: ρ in [0, 1).
        averaging: r; ``None`` for 100 / T, T the steps that ``max_epochs`` allows.

    Raises:
        ValueError: when solving, if ``batch_size`` exceeds n.
    References:
        Lin et al. (2024), "Stochastic Gradient Descent for Gaussian Processes Done Right", Algorithm 1.
        Differs: (1) an epoch is a random partition into batches, so that its residual covers every row once; (2) the step is
        estimated, and reduced a column at a time when the residual grows; (3) the velocity starts at zero under a warm start, too.
    """

    step_size: float | None = None
    batch_size: int | None = None
    momentum: float = 0.9
    averaging: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step_size is not None:
            checks.positive_float("step_size", self.step_size)
        if self.batch_size is not None:
            checks.positive_int("batch_size", self.batch_size)
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"`momentum` must be in [0, 1), got {self.momentum}.")
        if self.averaging is not None and not 0.0 < self.averaging <= 1.0:
            raise ValueError(f"`averaging` must be in (0, 1], got {self.averaging}.")

    @classmethod
    def paper(cls, **settings: float) -> Self:
        """Return the published settings: batches of 500, βn = 50, ρ = 0.9."""
        return cls(**{"step_size": 50.0, "batch_size": 500, "momentum": 0.9, **settings})  # type: ignore[arg-type]

    def epochs_per_step(self, system: KernelSystem) -> float:
        return self._batch_size(system) / system.n

    def _batch_size(self, system: KernelSystem) -> int:
        if self.batch_size is None:
            return min(system.n, max(64, min(512, system.n // 100)))
        if self.batch_size > system.n:
            raise ValueError(f"`batch_size` must be at most n = {system.n}, got {self.batch_size}. Reduce it or use `Cholesky()`.")
        return self.batch_size

    def prepare(self, system: KernelSystem, generator: torch.Generator) -> SDDSettings:
        b = self._batch_size(system)
        step_size = self.step_size
        if step_size is None:
            largest = max(_largest_eigenvalue(system, b, generator) for _ in range(NUM_SAMPLED_BLOCKS))
            step_size = b / largest
        num_steps = self.max_epochs * math.ceil(system.n / b)
        averaging = min(1.0, 100.0 / num_steps) if self.averaging is None else self.averaging
        return SDDSettings(b, step_size / system.n, averaging)

    def init(self, system: KernelSystem, rhs: Tensor, initial: Tensor, gap: Tensor, prepared: SDDSettings) -> SDDState:
        norms = system.norm(gap)
        return SDDState(
            settings=prepared,
            A=initial.clone(),
            V=torch.zeros_like(initial),
            average=initial.clone(),
            step=torch.full_like(norms, prepared.step),
            batches=(),
            squares=torch.zeros_like(norms),
            residual=torch.full_like(norms, math.inf),
            best=norms,
            checkpoint=initial.clone(),
        )

    def step(self, system: KernelSystem, rhs: Tensor, state: SDDState, generator: torch.Generator) -> SDDState:
        n, b = system.n, state.settings.batch_size
        starts_epoch = not state.batches
        batches = state.batches or torch.randperm(n, generator=generator, device=generator.device).to(system.device).split(b)
        index, batches = batches[0], batches[1:]
        gap = system.rows_matmul(index, state.A + self.momentum * state.V).sub_(rhs[index])
        A, V, average = state.A, state.V, state.average  # owned by this solve and updated in place: they are large
        V.mul_(self.momentum).index_add_(0, index, gap * state.step, alpha=-n / b)
        A.add_(V)
        average.lerp_(A, state.settings.averaging)
        square, best = gap.square().sum(0), state.best
        if starts_epoch:
            # At a restart the batch shows the checkpoint itself, which may be worse than the extrapolated points that made it the
            # best. Without this, the smaller the step the surer the column would restart again.
            best = torch.where(state.residual.isinf(), torch.maximum(best, (n / b * square).sqrt()), best)
        state = replace(state, batches=batches, squares=state.squares + square, best=best)
        return state if batches else self._end_epoch(state)

    def _end_epoch(self, state: SDDState) -> SDDState:
        """Return the state after a whole epoch: columns that diverge go back to their best iterate with a smaller step."""
        residual = state.squares.sqrt()
        diverged = ~(residual <= GROWTH_ALLOWED * state.best)
        improved = residual < state.best
        checkpoint = torch.where(improved, state.A, state.checkpoint)
        return replace(
            state,
            A=torch.where(diverged, checkpoint, state.A),
            V=torch.where(diverged, 0.0, state.V),
            average=torch.where(diverged, checkpoint, state.average),
            step=torch.where(diverged, STEP_REDUCTION * state.step, state.step),
            squares=torch.zeros_like(residual),
            residual=torch.where(diverged, math.inf, residual),
            best=torch.where(improved, residual, state.best),
            checkpoint=checkpoint,
        )

    def estimate(self, state: SDDState) -> Tensor:
        # A run cut short in its first diverging window would average iterates that no check has seen.
        sound = torch.isfinite(state.average).all(0)
        return torch.where(sound, state.average, state.checkpoint)

    def residual_norm(self, state: SDDState) -> Tensor:
        return state.residual

    def describe(self, state: SDDState) -> str:
        factor = (state.step / state.settings.step).min().item() if state.step.numel() else 1.0
        return "" if factor == 1.0 else f"step size reduced to as little as {factor:.1e} of itself where the residual grew"


def sample_batch(n: int, batch_size: int, generator: torch.Generator) -> Tensor:
    """Return ``batch_size`` distinct indices below n, uniformly drawn."""
    return torch.randperm(n, generator=generator, device=generator.device)[:batch_size]


def _largest_eigenvalue(system: KernelSystem, batch_size: int, generator: torch.Generator) -> float:
    """Return λ_max of one sampled block of H by power iteration."""
    block = system.block(sample_batch(system.n, batch_size, generator).to(system.device))
    v = torch.ones(batch_size, dtype=system.dtype, device=system.device)
    eigenvalue = 0.0
    for _ in range(NUM_POWER_ITERATIONS):
        v = v / torch.linalg.vector_norm(v)
        w = block @ v
        eigenvalue, v = torch.dot(v, w).item(), w
    return eigenvalue
