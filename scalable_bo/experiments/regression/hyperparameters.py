"""Hyperparameters for a user's table: an exact fit to a random sample of the data."""

from __future__ import annotations

import torch
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.means import ZeroMean
from gpytorch.priors import LogNormalPrior
from torch import Tensor

from scalable_bo.evaluation.progress import describe_fit
from scalable_bo.experiments.cells import Status, silent
from scalable_bo.experiments.regression.data import Hyperparameters
from surrogates import PathwiseGP, fit_sample


def fit_hyperparameters(
    X: Tensor,
    y: Tensor,
    *,
    seed: int = 0,
    on_status: Status = silent,
) -> Hyperparameters:
    """Fit a Matérn-3/2 Gaussian process of zero mean by ``fit_sample``, to 1000 random data.

    Args:
        X: (n, d), standardised.
        y: (n,), standardised.
        seed: of the choice of points.
        on_status: called with a few words as the fit goes on.
    References:
        Rathore et al. (2025), Appendix D.1, after Lin et al. (2023), Appendix A.1.
        Differs: they average fits of the 10 000 points around each of ten; the few hundred that a
        fit in seconds can take are a neighbourhood too small to stand for all the data.
    """
    X, y = X.double(), y.double()
    base = MaternKernel(nu=1.5, ard_num_dims=X.shape[1])
    kernel = ScaleKernel(base, outputscale_prior=LogNormalPrior(0.0, 1.0)).to(X)
    model = PathwiseGP(
        X, y[:, None], covar_module=kernel, mean_module=ZeroMean(), outcome_transform=None
    )
    fit_sample(
        model,
        generator=torch.Generator().manual_seed(seed),
        callback=lambda number, _: on_status(describe_fit(number)),
    )
    return Hyperparameters(
        model.noise.item(), kernel.outputscale.item(), tuple(base.lengthscale.flatten().tolist())
    )
