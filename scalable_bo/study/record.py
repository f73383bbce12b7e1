"""What a study knows: its storage, and the same in memory, changed together."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from torch import Tensor

from scalable_bo.study.history import History
from scalable_bo.study.rounds import AskReport
from scalable_bo.study.rows import Outcomes, Rows, few
from scalable_bo.study.settings import require_same_settings
from scalable_bo.study.storage import Ask, Source, Storage


class Record:
    """The contents of a storage, for any thread; every change is stored when its method returns.

    Args:
        storage: new, or of a study with the same settings; closed if it is of another.
        settings: what the study is made with.
        names: of the parameters that vary.
    Attributes:
        lock: to hold while more than one thing is read.
        rows, asks, costs, sources: as in ``Contents``.
    Raises:
        ValueError: if the storage is of a study with other settings.
    """

    def __init__(self, storage: Storage, settings: Mapping[str, Any], names: Sequence[str]) -> None:
        self.storage = storage
        self.settings = settings
        self.lock = threading.RLock()
        self._names = names
        try:
            stored = storage.load_settings()
            if stored is not None:
                require_same_settings(storage.name, stored, settings)
            if stored != settings:  # new, or of an older version that kept less
                storage.save_settings(settings)
            self._load()
        except BaseException:
            storage.close()
            raise

    def _load(self) -> None:
        found = self.storage.load(len(self._names))
        self.rows: Rows = found.rows
        self.asks: list[Ask] = found.asks
        self.costs: dict[int, AskReport] = found.costs
        self.sources: list[Source] = found.sources

    def add_ask(self, X: Tensor, ask: Ask, cost: AskReport) -> list[int]:
        """Add an ask, its points (q, d) and what it cost; return their ids."""
        with self.lock, self._stored():
            self.storage.add_ask(ask, cost, len(self.rows), X)
            ids = self.rows.append(X, ask.number)
            self.asks.append(ask)
            self.costs[ask.number] = cost
        return ids

    def tell(self, ids: Sequence[int], outcomes: Outcomes) -> None:
        """Give pending rows their outcomes; what was told before is left out.

        Raises:
            ValueError: as ``Rows.untold``.
        """
        with self.lock:
            new, outcomes = self.rows.untold(ids, outcomes)
            if not new:
                return
            with self._stored():
                self.storage.add_outcomes(new, outcomes, self.rows.next_told)
                self.rows.record(new, outcomes)

    def add_history(self, history: History) -> None:
        """Add data, but for the same a second time.

        Raises:
            ValueError: as ``History.was_added`` and ``Rows.require_same_noise``.
        """
        with self.lock:
            if history.was_added(self.sources, self.rows, self._names):
                return
            self.rows.require_same_noise(history.outcomes)
            source = Source(history.name, history.digest, len(self.rows), len(history.X))
            with self._stored():
                first_told = self.rows.next_told
                self.storage.add_source(source, history.X, history.outcomes, first_told)
                self.rows.record(self.rows.append(history.X, 0), history.outcomes)
                self.sources.append(source)

    def retry(self, ids: Sequence[int] | None) -> None:
        """Make rows that failed pending again; ``None`` for all.

        Raises:
            ValueError: if a row did not fail.
        """
        with self.lock:
            failed = self.rows.reasons
            chosen = sorted(failed) if ids is None else list(dict.fromkeys(ids))
            if other := [number for number in chosen if number not in failed]:
                raise ValueError(f"`ids` must be of points that failed, got {few(other)}.")
            if chosen:
                with self._stored():
                    self.storage.remove_outcomes(chosen)
                    self.rows.forget(chosen)

    def copy_rows(self) -> Rows:
        """Return a copy of the rows."""
        with self.lock:
            return deepcopy(self.rows)

    @contextmanager
    def _stored(self) -> Iterator[None]:
        """Change the storage and then the rows; interrupted between the two, or if one fails,
        read again what has been stored.
        """
        self.storage.require_writable()
        try:
            yield
        except BaseException:
            self._load()
            raise
