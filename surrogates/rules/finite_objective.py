"""The marginal likelihood of kernels with finitely many features as a sum over data and the
logarithm of a determinant of such a sum; and what stands for the matrix F(θ) of that determinant in
a step that sees a batch of data: SCGD's average, or MINIMAX's variable.

Notation: n data, batches of b; φ_i (F,) features with the outputscale, r_i = y_i − μ(x_i), θ = (w,
hyperparameters), σ² = σ²_min + exp β,

    ℓ(θ) = Σ g_i + log|F(θ)|,   g_i = (φ_iᵀ w − r_i)² / σ² + ‖w‖² / n + (n − F) log σ² / n,   F(θ) =
    Σ F_i,   F_i = φ_i φ_iᵀ + σ² I / n,

whose minimum over the weights w is −2 log p(y) − n log 2π. Hats are a batch's estimates: ĝ = (n /
b) Σ g_i, F̂ = (n / b) Σ F_i; a_t and b_t steps. Known noise variances σ_i² are a matter of units:
φ_i / σ_i and r_i / σ_i have the noise 1.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from botorch.models import SingleTaskGP
from torch import Tensor

from surrogates import checks
from surrogates.rules.hyperparameters import data_of_parts, log_prior
from surrogates.rules.limits import check_no_noise_of_tasks, noise_at
from surrogates.rules.weight_space import FeatureBasis, WeightPosterior, solve_weight_posterior


class Batch(NamedTuple):
    """Some data in the units in which their noise is equal.

    Attributes:
        features: (b, F).
        residuals: (b,).
        noise: σ², a scalar.
    """

    features: Tensor
    residuals: Tensor
    noise: Tensor


class Objective:
    """ℓ as a function of the weights and of the hyperparameters of a model.

    Attributes:
        X, y: (n, d), transformed, and (n,), standardised.
        unscaled_weights: v = σ_f w (F,), of the features without the outputscale σ_f²: what the
            optimizer moves in place of w. At fixed w, σ_f could not move without making the fit
            worse, and its gradient had the noise of the batch's residuals.
    """

    def __init__(self, model: SingleTaskGP, num_features: int):
        self.X, self.y = data_of_parts(model)
        self.model = model
        if self.noise.requires_grad:
            check_no_noise_of_tasks(model.likelihood)
        self.basis = FeatureBasis(model.covar_module, (self.X.shape[1], num_features))
        self.unscaled_weights = torch.nn.Parameter(self.y.new_zeros(num_features))

    @property
    def weights(self) -> Tensor:
        """w (F,)."""
        return self.unscaled_weights / self._scale

    @property
    def _scale(self) -> Tensor:
        return self.model.covar_module.outputscale.sqrt()

    @property
    def noise(self) -> Tensor:
        """σ², a scalar, or the known (n,) variances."""
        return noise_at(self.model.likelihood, self.X)

    def batch(self, rows: Tensor | slice) -> Batch:
        features = self.basis(self.X[rows])
        residuals = self.y[rows] - self.model.mean_module(self.X[rows])
        noise = self.noise
        if not noise.ndim:
            return Batch(features, residuals, noise)
        std = noise[rows].sqrt()
        return Batch(features / std.unsqueeze(1), residuals / std, noise.new_ones(()))

    def data_term(self, batch: Batch) -> Tensor:
        """Return ĝ, less twice the logarithm of the hyperparameters' prior."""
        n = len(self.X)
        b, F = batch.features.shape
        weights = self.weights
        squares = (batch.features @ weights - batch.residuals).square().sum()
        prior = log_prior(self.model)
        return (
            (n / b) * squares / batch.noise
            + weights.square().sum()
            + (n - F) * batch.noise.log()
            - 2.0 * prior
        )

    def inner(self, batch: Batch) -> Tensor:
        """Return F̂ (F, F) in float64."""
        b, F = batch.features.shape
        features = batch.features.double()
        identity = torch.eye(F, device="cpu").to(features)
        return (len(self.X) / b) * features.T @ features + batch.noise * identity

    def exact_inner(self, law: WeightPosterior) -> Tensor:
        """Return F(θ) = σ² L Lᵀ in float64."""
        noise = self.noise.detach().double()
        P = law.factor @ law.factor.T
        return P if noise.ndim else noise * P

    def log_likelihood(self, loss: float) -> float:
        """Return log p(y), with priors, in nats, for an estimate ``loss`` of ℓ."""
        # The units of the residuals, where variances are known
        units = self.noise.log().sum().item() if self.noise.ndim else 0.0
        return -0.5 * (loss + units + len(self.X) * math.log(2.0 * math.pi))

    @torch.no_grad()
    def evaluate(self) -> tuple[float, WeightPosterior]:
        """Return log p(y), with priors, and the law of the weights, whose mean w becomes.

        Raises:
            ValueError: if a feature is not finite.
        """
        law = solve_weight_posterior(
            self.basis, self.X, self.y - self.model.mean_module(self.X), self.noise
        )
        self.unscaled_weights.copy_(self._scale * law.mean)
        return law.log_likelihood + float(log_prior(self.model)), law


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
        checks.fields(self, ["tracking", "tracking_decay"], checks.fraction)
        if self.tracking == 0.0:
            raise ValueError(f"`tracking` must be above 0, got {self.tracking}.")


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
            checks.fields(self, ["penalty"], checks.positive_float)
        checks.fields(self, ["penalty_growth", "dual_step", "pace"], checks.positive_float)
        if self.penalty_growth < 1.0:
            raise ValueError(f"`penalty_growth` must be at least 1, got {self.penalty_growth}.")
        checks.fields(self, ["num_stages"], checks.positive_int)


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
        share = self.settings.tracking * step**-self.settings.tracking_decay
        self.tracked = torch.lerp(self.tracked, inner.detach(), share)
        L, info = torch.linalg.cholesky_ex(self.tracked)
        L = L if info == 0 else torch.full_like(L, math.nan)
        data_term = self.objective.data_term(batch)
        value = data_term.item() + 2.0 * L.diagonal().log().sum().item()
        loss = data_term + (torch.cholesky_inverse(L) * inner).sum()
        return loss, self.objective.log_likelihood(value)

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
        self.whitened = torch.nn.Parameter(
            torch.eye(len(self.whitener), device="cpu").to(self.whitener)
        )
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
