"""The tables that the commands print at their end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from scalable_bo.cli.console import print_table
from scalable_bo.experiments.cells import Cell
from scalable_bo.experiments.formats import exact, number, plus_minus
from scalable_bo.experiments.records import Record
from scalable_bo.experiments.thompson.table import summarise
from scalable_bo.space.quoting import count


def print_thompson(records: Sequence[Record]) -> None:
    """Print the end of each solver's Thompson runs, beside random search."""
    summaries = summarise(records)
    num_rounds = records[0]["settings"]["preset"]["num_rounds"]
    seeds = count(summaries[0].num_seeds, "seed")
    numbers = ("length-\nscale", "best", "random\nsearch", "better\nby (%)", "worst\nresidual")
    rows = [
        (
            row.name,
            exact(row.lengthscale),
            plus_minus(*row.best_noiseless, digits=3),
            plus_minus(*row.random_search, digits=3),
            plus_minus(*row.improvement, digits=0),
            number(row.worst_residual, ".1e"),
            f"{row.seconds_solve:.1f}",
            f"{row.seconds_acquisition:.1f}",
        )
        for row in summaries
    ]
    print_table(
        f"Best value after {num_rounds} rounds, mean ± standard error over {seeds}; seconds a"
        " round",
        ("solver",),
        (*numbers, "solve\n(s)", "acquire\n(s)"),
        rows,
    )


def printing(
    title: str, kind: type[Cell[Any]], names: Sequence[str]
) -> Callable[[Sequence[Record]], None]:
    """Return what prints a row of numbers for each record, named by some of its settings."""

    def show(records: Sequence[Record]) -> None:
        rows = [
            [str(record["settings"][name]) for name in names]
            + [number(kind.last_step(record).get(key), digits) for key, _, digits in kind.told]
            for record in records
        ]
        print_table(title, names, [word for _, word, _ in kind.told], rows)

    return show
