"""The tables that the commands print at their end."""

from __future__ import annotations

from collections.abc import Sequence

from scalable_bo.cli.console import count, print_table
from scalable_bo.experiments.formats import exact, number, plus_minus
from scalable_bo.experiments.records import Record
from scalable_bo.experiments.thompson.table import Summary


def print_thompson(summaries: Sequence[Summary], num_rounds: int) -> None:
    """Print the end of each solver's Thompson runs, beside random search."""
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


def print_regression(records: Sequence[Record]) -> None:
    """Print the scores of regression cells, a row each."""
    names = ("data", "split", "solver")
    formats = {"rmse": ".4f", "nll": ".4f", "residual": ".1e", "epochs": ".1f", "seconds": ".1f"}
    rows = [
        [str(record["settings"][name]) for name in names]
        + [number(record[key], digits) for key, digits in formats.items()]
        for record in records
    ]
    numbers = ("RMSE", "NLL", "residual", "epochs", "seconds")
    print_table("Regression on standardised targets", names, numbers, rows)
