"""Sketch-and-project: block coordinate descent with the block's own (approximate) inverse."""

import math
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from surrogates import checks
from surrogates.preconditioners import Apply, Exact, Identity, Nystrom, Preconditioner
from surrogates.solvers.base import IterativeSolver, Start, State
from surrogates.solvers.epochs import GROWTH_ALLOWED, EpochMonitor
from surrogates.systems import KernelSystem

NUM_POWER_ITERATIONS = 10
STEP_REDUCTION = 0.5
CONVEXITY_INCREASE = 10.0
LARGEST_DEFAULT_BLOCK = 4096


@dataclass(frozen=True)
class Momentum(State):
    """Nesterov's two further sequences, and the parameters of each column: none of this exists without acceleration."""

    V: Tensor  # (n, s)
    Z: Tensor  # (n, s), where the gradient is taken
    mu: Tensor  # (s,) assumed strong convexity


@dataclass(frozen=True)
class SketchAndProjectState(State):
    block_size: int
    count: int
    W: Tensor  # (n, s) iterates
    momentum: Momentum | None
    average: Tensor | None  # (n, s) mean of the iterates of the second half of the budget
    step: Tensor  # (s,) 1, and less after a divergence
    monitor: EpochMonitor


@dataclass(frozen=True)
class SketchAndProject(IterativeSolver):
    """Solve (K + Σ) W = B by projecting onto one block of equations after the other.

    A step takes a block 𝓑 of ``block_size`` rows, its residual ``G = (H Z − B)_𝓑``, and moves the block's weights by ``D = η P⁻¹ G``, P the
    preconditioner of H_𝓑𝓑 and η = 1 / λ_max(P⁻¹ H_𝓑𝓑) by power iterations (1 for the exact inverse). With acceleration

        W ← Z − D,    V ← β V + (1 − β) Z − γ D,    Z ← α V + (1 − α) W    (the new V and W),

    β = 1 − √(μ/ν), γ = 1/√(μν), α = 1/(1 + γν); without, Z = W. A column whose residual grows goes back to its best iterate, with half
    its step and ten times its μ.

    Args:
        preconditioner: ``Exact()`` (SAP), ``Nystrom(rank, sketch="gaussian")`` (ADASAP) or ``Identity()`` (ADASAP-I).
        block_size: b; ``None`` for √(6 n s), where a block's factorisation costs what its product does, at most 4096.
        accelerated: use Nesterov's acceleration.
        mu: μ; ``None`` for the smallest noise variance. At most 1/ν is used: the scheme needs μν ≤ 1.
        nu: ν; ``None`` for n / b.
        tail_average: return the mean of the iterates of the second half of the budget, once that is reached.

    Raises:
        ValueError: when solving, if ``block_size`` exceeds n, or the preconditioner's rank the block.
    References:
        Rathore et al. (2025), "Turbocharging Gaussian Process Inference with Approximate Sketch-and-Project", Algorithms 1, 2, 6, 7.
        Differs: (1) blocks are the parts of a random partition, anew every epoch; (2) the largest eigenvalue is a Rayleigh quotient,
        where the printed one is of normalised vectors; (3) the residual is taken at the extrapolated point Z; (4) Z is made of the new
        V; (5) divergence is undone, a column at a time.
    """

    preconditioner: Preconditioner = field(default_factory=Exact)
    block_size: int | None = None
    accelerated: bool = False
    mu: float | None = None
    nu: float | None = None
    tail_average: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block_size is not None:
            checks.positive_int("block_size", self.block_size)
        for name in ("mu", "nu"):
            if getattr(self, name) is not None:
                checks.positive_float(name, getattr(self, name))

    @classmethod
    def sap(cls, **settings: Any) -> Self:
        """Return SAP: exact blocks, no acceleration."""
        return cls(**settings)

    @classmethod
    def adasap(cls, **settings: Any) -> Self:
        """Return ADASAP with the published settings: Nyström sketches of rank 100, acceleration with μ = σ², tail averaging."""
        preconditioner = settings.pop("preconditioner", Nystrom(rank=100, sketch="gaussian"))
        return cls(**{"preconditioner": preconditioner, "accelerated": True, "tail_average": True, **settings})

    @classmethod
    def adasap_identity(cls, **settings: Any) -> Self:
        """Return ADASAP-I: ADASAP without a preconditioner."""
        return cls.adasap(preconditioner=Identity(), **settings)

    def epochs_per_step(self, system: KernelSystem) -> float:
        b = min(self.block_size or LARGEST_DEFAULT_BLOCK, system.n)
        return b / system.n + (b / system.n) ** 2

    def init(self, system: KernelSystem, start: Start) -> SketchAndProjectState:
        initial, norms = start.initial, system.norm(start.gap)
        block_size = self._block_size(system.n, initial.shape[1])
        momentum = None
        if self.accelerated:
            mu = self.mu if self.mu is not None else system.noise.min().item()
            momentum = Momentum(initial.clone(), initial.clone(), torch.full_like(norms, min(mu, 1.0 / self._nu(system.n, block_size))))
        average = torch.zeros_like(initial) if self.tail_average else None
        monitor = EpochMonitor.start(initial, norms)
        return SketchAndProjectState(block_size, 0, initial.clone(), momentum, average, torch.ones_like(norms), monitor)

    def step(self, system: KernelSystem, rhs: Tensor, state: SketchAndProjectState, generator: torch.Generator) -> SketchAndProjectState:
        index, monitor = state.monitor.deal(state.block_size, generator)
        Z = state.W if state.momentum is None else state.momentum.Z
        gap = system.rows_matmul(index, Z).sub_(rhs[index])
        monitor = monitor.observe(gap)
        block = system.restrict(index)
        apply = self.preconditioner(block, generator)
        D = apply(gap).mul_(state.step * self._step_size(block, apply, generator))
        if state.momentum is None:
            W, momentum = state.W.index_add_(0, index, D, alpha=-1.0), None
        else:
            W, momentum = accelerate(state.momentum, index, D, self._nu(system.n, state.block_size))
        count = state.count + 1
        state = replace(state, count=count, W=W, momentum=momentum, average=self._averaged(system, state, W, count), monitor=monitor)
        return self._end_epoch(system, state) if monitor.is_due else state

    def _end_epoch(self, system: KernelSystem, state: SketchAndProjectState) -> SketchAndProjectState:
        descends = state.momentum is None  # every block step lowers the objective
        monitor, diverged = state.monitor.judge(state.W, math.inf if descends else GROWTH_ALLOWED)
        W = torch.where(diverged, monitor.checkpoint, state.W)
        momentum = state.momentum
        if momentum is not None:
            largest = 1.0 / self._nu(system.n, state.block_size)
            momentum = Momentum(
                V=torch.where(diverged, W, momentum.V),
                Z=torch.where(diverged, W, momentum.Z),
                mu=torch.where(diverged, (CONVEXITY_INCREASE * momentum.mu).clamp_max(largest), momentum.mu),
            )
        step = torch.where(diverged, STEP_REDUCTION * state.step, state.step)
        return replace(state, W=W, momentum=momentum, step=step, monitor=monitor)

    def _averaged(self, system: KernelSystem, state: SketchAndProjectState, W: Tensor, count: int) -> Tensor | None:
        """Return the running mean of the iterates since half of the budget."""
        number = count - self._first_averaged(system, state.block_size) + 1
        return state.average if state.average is None or number < 1 else state.average.lerp_(W, 1.0 / number)

    def _first_averaged(self, system: KernelSystem, block_size: int) -> int:
        return math.ceil(0.5 * self.max_epochs * system.n / block_size)

    def _block_size(self, n: int, num_columns: int) -> int:
        if self.block_size is None:
            block_size = min(n, LARGEST_DEFAULT_BLOCK, math.ceil(math.sqrt(6.0 * n * num_columns)))
        elif self.block_size > n:
            raise ValueError(f"`block_size` must be at most n = {n}, got {self.block_size}. Reduce it or use `Cholesky()`.")
        else:
            block_size = self.block_size
        smallest = n // math.ceil(n / block_size)
        rank = getattr(self.preconditioner, "rank", None)
        if rank is not None and rank > smallest:
            raise ValueError(
                f"`rank` must be at most {smallest}, the size of the smallest block, got {rank}. Reduce it or enlarge the blocks."
            )
        return block_size

    def _nu(self, n: int, block_size: int) -> float:
        return self.nu if self.nu is not None else n / block_size

    def _step_size(self, block: KernelSystem, apply: Apply, generator: torch.Generator) -> float:
        return 1.0 if isinstance(self.preconditioner, Exact) else 1.0 / largest_eigenvalue(block, apply, generator)

    def estimate(self, state: SketchAndProjectState) -> Tensor:
        if state.average is None or not bool(state.average.any()):
            return state.W
        sound = torch.isfinite(state.average).all(0)
        return torch.where(sound, state.average, state.W)

    def residual_norm(self, state: SketchAndProjectState) -> Tensor:
        return state.monitor.residual

    def describe(self, state: SketchAndProjectState) -> str:
        smallest = state.step.min().item() if state.step.numel() else 1.0
        return "" if smallest == 1.0 else f"step size reduced to as little as {smallest:.1e} of itself where the residual grew"


