"""The figure of the traces, drawn from their records without a display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalable_bo.experiments.plots import COLOURS, GREY, Line, LinePanel, colour_of, draw_panels
from scalable_bo.experiments.records import Record

_TRACED = (
    ("residual", "relative residual"),
    ("mean_error", "RMSE to the exact mean"),
    ("test_rmse", "test RMSE"),
    ("weights_error", "weights, ‖w − w*‖"),
    ("rkhs_error", "RKHS, ‖w − w*‖$_K$"),
)
_AXES = {"epochs": "epochs, n² kernel entries", "seconds": "seconds"}


def plot_solvers(records: Sequence[Record], path: Path) -> None:
    """Draw the traces of several solvers on one system: a row of panels for each metric, against
    epochs and against seconds.

    Args:
        records: traces of one problem; those without a checkpoint are left out.
    Raises:
        ValueError: if no trace has a checkpoint.
    """
    traces = [record for record in records if record["checkpoints"]]
    if not traces:
        raise ValueError("`records` must hold at least one trace with a checkpoint, got none.")
    exact = traces[0]["exact_test_rmse"]
    level = Line([exact], style={"color": GREY, "linestyle": "--", "label": "exact"})
    rows = []
    for key, title in _TRACED:
        if any(_positive(trace, key) for trace in traces):
            has_level = key == "test_rmse" and exact is not None
            rows.append(
                [
                    LinePanel(
                        [*_lines(traces, axis, key), *([level] if has_level else [])],
                        {"xscale": "log", "yscale": "log", "xlabel": label, "ylabel": title},
                    )
                    for axis, label in _AXES.items()
                ]
            )
    problem, n, noise = traces[0]["settings"]["problem"], traces[0]["num_train"], traces[0]["noise"]
    draw_panels(rows, path, f"Solvers on {problem}: n = {n}, noise variance {noise:.2g}")


def _lines(traces: list[Record], axis: str, key: str) -> list[Line]:
    lines = []
    for index, trace in enumerate(traces):
        points = _positive(trace, key)
        style: dict[str, Any] = {"color": colour_of(index), "label": trace["settings"]["solver"]}
        style |= {"marker": "o"} if index < len(COLOURS) else {"marker": "s", "linestyle": "--"}
        lines.append(Line([p[key] for p in points], [p[axis] for p in points], style=style))
    return lines


def _positive(trace: Record, key: str) -> list[Record]:
    """Return the checkpoints that a logarithmic axis can show."""
    points = trace["checkpoints"]
    return [p for p in points if p["epochs"] > 0.0 and (p[key] or 0.0) > 0.0]
