"""Studies of before version 10 of the schema, which kept their rows in tables: points, asks and so
on, from version 6 on with a digest each; and before version 3 their settings as texts, parameters
as Python writes them, constraints as people read them.

They are read once, when such a study is opened, and written as writes. Nothing in them is run or
imported.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import re
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalable_bo.space.parameters import KINDS
from scalable_bo.space.plain_values import plain
from scalable_bo.space.space import VERSION
from scalable_bo.storage.record import make_settings
from scalable_bo.storage.rounds import AskReport
from scalable_bo.storage.rows import Rows
from scalable_bo.storage.storage import Ask, Change, Contents, Source

FIRST_OF_JSON = 3
FIRST_OF_DIGESTS = 6
TABLES = {"settings", "asks", "sources", "points", "costs", "ends", "queue", "changes"}
_KINDS = {kind.__name__: kind for kind in KINDS.values()}
# An enumeration writes its members as <Colour.RED: 'red'>.
_MEMBER = re.compile(r"<[\w.]+: (.*?)>")
Row = dict[str, Any]  # by column


def find_strange(definitions: Collection[tuple[str, str, str]]) -> set[tuple[str, str, str]]:
    """Return what a study does not define: all but tables of the known names, in whose definitions
    nothing is computed, as that would take a further parenthesis.
    """
    return {
        (kind, name, sql)
        for kind, name, sql in definitions
        if not (kind == "index" and sql is None)  # of a key
        and not (
            kind == "table"
            and name in TABLES
            and sql.startswith("CREATE TABLE")
            and sql.count("(") == 1
        )
    }


def table_names(connection: sqlite3.Connection) -> list[str]:
    """Return the names of the tables."""
    query = "SELECT name FROM sqlite_master WHERE type = 'table'"
    return [name for (name,) in connection.execute(query)]


def read_tables(connection: sqlite3.Connection, version: int) -> dict[str, list[Row]]:
    """Return the rows of all tables, in order; raise ValueError or sqlite3.Error if not whole."""
    found = {name: _read_table(connection, name, version) for name in table_names(connection)}
    if not {"settings", "asks", "sources", "points"} <= set(found):
        raise ValueError("tables are missing")
    if version >= FIRST_OF_DIGESTS:
        ((last,),) = connection.execute("SELECT rows FROM ends")
        for name, end in json.loads(last).items():
            query = f"SELECT coalesce(max(rowid), -1) FROM {name}"
            if connection.execute(query).fetchone() != (end,):
                raise ValueError(f"rows of the table {name} are missing")
    if version >= FIRST_OF_JSON:
        for row in found["settings"]:
            row["value"] = json.loads(row["value"])
    return found


def read_settings(rows: Sequence[Row], version: int) -> dict[str, Any]:
    """Return the settings of a study; raise ValueError as ``read_texts``."""
    settings = {row["name"]: row["value"] for row in rows}
    return settings if version >= FIRST_OF_JSON else read_texts(settings)


def read_contents(found: Mapping[str, Sequence[Row]], dim: int) -> Contents:
    """Return the contents of a study of ``dim`` parameters; raise ValueError, LookupError or
    TypeError if they do not fit together.
    """
    return Contents(
        _read_rows(found["points"], dim),
        _read_points([row["x"] for row in found.get("queue", [])], dim),
        [Ask(**row | {"refitted": _as_bool(row["refitted"])}) for row in found["asks"]],
        {
            row.pop("ask"): AskReport(**row | {"converged": _as_bool(row.get("converged"))})
            for row in found.get("costs", [])
        },
        [Source(**row) for row in sorted(found["sources"], key=lambda row: row["first_id"])],
        [
            Change(**{name: value for name, value in row.items() if name != "number"})
            for row in found.get("changes", [])
        ],
    )


def _read_table(connection: sqlite3.Connection, table: str, version: int) -> list[Row]:
    found = connection.execute(f"SELECT * FROM {table} ORDER BY rowid")
    names = [column[0] for column in found.description]
    rows = [dict(zip(names, values, strict=True)) for values in found]
    if version >= FIRST_OF_DIGESTS:
        for row in rows:
            if row.pop("seal") != seal_of(row.values()):
                raise ValueError(f"a row of the table {table} has changed")
    return rows


def seal_of(fields: Collection[object]) -> int:
    """Return the digest of a row."""
    blobs = [field for field in fields if isinstance(field, bytes)]
    rest = [len(field) if isinstance(field, bytes) else field for field in fields]
    content = b"".join([repr(rest).encode(errors="surrogatepass"), *blobs])
    digest = hashlib.blake2b(content, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _read_rows(points: Sequence[Row], dim: int) -> Rows:
    rows = Rows(dim)
    if [row["id"] for row in points] != list(range(len(points))):
        raise ValueError("rows are missing")
    asks = torch.tensor([row["ask"] for row in points], dtype=torch.long, device="cpu")
    rows.append(_read_points([row["x"] for row in points], dim), asks)
    rows.values = _reals([row["value"] for row in points])
    rows.noise = _reals([row["noise"] for row in points])
    rows.reasons = {row["id"]: row["reason"] for row in points if row["reason"] is not None}
    further = {row["id"]: row["further"] for row in points if row.get("further") is not None}
    width = len(next(iter(further.values()), b"")) // 8
    rows.further = torch.full((len(points), width), math.nan, dtype=torch.float64, device="cpu")
    rows.further[list(further)] = _read_points(list(further.values()), width)
    order = {row["told"]: row["id"] for row in points if row["told"] is not None}
    rows.told[list(order.values())] = True
    rows.observed = [order[k] for k in sorted(order) if math.isfinite(rows.values[order[k]])]
    rows.next_told = max(order, default=-1) + 1
    return rows


def _read_points(blobs: Sequence[bytes], dim: int) -> Tensor:
    """Return points (n, dim)."""
    if any(len(blob) != 8 * dim for blob in blobs):
        raise ValueError("points are of another length")
    numbers = np.frombuffer(b"".join(blobs), dtype="<f8").astype(np.float64)
    return torch.from_numpy(numbers.reshape(len(blobs), dim))


def _reals(numbers: Sequence[float | None]) -> Tensor:
    return torch.from_numpy(np.array(numbers, dtype=np.float64))


def _as_bool(number: int | None) -> bool | None:
    return None if number is None else bool(number)


def read_texts(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that the texts describe, of constraints the texts; raise ValueError if a
    parameter cannot be read.
    """
    params: dict[str, Any] = {}
    constraints: list[dict[str, Any]] = []
    for setting, text in texts.items():
        kind, _, name = setting.partition(" `")
        if kind in ("parameter", "fixed"):
            params[name.removesuffix("`")] = _read(setting, text)
        elif setting.startswith("constraint "):
            constraints.append({"description": text})
    space = {"version": VERSION, "parameters": params, "constraints": constraints}
    return make_settings(space, texts.get("direction") == "maximize", int(texts.get("seed", 0)))


def _read(setting: str, text: str) -> Any:
    try:
        try:
            node = ast.parse(text, mode="eval").body
        except SyntaxError:
            node = ast.parse(_MEMBER.sub(r"\1", text), mode="eval").body
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            given = {str(keyword.arg): _evaluate(keyword.value) for keyword in node.keywords}
            return _KINDS[node.func.id](**given).to_dict()
        return plain(_evaluate(node))
    except (SyntaxError, TypeError, ValueError, KeyError, RecursionError) as error:
        raise ValueError(
            f"The study's {setting} cannot be read: {text!r}. Use the study in the program and the"
            " scalable_bo that made it."
        ) from error


def _evaluate(node: ast.AST) -> Any:
    if isinstance(node, ast.Tuple):
        return tuple(_evaluate(element) for element in node.elts)
    # A number or string of NumPy, as np.float64(0.5)
    if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("np."):
        (node,) = node.args
    return ast.literal_eval(node)
