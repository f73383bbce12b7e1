"""pycma's evolution strategy in the league.

Notation: e columns of the unit cube.
"""

from __future__ import annotations

import math
import warnings

import cma
import numpy as np
import torch
from torch import Tensor

from benchmarks.league.base import Optimiser
from scalable_bo.space.space import Space


class CMASearch(Optimiser):
    """pycma on the unit cube from a random point; integers and choices by rounding.

    A generation is the smallest multiple of q that is no smaller than pycma's default, and is
    served q points at a time.

    Args:
        first_step: of the cube's edge.
    """

    def __init__(self, space: Space, seed: int, q: int, first_step: float = 0.25) -> None:
        super().__init__(space, seed, q)
        generator = np.random.default_rng(seed)
        dim = space.encoded_dim
        default = 4 + math.floor(3 * math.log(dim))
        options = {
            "bounds": [0, 1],
            "popsize": q * math.ceil(default / q),
            "verbose": -9,
            # pycma would set numpy's global seed
            "seed": math.nan,
            "randn": lambda *shape: generator.standard_normal(shape),
        }
        self._evolution = cma.CMAEvolutionStrategy(generator.random(dim), first_step, options)
        self._waiting: list[np.ndarray] = []
        self._asked: list[np.ndarray] = []
        self._costs: list[float] = []

    def ask(self, q: int) -> Tensor:
        if not self._waiting:
            with warnings.catch_warnings(action="ignore"):
                self._waiting = list(self._evolution.ask())
            self._asked = list(self._waiting)
            self._costs = []
        batch, self._waiting = self._waiting[:q], self._waiting[q:]
        return self.space.unnormalize(torch.as_tensor(np.stack(batch)).clamp(0.0, 1.0))

    def tell(self, X: Tensor, values: Tensor) -> None:
        super().tell(X, values)
        self._costs += values.tolist()
        if not self._waiting:
            with warnings.catch_warnings(action="ignore"):
                self._evolution.tell(self._asked, self._costs)
