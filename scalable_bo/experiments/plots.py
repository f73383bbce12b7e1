"""Figures of the benchmarks, drawn from their records without a display."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from scalable_bo._packages import require
from scalable_bo.experiments.formats import exact, mean_and_error
from scalable_bo.experiments.published import SCORES
from scalable_bo.experiments.records import Record
from scalable_bo.experiments.thompson.table import comparable, name_of
from surrogates.atomic import replacing

require("matplotlib", extra="bench", user="`scalable-bo bench`")

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

# Okabe and Ito's colours, told apart by colour-blind readers; random search is grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY = "#777777"
MARKERS = ("o", "s", "^", "D", "v", "P")
_TRACED = (
    ("residual", "relative residual"),
    ("mean_error", "RMSE to the exact mean"),
    ("test_rmse", "test RMSE"),
    ("weights_error", "weights, ‖w − w*‖"),
    ("rkhs_error", "RKHS, ‖w − w*‖$_K$"),
)


def plot_thompson(records: Sequence[Record], path: Path) -> None:
    """Draw the best noiseless value against rounds and against seconds, one line a solver, mean ±
    standard error.

    There is a row of panels for each lengthscale. Seconds are those of solve and acquisition,
    summed over rounds and averaged over seeds; random search, by the seeds of the longest and most
    runs, takes none, so its last value stands there as a level to compare with.

    Args:
        records: runs of one preset; which are shown is said in ``comparable``.
        path: the PNG to write.
    Raises:
        ValueError: if no run has a round.
    """
    groups = comparable(records)
    if not groups:
        raise ValueError("`records` must hold at least one run with a round, got none.")
    lengthscales = list(dict.fromkeys(lengthscale for _, lengthscale in groups))
    solvers = list(dict.fromkeys(solver for solver, _ in groups))
    preset = records[0]["settings"]["preset"]
    figure = new_figure(9.5, 0.9 + 3.4 * len(lengthscales))
    panels = figure.subplots(len(lengthscales), 2, squeeze=False, sharey="row")
    for (left, right), lengthscale in zip(panels, lengthscales, strict=True):
        here = {solver: runs for (solver, one), runs in groups.items() if one == lengthscale}
        for solver, runs in here.items():
            colour = _colour(solvers.index(solver))
            values = [[run["initial"], *run["rounds"]] for run in runs]
            label = f"{name_of(runs)} ({len(runs)} seed{'s' if len(runs) > 1 else ''})"
            _draw(left, range(len(values[0])), values, colour, label)
            _draw(right, _mean_seconds(runs), values, colour, label)
        most = max(here.values(), key=lambda runs: (len(runs[0]["rounds"]), len(runs)))
        random_search = [[run["initial"], *run["random_search"]["rounds"]] for run in most]
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
        left.set_ylabel(f"best noiseless value (lengthscale {exact(lengthscale)})")
        left.xaxis.get_major_locator().set_params(integer=True)
        right.set_xlim(left=0)
    shared_legend(figure, panels[0, :1], 4)
    panels[-1][0].set_xlabel(f"rounds of {preset['q']} points")
    panels[-1][1].set_xlabel("seconds, solve and acquisition")
    figure.suptitle(
        f"Parallel Thompson sampling, {preset['name']}: d = {preset['dim']},"
        f" {preset['num_initial']} initial points (mean ± standard error)",
        fontsize="medium",
    )
    save_figure(figure, path)


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
                    color=_colour(index),
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


def _draw(
    panel: Axes,
    x: Sequence[float],
    values: list[list[Record]],
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


def _mean_seconds(runs: list[Record]) -> list[float]:
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


def plot_fits(records: Sequence[Record], path: Path) -> None:
    """Draw the records of one experiment.

    Args:
        records: at least one, all of one experiment.
        path: the PNG to write.
    Raises:
        ValueError: if there are none, or of several experiments.
    """
    experiments = {record["experiment"] for record in records}
    if len(experiments) != 1:
        raise ValueError(
            f"`records` must be of one experiment, got {', '.join(sorted(experiments)) or 'none'}."
        )
    (experiment,) = experiments
    titles, draw = _FIGURES[experiment]
    figure = new_figure(4.8 * len(titles), 5.0)
    panels: list[Axes] = list(figure.subplots(1, len(titles), squeeze=False)[0])
    draw(records, panels)
    for panel, title in zip(panels, titles, strict=True):
        panel.set_title(title, fontsize="medium")
    shared_legend(figure, panels[:1], 3)
    save_figure(figure, path)


def _recovery(records: Sequence[Record], panels: list[Axes]) -> None:
    """Draw a column of dots a method, one a seed; colours are starts."""
    methods = list(dict.fromkeys(record["settings"]["method"] for record in records))
    starts = list(dict.fromkeys(tuple(record["settings"]["start"]) for record in records))
    for panel, key, truth in zip(
        panels, ("outputscale", "noise"), records[0]["truth"], strict=True
    ):
        panel.axhline(truth, color=GREY, linestyle="--", label="truth")
        for record in records:
            start = starts.index(tuple(record["settings"]["start"]))
            values = [one[key] for one in record["estimates"]]
            x = methods.index(record["settings"]["method"]) + 0.2 * (
                start - 0.5 * (len(starts) - 1)
            )
            label = "from ({:g}, {:g})".format(*starts[start])
            panel.plot(
                [x] * len(values),
                values,
                _marker(start),
                color=_colour(start),
                label=label,
                markersize=4,
                alpha=0.7,
            )
        panel.set_xticks(range(len(methods)), methods, rotation=45, ha="right")


def _scores(records: Sequence[Record], panels: list[Axes]) -> None:
    """Draw RMSE and NLL against seconds; colours are data sets, markers methods,
    hollow ones published.
    """
    data = list(dict.fromkeys(record["settings"]["data"] for record in records))
    methods = list(dict.fromkeys(record["settings"]["method"] for record in records))
    published = list(dict.fromkeys(entry.method for entry in SCORES))
    for panel, key in zip(panels, ("rmse", "nll"), strict=True):
        for record in records:
            settings = record["settings"]
            i = data.index(settings["data"])
            j = methods.index(settings["method"])
            panel.plot(
                record["seconds"],
                record[key],
                _marker(j),
                color=_colour(i),
                label=f"{data[i]}, {methods[j]}",
                markersize=5,
            )
        for entry in SCORES:
            value = getattr(entry, key)
            if entry.data in data and value is not None:
                colour = _colour(data.index(entry.data))
                marker = _marker(published.index(entry.method))
                label = f"{entry.data}, {entry.method}, published"
                panel.plot(
                    60 * entry.minutes,
                    value,
                    marker,
                    color=colour,
                    label=label,
                    markersize=5,
                    fillstyle="none",
                )
        panel.set(xscale="log", xlabel="seconds of the fit")


def _batch_sizes(records: Sequence[Record], panels: list[Axes]) -> None:
    lines = list(dict.fromkeys((r["settings"]["kernel"], r["settings"]["method"]) for r in records))
    methods = list(dict.fromkeys(method for _, method in lines))
    for panel, key in zip(panels, ("nll", "rmse"), strict=True):
        for kernel, method in lines:
            of_line = [
                r
                for r in records
                if (r["settings"]["kernel"], r["settings"]["method"]) == (kernel, method)
            ]
            points = sorted((r["settings"]["batch_size"], r[key]) for r in of_line)
            style = "-o" if kernel == "linear" else "--s"
            panel.plot(
                *zip(*points, strict=True),
                style,
                color=_colour(methods.index(method)),
                label=f"{kernel}, {method}",
                markersize=4,
            )
        _batch_size_axis(panel, [record["settings"]["batch_size"] for record in records])


def _curvature(records: Sequence[Record], panels: list[Axes]) -> None:
    _over_sizes(records, panels[0], lambda point: point["mean"], lambda point: point["std"])


def _memory(records: Sequence[Record], panels: list[Axes]) -> None:
    _over_sizes(records, panels[0], lambda point: point["bytes"] / 2**20, lambda point: 0.0)


def _over_sizes(
    records: Sequence[Record],
    panel: Axes,
    value: Callable[[Record], float],
    error: Callable[[Record], float],
) -> None:
    """Draw a line a method over the batch sizes of a record's points."""
    for index, record in enumerate(records):
        points = record["points"]
        panel.errorbar(
            [point["batch_size"] for point in points],
            [value(point) for point in points],
            [error(point) for point in points],
            marker="o",
            color=_colour(index),
            label=record["settings"]["method"],
            capsize=3,
            markersize=4,
        )
    _batch_size_axis(panel, [point["batch_size"] for r in records for point in r["points"]])


