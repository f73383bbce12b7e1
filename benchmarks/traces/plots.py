"""The figure of the traces, drawn from their records without a display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.ticker import NullFormatter

from scalable_bo.experiments.plots import (
    COLOURS,
    GREY,
    colour_of,
    new_figure,
    save_figure,
    shared_legend,
)
from scalable_bo.experiments.records import Record

_TRACED = (
    ("residual", "relative residual"),
    ("mean_error", "RMSE to the exact mean"),
    ("test_rmse", "test RMSE"),
    ("weights_error", "weights, ‖w − w*‖"),
    ("rkhs_error", "RKHS, ‖w − w*‖$_K$"),
)


def plot_solvers(records: Sequence[Record], path: Path) -> None:
    """Draw the traces of several solvers on one system: a row of panels for each metric, against
    epochs and against seconds.

    Args:
        records: traces of one problem; those without a checkpoint are left out.
        path: the PNG to write.
    Raises:
        ValueError: if no trace has a checkpoint.
    """
    traces = [record for record in records if record["checkpoints"]]
    if not traces:
        raise ValueError("`records` must hold at least one trace with a checkpoint, got none.")
    metrics = [
        (key, title) for key, title in _TRACED if any(_positive(trace, key) for trace in traces)
    ]
    figure = new_figure(9.5, 0.9 + 2.5 * len(metrics))
    panels = figure.subplots(len(metrics), 2, squeeze=False, sharey="row", sharex="col")
    for row, (key, title) in zip(panels, metrics, strict=True):
        for panel, axis in zip(row, ("epochs", "seconds"), strict=True):
            for index, trace in enumerate(traces):
                points = _positive(trace, key)
                style = "o-" if index < len(COLOURS) else "s--"
                label = trace["settings"]["solver"]
                panel.plot(
                    [p[axis] for p in points],
                    [p[key] for p in points],
                    style,
                    color=colour_of(index),
                    label=label,
                    markersize=3.5,
                )
            panel.set(xscale="log", yscale="log")
            panel.xaxis.set_minor_formatter(NullFormatter())
            if key == "test_rmse" and traces[0]["exact_test_rmse"] is not None:
                panel.axhline(
                    traces[0]["exact_test_rmse"], color=GREY, linestyle="--", label="exact"
                )
        row[0].set_ylabel(title)
    shared_legend(figure, panels[:, 0], 7)
    panels[-1][0].set_xlabel("epochs, n² kernel entries")
    panels[-1][1].set_xlabel("seconds")
    settings = traces[0]["settings"]
    n = traces[0]["num_train"]
    figure.suptitle(
        f"Solvers on {settings['problem']}: n = {n}, noise variance {traces[0]['noise']:.2g}",
        fontsize="medium",
    )
    save_figure(figure, path)


def _positive(trace: Record, key: str) -> list[Record]:
    """Return the checkpoints that a logarithmic axis can show."""
    return [
        point
        for point in trace["checkpoints"]
        if point["epochs"] > 0.0 and (point[key] or 0.0) > 0.0
    ]
