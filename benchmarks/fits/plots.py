"""The figures of the fits, drawn from their records without a display."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes

from benchmarks.fits.published import SCORES
from scalable_bo.experiments.plots import GREY, colour_of, new_figure, save_figure, shared_legend
from scalable_bo.experiments.records import Record

MARKERS = ("o", "s", "^", "D", "v", "P")


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
                color=colour_of(start),
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
                color=colour_of(i),
                label=f"{data[i]}, {methods[j]}",
                markersize=5,
            )
        for entry in SCORES:
            value = getattr(entry, key)
            if entry.data in data and value is not None:
                colour = colour_of(data.index(entry.data))
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
                color=colour_of(methods.index(method)),
                label=f"{kernel}, {method}",
                markersize=4,
            )
        sizes = sorted({record["settings"]["batch_size"] for record in records})
        panel.set(xscale="log", xlabel="batch size")
        panel.set_xticks(sizes, list(map(str, sizes)))
        panel.minorticks_off()


def _marker(index: int) -> str:
    return MARKERS[index % len(MARKERS)]


_FIGURES: dict[str, tuple[tuple[str, ...], Callable[[Sequence[Record], list[Axes]], None]]] = {
    "recovery": (("signal variance σ_f²", "noise variance σ²"), _recovery),
    "scores": (("RMSE", "negative log likelihood"), _scores),
    "grid": (("RMSE", "negative log likelihood"), _scores),
    "batch-sizes": (("−log p(y) a datum", "test RMSE"), _batch_sizes),
}
