"""The tables that the commands print at their end."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from scalable_bo.cli.console import count, new_table
from scalable_bo.experiments.formats import exact, number, plus_minus
from scalable_bo.experiments.records import Record
from scalable_bo.experiments.thompson.table import Summary


def thompson_table(summaries: Sequence[Summary], num_rounds: int) -> Table:
    """Return the end of each solver's Thompson runs, beside random search."""
    seeds = count(summaries[0].num_seeds, "seed")
    numbers = ("length-\nscale", "best", "random\nsearch", "better\nby (%)", "worst\nresidual")
    table = new_table(
        f"Best value after {num_rounds} rounds, mean ± standard error over {seeds}; seconds a"
        " round",
        ("solver",),
        (*numbers, "solve\n(s)", "acquire\n(s)"),
    )
    for row in summaries:
        table.add_row(
            row.name,
            exact(row.lengthscale),
            plus_minus(*row.best_noiseless, digits=3),
            plus_minus(*row.random_search, digits=3),
            plus_minus(*row.improvement, digits=0),
            number(row.worst_residual, ".1e"),
            f"{row.seconds_solve:.1f}",
            f"{row.seconds_acquisition:.1f}",
        )
    return table


def regression_table(records: Sequence[Record]) -> Table:
    """Return the scores of regression cells, a row each."""
    headings = ("RMSE", "NLL", "residual", "epochs", "seconds")
    table = new_table("Regression on standardised targets", ("data", "split", "solver"), headings)
    for record in records:
        words = (str(record["settings"][name]) for name in ("data", "split", "solver"))
        table.add_row(*words, *numbers_of(record, rmse=".4f", nll=".4f", residual=".1e", **SPENT))
    return table


SPENT = {"epochs": ".1f", "seconds": ".1f"}


def numbers_of(record: Record, **formats: str) -> list[str]:
    """Return the numbers of a record in these formats, by their keys."""
    return [number(record[key], digits) for key, digits in formats.items()]
