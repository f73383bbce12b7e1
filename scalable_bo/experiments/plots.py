"""The figure of the Thompson benchmark, drawn from its records without a display, and what figures
of benchmarks share.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from scalable_bo._packages import require
from scalable_bo.experiments.formats import exact, mean_and_error
from scalable_bo.experiments.records import Record
from scalable_bo.experiments.thompson.table import comparable, name_of
from surrogates.atomic import replacing

require("matplotlib", extra="bench", user="`scalable-bo bench`")

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by colour-blind readers; random search is grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY = "#777777"


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
            colour = colour_of(solvers.index(solver))
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


def colour_of(index: int) -> str:
    """Return the colour of the line of this number."""
    return COLOURS[index % len(COLOURS)]
