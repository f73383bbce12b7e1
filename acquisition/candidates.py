"""Candidate points: uniform over the box, and near data points that did well.

Notation: X (n, d) data, y (n,) their values (larger is better), bounds (2, d).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from surrogates import checks

# Coordinates that a candidate changes on average in a trust region, at most all d
NUM_PERTURBED = 20


def sampling_weights(y: Tensor) -> Tensor:
    """Return probabilities (n,) ∝ ``y − min(y)``: the best point is the likeliest,
    the worst has none; uniform if all are equal.
    """
    weights = y - y.min()
    total = weights.sum()
    return weights / total if total > 0 else torch.full_like(y, 1.0 / len(y))


def propose(
    X: Tensor,
    y: Tensor,
    bounds: Tensor,
    num_candidates: int,
    *,
    uniform_fraction: float = 0.1,
    proposal_std: Tensor,
    weights: Callable[[Tensor], Tensor] = sampling_weights,
    center: Tensor | None = None,
    generator: torch.Generator,
) -> Tensor:
    """Return candidates (num_candidates, d): a share uniform over the box, the rest normal around
    data points drawn by their value.

    Args:
        proposal_std: (d,) standard deviation around a data point, in the units of X.
        uniform_fraction: share of uniform candidates, in [0, 1].
        weights: maps y to the probabilities of the data points, (n,).
        center: (d,) of a trust region. Each coordinate of a candidate then changes with probability
            20 / d only, at least one of them, from the centre or from its data point: where d is
            large, a point with all coordinates changed is far from everything.

    References:
        Lin et al. (2023), "Sampling from Gaussian Process Posteriors using Stochastic Gradient
        Descent", App. A.3. Eriksson et al. (2019), "Scalable Global Optimization via Local Bayesian
        Optimization", Section 2, for the centre.
    """
    checks.positive_int("num_candidates", num_candidates)
    checks.fraction("uniform_fraction", uniform_fraction)
    lower, upper = bounds
    num_uniform = round(uniform_fraction * num_candidates)
    num_near = num_candidates - num_uniform
    d = X.shape[1]
    device = generator.device
    uniform = torch.rand(num_uniform, d, generator=generator, device=device, dtype=X.dtype).to(
        X.device
    )
    uniform = torch.lerp(lower, upper, uniform)
    # By inversion: torch.multinomial is limited to 2²⁴ data points.
    quantiles = torch.rand(num_near, generator=generator, device=device, dtype=torch.float64).to(
        X.device
    )
    cumulative = weights(y.double()).cumsum(0)
    index = torch.searchsorted(cumulative, quantiles * cumulative[-1], right=True).clamp_max(
        len(X) - 1
    )
    steps = torch.randn(num_near, d, generator=generator, device=device, dtype=X.dtype).to(X.device)
    near = torch.clamp(X[index] + proposal_std * steps, lower, upper)
    candidates = torch.cat([uniform, near])
    if center is None or d <= NUM_PERTURBED:
        return candidates
    base = torch.cat([center.expand(num_uniform, d), torch.clamp(X[index], lower, upper)])
    changed = torch.rand(num_candidates, d, generator=generator, device=device) < NUM_PERTURBED / d
    one = torch.randint(d, (num_candidates, 1), generator=generator, device=device)
    return torch.where(changed.scatter(1, one, True).to(X.device), candidates, base)
