"""The folder of a study: a SQLite database of everything asked, told and added.

    study.sqlite    the rows; the single source of truth
    checkpoints/    the surrogate after the last two asks, derived from the rows
    lock            held by the one process that writes

Every method that writes is one transaction, on disk when it returns (write-ahead log, synchronous
FULL).
"""

from __future__ import annotations

import math
import sqlite3
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from scalable_bo.study.lock import WriterLock
from scalable_bo.study.rounds import AskReport
from scalable_bo.study.rows import Outcomes, Rows
from surrogates.atomic import sync_folder

APPLICATION_ID = 0x5342_4F31  # in the file's header, where `file` and others look
_NOT_THE_CONTENT = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_BUSY,
}
SCHEMA_VERSION = 2
READ_AT_ONCE = 100_000
COSTS = """
CREATE TABLE costs (
    ask INTEGER PRIMARY KEY,
    seconds_fit REAL NOT NULL,
    seconds_solve REAL NOT NULL,
    seconds_acquisition REAL NOT NULL,
    residual REAL,         -- NULL for points of the design
    solver TEXT NOT NULL
);
"""
# By version: the statements that lead to the next one, run in one transaction.
MIGRATIONS = {1: COSTS}
SCHEMA = f"""
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE asks (
    number INTEGER PRIMARY KEY,
    num_points INTEGER NOT NULL,
    num_observed INTEGER NOT NULL,
    num_drawn INTEGER NOT NULL,
    refitted INTEGER
);
CREATE TABLE sources (
    name TEXT PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,
    first_id INTEGER NOT NULL,
    num_rows INTEGER NOT NULL
);
CREATE TABLE points (
    id INTEGER PRIMARY KEY,
    ask INTEGER NOT NULL,  -- 0 for added data
    x BLOB NOT NULL,       -- little-endian doubles in the user's units, one a varying parameter
    told INTEGER,          -- 0, 1, ... in the order told; NULL while pending
    value REAL,            -- NULL while pending and if failed
    noise REAL,
    reason TEXT            -- why it failed
);
{COSTS}
"""


@dataclass(frozen=True)
class Ask:
    """One ask.

    Attributes:
        number: from 1.
        num_points: q.
        num_observed: the values that the surrogate, or the design, knew.
        num_drawn: points drawn from the design so far.
        refitted: whether hyperparameters were fitted; ``None`` if the points are of the design.
    """

    number: int
    num_points: int
    num_observed: int
    num_drawn: int
    refitted: bool | None


@dataclass(frozen=True)
class Source:
    """Data that were added in one call: ``num_rows`` rows from ``first_id`` on,
    and a digest of their content.
    """

    name: str
    digest: str
    first_id: int
    num_rows: int