def accelerate(momentum: Momentum, index: Tensor, D: Tensor, nu: float) -> tuple[Tensor, Momentum]:
    """Return the new W, V and Z of Nesterov's scheme for the block step D (b, s) on the rows ``index``."""
    V, Z, mu = momentum.V, momentum.Z, momentum.mu
    beta, gamma = 1.0 - (mu / nu).sqrt(), 1.0 / (mu * nu).sqrt()
    alpha = 1.0 / (1.0 + gamma * nu)
    V = V.mul_(beta).addcmul_(Z, 1.0 - beta).index_add_(0, index, D * gamma, alpha=-1.0)
    W = Z.index_add(0, index, D, alpha=-1.0)
    return W, Momentum(V, torch.lerp(W, V, alpha), mu)


def largest_eigenvalue(block: KernelSystem, apply: Apply, generator: torch.Generator) -> float:
    """Return λ_max(P⁻¹ H) by power iterations: the Rayleigh quotient of P⁻¹H in the inner product of H, before any normalisation."""
    v = torch.randn(block.n, 1, generator=generator, device=generator.device, dtype=block.dtype).to(block.device)
    eigenvalue = 1.0
    for _ in range(NUM_POWER_ITERATIONS):
        Hv = block @ v
        PHv = apply(Hv)
        eigenvalue = (block.dot(Hv, PHv) / block.dot(v, Hv)).item()
        v = PHv / block.norm(PHv)
    return eigenvalue