def _batch_size_axis(panel: Axes, sizes: Sequence[int]) -> None:
    panel.set(xscale="log", xlabel="batch size")
    panel.set_xticks(sorted(set(sizes)), [str(size) for size in sorted(set(sizes))])
    panel.minorticks_off()


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches."""
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def shared_legend(figure: Figure, panels: Iterable[Axes], ncols: int) -> None:
    """Draw one legend below, of all that these panels name."""
    handles: dict[str, Any] = {}
    for panel in panels:
        handles |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    figure.legend(
        handles.values(),
        handles,
        loc="outside lower center",
        ncols=min(len(handles), ncols),
        frameon=False,
    )


def save_figure(figure: Figure, path: Path) -> None:
    """Draw the grid of all panels alike, and write the PNG."""
    for panel in figure.axes:
        panel.grid(color="#dddddd", linewidth=0.6)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        FigureCanvasAgg(figure).print_png(temporary)


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _marker(index: int) -> str:
    return MARKERS[index % len(MARKERS)]


_FIGURES: dict[str, tuple[tuple[str, ...], Callable[[Sequence[Record], list[Axes]], None]]] = {
    "recovery": (("signal variance σ_f²", "noise variance σ²"), _recovery),
    "scores": (("RMSE", "negative log likelihood"), _scores),
    "batch-sizes": (("−log p(y) a datum", "test RMSE"), _batch_sizes),
    "curvature": (("curvature γ in the noise variance",), _curvature),
    "memory": (("MiB that a fit adds",), _memory),
}
