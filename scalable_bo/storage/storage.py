"""Where a study keeps what it knows: the ``Storage`` protocol, and the one in memory.

A further storage is a class with these methods, given as ``Study(space, ..., storage=...)``, and a
line in the suite that all of them pass (``tests/scalable_bo/storage/test_storages.py``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from scalable_bo.storage.rounds import AskReport
from scalable_bo.storage.rows import Outcomes, Rows


class NoStudyError(ValueError):
    """There is no study at a place."""


@dataclass(frozen=True)
class Ask:
    """One ask.

    Attributes:
        number: from 1.
        num_points: q, without those of the queue.
        num_observed: the values that the surrogate, or the design, knew.
        num_drawn: points drawn from the design so far.
        refitted: whether hyperparameters were fitted; ``None`` if the points are of the design, or
            by models of some values each, of which nothing is kept.
    """

    number: int
    num_points: int
    num_observed: int
    num_drawn: int
    refitted: bool | None


@dataclass(frozen=True)
class Source:
    """Data added in one call: ``num_rows`` rows from ``first_id`` on, and their digest."""

    name: str
    digest: str
    first_id: int
    num_rows: int


@dataclass(frozen=True)
class Change:
    """What a point had been told before it was withdrawn or corrected.

    Attributes:
        time: of the change, in UTC, as ISO 8601 has it.
        kind: "withdrawn" or "corrected".
        id: of the point.
        value: before, of several outcomes the first; ``None`` where it had failed.
        noise: its known variance before, else ``None``.
        reason: why it had failed, else ``None``.
        why: it was changed, as the user says.
        outcomes: of several, those that were known before, by name.
    """

    time: str
    kind: str
    id: int
    value: float | None
    noise: float | None
    reason: str | None
    why: str
    outcomes: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        before = ", ".join(f"{name} = {y:.6g}" for name, y in self.outcomes.items())
        if not before:
            before = f"failed ({self.reason})" if self.value is None else f"{self.value:.6g}"
        why = f": {self.why}" if self.why else ""
        return f"{self.id}, which was {before}{why}"


@dataclass(eq=False)
class Contents:
    """All that has been stored.

    Attributes:
        rows: what was asked or added, and what became of it.
        queue: (k, d) points that the next asks give out, in order.
        costs: of asks, by number; those of older versions are not there.
    """

    rows: Rows
    queue: Tensor
    asks: list[Ask] = field(default_factory=list)
    costs: dict[int, AskReport] = field(default_factory=dict)
    sources: list[Source] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)

    @classmethod
    def empty(cls, dim: int) -> Self:
        """Return what there is in the beginning, of ``dim`` parameters."""
        rows = Rows(dim)
        return cls(rows, rows.X)

    def adopt(self, contents: Contents) -> None:
        """Become what other contents are."""
        vars(self).update(vars(contents))

    def add_queued(self, X: Tensor) -> None:
        """Do what ``Storage`` does, as all of these."""
        self.queue = torch.cat([self.queue, X])

    def add_ask(
        self, ask: Ask, cost: AskReport, first_id: int, X: Tensor, num_queued: int = 0
    ) -> None:
        self.rows.append(X, ask.number, cost.time)
        self.queue = self.queue[num_queued:]
        self.asks.append(ask)
        self.costs[ask.number] = cost

    def add_outcomes(self, ids: Sequence[int], outcomes: Outcomes, first_told: int) -> None:
        self.rows.record(ids, outcomes)

    def add_source(self, source: Source, X: Tensor, outcomes: Outcomes, first_told: int) -> None:
        self.rows.record(self.rows.append(X, 0), outcomes)
        self.sources.append(source)

    def set_note(self, id: int, text: str) -> None:
        self.rows.notes[id] = text

    def remove_outcomes(self, ids: Sequence[int]) -> None:
        self.rows.forget(ids)

    def replace_outcomes(
        self,
        ids: Sequence[int],
        outcomes: Outcomes,
        first_told: int,
        asks: Sequence[Ask],
        changes: Sequence[Change],
    ) -> None:
        self.rows.replace(ids, outcomes)
        self.asks[:] = asks
        self.changes.extend(changes)


class Write(NamedTuple):
    """A call of a method of a ``Storage`` that writes."""

    name: str
    arguments: tuple[Any, ...]

    def apply(self, target: Any) -> None:
        """Call the method of a storage, or of ``Contents``."""
        getattr(target, self.name)(*self.arguments)


class Checkpoints(Protocol):
    """Where checkpoints of the surrogate are kept, as bytes by the number of their ask."""

    def numbers(self) -> list[int]:
        """Return the numbers of all, the newest first."""

    def read(self, number: int) -> bytes:
        """Return one of them."""

    def write(self, number: int, content: bytes) -> None:
        """Keep one, complete or not at all."""

    def remove(self, number: int) -> None:
        """Remove one; there may be none."""

    def describe(self, number: int) -> str:
        """Return what warnings call one of them."""


@runtime_checkable
class Storage(Protocol):
    """What a study needs of the place that keeps it.

    A study is the one writer of its storage. Each method that writes does all of it or, on an
    error, nothing, and what it wrote lasts when it returns; ``load`` then gives back the same to
    the last bit. Methods are called one at a time, from any thread.
    """

    @property
    def name(self) -> str:
        """What errors call the study, such as "The study in runs/tuning"."""

    @property
    def checkpoints(self) -> Checkpoints | None:
        """Where checkpoints of the surrogate are kept; ``None`` to keep none."""

    def load_settings(self) -> dict[str, Any] | None:
        """Return what the study was made with; ``None`` if nothing has been stored."""

    def save_settings(self, settings: Mapping[str, Any]) -> None:
        """Store what the study is made with, as JSON can hold it, in place of what was stored."""

    def load(self, dim: int) -> Contents:
        """Return all that is stored, of ``dim`` parameters, for the caller to change.

        Raises:
            RuntimeError: if it does not fit together.
        """

    def add_queued(self, X: Tensor) -> None:
        """Store points (k, d) at the end of the queue."""

    def add_ask(
        self, ask: Ask, cost: AskReport, first_id: int, X: Tensor, num_queued: int = 0
    ) -> None:
        """Store an ask, what it cost, and its points (q, d), whose ids begin at ``first_id``; the
        first ``num_queued`` of them leave the queue, from whose head they are.
        """

    def add_outcomes(self, ids: Sequence[int], outcomes: Outcomes, first_told: int) -> None:
        """Store what was told of pending points; the first is the ``first_told``-th that was told
        at all, counted from 0. Those that are not ``outcomes.are_whole`` stay pending.
        """

    def add_source(self, source: Source, X: Tensor, outcomes: Outcomes, first_told: int) -> None:
        """Store added data: points (n, d) and their outcomes."""

    def set_note(self, id: int, text: str) -> None:
        """Store what the user notes of a point, in place of what was noted before."""

    def remove_outcomes(self, ids: Sequence[int]) -> None:
        """Make points that were told pending again."""

    def replace_outcomes(
        self,
        ids: Sequence[int],
        outcomes: Outcomes,
        first_told: int,
        asks: Sequence[Ask],
        changes: Sequence[Change],
    ) -> None:
        """Store other outcomes of points that were told, as if they were told now, with the asks as
        they are then, and what the points had been told before.
        """

    def require_writable(self) -> None:
        """Raise RuntimeError where nothing can be written any more, as after ``close``."""

    def close(self) -> None:
        """Let others open the storage; a second call does nothing."""


@runtime_checkable
class SharedStorage(Storage, Protocol):
    """A storage that any number of processes write."""

    def writing(self) -> AbstractContextManager[list[Write]]:
        """Keep other writers out of a block, whose writes last together or not at all, and give it
        what they have written, in order, and has not been removed from the list since ``load``.
        """

    def asking(self) -> AbstractContextManager[None]:
        """Keep the asks of others out of a block, not their other writes."""

    def optimizing(self, budget: int) -> AbstractContextManager[None]:
        """Let the asks of a block be for so many points at most; or, if other processes are in such
        a block, for what is left of the budget that the first of them brought. It is one budget for
        all of them.
        """

    def num_left(self) -> int | None:
        """Return what is left of the budget; ``None`` outside of such a block."""

    def claim(self, ids: Sequence[int], evaluates: bool) -> list[int]:
        """Return those of pending points that nobody evaluates, and keep them for this process: of
        processes that have released them, have ended at them if one ``evaluates`` them itself, or
        have not told them in the time for it.
        """

    def release(self) -> None:
        """Let others evaluate the points that this process has asked for and not told."""


class CopyingStorage(Storage, Protocol):
    """A storage that may begin with what another has kept."""

    def adopt(self, settings: Mapping[str, Any], contents: Contents) -> None:
        """Store all of a study; there is none yet."""


def _appending(name: str) -> Callable[..., None]:
    """Return the method of a ``LoggedStorage`` that keeps its calls."""
    return lambda self, *arguments: self._append(name, *arguments)


class LoggedStorage(ABC):
    """A storage that keeps the calls of its methods that write, one after the other."""

    @abstractmethod
    def _append(self, name: str, *arguments: Any) -> None:
        """Keep a call."""

    def add_ask(
        self, ask: Ask, cost: AskReport, first_id: int, X: Tensor, num_queued: int = 0
    ) -> None:
        self._append("add_ask", ask, cost, first_id, X, num_queued)

    add_queued = _appending("add_queued")
    add_outcomes = _appending("add_outcomes")
    add_source = _appending("add_source")
    set_note = _appending("set_note")
    remove_outcomes = _appending("remove_outcomes")
    replace_outcomes = _appending("replace_outcomes")


class MemoryStorage(LoggedStorage):
    """A storage that lasts as long as the object: a study in it may be opened again."""

    name = "The study in memory"
    checkpoints = None

    def __init__(self) -> None:
        self._settings: dict[str, Any] | None = None
        self._contents: Contents | None = None

    def load_settings(self) -> dict[str, Any] | None:
        return deepcopy(self._settings)

    def save_settings(self, settings: Mapping[str, Any]) -> None:
        self._settings = deepcopy(dict(settings))

    def load(self, dim: int) -> Contents:
        if self._contents is None:
            self._contents = Contents.empty(dim)
        return deepcopy(self._contents)

    def require_writable(self) -> None:
        """Do nothing: memory can always be written."""

    def close(self) -> None:
        """Do nothing: nobody else can open it."""

    def _append(self, name: str, *arguments: Any) -> None:
        assert self._contents is not None  # a study loads before it adds
        Write(name, arguments).apply(self._contents)
