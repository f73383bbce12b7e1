"""The storage of a study in a folder: a SQLite database of everything asked, told and added.

    study.sqlite    the rows; the single source of truth
    checkpoints/    the surrogate after the last two asks, derived from the rows
    lock            held by the one process that writes

Every method that writes is one transaction, on disk when it returns (write-ahead log, synchronous
FULL).
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from scalable_bo.storage.database import (
    WriterLock,
    check_and_migrate,
    connect,
    copy_into,
    create,
    damaged,
    require_database,
)
from scalable_bo.storage.rounds import AskReport
from scalable_bo.storage.rows import Outcomes, Rows
from scalable_bo.storage.storage import Ask, Contents, Source

READ_AT_ONCE = 100_000


class SQLiteStorage:
    """The database in ``folder``; held until ``close``, and made by the first ``save_settings``.

    Args:
        folder: made at need.
        must_exist: refuse a folder that holds no study.
    Raises:
        RuntimeError: if another process holds the folder, or the database is damaged or of a newer
            version.
        ValueError: if ``folder`` is a file, or holds no study that must be there.
        OSError: if the disk is full, read-only or cannot be read.
    """

    def __init__(self, folder: Path, *, must_exist: bool = False) -> None:
        self.folder = folder
        database = folder / "study.sqlite"
        if must_exist:
            require_database(folder)
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"`path` must be a folder, got the file {folder}. Name another.")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = WriterLock(folder / "lock")
        except OSError as error:
            raise OSError(
                f"{self.name} could not be opened: {error.strerror}. Make the folder writable; to"
                " look at what is stored, use `scalable-bo status`, `export` or `report`."
            ) from error
        self._held = _Held(lock)
        self._close = weakref.finalize(self, self._held.close)
        try:
            if database.exists():
                self._held.connection = check_and_migrate(connect(database), folder)
            elif (folder / "checkpoints").exists() or (folder / "study.sqlite-wal").exists():
                raise RuntimeError(damaged(folder, "study.sqlite is missing"))
        except BaseException:
            self.close()
            raise

    @classmethod
    def copy_of(cls, folder: Path) -> Self:
        """Return a copy in memory of what is stored at this moment; another process may go on
        writing.

        Raises:
            ValueError: if the folder holds no study.
            RuntimeError: if the database is damaged or of a newer version.
        """
        require_database(folder)
        self = cls.__new__(cls)
        self.folder = folder
        copy = connect(":memory:")
        try:
            copy_into(copy, folder / "study.sqlite")
        except sqlite3.Error as error:
            copy.close()
            raise RuntimeError(damaged(folder, str(error))) from error
        self._held = _Held(None)
        self._close = weakref.finalize(self, self._held.close)
        self._held.connection = check_and_migrate(copy, folder)
        return self

    @property
    def name(self) -> str:
        """What errors call the study."""
        return f"The study in {self.folder}"

    @property
    def checkpoints(self) -> Path:
        """The folder of the surrogate's checkpoints."""
        return self.folder / "checkpoints"

    def close(self) -> None:
        """Release the folder; a second call does nothing."""
        self._close()

    def require_writable(self) -> None:
        """Raise RuntimeError after ``close``, and in a process that was forked from the one that
        opened the folder.
        """
        if not self._close.alive:
            raise RuntimeError(f"{self.name} has been closed. Open it again.")
        if self._held.process != os.getpid():
            raise RuntimeError(
                f"{self.name} belongs to process {self._held.process}, from which this one was"
                " forked, and one process writes. Return the values to that process, and tell them"
                " there."
            )

    def load_settings(self) -> dict[str, Any] | None:
        """Read what the study was made with, in the order given."""
        if self._held.connection is None:
            return None
        found = self._connection.execute("SELECT name, value FROM settings ORDER BY rowid")
        try:
            return {name: json.loads(value) for name, value in found}
        except ValueError as error:
            raise RuntimeError(damaged(self.folder, f"its settings are no JSON: {error}")) from None

    def save_settings(self, settings: Mapping[str, Any]) -> None:
        """Store what the study is made with; the first time, make the database."""
        texts = {name: json.dumps(value) for name, value in settings.items()}
        if self._held.connection is None:
            self.require_writable()
            database = self.folder / "study.sqlite"
            create(database, texts)
            self._held.connection = check_and_migrate(connect(database), self.folder)
            return
        with self._transaction() as connection:
            connection.execute("DELETE FROM settings")
            connection.executemany("INSERT INTO settings VALUES (?, ?)", texts.items())

    def load(self, dim: int) -> Contents:
        """Read all that is stored, of ``dim`` parameters.

        Raises:
            RuntimeError: if it does not fit together.
        """
        return Contents(
            self._load_rows(dim), self._load_asks(), self._load_costs(), self._load_sources()
        )

    def add_ask(self, ask: Ask, cost: AskReport, first_id: int, X: Tensor) -> None:
        """Store an ask, what it cost, and its points (q, d)."""
        with self._transaction() as connection:
            connection.execute("INSERT INTO asks VALUES (?, ?, ?, ?, ?)", astuple(ask))
            connection.execute(
                "INSERT INTO costs VALUES (?, ?, ?, ?, ?, ?, ?)",
                (ask.number, *astuple(cost)[:-1]),
            )
            connection.executemany(
                "INSERT INTO points (id, ask, x) VALUES (?, ?, ?)",
                (
                    (first_id + position, ask.number, blob)
                    for position, blob in enumerate(_blobs(X))
                ),
            )

    def add_outcomes(self, ids: Sequence[int], outcomes: Outcomes, first_told: int) -> None:
        """Store what was told of asked points."""
        told = range(first_told, first_told + len(ids))
        with self._transaction() as connection:
            connection.executemany(
                "UPDATE points SET told = ?, value = ?, noise = ?, reason = ? WHERE id = ? AND told"
                " IS NULL",
                ((*row, id) for row, id in zip(_outcome_rows(outcomes, told), ids, strict=True)),
            )

    def add_source(self, source: Source, X: Tensor, outcomes: Outcomes, first_told: int) -> None:
        """Store added data: points (n, d) and their outcomes."""
        told = range(first_told, first_told + len(X))
        with self._transaction() as connection:
            connection.execute("INSERT INTO sources VALUES (?, ?, ?, ?)", astuple(source))
            connection.executemany(
                "INSERT INTO points (id, ask, x, told, value, noise, reason) VALUES (?, 0, ?, ?, ?,"
                " ?, ?)",
                (
                    (source.first_id + position, blob, *row)
                    for position, (blob, row) in enumerate(
                        zip(_blobs(X), _outcome_rows(outcomes, told), strict=True)
                    )
                ),
            )

    def remove_outcomes(self, ids: Sequence[int]) -> None:
        """Make points that were told pending again."""
        with self._transaction() as connection:
            connection.executemany(
                "UPDATE points SET told = NULL, value = NULL, noise = NULL, reason = NULL WHERE id"
                " = ?",
                ((id,) for id in ids),
            )

    @property
    def _connection(self) -> sqlite3.Connection:
        if not self._close.alive:
            raise RuntimeError(f"{self.name} has been closed. Open it again.")
        assert self._held.connection is not None  # a study saves its settings first
        return self._held.connection

    def _load_rows(self, dim: int) -> Rows:
        """Read all rows, of ``dim`` parameters.

        Raises:
            RuntimeError: if they do not fit together.
        """
        rows = Rows(dim)
        parts: list[tuple[Tensor, ...]] = []
        cursor = self._connection.execute(
            "SELECT id, ask, x, told, value, noise, reason FROM points ORDER BY id"
        )
        count = 0
        while chunk := cursor.fetchmany(READ_AT_ONCE):
            ids, asks, blobs, told, values, noise, reasons = zip(*chunk, strict=True)
            if ids != tuple(range(count, count + len(ids))) or any(
                len(blob) != 8 * dim for blob in blobs
            ):
                raise RuntimeError(damaged(self.folder, "rows are missing or of another length"))
            count += len(ids)
            rows.reasons |= {
                row: reason for row, reason in zip(ids, reasons, strict=True) if reason is not None
            }
            X = torch.from_numpy(
                np.frombuffer(b"".join(blobs), dtype="<f8").reshape(-1, dim).copy()
            )
            order = torch.tensor([-1 if number is None else number for number in told])
            parts.append((X, torch.tensor(asks), _reals(values), _reals(noise), order))
        if parts:
            rows.X, rows.asks, rows.values, rows.noise, order = map(
                torch.cat, zip(*parts, strict=True)
            )
            rows.told = order >= 0
            rows.next_told = int(order.max()) + 1
            observed = rows.values.isfinite().nonzero().flatten()
            rows.observed = observed[order[observed].argsort()].tolist()
        return rows

    def _load_asks(self) -> list[Ask]:
        """Read all asks, in order."""
        found = self._connection.execute(
            "SELECT number, num_points, num_observed, num_drawn, refitted FROM asks ORDER BY number"
        )
        return [
            Ask(number, q, n, drawn, None if refitted is None else bool(refitted))
            for number, q, n, drawn, refitted in found
        ]

    def _load_costs(self) -> dict[int, AskReport]:
        """Read what asks cost, by their number; those of older versions are not there."""
        found = self._connection.execute(
            "SELECT ask, seconds_fit, seconds_solve, seconds_acquisition, residual, solver,"
            " converged FROM costs ORDER BY ask"
        )
        costs = {}
        for number, fit, solve, acquisition, residual, solver, converged in found:
            solved = None if converged is None else bool(converged)
            costs[number] = AskReport(fit, solve, acquisition, residual, solver, solved)
        return costs

    def _load_sources(self) -> list[Source]:
        """Read which data were added."""
        return [
            Source(*row)
            for row in self._connection.execute(
                "SELECT name, digest, first_id, num_rows FROM sources ORDER BY first_id"
            )
        ]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self.require_writable()
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise OSError(
                f"The study in {self.folder} could not be written: {error}. Nothing of this call"
                " was stored; free space or repair the disk, and repeat it."
            ) from error
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


