"""Where the optimisers stand, and the figure of it, drawn from the records without a display."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from acquisition.strategies import STRATEGIES
from benchmarks.league.registry import PEERS
from scalable_bo.experiments.formats import markdown
from scalable_bo.experiments.markdown_tables import TableKind
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


HEADINGS = (
    *("optimiser", "mean rank", "problems", "at most 1.2 × the best peer", "below a third of it"),
    *("worse than Sobol", "processor s an ask", "peak MiB"),
)


@dataclass(frozen=True)
class Division:
    """Runs that can be compared: one budget, size of batches and noise, and on each problem the
    seeds that all its optimisers have.

    Attributes:
        runs: a row for each, with what its record and the settings of this hold.
        zeros: by problem, what is taken off a run's regrets: 0 but where the optimum is not known,
            and the best value of all runs stands for it.
        solved: by problem, the regret below which it counts as solved.
        apart: the problems whose optimisers share no seed, which are left out.
    """

    budget: int
    q: int
    noise: float
    runs: pd.DataFrame
    zeros: pd.Series
    solved: pd.Series
    apart: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What the runs have in common."""
        batches = "one by one" if self.q == 1 else f"in batches of {self.q}"
        noise = f", noise {self.noise:g} of the interquartile range" if self.noise else ""
        return f"{self.budget} evaluations {batches}{noise}"

    @property
    def optimisers(self) -> list[str]:
        """Those that have runs here, in the order of their first appearance."""
        return list(self.runs["optimiser"].unique())

    def medians(self, num_evaluations: int | None = None) -> pd.DataFrame:
        """Return medians over seeds of regrets without noise, a row for each problem and a column
        for each optimiser: of the points that the runs recommend, or of the best observed ones
        after so many evaluations.
        """
        if num_evaluations is None:
            regrets = self.runs["regret_recommended"].astype(float).fillna(math.inf)
        else:
            regrets = self.runs["trace"].map(lambda trace: regret_after(trace, num_evaluations))
        table = self.runs.assign(own=regrets).pivot_table("own", "problem", "optimiser", "median")
        return table.sub(self.zeros[table.index], axis=0)

    def ranks(self, num_evaluations: int | None = None) -> pd.DataFrame:
        """Return the ranks of these medians within each problem, 1 of the smallest; all below what
        counts as solved share one.
        """
        medians = self.medians(num_evaluations)
        return medians.clip(lower=self.solved[medians.index], axis=0).rank(axis=1)


def divisions(records: Sequence[Record], solved: float = 1e-4) -> list[Division]:
    """Return the divisions of complete records, the smallest budgets and batches first; ``solved``
    is the share of a problem's range that a regret must exceed to count.
    """
    if not records:
        return []
    runs = pd.DataFrame([record["settings"] | record for record in records])
    scales = pd.DataFrame({problem: _scale(own) for problem, own in runs.groupby("problem")})
    zeros, ranges = scales.iloc[0], scales.iloc[1]
    found = []
    for (noise, budget, q), group in runs.groupby(["noise", "budget", "q"]):
        all_of_a_problem = group.groupby("problem")["optimiser"].transform("nunique")
        by_this_seed = group.groupby(["problem", "seed"])["optimiser"].transform("nunique")
        compared = group[by_this_seed == all_of_a_problem]
        apart = sorted({*group["problem"]} - {*compared["problem"]})
        found.append(
            Division(int(budget), int(q), noise, compared, zeros, solved * ranges, tuple(apart))
        )
    return found


def _scale(runs: pd.DataFrame) -> tuple[float, float]:
    """Return the zero of a problem's regrets, and its range: of the points that fill it, or of what
    was found where its optimum is not known.
    """
    if runs["optimum"].notna().all():
        return 0.0, runs["range"].min()
    values = [regret for trace in runs["trace"] for _, regret in trace]
    return min(values), max(values) - min(values)


