"""Hyperparameters for a user's table: an exact fit to a random subset of the data."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.means import ZeroMean
from gpytorch.priors import LogNormalPrior
from torch import Tensor

from scalable_bo.experiments.regression.data import Hyperparameters
from surrogates import PathwiseGP, fit_exact

FIT_UP_TO = 1000
_NUM_ITERATIONS = 100  # of L-BFGS
_SMALLEST_LENGTHSCALE = 2.5e-2
_SMALLEST_OUTPUTSCALE = 1e-4


def fit_hyperparameters(
    X: Tensor,
    y: Tensor,
    *,
    num_points: int = FIT_UP_TO,
    seed: int = 0,
    on_status: Callable[[str], None] | None = None,
) -> Hyperparameters:
    """Fit a Matérn-3/2 Gaussian process of zero mean by the exact marginal likelihood, on a random
    subset of the data.

    Args:
        X: (n, d), standardised.
        y: (n,), standardised.
        num_points: of the subset; all, if n is less.
        seed: of the choice of points.
        on_status: called with a few words before the fit.
    References:
        Rathore et al. (2025), Appendix D.1, after Lin et al. (2023), Appendix A.1.
        Differs: (1) they average fits of the 10 000 points around each of ten; the few hundred that
            a fit in seconds can
        take are a neighbourhood too small to stand for all the data; (2) weak priors, BoTorch's of
        lengthscales and noise
        and one of variance about 1: without, the likelihood of smooth data grows without end
            towards a straight line.
    """
    rows = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))[:num_points].to(
        X.device
    )
    if on_status is not None:
        on_status(f"fitting hyperparameters to {len(rows)} points")
    X, y, d = X[rows].double(), y[rows].double(), X.shape[1]
    base = MaternKernel(
        nu=1.5,
        ard_num_dims=d,
        lengthscale_prior=LogNormalPrior(math.sqrt(2.0) + 0.5 * math.log(d), math.sqrt(3.0)),
        lengthscale_constraint=GreaterThan(_SMALLEST_LENGTHSCALE),
    )
    # The bounds keep the likelihood of a target that is constant on the subset from reaching 0,
    # outside the priors' support.
    kernel = ScaleKernel(
        base,
        outputscale_prior=LogNormalPrior(0.0, 1.0),
        outputscale_constraint=GreaterThan(_SMALLEST_OUTPUTSCALE),
    ).to(X)
    base.lengthscale = math.sqrt(d)  # of the order of the distances between standardised points
    model = PathwiseGP(
        X, y[:, None], covar_module=kernel, mean_module=ZeroMean(), outcome_transform=None
    )
    model = fit_exact(model, optimizer_kwargs={"options": {"maxiter": _NUM_ITERATIONS}})
    return Hyperparameters(
        model.noise.item(), kernel.outputscale.item(), tuple(base.lengthscale.flatten().tolist())
    )
