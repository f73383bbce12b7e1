"""The storage of a study in a folder: a SQLite database of everything asked, told and added.

    study.sqlite    the rows; the single source of truth
    backup.sqlite   a copy of it, made when the study is closed and now and then before
    writes          how often it has been written
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
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from scalable_bo.storage import seals
from scalable_bo.storage.database import (
    DamagedError,
    WriterLock,
    back_up,
    check_and_migrate,
    connect,
    copy_into,
    create,
    damaged,
    reading,
    require_database,
)
from scalable_bo.storage.rounds import AskReport
from scalable_bo.storage.rows import Outcomes, Rows
from scalable_bo.storage.storage import Ask, Change, Contents, Source

# The columns of what is read and written whole, in the order of their dataclasses
ASK = "number, num_points, num_observed, num_drawn, refitted"
COST = (
    "ask, seconds_fit, seconds_solve, seconds_acquisition, residual, solver, converged, choice,"
    " error"
)
SOURCE = "name, digest, first_id, num_rows"
CHANGE = "time, kind, id, value, noise, reason, why"
READ_AT_ONCE = 100_000
SECONDS_BETWEEN_BACKUPS = 60.0
SHARE_OF_BACKUPS = 0.02  # at most, of the time that a study is open


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

    def __init__(self, folder: Path, must_exist: bool = False) -> None:
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
        self._held = _Held(folder, lock)
        self._close = weakref.finalize(self, self._held.close)
        try:
            if database.exists():
                writes = seals.read_count(folder / "writes")
                self._held.connection = check_and_migrate(connect(database), folder, writes)
            elif (folder / "checkpoints").exists() or (folder / "study.sqlite-wal").exists():
                raise DamagedError(damaged(folder, "study.sqlite is missing"))
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
        writes = seals.read_count(folder / "writes")  # before more of them are copied
        try:
            with reading(folder):
                copy_into(copy, folder / "study.sqlite")
        except BaseException:
            copy.close()
            raise
        self._held = _Held(folder, None)
        self._close = weakref.finalize(self, self._held.close)
        self._held.connection = check_and_migrate(copy, folder, writes)
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
        with reading(self.folder):
            found = self._connection.execute("SELECT name, value FROM settings ORDER BY rowid")
            return {name: json.loads(value) for name, value in found}

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
            connection.executemany(
                "INSERT INTO settings (name, value) VALUES (?, ?)", texts.items()
            )
            seals.seal(connection, "settings")

    def load(self, dim: int) -> Contents:
        """Read all that is stored, of ``dim`` parameters.

        Raises:
            RuntimeError: if it does not fit together.
        """
        with reading(self.folder):
            queued = [x for (x,) in self._connection.execute("SELECT x FROM queue ORDER BY id")]
            return Contents(
                self._load_rows(dim),
                self._read_points(queued, dim),
                self._load_asks(),
                self._load_costs(),
                self._load_sources(),
                self._load_changes(),
            )

    def add_queued(self, X: Tensor) -> None:
        """Store points (k, d) at the end of the queue."""
        with self._transaction() as connection:
            connection.executemany(
                "INSERT INTO queue (x) VALUES (?)", ((blob,) for blob in _blobs(X))
            )
            seals.seal(connection, "queue")

    def add_ask(
        self, ask: Ask, cost: AskReport, first_id: int, X: Tensor, num_queued: int = 0
    ) -> None:
        """Store an ask, what it cost, and its points (q, d), of which some leave the queue."""
        with self._transaction() as connection:
            connection.execute(f"INSERT INTO asks ({ASK}) VALUES (?, ?, ?, ?, ?)", astuple(ask))
            connection.execute(
                f"INSERT INTO costs ({COST}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (ask.number, *astuple(cost)),
            )
            connection.executemany(
                "INSERT INTO points (id, ask, x) VALUES (?, ?, ?)",
                (
                    (first_id + position, ask.number, blob)
                    for position, blob in enumerate(_blobs(X))
                ),
            )
            connection.execute(
                "DELETE FROM queue WHERE id IN (SELECT id FROM queue ORDER BY id LIMIT ?)",
                (num_queued,),
            )
            seals.seal(connection, "asks", "WHERE number = ?", ask.number)
            seals.seal(connection, "costs", "WHERE ask = ?", ask.number)
            seals.seal(connection, "points", "WHERE id >= ?", first_id)

    def add_outcomes(self, ids: Sequence[int], outcomes: Outcomes, first_told: int) -> None:
        """Store what was told of asked points."""
        told = range(first_told, first_told + len(ids))
        with self._transaction() as connection:
            connection.executemany(
                "UPDATE points SET told = ?, value = ?, noise = ?, reason = ?, further = ? WHERE id"
                " = ? AND told IS NULL",
                ((*row, id) for row, id in zip(_outcome_rows(outcomes, told), ids, strict=True)),
            )
            seals.seal_rows(connection, "points", ids)

    def add_source(self, source: Source, X: Tensor, outcomes: Outcomes, first_told: int) -> None:
        """Store added data: points (n, d) and their outcomes."""
        told = range(first_told, first_told + len(X))
        with self._transaction() as connection:
            connection.execute(
                f"INSERT INTO sources ({SOURCE}) VALUES (?, ?, ?, ?)", astuple(source)
            )
            connection.executemany(
                "INSERT INTO points (id, ask, x, told, value, noise, reason, further) VALUES (?, 0,"
                " ?, ?, ?, ?, ?, ?)",
                (
                    (source.first_id + position, blob, *row)
                    for position, (blob, row) in enumerate(
                        zip(_blobs(X), _outcome_rows(outcomes, told), strict=True)
                    )
                ),
            )
            seals.seal(connection, "sources", "WHERE name = ?", source.name)
            seals.seal(connection, "points", "WHERE id >= ?", source.first_id)

    def remove_outcomes(self, ids: Sequence[int]) -> None:
        """Make points that were told pending again."""
        with self._transaction() as connection:
            connection.executemany(
                "UPDATE points SET told = NULL, value = NULL, noise = NULL, reason = NULL,"
                " further = NULL WHERE id = ?",
                ((id,) for id in ids),
            )
            seals.seal_rows(connection, "points", ids)

    def replace_outcomes(
        self,
        ids: Sequence[int],
        outcomes: Outcomes,
        first_told: int,
        asks: Sequence[Ask],
        changes: Sequence[Change],
    ) -> None:
        """Store other outcomes of points that were told, the asks as they are then, and what the
        points had been told before.
        """
        told = range(first_told, first_told + len(ids))
        with self._transaction() as connection:
            connection.executemany(
                "UPDATE points SET told = ?, value = ?, noise = ?, reason = ?, further = ? WHERE id"
                " = ?",
                ((*row, id) for row, id in zip(_outcome_rows(outcomes, told), ids, strict=True)),
            )
            connection.executemany(
                "UPDATE asks SET num_observed = ? WHERE number = ?",
                ((ask.num_observed, ask.number) for ask in asks),
            )
            connection.executemany(
                f"INSERT INTO changes ({CHANGE}) VALUES (?, ?, ?, ?, ?, ?, ?)",
                map(astuple, changes),
            )
            seals.seal_rows(connection, "points", ids)
            seals.seal(connection, "asks")
            seals.seal(connection, "changes", "WHERE seal IS NULL")

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
            "SELECT id, ask, x, told, value, noise, reason, further FROM points ORDER BY id"
        )
        more: dict[int, bytes] = {}
        count = 0
        while chunk := cursor.fetchmany(READ_AT_ONCE):
            ids, asks, blobs, told, values, noise, reasons, further = zip(*chunk, strict=True)
            if ids != tuple(range(count, count + len(ids))):
                raise DamagedError(damaged(self.folder, "rows are missing"))
            count += len(ids)
            rows.reasons |= {
                row: reason for row, reason in zip(ids, reasons, strict=True) if reason is not None
            }
            more |= {row: blob for row, blob in zip(ids, further, strict=True) if blob is not None}
            X = self._read_points(blobs, dim)
            order = torch.tensor(
                [-1 if number is None else number for number in told], device="cpu"
            )
            parts.append(
                (X, torch.tensor(asks, device="cpu"), _reals(values), _reals(noise), order)
            )
        if parts:
            rows.X, rows.asks, rows.values, rows.noise, order = map(
                torch.cat, zip(*parts, strict=True)
            )
            width = len(next(iter(more.values()), b"")) // 8
            rows.further = torch.full((count, width), math.nan, dtype=torch.float64, device="cpu")
            if more:
                rows.further[list(more)] = self._read_points(list(more.values()), width)
            rows.told = order >= 0
            rows.next_told = int(order.max()) + 1
            observed = (rows.told & rows.values.isfinite()).nonzero().flatten()
            rows.observed = observed[order[observed].argsort()].tolist()
        return rows

    def _read_points(self, blobs: Sequence[bytes], dim: int) -> Tensor:
        """Return points (n, dim)."""
        if any(len(blob) != 8 * dim for blob in blobs):
            raise DamagedError(damaged(self.folder, "points are of another length"))
        numbers = np.frombuffer(b"".join(blobs), dtype="<f8").astype(np.float64)
        return torch.from_numpy(numbers.reshape(-1, dim))

    def _load_asks(self) -> list[Ask]:
        """Read all asks, in order."""
        found = self._connection.execute(f"SELECT {ASK} FROM asks ORDER BY number")
        return [
            Ask(number, q, n, drawn, None if refitted is None else bool(refitted))
            for number, q, n, drawn, refitted in found
        ]

    def _load_costs(self) -> dict[int, AskReport]:
        """Read what asks cost, by their number; those of older versions are not there."""
        found = self._connection.execute(f"SELECT {COST} FROM costs ORDER BY ask")
        costs = {}
        for number, *numbers, converged, choice, error in found:
            fit, solve, acquisition, residual, solver = numbers
            costs[number] = AskReport(
                fit,
                solve,
                acquisition,
                residual,
                solver,
                None if converged is None else bool(converged),
                choice,
                error,
            )
        return costs

    def _load_sources(self) -> list[Source]:
        """Read which data were added."""
        return [
            Source(*row)
            for row in self._connection.execute(f"SELECT {SOURCE} FROM sources ORDER BY first_id")
        ]

    def _load_changes(self) -> list[Change]:
        """Read what was changed, in order."""
        found = self._connection.execute(f"SELECT {CHANGE} FROM changes ORDER BY number")
        return [Change(*row) for row in found]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self.require_writable()
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            writes = seals.count_write(connection)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise OSError(
                f"The study in {self.folder} could not be written: {error}. Nothing of this call"
                " was stored; free space or repair the disk, and repeat it."
            ) from error
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        seals.write_count(self.folder / "writes", writes)
        self._held.back_up_at_times()


@dataclass(eq=False)
class _Held:
    """What is open until the storage is closed, in the process that opened it."""

    folder: Path
    lock: WriterLock | None
    connection: sqlite3.Connection | None = None
    process: int = field(default_factory=os.getpid)
    is_backed_up: bool = True
    next_backup: float = field(default_factory=lambda: time.monotonic() + SECONDS_BETWEEN_BACKUPS)

    def back_up_at_times(self) -> None:
        """After a write: back up if it is time to."""
        self.is_backed_up = False
        if time.monotonic() > self.next_backup:
            self.back_up()

    def back_up(self) -> None:
        """Copy the database, as far as the disk allows it."""
        assert self.connection is not None
        start = time.monotonic()
        with suppress(OSError):
            back_up(self.connection, self.folder / "backup.sqlite")
            self.is_backed_up = True
        end = time.monotonic()
        self.next_backup = end + max(SECONDS_BETWEEN_BACKUPS, (end - start) / SHARE_OF_BACKUPS)

    def close(self) -> None:
        if self.process != os.getpid():  # all of it is the parent's
            return
        if self.connection is not None:
            if not self.is_backed_up:
                self.back_up()
            self.connection.close()
        if self.lock is not None:
            self.lock.release()


def _blobs(X: Tensor) -> Iterator[memoryview]:
    content = memoryview(X.numpy().astype("<f8").tobytes())
    size = 8 * X.shape[1]
    return (content[start : start + size] for start in range(0, len(content), size))


def _outcome_rows(
    outcomes: Outcomes, told: Sequence[int]
) -> Iterator[tuple[int | None, float | None, float | None, str | None, memoryview | None]]:
    further = list(_blobs(outcomes.further)) if outcomes.further.shape[1] else []
    whole = outcomes.are_whole.tolist()
    for start in range(0, len(told), READ_AT_ONCE):
        part = slice(start, start + READ_AT_ONCE)
        for position, number, value, noise in zip(
            range(start, len(told)),
            told[part],
            outcomes.values[part].tolist(),
            outcomes.noise[part].tolist(),
            strict=False,
        ):
            reason = outcomes.reasons.get(position)
            blob = further[position] if further and reason is None else None
            place = number if whole[position] else None
            yield place, _null(value), _null(noise), reason, blob


def _null(number: float) -> float | None:
    return None if math.isnan(number) else number


def _reals(numbers: Sequence[float | None]) -> Tensor:
    return torch.from_numpy(np.array(numbers, dtype=np.float64))
