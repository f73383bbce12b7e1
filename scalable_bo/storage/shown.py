"""How objects show themselves: on one line, and as a small table in a notebook."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from scalable_bo.evaluation.evaluator import storable
from scalable_bo.space.quoting import shorten

MOST_PARAMETERS = 6
LONGEST_SHOWN = 60  # characters of a name or a value


def describe_params(params: Mapping[str, Any]) -> str:
    """Return parameters on one line, such as ``x = 0.5, kind = a``; the first few of many."""
    parts = [f"{_short(name)} = {short_value(value)}" for name, value in params.items()]
    more = [f"{len(parts) - MOST_PARAMETERS} more"] if len(parts) > MOST_PARAMETERS else []
    return ", ".join([*parts[:MOST_PARAMETERS], *more])


def describe_names(names: Sequence[str]) -> str:
    """Return the names of parameters on one line; the first few of many."""
    more = f" and {len(names) - MOST_PARAMETERS} more" if len(names) > MOST_PARAMETERS else ""
    return ", ".join(map(_short, names[:MOST_PARAMETERS])) + more


def describe_excess(excess: Mapping[str, float]) -> str:
    """Return by how much limits are broken on one line, such as ``breaks weight by 0.5``."""
    return "breaks " + ", ".join(f"{_short(n)} by {amount:.3g}" for n, amount in excess.items())


def short_value(value: Any) -> str:
    """Return a value in few characters."""
    return f"{value:.6g}" if isinstance(value, float) else _short(value)


def html_table(title: str, rows: Mapping[str, Any]) -> str:
    """Return an HTML table with a title and a line for every entry."""
    lines = "".join(
        f"<tr><th style='text-align:left'>{html.escape(_short(name))}</th>"
        f"<td style='text-align:left'>{html.escape(short_value(value))}</td></tr>"
        for name, value in rows.items()
    )
    return f"<table><caption>{html.escape(_short(title))}</caption>{lines}</table>"


def _short(value: Any) -> str:
    return shorten(" ".join(storable(str(value)).split()), LONGEST_SHOWN)
