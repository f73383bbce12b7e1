"""A study in the league, by the name of its strategy."""

from __future__ import annotations

from torch import Tensor

from benchmarks.league.base import Optimiser
from scalable_bo.space.space import Space
from scalable_bo.study.study import Study


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
