"""The storage of a study in a folder: a SQLite database of what was written, one write a row.

    study.sqlite    the writes; the single source of truth
    backup.sqlite   a copy of it, made when the study is closed and now and then before
    checkpoints/    the surrogate after the last two asks, derived from the writes
    lock            held by the one process that writes

A write is a transaction, on disk when the method returns. Its digest is one of its content and of
the digest before, so that rows which belong together are read and no others. A log that has doubled
is put together before a backup, of which it keeps the number of its last write. Files can be read
and written by their owner alone.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sqlite3
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from scalable_bo.storage import legacy
from scalable_bo.storage.lock import WriterLock
from scalable_bo.storage.log import Length, digest_of, pack, replay, unpack
from scalable_bo.storage.storage import Contents, LoggedStorage, NoStudyError, Write
from surrogates.atomic import (
    make_folder,
    mode_in,
    open_own,
    replacing,
    require_own,
    sync_folder,
    write_atomically,
)

APPLICATION_ID = 0x5342_4F31  # in the file's header, where `file` and others look
VERSION = 10
DATABASE = "study.sqlite"
BACKUP = "backup.sqlite"
JOURNALS = (f"{DATABASE}-journal", f"{DATABASE}-wal")
# AUTOINCREMENT lets SQLite keep the last number, by which a write that is missing at the end shows.
TABLE = """CREATE TABLE writes (
    number INTEGER PRIMARY KEY AUTOINCREMENT,  -- from 1
    content BLOB NOT NULL,
    digest TEXT NOT NULL  -- of all writes up to this one
)"""
DEFINITIONS = {
    ("table", "writes", TABLE),
    ("table", "sqlite_sequence", "CREATE TABLE sqlite_sequence(name,seq)"),
}
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
_MAKE_WRITABLE = (
    "Make the folder and its files writable; to look at what is stored, use `scalable-bo status`,"
    " `export` or `report`"
)
_CHECKPOINT = re.compile(r"ask-(\d{8,})\.safetensors")
_NOT_THE_CONTENT = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_BUSY,
}


class DamagedError(RuntimeError):
    """A study is not whole."""


class SQLiteStorage(LoggedStorage):
    """The database in ``folder``; held until ``close``, and made by the first ``save_settings``.

    Args:
        folder: made at need.
        must_exist: refuse a folder that holds no study.
    Raises:
        RuntimeError: if another process holds the folder, or the database is damaged or too new.
        ValueError: if ``folder`` is a file, or holds no study that must be there.
        OSError: if the disk is full, read-only or cannot be read.
    """

    _settings: str | None  # as JSON
    _unread: list[Write]  # until ``load``

    def __init__(self, folder: Path, must_exist: bool = False) -> None:
        if must_exist:
            require_database(folder)
        self._begin(folder)
        try:
            if folder.exists() and not folder.is_dir():
                raise ValueError(f"`path` must be a folder, got the file {folder}. Name another.")
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._held.lock = WriterLock(folder / "lock")
        except OSError as error:
            raise OSError(
                f"{self.name} could not be opened: {error.strerror}. {_MAKE_WRITABLE}."
            ) from error
        try:
            for path in folder.glob("*.sqlite.*.tmp*"):  # of a backup whose process was killed
                path.unlink()
            if (folder / DATABASE).exists():
                self._read(connect(folder / DATABASE))
            elif any((folder / name).exists() for name in ("checkpoints", BACKUP, *JOURNALS)):
                raise damaged(folder, f"{DATABASE} is missing")
        except BaseException:
            self.close()
            raise

    @classmethod
    def copy_of(cls, folder: Path) -> Self:
        """Return a copy in memory of what is stored at this moment; others may go on writing. Raise
        ValueError without a study, RuntimeError if the database is damaged or of a newer version.
        """
        require_database(folder)
        self = cls.__new__(cls)
        self._begin(folder)
        copy = connect(":memory:")
        try:
            with reading(folder), closing(connect(folder / DATABASE)) as source:
                source.backup(copy)
        except BaseException:
            copy.close()
            raise
        self._read(copy)
        return self

    @property
    def name(self) -> str:
        return f"The study in {self.folder}"

    @property
    def checkpoints(self) -> CheckpointFolder:
        return CheckpointFolder(self.folder / "checkpoints")

    def close(self) -> None:
        """Release the folder; a second call does nothing."""
        self._close()

    def require_writable(self) -> None:
        """Raise RuntimeError after ``close``, and in a fork of the process that opened it."""
        if not self._close.alive:
            raise RuntimeError(f"{self.name} has been closed. Open it again.")
        if self._held.process != os.getpid():
            raise RuntimeError(
                f"{self.name} belongs to process {self._held.process}, from which this one was"
                " forked, and one process writes. Return the values to that process, and tell them"
                " there."
            )

    def load_settings(self) -> dict[str, Any] | None:
        return None if self._settings is None else json.loads(self._settings)

    def save_settings(self, settings: Mapping[str, Any]) -> None:
        """Store what the study is made with; the first time, make the database."""
        text = json.dumps(settings)
        if self._held.connection is None:
            self._make([Write("save_settings", (text,))])
        else:
            self._append("save_settings", text)
        self._settings = text

    def adopt(self, settings: Mapping[str, Any], contents: Contents) -> None:
        """Make the database of a study that was kept elsewhere; there is none yet."""
        self._make(_beginning(settings, contents))
        self._held.is_backed_up = False

    def load(self, dim: int) -> Contents:
        with reading(self.folder):
            writes = self._unread or self._held.read_writes(self._connection)
        self._unread = []
        self._held.dim = dim
        return replay(writes, dim)

    def _begin(self, folder: Path) -> None:
        self.folder = folder.absolute()  # wherever the process goes meanwhile
        self._held = _Held(self.folder)
        self._close = weakref.finalize(self, self._held.close)
        self._settings = None
        self._unread = []

    def _make(self, writes: Iterable[Write]) -> None:
        self.require_writable()
        create(self.folder / DATABASE, map(pack, writes))
        self._read(connect(self.folder / DATABASE))

    def _read(self, connection: sqlite3.Connection) -> None:
        """Check a database and read it, in the form of this version; close it if that fails."""
        try:
            self._held.connection = connection
            with reading(self.folder):
                version = self._check()
            if version < VERSION:
                self._convert(version)
            with reading(self.folder):
                # Unlike a log, it leaves no committed write behind a byte that ends what is read.
                connection.execute("PRAGMA journal_mode = DELETE")
                connection.execute("PRAGMA synchronous = EXTRA")
                self._unread = writes = self._held.read_writes(connection)
                self._settings = [w.arguments[0] for w in writes if w.name == "save_settings"][-1]
            if self._held.lock is not None and self._held.length.has_doubled:
                self._held.is_backed_up = False
        except BaseException:
            self._held.connection = None
            connection.close()
            raise

    def _check(self) -> int:
        """Check what a database is, and return its version. Nothing is read of tables that are not
        of a study: a view in the place of one may never end.
        """
        connection, folder = self._connection, self.folder
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application != APPLICATION_ID:
            raise damaged(folder, f"{DATABASE} is no database of a study")
        if version > VERSION:
            raise RuntimeError(
                f"{self.name} has version {version} of the schema, this scalable_bo reads up to"
                f" {VERSION}. Install a newer scalable_bo; if there is none, move {DATABASE} away:"
                f" `scalable-bo repair {shlex.quote(str(folder))}` restores its backup."
            )
        if version < 1:
            raise damaged(folder, f"version {version} of the schema does not exist")
        found = set(connection.execute("SELECT type, name, sql FROM sqlite_master"))
        if other := found ^ DEFINITIONS if version == VERSION else legacy.find_strange(found):
            names = ", ".join(sorted({f"{kind} {name}" for kind, name, _ in other}))
            why = f"of its schema, these are not those of version {version}: {names}"
            raise damaged(folder, why)
        # The header may forbid to write, which is only found by writing
        connection.executescript(f"BEGIN; PRAGMA user_version = {version}; ROLLBACK")
        problems = [line for (line,) in connection.execute("PRAGMA quick_check(3)")]
        if problems != ["ok"]:
            raise damaged(folder, "; ".join(problems))
        return int(version)

    def _convert(self, version: int) -> None:
        """Put the writes that lead to what an older version has stored in the place of its tables,
        of which a copy stays in the folder.
        """
        with reading(self.folder):
            tables = legacy.read_tables(self._connection, version)
        settings = legacy.read_settings(tables["settings"], version)
        varying = [one for one in settings["space"]["parameters"].values() if isinstance(one, dict)]
        with reading(self.folder):
            contents = legacy.read_contents(tables, len(varying))
        try:
            if self._held.lock is not None:
                back_up(self._connection, self.folder / f"version-{version}.sqlite")
            with writing(self.folder, self._connection) as connection:
                for name in tables:
                    connection.execute(f"DROP TABLE {name}")
                define(connection)
                append(connection, map(pack, _beginning(settings, contents)))
            if self._held.lock is not None:
                self._held.is_backed_up = False
                (self.folder / "writes").unlink(missing_ok=True)  # a count that it kept
        except OSError as error:
            raise RuntimeError(
                f"{self.name} could not be brought from version {version} of the schema to"
                f" {VERSION}: {error.__cause__ or error}. It is as it was. Free space on the disk"
                " and open it again, or use the scalable_bo that made it."
            ) from error

    def _append(self, name: str, *arguments: Any) -> None:
        self.require_writable()
        content = pack(Write(name, arguments))
        with writing(self.folder, self._connection) as connection:
            append(connection, [content])
        self._held.length.count(name, content)
        self._held.is_backed_up = False
        if time.monotonic() > self._held.next_backup:
            self._held.back_up()

    @property
    def _connection(self) -> sqlite3.Connection:
        if not self._close.alive:
            raise RuntimeError(f"{self.name} has been closed. Open it again.")
        assert self._held.connection is not None  # a study saves its settings first
        return self._held.connection


def _beginning(settings: Mapping[str, Any], contents: Contents) -> list[Write]:
    """Return the first writes of a study that was kept in another form or place."""
    return [Write("save_settings", (json.dumps(settings),)), Write("adopt", (contents,))]


class CheckpointFolder:
    """``Checkpoints`` as the files of a folder, which is made at need."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def numbers(self) -> list[int]:
        require_own(self._folder, folder=True)
        names = (path.name for path in self._folder.glob("ask-*.safetensors"))
        found = map(_CHECKPOINT.fullmatch, names)
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def read(self, number: int) -> bytes:
        require_own(self._path(number))
        return self._path(number).read_bytes()

    def write(self, number: int, content: bytes) -> None:
        require_own(self._folder, folder=True)
        make_folder(self._folder)
        write_atomically(self._path(number), content, mode=mode_in(self._folder))
        # A folder has one writer: they are of processes that ended in the middle
        for path in self._folder.glob("ask-*.tmp"):
            path.unlink(missing_ok=True)

    def remove(self, number: int) -> None:
        self._path(number).unlink(missing_ok=True)

    def describe(self, number: int) -> str:
        return str(self._path(number))

    def _path(self, number: int) -> Path:
        return self._folder / f"ask-{number:08d}.safetensors"


