"""The storage of a study that any number of processes write, on any number of machines: a table of
writes in a database, PostgreSQL or a SQLite file, that each process follows.

Whoever writes holds the row of the study in a transaction, in which it first reads what others have
written; so a point is asked for, and told, once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import time
import uuid
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from scalable_bo._packages import INSTALL, require
from scalable_bo.space.plain_values import flag
from scalable_bo.space.quoting import quote
from scalable_bo.storage.lock import has_ended, process_mark
from scalable_bo.storage.log import Length, digest_of, pack, replay, unpack
from scalable_bo.storage.rounds import AskReport
from scalable_bo.storage.storage import Ask, Contents, LoggedStorage, NoStudyError, Write
from surrogates import checks
from surrogates.atomic import require_own

require("sqlalchemy", extra="shared", user="A study in a database")

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError

VERSION = 1
LONGEST_NAME = 200
# What the writer of a claim ends with: is at the point, which is free when its process has ended;
# or has given it to somebody, and may have ended
EVALUATES, ASKED = "x-"

_METADATA = sa.MetaData()
_STUDIES = sa.Table(
    "scalable_bo_studies",
    _METADATA,
    sa.Column("name", sa.String(LONGEST_NAME), primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("settings", sa.Text),  # JSON; NULL before the first writer has stored them
)
_WRITES = sa.Table(
    "scalable_bo_writes",
    _METADATA,
    sa.Column("study", sa.String(LONGEST_NAME), primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
)
_CLAIMS = sa.Table(  # who evaluates which point, and until when at most
    "scalable_bo_claims",
    _METADATA,
    sa.Column("study", sa.String(LONGEST_NAME), primary_key=True),
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("writer", sa.String(32), nullable=False),
    sa.Column("until", sa.Float, nullable=False),
)
_CHECKPOINTS = sa.Table(
    "scalable_bo_checkpoints",
    _METADATA,
    sa.Column("study", sa.String(LONGEST_NAME), primary_key=True),
    sa.Column("ask", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
)
_BUDGETS = sa.Table(  # of those who optimise at the same time
    "scalable_bo_budgets",
    _METADATA,
    sa.Column("study", sa.String(LONGEST_NAME), primary_key=True),
    sa.Column("left", sa.BigInteger, nullable=False),  # points to ask for
)


class SQLStorage(LoggedStorage):
    """A study in a database, for any number of processes at once.

    Args:
        url: of the database, as SQLAlchemy writes it: ``postgresql+psycopg://user@host/database``,
            or ``sqlite:///file.db`` for processes of one machine.
        study: its name there; made if there is none.
        lease: seconds after which a point that was asked for and not told may be evaluated by
            another process: more than the longest evaluation takes. A point that ``optimize`` was
            at is free as soon as its process has ended, for others on the same machine.
        must_exist: refuse a name that no study has.
    Raises:
        ImportError: if SQLAlchemy, or the driver of the database, is not installed; the extra
            ``shared`` brings both for PostgreSQL.
        ValueError: if the URL is none, or of another kind of database, or there is no study that
            must be there.
        OSError: if the database cannot be reached.
        RuntimeError: if the study was written by a newer version.
    """

    def __init__(
        self, url: str, study: str | None, *, lease: float = 24.0 * 3600.0, must_exist: bool = False
    ) -> None:
        if not isinstance(study, str) or not 0 < len(study) <= LONGEST_NAME:
            raise ValueError(
                f"`name` must be a text of 1 to {LONGEST_NAME} characters, of the study in the"
                f" database, got {quote(study)}."
            )
        lease = checks.positive_float("lease", lease)
        self._engine = _engine(url)
        self._url = self._engine.url.render_as_string(hide_password=True)
        # None of PostgreSQL; of a link, the one behind it, wherever the process goes meanwhile
        is_file = self._engine.dialect.name == "sqlite"
        self._file = os.path.realpath(str(self._engine.url.database)) if is_file else None
        self._study = study
        self._lease = lease
        self._process = os.getpid()
        self._writer = (process_mark(self._process) or uuid.uuid4().hex)[:24] + uuid.uuid4().hex[:7]
        self._is_closed = False
        self._seen = 0  # the number of the last write that is known
        self._length = Length()
        self._unread: list[Write] = []
        self._num_optimizing = 0  # runs of this process
        self._connection: Connection | None = None  # of the transaction under way
        weakref.finalize(self, self._engine.dispose)
        with self._reached():
            if flag("must_exist", must_exist) and study not in (names := self._names()):
                raise NoStudyError(
                    f"`name` must be that of a study in {self._url}, got {study!r}. There are"
                    f" {', '.join(names) or 'none'}."
                )
            self._create()

    @property
    def name(self) -> str:
        return f"The study {self._study!r} in {self._url}"

    @property
    def checkpoints(self) -> CheckpointTable:
        return CheckpointTable(self)

    def load_settings(self) -> dict[str, Any] | None:
        with self._transaction() as connection:
            text = connection.scalar(
                sa.select(_STUDIES.c.settings).where(_STUDIES.c.name == self._study)
            )
        return None if text is None else json.loads(text)

    def save_settings(self, settings: Mapping[str, Any]) -> None:
        with self._transaction() as connection:
            connection.execute(
                sa.update(_STUDIES)
                .where(_STUDIES.c.name == self._study)
                .values(settings=json.dumps(settings))
            )

    def adopt(self, settings: Mapping[str, Any], contents: Contents) -> None:
        """Begin with a study that was kept elsewhere; there is none yet."""
        with self._transaction() as connection:
            self.save_settings(settings)
            self._insert(connection, self._seen + 1, Write("adopt", (contents,)))

    def load(self, dim: int) -> Contents:
        """Read all that is stored; raise RuntimeError if a write is damaged or missing."""
        with self._transaction(first=0):
            writes, self._unread = self._unread, []
            contents = replay(writes, dim)
        # Others who know fewer of the writes adopt what takes the place of all, unless that is too
        # much for one write or for the disk, or another has been added meanwhile
        if self._length.has_doubled:
            with suppress(OSError, OverflowError), self._transaction() as connection:
                if not self._unread:
                    connection.execute(sa.delete(_WRITES).where(_WRITES.c.study == self._study))
                    self._insert(connection, self._seen, Write("adopt", (contents,)))
        return contents

    @contextmanager
    def writing(self) -> Iterator[list[Write]]:
        """Hold the study in a transaction, and give what others have written."""
        self.require_writable()
        with self._transaction():
            yield self._unread

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Keep the asks of others out, until the end of the block or of this process."""
        self.require_writable()
        with self._reached(), closing(self._lock("asking")) as lock:
            lock.take()
            yield

    @contextmanager
    def optimizing(self, budget: int) -> Iterator[None]:
        """Let the asks of a block, with those of other processes in such a block, be for so many
        points as the first of them has said.
        """
        self.require_writable()
        with ExitStack() as stack:
            with self._reached():
                lock = stack.enter_context(closing(self._lock("optimizing")))
                if lock.take(wait=False):  # nobody is in such a block
                    with self._transaction() as connection:
                        mine = _BUDGETS.c.study == self._study
                        connection.execute(sa.delete(_BUDGETS).where(mine))
                        new = sa.insert(_BUDGETS).values(study=self._study, left=budget)
                        connection.execute(new)
                lock.share()
            self._num_optimizing += 1
            try:
                yield
            finally:
                self._num_optimizing -= 1

    def num_left(self) -> int | None:
        """Return what is left of the budget; ``None`` outside of such a block."""
        if not self._num_optimizing:
            return None
        with self._transaction() as connection:
            left = sa.select(_BUDGETS.c.left).where(_BUDGETS.c.study == self._study)
            return int(connection.scalar(left) or 0)

    def claim(self, ids: Sequence[int], evaluates: bool) -> list[int]:
        """Keep pending points that nobody evaluates for this process, and return them."""
        self.require_writable()
        with self._transaction() as connection:
            held = {
                row.id
                for row in connection.execute(sa.select(_CLAIMS).where(self._claims(ids)))
                if row.until >= time.time()
                and not row.writer.startswith(self._writer)
                and not (row.writer.endswith(EVALUATES) and has_ended(row.writer[:24]))
            }
            free = [id for id in ids if id not in held]
            self._hold(connection, free, EVALUATES if evaluates else ASKED)
        return free

    def add_ask(
        self, ask: Ask, cost: AskReport, first_id: int, X: Tensor, num_queued: int = 0
    ) -> None:
        """Do what ``Storage`` says, and keep the points for this process; they are of the budget,
        if there is one.
        """
        with self._transaction() as connection:
            super().add_ask(ask, cost, first_id, X, num_queued)
            if self._num_optimizing:
                spent = sa.update(_BUDGETS).where(_BUDGETS.c.study == self._study)
                connection.execute(spent.values(left=_BUDGETS.c.left - len(X)))
            what = EVALUATES if self._num_optimizing else ASKED
            self._hold(connection, range(first_id, first_id + len(X)), what)

    def remove_outcomes(self, ids: Sequence[int]) -> None:
        """Do what ``Storage`` says, and leave the points to whoever evaluates them first."""
        with self._transaction() as connection:
            super().remove_outcomes(ids)
            connection.execute(sa.delete(_CLAIMS).where(self._claims(ids)))

    def require_writable(self) -> None:
        """Raise RuntimeError after ``close``, and in a fork of the process that opened it."""
        if self._process != os.getpid():
            raise RuntimeError(
                f"{self.name} was opened by process {self._process}, from which this one was"
                " forked. Open it in this process, too."
            )
        if self._is_closed:
            raise RuntimeError(f"{self.name} has been closed. Open it again.")

    def release(self) -> None:
        """Let others evaluate what this process has asked for and not told; not after ``close``."""
        if self._is_closed:
            return
        with self._transaction() as connection:
            own = _CLAIMS.c.writer.startswith(self._writer)
            connection.execute(sa.delete(_CLAIMS).where((_CLAIMS.c.study == self._study) & own))

    def close(self) -> None:
        """End the connection; a second call does nothing. Points that were asked for stay out."""
        if self._process == os.getpid():
            self._is_closed = True
            self._engine.dispose()

    def _lock(self, name: str) -> _FileLock | _AdvisoryLock:
        key = hashlib.sha256(json.dumps([name, self._study]).encode()).digest()[:8]
        if self._file is not None:
            return _FileLock(Path(f"{self._file}.{name}-{key.hex()}"))
        return _AdvisoryLock(self._engine, int.from_bytes(key, signed=True))

    def _names(self) -> list[str]:
        """Return the names of all studies in the database, which stays as it is."""
        if self._file is not None and not Path(self._file).exists():  # a connection would make it
            return []
        if not sa.inspect(self._engine).has_table(_STUDIES.name):
            return []
        with self._engine.begin() as connection:
            stored = sa.select(_STUDIES.c.name).where(_STUDIES.c.settings.is_not(None))
            return list(connection.scalars(stored))

    def _create(self) -> None:
        """Make the tables and the row of the study at need; others may do so at the same time."""
        with suppress(DBAPIError):  # another was quicker
            _METADATA.create_all(self._engine)
        _METADATA.create_all(self._engine)
        with self._engine.begin() as connection:
            row = sa.select(_STUDIES.c.version).where(_STUDIES.c.name == self._study)
            if connection.scalar(row) is None:
                new = sa.insert(_STUDIES).values(name=self._study, version=VERSION)
                with suppress(IntegrityError), connection.begin_nested():
                    connection.execute(new)
            version = connection.scalar(row)
        if version is None or version > VERSION:
            raise RuntimeError(
                f"{self.name} has version {version}, this scalable_bo reads up to {VERSION}."
                " Install a newer scalable_bo."
            )

    @contextmanager
    def _transaction(self, first: int | None = None) -> Iterator[Connection]:
        """Hold the study in a transaction, or go on with the one under way, having read what has
        been written since the ``first`` writes, or those that have been read. After an error in it,
        a study loads all again.
        """
        if self._connection is not None:
            yield self._connection
            return
        try:
            with self._reached(), self._engine.begin() as connection:
                held = sa.select(_STUDIES.c.name).where(_STUDIES.c.name == self._study)
                connection.execute(held.with_for_update())
                self._connection = connection
                if first is not None:
                    self._seen, self._unread, self._length = first, [], Length()
                self._follow(connection)
                yield connection
        finally:
            self._connection = None

    def _follow(self, connection: Connection) -> None:
        rows = connection.execute(
            sa.select(_WRITES.c.number, _WRITES.c.content, _WRITES.c.digest)
            .where((_WRITES.c.study == self._study) & (_WRITES.c.number > self._seen))
            .order_by(_WRITES.c.number)
        )
        for number, content, digest in rows:
            write = unpack(content) if digest == self._digest(number, content) else None
            # What was put together has the number of the last write that it stands for
            if write is None or (number != self._seen + 1 and write.name != "adopt"):
                raise RuntimeError(
                    f"{self.name} is damaged: write {self._seen + 1} is missing or has changed."
                    " Restore the database from its backup."
                )
            self._length.count(write.name, content)
            self._unread.append(write)
            self._seen = number

    def _append(self, name: str, *arguments: Any) -> None:
        with self._transaction() as connection:
            self._insert(connection, self._seen + 1, Write(name, arguments))

    def _insert(self, connection: Connection, number: int, write: Write) -> None:
        content = pack(write)
        values = {"study": self._study, "number": number, "content": content}
        digest = self._digest(number, content)
        connection.execute(sa.insert(_WRITES).values(**values, digest=digest))
        self._seen = number
        self._length.count(write.name, content)

    def _hold(self, connection: Connection, ids: Sequence[int], what: str) -> None:
        """Keep points for this process, that it ``EVALUATES`` or has ``ASKED`` for."""
        until = time.time() + self._lease
        own = {"study": self._study, "writer": self._writer + what, "until": until}
        if rows := [{"id": id, **own} for id in ids]:
            connection.execute(sa.delete(_CLAIMS).where(self._claims(ids)))
            connection.execute(sa.insert(_CLAIMS), rows)

    def _claims(self, ids: Sequence[int]) -> sa.ColumnElement[bool]:
        return (_CLAIMS.c.study == self._study) & _CLAIMS.c.id.in_(list(ids))

    def _digest(self, number: int, content: bytes) -> str:
        return digest_of(json.dumps([self._study, number]), content)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            why = str(error.orig).strip().partition("\n")[0]
            raise OSError(
                f"{self.name} could not be reached: {why}. Nothing was stored. Repair the"
                " connection or the database, and repeat the call."
            ) from error


