"""An optimiser as the league sees it: batches of points, and then their values.

Notation: X (n, d) points in the user's units, q points of a batch.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from scalable_bo.space.space import Space
from scalable_bo.study.design import Design
from scalable_bo.study.study import Study


class Optimiser(ABC):
    """Minimises a function over a space.

    Args:
        space: where.
        seed: of everything random here.
        q: points of a batch; the last one may be smaller.
    Attributes:
        X: (n, d) the points so far.
        values: (n,) theirs, as observed; NaN where an evaluation failed.
    """

    def __init__(self, space: Space, seed: int, q: int) -> None:
        self.space = space
        self.seed = seed
        self.q = q
        self.X = torch.empty(0, space.dim, dtype=torch.float64)
        self.values = torch.empty(0, dtype=torch.float64)

    @abstractmethod
    def ask(self, q: int) -> Tensor:
        """Return the next q points (q, d)."""

    def tell(self, X: Tensor, values: Tensor) -> None:
        """Take the values (q,) of the points that were asked last."""
        self.X = torch.cat([self.X, X])
        self.values = torch.cat([self.values, values])

    def recommend(self) -> Tensor:
        """Return the point (d,) that the optimiser would use: the best observed one, unless it
        knows better.
        """
        return self.X[self.values.nan_to_num(nan=math.inf).argmin()]


class SobolSearch(Optimiser):
    """Points of a scrambled Sobol sequence, whatever their values are."""

    def __init__(self, space: Space, seed: int, q: int) -> None:
        super().__init__(space, seed, q)
        self._design = Design(space, seed)
        self._num_drawn = 0

    def ask(self, q: int) -> Tensor:
        X, self._num_drawn = self._design.draw(q, self._num_drawn, set())
        return X


class StudySearch(Optimiser):
    """A ``Study`` with its defaults but for the strategy.

    Args:
        space, seed, q: as of all optimisers.
        strategy: as in ``Study``.
    """

    def __init__(self, space: Space, seed: int, q: int, strategy: str) -> None:
        super().__init__(space, seed, q)
        self._study = Study(space, maximize=False, seed=seed, strategy=strategy)
        self._ids: list[int] = []

    def ask(self, q: int) -> Tensor:
        batch = self._study.ask(q)
        self._ids = batch.ids
        return batch.X

    def tell(self, X: Tensor, values: Tensor) -> None:
        super().tell(X, values)
        self._study.tell(self._ids, values)

    def recommend(self) -> Tensor:
        return self.space.from_dicts([self._study.recommend()])[0]
