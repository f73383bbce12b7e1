"""The BoTorch posterior made of sample paths.

With S paths f_s and the exact posterior mean m, the root A = [f_1 − m | … | f_S − m] / √S (q, S) gives the covariance A Aᵀ: samples are
m + A z with z ~ N(0, I_S), and no q × q matrix is ever factorised. The deviations are taken about the mean's own solve, not about the
paths' average, which would lose a factor (S − 1) / S and correlate the two.
"""

import math

import torch
from botorch.posteriors.gpytorch import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import LinearOperator, RootLinearOperator
from torch import Tensor

from surrogates.paths import SamplePaths


def path_distribution(paths: SamplePaths, X: Tensor) -> MultivariateNormal:
    """Return the joint law at X (..., q, d): the exact mean, and the covariance of the paths about it."""
    mean = paths.mean(X)
    deviations = (paths(X) - mean) / math.sqrt(paths.num_samples)
    return MultivariateNormal(mean, RootLinearOperator(deviations.movedim(0, -1)))


def affine_posterior(distribution: MultivariateNormal, offset: float, scale: float) -> GPyTorchPosterior:
    """Return the posterior of ``offset + scale · f``; a root covariance keeps its form, so that sampling stays in O(q S)."""
    covariance: LinearOperator = distribution.lazy_covariance_matrix
    if isinstance(covariance, RootLinearOperator):
        covariance = RootLinearOperator(scale * covariance.root.to_dense())
    else:
        covariance = covariance * torch.as_tensor(scale**2).to(distribution.mean)
    return GPyTorchPosterior(MultivariateNormal(offset + scale * distribution.mean, covariance))
