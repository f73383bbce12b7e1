"""Bands of a function of which a surrogate may take a part, such as ripples, for noise, because it
is too smooth for it.

Notation: n values y at X (n, d), their kernel K (n, n), noise σ²; k points.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from surrogates.operators.linalg import jittered_cholesky
from surrogates.rules.data_set import DataSet


@torch.no_grad()
def rough_bands(
    data: DataSet, X: Tensor, prior: float = 0.05, num_compared: int = 500
) -> tuple[Tensor, float]:
    """Return the lower ends (k,) of bands of the function at points X (k, d), two standard
    deviations below its mean, averaged over the share ρ of the noise that is its own, and the
    probability that ρ is above 0. The covariance ρ σ² R + (1 − ρ) σ² I stands for σ² I, where ρ is
    0, 0.5, 0.9, 0.99 or 1 − 1e-6.

    R has the correlations of the kernel at lengthscales that are 0.3 to 0.01 of its own. Values at
    points that are far closer together than that differ by noise alone: they tell how large ρ is.
    Without such points ρ remains as likely as before, so that, of points with almost the same
    mean, the one with the best value has the best band.

    Args:
        data: in float64, with one variance of the noise.
        prior: the probability that ρ is not 0, before the values are seen.
        num_compared: of the values, those at the points that are best if ρ is 0.
    """
    K = data.kernel(data.X).to_dense()
    residuals = data.y - data.mean_module(data.X)
    noise = data.noise * torch.eye(len(K), device="cpu").to(K)
    if len(K) > num_compared:
        _, lower = _explained(K + noise, K, K.diagonal(), residuals)
        best = (lower + data.mean_module(data.X)).topk(num_compared).indices
        return rough_bands(data._replace(X=data.X[best], y=data.y[best]), X, prior)
    cross, variances = data.kernel(data.X, X).to_dense(), data.kernel(X, diag=True)
    found = [_explained(K + noise, cross, variances, residuals)]
    for lengthscale in (0.3, 0.1, 0.03, 0.01):
        rough, rough_cross = (
            data.noise * _correlations(data, data.X / lengthscale, part / lengthscale)
            for part in (data.X, X)
        )
        for share in (0.5, 0.9, 0.99, 1.0 - 1e-6):  # not all, so that points may repeat
            covariance = K + share * rough + (1.0 - share) * noise
            total = variances + share * data.noise
            found.append(_explained(covariance, cross + share * rough_cross, total, residuals))
    fits, lowers = map(torch.stack, zip(*found, strict=True))
    priors = torch.full_like(fits, math.log(prior / (len(fits) - 1)))
    priors[0] = math.log(1.0 - prior)
    weights = torch.softmax(priors + fits, 0)
    lower = data.mean_module(X) + weights @ lowers
    return lower, float(weights[1:].sum())


def is_rough(data: DataSet, centre: Tensor, num_compared: int = 500) -> bool:
    """Return whether the function has a part of the noise, more likely than not.

    Args:
        data: as of :func:`rough_bands`.
        centre: (1, d), around which that is asked.
        num_compared: of the values, those at the points nearest to it, whatever they are.
    """
    distances = (data.X - centre).square().sum(1)
    near = distances.topk(min(num_compared, len(distances)), largest=False).indices
    return rough_bands(data._replace(X=data.X[near], y=data.y[near]), centre)[1] > 0.5


def _correlations(data: DataSet, first: Tensor, second: Tensor) -> Tensor:
    """Return the kernel's correlations (n, k) between points; 0 where a point has no variance."""
    least = torch.finfo(data.y.dtype).tiny
    rows, columns = (data.kernel(Z, diag=True).clamp_min(least).sqrt() for Z in (first, second))
    return data.kernel(first, second).to_dense() / rows.unsqueeze(1) / columns


def _explained(
    covariance: Tensor, cross: Tensor, variances: Tensor, residuals: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the log density of residuals by N(0, ``covariance``), less what all have in common,
    and the lower ends (k,) of the bands of residuals at points with covariances ``cross`` (n, k)
    with them.
    """
    root, _ = jittered_cholesky(covariance)
    both = torch.cat([residuals.unsqueeze(1), cross], dim=1)
    whitened = torch.linalg.solve_triangular(root, both, upper=False)
    values, projected = whitened[:, 0], whitened[:, 1:]
    fit = -0.5 * values.square().sum() - root.diagonal().log().sum()
    remaining = (variances - projected.square().sum(0)).clamp_min(0.0)
    return fit, values @ projected - 2.0 * remaining.sqrt()
