"""Restore a damaged study: row by row, what is whole in its database, and else in its backup."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scalable_bo.storage import seals
from scalable_bo.storage.database import (
    FIRST_SEALED,
    SCHEMA,
    SCHEMA_VERSION,
    UNREADABLE,
    DamagedError,
    WriterLock,
    back_up,
    connect,
    create,
    definitions,
    definitions_of,
    reading,
)
from scalable_bo.storage.rows import few
from scalable_bo.storage.sqlite import SQLiteStorage
from surrogates.atomic import require_own

DATABASE = "study.sqlite"
BACKUP = "backup.sqlite"
LOST = "lost: the row was damaged on disk"
_FILES = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", BACKUP, "writes", "checkpoints")

_NUMBERED = ("points", "asks", "costs")  # whose numbers others refer to
_FIRST = {"points": 0, "asks": 1, "sources": 1, "settings": 1, "changes": 1}

Row = dict[str, Any]  # by column


def repair(folder: Path) -> list[str] | None:
    """Put back what is whole of a study, and return what was lost, in lines; ``None`` for a study
    that is whole, which stays as it is.

    Every row comes from the database if it is whole there, and else from the backup. A point that
    is whole in neither is a failure now, so that the others keep their ids. The damaged files are
    kept in the folder ``damaged-1``, or the next number that is free.

    Raises:
        ValueError: if the folder holds no study.
        RuntimeError: if another process uses it, it is of a newer version, or its settings are
            lost.
        OSError: if the disk is full, read-only or cannot be read.
    """
    if not any((folder / name).is_file() for name in (DATABASE, BACKUP)):
        raise ValueError(f"`folder` must hold a study, got {folder} without a study.sqlite.")
    lock = WriterLock(folder / "lock")
    try:
        if _is_whole(folder):
            return None
        counted = seals.read_count(folder / "writes")
        with TemporaryDirectory() as workplace:
            damaged = _read(folder / DATABASE, Path(workplace) / "damaged")
            backup = _read(folder / BACKUP, Path(workplace) / "backup")
        with reading(folder):
            return _restore(folder, damaged, backup, counted)
    except DamagedError as error:
        raise RuntimeError(
            f"The study in {folder} cannot be restored: {error.__cause__}. It is as it was;"
            " restore the folder from a copy."
        ) from error
    finally:
        lock.release()


def _restore(folder: Path, damaged: _Found, backup: _Found, counted: int) -> list[str]:
    restored = _Restored.of(damaged, backup, counted)
    if restored.writes < counted:
        missing = counted - restored.writes
        restored.lost.append(f"the last {missing} of {counted} writes")
    texts = {row["name"]: row["value"] for row in restored.tables["settings"]}
    if not {"space", "direction", "seed"} <= set(texts):
        raise ValueError(f"its settings are whole neither in {DATABASE} nor in {BACKUP}")
    _replace(folder, restored, texts, max(counted, restored.writes))
    return restored.lost


@dataclass
class _Found:
    """What is whole in a file: rows by table and rowid, the last rowids, and the writes."""

    tables: dict[str, dict[int, Row]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    writes: int = 0


@dataclass
class _Restored:
    """What is put back: rows by table, in order, and what was lost."""

    tables: dict[str, list[Row]]
    writes: int
    lost: list[str]

    @classmethod
    def of(cls, damaged: _Found, backup: _Found, counted: int) -> _Restored:
        names = {"settings", "asks", "costs", "sources", "points"} | set(damaged.tables)
        names = (names | set(backup.tables)) - {"ends"}
        merged = {
            name: {**backup.tables.get(name, {}), **damaged.tables.get(name, {})} for name in names
        }
        self = cls({}, max(damaged.writes, backup.writes), [])
        for name in sorted(names):
            rows = merged[name]
            last = max(damaged.ends.get(name, -1), backup.ends.get(name, -1), -1, *rows)
            # Old versions kept no costs, and what leaves a queue is no loss.
            first = _FIRST.get(name, min(rows, default=last + 1))
            expected = range(first, last + 1)
            missing = [number for number in expected if number not in rows]
            if missing:
                self.lost.append(f"{name}: {len(missing)} lost ({few(missing)})")
            if name == "points" and not rows:  # nothing says where they were
                missing = []
            older = [number for number in rows if number not in damaged.tables.get(name, {})]
            if older and backup.writes < max(counted, damaged.writes):
                numbers = few(sorted(older))
                self.lost.append(f"{name}: {len(older)} as of the last backup ({numbers})")
            self.tables[name] = _completed(name, rows, missing)
        self._fit_together()
        return self

    def _fit_together(self) -> None:
        """Let asks know of no more values than there are, and be those of the points."""
        num_observed = sum(
            row["told"] is not None and row["value"] is not None for row in self.tables["points"]
        )
        for ask in self.tables["asks"]:
            ask["num_observed"] = min(ask["num_observed"], num_observed)
        if not self.tables["points"]:
            for name in ("asks", "costs", "sources"):
                self.tables[name] = []


def _is_whole(folder: Path) -> bool:
    if not (folder / DATABASE).is_file():
        return False
    try:
        with closing(SQLiteStorage.copy_of(folder)) as storage, reading(folder):
            space = (storage.load_settings() or {})["space"]
            varying = [value for value in space["parameters"].values() if isinstance(value, dict)]
            storage.load(len(varying))
    except DamagedError:
        return False
    return True


def _read(file: Path, workplace: Path) -> _Found:
    """Read what is whole in a database, of which a copy is opened."""
    found = _Found()
    if not file.is_file():
        return found
    workplace.mkdir()
    for part in (file, file.with_name(f"{file.name}-wal")):
        require_own(part)
        if part.is_file():
            shutil.copy(part, workplace)
    with closing(connect(workplace / file.name)) as connection, suppress(*UNREADABLE):
        _redefine(connection)
        tables = _known_tables(connection)
        if "ends" in tables and (row := _whole_rows(connection, "ends", range(1, 2)).get(1)):
            found.ends = json.loads(row["rows"])
            found.writes = row["writes"]
        for table in tables - {"ends"}:
            numbers = range(found.ends.get(table, -1) + 1)
            found.tables[table] = _whole_rows(connection, table, numbers)
    return found


def _redefine(connection: sqlite3.Connection) -> None:
    """Give the tables that are not defined as those of a study the newest definitions: where these
    are not the ones that the rows were written by, no seal is right.
    """
    connection.execute("PRAGMA writable_schema = ON")  # which also passes over what has no meaning
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    known = _known_tables(connection)
    connection.text_factory = str
    with closing(connect(":memory:")) as new:
        new.executescript(SCHEMA)
        seals.seal_all(new)
        for sql, name in new.execute("SELECT sql, name FROM sqlite_master WHERE sql NOT NULL"):
            if name not in known:
                redefine = "UPDATE sqlite_master SET sql = ? WHERE type = 'table' AND name = ?"
                connection.execute(redefine, (sql, name))
    connection.execute("PRAGMA writable_schema = RESET")


def _known_tables(connection: sqlite3.Connection) -> set[str]:
    """Return the tables that are defined as those of a study."""
    known = set().union(*map(definitions_of, range(FIRST_SEALED, SCHEMA_VERSION + 1)))
    return {name for kind, name, *_ in definitions(connection) & known if kind == "table"}


def _whole_rows(connection: sqlite3.Connection, table: str, numbers: range) -> dict[int, Row]:
    """Return the rows of a table whose seal is right: all or, where that cannot be read, those of
    the given numbers that can.
    """
    listed = seals.columns(connection, table)
    names = listed.split(", ")
    whole = f"SELECT rowid, {listed} FROM {table} WHERE seal IS row_digest({listed})"
    rows: list[tuple[Any, ...]] = []
    try:
        rows = connection.execute(whole).fetchall()
    except UNREADABLE:
        for number in numbers:
            with suppress(*UNREADABLE):
                rows += connection.execute(f"{whole} AND rowid = ?", (number,)).fetchall()
    return {number: dict(zip(names, values, strict=True)) for number, *values in rows}


def _completed(name: str, rows: dict[int, Row], missing: list[int]) -> list[Row]:
    """Return rows in order, with others in the place of missing points, asks and costs."""
    for number in missing:
        before = rows.get(number - 1) or rows[min(rows)] if rows else {}
        if name == "points":
            lost = dict.fromkeys(("value", "noise", "further"))
            rows[number] = before | lost | {"id": number, "told": 0, "reason": LOST}
        elif name == "asks":
            rows[number] = {"num_observed": 0, "num_drawn": 0, "num_points": 0} | before
            rows[number] |= {"number": number, "refitted": None}
        elif name == "costs":
            seconds = dict.fromkeys(("seconds_fit", "seconds_solve", "seconds_acquisition"), 0.0)
            rows[number] = {"ask": number, "solver": "", **seconds}
    return [rows[number] for number in sorted(rows)]


def _replace(folder: Path, restored: _Restored, texts: dict[str, str], writes: int) -> None:
    """Put a new database in the place of the damaged one."""
    new = folder / "study.sqlite.repaired"
    new.unlink(missing_ok=True)
    create(new, texts)
    with closing(connect(new)) as connection:
        connection.execute("BEGIN")
        known = set(seals.tables(connection)) - {"settings"}
        for table in known & set(restored.tables):
            columns = seals.columns(connection, table).split(", ")
            if table not in _NUMBERED:  # numbered anew, so that no number is missing
                numbers = "SELECT name FROM pragma_table_info(?) WHERE pk AND type = 'INTEGER'"
                unused = connection.execute(numbers, (table,)).fetchall()
                columns = [name for name in columns if (name,) not in unused]
            for row in restored.tables[table]:
                names = [name for name in columns if name in row]
                marks = ", ".join("?" * len(names))
                connection.execute(
                    f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})",
                    [row[name] for name in names],
                )
        connection.execute("UPDATE ends SET writes = ?", (writes,))
        seals.seal_all(connection)
        connection.execute("COMMIT")
    kept = next(
        place
        for number in range(1, 10**6)
        if not os.path.lexists(place := folder / f"damaged-{number}")
    )
    kept.mkdir()
    for name in _FILES:
        if (folder / name).exists() and name != DATABASE:
            (folder / name).rename(kept / name)
    if (folder / DATABASE).exists():
        shutil.copy(folder / DATABASE, kept)
    new.rename(folder / DATABASE)
    with closing(connect(folder / DATABASE)) as connection:
        back_up(connection, folder / BACKUP)
    seals.write_count(folder / "writes", writes)
