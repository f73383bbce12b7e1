"""The marginal likelihoods of many small data sets at once: one batched Cholesky, and gradients in
closed form.

Notation: X (b, m, d), y (b, m): b sets of m points; K (b, m, m) = k(X, X) + Σ; r = y − μ(X); α =
K⁻¹ r. For every set

    −log p(y) = ½ rᵀα + ½ log|K| + ½ m log 2π,        ∂(−log p) = ½ tr[(K⁻¹ − α αᵀ) ∂K] + αᵀ ∂r.
"""

import math
from copy import copy, deepcopy
from typing import Any, Self

import gpytorch
import torch
from botorch.models import SingleTaskGP
from torch import Tensor

from surrogates.operators.forms import batched_cholesky, covariance_of, gaussian_nll
from surrogates.rules.limits import tasks_with_noise


class BatchedGP(gpytorch.Module):
    """The mean, kernel and noise of ``model``, a float64 copy, as a function of small sets of its
    data: ``index`` (b, m), each row of which is one set.

    Its parameters have the names that they have in the model; copies share the data.

    Attributes:
        X, y: (n, d), transformed, and (n,), standardised.
        tasks: (n,) of the data, if each task has a noise variance of its own.
        covariance: from a kernel like ``covar_module`` and X to k(X, X), see :func:`covariance_of`.
    """

    def __init__(self, model: SingleTaskGP):
        super().__init__()
        model.eval()  # the training inputs are then the transformed ones
        data = model.train_inputs[0], model.train_targets
        self.X, self.y = (part.detach().double() for part in data)
        parts = (model.mean_module, model.covar_module, model.likelihood)
        # At once: they may share parameters
        self.mean_module, self.covar_module, self.likelihood = deepcopy(parts)
        self.double().train()
        self.covariance = covariance_of(self.covar_module)
        self.tasks = tasks_with_noise(self.likelihood, self.X)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        memo |= {id(self.X): self.X, id(self.y): self.y}
        copied = memo[id(self)] = copy(self)
        copied.__dict__ = deepcopy(self.__dict__, memo)
        return copied

    @property
    def whole(self) -> Tensor:
        """The index (1, n) of all data as one set."""
        return torch.arange(len(self.y), device=self.y.device).unsqueeze(0)

    def noise(self, index: Tensor) -> Tensor:
        """Return the noise variances (b, m)."""
        noise: Tensor = self.likelihood.noise
        if self.tasks is not None:
            return noise[self.tasks[index]]
        return noise[index] if noise.numel() > 1 else noise.expand(index.shape)

    def residuals(self, index: Tensor) -> Tensor:
        """Return y − μ(X), (b, m)."""
        return self.y[index] - self.mean_module(self.X[index])

    def with_noise(self, index: Tensor) -> Tensor:
        """Return k(X, X) + Σ, (b, m, m)."""
        noise = torch.diag_embed(self.noise(index))
        return noise + self.covariance(self.covar_module, self.X[index])

    def negative_log_likelihood(self, index: Tensor) -> Tensor:
        """Return −log p(y) in nats, (b,)."""
        noise, residuals = torch.diag_embed(self.noise(index)), self.residuals(index)
        return gaussian_nll(noise + self.covariance(self.covar_module, self.X[index]), residuals)

    @torch.no_grad()
    def predict(self, Z: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the posterior means and variances (b, r) of the function at Z (b, r, d), of each
        set given its data alone.
        """
        m = index.shape[1]
        K = self.covariance(self.covar_module, torch.cat([self.X[index], Z], 1))
        factor = batched_cholesky(K[:, :m, :m] + torch.diag_embed(self.noise(index)))
        columns = torch.cat([K[:, :m, m:], self.residuals(index).unsqueeze(-1)], -1)
        whitened = torch.linalg.solve_triangular(factor, columns, upper=False)
        cross = whitened[..., :-1]
        mean = self.mean_module(Z) + (cross * whitened[..., -1:]).sum(-2)
        variance = K.diagonal(dim1=-2, dim2=-1)[:, m:] - cross.square().sum(-2)
        return mean, variance.clamp_min(0.0)

    @torch.no_grad()
    def leave_one_out(self, index: Tensor) -> Tensor:
        """Return the log predictive densities (b, m) of data, each given the others of its set."""
        errors, variance = self.leave_one_out_errors(index)
        return log_normal(errors, torch.zeros_like(errors), variance)

    @torch.no_grad()
    def leave_one_out_errors(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return by how much the data exceed their predictions, each from the others of its set,
        and the variances of these, the noise included, (b, m) each.

        With α = K⁻¹ r, datum i has the mean y_i − α_i / K⁻¹_ii and the variance 1 / K⁻¹_ii.
        """
        inverse = torch.cholesky_inverse(batched_cholesky(self.with_noise(index)))
        alpha = (inverse @ self.residuals(index).unsqueeze(-1)).squeeze(-1)
        variance = inverse.diagonal(dim1=-2, dim2=-1).reciprocal()
        return alpha * variance, variance

    @torch.no_grad()
    def write_to(self, model: SingleTaskGP) -> None:
        """Give ``model`` these hyperparameters."""
        others = dict(model.named_parameters())
        for name, parameter in self.named_parameters():
            others[name].copy_(parameter)


def log_normal(y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Return log N(y; mean, variance)."""
    return -0.5 * ((y - mean).square() / variance + variance.log() + math.log(2.0 * math.pi))
