"""Sketch-and-project: block coordinate descent with the block's own (approximate) inverse."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from surrogates import checks, memory
from surrogates.operators.rates import factorisation_advantage
from surrogates.solvers.blocks import DeterminantalSampler, LeverageSampler, RowSampler
from surrogates.solvers.cells import Cells
from surrogates.solvers.epochs import STEP_REDUCTION, EpochMonitor, describe_reduction
from surrogates.solvers.run import DIGIT, IterativeSolver, Start
from surrogates.solvers.solver import CLEAR_CHANGE
from surrogates.solvers.state import State
from surrogates.systems.preconditioners import (
    Exact,
    Identity,
    Nystrom,
    Preconditioner,
    largest_eigenvalue,
)
from surrogates.systems.system import KernelSystem, LinearSystem, Rows, require_blocks

CPU = torch.device("cpu")

Blocks = RowSampler | Cells | None  # what arranges or draws them; None for random parts

SAMPLERS: dict[str, Callable[[KernelSystem, torch.Generator], RowSampler]] = {
    "leverage": LeverageSampler.of,
    "dpp": DeterminantalSampler.of,
}


@dataclass
class Momentum(State):
    """Nesterov's two further sequences, and the parameters of each column, if accelerated."""

    V: Tensor  # (n, s)
    Z: Tensor  # (n, s), where the gradient is taken
    mu: Tensor  # (s,) assumed strong convexity

    @classmethod
    def start(cls, initial: Tensor, mu: float) -> Self:
        """Return the momentum of a run from ``initial`` (n, s), which has none."""
        return cls(initial.clone(), initial.clone(), initial.new_full(initial.shape[1:], mu))

    def restarted(self, columns: Tensor, W: Tensor, mu: float) -> Self:
        """Return the momentum whose marked ``columns`` (s,) begin again at W, with another μ."""
        return replace(
            self,
            V=torch.where(columns, W, self.V, out=self.V),
            Z=torch.where(columns, W, self.Z, out=self.Z),
            mu=torch.where(columns, mu, self.mu),
        )


@dataclass
class SketchAndProjectState(State):
    block_size: int
    sampler: RowSampler | None
    cells: Cells | None
    count: int
    W: Tensor  # (n, s) iterates
    momentum: Momentum | None
    average: Tensor | None  # (n, s) mean of the iterates of the second half of the budget
    step: Tensor  # (s,) 1, and less after a divergence
    shown: Tensor  # (s,) residual norm as the last block shows it, infinite before
    residual: Tensor  # (s,) the residual norm shown, or of cells the larger of the last two
    monitor: EpochMonitor


