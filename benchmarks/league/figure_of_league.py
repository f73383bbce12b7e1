"""The figure of the league, drawn from its records without a display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from acquisition.strategies import STRATEGIES
from benchmarks.league.registry import PEERS
from benchmarks.league.standings import divisions
from scalable_bo.experiments.plots import COLOURS, GREY, Line, LinePanel, draw_panels
from scalable_bo.experiments.records import Record

# Optimisers keep their hues from plot to plot: these, and further ones, mostly of Tol's
HUES = (
    *COLOURS,
    *("#000000", "#882255", "#999933", "#44AA99", "#DDCC77", "#332288", "#AA4499", "#117733"),
    *("#661100", "#DDAA33", "#BB5566"),
)


def plot_optimisers(records: Sequence[Record], path: Path) -> None:
    """Draw the mean rank over problems against evaluations: a panel for each budget, size of
    batches and noise, a line of its own hue an optimiser; ours are solid. One that stands on some
    of a panel's problems only is dotted, and how many these are is written below.

    Args:
        records: complete runs.
    Raises:
        ValueError: if there is none by a seed that all optimisers of a problem have.
    """
    found = [division for division in divisions(records) if division.optimisers]
    if not found:
        raise ValueError(
            "`records` must hold at least one complete run, and one by the same seed of all"
            f" optimisers of its problem, got {len(records)}. Run them by the same seeds."
        )
    most = max(len(division.optimisers) for division in found)
    panels = []
    for division in found:
        steps = [*range(division.q, division.budget, division.q), division.budget]
        mean_ranks = pd.DataFrame({step: division.ranks(step).mean() for step in steps})
        medians = division.medians()
        counts = medians.count()
        partial = counts[counts < len(medians)]
        lines = []
        for name in division.optimisers:
            ours = name in STRATEGIES
            linestyle = ":" if name in partial else "-" if ours else "--"
            style = {"color": optimiser_colours()[name], "linestyle": linestyle, "label": name}
            width = {"linewidth": 2.5 if ours else 1.5}
            lines.append(Line(mean_ranks.loc[name].tolist(), steps, style=style | width))
        notes = [f"dotted: {name}, on {count}" for name, count in partial.items()]
        below = ["evaluations", f"ranks on {len(medians)} problems", *notes]
        labels = {"xlabel": "\n".join(below), "ylabel": "mean rank of the median regret"}
        labels["title"] = division.title
        panels.append(LinePanel(lines, labels | {"ylim": (most + 0.5, 0.5)}))
    draw_panels([panels], path)


def optimiser_colours() -> dict[str, str]:
    """Return the colour of each optimiser of the league: a hue, or grey for Sobol points."""
    first = ["auto", *(name for name in PEERS if name != "sobol")]
    others = [name for name in STRATEGIES if name not in first]
    return {"sobol": GREY} | dict(zip([*first, *others], HUES, strict=False))