class CheckpointTable:
    """``Checkpoints`` as the rows of a table, written beside the transactions of a study."""

    def __init__(self, storage: SQLStorage) -> None:
        self._storage = storage
        self._study = storage._study

    def numbers(self) -> list[int]:
        found = sa.select(_CHECKPOINTS.c.ask).where(_CHECKPOINTS.c.study == self._study)
        with self._begun() as connection:
            return list(connection.scalars(found.order_by(_CHECKPOINTS.c.ask.desc())))

    def read(self, number: int) -> bytes:
        with self._begun() as connection:
            content = connection.scalar(sa.select(_CHECKPOINTS.c.content).where(self._is(number)))
        if content is None:
            raise FileNotFoundError("another process has removed it")
        return bytes(content)

    def write(self, number: int, content: bytes) -> None:
        with self._begun() as connection:
            connection.execute(sa.delete(_CHECKPOINTS).where(self._is(number)))
            new = {"study": self._study, "ask": number, "content": content}
            connection.execute(sa.insert(_CHECKPOINTS), new)

    def remove(self, number: int) -> None:
        with self._begun() as connection:
            connection.execute(sa.delete(_CHECKPOINTS).where(self._is(number)))

    def describe(self, number: int) -> str:
        return f"of ask {number} of the study {self._study!r} in {self._storage._url}"

    def _is(self, number: int) -> sa.ColumnElement[bool]:
        return (_CHECKPOINTS.c.study == self._study) & (_CHECKPOINTS.c.ask == number)

    @contextmanager
    def _begun(self) -> Iterator[Connection]:
        with self._storage._reached(), self._storage._engine.begin() as connection:
            yield connection


