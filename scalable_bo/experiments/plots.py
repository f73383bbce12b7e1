"""Figures of benchmarks, drawn from their records without a display: panels of lines, and that of
the Thompson benchmark.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from scalable_bo._packages import require
from scalable_bo.experiments.formats import exact, mean_and_error
from scalable_bo.experiments.records import Record
from scalable_bo.experiments.thompson.table import comparable, solver_and_progress
from surrogates.atomic import replacing

require("matplotlib", extra="bench", user="`scalable-bo bench`")

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

# Okabe and Ito's colours, told apart by colour-blind readers; random search is grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY = "#777777"


@dataclass(frozen=True)
class Line:
    """Points (x, y) joined by a line, or without ``x`` a level; ``errors`` are half the heights of
    a band around it, and ``style`` are arguments of ``Axes.plot``.
    """

    y: Sequence[float]
    x: Sequence[float] | None = None
    errors: Sequence[float] = ()
    style: dict[str, Any] = field(default_factory=dict)

    def draw(self, axes: Axes) -> None:
        if self.x is None:
            axes.axhline(self.y[0], **self.style)
            return
        axes.plot(self.x, self.y, **{"markersize": 3.5} | self.style)
        if self.errors:
            low = [y - error for y, error in zip(self.y, self.errors, strict=True)]
            high = [y + error for y, error in zip(self.y, self.errors, strict=True)]
            axes.fill_between(self.x, low, high, color=self.style["color"], alpha=0.18, linewidth=0)


@dataclass(frozen=True)
class LinePanel:
    """Lines, and what ``Axes.set`` says of their axes."""

    lines: Sequence[Line]
    settings: dict[str, Any]

    def draw(self, axes: Axes) -> None:
        for line in self.lines:
            line.draw(axes)
        axes.set(**self.settings)
        if axes.get_xscale() == "log":
            axes.xaxis.set_minor_formatter(NullFormatter())
        elif all(isinstance(x, int) for line in self.lines for x in line.x or ()):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.title.set_fontsize("small")
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.label_outer()


def draw_panels(rows: Sequence[Sequence[LinePanel]], path: Path, title: str = "") -> None:
    """Draw rows of panels that share axes, above a legend of all lines, and write the PNG."""
    height, width = len(rows), len(rows[0])
    size = (4.8 * width, 0.9 + 3.4 * height)
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    axes = figure.subplots(height, width, squeeze=False, sharex="col", sharey="row")
    named: dict[str, Any] = {}
    for panel, place in zip((panel for row in rows for panel in row), axes.flat, strict=True):
        panel.draw(place)
        named |= dict(zip(*reversed(place.get_legend_handles_labels()), strict=True))
    figure.legend(named.values(), named, loc="outside lower center", ncols=2 * width, frameon=False)
    figure.suptitle(title, fontsize="medium")
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        FigureCanvasAgg(figure).print_png(temporary)


def plot_thompson(records: Sequence[Record], path: Path) -> None:
    """Draw the best noiseless value against rounds and against seconds, one line a solver, mean ±
    standard error.

    There is a row of panels for each lengthscale. Seconds are those of solve and acquisition,
    summed over rounds and averaged over seeds; random search, by the seeds of the longest and most
    runs, takes none, so its last value stands there as a level to compare with.

    Args:
        records: runs of one preset; which are shown is said in ``comparable``.
    Raises:
        ValueError: if no run has a round.
    """
    groups = comparable(records)
    if not groups:
        raise ValueError("`records` must hold at least one run with a round, got none.")
    preset = records[0]["settings"]["preset"]
    solvers = list(dict.fromkeys(solver for solver, _ in groups))
    rows = []
    for lengthscale in dict.fromkeys(lengthscale for _, lengthscale in groups):
        here = {solver: runs for (solver, one), runs in groups.items() if one == lengthscale}
        left, right = [], []
        for solver, runs in here.items():
            style = {"color": colour_of(solvers.index(solver)), "marker": "o"}
            label = f"{solver_and_progress(runs)} ({len(runs)} seed{'s' if len(runs) > 1 else ''})"
            values = [[run["initial"], *run["rounds"]] for run in runs]
            left.append(_line(range(len(values[0])), values, style | {"label": label}))
            right.append(_line(_mean_seconds(runs), values, style))
        most = max(here.values(), key=lambda runs: (len(runs[0]["rounds"]), len(runs)))
        random = [[run["initial"], *run["random_search"]["rounds"]] for run in most]
        dashed = {"color": GREY, "linestyle": "--"}
        left.append(_line(range(len(random[0])), random, dashed | {"label": "random search"}))
        right.append(Line(left[-1].y[-1:], style=dashed))
        best = f"best noiseless value (lengthscale {exact(lengthscale)})"
        rounds = {"xlabel": f"rounds of {preset['q']} points", "ylabel": best}
        seconds = {"xlabel": "seconds, solve and acquisition", "xlim": (0, None)}
        rows.append((LinePanel(left, rounds), LinePanel(right, seconds)))
    draw_panels(
        rows,
        path,
        f"Parallel Thompson sampling, {preset['name']}: d = {preset['dim']},"
        f" {preset['num_initial']} initial points (mean ± standard error)",
    )


def _line(x: Sequence[float], values: list[list[Record]], style: dict[str, Any]) -> Line:
    columns = zip(*values, strict=True)
    means, errors = zip(
        *(mean_and_error([entry["best_noiseless"] for entry in column]) for column in columns),
        strict=True,
    )
    return Line(means, x, errors, style)


def _mean_seconds(runs: list[Record]) -> list[float]:
    """Return the seconds passed before each round and after the last, mean over runs."""
    means = (
        statistics.fmean(entry["seconds_solve"] + entry["seconds_acquisition"] for entry in rounds)
        for rounds in zip(*(run["rounds"] for run in runs), strict=True)
    )
    return list(accumulate(means, initial=0.0))


def colour_of(index: int) -> str:
    """Return the colour of the line of this number."""
    return COLOURS[index % len(COLOURS)]
