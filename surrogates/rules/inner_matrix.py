"""What stands for the matrix F(θ), a sum over all data, in a step that sees a batch of them: SCGD's
average, or MINIMAX's variable.

Notation as in ``surrogates.rules.finite_objective``; a_t, b_t steps.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from surrogates import checks
from surrogates.rules.finite_features import WeightPosterior
from surrogates.rules.finite_objective import Batch, Objective


@dataclass(frozen=True)
class SCGD:
    """Stochastic compositional gradient descent: an average F̃ of the batches' F̂ stands for F(θ).

        F̃ ← (1 − b_t) F̃ + b_t F̂,    θ ← θ − a_t ∇ [ĝ + ⟨F̃⁻¹, F̂⟩],    b_t = tracking ·
        t^(−tracking_decay)

    Attributes:
        tracking: in (0, 1]. 0.1 as in the paper's recovery of known variances; its regressions have
            0.9 and no decay.
        tracking_decay: 0.2 as there.

    References:
        "Unbiased Stochastic Optimization for Gaussian Processes on Finite Dimensional RKHS",
        Algorithm 2. Differs: F̃ starts at F(θ).
    """

    tracking: float = 0.1
    tracking_decay: float = 0.2

    def __post_init__(self) -> None:
        if checks.fraction("tracking", self.tracking) == 0.0:
            raise ValueError(f"`tracking` must be above 0, got {self.tracking}.")
        checks.fraction("tracking_decay", self.tracking_decay)


@dataclass(frozen=True)
class Minimax:
    """Stochastic descent and ascent: a matrix A stands for F(θ), and a matrix B, ‖B‖ ≤ 1, for the
    direction in which they differ.

        min over θ, A ⪰ σ² I, max over B of    g(θ) + log|A| + μ ⟨B, A − F(θ)⟩ / ‖A‖

    Attributes:
        penalty: μ. 1 as in the paper's regressions; it was unstable above 1000 there.
        penalty_growth: factor of μ from a stage to the next, at least 1.
        num_stages: of equally many steps.
        dual_step: b μ, of B's ascent, whose gradient has the factor μ. The paper's recovery has b =
            4e-4 and μ up to 1000.
        pace: of A's descent, relative to that of the rest. If A is as fast, it follows F(θ)
            wherever that goes, before B has grown.

    References:
        "Unbiased Stochastic Optimization for Gaussian Processes on Finite Dimensional RKHS",
        Algorithm 1. Differs: (1) A starts at F(θ); (2) descent is in S⁻¹ A S⁻ᵀ, S Sᵀ the F(θ) of
        the start: the entries of A are of the order of n, its gradient of 1 / n; (3) A has a pace
            of its own; (4) the constraints of the hyperparameters are met by their coordinates, and
            A is not bounded above.
    """

    penalty: float = 1.0
    penalty_growth: float = 1.0
    num_stages: int = 1
    dual_step: float = 0.1
    pace: float = 0.1

    def __post_init__(self) -> None:
        if self.penalty != 0:
            checks.positive_float("penalty", self.penalty)
        if checks.positive_float("penalty_growth", self.penalty_growth) < 1.0:
            raise ValueError(f"`penalty_growth` must be at least 1, got {self.penalty_growth}.")
        checks.positive_int("num_stages", self.num_stages)
        checks.positive_float("dual_step", self.dual_step)
        checks.positive_float("pace", self.pace)


class Tracker:
    """SCGD's F̃, in place of F(θ).

    Attributes:
        tracked: F̃ (F, F).
        parameters: further ones of the optimizer: none.
        pace: of their steps.
    """

    parameters: tuple[torch.nn.Parameter, ...] = ()
    pace = 1.0
    tracked: Tensor

    def __init__(self, settings: SCGD, objective: Objective, law: WeightPosterior):
        self.settings = settings
        self.objective = objective
        self.restart(law)

    def loss(self, batch: Batch, step: int) -> tuple[Tensor, float]:
        """Return what to differentiate, and an estimate of the log marginal likelihood."""
        inner = self.objective.inner(batch)
        self.tracked = torch.lerp(
            self.tracked,
            inner.detach(),
            self.settings.tracking * step**-self.settings.tracking_decay,
        )
        L, info = torch.linalg.cholesky_ex(self.tracked)
        L = L if info == 0 else torch.full_like(L, math.nan)
        data_term = self.objective.data_term(batch)
        value = data_term.item() + 2.0 * L.diagonal().log().sum().item()
        return data_term + (torch.cholesky_inverse(L) * inner).sum(), self.objective.log_likelihood(
            value
        )

    def after_step(self, drawn: Iterator[Batch], step: int) -> None:
        """Do nothing: F̃ moves with the loss."""

    def restart(self, law: WeightPosterior) -> None:
        """Give F̃ the exact value that belongs to ``law``."""
        self.tracked = self.objective.exact_inner(law)


class Saddle:
    """MINIMAX's A and B, in place of F(θ).

    Attributes:
        whitener: S (F, F), S Sᵀ the F(θ) of the start.
        whitened: S⁻¹ A S⁻ᵀ (F, F), the optimizer's.
        direction: B (F, F).
    """

    def __init__(
        self, settings: Minimax, objective: Objective, law: WeightPosterior, num_steps: int
    ):
        self.settings = settings
        self.objective = objective
        self.num_steps = num_steps
        self.pace = settings.pace
        self.whitener = torch.linalg.cholesky(objective.exact_inner(law))
        self.whitened = torch.nn.Parameter(torch.eye(len(self.whitener)).to(self.whitener))
        self.parameters = (self.whitened,)
        self.direction = torch.zeros_like(self.whitener)

    @property
    def A(self) -> Tensor:
        return self.whitener @ self.whitened @ self.whitener.T

    def penalty(self, step: int) -> float:
        """Return μ, which grows from stage to stage."""
        stage = (step - 1) * self.settings.num_stages // self.num_steps
        return self.settings.penalty * self.settings.penalty_growth**stage

    def loss(self, batch: Batch, step: int) -> tuple[Tensor, float]:
        """Return what to differentiate, and an estimate of the log marginal likelihood."""
        A = self.A
        constraint = (self.direction * (A - self.objective.inner(batch))).sum() / A.norm()
        loss = self.objective.data_term(batch) + torch.logdet(A) + self.penalty(step) * constraint
        return loss, self.objective.log_likelihood(loss.item())

    @torch.no_grad()
    def after_step(self, drawn: Iterator[Batch], step: int) -> None:
        """Bring A back to A ⪰ σ² I, and let B ascend on another batch."""
        batch = next(drawn)
        values, vectors = torch.linalg.eigh(0.5 * (self.A + self.A.T))
        A = (vectors * values.clamp_min(batch.noise.item())) @ vectors.T
        half = torch.linalg.solve_triangular(self.whitener, A, upper=False)
        self.whitened.copy_(torch.linalg.solve_triangular(self.whitener, half.T, upper=False))
        self.direction += self.settings.dual_step * (A - self.objective.inner(batch)) / A.norm()
        self.direction /= self.direction.norm().clamp_min(1.0)

    def restart(self, law: WeightPosterior) -> None:
        """Do nothing: A is a variable of its own."""
