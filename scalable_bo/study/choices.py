"""The points of an ask that are chosen from a pool of candidates.

Notation: n values, U (k, e) points of the unit cube, q points.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from acquisition.constraints import FeasibleSet
from acquisition.pools import Lots, choose, read_parts
from acquisition.selection import KnownPoints, TooFewCandidates
from acquisition.strategies import ThompsonStrategy
from acquisition.strategy import Request
from acquisition.thompson import ParallelThompsonSampling
from scalable_bo.storage.pools import Pool
from scalable_bo.storage.training import TrainingData


@dataclass(frozen=True)
class BestOfPool:
    """The strategy that takes the best of a pool."""

    pool: Pool

    def generate(self, request: Request) -> Tensor:
        """Return the batch (q, e), which the pool is told of."""
        with _whole_pool_counted(self.pool):
            best = ThompsonStrategy(ParallelThompsonSampling).choose(request, self.pool)
        self.pool.take(best.labels)
        return best.points


def draw_from_pool(pool: Pool, q: int, taken: Tensor, generator: torch.Generator) -> Tensor:
    """Return points (q, d) of a pool in the user's units, drawn uniformly, none of them among those
    that are ``taken`` (k, e).
    """
    box = torch.tensor([[0.0], [1.0]], dtype=torch.float64, device="cpu").repeat(1, taken.shape[1])
    lots = Lots(q, generator)
    with _whole_pool_counted(pool):
        best = choose(lots, read_parts(pool, box), FeasibleSet.of(box), KnownPoints(taken, box))
    return pool.take(best.labels)


def knowing_all(request: Request, told: TrainingData, data: TrainingData) -> Request:
    """Return a request that also knows the points told whose values a surrogate's data leave
    out.
    """
    if data.kept is None:
        return request
    aside = told.U[~data.kept].to(request.bounds)
    known = aside if request.X_pending is None else torch.cat([request.X_pending, aside])
    return replace(request, X_pending=known)


@contextmanager
def _whole_pool_counted(pool: Pool) -> Iterator[None]:
    """Have an error count the rows that a pool has left out, too."""
    try:
        yield
    except TooFewCandidates as error:
        num_infeasible = pool.num_infeasible + error.num_infeasible
        raise TooFewCandidates(error.q, error.num_found, pool.num_read, num_infeasible) from None