@dataclass(eq=False)
class _Held:
    """What a process that opened the storage holds until it closes it. Backups are made in a
    ``share`` of the time at most, and ``pause`` seconds apart at least.
    """

    folder: Path
    lock: WriterLock | None = None
    connection: sqlite3.Connection | None = None
    process: int = field(default_factory=os.getpid)
    is_backed_up: bool = True
    dim: int | None = None
    length: Length = field(default_factory=Length)
    pause: float = 60.0
    share: float = 0.02

    def __post_init__(self) -> None:
        self.next_backup = time.monotonic() + self.pause

    def read_writes(self, connection: sqlite3.Connection) -> list[Write]:
        """Read all writes, the first of which may have any number."""
        writes: list[Write] = []
        digest = ""
        last = None
        query = "SELECT number, content, digest FROM writes ORDER BY number"
        for number, content, stored in connection.execute(query):
            digest = digest_of(digest, content)
            if last not in (None, number - 1) or digest != stored:
                why = f"write {number if last is None else last + 1} is missing or has changed"
                raise damaged(self.folder, why)
            last = number
            writes.append(unpack(content))
            self.length.count(writes[-1].name, content)
        ((end,),) = connection.execute("SELECT seq FROM sqlite_sequence")
        if last != end:
            why = f"the last {end - (last or 0)} of {end} writes are missing"
            raise damaged(self.folder, why)
        return writes

    def put_together(self) -> None:
        """Put what the writes amount to in their place; raise DamagedError if they cannot be read,
        OSError if it cannot be written, and OverflowError if it is more than one write can hold.
        """
        assert self.connection is not None and self.dim is not None
        with reading(self.folder):
            writes = self.read_writes(self.connection)
        settings = [write for write in writes if write.name == "save_settings"][-1]
        content = pack(Write("adopt", (replay(writes, self.dim),)))
        with writing(self.folder, self.connection) as connection:
            connection.execute("DELETE FROM writes")
            connection.execute("UPDATE sqlite_sequence SET seq = seq - 2")
            append(connection, [pack(settings), content])
        self.length.count("adopt", content)

    def back_up(self) -> None:
        """Copy the database, put together if its log has doubled, as far as the disk allows it; one
        that is found to be damaged does not take the place of its backup.
        """
        assert self.connection is not None
        start = time.monotonic()
        with suppress(OSError, DamagedError):
            if self.length.has_doubled and self.dim is not None:
                with suppress(OSError, OverflowError):
                    self.put_together()
            back_up(self.connection, self.folder / BACKUP)
            self.is_backed_up = True
        end = time.monotonic()
        self.next_backup = end + max(self.pause, (end - start) / self.share)

    def close(self) -> None:
        if self.process != os.getpid():  # all of it is the parent's
            return
        if self.connection is not None:
            if not self.is_backed_up:
                self.back_up()
            self.connection.close()
        if self.lock is not None:
            self.lock.release()


