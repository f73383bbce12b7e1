"""Choosing the m inducing points Z among or between n data points X (n, d).

Distances are Euclidean; given a ``lengthscale``, a number or (d,), in units of it.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surrogates import checks, memory

INDUCING_METHODS = ("k-means", "random", "neighbours")


def choose_inducing_points(
    X: Tensor,
    m: int,
    method: str = "k-means",
    *,
    generator: torch.Generator,
    lengthscale: Tensor | float | None = None,
) -> Tensor:
    """Return m inducing points (m, d) for the data X (n, d).

    Args:
        m: at most n.
        method: ``"k-means"``, ``"random"`` (data points, uniformly), or ``"neighbours"`` (data
            points, thinned where they are dense).
        generator: source of all randomness.
        lengthscale: of the kernel; ``"random"`` does not need it.

    Raises:
        TypeError, ValueError: if X is not finite, empty or not a matrix, m is not between 1 and n,
            the method has another name, or the lengthscale is not positive.
    """
    checks.one_of("method", method, INDUCING_METHODS)
    if method == "random":
        return random_subset(X, m, generator)
    if method == "neighbours":
        return eliminate_neighbours(X, m=m, generator=generator, lengthscale=lengthscale)
    return k_means(X, m, generator, lengthscale=lengthscale)


def random_subset(X: Tensor, m: int, generator: torch.Generator) -> Tensor:
    """Return m of the points X (n, d), distinct rows uniformly drawn."""
    _check(X, m)
    return X[_shuffled(len(X), generator)[:m].to(X.device)]


def k_means(
    X: Tensor, m: int, generator: torch.Generator, *, lengthscale: Tensor | float | None = None
) -> Tensor:
    """Return the m centres (m, d) of a k-means clustering of X (n, d), from k-means++ seeds; in
    mini-batches where n · m is large.

    Centres that lie on another, as many do where data are repeated, are replaced by the data
    furthest from the others. Where X has fewer than m distinct points, the rest are data points
    drawn at random.
    """
    _check(X, m)
    scaled, scale = _scaled(X, lengthscale)
    seed = int(torch.randint(2**31 - 1, (1,), generator=generator, device=generator.device))
    data = scaled.detach().cpu().double().numpy()
    distinct = np.unique(data, axis=0)
    if len(distinct) <= m:
        centres = torch.from_numpy(distinct).to(X) * scale
        return torch.cat([centres, random_subset(X, m, generator)[len(distinct) :]])
    from sklearn.cluster import KMeans, MiniBatchKMeans  # slow to import

    at_once = memory.part_size(m)
    if len(X) <= at_once:
        clustering = KMeans(m, n_init=1, random_state=seed)
    else:
        clustering = MiniBatchKMeans(
            m,
            n_init=1,
            batch_size=max(m, at_once),
            init_size=max(3 * m, at_once),
            random_state=seed,
        )
    moved = _apart(clustering.fit(data).cluster_centers_, distinct)
    return torch.from_numpy(moved).to(X) * scale


def eliminate_neighbours(
    X: Tensor,
    radius: float | None = None,
    *,
    m: int | None = None,
    generator: torch.Generator | None = None,
    lengthscale: Tensor | float | None = None,
) -> Tensor:
    """Return the points of X (n, d) that are left when, in random order, every point with a kept
    neighbour within ``radius`` is dropped.

    No two kept points are within the radius of one another, and every dropped point is within that
    of a kept one.

    Args:
        radius: at least 0; ``None`` to give ``m`` instead.
        m: how many points to keep: the radius is found by bisection, and the first m are taken of
            what it keeps, which are at most 1% more unless the points come in clumps.
        generator: source of the order; one seeded with 0 if ``None``.

    Raises:
        TypeError, ValueError: if not exactly one of ``radius`` and ``m`` is given, or they or X do
            not fit.
    References:
        Lin et al. (2023), "Sampling from Gaussian Process Posteriors using Stochastic Gradient
        Descent", Appendix A.2.
        Differs: (1) all neighbours within the radius count, not the nearest 100; (2) exact
            neighbours; (3) the kept points alone
        eliminate, so that nothing is further than the radius from what is kept.
    """
    if (radius is None) == (m is None):
        raise ValueError(
            f"Exactly one of `radius` and `m` must be given, got radius = {radius} and m = {m}."
        )
    _check(X, 1 if m is None else m)
    order = _shuffled(len(X), torch.Generator().manual_seed(0) if generator is None else generator)
    points = _scaled(X, lengthscale)[0][order.to(X.device)].cpu().double().numpy()
    if m is None:
        kept = _kept(points, _neighbours(points), checks.positive_float("radius", radius))
    else:
        kept = _kept_at_least(points, m)[:m]
    return X[order[kept].to(X.device)]


def _neighbours(points: np.ndarray) -> Any:
    from sklearn.neighbors import NearestNeighbors  # slow to import

    return NearestNeighbors().fit(points)


def _kept(points: np.ndarray, search: Any, radius: float) -> Tensor:
    """Return the indices of the points that are not within ``radius`` of an earlier kept one."""
    dropped = np.zeros(len(points), dtype=bool)
    kept = []
    start = 0
    size = 1
    while start < len(points):
        candidates = start + np.flatnonzero(~dropped[start : start + size])
        if len(candidates):
            neighbours = search.radius_neighbors(points[candidates], radius, return_distance=False)
            for candidate, near in zip(candidates, neighbours, strict=True):
                if not dropped[candidate]:
                    kept.append(int(candidate))
                    dropped[near] = True
        # The first points drop most of the others, each with many neighbours to list: few of them
        # at a time. Of t more after t points, those that are left with k neighbours are about
        # t exp(−t k / n): they list fewer than n in all.
        start = start + size
        size = 2 * size
    return torch.tensor(kept, device="cpu")


def _kept_at_least(points: np.ndarray, m: int) -> Tensor:
    """Return at least m kept indices, up to 1% more, at a radius found by bisection; or all."""
    search = _neighbours(points)
    kept = torch.arange(len(points), device="cpu")
    low = 0.0
    high = float(np.linalg.norm(np.ptp(points, axis=0)))
    finest = float(np.finfo(np.float32).eps) * high
    while len(kept) > m + m // 100 and high - low > finest:
        radius = 0.5 * (low + high)
        found = _kept(points, search, radius)
        if len(found) >= m:
            low = radius
            kept = found
        else:
            high = radius
    return kept


def _apart(centres: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return the centres, those on an earlier one replaced by the points furthest from the rest."""
    # The kernel between closer ones is 1 in float32
    same = math.sqrt(torch.finfo(torch.float32).eps)
    kept = centres[_kept(centres, _neighbours(centres), same).numpy()]
    if len(kept) == len(centres):
        return centres
    distances = _neighbours(kept).kneighbors(points, 1)[0][:, 0]
    return np.concatenate([kept, points[np.argsort(-distances)[: len(centres) - len(kept)]]])


def _check(X: Tensor, m: int) -> None:
    checks.floating_tensor("X", X)
    if X.ndim != 2 or 0 in X.shape:
        raise ValueError(f"`X` must have shape (n, d) with n, d ≥ 1, got {tuple(X.shape)}.")
    checks.positive_int("m", m)
    if m > len(X):
        raise ValueError(f"`m` must be at most n = {len(X)}, got {m}. Use fewer inducing points.")


def _scaled(X: Tensor, lengthscale: Tensor | float | None) -> tuple[Tensor, Tensor]:
    """Return X in units of the lengthscale, and the lengthscale (d,)."""
    given = 1.0 if lengthscale is None else lengthscale
    scale = torch.as_tensor(given, dtype=X.dtype, device=X.device).detach().reshape(-1)
    if len(scale) not in (1, X.shape[1]) or not bool((torch.isfinite(scale) & (scale > 0)).all()):
        raise ValueError(
            f"`lengthscale` must be a finite number above 0, or {X.shape[1]} of them, got"
            f" {lengthscale}."
        )
    scale = scale.expand(X.shape[1])
    return X / scale, scale


def _shuffled(n: int, generator: torch.Generator) -> Tensor:
    return torch.randperm(n, generator=generator, device=generator.device).cpu()
