"""Noise variances: the likelihood of a given one, and what known ones must be."""

from typing import Any

from gpytorch.constraints import GreaterThan
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from surrogates import checks


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


def check_noise(train_Yvar: Any, train_Y: Tensor) -> None:
    """Require variances above 0 of the shape, dtype and device of ``train_Y``.

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
    if not (train_Yvar > 0).all():
        raise ValueError(
            f"`train_Yvar` must be above 0, got {train_Yvar.min().item():g}. Use a small value such"
            " as 1e-6 for exact data."
        )
