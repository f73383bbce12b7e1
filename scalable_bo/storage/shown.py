"""How objects show themselves: on one line, and as a small table in a notebook."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from scalable_bo.evaluation.evaluator import storable
from scalable_bo.space.quoting import legible, shorten

LONGEST_SHOWN = 60  # characters of a name or a value


def describe_params(params: Mapping[str, Any], around: Sequence[str] = ("", "")) -> str:
    """Return parameters on one line, such as ``x = 0.5, kind = a``; the first few of many. There
    are ``ISOLATES`` around each name and value of a page, and those within it are escaped.
    """
    escapes = str.maketrans({mark: ascii(mark)[1:-1] for mark in "".join(around)})
    pairs = [(_short(name), short_value(value)) for name, value in params.items()]
    shown, more = _first([" = ".join(t.translate(escapes).join(around) for t in p) for p in pairs])
    return f"{shown}, {more}" if more else shown


def describe_names(names: Sequence[str]) -> str:
    """Return the names of parameters on one line; the first few of many."""
    shown, more = _first([_short(name) for name in names])
    return f"{shown} and {more}" if more else shown


def describe_excess(excess: Mapping[str, float]) -> str:
    """Return by how much limits are broken on one line, such as ``breaks weight by 0.5``."""
    if not excess:  # all limits on outcomes are kept
        return "breaks a constraint of the space"
    return "breaks " + ", ".join(f"{_short(n)} by {amount:.3g}" for n, amount in excess.items())


def short_value(value: Any) -> str:
    """Return a value in few characters."""
    return f"{value:.6g}" if isinstance(value, float) else _short(legible(value))


def html_table(title: str, rows: Mapping[str, Any]) -> str:
    """Return an HTML table with a title and a line for every entry."""
    lines = "".join(
        f"<tr><th style='text-align:left'>{html.escape(_short(name))}</th>"
        f"<td style='text-align:left'>{html.escape(short_value(value))}</td></tr>"
        for name, value in rows.items()
    )
    return f"<table><caption>{html.escape(_short(title))}</caption>{lines}</table>"


def _first(texts: Sequence[str], most: int = 6) -> tuple[str, str]:
    """Return the first few texts on one line, and how many more there are, if any."""
    return ", ".join(texts[:most]), f"{len(texts) - most} more" if len(texts) > most else ""


def _short(value: Any) -> str:
    return shorten(" ".join(storable(str(value)).split()), LONGEST_SHOWN)
