"""``python -m benchmarks.league``: a study's strategies beside their peers. Quick to import."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from scalable_bo._packages import INSTALL, require
from scalable_bo.cli.console import Commands, optional, print_table, read_integers, read_names
from scalable_bo.cli.main import main
from scalable_bo.cli.running import Benchmark, BenchmarkPlan

if TYPE_CHECKING:
    from scalable_bo.experiments.records import Record

league = Commands()


@league.command()
@dataclass(frozen=True)
class LeagueCommand(Benchmark):
    """Run the league of optimisers: regret after a budget, ranks, seconds and memory.

    Runs (problem, optimiser, batch, seed) that the folder has a record of are kept and not run
    again. Optimisers and problems whose packages are not installed are named and left out.

    Args:
        subset: problems: smoke, small, bbob, bbob-all, mixed, noisy, failing, valleys, fronts,
            fronts-large, large, largescale, thousand, or night for the first of each kind.
        optimisers: optimisers, separated by commas, instead of the subset's: strategies of a study
            such as auto, thompson, log-ei, turbo; optuna-gp, optuna-tpe, optuna-cmaes,
            optuna-nsga2, botorch-qlognei, botorch-qlognei-worst, botorch-qlognehvi, botorch-turbo,
            cma, sobol, ax; ax-auto and optuna-auto for ours inside of Ax and Optuna.
        problems: problems, separated by commas, instead of the subset's: hartmann-6, bbob-f15-d5,
            bbob-mixint-f3-d5, bbob-largescale-f8-d80, tune-digits, failing-ball, valley-6-1e4,
            front-zdt1.
        seeds: seeds, such as 0-4; by default the subset's.
        batches: sizes of batches, such as 1,5, instead of the subset's.
        budget: evaluations, instead of the subset's.
        noise: standard deviation of the noise, in interquartile ranges of a problem's values,
            instead of the subset's.
    """

    subset: str = "smoke"
    optimisers: str | None = None
    problems: str | None = None
    seeds: str | None = None
    batches: str | None = None
    budget: int | None = None
    noise: float | None = None
    out: Path = Path("results/optimisers")

    def plan(self) -> BenchmarkPlan:
        require("pandas", extra="league", user="`python -m benchmarks.league`")

        from benchmarks.league.registry import missing_packages
        from benchmarks.league.standings import LEAGUE
        from benchmarks.league.subsets import plan_league
        from benchmarks.league.tasks import missing_package

        cells = plan_league(
            self.subset,
            problems=optional(read_names, self.problems, "problems"),
            optimisers=optional(read_names, self.optimisers, "optimisers"),
            seeds=optional(read_integers, self.seeds, "seeds"),
            q=optional(read_integers, self.batches, "batches"),
            budget=self.budget,
            noise=self.noise,
        )
        missing = missing_packages(dict.fromkeys(cell.optimiser for cell in cells))
        for problem in dict.fromkeys(cell.problem for cell in cells):
            if package := missing_package(problem):
                missing[problem] = package
        cells = [c for c in cells if c.optimiser not in missing and c.problem not in missing]
        absent = [f"{name} (needs {package})" for name, package in missing.items()]
        if absent:
            typer.echo(f"Left out: {', '.join(absent)}. {INSTALL.format('league')}", err=True)
        if not cells:
            raise ValueError("There is nothing left to run.")
        picture = f"optimisers_{self.subset}.png"
        return BenchmarkPlan(cells, print_standings, LEAGUE, draw_complete, picture)


def print_standings(records: list[Record]) -> None:
    """Print how the optimisers of each division did."""
    from benchmarks.league.standings import divisions, standing_rows

    numbers = (
        *("rank", "prob-\nlems", "≤ 1.2\n× best", "< 1/3\nof it", "behind\nSobol"),
        *("cpu s\nan ask", "MiB"),
    )
    for division in divisions(records):
        print_table(division.title, ("optimiser",), numbers, standing_rows(division))


def draw_complete(records: list[Record], path: Path) -> None:
    """Draw the complete runs, if there are some to compare."""
    from benchmarks.league.standings import divisions, plot_optimisers

    whole = [record for record in records if record["complete"]]
    if any(division.optimisers for division in divisions(whole)):
        plot_optimisers(whole, path)


if __name__ == "__main__":
    main(league)
