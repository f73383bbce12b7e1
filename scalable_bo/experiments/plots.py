"""Figures of the benchmarks, drawn from their records without a display."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from scalable_bo.experiments.thompson import mean_and_error

# Okabe and Ito's colours, told apart by colour-blind readers; random search is grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY = "#777777"
_TRACED = (
    ("residual", "relative residual"),
    ("mean_error", "RMSE to the exact mean"),
    ("test_rmse", "test RMSE"),
    ("weights_error", "weights, ‖w − w*‖"),
    ("rkhs_error", "RKHS, ‖w − w*‖$_K$"),
)


def plot_thompson(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the best noiseless value against rounds and against seconds, one line a solver, mean ±
    standard error.

    There is a row of panels for each lengthscale. Seconds are those of solve and acquisition,
    summed over rounds and averaged over seeds; random search takes none, so its last value stands
    there as a level to compare with.

    Args:
        records: complete runs of one preset.
        path: the PNG to write.
    Raises:
        ValueError: if no run is complete.
    """
    complete = [record for record in records if record["complete"]]
    if not complete:
        raise ValueError("`records` must hold at least one complete run, got none.")
    lengthscales = list(dict.fromkeys(record["settings"]["lengthscale"] for record in complete))
    solvers = list(dict.fromkeys(record["settings"]["solver"] for record in complete))
    preset = complete[0]["settings"]["preset"]
    figure = Figure(figsize=(9.5, 0.9 + 3.4 * len(lengthscales)), dpi=150, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    panels = figure.subplots(len(lengthscales), 2, squeeze=False, sharey="row")
    for (left, right), lengthscale in zip(panels, lengthscales, strict=True):
        of_lengthscale = [r for r in complete if r["settings"]["lengthscale"] == lengthscale]
        for colour, solver in zip(_cycle(len(solvers)), solvers, strict=True):
            runs = [r for r in of_lengthscale if r["settings"]["solver"] == solver]
            if runs:
                values = [[run["initial"], *run["rounds"]] for run in runs]
                label = f"{solver} ({len(runs)} seed{'s' if len(runs) > 1 else ''})"
                _draw(left, range(len(values[0])), values, colour, label)
                _draw(right, _mean_seconds(runs), values, colour, label)
        by_seed = {run["settings"]["seed"]: run for run in of_lengthscale}.values()
        random_search = [[run["initial"], *run["random_search"]["rounds"]] for run in by_seed]
        _draw(
            left,
            range(len(random_search[0])),
            random_search,
            GREY,
            "random search",
            linestyle="--",
            marker="",
        )
        level, _ = mean_and_error([values[-1]["best_noiseless"] for values in random_search])
        right.axhline(level, color=GREY, linestyle="--")
        left.set_ylabel(f"best noiseless value (lengthscale {lengthscale:g})")
        left.xaxis.get_major_locator().set_params(integer=True)
        right.set_xlim(left=0)
        for panel in (left, right):
            panel.grid(color="#dddddd", linewidth=0.6)
            panel.set_axisbelow(True)
            panel.spines[["top", "right"]].set_visible(False)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    panels[-1][0].set_xlabel(f"rounds of {preset['q']} points")
    panels[-1][1].set_xlabel("seconds, solve and acquisition")
    figure.suptitle(
        f"Parallel Thompson sampling, {preset['name']}: d = {preset['dim']},"
        f" {preset['num_initial']} initial points (mean ± standard error)",
        fontsize="medium",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.print_png(path)


def plot_solvers(records: Sequence[dict[str, Any]], path: Path) -> None:
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
    figure = Figure(figsize=(9.5, 0.9 + 2.5 * len(metrics)), dpi=150, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    panels = figure.subplots(len(metrics), 2, squeeze=False, sharey="row", sharex="col")
    for row, (key, title) in zip(panels, metrics, strict=True):
        for panel, axis in zip(row, ("epochs", "seconds"), strict=True):
            for index, (colour, trace) in enumerate(zip(_cycle(len(traces)), traces, strict=True)):
                points = _positive(trace, key)
                style = "o-" if index < len(COLOURS) else "s--"
                label = trace["settings"]["solver"]
                panel.plot(
                    [p[axis] for p in points],
                    [p[key] for p in points],
                    style,
                    color=colour,
                    label=label,
                    markersize=3.5,
                )
            panel.set(xscale="log", yscale="log")
            panel.xaxis.set_minor_formatter(NullFormatter())
            panel.grid(color="#dddddd", linewidth=0.6)
            panel.set_axisbelow(True)
            panel.spines[["top", "right"]].set_visible(False)
            if key == "test_rmse" and traces[0]["exact_test_rmse"] is not None:
                panel.axhline(
                    traces[0]["exact_test_rmse"], color=GREY, linestyle="--", label="exact"
                )
        row[0].set_ylabel(title)
    handles: dict[str, Any] = {}
    for panel in panels[:, 0]:
        handles |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    figure.legend(
        handles.values(),
        handles,
        loc="outside lower center",
        ncols=min(len(handles), 7),
        frameon=False,
    )
    panels[-1][0].set_xlabel("epochs, n² kernel entries")
    panels[-1][1].set_xlabel("seconds")
    settings = traces[0]["settings"]
    n = traces[0]["num_train"]
    figure.suptitle(
        f"Solvers on {settings['problem']}: n = {n}, noise variance {traces[0]['noise']:.2g}",
        fontsize="medium",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.print_png(path)


def _positive(trace: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the checkpoints that a logarithmic axis can show."""
    return [
        point
        for point in trace["checkpoints"]
        if point["epochs"] > 0.0 and (point[key] or 0.0) > 0.0
    ]


def _draw(
    panel: Axes,
    x: Sequence[float],
    values: list[list[dict[str, Any]]],
    colour: str,
    label: str,
    **style: Any,
) -> None:
    columns = zip(*values, strict=True)
    means, errors = zip(
        *(mean_and_error([entry["best_noiseless"] for entry in column]) for column in columns),
        strict=True,
    )
    panel.plot(x, means, color=colour, label=label, markersize=3.5, **({"marker": "o"} | style))
    low = [mean - error for mean, error in zip(means, errors, strict=True)]
    high = [mean + error for mean, error in zip(means, errors, strict=True)]
    panel.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)


def _mean_seconds(runs: list[dict[str, Any]]) -> list[float]:
    """Return the seconds passed before each round and after the last, mean over runs."""
    seconds = [0.0]
    for rounds in zip(*(run["rounds"] for run in runs), strict=True):
        seconds.append(
            seconds[-1]
            + statistics.fmean(
                entry["seconds_solve"] + entry["seconds_acquisition"] for entry in rounds
            )
        )
    return seconds


def _cycle(length: int) -> list[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(length)]