@dataclass(frozen=True)
class SketchAndProject(IterativeSolver[KernelSystem, Blocks, SketchAndProjectState]):
    """Solve (K + Σ) W = B by projecting onto one block of equations after the other.

    A step takes a block 𝓑 of ``block_size`` rows, its residual ``G = (H Z − B)_𝓑``, and moves the
    block's weights by ``D = η P⁻¹ G``, P the preconditioner of H_𝓑𝓑 and η = 1 / λ_max(P⁻¹ H_𝓑𝓑) by
    power iterations (1 for the exact inverse). With acceleration

        W ← Z − D,    V ← β V + (1 − β) Z − γ D,    Z ← α V + (1 − α) W    (the new V and W),

    β = 1 − √(μ/ν), γ = 1/√(μν), α = 1/(1 + γν); without, Z = W. A column whose residual grows goes
    back to its best iterate and goes on without acceleration, or, where it has none, with a quarter
    of its step.

    Args:
        preconditioner: ``Exact()`` (SAP), ``Nystrom(rank, sketch="gaussian")`` (ADASAP) or
            ``Identity()`` (ADASAP-I).
        block_size: b, at most n of which are used; ``None`` for √(n (s + 50)), where a block's
            factorisation costs less than a third of its product; 256 to n/3, at most 8192. On a
            CUDA device √a times as many, if factorising is a times as cheap beside a product as on
            a CPU, as measured there, but of sketched blocks, and where processes share the rows,
            which would measure on their own; p processes, which share products but factorise every
            block, take √p times fewer.
        blocks: ``"partition"``, the parts of a random partition, anew every epoch; ``"cells"``, of
            one into cells of neighbours with some rows from everywhere, where the kernel is rough,
            see :mod:`surrogates.solvers.cells`; ``"leverage"`` or ``"dpp"``, samples by ridge
            leverage scores or from a determinantal point process, as the theory has it.
        accelerated: use Nesterov's acceleration.
        mu: μ; ``None`` for the published smallest noise variance, with exact blocks for 1/(2ν), see
            :meth:`asap`. At most 1/ν is used: the scheme needs μν ≤ 1.
        nu: ν; ``None`` for n / b.
        tail_average: return the mean of the iterates of the second half of the budget, once that is
            reached.

    References:
        Rathore et al. (2025), "Turbocharging Gaussian Process Inference with Approximate
        Sketch-and-Project", Algorithms 1, 2, 6, 7.
        Differs: (1) blocks are the parts of a partition, at random or into cells of neighbours,
        anew every epoch, since accelerated steps on the same parts converge far more slowly; (2)
        the largest eigenvalue is a Rayleigh quotient, where the printed one is of normalised
        vectors; (3) the residual is taken at the extrapolated point Z; (4) Z is made of the new V;
        (5) divergence is undone, a column at a time.
    """

    preconditioner: Preconditioner = field(default_factory=Exact)
    block_size: int | None = None
    blocks: str = "partition"
    accelerated: bool = False
    mu: float | None = None
    nu: float | None = None
    tail_average: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fields(self, ["block_size"], checks.positive_int)
        checks.one_of("blocks", self.blocks, ("partition", "cells", *SAMPLERS))
        checks.fields(self, ["mu", "nu"], checks.positive_float)

    @classmethod
    def sap(cls, **settings: Any) -> Self:
        """Return SAP: exact blocks, no acceleration."""
        return cls(**settings)

    @classmethod
    def asap(cls, **settings: Any) -> Self:
        """Return accelerated SAP: exact blocks of neighbours, and Nesterov's acceleration with μ =
        c/ν, c = 1/2.

        A block step projects the error onto the complement of the block, in the norm of H, by a
        projection Π; the scheme contracts the squared error by 1 − √(μ/ν) a step where μ ≤
        λ_min(E[Π]) and E[Π E[Π]⁻¹ Π] ≤ ν E[Π]. A share 1/ν of the rows is visited a step, so ν =
        n/b and μ = c/ν with c ≤ 1: an epoch of ν steps contracts by exp(−√c). At c = 1 the scheme
        is SAP itself. A smooth kernel with little noise has λ_min ≈ σ², which is the published μ;
        but what such a scheme gains on the last of the spectrum it loses on all the rest, by a
        factor of up to 1/√σ². A column whose residual grows tenfold goes on as SAP.

        Raises:
            TypeError: for a setting that :class:`SketchAndProject` has not.
        References:
            Gower, Hanzely, Richtárik, Stich (2018), "Accelerated Stochastic Matrix Inversion", for
            the scheme and its rate.
        """
        return cls(**{"accelerated": True, "blocks": "cells", **settings})

    @classmethod
    def adasap(cls, **settings: Any) -> Self:
        """Return ADASAP as in the published experiments: Nyström sketches of rank 100,
        acceleration with μ = σ², and no average of iterates, which the theory alone has.
        """
        preconditioner = settings.pop("preconditioner", Nystrom(rank=100, sketch="gaussian"))
        return cls(**{"preconditioner": preconditioner, "accelerated": True, **settings})

    @classmethod
    def adasap_identity(cls, **settings: Any) -> Self:
        """Return ADASAP-I: ADASAP without a preconditioner."""
        return cls.adasap(**{"preconditioner": Identity(), **settings})

    def accepts(self, system: LinearSystem) -> KernelSystem:
        return require_blocks(system)

    def epochs_per_step(self, system: KernelSystem, num_columns: int) -> float:
        b = self._block_size(system, num_columns)
        return b / system.n + (b / system.n) ** 2

    @property
    def matrices_held(self) -> int:
        # B, W, its best, and what has stopped or the residual; V and Z; the average
        return 4 + 2 * self.accelerated + self.tail_average

    def bytes_of_a_step(
        self, n: int, num_columns: int, num_processes: int, dtype: torch.dtype
    ) -> int:
        """Return those of the order of all rows, and of a block: its sketch, on the way to singular
        vectors, and its matrix, a process's share of the rows where that fits the budget of kept
        ones.
        """
        b = self._block_size_of(n, num_columns, CPU, num_processes)
        if self.preconditioner.is_exact:
            block = 3 * b * b  # with a copy to factorise, and the factor
        else:
            block = math.ceil(b / num_processes) * b
            if block * dtype.itemsize > memory.default_budget(CPU):
                block = 0
            block += 8 * b * self.preconditioner.rank_for(b)
        return n * torch.long.itemsize + block * dtype.itemsize

    def prepare(self, system: KernelSystem, generator: torch.Generator) -> Blocks:
        if self.blocks == "partition":
            return None
        make = Cells.of if self.blocks == "cells" else SAMPLERS[self.blocks]
        return make(system, generator)

    def init(self, system: KernelSystem, start: Start[Blocks]) -> SketchAndProjectState:
        initial = start.initial
        norms = system.rows.norm(start.gap)
        block_size = self._block_size(system, initial.shape[1])
        cells = start.prepared if isinstance(start.prepared, Cells) else None
        if cells is not None and not cells.pay(block_size):
            cells = None
        momentum = None
        if self.accelerated:
            mu = min(self._mu(system, block_size), 1.0 / self._nu(system.n, block_size))
            momentum = Momentum.start(initial, mu)
        ones = torch.ones_like(norms)
        return SketchAndProjectState(
            block_size=block_size,
            sampler=start.prepared if isinstance(start.prepared, RowSampler) else None,
            cells=cells,
            count=0,
            W=initial.clone(),
            momentum=momentum,
            average=torch.zeros_like(initial) if self.tail_average else None,
            step=ones,
            shown=math.inf * ones,
            residual=math.inf * ones,
            monitor=EpochMonitor.start(initial, norms, system.n, window=1),
        )

    def step(
        self,
        system: KernelSystem,
        rhs: Tensor,
        state: SketchAndProjectState,
        generator: torch.Generator,
    ) -> SketchAndProjectState:
        cells = state.cells
        arrange = None if cells is None else cells.arranged
        index, monitor = state.monitor.deal(state.block_size, generator, arrange)
        if state.sampler is not None:
            index = state.sampler.draw(len(index), generator)
        Z = state.W if state.momentum is None else state.momentum.Z
        # A cell says nothing of the rows elsewhere
        num_shown = len(index) if cells is None else cells.num_from_everywhere(len(index))
        gap = system.rows_matmul(index, Z, minus=rhs)
        D = self._project(system.restrict(index), gap, generator).mul_(state.step)
        if state.sampler is not None:  # as its rows speak for all
            gap = gap * state.sampler.weights[index].to(gap.dtype).unsqueeze(1)
        monitor = monitor.observe(gap)
        # Rows not visited for longest show, if anything, more than the average row's residual
        shown = (system.n / num_shown * gap[:num_shown].square().sum(0)).sqrt()
        # Cells show few rows of the others, so that one block may be lucky
        residual = shown if cells is None else torch.maximum(shown, state.shown)
        if state.momentum is None:
            W = system.rows.add(state.W, index, D, alpha=-1.0)
            momentum = None
        else:
            W, momentum = accelerate(
                system.rows, state.W, state.momentum, index, D, self._nu(system.n, state.block_size)
            )
        steps = state.count + 1
        average = state.average
        num_averaged = steps - self._first_averaged(system, state.block_size) + 1
        if average is not None and num_averaged >= 1:
            average.lerp_(W, 1.0 / num_averaged)
        state = replace(
            state,
            count=steps,
            W=W,
            momentum=momentum,
            average=average,
            shown=shown,
            residual=residual,
            monitor=monitor,
        )
        return self._end_epoch(system, state) if monitor.is_due else state

    def _project(self, block: KernelSystem, gap: Tensor, generator: torch.Generator) -> Tensor:
        """Return η P⁻¹ G of a block, for its residual G = ``gap`` (b, s)."""
        apply = self.preconditioner(block, generator)
        if self.preconditioner.is_exact:
            return apply(gap)
        return apply(gap).mul_(1.0 / largest_eigenvalue(block, apply, generator))

    def _end_epoch(
        self, system: KernelSystem, state: SketchAndProjectState
    ) -> SketchAndProjectState:
        # Exact blocks lower the objective, though perhaps not the residual that samples estimate
        lenient = self.preconditioner.is_exact or state.sampler is not None
        monitor, diverged = state.monitor.judge(state.W, 1.0 / DIGIT if lenient else CLEAR_CHANGE)
        W = torch.where(diverged, monitor.checkpoint, state.W, out=state.W)
        momentum = state.momentum
        damped = diverged
        if momentum is not None:
            plain = 1.0 / self._nu(system.n, state.block_size)
            # Without acceleration they may need no smaller step
            damped = diverged & (momentum.mu >= plain)
            momentum = momentum.restarted(diverged, W, plain)
        step = torch.where(damped, STEP_REDUCTION * state.step, state.step)
        return replace(state, W=W, momentum=momentum, step=step, monitor=monitor)

    def _first_averaged(self, system: KernelSystem, block_size: int) -> int:
        return math.ceil(0.5 * self.max_epochs * system.n / block_size)

    def _block_size(self, system: KernelSystem, num_columns: int) -> int:
        # What processes measure may differ, and they have to take the same blocks
        is_measured = self.preconditioner.is_exact and not system.rows.is_shared
        device = system.device if is_measured else CPU
        return self._block_size_of(system.n, num_columns, device, system.rows.size)

    def _block_size_of(
        self, n: int, num_columns: int, device: torch.device, num_processes: int
    ) -> int:
        # Processes divide the work of a sketched block
        num_factors = num_processes if self.preconditioner.is_exact else 1
        default = default_block_size(n, num_columns, device, num_factors)
        return min(n, self.block_size or default)

    def _mu(self, system: KernelSystem, block_size: int) -> float:
        if self.mu is not None:
            return self.mu
        if self.preconditioner.is_exact:
            return 0.5 / self._nu(system.n, block_size)  # c = 1/2, see `asap`
        return system.smallest_noise.item()

    def _nu(self, n: int, block_size: int) -> float:
        return self.nu if self.nu is not None else n / block_size

    def estimate(self, system: KernelSystem, state: SketchAndProjectState) -> Tensor:
        if state.average is None or state.count < self._first_averaged(system, state.block_size):
            # Amid a divergence, the best iterate; `not <=` for a residual that is not a number
            sound = state.residual <= CLEAR_CHANGE * state.monitor.best
            if bool(sound.all()):
                return state.W
            return torch.where(sound, state.W, state.monitor.checkpoint)
        sound = system.rows.all(torch.isfinite(state.average))
        return torch.where(sound, state.average, state.W)

    def residual_norm(self, system: KernelSystem, state: SketchAndProjectState) -> Tensor:
        return state.residual

    def describe(self, state: SketchAndProjectState) -> str:
        n = state.monitor.order.num_rows
        smallest = n // math.ceil(n / state.block_size)
        notes = [describe_reduction(state.step)]
        if smallest < min(n, self.preconditioner.rank or 0):
            notes.append(f"`rank` is reduced to {smallest}, the size of the smallest block")
        return "; ".join(filter(None, notes))


