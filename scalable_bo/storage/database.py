"""The file behind the storage in a folder: a SQLite database that one process writes at a time, and
that is checked and brought to the newest version of the schema when it is opened.

The lock is one of the operating system's on a file: it ends with the process that holds it, however
that ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import socket
import sqlite3
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from scalable_bo.storage import seals
from scalable_bo.storage.legacy import write_as_json
from surrogates.atomic import open_own, replacing, require_own, sync_folder

APPLICATION_ID = 0x5342_4F31  # in the file's header, where `file` and others look
_NOT_THE_CONTENT = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_BUSY,
}
SCHEMA_VERSION = 9
FIRST_SEALED = 6
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
# Whether the solver's tolerance was reached; NULL where that was not noted
CONVERGED = "ALTER TABLE costs ADD COLUMN converged INTEGER;"
# How points were chosen and why; empty where that was not noted
CHOICE = "ALTER TABLE costs ADD COLUMN choice TEXT NOT NULL DEFAULT '';"
# Of the mean and the paths, in posterior standard deviations; NULL where no solver tells it. From
# then on pending points may have values of some outcomes, which older versions would misread.
ERROR = "ALTER TABLE costs ADD COLUMN error REAL;"
# Points that the next asks give out, in order; and the values of outcomes after the first, doubles
# as in x, NULL where there are none
QUEUE = """
CREATE TABLE queue (id INTEGER PRIMARY KEY, x BLOB NOT NULL);
ALTER TABLE points ADD COLUMN further BLOB;
"""
CHANGES = """
CREATE TABLE changes (
    number INTEGER PRIMARY KEY,
    time TEXT NOT NULL,
    kind TEXT NOT NULL,
    id INTEGER NOT NULL,  -- of a point. The next three are what it was told before
    value REAL,
    noise REAL,
    reason TEXT,
    why TEXT NOT NULL
);
"""
# By version: what leads to the next one, statements or a function, run in one transaction.
MIGRATIONS: dict[int, str | Callable[[sqlite3.Connection], None]] = {
    1: COSTS,
    2: write_as_json,
    3: CONVERGED,
    4: CHOICE,
    5: seals.ENDS,
    6: QUEUE,
    7: CHANGES,
    8: ERROR,
}
FIRST_SCHEMA = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);  -- JSON
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
    value REAL,            -- NULL if failed, and while pending unless other outcomes are missing
    noise REAL,
    reason TEXT            -- why it failed
);
"""
SCHEMA = FIRST_SCHEMA + "".join(step for step in MIGRATIONS.values() if isinstance(step, str))
# What reading damaged content raises: SQLite's errors, and whatever else its Python module, or what
# takes the values that it returns, makes of them
UNREADABLE = (
    sqlite3.Error,
    sqlite3.Warning,
    ArithmeticError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
_held: weakref.WeakSet[WriterLock] = weakref.WeakSet()


class DamagedError(RuntimeError):
    """A study is not whole."""


class WriterLock:
    """Hold ``path`` for this process until ``release``; the file says by whom.

    A process that died, even by SIGKILL, holds nothing. Children made by ``fork`` do not inherit
    the lock.

    Raises:
        RuntimeError: if another writer holds it, naming its process and host; if it is a link.
    """

    def __init__(self, path: Path) -> None:
        descriptor = open_own(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._file = os.fdopen(descriptor, "r+", encoding="utf-8", errors="replace")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.seek(0)
            holder = _read_holder(self._file.read(1000))
            self._file.close()
            remedy = "Wait for it to end, or use another `path`."
            if holder == _holder():
                holder += ", this one"
                remedy = (
                    "Call `close()` of the study that was opened first, or go on with that one."
                )
            raise RuntimeError(
                f"The study in {path.parent} is in use by {holder}. {remedy}"
            ) from error
        self._file.truncate(0)
        with suppress(OSError):  # a full disk: the lock holds without the note
            os.write(
                self._file.fileno(),
                json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(),
            )
        _held.add(self)

    def release(self) -> None:
        """Let others write; a second call does nothing."""
        if not self._file.closed:
            # A child that was just forked may still have the file open
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file.close()


def check_and_migrate(
    connection: sqlite3.Connection, folder: Path, writes: int = 0
) -> sqlite3.Connection:
    """Check a database, which was written at least ``writes`` times, and bring it to this version
    of the schema; close it if that fails.
    """
    try:
        with reading(folder):
            version = _check(connection, folder, writes)
        for number in range(version, SCHEMA_VERSION):
            _migrate(connection, number, folder)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Report whatever the content of a study's database leads to in the block.

    Raises:
        DamagedError: if the content cannot be read.
        OSError: if it is for another reason, such as a disk that is full.
    """
    try:
        yield
    except UNREADABLE as error:
        why = str(error) or type(error).__name__
        # Errors of the Python module, such as of text that it cannot decode, have no code
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        # The header of a file that can be written may forbid it
        writable = code == sqlite3.SQLITE_READONLY and os.access(folder / "study.sqlite", os.W_OK)
        if code in _NOT_THE_CONTENT and not writable:
            raise OSError(
                f"The study in {folder} could not be opened: {why}. Free space or repair"
                " the disk, and open it again."
            ) from error
        raise DamagedError(damaged(folder, f"study.sqlite cannot be read: {why}")) from error


def definitions(connection: sqlite3.Connection) -> set[tuple[str, ...]]:
    """Return what a database defines: kind, name, and the parts of the definition, of which
    migrations add the columns of a table in any order.
    """
    found = set()
    for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_master"):
        head, _, columns = re.sub("--.*", "", sql or "").partition("(")
        parts = [head, *sorted(columns.strip().removesuffix(")").split(","))]
        found.add((kind, name, *(" ".join(part.split()) for part in parts)))
    return found


@cache
def definitions_of(version: int) -> set[tuple[str, ...]]:
    """Return what a database of this version of the schema defines."""
    with closing(connect(":memory:")) as connection:
        if version == SCHEMA_VERSION:
            connection.executescript(SCHEMA)
            seals.seal_all(connection)
        else:
            connection.executescript(FIRST_SCHEMA)
            for number in range(1, version):
                _migrate(connection, number, Path())
        return definitions(connection)


def _check(connection: sqlite3.Connection, folder: Path, writes: int) -> int:
    """Check a database, and return the version of its schema. Nothing is read of tables that are
    not of a study: a view in the place of one may never end.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise DamagedError(damaged(folder, "study.sqlite is no database of a study"))
    if version > SCHEMA_VERSION:
        raise RuntimeError(
            f"The study in {folder} has version {version} of the schema, this"
            f" scalable_bo reads up to {SCHEMA_VERSION}. Install a newer scalable_bo; if there is"
            f" none, move study.sqlite away: `scalable-bo repair {folder}` restores its backup."
        )
    if version < 1:
        raise DamagedError(damaged(folder, f"version {version} of the schema does not exist"))
    if other := definitions(connection) ^ definitions_of(version):
        names = ", ".join(sorted({f"{kind} {name}" for kind, name, *_ in other}))
        raise DamagedError(
            damaged(folder, f"of its schema, these are not those of version {version}: {names}")
        )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    # The header may forbid to write, which is only found by writing
    connection.executescript(f"BEGIN; PRAGMA user_version = {version}; ROLLBACK")
    problems = [line for (line,) in connection.execute("PRAGMA quick_check(3)")]
    if problems != ["ok"]:
        raise DamagedError(damaged(folder, "; ".join(problems)))
    if version >= FIRST_SEALED:
        if problem := seals.find_damage(connection):
            raise DamagedError(damaged(folder, problem))
        (written,) = connection.execute("SELECT writes FROM ends").fetchone()
        if written < writes:
            raise DamagedError(
                damaged(folder, f"the last {writes - written} of {writes} writes are missing")
            )
    return int(version)


def require_database(folder: Path) -> None:
    """Require that the folder holds a study."""
    if not (folder / "study.sqlite").is_file():
        raise ValueError(
            f"`folder` must hold a study, got {folder} without a study.sqlite. Give the `path` of a"
            " `Study`."
        )


def copy_into(copy: sqlite3.Connection, database: Path) -> None:
    """Copy what is committed in a database that others may write."""
    _require_own(database)
    try:
        uri = f"{database.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True)) as source:
            source.backup(copy)
    except sqlite3.OperationalError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            raise
        # On a read-only disk, where SQLite cannot make the index of the log, nobody writes.
        with TemporaryDirectory() as folder:
            for file in (database, database.with_name("study.sqlite-wal")):
                if file.exists():
                    shutil.copy(file, folder)
            with closing(sqlite3.connect(Path(folder) / database.name)) as source:
                source.backup(copy)


def create(database: Path, settings: Mapping[str, str]) -> None:
    """Make the database under another name first: a ``study.sqlite`` is there whole or not at
    all.
    """
    temporary = database.with_name("study.sqlite.new")
    for leftover in (temporary, temporary.with_name(temporary.name + "-journal")):
        leftover.unlink(missing_ok=True)
    try:
        with closing(connect(temporary)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            connection.executescript(
                f"BEGIN; {SCHEMA}; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version ="
                f" {SCHEMA_VERSION}; COMMIT"
            )
            connection.execute("BEGIN")
            connection.executemany(
                "INSERT INTO settings (name, value) VALUES (?, ?)", settings.items()
            )
            seals.seal_all(connection)
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise OSError(
            f"The study in {database.parent} could not be created: {error}. Free space or repair"
            " the disk, and repeat it."
        ) from error
    temporary.rename(database)
    sync_folder(database.parent)


def connect(database: Path | str) -> sqlite3.Connection:
    """Open a database whose transactions are written out, for any thread.

    Raises:
        RuntimeError: if one of its files is a link.
    """
    if isinstance(database, Path):
        _require_own(database)
    return seals.install(sqlite3.connect(database, isolation_level=None, check_same_thread=False))


def back_up(connection: sqlite3.Connection, file: Path) -> None:
    """Copy a database to a file, which is whole or the former one.

    Raises:
        OSError: if it cannot be written.
    """
    with replacing(file) as temporary:
        try:
            with closing(connect(temporary)) as copy:
                copy.execute("PRAGMA synchronous = OFF")  # it is synced as a whole
                connection.backup(copy)
        except sqlite3.Error as error:
            raise OSError(str(error)) from error


def damaged(folder: Path, why: str) -> str:
    """Return what to say of a study that is not whole."""
    return (
        f"The study in {folder} is damaged: {why}. `scalable-bo repair {folder}` restores what is"
        " whole, there and in its backup, and says what is lost."
    )


def _migrate(connection: sqlite3.Connection, version: int, folder: Path) -> None:
    """Bring a database from one version of the schema to the next."""
    step = MIGRATIONS[version]
    try:
        connection.execute("BEGIN IMMEDIATE")
        if callable(step):
            step(connection)
        else:
            for statement in step.split(";"):
                connection.execute(statement)
        if version + 1 >= FIRST_SEALED:
            seals.seal_all(connection)
        connection.execute(f"PRAGMA user_version = {version + 1}")
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise RuntimeError(
            f"The study in {folder} could not be brought from version {version} of the"
            f" schema to {version + 1}: {error}. It is as it was. Free space on the disk and"
            " open it again, or use the scalable_bo that made it."
        ) from error


def _require_own(database: Path) -> None:
    """Require that the files which SQLite opens by their names are regular files."""
    for ending in ("", "-journal", "-wal", "-shm"):
        require_own(database.with_name(database.name + ending))


def _holder(pid: int | None = None, host: str | None = None) -> str:
    """Return a process as text; without arguments, this one."""
    return f"process {pid or os.getpid()} on host {host or socket.gethostname():.100}"


def _read_holder(text: str) -> str:
    try:
        holder = json.loads(text)
        return _holder(int(holder["pid"]), str(holder["host"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return "another process"


def _close_in_child() -> None:
    for lock in list(_held):
        lock._file.close()  # without unlocking: the lock is the parent's


os.register_at_fork(after_in_child=_close_in_child)
