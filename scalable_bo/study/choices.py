"""Batches by the paths of models: part after part, in boxes, or from a pool of candidates.

Notation: n values, U (k, e) points of the unit cube, q points.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from acquisition.constraints import FeasibleSet, TooFewPoints
from acquisition.outcomes import Success
from acquisition.pools import RandomValues, choose, read_parts
from acquisition.selection import DUPLICATE_DISTANCE, KnownPoints, TooFewCandidates
from acquisition.strategies import ThompsonStrategy
from acquisition.strategy import Request, Strategy
from acquisition.thompson import ParallelThompsonSampling
from scalable_bo.evaluation.progress import describe_search, describe_solve, status_lines
from scalable_bo.modelling.training import TrainingData
from scalable_bo.storage.pools import Pool
from surrogates import PathwiseGP, SamplePaths, Solution


@dataclass(frozen=True, eq=False)
class Part:
    """Some points of a batch, and what they are chosen by.

    Attributes:
        models: one of each outcome.
        box: (2, e) where they are to lie, if it holds as many; ``None`` for the whole cube.
        success: as in :class:`Request`.
        label: before what is said of the part.
    """

    models: Sequence[PathwiseGP]
    data: Sequence[TrainingData]
    q: int
    box: Tensor | None = None
    success: Success | None = None
    label: str = ""


@dataclass(frozen=True, eq=False)
class Choice:
    """A batch, points (q, e) on the unit cube, and the request of its last part."""

    points: Tensor
    solutions: Sequence[Solution]
    request: Request
    seconds_solve: float

    @property
    def mean_weights(self) -> Tensor:
        """The weights (n, 1) of the mean of the one model of the last part."""
        assert isinstance(self.request.paths, SamplePaths)  # of one data set
        return self.request.paths.mean_weights


def choose_parts(
    parts: Sequence[Part],
    request_of: Callable[[Part], Request],
    strategy: Strategy,
    generator: torch.Generator,
    *,
    shared: bool = False,
    callback: Callable[[str], None] | None = None,
) -> Choice:
    """Return a batch of which each part is chosen by paths of its models, beside those before it.

    Args:
        request_of: makes the request of a part on the whole cube, without its paths, which have
            been drawn when it is called.
        shared: whether all processes draw them together.
        callback: receives a line of text whenever a solve or a search has got on.
    """
    batches: list[Tensor] = []
    solutions: list[Solution] = []
    seconds_solve = 0.0
    for part in parts:
        say = callback and _labelled(callback, part.label)
        lines = say and status_lines(describe_solve, say)
        start = time.perf_counter()
        paths = []
        for model in part.models:
            paths += [model.paths(part.q, generator=generator, shared=shared, callback=lines)]
        seconds_solve += time.perf_counter() - start
        solutions += [model.solution for model in part.models if model.solution is not None]
        request = request_of(part)
        request = replace(
            request,
            paths=paths if isinstance(request.model, Sequence) else paths[0],
            shared=shared,
            callback=say and status_lines(describe_search, say),
        )
        if batches:
            request = request.beside(torch.cat(batches))
        choose = strategy.generate
        found = choose(request) if part.box is None else _found(part.box, request, choose)
        batches.append(checked_batch(found, request, strategy))
    return Choice(torch.cat(batches), solutions, request, seconds_solve)


def checked_batch(batch: Tensor, request: Request, strategy: Strategy) -> Tensor:
    """Return the batch (q, e) with which a strategy answered a request.

    Raises:
        TypeError, ValueError: naming the strategy, if it is anything but q finite points within the
            bounds, up to the distance within which points count as one.
    """
    lower, upper = request.bounds
    shape = (request.q, len(lower))
    received = type(batch).__name__
    if isinstance(batch, Tensor):
        received = f"shape {tuple(batch.shape)}"
        if batch.shape == shape:
            batch = batch.detach().to(lower)
            slack = DUPLICATE_DISTANCE * (upper - lower)
            outside = ~((batch >= lower - slack) & (batch <= upper + slack)).all(1)  # or NaN
            if not outside.any():
                return batch
            received = f"the point {batch[outside][0].tolist()}"
    kind = ValueError if isinstance(batch, Tensor) else TypeError
    raise kind(
        f"`generate` of the strategy `{type(strategy).__name__}` must return a tensor of shape (q,"
        f" d) = {shape}, finite and within `request.bounds`, got {received}. Draw `request.q`"
        " points between `request.bounds[0]` and `request.bounds[1]`."
    )


def _found(box: Tensor, request: Request, choose: Callable[[Request], Tensor]) -> Tensor:
    """Return the batch in a box or, where that has too few points, anywhere."""
    box = box.to(request.bounds).clamp(*request.bounds)
    for fixed in request.constraints.get("fixed_features") or ():
        box[:, fixed] = request.bounds[:, fixed]
    try:
        return choose(replace(request, bounds=box))
    except TooFewPoints:
        return choose(request)


def _labelled(callback: Callable[[str], None], label: str) -> Callable[[str], None]:
    return (lambda line: callback(label + line)) if label else callback


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
    """Return points (q, d) drawn uniformly from a pool, none of the ``taken`` (k, e)."""
    box = pool.space.cube
    lots = RandomValues(q, generator)
    with _whole_pool_counted(pool):
        best = choose(lots, read_parts(pool, box), FeasibleSet.of(box), KnownPoints(taken, box))
    return pool.take(best.labels)


@contextmanager
def _whole_pool_counted(pool: Pool) -> Iterator[None]:
    """Have an error count the rows that a pool has left out, too."""
    try:
        yield
    except TooFewCandidates as error:
        num_infeasible = pool.num_infeasible + error.num_infeasible
        raise TooFewCandidates(error.q, error.num_found, pool.num_read, num_infeasible) from None
