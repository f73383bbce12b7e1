"""The marginal likelihood of kernels with finitely many features as a sum over data, and the
logarithm of a determinant of such a sum.

Notation: n data, batches of b; φ_i (F,) features with the outputscale, r_i = y_i − μ(x_i), θ = (w,
hyperparameters), σ² = σ²_min + exp β,

    ℓ(θ) = Σ g_i + log|F(θ)|,   g_i = (φ_iᵀ w − r_i)² / σ² + ‖w‖² / n + (n − F) log σ² / n,   F(θ) =
    Σ F_i,   F_i = φ_i φ_iᵀ + σ² I / n,

whose minimum over the weights w is −2 log p(y) − n log 2π. Hats are a batch's estimates: ĝ = (n /
b) Σ g_i, F̂ = (n / b) Σ F_i. Known noise variances σ_i² are a matter of units: φ_i / σ_i and r_i /
σ_i have the noise 1.
"""

import math
from typing import NamedTuple

import torch
from botorch.models import SingleTaskGP
from torch import Tensor

from surrogates.rules.finite_features import FeatureBasis, WeightPosterior, solve_weight_posterior
from surrogates.rules.hyperparameters import log_prior, training_data


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
        self.X, self.y = training_data(model)
        self.model = model
        self.basis = FeatureBasis(model.covar_module, (self.X.shape[1], num_features))
        self.unscaled_weights = torch.nn.Parameter(self.y.new_zeros(num_features))

    @property
    def weights(self) -> Tensor:
        """w (F,)."""
        return self.unscaled_weights / self._scale

    @property
    def _scale(self) -> Tensor:
        scale: Tensor = self.model.covar_module.outputscale.sqrt()
        return scale

    @property
    def noise(self) -> Tensor:
        """σ², a scalar, or the known (n,) variances."""
        noise: Tensor = self.model.likelihood.noise
        return noise.reshape(()) if noise.numel() == 1 else noise.reshape(-1)

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
        return (len(self.X) / b) * features.T @ features + batch.noise * torch.eye(F).to(features)

    def exact_inner(self, law: WeightPosterior) -> Tensor:
        """Return F(θ) = σ² L Lᵀ in float64."""
        noise = self.noise.detach().double()
        P = law.factor @ law.factor.T
        return P if noise.ndim else noise * P

    def log_likelihood(self, loss: float) -> float:
        """Return log p(y), with priors, in nats, for an estimate ``loss`` of ℓ."""
        # Of the residuals, where variances are known
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
