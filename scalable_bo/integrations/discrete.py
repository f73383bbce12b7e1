"""Batches where some inputs are discrete: every point is a point of the grid, and the best one that
was found on the grid.

Notation: q points and paths, d inputs, bounds (2, d).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor

from acquisition import Request, Strategy
from acquisition.candidates import all_inputs, model_list
from acquisition.selection import KnownPoints

NUM_NEIGHBOURS = 8  # points of the grid that are tried around each path's maximiser
NUM_RANDOM = 1000  # and at random, a round
NUM_ROUNDS = 20  # of random points before the grid counts as exhausted


def discrete_batch(
    strategy: Strategy,
    request: Request,
    *,
    to_grid: Callable[[Tensor], Tensor],
    steps: Tensor,
    known: Tensor | None = None,
) -> Tensor:
    """Return at most q distinct points of the grid (≤ q, d), none of them known: fewer only where
    no others were found.

    (1) The strategy chooses points as if all inputs were continuous; (2) these points, neighbours
    of theirs and random points are rounded; (3) the strategy chooses among the rounded points, by
    the same paths. Rounding its first choice alone would give up the difference between the two,
    and propose the same point for many paths.

    Args:
        to_grid: rounds points (..., d); leaves continuous inputs as they are.
        steps: (d,) distance between neighbouring grid values, 0 for a continuous input; where all
            are, the batch is the strategy's own.
        known: (n, d) points that have a value and that the model may not know; ``None`` for none.
    """
    if not steps.any():
        return strategy.generate(request)
    models = model_list(request.model)
    if request.paths is None:
        paths = [model.paths(request.q, generator=request.generator) for model in models]
        request = replace(request, paths=paths)
    relaxed = strategy.generate(request)
    told = [all_inputs(models), request.X_pending, known]
    taken = KnownPoints(torch.cat([X.to(relaxed) for X in told if X is not None]), request.bounds)
    feasible = request.feasible_set
    usable = relaxed[:0]
    rounds = _candidates(relaxed, steps, feasible.bounds, request.generator)
    for candidates in islice(rounds, NUM_ROUNDS):
        rounded = to_grid(candidates)
        free = feasible.contains(rounded) & ~taken.near(rounded)
        usable = torch.unique(torch.cat([usable, rounded[free]]), dim=0)
        if len(usable) >= request.q:
            return strategy.generate(replace(request, choices=usable))
    return usable


def split_batches(values: Tensor, first: int, q: int) -> list[Tensor]:
    """Return values (n,) in the order of their evaluation as batches for a ``Request``: the
    ``first`` ones, then q at a time.
    """
    parts = (values[:first], *values[first:].split(q))
    return [part for part in parts if len(part)]


def _candidates(
    relaxed: Tensor, steps: Tensor, bounds: Tensor, generator: torch.Generator
) -> Iterator[Tensor]:
    """Yield points to round, without end: first the maximisers and their neighbours,
    then random points alone.
    """
    lower, upper = bounds
    around = relaxed.repeat(NUM_NEIGHBOURS, 1)
    uniform = torch.rand(around.shape, generator=generator, dtype=torch.float64, device="cpu")
    moves = 2.0 * uniform - 1.0
    moved = torch.rand(around.shape, generator=generator, device="cpu") < 0.5
    around = torch.clamp(around + steps * (moves * moved).to(around), lower, upper)
    first = torch.cat([relaxed, around])
    while True:
        shape = (NUM_RANDOM, len(lower))
        uniform = torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu")
        uniform = uniform.to(relaxed)
        yield torch.cat([first, torch.lerp(lower, upper, uniform)])
        first = relaxed[:0]
