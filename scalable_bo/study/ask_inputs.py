"""What an ask is based on: the rows, asks and queue of a study as they stand when it begins.

Notation: n values known to an ask, q points; ``X`` in the user's units, ``U`` on the unit cube.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from scalable_bo.modelling.training import TrainingData
from scalable_bo.space.space import Space
from scalable_bo.storage.record import StudyRecord
from scalable_bo.storage.rounds import AskReport
from scalable_bo.storage.rows import keys
from scalable_bo.storage.storage import Ask


class AskInputs:
    """What an ask is based on; values that arrive while it runs wait for the one after.

    Attributes:
        num_observed: n; of several outcomes, the points that have all of them.
        seen: the rows with a value in the order told, n and later ones, and how many changes.
        num_modelled: the values that a surrogate has: of several outcomes, the one with the fewest,
            which may be more than n, by points that wait for others.
        unusable: (p, d) points without a value: pending ones, failed ones and those of the queue.
        queued: (k, d) points of the queue that the ask gives out.
        batches: values of the batches so far, of which the largest is best, NaN where failed: first
            all from before the first model, then those of an ask each, with what came after it.
        goal: what is wanted of several outcomes; ``None`` for one objective alone.
    """

    def __init__(self, space: Space, record: StudyRecord, q: int = 0) -> None:
        self._space = space
        self._record = record
        self.goal = record.goal
        with record.lock:
            rows = record.rows
            partial = rows.outcomes(len(record.wanted.names), rows.partly_told)
            queue = record.contents.queue
            self.asks: Sequence[Ask] = tuple(record.asks)
            self.num_observed = len(rows.observed)
            self.seen = rows.observed, len(record.contents.changes)
            self.num_modelled = self.num_observed + int(partial.isfinite().sum(0).amin())
            self.num_pending = len(rows) - rows.num_told + len(queue)
            self.unusable = torch.cat([rows.X[~rows.told | rows.values.isnan()], queue])
            self.queued = queue[:q]
            # Designs come to points again among integers, and in the corners between constraints
            is_wide = math.isinf(space.num_points) and not space.constraints
            self._taken = self.unusable if is_wide else torch.cat([rows.X, queue])
            self.batches = _batches(space, record)

    @cached_property
    def taken(self) -> set[bytes]:
        """``keys`` of the points that are not to be asked: the unusable ones, in a finite space
        and between constraints all.
        """
        return set(keys(self._taken))

    def data(self, num_observed: int) -> TrainingData:
        """Return the first values as training data."""
        with self._record.lock:
            rows = self._record.rows
            ids = rows.observed[:num_observed]
            noise = rows.noise[ids] if rows.knows_noise() else None
            U = self._space.normalize(rows.X[ids])
            return TrainingData.of(U, rows.values[ids], noise, self._record.maximize)

    def success(self) -> TrainingData | None:
        """Return where evaluations had values and where they failed; ``None`` if too few did."""
        with self._record.lock:
            return TrainingData.of_success(self._record.rows, self._space)

    def outcome_table(self, num_observed: int) -> tuple[Tensor, Tensor]:
        """Return U (k, e) and values (k, m) of several outcomes: of the first points that have all,
        then of those that wait for some, which are NaN.
        """
        with self._record.lock:
            rows = self._record.rows
            ids = rows.observed[:num_observed] + rows.partly_told.tolist()
            values = rows.outcomes(len(self._record.wanted.names))[ids]
            return self._space.normalize(rows.X[ids]), values

    def outcome_data(self, num_observed: int) -> list[TrainingData]:
        """Return each outcome's values, at the first n whole points and those that lack some."""
        return TrainingData.of_each(*self.outcome_table(num_observed), self._record.wanted.signs)

    def has_grown(self, few: bool) -> bool:
        """Whether there are so many more values than at the last fit of hyperparameters that these
        are fitted again: a tenth more for the surrogate for ``few``, else half more.
        """
        last = max((ask.num_observed for ask in self.asks if ask.refitted), default=0)
        return self.num_observed >= last + last / (10 if few else 2)

    @property
    def number(self) -> int:
        """The number of the ask, from 1."""
        return len(self.asks) + 1

    @property
    def num_drawn(self) -> int:
        """How many points of the design have been drawn."""
        return self.asks[-1].num_drawn if self.asks else 0


def _batches(space: Space, record: StudyRecord) -> tuple[Tensor, ...]:
    """Return ``AskInputs.batches``; points that break a limit or a constraint count as failed."""
    rows, goal, costs = record.rows, record.goal, record.contents.costs
    first = len(record.asks) + 1
    for ask in reversed(record.asks):
        # Local models are not kept, but the report has their solver
        if ask.refitted is not None or costs.get(ask.number, AskReport()).solver:
            first = ask.number
    numbers = rows.asks[rows.told].clamp_min(first - 1).numpy()
    Y = rows.allowed_outcomes(space, len(record.wanted.names))
    values = Y[:, 0] * (1.0 if record.maximize else -1.0)
    if goal is not None:
        values = torch.where(goal.feasible(Y), values, math.nan)
    _, sizes = np.unique(np.maximum.accumulate(numbers), return_counts=True)
    return values[rows.told].split(sizes.tolist())
