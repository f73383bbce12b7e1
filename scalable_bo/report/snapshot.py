"""A study as it stands at one moment, for those who only look at it: from the study itself,
or from its folder while it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from scalable_bo.modelling.factory import MEAN_WEIGHTS, Band, Curve, SurrogateFactory, curves_of
from scalable_bo.modelling.training import TrainingData
from scalable_bo.space.cells import apart
from scalable_bo.space.goal import Goal
from scalable_bo.space.space import Space
from scalable_bo.storage.checkpoints import Checkpoint, load_checkpoint
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
        mean: the surrogate's posterior mean as of the last ask, from points (k, d) in the user's
            units to values (k,) in the user's; ``None`` before the first, and where a folder does
            not tell: with a kernel of its own.
        name: of its folder; empty in memory.
        goal: what is wanted of several outcomes; ``None`` for one objective alone.
        band: likewise what lies two standard deviations below ``mean`` and above it; ``None`` where
            there is no mean, and among more than 2000 values.
    """

    space: Space
    maximize: bool
    settings: dict[str, str]
    rows: Rows
    asks: Sequence[Ask]
    costs: dict[int, AskReport]
    sources: Sequence[Source]
    mean: Curve | None
    name: str = ""
    goal: Goal | None = None
    band: Band | None = None

    @property
    def best_row(self) -> int | None:
        """The row of the best feasible value; ``None`` if there is none, or several objectives."""
        rows = self.rows
        if not rows.observed:
            return None
        if self.goal is not None:
            best = self.goal.best(rows.outcomes(len(self.goal.names))[rows.observed])
            return None if best is None else rows.observed[best]
        values = rows.values[rows.observed]
        return rows.observed[int(values.argmax() if self.maximize else values.argmin())]


def read_snapshot(folder: Path) -> Snapshot:
    """Return what is stored in a study's folder, which another process may use; nothing there is
    run or imported.

    Raises:
        ValueError: if there is no study, or its parameters cannot be read.
        RuntimeError: if the database is damaged or of a newer version.
    """
    with closing(SQLiteStorage.copy_of(folder)) as storage:
        settings = storage.load_settings()
        assert settings is not None  # a database is made with them
        space = Space.from_dict({**settings["space"], "constraints": []})
        maximize = settings["direction"] == "maximize"
        found = storage.load(space.dim)
        asks = found.asks
        checkpoint = load_checkpoint(storage.checkpoints, asks[-1].number) if asks else None
        dtype = torch.float64 if checkpoint is None else checkpoint.tensors[MEAN_WEIGHTS].dtype
        factory = SurrogateFactory.default(space.encoded_dim, dtype, torch.device("cpu"))
        mean, band = _curves_in_units(factory, checkpoint, space, found.rows, asks, maximize)
        texts = describe_settings(settings)
        known = (found.rows, asks, found.costs, found.sources)
        name = folder.absolute().name
        return Snapshot(space, maximize, texts, *known, mean, name, read_goal(settings), band)


def take_snapshot(
    space: Space,
    maximize: bool,
    num_initial: int,
    record: StudyRecord,
    factory: SurrogateFactory,
    checkpoint: Checkpoint | None,
) -> Snapshot:
    """Return a study as it stands; ``checkpoint`` is of its surrogate, ``None`` for the stored
    one.
    """
    with record.lock:
        rows = record.copy_rows()
        asks = tuple(record.asks)
        costs = dict(record.costs)
        sources = tuple(record.sources)
    folder = record.storage.checkpoints
    if checkpoint is None and folder is not None and asks:
        checkpoint = load_checkpoint(folder, asks[-1].number)
    mean, band = _curves_in_units(factory, checkpoint, space, rows, asks, maximize)
    solver = "chosen by the number of points" if factory.solver is None else repr(factory.solver)
    settings = describe_settings(record.settings) | {
        "initial values": str(num_initial),
        "solver": solver,
        "kernel": " ".join(str(factory.kernel).split()),
        "computed in": f"{factory.dtype} on {factory.device}",
    }
    name = "" if folder is None else folder.absolute().parent.name
    known = (rows, asks, costs, sources)
    return Snapshot(space, maximize, settings, *known, mean, name, record.goal, band)


def to_frame(space: Space, rows: Rows, goal: Goal | None = None) -> pd.DataFrame:
    """Return all rows by id, as ``Study.to_dataframe`` does."""
    frame = space.to_frame(rows.X)
    told = np.where(rows.values.isfinite(), "observed", "failed")
    status = np.where(rows.told, told, "pending")
    reasons = [rows.reasons.get(row, "") for row in range(len(rows))]
    columns: list[tuple[str, Any]] = [("value", rows.values.numpy().copy())]
    if goal is not None:
        Y = rows.outcomes(len(goal.names))
        columns = [(name, Y[:, j].numpy().copy()) for j, name in enumerate(goal.names)]
        columns += [("feasible", goal.feasible(Y).numpy())]
        if goal.num_objectives > 1:
            columns += [("front", goal.front(Y).numpy())]
    columns += [("noise", rows.noise.numpy().copy()), ("status", status), ("reason", reasons)]
    columns += [("ask", rows.asks.numpy().copy())]
    names = apart([name for name, _ in columns], frame)
    for name, (_, column) in zip(names, columns, strict=True):
        frame[name] = column
    (frame.index.name,) = apart(["id"], frame)
    return frame


def _curves_in_units(
    factory: SurrogateFactory,
    checkpoint: Checkpoint | None,
    space: Space,
    rows: Rows,
    asks: Sequence[Ask],
    maximize: bool,
) -> tuple[Curve | None, Band | None]:
    """Return ``Snapshot.mean`` and ``Snapshot.band`` behind a checkpoint, each ``None`` where there
    is none.
    """
    if checkpoint is None or checkpoint.ask > len(asks):  # it may be of an ask that runs
        return None, None
    num_observed = asks[checkpoint.ask - 1].num_observed
    data = TrainingData.first(num_observed, rows, space, maximize)
    curves = curves_of(factory, data, checkpoint)
    if curves is None:
        return None, None
    mean, band = curves
    sign = 1.0 if maximize else -1.0

    def in_units(X: Tensor) -> tuple[Tensor, Tensor]:
        assert band is not None  # where this is returned
        edges = [sign * edge for edge in band(space.normalize(X))]
        return (edges[0], edges[1]) if maximize else (edges[1], edges[0])

    return lambda X: sign * mean(space.normalize(X)), None if band is None else in_units
