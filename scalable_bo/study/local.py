"""An ask that has no time for all values: regions around good points, each searched by a model of
the values that are nearest.

Notation: n values, m of them in a region's model, U (n, e) on the unit cube, q points.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from acquisition.constraints import TooFewPoints
from acquisition.strategy import Request, Strategy
from scalable_bo.progress import fit_lines, search_lines, solve_lines
from scalable_bo.storage.surrogate import SurrogateFactory
from scalable_bo.storage.training import TrainingData
from scalable_bo.study.fitting import fit_warped
from scalable_bo.study.pace import Plan, end_of_fit
from scalable_bo.study.surrogate import is_for_few
from surrogates import PathwiseGP, Solution

NUM_LEADERS = 64  # best values, of which regions have their centres
NUM_NEIGHBOURS = 8  # whose values tell whether a leader was lucky


@dataclass(frozen=True, eq=False)
class Region:
    """A part of the unit cube.

    Attributes:
        centre: (e,).
        num_rows: m.
        side: half of its sides, in which half of the model's data lie.
    """

    centre: Tensor
    num_rows: int
    side: float

    @property
    def box(self) -> Tensor:
        """Its corners (2, e), cut off at the cube."""
        return torch.stack([self.centre - self.side, self.centre + self.side]).clamp(0.0, 1.0)

    def nearest(self, U: Tensor) -> Tensor:
        """Return the numbers (m,) of those of the points U (n, e) that its model knows."""
        return _nearest(U, self.centre, self.num_rows).indices


def find_regions(U: Tensor, values: Tensor, m: int, number: int) -> list[Region]:
    """Return at most so many regions around good points, each with the m data nearest to its
    centre, by the largest coordinate.

    Centres are the best by the median of their value and those of their nearest neighbours, none in
    the box of another.

    Args:
        values: (n,) of which the largest is best.
    """
    leaders = values.topk(min(NUM_LEADERS, len(values))).indices
    around = [_nearest(U, U[leader], NUM_NEIGHBOURS).indices for leader in leaders]
    scores = torch.stack([values[rows].median() for rows in around])
    regions: list[Region] = []
    for leader in leaders[scores.argsort(descending=True)]:
        centre = U[leader]
        if len(regions) == number:
            break
        if any(float((centre - region.centre).abs().max()) <= region.side for region in regions):
            continue
        distances = _nearest(U, centre, m).values
        half = float(distances[m // 2])
        # Where half of them are one point, as far as they reach, and anywhere if all are
        regions.append(Region(centre, m, half or float(distances[-1]) or 1.0))
    return regions


@dataclass(frozen=True, eq=False)
class LocalChoice:
    """A batch by models of some values each, of which nothing is kept.

    Attributes:
        points: (q, e) on the unit cube, fewer where a space has no more.
        hyperparameters: a model with those of all regions' models.
        data: on the scale that they were fitted on.
        solutions: of the regions' paths.
        request: of the last region.
        seconds_fit: that the fit took.
        seconds_solve: that the paths took.
    """

    points: Tensor
    hyperparameters: PathwiseGP
    data: TrainingData
    solutions: list[Solution]
    request: Request
    seconds_fit: float
    seconds_solve: float


@dataclass(frozen=True)
class LocalChooser:
    """Chooses batches by models of the values around good points.

    Attributes:
        factory: of the models.
        strategy: what the surrogate is to be for.
        choose: answers a request whose paths are drawn, by that strategy.
        seconds: that a batch is to take.
        callback: receives a line of text whenever the fit, a solve or a search has got on.
    """

    factory: SurrogateFactory
    strategy: Strategy
    choose: Callable[[Request], Tensor]
    seconds: float
    callback: Callable[[str], None] | None = None

    def generate(
        self,
        plan: Plan,
        told: TrainingData,
        q: int,
        generator: torch.Generator,
        request_of: Callable[[PathwiseGP, int], Request],
    ) -> LocalChoice:
        """Return q points by models as ``plan`` has them.

        Args:
            told: all values.
            request_of: makes the request for some of the points by a region's model, in all of the
                cube.
        """
        start = time.perf_counter()
        assert plan.num_rows is not None
        regions = find_regions(told.U, told.signed, plan.num_rows, plan.num_regions)
        sizes = [len(part) for part in torch.arange(q, device="cpu").tensor_split(len(regions))]
        near = torch.cat([region.nearest(told.U) for region in regions]).unique()
        hyperparameters, data = fit_warped(
            self.factory,
            told.part(near),
            generator,
            few=is_for_few(self.strategy, max(sizes), plan.num_rows),
            callback=self.callback and fit_lines(self.callback),
            deadline=end_of_fit(start, self.seconds),
        )
        seconds_fit = time.perf_counter() - start
        seconds_solve = 0.0
        solutions: list[Solution] = []
        batch = told.U[:0].to(self.factory.device, self.factory.dtype)
        for place, (region, size) in enumerate(zip(regions, sizes, strict=True), 1):
            say = self._saying(f"region {place}/{len(regions)}: ")
            model = self.factory.build(data.in_units(region.nearest(data.U)), hyperparameters)
            solving = time.perf_counter()
            paths = model.paths(size, generator=generator, callback=say and solve_lines(say))
            seconds_solve += time.perf_counter() - solving
            assert model.solution is not None  # paths() has just made it
            solutions.append(model.solution)
            request = request_of(model, size)
            pending = request.X_pending
            taken = batch if pending is None else torch.cat([pending, batch])
            request = replace(request, paths=paths, X_pending=taken)
            request = replace(request, callback=say and search_lines(say))
            batch = torch.cat([batch, self._found_in(region.box.to(batch), request)])
        return LocalChoice(
            batch, hyperparameters, data, solutions, request, seconds_fit, seconds_solve
        )

    def _saying(self, prefix: str) -> Callable[[str], None] | None:
        """Return the callback for lines that it is to get with a prefix."""
        callback = self.callback
        return callback and (lambda line: callback(prefix + line))

    def _found_in(self, box: Tensor, request: Request) -> Tensor:
        """Return the batch in a box or, where that has too few points, anywhere."""
        box = box.clamp(*request.bounds)
        for fixed in request.constraints.get("fixed_features") or ():
            box[:, fixed] = request.bounds[:, fixed]
        try:
            batch = self.choose(replace(request, bounds=box))
        except TooFewPoints:
            return self.choose(request)
        return batch if len(batch) == request.q else self.choose(request)


def _nearest(U: Tensor, centre: Tensor, number: int) -> torch.return_types.topk:
    """Return the distances and numbers of the points that are nearest, in this order."""
    distances = (U - centre).abs().amax(1)
    return distances.topk(min(number, len(U)), largest=False)
