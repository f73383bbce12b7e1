"""Stochastic gradient descent on the primal objective, with the noise in the regulariser."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from surrogates import checks
from surrogates.features import RandomFeatures
from surrogates.operators.tiles import StationaryTiles
from surrogates.solvers.base import IterativeSolver, Start, State
from surrogates.solvers.epochs import EpochMonitor
from surrogates.systems import KernelSystem

STEP_REDUCTION = 0.25
SHORTEST_WINDOW = 10
DEFAULT_BATCH = 512


@dataclass(frozen=True)
class SGDState(State):
    count: int
    A: Tensor  # (n, s) iterates
    V: Tensor  # (n, s) velocities
    average: Tensor  # (n, s) mean of the iterates
    noise_draw: Tensor  # (n, s) ε, zeros if B came in one part
    step: Tensor  # (s,) step size
    monitor: EpochMonitor


@dataclass(frozen=True)
class SGD(IterativeSolver):
    """Solve (K + Σ) W = f + ε by minimising, for every column, ``(f − K a)ᵀ Σ⁻¹ (f − K a) + (a − Σ⁻¹ε)ᵀ K (a − Σ⁻¹ε)``.

    The gradient, times half the mean noise σ² and over n, is estimated from a batch of rows and from fresh random features Φ:

        g = (1/b) K_bᵀ σ² Σ_b⁻¹ (K_b a − f_b)  +  (1/n) Φ Φᵀ σ² (a − Σ⁻¹ ε)

    The noise ε stands in the regulariser, not among the batch's targets, which lowers the variance; given B in one part, f = B and ε = 0.
    Steps are Nesterov's, each column's g clipped to norm ``clip``; the mean of the iterates is returned. A column whose residual grows
    returns to its best iterate and goes on with a quarter of its step.

    Args:
        step_size: of a step along g; the paper's is 0.5 for the mean and 0.1 for samples.
        batch_size: b; ``None`` for 512, at most n.
        num_features: of Φ, drawn anew at every step.
        momentum: in [0, 1).
        clip: largest norm of a column's g.

    Raises:
        ValueError: when solving, if ``batch_size`` exceeds n or the kernel has no random features.
    References:
        Lin et al. (2023), "Sampling from Gaussian Process Posteriors using Stochastic Gradient Descent", Section 3 and Appendix A.
        Differs: (1) the norm is clipped a column at a time, so that columns do not influence each other; (2) a vector of noise
        variances; (3) batches are the parts of a random partition; (4) divergence is undone.
    """

    splits_targets: ClassVar[bool] = True

    step_size: float = 0.5
    batch_size: int | None = None
    num_features: int = 100
    momentum: float = 0.9
    clip: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive_float("step_size", self.step_size)
        if self.batch_size is not None:
            checks.positive_int("batch_size", self.batch_size)
        checks.positive_int("num_features", self.num_features)
        checks.positive_float("clip", self.clip)
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"`momentum` must be in [0, 1), got {self.momentum}.")

    def epochs_per_step(self, system: KernelSystem) -> float:
        return self._batch_size(system) / system.n

    def _batch_size(self, system: KernelSystem) -> int:
        if self.batch_size is None:
            return min(DEFAULT_BATCH, system.n)
        if self.batch_size > system.n:
            raise ValueError(f"`batch_size` must be at most n = {system.n}, got {self.batch_size}. Reduce it or use `Cholesky()`.")
        return self.batch_size

    def init(self, system: KernelSystem, start: Start) -> SGDState:
        initial, norms = start.initial, system.norm(start.gap)
        return SGDState(
            count=0,
            A=initial.clone(),
            V=torch.zeros_like(initial),
            average=initial.clone(),
            noise_draw=torch.zeros_like(initial) if start.noise_draw is None else start.noise_draw,
            step=torch.full_like(norms, self.step_size),
            monitor=EpochMonitor.start(initial, norms, window=SHORTEST_WINDOW),
        )

    def step(self, system: KernelSystem, rhs: Tensor, state: SGDState, generator: torch.Generator) -> SGDState:
        index, monitor = state.monitor.deal(self._batch_size(system), generator)
        A, V, average, noise_draw = state.A, state.V, state.average, state.noise_draw
        point = A + self.momentum * V
        gradient, gap = self.gradient(system, rhs, noise_draw, point, index, generator)
        monitor = monitor.observe(gap)
        gradient.mul_((self.clip / system.norm(gradient)).clamp_max(1.0) * state.step)
        V.mul_(self.momentum).sub_(gradient)
        A.add_(V)
        count = state.count + 1
        average.lerp_(A, 1.0 / count)
        if not monitor.is_due:
            return replace(state, count=count, monitor=monitor)
        monitor, diverged = monitor.judge(A)
        return replace(
            state,
            count=count,
            A=torch.where(diverged, monitor.checkpoint, A),
            V=torch.where(diverged, 0.0, V),
            average=torch.where(diverged, monitor.checkpoint, average),
            step=torch.where(diverged, STEP_REDUCTION * state.step, state.step),
            monitor=monitor,
        )

    def gradient(
        self, system: KernelSystem, rhs: Tensor, noise_draw: Tensor, point: Tensor, index: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return the stochastic gradient g (n, s) at ``point``, and the residuals (K + Σ) a − B of the batch's rows (b, s)."""
        noise = system.noise.expand(system.n).unsqueeze(1)
        scale = noise.mean()
        rows = system.kernel_rows(index)
        misfit = rows @ point - (rhs[index] - noise_draw[index])
        gap = misfit + noise[index] * point[index] - noise_draw[index]
        regulariser = self._prior_product(system, scale * (point - noise_draw / noise), generator) / system.n
        return torch.addmm(regulariser, rows.T, misfit * (scale / noise[index]), alpha=1.0 / len(index)), gap

    def _prior_product(self, system: KernelSystem, M: Tensor, generator: torch.Generator) -> Tensor:
        """Return Φ Φᵀ M, an unbiased estimate of K M, for fresh features Φ (n, num_features)."""
        tiles = system.kernel.tiles
        if not isinstance(tiles, StationaryTiles):
            raise ValueError("`kernel` must be RBFKernel or MaternKernel, alone or in ScaleKernel, for SGD's random features. Use `CG()`.")
        X = tiles.X1
        features = RandomFeatures.draw(tiles.kernel, X.shape[1], self.num_features, generator=generator, like=X)(X)
        return features @ (features.T @ M)

    def estimate(self, state: SGDState) -> Tensor:
        sound = torch.isfinite(state.average).all(0)
        return torch.where(sound, state.average, state.monitor.checkpoint)

    def residual_norm(self, state: SGDState) -> Tensor:
        return state.monitor.residual

    def describe(self, state: SGDState) -> str:
        factor = (state.step / self.step_size).min().item() if state.step.numel() else 1.0
        return "" if factor == 1.0 else f"step size reduced to as little as {factor:.1e} of itself where the residual grew"
