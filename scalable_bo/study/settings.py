"""What a stored study was made with: the tables of its space, its direction and its seed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from scalable_bo.space.constraints import CallableConstraint, LinearConstraint, function_name
from scalable_bo.space.parameters import read_parameter
from scalable_bo.space.space import Space


def make_settings(space: Mapping[str, Any], maximize: bool, seed: int) -> dict[str, Any]:
    """Return what a stored study must have been made with, as JSON can hold it."""
    direction = "maximize" if maximize else "minimize"
    return {"space": dict(space), "direction": direction, "seed": seed}


def describe_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return what a study was made with, part by part, as text for people."""
    space = settings["space"]
    params = {
        name: read_parameter(value, f"parameters.{name}")
        for name, value in space["parameters"].items()
    }
    varying = [name for name, value in space["parameters"].items() if isinstance(value, Mapping)]
    parts = {"columns": ", ".join(varying)}
    parts |= {f"parameter `{name}`": repr(params[name]) for name in varying}
    parts |= {f"fixed `{n}`": repr(value) for n, value in params.items() if n not in varying}
    parts |= {
        f"constraint {number}": _describe_constraint(table)
        for number, table in enumerate(space["constraints"], 1)
    }
    return parts | {"direction": settings["direction"], "seed": str(settings["seed"])}


def require_same_settings(name: str, stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Require that a study is opened with what it was made with.

    Raises:
        ValueError: with a line for each setting that is not the same.
    """
    before = describe_settings(stored)
    now = describe_settings(given)
    both = zip(stored["space"]["constraints"], given["space"]["constraints"], strict=False)
    for number, (one, other) in enumerate(both, 1):  # whose texts are rounded to six digits
        if "coefficients" in one and "coefficients" in other and one != other:
            before[f"constraint {number}"] = json.dumps(one)
            now[f"constraint {number}"] = json.dumps(other)
    different = [part for part in {**before, **now} if before.get(part) != now.get(part)]
    if different:
        lines = [
            f"  {part}: stored {before.get(part, 'nothing')}, given {now.get(part, 'nothing')}\n"
            for part in different
        ]
        raise ValueError(
            f"{name} was made with other settings:\n{''.join(lines)}Use what is stored, or another"
            " `path` for a new study."
        )


def read_space(
    name: str, tables: Mapping[str, Any], functions: Sequence[CallableConstraint]
) -> Space:
    """Return the space of a stored study, whose constraints have their functions by name.

    Raises:
        ValueError: if a function is missing, or an older version kept a constraint as text alone.
    """
    by_name = {function_name(function): function for function in functions}

    def find(place: str, reference: str) -> CallableConstraint:
        wanted = reference.rpartition(":")[2]
        if wanted not in by_name:
            raise ValueError(
                f"{name} has the function {reference!r} among its constraints, and a record holds"
                f" no code. Give `functions=[{wanted}]`."
            )
        return by_name[wanted]

    texts = [table["description"] for table in tables["constraints"] if "description" in table]
    if texts:
        raise ValueError(
            f"{name} was made by an older scalable_bo, which kept the constraint {texts[0]!r} as"
            " text alone. Open it once by `Study(space, ...)` with its `path`; from then on its"
            " space is kept whole."
        )
    return Space.from_dict(tables, find)


def _describe_constraint(table: Mapping[str, Any]) -> str:
    """Return a constraint as text; a function is known by its name, wherever it is defined."""
    if "description" in table:  # all that older versions have kept
        return str(table["description"])
    if "function" in table:
        return f"function {table['function'].rpartition(':')[2]}"
    return str(LinearConstraint.from_dict(table))
