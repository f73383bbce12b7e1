"""Studies of before version 3 of the schema, which kept their settings as texts: parameters as
Python writes them, constraints as people read them.

The texts are read once, when such a study is opened, and written as tables. Nothing in them is run
or imported.
"""

from __future__ import annotations

import ast
import json
import re
import sqlite3
from collections.abc import Mapping
from typing import Any

from scalable_bo.space.parameters import Categorical, Float, Int, Parameter
from scalable_bo.space.space import VERSION
from scalable_bo.space.tables import plain
from scalable_bo.storage.record import make_settings

_KINDS = {kind.__name__: kind for kind in (Float, Int, Categorical)}
# An enumeration writes its members as <Colour.RED: 'red'>.
_MEMBER = re.compile(r"<[\w.]+: (.*?)>")


def write_as_json(connection: sqlite3.Connection) -> None:
    """Bring the settings of a database from version 2 of the schema to version 3."""
    texts = dict(connection.execute("SELECT name, value FROM settings ORDER BY rowid").fetchall())
    settings = read_texts(texts)
    connection.execute("DELETE FROM settings")
    connection.executemany(
        "INSERT INTO settings (name, value) VALUES (?, ?)",
        ((name, json.dumps(value)) for name, value in settings.items()),
    )


def read_texts(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that the texts describe; of constraints, the texts.

    Raises:
        ValueError: if a parameter cannot be read.
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
        value = _evaluate(node)
        return value.to_dict() if isinstance(value, Parameter) else plain(value)
    except (SyntaxError, TypeError, ValueError, KeyError, RecursionError) as error:
        raise ValueError(
            f"The study's {setting} cannot be read: {text!r}. Use the study in the program and the"
            " scalable_bo that made it."
        ) from error


def _evaluate(node: ast.AST) -> Any:
    """Return the parameter or the plain value that an expression stands for."""
    if isinstance(node, ast.Tuple):
        return tuple(_evaluate(element) for element in node.elts)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _KINDS[node.func.id](
            **{str(keyword.arg): _evaluate(keyword.value) for keyword in node.keywords}
        )
    # A number or string of NumPy, as np.float64(0.5)
    if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("np."):
        (node,) = node.args
    return ast.literal_eval(node)
