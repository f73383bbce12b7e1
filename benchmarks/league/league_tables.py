"""The league's tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.league.standings import Division, divisions, standings
from scalable_bo.experiments.formats import markdown
from scalable_bo.experiments.markdown_tables import TableKind
from scalable_bo.experiments.records import Record

HEADINGS = (
    *("optimiser", "mean rank", "problems", "at most 1.2 × the best peer", "below a third of it"),
    *("worse than Sobol", "processor s an ask", "peak MiB"),
)


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