def standings(division: Division, near: float = 1.2, far: float = 1.0 / 3.0) -> pd.DataFrame:
    """Return how the optimisers did, a row for each, the best mean rank first.

    Its columns are ``optimiser``; ``mean_rank`` over the ``num_problems`` that it ran on;
    ``kept_up``, on how many of these its median regret was at most ``near`` times that of the best
    peer, or the problem was solved; ``far_ahead``, on how many it was below ``far`` times it;
    ``behind_sobol``, on how many it was worse than Sobol points; ``seconds_ask``, processor
    seconds: the median over runs of the median ask; and ``peak_bytes``, the largest peak of a run,
    the process's own included. Peers are all that is not ours, but for itself and Sobol points.
    """
    medians = division.medians()
    solved = division.solved[medians.index]
    others = medians.columns.difference([*STRATEGIES, "sobol"])
    peers = {name: medians[others.difference([name])].min(axis=1) for name in medians}
    peer = pd.DataFrame(peers, medians.index).fillna(math.inf)
    sobol = medians.reindex(columns=["sobol"]).fillna(math.inf)["sobol"].clip(lower=solved)
    runs = division.runs.groupby("optimiser")
    columns = {
        "mean_rank": division.ranks().mean(),
        "num_problems": medians.count(),
        "kept_up": medians.le((near * peer).clip(lower=solved, axis=0)).sum(),
        "far_ahead": medians.lt(far * peer).sum(),
        "behind_sobol": medians.gt(sobol, axis=0).sum(),
        "seconds_ask": runs["seconds_ask"].median(),
        "peak_bytes": runs["peak_memory_bytes"].max(),
    }
    table = pd.DataFrame(columns).rename_axis("optimiser").reset_index()
    return table.sort_values("mean_rank", kind="stable")


def regret_after(trace: Sequence[tuple[int, float]], num_evaluations: int) -> float:
    """Return the noiseless regret of the best observed point after so many evaluations."""
    found = [regret for number, regret in trace if number <= num_evaluations]
    return found[-1] if found else math.inf


def league_table(records: Sequence[Record]) -> str:
    """Return Markdown: the standings by budget, batch and noise, and the medians behind them."""
    text = [
        "# Optimisers",
        "",
        "Regret of the point that a run recommends, without noise: medians over the seeds that all"
        " optimisers of a problem have. Where the optimum is not known (`tune-`), the best value of"
        " all runs stands for it; of several objectives (`front-`) it is the hypervolume of the"
        " true front that the points do not cover. Ranks are those of medians; regrets below 1e-4"
        " of a problem's range share one. Peers are what is not ours, Sobol points aside.",
    ]
    for division in divisions(records):
        rows = [list(HEADINGS), *standing_rows(division)]
        text += ["", f"## {division.title}", "", *markdown(rows), "", *_medians(division)]
        if division.apart:
            text += ["", f"Left out, as no seed is common to all: {', '.join(division.apart)}."]
    if not records:
        text += ["", "No records yet."]
    return "\n".join(text) + "\n"


def standing_rows(division: Division) -> list[list[str]]:
    """Return the cells of the standings, in the order of their headings."""
    table = standings(division)
    table["mean_rank"] = table["mean_rank"].map("{:.2f}".format)
    table["seconds_ask"] = table["seconds_ask"].map("{:.2g}".format)
    table["peak_bytes"] = (table["peak_bytes"] / 2**20).map("{:.0f}".format)
    rows: list[list[str]] = table.astype(str).to_numpy().tolist()
    return rows


def _medians(division: Division) -> list[str]:
    """Return a row for each problem; the best median is bold."""
    seeds = division.runs.groupby("problem")["seed"].nunique()
    rows = [["problem", "seeds", *division.optimisers]]
    for problem, medians in division.medians()[division.optimisers].iterrows():
        cells = medians.map("{:.3g}".format, na_action="ignore").fillna("–")
        cells[medians == medians.min()] = "**" + cells[medians == medians.min()] + "**"
        rows.append([str(problem), str(seeds[problem]), *cells])
    return markdown(rows)


LEAGUE = TableKind("optimisers", "optimisers_*.json", ("optimisers",), league_table)
