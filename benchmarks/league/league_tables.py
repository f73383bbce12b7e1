"""The league's tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.league.standings import Division, Standing, divisions, standings
from scalable_bo.experiments.formats import markdown
from scalable_bo.experiments.markdown_tables import TableKind
from scalable_bo.experiments.records import Record

HEADINGS = (
    *("optimiser", "mean rank", "problems", "at most 1.2 × the best peer", "below a third of it"),
    *("worse than Sobol", "processor s an ask", "peak MiB"),
)


def league_table(records: Sequence[Record]) -> str:
    """Return Markdown: for each budget, size of batches and noise the standings, and the medians
    behind them.
    """
    text = [
        "# Optimisers",
        "",
        "Regret of the point that a run recommends, without noise: medians over the seeds that all"
        " optimisers of a problem have. Where the optimum is not known (`tune-`), the best value of"
        " all runs stands for it. Ranks are those of medians; regrets below 1e-4 of a problem's"
        " range share one. Peers are what is not ours, Sobol points aside.",
    ]
    for division in divisions(records):
        rows = [list(HEADINGS), *(standing_row(one) for one in standings(division))]
        text += ["", f"## {division.title}", "", *markdown(rows), "", *_medians(division)]
        if division.apart:
            text += ["", f"Left out, as no seed is common to all: {', '.join(division.apart)}."]
    if not records:
        text += ["", "No records yet."]
    return "\n".join(text) + "\n"


def standing_row(standing: Standing) -> list[str]:
    """Return the cells of a row, in the order of their headings."""
    return [
        standing.optimiser,
        f"{standing.mean_rank:.2f}",
        str(standing.num_problems),
        str(standing.kept_up),
        str(standing.far_ahead),
        str(standing.behind_sobol),
        f"{standing.seconds_ask:.2g}",
        f"{standing.peak_bytes / 2**20:.0f}",
    ]


def _medians(division: Division) -> list[str]:
    """Return a row a problem; the best median is bold."""
    names = division.optimisers
    rows = [["problem", "seeds", *names]]
    for problem, medians in division.medians.items():
        best = min(medians.values())
        cells = [_cell(medians.get(name), best) for name in names]
        rows.append([problem, str(division.num_seeds(problem)), *cells])
    return markdown(rows)


def _cell(median: float | None, best: float) -> str:
    if median is None:
        return "–"
    return f"**{median:.3g}**" if median == best else f"{median:.3g}"


LEAGUE = TableKind("optimisers", "optimisers_*.json", ("optimisers",), league_table)
