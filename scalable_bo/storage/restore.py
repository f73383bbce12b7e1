"""Restore a damaged study: write after write, as far as they are whole in its database or, else, in
its backup.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import count
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory

from scalable_bo.storage.lock import WriterLock
from scalable_bo.storage.log import digest_of
from scalable_bo.storage.sqlite import (
    BACKUP,
    DATABASE,
    DEFINITIONS,
    JOURNALS,
    UNREADABLE,
    DamagedError,
    SQLiteStorage,
    back_up,
    connect,
    create,
)
from surrogates.atomic import make_folder, require_own

_FILES = (*JOURNALS, f"{DATABASE}-shm", BACKUP, "checkpoints")


def restore(folder: Path) -> list[str] | None:
    """Put back what is whole of a study, and return what was lost, in lines; ``None`` for a study
    that is whole, which stays as it is.

    Every write comes from the database if it is whole there, and else from the backup, and the
    first that is whole in neither ends what is restored: those after it build upon it. The damaged
    files are kept in the folder ``damaged-1``, or the next number that is free.

    Raises:
        ValueError: if the folder holds no study.
        RuntimeError: if another process uses it, its version is newer, or its settings are lost.
        OSError: if the disk is full, read-only or cannot be read.
    """
    if not any((folder / name).is_file() for name in (DATABASE, BACKUP)):
        raise ValueError(f"`folder` must hold a study, got {folder} without a {DATABASE}.")
    lock = WriterLock(folder / "lock")
    try:
        if (folder / DATABASE).is_file():
            with suppress(DamagedError):
                SQLiteStorage.copy_of(folder).close()
                return None
        with ExitStack() as stack:
            sources = [stack.enter_context(_copy(folder / name)) for name in (DATABASE, BACKUP)]
            last, contents = _whole_writes([source for source in sources if _is_log(source)])
            numbers = [_last_number(source) for source in sources]
        if not contents:
            raise RuntimeError(
                f"The study in {folder} cannot be restored: its settings are whole neither in"
                f" {DATABASE} nor in {BACKUP}. It is as it was; restore the folder from a copy."
            )
        _replace(folder, contents)
        if not numbers[0]:
            return [f"whatever was written after write {last}"]
        left = max(numbers) - last
        return [f"the last {left} of {max(numbers)} writes"] if left else []
    finally:
        lock.release()


def _replace(folder: Path, contents: list[bytes]) -> None:
    """Put a database of writes in the place of the damaged one, which is kept."""
    new = folder / f"{DATABASE}.repaired"
    new.unlink(missing_ok=True)
    create(new, contents)
    kept = next(
        place for number in count(1) if not os.path.lexists(place := folder / f"damaged-{number}")
    )
    make_folder(kept)
    if (folder / DATABASE).exists():
        shutil.copy(folder / DATABASE, kept)
    for name in _FILES:
        if (folder / name).exists():
            (folder / name).rename(kept / name)
    new.rename(folder / DATABASE)
    with closing(connect(folder / DATABASE)) as connection:
        back_up(connection, folder / BACKUP)


@contextmanager
def _copy(file: Path) -> Iterator[sqlite3.Connection]:
    """Open a copy of a database, in the form of this version if it is whole."""
    with TemporaryDirectory() as workplace:
        copy = Path(workplace) / DATABASE
        for ending in ("", "-journal", "-wal"):
            part = file.with_name(file.name + ending)
            require_own(part)
            if part.is_file():
                shutil.copyfile(part, copy.with_name(copy.name + ending))
        if copy.exists():
            with suppress(RuntimeError):
                SQLiteStorage(Path(workplace)).close()
        with closing(connect(copy)) as connection:
            yield connection


def _is_log(source: sqlite3.Connection) -> bool:
    with suppress(*UNREADABLE):
        return set(source.execute("SELECT type, name, sql FROM sqlite_master")) >= DEFINITIONS
    return False


def _last_number(source: sqlite3.Connection) -> int:
    """Return the number of writes, 0 where it cannot be read."""
    with suppress(*UNREADABLE):
        ((last,),) = source.execute("SELECT seq FROM sqlite_sequence")
        return int(last)
    return 0


def _whole_writes(sources: list[sqlite3.Connection]) -> tuple[int, list[bytes]]:
    """Return the number of the last write up to which all are whole in some source, and their
    contents; a source may have put together what another has one by one.
    """
    found: list[tuple[int, list[bytes]]] = [(0, [])]
    for source in sources:
        with suppress(*UNREADABLE):
            (first,) = source.execute("SELECT min(number) FROM writes").fetchone()
            contents = list(_whole_writes_from(first, sources))
            found.append((first + len(contents) - 1, contents))
    return max(found, key=itemgetter(0))


def _whole_writes_from(first: int, sources: list[sqlite3.Connection]) -> Iterator[bytes]:
    """Return the writes of a log from its first up to one that is whole in no source."""
    digest = ""
    for number in count(first):
        for source in sources:
            with suppress(*UNREADABLE):
                query = "SELECT content, digest FROM writes WHERE number = ?"
                content, stored = source.execute(query, (number,)).fetchone()
                if stored == digest_of(digest, content):
                    break
        else:
            return
        digest = stored
        yield content
