"""A study as it stands at one moment, for those who only look at it: from the study itself,
or from where it is kept while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from scalable_bo.modelling.belief import Belief
from scalable_bo.space.cell_texts import distinct
from scalable_bo.space.goal import Goal
from scalable_bo.space.space import Space
from scalable_bo.storage.record import StudyRecord, describe_settings
from scalable_bo.storage.rounds import AskReport
from scalable_bo.storage.rows import Rows
from scalable_bo.storage.storage import Ask, Source
from surrogates.models.fresh import EXACT_UP_TO

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What is known of a study.

    Attributes:
        space: of a folder, without the functions among its constraints.
        settings: what the study was made with, as text: the space, its constraints, the direction,
            the seed and, if it runs, more.
        rows: a copy.
        name: of its folder; empty in memory.
        goal: what is wanted of several outcomes; ``None`` for one objective alone.
    """

    space: Space
    maximize: bool
    settings: dict[str, str]
    rows: Rows
    asks: Sequence[Ask]
    costs: dict[int, AskReport]
    sources: Sequence[Source]
    find_beliefs: Callable[[], Sequence[Belief]]
    find_success: Callable[[], Belief | None]
    name: str = ""
    goal: Goal | None = None

    @cached_property
    def beliefs(self) -> Sequence[Belief]:
        """The surrogate's posterior of each outcome, given all values so far, made at the first
        look. There is none before there are two values, and where a folder does not tell: with a
        kernel of its own.
        """
        return self.find_beliefs()

    @cached_property
    def success(self) -> Belief | None:
        """The posterior of whether an evaluation succeeds; ``None`` where too few have failed."""
        return self.find_success()

    @cached_property
    def wanted(self) -> Goal:
        """The goal, also of one objective alone."""
        return Goal.of_one(self.maximize) if self.goal is None else self.goal

    @cached_property
    def outcomes(self) -> Tensor:
        """The values of all outcomes, (N, m)."""
        return self.rows.outcomes(len(self.wanted.names))

    @cached_property
    def allowed(self) -> Tensor:
        """The outcomes, (N, m), NaN where a point breaks a constraint of the space."""
        return self.rows.allowed_outcomes(self.space, len(self.wanted.names))

    @cached_property
    def feasible(self) -> np.ndarray:
        """Which rows, (N,), have a value and keep all constraints and limits."""
        return self.wanted.feasible(self.allowed).numpy()

    @cached_property
    def ranked(self) -> np.ndarray:
        """The rows with a value, the best first: the front of several objectives, then by the first
        one, and at the end what is not feasible. Of equal rows the first comes first.
        """
        rows = np.array(self.rows.observed, dtype=np.int64)
        values = self.rows.values.numpy()[rows]
        front = np.zeros(len(rows), dtype=bool)
        if self.wanted.num_objectives > 1:
            front = self.wanted.front(self.allowed).numpy()[rows]
        signed = -values if self.maximize else values
        return rows[np.lexsort((signed, ~front, ~self.feasible[rows]))]

    @property
    def best_row(self) -> int | None:
        """The row of the best feasible value; ``None`` if there is none, or several objectives."""
        has_best = self.feasible.any() and self.wanted.num_objectives == 1
        return int(self.ranked[0]) if has_best else None

    @cached_property
    def shown_row(self) -> int | None:
        """The row around which the surrogate is shown: the recommended one; of several objectives
        the one of the front whose worst objective is best, each on the scale of the front; where no
        row is feasible the one that comes nearest; ``None`` without a value.
        """
        rows = self.rows.observed
        if not rows:
            return None
        Y = self.allowed[rows]
        if not self.feasible.any():
            Y = Y if Y.isfinite().any() else self.outcomes[rows]
            return rows[self.wanted.least_violating(Y)]
        if self.wanted.num_objectives > 1:
            on_front = self.wanted.front(Y).nonzero().flatten()
            front = self.wanted.signed(Y[on_front])
            low, high = front.aminmax(dim=0)
            scaled = (front - low) / torch.where(high > low, high - low, 1.0)
            return rows[int(on_front[scaled.amin(1).argmax()])]
        is_slow = len(rows) > EXACT_UP_TO and all(ask.refitted is None for ask in self.asks)
        if self.goal is not None or is_slow or not self.beliefs:
            return self.best_row
        return rows[self.beliefs[0].recommend(self.rows.X[rows], Y[:, 0])]


def take_snapshot(
    space: Space,
    record: StudyRecord,
    find_beliefs: Callable[[], Sequence[Belief]],
    find_success: Callable[[], Belief | None],
    name: str,
    machinery: Mapping[str, str],
) -> Snapshot:
    """Return a study as it stands; ``machinery`` are settings of the computation, as text."""
    with record.lock:
        now = record.contents
        now.rows.allowed_outcomes(space, 1)  # checked here, so that no copy checks it again
        known = deepcopy(now.rows), tuple(now.asks), dict(now.costs), tuple(now.sources)
    settings = {**describe_settings(record.settings), **machinery}
    found = (find_beliefs, find_success, name, record.goal)
    return Snapshot(space, record.maximize, settings, *known, *found)


def to_frame(space: Space, rows: Rows, goal: Goal | None = None) -> pd.DataFrame:
    """Return all rows by id, as ``Study.to_dataframe`` does."""
    frame = space.to_frame(rows.X)
    import pandas as pd

    reasons = [rows.reasons.get(row, "") for row in range(len(rows))]
    columns: list[tuple[str, Any]] = [("value", rows.values.numpy().copy())]
    if goal is not None:
        Y = rows.outcomes(len(goal.names))
        columns = [(name, Y[:, j].numpy().copy()) for j, name in enumerate(goal.names)]
        allowed = rows.allowed_outcomes(space, len(goal.names))
        columns += [("feasible", goal.feasible(allowed).numpy())]
        if goal.num_objectives > 1:
            columns += [("front", goal.front(allowed).numpy())]
    columns += [("noise", rows.noise.numpy().copy()), ("status", rows.status())]
    columns += [("reason", reasons), ("ask", rows.asks.numpy().copy())]
    for name, times in zip(("asked", "told"), rows.times.T.numpy(), strict=False):
        # pandas counts nanoseconds here, up to 2262: what a wrong clock said beyond is no time
        found = pd.to_datetime(times, unit="s", utc=True, errors="coerce")
        columns += [(name, found.as_unit("us"))]
    columns += [("seconds", rows.times[:, 2].numpy().copy())]
    columns += [("note", [rows.notes.get(row, "") for row in range(len(rows))])]
    names = distinct([name for name, _ in columns], frame)
    for name, (_, column) in zip(names, columns, strict=True):
        frame[name] = column
    (frame.index.name,) = distinct(["id"], frame)
    return frame