@contextmanager
def writing(folder: Path, connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Make what is written in the block a transaction; raise OSError if it cannot be written."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise OSError(
            f"The study in {folder} could not be written: {error}. Nothing of this call was stored;"
            " free space or repair the disk, and repeat it."
        ) from error
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Report whatever the content of a study's database leads to in the block: DamagedError if it
    cannot be read, OSError if that is for another reason, such as a disk that is full.
    """
    try:
        yield
    except UNREADABLE as error:
        why = str(error) or type(error).__name__
        # Errors of the Python module, such as of text that it cannot decode, have no code
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        # The header of a file that can be written may forbid it; its journal is in the folder
        writable = all(os.access(path, os.W_OK) for path in (folder, folder / DATABASE))
        if code in _NOT_THE_CONTENT and not (code == sqlite3.SQLITE_READONLY and writable):
            remedy = "Free space or repair the disk, and open it again"
            raise OSError(
                f"The study in {folder} could not be opened: {why}."
                f" {remedy if writable else _MAKE_WRITABLE}."
            ) from error
        raise damaged(folder, f"{DATABASE} cannot be read: {why}") from error


def require_database(folder: Path) -> None:
    """Require that the folder holds a study."""
    if not os.path.isfile(folder / DATABASE):  # also where there is no such name
        raise NoStudyError(
            f"`folder` must hold a study, got {folder} without a {DATABASE}. Give the `path` of a"
            " `Study`."
        )


def connect(database: Path | str) -> sqlite3.Connection:
    """Open a database whose transactions are written out, for any thread; a missing one is made.
    Raise RuntimeError if one of its files is a link.
    """
    if isinstance(database, Path):
        for ending in ("", "-journal", "-wal", "-shm"):
            require_own(database.with_name(database.name + ending))
        if not database.exists():
            os.close(open_own(database, os.O_CREAT | os.O_EXCL))
    # Who copies the database keeps a write waiting, a second each on a busy machine
    return sqlite3.connect(database, timeout=60.0, isolation_level=None, check_same_thread=False)


def create(database: Path, contents: Iterable[bytes]) -> None:
    """Make a database of writes, under another name first: it is there whole or not at all."""
    temporary = database.with_name(f"{database.name}.new")
    for leftover in (temporary, temporary.with_name(f"{temporary.name}-journal")):
        leftover.unlink(missing_ok=True)
    try:
        with closing(connect(temporary)) as connection:
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("BEGIN")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            define(connection)
            append(connection, contents)
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise OSError(
            f"The study in {database.parent} could not be created: {error}. Free space or repair"
            " the disk, and repeat it."
        ) from error
    temporary.rename(database)
    sync_folder(database.parent)


def define(connection: sqlite3.Connection) -> None:
    """Make the table of writes."""
    connection.execute(TABLE)
    connection.execute(f"PRAGMA user_version = {VERSION}")


def append(connection: sqlite3.Connection, contents: Iterable[bytes]) -> None:
    """Add writes."""
    last = connection.execute("SELECT digest FROM writes ORDER BY number DESC LIMIT 1").fetchone()
    digest = "" if last is None else last[0]
    for content in contents:
        digest = digest_of(digest, content)
        row = (content, digest)
        connection.execute("INSERT INTO writes (content, digest) VALUES (?, ?)", row)


def back_up(connection: sqlite3.Connection, file: Path) -> None:
    """Copy a database to a file, whole or not at all; raise OSError if it cannot be written."""
    with replacing(file, mode=mode_in(file.parent)) as temporary:
        try:
            with closing(connect(temporary)) as copy:
                copy.execute("PRAGMA synchronous = OFF")  # it is synced as a whole
                connection.backup(copy)
        except sqlite3.Error as error:
            raise OSError(str(error)) from error


def damaged(folder: Path, why: str) -> DamagedError:
    """Return the error of a study that is not whole."""
    return DamagedError(
        f"The study in {folder} is damaged: {why}. `scalable-bo repair {shlex.quote(str(folder))}`"
        " restores what is whole, there and in its backup, and says what is lost."
    )