def accelerate(
    rows: Rows, W: Tensor, momentum: Momentum, index: Tensor, D: Tensor, nu: float
) -> tuple[Tensor, Momentum]:
    """Return Nesterov's new W, V and Z for the block step D (b, s) on the rows ``index``."""
    V = momentum.V
    Z = momentum.Z
    mu = momentum.mu
    beta = 1.0 - (mu / nu).sqrt()
    gamma = 1.0 / (mu * nu).sqrt()
    alpha = 1.0 / (1.0 + gamma * nu)
    V = rows.add(V.mul_(beta).addcmul_(Z, 1.0 - beta), index, D * gamma, alpha=-1.0)
    W = rows.add(W.copy_(Z), index, D, alpha=-1.0)
    return W, replace(momentum, V=V, Z=torch.lerp(W, V, alpha, out=Z))


def default_block_size(
    n: int, num_columns: int, device: torch.device = CPU, num_processes: int = 1
) -> int:
    """Return b for n points and s columns: larger blocks need fewer epochs, until their
    factorisation, which every process makes, costs more than that saves of its part of a product.
    """
    advantage = factorisation_advantage(device)
    columns = num_columns + 50  # that cost what evaluating or reading a kernel entry does
    balanced = math.sqrt(advantage * n * columns / num_processes)
    return min(n, max(256, min(math.ceil(balanced), n // 3, 8192)))