class _FileLock:
    """A lock for the processes of one machine, which ends with the process that holds it."""

    def __init__(self, path: Path) -> None:
        require_own(path)
        self._file = path.open("a")

    def take(self, wait: bool = True) -> bool:
        """Hold the lock alone; return whether that is so."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True

    def share(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_SH)

    def close(self) -> None:
        """Let others hold the lock; children of this process, too, have the file."""
        fcntl.flock(self._file, fcntl.LOCK_UN)
        self._file.close()


class _AdvisoryLock:
    """A lock for all who reach a database, which ends with the connection that holds it."""

    def __init__(self, engine: Engine, key: int) -> None:
        self._connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._key = key

    def take(self, wait: bool = True) -> bool:
        if not wait:
            return bool(self._connection.scalar(sa.select(sa.func.pg_try_advisory_lock(self._key))))
        self._connection.execute(sa.select(sa.func.pg_advisory_lock(self._key)))
        return True

    def share(self) -> None:
        self._connection.execute(sa.select(sa.func.pg_advisory_lock_shared(self._key)))
        self._connection.execute(sa.select(sa.func.pg_advisory_unlock(self._key)))

    def close(self) -> None:
        """Let others hold the lock; a connection that was lost does not hold it any more."""
        with suppress(DBAPIError), self._connection:
            self._connection.execute(sa.select(sa.func.pg_advisory_unlock_all()))


def _engine(url: str) -> Engine:
    required = (
        "`storage` must be the URL of a database, such as postgresql+psycopg://user@host/database"
        " or sqlite:///file.db, got "
    )
    try:
        kind = make_url(url)
        shown = kind.render_as_string(hide_password=True)
        if kind.get_backend_name() not in ("postgresql", "sqlite") or not kind.database:
            raise ArgumentError("it names no PostgreSQL or SQLite database")
        engine = sa.create_engine(kind, pool_pre_ping=True)
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        given = re.sub(":(?!//).*@", ":***@", url) if isinstance(url, str) else url
        raise ValueError(f"{required}{quote(given)}: {error}.") from error
    except ImportError as error:
        raise ImportError(
            f"The driver of {shown} is not installed: {error}. {INSTALL.format('shared')}"
        ) from error
    if engine.dialect.name == "sqlite":  # whose driver would begin a transaction too late
        sa.event.listen(engine, "connect", _without_transactions)
        sa.event.listen(engine, "begin", lambda c: c.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


def _without_transactions(connection: Any, record: Any) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA busy_timeout = 60000")
