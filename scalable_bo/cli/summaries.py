"""The tables that the commands print at their end."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from scalable_bo.cli.console import new_table
from scalable_bo.experiments.records import Record
from scalable_bo.experiments.tables import Summary, number, plus_minus


def thompson_table(summaries: Sequence[Summary], num_rounds: int) -> Table:
    """Return the end of each solver's Thompson runs, beside random search."""
    seeds = f"{summaries[0].num_seeds} seed{'s' if summaries[0].num_seeds > 1 else ''}"
    table = new_table(
        f"Best value after {num_rounds} rounds, mean ± standard error over {seeds}; seconds a"
        " round",
        ("solver",),
        (
            "length-\nscale",
            "best",
            "random\nsearch",
            "better\nby (%)",
            "worst\nresidual",
            "solve\n(s)",
            "acquire\n(s)",
        ),
    )
    for row in summaries:
        table.add_row(
            row.solver,
            f"{row.lengthscale:g}",
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
    numbers = ("RMSE", "NLL", "residual", "epochs", "seconds")
    table = new_table("Regression on standardised targets", ("data", "split", "solver"), numbers)
    for record in records:
        settings = record["settings"]
        table.add_row(
            settings["data"],
            str(settings["split"]),
            settings["solver"],
            number(record["rmse"], ".4f"),
            number(record["nll"], ".4f"),
            number(record["residual"], ".1e"),
            number(record["epochs"], ".1f"),
            number(record["seconds"], ".1f"),
        )
    return table


def solvers_table(records: Sequence[Record]) -> Table:
    """Return where each solver's trace ended."""
    numbers = ("epochs", "seconds", "residual", "to exact\nmean", "test\nRMSE")
    table = new_table("Each solver's last checkpoint", ("solver",), numbers)
    for record in records:
        last = record["checkpoints"][-1]
        table.add_row(
            record["settings"]["solver"],
            f"{last['epochs']:.1f}",
            f"{last['seconds']:.1f}",
            f"{last['residual']:.1e}",
            number(last["mean_error"], ".1e"),
            f"{last['test_rmse']:.4f}",
        )
    return table
