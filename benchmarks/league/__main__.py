"""``python -m benchmarks.league``: a study's strategies beside their peers. Quick to import."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from scalable_bo.cli.console import (
    Commands,
    bad_input,
    check_folder,
    count,
    optional,
    print_table,
    read_integers,
    read_names,
    stop,
)
from scalable_bo.cli.main import main

if TYPE_CHECKING:
    from benchmarks.league.standings import Standing

EXTRA = "pip install 'scalable-bo[league]'"


league = Commands(add_completion=False, pretty_exceptions_enable=False)


@league.command()
def run(
    subset: Annotated[
        str,
        Option(
            help="Problems: smoke, small, small-200, bbob, bbob-all, mixed, noisy, large,"
            " large-5000, largescale, thousand, or night for the first of each kind."
        ),
    ] = "smoke",
    optimisers: Annotated[
        str | None,
        Option(
            help="Optimisers, separated by commas, instead of the subset's: strategies of a study"
            " such as auto, thompson, log-ei, turbo; optuna-gp, optuna-tpe, optuna-cmaes,"
            " botorch-qlognei, botorch-turbo, cma, sobol, ax; ax-auto and optuna-auto for ours"
            " inside of Ax and Optuna."
        ),
    ] = None,
    problems: Annotated[
        str | None,
        Option(
            help="Problems, separated by commas, instead of the subset's: hartmann-6,"
            " bbob-f15-d5, bbob-mixint-f3-d5, bbob-largescale-f8-d80, tune-digits."
        ),
    ] = None,
    seeds: Annotated[
        str | None, Option(help="Seeds, such as 0-4; by default the subset's.")
    ] = None,
    batches: Annotated[
        str | None, Option(help="Sizes of batches, such as 1,5, instead of the subset's.")
    ] = None,
    budget: Annotated[int | None, Option(help="Evaluations, instead of the subset's.")] = None,
    noise: Annotated[
        float | None,
        Option(
            help="Standard deviation of the noise, in interquartile ranges of a problem's values,"
            " instead of the subset's."
        ),
    ] = None,
    rerun: Annotated[bool, Option("--rerun", help="Run also what the folder has a record of.")] = (
        False
    ),
    out: Annotated[Path, Option(help="Folder for the records and the plot, made if needed.")] = (
        Path("results/optimisers")
    ),
) -> None:
    """Run the league of optimisers: regret after a budget, ranks, seconds and memory.

    Runs (problem, optimiser, batch, seed) that the folder has a record of are kept and not run
    again. Optimisers and problems whose packages are not installed are named and left out.
    """
    with bad_input():
        from benchmarks.league.registry import missing_packages
        from benchmarks.league.subsets import plan_league
        from benchmarks.league.tasks import missing_package

        cells = plan_league(
            subset,
            problems=optional(read_names, problems, "problems"),
            optimisers=optional(read_names, optimisers, "optimisers"),
            seeds=optional(read_integers, seeds, "seeds"),
            batches=optional(read_integers, batches, "batches"),
            budget=budget,
            noise=noise,
        )
        check_folder(out)
        missing = missing_packages(list(dict.fromkeys(cell.optimiser for cell in cells)))
        for problem in dict.fromkeys(cell.problem for cell in cells):
            package = missing_package(problem)
            if package is not None:
                missing[problem] = package
        cells = [c for c in cells if c.optimiser not in missing and c.problem not in missing]
        for cell in {cell.problem: cell for cell in cells}.values():
            cell.check_files()

    absent = [f"{name} (needs {package})" for name, package in missing.items()]
    if absent:
        typer.echo(f"Left out: {', '.join(absent)}. Install them: {EXTRA}", err=True)
    if not cells:
        stop("There is nothing left to run.", 2)

    from benchmarks.league.plots import plot_optimisers
    from benchmarks.league.standings import divisions, standings
    from benchmarks.league.table import LEAGUE
    from scalable_bo.cli.running import run_and_show

    records = run_and_show(cells, out, rerun=rerun, table=LEAGUE)
    whole = [record for record in records if record["complete"]]
    plot = out / f"optimisers_{subset}.png"
    found = divisions(whole)
    if any(division.medians for division in found):
        plot_optimisers(whole, plot)
    for division in found:
        print_standings(division.title, standings(division))
    typer.echo(
        f"{count(whole, 'record')} in {out}, with all others there in"
        f" {out / 'optimisers.md'}, plot in {plot}"
    )
    if len(whole) < len(records):
        stop(f"{count(len(records) - len(whole), 'run')} failed; the same command runs them.", 1)


def print_standings(title: str, standings: Sequence[Standing]) -> None:
    """Print how the optimisers of a division did."""
    from benchmarks.league.table import standing_row

    numbers = (
        *("rank", "prob-\nlems", "≤ 1.2\n× best", "< 1/3\nof it", "behind\nSobol"),
        *("cpu s\nan ask", "MiB"),
    )
    print_table(title, ("optimiser",), numbers, map(standing_row, standings))


if __name__ == "__main__":
    main(league)
