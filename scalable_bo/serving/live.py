"""What the live page shows: charts of the study as it stands, who works on it, and its rows.

Texts of the study are escaped in charts; everything else is data that the page shows as text.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np

from scalable_bo._packages import require
from scalable_bo.evaluation.evaluator import MAX_REASON
from scalable_bo.modelling.training import FEWEST_VALUES
from scalable_bo.report import views
from scalable_bo.report.page import failures_by_reason, found_so_far
from scalable_bo.report.snapshot import Snapshot, to_frame
from scalable_bo.report.svg import LONGEST_TICK, draw, draw_shares, ticks
from scalable_bo.serving.leased_study import MOST_POINTS, LeasedStudy
from scalable_bo.space.quoting import ISOLATES, shorten
from scalable_bo.storage.shown import describe_params

require("pandas", extra="serve", user="scalable-bo serve")

import pandas as pd

COMPARISON = re.compile(r"(.+?)(<=|>=|<|>|=)(.*)")
Kept = TypeVar("Kept")


class _Cached(Generic[Kept]):
    """Computes something again when it is asked for and the last is too old, for at most a
    ``share`` of the time; for any thread.
    """

    def __init__(self, compute: Callable[[], Kept], share: float = 0.1) -> None:
        self._compute = compute
        self._share = share
        self._lock = threading.Lock()
        self._value: Kept | None = None
        self._until = -math.inf

    def get(self) -> Kept:
        with self._lock:
            start = time.monotonic()
            if self._value is None or start >= self._until:
                self._value = self._compute()
                end = time.monotonic()
                self._until = end + (end - start) / self._share
            return self._value


class LiveView:
    """Looks at a study and its workers, without waiting for asks that run."""

    def __init__(self, leased: LeasedStudy) -> None:
        self._leased = leased
        self._snapshot = _Cached(lambda: leased.study.snapshot(wait=False))
        self._charts = _Cached(lambda: _charts(self._snapshot.get()))
        self._frame = _Cached(lambda: _frame(self._snapshot.get()))
        # Returns the charts of the surrogate: slices, and what parameters matter
        self.model = _Cached(self._find_model).get

    def live(self) -> dict[str, Any]:
        """Return the numbers of rows, the charts of what was told, and who works."""
        leased = self._leased
        now = time.monotonic()
        held = leased.held()
        params = leased.params_of(list(held)[:MOST_POINTS])
        workers = [
            {
                "id": id,
                "worker": held[id].worker,
                "seconds": now - held[id].since,
                "left": held[id].until - now,
                "params": describe_params(params[id], ISOLATES),
            }
            for id in params
        ]
        return self._charts.get() | {
            "num_workers": len({lease.worker for lease in held.values()}),
            "num_leased": len(held),
            "num_waiting": leased.num_waiting,
            "workers": workers,
            "trouble": leased.trouble,
        }

    def rows(self, search: str, sort: str, down: bool, offset: int, limit: int) -> dict[str, Any]:
        """Return some rows of those that a search finds.

        Args:
            search: words, all of which hold: ``x<0.5`` and likewise for a column of numbers,
                ``kind=a`` for a text, and others occur in a text of the row or are its id.
            sort: a column to sort by; by id if empty.
        Raises:
            ValueError: if there is no such column, or a comparison is with no number.
        """
        frame = self._frame.get()
        kept = np.ones(len(frame), dtype=bool)
        for word in search.split():
            kept &= _holds(frame, word)
        found = frame[kept]
        if sort:
            if sort not in frame.columns:
                raise ValueError(f"There is no column {sort!r:.80} to sort by.")
            is_number = pd.api.types.is_numeric_dtype(found[sort])
            key = None if is_number else lambda column: column.astype(str)
            found = found.sort_values(sort, ascending=not down, kind="stable", key=key)
        elif down:
            found = found[::-1]
        part = found[offset : offset + limit]
        return {
            "columns": list(map(str, frame.columns)),
            "num_rows": len(frame),
            "num_found": len(found),
            "rows": [list(map(_cell, row)) for row in part.itertuples(index=False)],
        }

    def _find_model(self) -> dict[str, Any]:
        snapshot = self._snapshot.get()
        beliefs = snapshot.beliefs
        if not beliefs:
            return {"note": f"There is no surrogate before {FEWEST_VALUES} values."}
        shares = {
            views.outcome_name(snapshot, outcome): belief.importances
            for outcome, belief in enumerate(beliefs)
        }
        contour = views.contour(snapshot)
        found = {"importances": draw_shares(shares), "slices": draw(views.slices(snapshot))}
        if contour is not None:
            found["contour"] = draw(contour)
        return found | {
            "note": f"The predicted mean of {views.outcome_name(snapshot, 0)} and, if known, a"
            " band of two standard deviations. The other parameters have the values of row"
            f" {snapshot.shown_row}."
        }


def numbers_of(snapshot: Snapshot) -> dict[str, int]:
    """Return how many points were told, failed, are pending, and how many asks there were."""
    return snapshot.rows.counts() | {"num_asks": len(snapshot.asks)}


def _charts(snapshot: Snapshot) -> dict[str, Any]:
    rows = snapshot.rows
    best = None if snapshot.best_row is None else snapshot.shown_row
    point = None if best is None else snapshot.space.to_dicts(rows.X[[best]])[0]
    several = snapshot.wanted.num_objectives > 1
    goal = "maximise" if snapshot.maximize else "minimise"
    if several:
        goal = snapshot.wanted.directions
    shown: dict[str, Any] = numbers_of(snapshot) | {
        "name": snapshot.name or "A study",
        "goal": f"{goal}, over {shorten(', '.join(snapshot.space.names), 120)}",
        "best": None if best is None else rows.values[best].item(),
        "found": found_so_far(snapshot),
        "best_params": point and describe_params(point, ISOLATES),
        "failures": failures_by_reason(snapshot),
    }
    if snapshot.costs:
        shown["timeline"] = draw(views.times(snapshot))
    if not rows.observed:
        return shown
    if several:
        shown["front"] = draw(views.front(snapshot))
    shown["history"] = draw(views.history(snapshot))
    return shown | {"lines": _lines(snapshot)}


def _lines(snapshot: Snapshot) -> dict[str, Any]:
    """Return parallel coordinates as data, which the page draws and narrows."""
    lines = views.lines(snapshot)
    return {
        "axes": [
            {
                "name": axis.title,
                "ticks": [
                    [float(axis.place(value)), shorten(label, LONGEST_TICK)]
                    for value, label in ticks(axis, upright=True)
                ],
            }
            for axis in lines.axes
        ],
        "lines": [
            {"row": int(row), "value": float(value), "places": list(map(float, places)), "is": is_}
            for row, value, places, is_ in zip(
                lines.rows,
                snapshot.rows.values[lines.rows],
                lines.places.round(4),
                lines.colours,
                strict=True,
            )
        ],
        "note": lines.note,
    }


def _frame(snapshot: Snapshot) -> pd.DataFrame:
    return to_frame(snapshot.space, snapshot.rows, snapshot.goal).reset_index()


def _holds(frame: pd.DataFrame, word: str) -> np.ndarray:
    match = COMPARISON.fullmatch(word)
    if match is not None and match[1] in frame.columns:
        return _compares(frame, *match.groups())
    found = (frame.index == int(word)) if word.isdecimal() and len(word) < 16 else False
    kept = np.zeros(len(frame), dtype=bool) | found
    for _, column in frame.items():
        if pd.api.types.is_string_dtype(column) or column.dtype == object:
            texts = column.astype(str).str
            kept |= texts.contains(word, case=False, regex=False).to_numpy(bool)
    return kept


def _compares(frame: pd.DataFrame, name: str, sign: str, wanted: str) -> np.ndarray:
    """Return of which rows a column compares so with a number or, of texts, is this one."""
    column = frame[name]
    compare = {"<": np.less, ">": np.greater, "<=": np.less_equal, ">=": np.greater_equal}
    is_number = pd.api.types.is_numeric_dtype(column)
    if is_number and not pd.api.types.is_bool_dtype(column):
        try:
            number = float(wanted)
        except ValueError:
            raise ValueError(f"{name}{sign} needs a number, got {wanted!r:.80}.") from None
        return np.asarray(compare.get(sign, np.equal)(column.to_numpy(np.float64), number))
    if sign != "=" and not pd.api.types.is_datetime64_any_dtype(column):
        raise ValueError(f"{name} holds texts: compare it by {name}=…, not by {sign}.")
    texts = column.astype(str).str.lower()  # of a time, in the order of times
    is_known = column.notna() | (sign == "=")
    return np.asarray(compare.get(sign, np.equal)(texts, wanted.lower()) & is_known)


def _cell(value: Any) -> Any:
    """Return what a table holds: a number, a flag or a text; nothing where there is no value."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is pd.NaT:
        return None
    if isinstance(value, pd.Timestamp):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value if math.isfinite(value) else None
    return shorten(value, MAX_REASON)
