"""A study as it stands at one moment, for those who only look at it: from the study itself,
or from where it is kept while it runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from acquisition.strategies import make_strategy
from scalable_bo.modelling.belief import QUICK_UP_TO, Belief, believe
from scalable_bo.modelling.factory import MEAN_WEIGHTS, SurrogateFactory, mean_of
from scalable_bo.modelling.fitting import fit_warped, is_for_few, randomness
from scalable_bo.modelling.outcome_models import OutcomeModels
from scalable_bo.modelling.training import FEWEST_VALUES, TrainingData
from scalable_bo.space.cell_texts import apart
from scalable_bo.space.goal import Goal
from scalable_bo.space.space import Space
from scalable_bo.storage.checkpoints import Checkpoint, load_checkpoint
from scalable_bo.storage.places import Place
from scalable_bo.storage.record import StudyRecord, describe_settings, read_goal
from scalable_bo.storage.rounds import AskReport
from scalable_bo.storage.rows import Rows
from scalable_bo.storage.sqlite import SQLiteStorage
from scalable_bo.storage.storage import Ask, Source

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What is known of a study.

    Attributes:
        space: of a folder, without its constraints.
        maximize: whether larger values are better.
        settings: what the study was made with, as text: the space, its constraints, the direction,
            the seed and, if it runs, more.
        rows: a copy.
        asks: in order.
        costs: of asks, by number.
        sources: of added data.
        find_beliefs: makes ``beliefs``.
        find_success: makes ``success``.
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
    def outcomes(self) -> Tensor:
        """The values of all outcomes, (N, m)."""
        return self.rows.outcomes(1 if self.goal is None else len(self.goal.names))

    @cached_property
    def feasible(self) -> np.ndarray:
        """Which rows, (N,), have a value and keep the limits on outcomes."""
        Y = self.outcomes
        kept = Y.isfinite().all(1) if self.goal is None else self.goal.feasible(Y)
        return kept.numpy()

    @cached_property
    def ranked(self) -> np.ndarray:
        """The rows with a value, the best first: the front of several objectives, then by the first
        one, and at the end what breaks a limit. Of equal rows the first comes first.
        """
        rows = np.array(self.rows.observed, dtype=np.int64)
        values = self.rows.values.numpy()[rows]
        front = np.zeros(len(rows), dtype=bool)
        if self.goal is not None and self.goal.num_objectives > 1:
            front = self.goal.front(self.outcomes).numpy()[rows]
        signed = -values if self.maximize else values
        return rows[np.lexsort((signed, ~front, ~self.feasible[rows]))]

    @property
    def best_row(self) -> int | None:
        """The row of the best feasible value; ``None`` if there is none, or several objectives."""
        several = self.goal is not None and self.goal.num_objectives > 1
        return int(self.ranked[0]) if self.feasible.any() and not several else None

    @cached_property
    def shown_row(self) -> int | None:
        """The row around which the surrogate is shown: the recommended one; of several objectives
        the one of the front whose worst objective is best, each on the scale of the front; where no
        row is feasible the one that comes nearest; ``None`` without a value.
        """
        rows = self.rows.observed
        goal = self.goal
        if not rows:
            return None
        if goal is not None:
            Y = self.outcomes[rows]
            if not self.feasible.any():
                return rows[goal.least_violating(Y)]
            if goal.num_objectives == 1:
                return self.best_row
            on_front = goal.front(Y).nonzero().flatten()
            front = goal.signed(Y[on_front])
            low, high = front.aminmax(dim=0)
            scaled = (front - low) / torch.where(high > low, high - low, 1.0)
            return rows[int(on_front[scaled.amin(1).argmax()])]
        if not self.beliefs or all(ask.refitted is None for ask in self.asks):
            return self.best_row
        return rows[self.beliefs[0].recommend(self.rows.X[rows], self.rows.values[rows])]


def read_snapshot(path: str | os.PathLike[str], name: str | None = None) -> Snapshot:
    """Return what is stored of a study, which other processes may use; nothing there is run or
    imported.

    Args:
        path: the folder that it is kept in, or the URL of a database.
        name: of the study in a database.
    Raises:
        ValueError: if there is no study, or its parameters cannot be read.
        OSError: if the database cannot be reached.
        RuntimeError: if the database is damaged or of a newer version.
    """
    with closing(Place(path, name).look()) as storage:
        settings = storage.load_settings()
        assert settings is not None  # a database is made with them
        space = Space.from_dict({**settings["space"], "constraints": []})
        maximize = settings["direction"] == "maximize"
        found = storage.load(space.dim)
        checkpoint = None
        if found.asks:
            checkpoint = load_checkpoint(storage.checkpoints, found.asks[-1].number)
    snapshot = Snapshot(
        space,
        maximize,
        describe_settings(settings),
        *(found.rows, found.asks, found.costs, found.sources),
        find_beliefs=lambda: _stored_beliefs(snapshot, settings, checkpoint),
        find_success=lambda: _stored_success(snapshot, settings),
        name=name or Path(path).absolute().name,
        goal=read_goal(settings),
    )
    return snapshot


def _stored_success(snapshot: Snapshot, settings: Mapping[str, Any]) -> Belief | None:
    """Return ``Snapshot.success`` by a fit."""
    data = TrainingData.of_success(snapshot.rows, snapshot.space)
    if data is None:
        return None
    dim = snapshot.space.encoded_dim
    factory = SurrogateFactory.default(dim, torch.float64, torch.device("cpu"))
    generator = randomness(settings["seed"], len(snapshot.asks) + 1)
    return believe(snapshot.space, data, factory, generator)


def _stored_beliefs(
    snapshot: Snapshot, settings: Mapping[str, Any], checkpoint: Checkpoint | None
) -> list[Belief]:
    """Return ``Snapshot.beliefs`` by the hyperparameters of a checkpoint or, where no ask has been
    by a surrogate and for several outcomes, by those of a fit.
    """
    space = snapshot.space
    rows = snapshot.rows
    asks = snapshot.asks
    goal = snapshot.goal
    n = len(rows.observed)
    dtype = torch.float64 if checkpoint is None else checkpoint.tensors[MEAN_WEIGHTS].dtype
    factory = SurrogateFactory.default(space.encoded_dim, dtype, torch.device("cpu"))
    random = partial(randomness, settings["seed"])
    if n < FEWEST_VALUES:
        return []
    if goal is not None:

        def first(num_observed: int) -> list[TrainingData]:
            ids = rows.observed[:num_observed] + rows.partly_told.tolist()
            U = space.normalize(rows.X[ids])
            return TrainingData.of_each(U, snapshot.outcomes[ids], goal.signs)

        models, data, _ = OutcomeModels(factory, random).of(len(asks) + 1, n, asks, first)
        return [Belief(space, *of) for of in zip(goal.signs, models, data, strict=True)]
    sign = 1.0 if snapshot.maximize else -1.0
    told = TrainingData.first(n, rows, space, snapshot.maximize)
    if checkpoint is None:
        if any(ask.refitted is not None for ask in asks):
            return []
        strategy = make_strategy(settings.get("strategy", "thompson"), None)
        few = is_for_few(strategy, 1, n)
        model, told = fit_warped(factory, told, random(0), few=few)
        return [Belief(space, sign, factory.build(told, model), told)]
    num_observed = asks[checkpoint.ask - 1].num_observed
    before = TrainingData.first(num_observed, rows, space, snapshot.maximize)
    restored = factory.restore(before, checkpoint)
    if restored is None:
        return []
    told = told.on(restored[1].scale_name)
    model = factory.build(told, restored[0])
    mean = mean_of(factory, before, checkpoint) if n > QUICK_UP_TO else None
    quick = None if mean is None else (lambda X: sign * mean(space.normalize(X)))
    return [Belief(space, sign, model, told, quick)]


def take_snapshot(
    space: Space,
    maximize: bool,
    num_initial: int,
    record: StudyRecord,
    factory: SurrogateFactory,
    find_beliefs: Callable[[], Sequence[Belief]],
    find_success: Callable[[], Belief | None],
) -> Snapshot:
    """Return a study as it stands."""
    with record.lock:
        known = (record.copy_rows(), tuple(record.asks), dict(record.costs), tuple(record.sources))
    solver = "chosen by the number of points" if factory.solver is None else repr(factory.solver)
    settings = describe_settings(record.settings) | {
        "initial values": str(num_initial),
        "solver": solver,
        "kernel": " ".join(str(factory.kernel).split()),
        "computed in": f"{factory.dtype} on {factory.device}",
    }
    storage = record.storage
    name = storage.folder.absolute().name if isinstance(storage, SQLiteStorage) else ""
    return Snapshot(
        space, maximize, settings, *known, find_beliefs, find_success, name, record.goal
    )


def to_frame(space: Space, rows: Rows, goal: Goal | None = None) -> pd.DataFrame:
    """Return all rows by id, as ``Study.to_dataframe`` does."""
    frame = space.to_frame(rows.X)
    import pandas as pd

    reasons = [rows.reasons.get(row, "") for row in range(len(rows))]
    columns: list[tuple[str, Any]] = [("value", rows.values.numpy().copy())]
    if goal is not None:
        Y = rows.outcomes(len(goal.names))
        columns = [(name, Y[:, j].numpy().copy()) for j, name in enumerate(goal.names)]
        columns += [("feasible", goal.feasible(Y).numpy())]
        if goal.num_objectives > 1:
            columns += [("front", goal.front(Y).numpy())]
    columns += [("noise", rows.noise.numpy().copy()), ("status", rows.status())]
    columns += [("reason", reasons)]
    columns += [("ask", rows.asks.numpy().copy())]
    for name, times in zip(("asked", "told"), rows.times.T.numpy(), strict=False):
        columns += [(name, pd.to_datetime(times, unit="s", utc=True).as_unit("us"))]
    columns += [("seconds", rows.times[:, 2].numpy().copy())]
    columns += [("note", [rows.notes.get(row, "") for row in range(len(rows))])]
    names = apart([name for name, _ in columns], frame)
    for name, (_, column) in zip(names, columns, strict=True):
        frame[name] = column
    (frame.index.name,) = apart(["id"], frame)
    return frame