@dataclass(eq=False)
class _Held:
    """What is open until the storage is closed, in the process that opened it."""

    lock: WriterLock | None
    connection: sqlite3.Connection | None = None
    process: int = field(default_factory=os.getpid)

    def close(self) -> None:
        if self.process != os.getpid():  # all of it is the parent's
            return
        if self.connection is not None:
            self.connection.close()
        if self.lock is not None:
            self.lock.release()


def _blobs(X: Tensor) -> Iterator[memoryview]:
    content = memoryview(X.numpy().astype("<f8").tobytes())
    size = 8 * X.shape[1]
    return (content[start : start + size] for start in range(0, len(content), size))


def _outcome_rows(
    outcomes: Outcomes, told: Sequence[int]
) -> Iterator[tuple[int, float | None, float | None, str | None]]:
    for start in range(0, len(told), READ_AT_ONCE):
        part = slice(start, start + READ_AT_ONCE)
        for position, number, value, noise in zip(
            range(start, len(told)),
            told[part],
            outcomes.values[part].tolist(),
            outcomes.noise[part].tolist(),
            strict=False,
        ):
            yield number, _null(value), _null(noise), outcomes.reasons.get(position)


def _null(number: float) -> float | None:
    return None if math.isnan(number) else number


def _reals(numbers: Sequence[float | None]) -> Tensor:
    return torch.from_numpy(np.array(numbers, dtype=np.float64))
