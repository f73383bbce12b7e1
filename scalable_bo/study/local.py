"""Where an ask searches that has no time for all values: regions around good points, each with a
model of the values that are nearest.

Notation: n values, m of them in a region's model, U (n, e) on the unit cube.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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


def _nearest(U: Tensor, centre: Tensor, number: int) -> torch.return_types.topk:
    """Return the distances and numbers of the points that are nearest, in this order."""
    distances = (U - centre).abs().amax(1)
    return distances.topk(min(number, len(U)), largest=False)
