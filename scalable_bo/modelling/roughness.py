"""What is best where a surrogate's noise may in part be a function that it is too smooth for, such
as ripples: values near one another tell.

Notation: n values y at X (n, d), their kernel K (n, n), noise σ²; k points.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from surrogates.operators.linalg import jittered_cholesky
from surrogates.rules.data_set import DataSet


class RoughBands(NamedTuple):
    """Attributes:
    lower: (k,) ends of bands, two standard deviations below means.
    probability: that some of the noise is the function's.
    """

    lower: Tensor
    probability: float


@torch.no_grad()
def rough_bands(
    data: DataSet, X: Tensor, prior: float = 0.05, num_compared: int = 500
) -> RoughBands:
    """Return bands of the function at points X (k, d), averaged over what part of the noise is its
    own: a share ρ of none, half, 0.9, 0.99 or all, with the covariance ρ σ² R + (1 − ρ) σ² I in
    place of σ² I.

    R has the correlations of the kernel at lengthscales that are 0.3 to 0.01 of its own. Values at
    points far closer together than that differ by noise alone, and decide; where there are none,
    the values say nothing of ρ, and a good one counts a little more than the mean there does.

    Args:
        data: in float64, with one variance of the noise.
        prior: the probability that ρ is not 0.
        num_compared: of the values, those at the points that are best if ρ is 0.
    """
    K = data.kernel(data.X).to_dense()
    residuals = data.y - data.mean_module(data.X)
    noise = data.noise * torch.eye(len(K), device="cpu").to(K)
    if len(K) > num_compared:
        _, lower = _explained(K + noise, K, K.diagonal(), residuals)
        best = (lower + data.mean_module(data.X)).topk(num_compared).indices
        part = DataSet(data.X[best], data.y[best], data.noise, data.kernel, data.mean_module)
        return rough_bands(part, X, prior)
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
    return RoughBands(lower, float(weights[1:].sum()))


def _correlations(data: DataSet, first: Tensor, second: Tensor) -> Tensor:
    """Return the kernel's correlations (n, k) between points."""
    rows, columns = (data.kernel(points, diag=True).sqrt() for points in (first, second))
    return data.kernel(first, second).to_dense() / rows.unsqueeze(1) / columns


def _explained(
    covariance: Tensor, cross: Tensor, variances: Tensor, residuals: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the log density of N(0, ``covariance``), less what all have in common, and the lower
    ends (k,) of bands about the mean's at points of these covariances with the values.
    """
    root, _ = jittered_cholesky(covariance)
    both = torch.cat([residuals.unsqueeze(1), cross], dim=1)
    whitened = torch.linalg.solve_triangular(root, both, upper=False)
    values, projected = whitened[:, 0], whitened[:, 1:]
    fit = -0.5 * values.square().sum() - root.diagonal().log().sum()
    remaining = (variances - projected.square().sum(0)).clamp_min(0.0)
    return fit, values @ projected - 2.0 * remaining.sqrt()
