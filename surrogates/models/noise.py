"""Noise variances: the likelihood of a given one, and what known ones must be."""

from typing import Any

import gpytorch
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from torch import Tensor

from surrogates import checks

# In standardised units, what stands for no noise: GPyTorch's own bound, before any change to it
LEAST_NOISE = {
    dtype: float(gpytorch.settings.min_fixed_noise.value(dtype))
    for dtype in (torch.float32, torch.float64)
}


def gaussian_likelihood(noise: float) -> GaussianLikelihood:
    """Return a Gaussian likelihood with the variance ``noise`` = σ², however small (GPyTorch's own
    refuses σ² < 1e-4).

    Raises:
        ValueError: if ``noise`` is not finite and above 0.
    """
    noise = checks.positive_float("noise", noise, "Use a small value such as 1e-6 for exact data.")
    likelihood = GaussianLikelihood(noise_constraint=GreaterThan(min(1e-8, 0.5 * noise)))
    likelihood.noise = noise
    return likelihood


def check_likelihood(likelihood: Any) -> None:
    """Require a likelihood whose noise variances do not depend on the inputs.

    Raises:
        TypeError: naming the kinds, for any other.
    """
    if not isinstance(likelihood, GaussianLikelihood | FixedNoiseGaussianLikelihood):
        raise TypeError(
            "`likelihood` must be a GaussianLikelihood or a FixedNoiseGaussianLikelihood, whose"
            f" noise variances are numbers, got {type(likelihood).__name__}. Give variances that"
            " differ as `train_Yvar`, or use botorch.models.SingleTaskGP with this likelihood."
        )


def check_noise(train_Yvar: Any, train_Y: Tensor) -> None:
    """Require variances of at least 0 of the shape, dtype and device of ``train_Y``.

    Raises:
        TypeError, ValueError: naming what does not fit.
    """
    checks.floating_tensor("train_Yvar", train_Yvar)
    if train_Yvar.shape != train_Y.shape:
        raise ValueError(
            f"`train_Yvar` must have the shape of `train_Y`, {tuple(train_Y.shape)}, got"
            f" {tuple(train_Yvar.shape)}."
        )
    checks.like("train_Yvar", train_Yvar, "train_Y", train_Y)
    if (train_Yvar < 0).any():
        raise ValueError(
            f"`train_Yvar` must be at least 0, got {train_Yvar.min().item():g}. Use 0 for exact"
            " data, or None to infer the noise."
        )


def known_noise(noise: Any) -> Tensor:
    """Return variances in standardised units with GPyTorch's least in the place of zeros: the
    systems that are solved need a positive diagonal.

    Raises:
        TypeError, ValueError: if they are not finite or below 0.
    """
    noise = checks.floating_tensor("noise", noise)
    if (noise < 0).any():
        raise ValueError(
            f"`noise` must be variances of at least 0, got {noise.min().item():g}. Give them in"
            " standardised units."
        )
    return noise.where(noise > 0, LEAST_NOISE[noise.dtype])
