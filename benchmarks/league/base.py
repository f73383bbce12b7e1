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
    """Minimises a function over a space, or several at once.

    Args:
        q: points of a batch; the last one may be smaller.
        num_objectives: k, all to be minimised.
    Attributes:
        X: (n, d) the points so far.
        values: (n,) theirs, as observed, or (n, k) of several objectives; NaN for failures.
    """

    def __init__(self, space: Space, seed: int, q: int, num_objectives: int = 1) -> None:
        self.space = space
        self.seed = seed
        self.q = q
        self.num_objectives = num_objectives
        self.X = torch.empty(0, space.dim, dtype=torch.float64)
        shape = (0, num_objectives) if num_objectives > 1 else (0,)
        self.values = torch.empty(shape, dtype=torch.float64)

    @abstractmethod
    def ask(self, q: int) -> Tensor:
        """Return the next q points (q, d)."""

    def tell(self, X: Tensor, values: Tensor) -> None:
        """Take the values (q,) or (q, k) of the points that were asked last."""
        self.X = torch.cat([self.X, X])
        self.values = torch.cat([self.values, values])

    @property
    def best(self) -> Tensor:
        """The row (1,) of the best observed point, or all rows (n,) where objectives compete."""
        if self.num_objectives > 1:
            return torch.arange(len(self.X))
        return self.values.nan_to_num(nan=math.inf).argmin()[None]

    def recommend(self) -> Tensor:
        """Return the points (r, d) that it would use: the best observed, unless it knows better."""
        return self.X[self.best]


class SobolSearch(Optimiser):
    """Points of a scrambled Sobol sequence, whatever their values are."""

    def __init__(self, space: Space, seed: int, q: int, num_objectives: int = 1) -> None:
        super().__init__(space, seed, q, num_objectives)
        self._design = Design(space, seed)
        self._num_drawn = 0

    def ask(self, q: int) -> Tensor:
        X, self._num_drawn = self._design.draw(q, self._num_drawn, set())
        return X


class StudySearch(Optimiser):
    """A ``Study`` with its defaults but for the strategy."""

    def __init__(
        self, space: Space, seed: int, q: int, strategy: str, num_objectives: int = 1
    ) -> None:
        super().__init__(space, seed, q, num_objectives)
        objectives = {f"f{number}": "minimize" for number in range(num_objectives)}
        goal = {"maximize": False} if num_objectives == 1 else {"objectives": objectives}
        self._study = Study(space, seed=seed, strategy=strategy, **goal)
        self._ids: list[int] = []

    def ask(self, q: int) -> Tensor:
        batch = self._study.ask(q)
        self._ids = batch.ids
        return batch.X

    def tell(self, X: Tensor, values: Tensor) -> None:
        super().tell(X, values)
        self._study.tell(self._ids, values)

    def recommend(self) -> Tensor:
        if self.num_objectives > 1:
            return super().recommend()
        return self.space.from_dicts([self._study.recommend()])
