"""How damage to a study's database is noticed: every row is sealed with a digest, the table
``ends`` says how far the others go, and a file beside the database how often it was written.

SQLite sees damage to the structure of a file, not to the numbers in it. And after a crash it drops
what it cannot read at the end of its log, without a word: the count of writes tells that from a log
that ends where writing did. The file is written after a write has lasted, so that it never counts
too many; a copy of a folder, taken while the study ran, may.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from surrogates.atomic import open_own

ENDS = """
CREATE TABLE ends (  -- one row
    writes INTEGER NOT NULL,  -- transactions so far
    rows TEXT NOT NULL        -- JSON: the last rowid of every other table, -1 if it is empty
);
INSERT INTO ends VALUES (0, '{}');
"""


def install(connection: sqlite3.Connection) -> sqlite3.Connection:
    """Give a connection the function ``row_digest`` of a row's columns; return it."""
    connection.create_function("row_digest", -1, _digest, deterministic=True)
    return connection


def seal(connection: sqlite3.Connection, table: str, where: str = "", *values: object) -> None:
    """Give rows of a table, all or those that a clause selects, their seals."""
    call = f"row_digest({columns(connection, table)})"
    connection.execute(f"UPDATE {table} SET seal = {call} {where}", values)


def seal_rows(connection: sqlite3.Connection, table: str, rows: Sequence[int]) -> None:
    """Give rows of a table their seals."""
    call = f"row_digest({columns(connection, table)})"
    statement = f"UPDATE {table} SET seal = {call} WHERE rowid = ?"
    connection.executemany(statement, zip(rows))


def seal_all(connection: sqlite3.Connection) -> None:
    """Give all rows of all tables their seals, in a column that is made at need, and count a
    write.
    """
    for table in tables(connection):
        has_seals = "SELECT count(*) FROM pragma_table_info(?) WHERE name = 'seal'"
        if connection.execute(has_seals, (table,)).fetchone() == (0,):
            connection.execute(f"ALTER TABLE {table} ADD COLUMN seal INTEGER")
        seal(connection, table)
    count_write(connection)


def count_write(connection: sqlite3.Connection) -> int:
    """Note at the end of a transaction how far the tables go; return the number of writes."""
    rows = {}
    for table in tables(connection):
        if table != "ends":
            rows[table] = _last_row(connection, table)
    (writes,) = connection.execute("SELECT writes + 1 FROM ends").fetchone()
    connection.execute(
        "UPDATE ends SET writes = ?1, rows = ?2, seal = row_digest(?1, ?2)",
        (writes, json.dumps(rows)),
    )
    return int(writes)


def find_damage(connection: sqlite3.Connection) -> str:
    """Return what is wrong with the rows of a database, nothing if they are whole.

    Raises:
        sqlite3.Error: if they cannot be read.
    """
    names = tables(connection)
    if connection.execute("SELECT count(*) FROM ends").fetchone() != (1,):
        return "the table ends has another number of rows than one"
    for table in names:
        call = f"row_digest({columns(connection, table)})"
        (number,) = connection.execute(
            f"SELECT count(*) FROM {table} WHERE seal IS NOT {call}"
        ).fetchone()
        if number:
            return f"{number} rows of the table {table} have changed"
    last = json.loads(connection.execute("SELECT rows FROM ends").fetchone()[0])
    for table in names:
        count, first = connection.execute(
            f"SELECT count(*), coalesce(min(rowid), 1) FROM {table}"
        ).fetchone()
        end = 1 if table == "ends" else last.get(table)
        if _last_row(connection, table) != end or (count and first + count - 1 != end):
            return f"rows of the table {table} are missing"
    return ""


def columns(connection: sqlite3.Connection, table: str) -> str:
    """Return the columns of a table that its seals are of, separated by commas."""
    listed = "SELECT name FROM pragma_table_info(?) WHERE name != 'seal' ORDER BY cid"
    (names,) = connection.execute(
        f"SELECT group_concat(name, ', ') FROM ({listed})", (table,)
    ).fetchone()
    return str(names)


def tables(connection: sqlite3.Connection) -> list[str]:
    """Return the names of the tables."""
    (names,) = connection.execute(
        "SELECT group_concat(name) FROM sqlite_master WHERE type = 'table'"
        " AND name NOT LIKE 'sqlite%'"
    ).fetchone()
    return sorted(str(names).split(","))


def write_count(file: Path, writes: int) -> None:
    """Note the number of writes beside the database, as far as the disk allows it."""
    line = f"{writes:019d}"
    with suppress(OSError), open(open_own(file, os.O_WRONLY | os.O_CREAT), "wb") as stream:
        stream.write(f"{line} {zlib.crc32(line.encode()):08x}\n".encode())
        stream.truncate()


def read_count(file: Path) -> int:
    """Return the number of writes that were noted; 0 where none is, or it is damaged itself."""
    with suppress(OSError, ValueError), open(open_own(file, os.O_RDONLY), "rb") as stream:
        number, _, check = stream.read(64).rstrip(b"\n").partition(b" ")  # longer is none
        if int(check, 16) == zlib.crc32(number):
            return int(number)
    return 0


def _last_row(connection: sqlite3.Connection, table: str) -> int:
    (number,) = connection.execute(f"SELECT coalesce(max(rowid), -1) FROM {table}").fetchone()
    return int(number)


def _digest(*fields: object) -> int:
    blobs: list[bytes] = []
    rest: list[object] = []
    for field in fields:
        if isinstance(field, bytes):  # whose text would be four times as long
            blobs.append(field)
            field = len(field)
        rest.append(field)
    content = b"".join([repr(rest).encode(errors="surrogatepass"), *blobs])
    digest = hashlib.blake2b(content, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
