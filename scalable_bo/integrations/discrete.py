"""Thompson batches where some inputs are discrete: every point is a point of the grid, and the best
one that was found on the grid.

Notation: q points and paths, d inputs, bounds (2, d).
"""

from collections.abc import Callable, Iterator
from itertools import islice

import torch
from torch import Tensor

from acquisition import ParallelThompsonSampling
from acquisition.candidates import all_inputs
from acquisition.selection import KnownPoints

NUM_NEIGHBOURS = 8  # points of the grid that are tried around each path's maximiser
NUM_RANDOM = 1000  # and at random, a round
NUM_ROUNDS = 20  # of random points before the grid counts as exhausted


def discrete_batch(
    sampler: ParallelThompsonSampling,
    q: int,
    *,
    to_grid: Callable[[Tensor], Tensor],
    steps: Tensor,
    generator: torch.Generator,
    X_pending: Tensor | None = None,
) -> Tensor:
    """Return at most q distinct points of the grid (≤ q, d), none of them known: fewer only where
    no others were found.

    (1) Each path is maximised as if all inputs were continuous; (2) these points, neighbours of
    theirs and random points are rounded; (3) each path in turn takes the rounded point at which it
    is largest. Rounding its maximiser alone would give up the difference between the two, and
    propose the same point for many paths.

    Args:
        to_grid: rounds points (..., d); leaves continuous inputs as they are.
        steps: (d,) distance between neighbouring grid values, 0 for a continuous input.
        generator: of the paths, the neighbours and the random points.
        X_pending: (p, d), points under evaluation.
    """
    paths = [model.paths(q, generator=generator) for model in sampler.models]
    relaxed = sampler.generate(q, paths=paths, X_pending=X_pending)
    known = KnownPoints(all_inputs(sampler.models), sampler.bounds)
    pending = KnownPoints(relaxed[:0] if X_pending is None else X_pending, sampler.bounds)
    usable = relaxed[:0]
    for candidates in islice(
        _candidates(relaxed, steps, sampler.feasible_set.bounds, generator), NUM_ROUNDS
    ):
        rounded = to_grid(candidates)
        free = (
            sampler.feasible_set.contains(rounded) & ~known.near(rounded) & ~pending.near(rounded)
        )
        usable = torch.unique(torch.cat([usable, rounded[free]]), dim=0)
        if len(usable) >= q:
            return sampler.generate(q, paths=paths, choices=usable, X_pending=X_pending)
    return usable


def _candidates(
    relaxed: Tensor, steps: Tensor, bounds: Tensor, generator: torch.Generator
) -> Iterator[Tensor]:
    """Yield points to round, without end: first the maximisers and their neighbours,
    then random points alone.
    """
    lower, upper = bounds
    around = relaxed.repeat(NUM_NEIGHBOURS, 1)
    moves = 2.0 * torch.rand(around.shape, generator=generator, dtype=torch.float64) - 1.0
    moved = torch.rand(around.shape, generator=generator) < 0.5
    around = torch.clamp(around + steps * (moves * moved).to(around), lower, upper)
    first = torch.cat([relaxed, around])
    while True:
        uniform = torch.rand(NUM_RANDOM, len(lower), generator=generator, dtype=torch.float64).to(
            relaxed
        )
        yield torch.cat([first, torch.lerp(lower, upper, uniform)])
        first = relaxed[:0]
