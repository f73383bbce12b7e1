"""Figures of the benchmarks, drawn from their records without a display."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from scalable_bo.experiments.thompson import mean_and_error

# Okabe and Ito's colours, told apart by colour-blind readers; random search is grey.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_GREY = "#777777"


def plot_thompson(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the best noiseless value against rounds and against seconds, one line a solver, mean ± standard error.

    There is a row of panels for each lengthscale. Seconds are those of solve and acquisition, summed over rounds and
    averaged over seeds; random search takes none, so its last value stands there as a level to compare with.

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
        _draw(left, range(len(random_search[0])), random_search, _GREY, "random search", linestyle="--", marker="")
        level, _ = mean_and_error([values[-1]["best_noiseless"] for values in random_search])
        right.axhline(level, color=_GREY, linestyle="--")
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
        f"Parallel Thompson sampling, {preset['name']}: d = {preset['dim']}, {preset['num_initial']} initial points"
        " (mean ± standard error)",
        fontsize="medium",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.print_png(path)


def _draw(panel: Axes, x: Sequence[float], values: list[list[dict[str, Any]]], colour: str, label: str, **style: Any) -> None:
    columns = zip(*values, strict=True)
    means, errors = zip(*(mean_and_error([entry["best_noiseless"] for entry in column]) for column in columns), strict=True)
    panel.plot(x, means, color=colour, label=label, markersize=3.5, **({"marker": "o"} | style))
    low = [mean - error for mean, error in zip(means, errors, strict=True)]
    high = [mean + error for mean, error in zip(means, errors, strict=True)]
    panel.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)


def _mean_seconds(runs: list[dict[str, Any]]) -> list[float]:
    """Return the seconds passed before each round and after the last, mean over runs."""
    seconds = [0.0]
    for rounds in zip(*(run["rounds"] for run in runs), strict=True):
        seconds.append(seconds[-1] + statistics.fmean(entry["seconds_solve"] + entry["seconds_acquisition"] for entry in rounds))
    return seconds


def _cycle(length: int) -> list[str]:
    return [_COLOURS[index % len(_COLOURS)] for index in range(length)]