class Storage:
    """The database in ``folder``, created with ``settings`` or opened; held until ``close``.

    Raises:
        RuntimeError: if another process holds the folder, or the database is damaged or of a newer
            version.
        ValueError: if the study in the folder has other settings.
        OSError: if the disk is full or cannot be read.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        lock = WriterLock(folder / "lock")
        try:
            database = folder / "study.sqlite"
            if not database.exists():
                if (folder / "checkpoints").exists() or (folder / "study.sqlite-wal").exists():
                    raise RuntimeError(_damaged(folder, "study.sqlite is missing"))
                _create(database, settings)
            self._connection = self._open(_connect(database))
        except BaseException:
            lock.release()
            raise
        self._close = weakref.finalize(self, _close, self._connection, lock)
        if difference := describe_difference(self.load_settings(), settings):
            self.close()
            raise ValueError(
                f"The study in {folder} was made with other settings:\n{difference}\nUse what is"
                " stored, or another `path` for a new study."
            )

    @classmethod
    def copy_of(cls, folder: Path) -> Self:
        """Return a copy in memory of what is stored at this moment; another process may go on
        writing.

        Raises:
            ValueError: if the folder holds no study.
            RuntimeError: if the database is damaged or of a newer version.
        """
        database = folder / "study.sqlite"
        if not database.is_file():
            raise ValueError(
                f"`folder` must hold a study, got {folder} without a study.sqlite. Give the `path`"
                " of a `Study`."
            )
        self = cls.__new__(cls)
        self.folder = folder
        copy = _connect(":memory:")
        try:
            with closing(
                sqlite3.connect(f"{database.absolute().as_uri()}?mode=rw", uri=True)
            ) as source:
                source.backup(copy)
        except sqlite3.Error as error:
            copy.close()
            raise RuntimeError(_damaged(folder, str(error))) from error
        self._connection = self._open(copy)
        self._close = weakref.finalize(self, _close, self._connection, None)
        return self

    @property
    def checkpoints(self) -> Path:
        """The folder of the surrogate's checkpoints."""
        return self.folder / "checkpoints"

    def close(self) -> None:
        """Release the folder; a second call does nothing."""
        self._close()

    def load_settings(self) -> dict[str, str]:
        """Read what the study was made with, in the order given."""
        return dict(self._connection.execute("SELECT name, value FROM settings ORDER BY rowid"))

    def load_rows(self, dim: int) -> Rows:
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
                raise RuntimeError(_damaged(self.folder, "rows are missing or of another length"))
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
            observed = rows.values.isfinite().nonzero().flatten()
            rows.observed = observed[order[observed].argsort()].tolist()
        return rows

    def load_asks(self) -> list[Ask]:
        """Read all asks, in order."""
        found = self._connection.execute(
            "SELECT number, num_points, num_observed, num_drawn, refitted FROM asks ORDER BY number"
        )
        return [
            Ask(number, q, n, drawn, None if refitted is None else bool(refitted))
            for number, q, n, drawn, refitted in found
        ]

    def load_costs(self) -> dict[int, AskReport]:
        """Read what asks cost, by their number; those of older versions are not there."""
        found = self._connection.execute(
            "SELECT ask, seconds_fit, seconds_solve, seconds_acquisition, residual, solver FROM"
            " costs ORDER BY ask"
        )
        return {number: AskReport(*cost) for number, *cost in found}

    def load_sources(self) -> list[Source]:
        """Read which data were added."""
        return [
            Source(*row)
            for row in self._connection.execute(
                "SELECT name, digest, first_id, num_rows FROM sources ORDER BY first_id"
            )
        ]

    def add_ask(self, ask: Ask, cost: AskReport, first_id: int, X: Tensor) -> None:
        """Store an ask, what it cost, and its points (q, d)."""
        with self._transaction() as connection:
            connection.execute("INSERT INTO asks VALUES (?, ?, ?, ?, ?)", astuple(ask))
            connection.execute(
                "INSERT INTO costs VALUES (?, ?, ?, ?, ?, ?)", (ask.number, *astuple(cost))
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

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        if not self._close.alive:
            raise RuntimeError(f"The study in {self.folder} has been closed. Open it again.")
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise OSError(
                f"The study in {self.folder} could not be written: {error}. Nothing of this call"
                " was stored; free space or repair the disk, and repeat it."
            ) from error
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _open(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        """Check a database and bring it to this version of the schema; close it if that fails."""
        try:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if application != APPLICATION_ID:
                raise RuntimeError(_damaged(self.folder, "study.sqlite is no database of a study"))
            if version > SCHEMA_VERSION:
                raise RuntimeError(
                    f"The study in {self.folder} has version {version} of the schema, this"
                    f" scalable_bo reads up to {SCHEMA_VERSION}. Install a newer scalable_bo."
                )
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA trusted_schema = OFF")
            problems = [line for (line,) in connection.execute("PRAGMA quick_check(3)")]
            if problems != ["ok"]:
                raise RuntimeError(_damaged(self.folder, "; ".join(problems)))
            for number in range(version, SCHEMA_VERSION):
                self._migrate(connection, number)
        except sqlite3.DatabaseError as error:
            connection.close()
            if error.sqlite_errorcode & 0xFF in _NOT_THE_CONTENT:
                raise OSError(
                    f"The study in {self.folder} could not be opened: {error}. Free space or repair"
                    " the disk, and open it again."
                ) from error
            raise RuntimeError(_damaged(self.folder, str(error))) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _migrate(self, connection: sqlite3.Connection, version: int) -> None:
        """Bring a database from one version of the schema to the next."""
        try:
            connection.executescript(
                f"BEGIN IMMEDIATE; {MIGRATIONS[version]}; PRAGMA user_version = {version + 1};"
                " COMMIT"
            )
        except sqlite3.Error as error:
            raise RuntimeError(
                f"The study in {self.folder} could not be brought from version {version} of the"
                f" schema to {version + 1}: {error}. It is as it was. Free space on the disk and"
                " open it again, or use the scalable_bo that made it."
            ) from error


def describe_difference(stored: Mapping[str, str], given: Mapping[str, str]) -> str:
    """Return one line for each setting that is not the same; nothing if all are."""
    names = [*stored, *(name for name in given if name not in stored)]
    return "\n".join(
        f"  {name}: stored {stored.get(name, 'nothing')}, given {given.get(name, 'nothing')}"
        for name in names
        if stored.get(name) != given.get(name)
    )


def _create(database: Path, settings: Mapping[str, str]) -> None:
    """Make the database under another name first: a ``study.sqlite`` is there whole or not at
    all.
    """
    temporary = database.with_name("study.sqlite.new")
    for leftover in (temporary, temporary.with_name(temporary.name + "-journal")):
        leftover.unlink(missing_ok=True)
    try:
        with closing(_connect(temporary)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            connection.executescript(
                f"BEGIN; {SCHEMA}; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version ="
                f" {SCHEMA_VERSION}; COMMIT"
            )
            connection.execute("BEGIN")
            connection.executemany("INSERT INTO settings VALUES (?, ?)", settings.items())
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise OSError(
            f"The study in {database.parent} could not be created: {error}. Free space or repair"
            " the disk, and repeat it."
        ) from error
    temporary.rename(database)
    sync_folder(database.parent)


def _connect(database: Path | str) -> sqlite3.Connection:
    return sqlite3.connect(database, isolation_level=None, check_same_thread=False)


def _close(connection: sqlite3.Connection, lock: WriterLock | None) -> None:
    connection.close()
    if lock is not None:
        lock.release()


def _damaged(folder: Path, why: str) -> str:
    return (
        f"The study in {folder} is damaged: {why}. Restore the folder from a copy, or save what can"
        " be read with `sqlite3 study.sqlite .recover` and begin a new study."
    )


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
