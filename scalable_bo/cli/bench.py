"""``scalable-bo bench``: the papers' benchmarks, each a list of cells and what is made of their
records. Quick to import.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from scalable_bo.cli.console import (
    Commands,
    bad_input,
    check_device,
    check_folder,
    count,
    optional,
    read_floats,
    read_integers,
    read_names,
    under_torchrun,
)

# The names in the registry of solvers, whose import is too slow for ``--help``
SOLVER_NAMES = (
    *("auto", "cholesky", "cg", "sdd", "sdd-1", "sdd-10", "sdd-100", "sgd"),
    *("sap", "asap", "adasap", "adasap-i"),
)
_SOLVERS = ", ".join(SOLVER_NAMES)
Text = str | None
Whole = int | None
Noise = Annotated[
    float | None, Option(help="Noise variance, such as 1e-6, instead of the given or fitted one.")
]
Rerun = Annotated[bool, Option("--rerun", help="Run also what the folder has a record of.")]
Out = Annotated[Path, Option(help="Folder for the records and the plot, made if needed.")]
DataDir = Annotated[
    Path | None, Option(help="Folder of the data sets.  [default: ../shared/data/uci]")
]
Dtype = Annotated[str, Option(help="float32 or float64.")]
Device = Annotated[str, Option(help="Device to compute on: cpu, cuda, cuda:1.")]

bench = Commands(
    help="Run the papers' benchmarks; each run writes one JSON record.", no_args_is_help=True
)


@bench.command("thompson")
@dataclass(frozen=True)
class ThompsonCommand:
    """Maximise functions drawn from a prior by parallel Thompson sampling.

    Random search stands beside it. Runs (solver, lengthscale, seed) that the folder has a complete
    record of are kept and not run again; an interrupted one goes on after its last finished round.
    """

    preset: Annotated[
        str, Option(help="Settings: smoke, laptop, lin2023-small, lin2023-large or adasap2025.")
    ] = "laptop"
    solver: Annotated[
        str,
        Option(
            help=f"Methods, separated by commas: {_SOLVERS}, svgp; or module:Class of your own."
        ),
    ] = "auto,cg"
    seeds: Annotated[Text, Option(help="Seeds, such as 0-4 or 0,3; by default the preset's.")] = (
        None
    )
    lengthscale: Annotated[
        Text, Option(help="Lengthscales, separated by commas; by default the preset's.")
    ] = None
    rounds: Annotated[Whole, Option(help="Rounds, instead of the preset's.")] = None
    q: Annotated[Whole, Option(help="Points a round, instead of the preset's.")] = None
    num_initial: Annotated[Whole, Option(help="Initial points, instead of the preset's.")] = None
    dtype: Annotated[Text, Option(help="float32 or float64, instead of the preset's.")] = None
    share_features: Annotated[
        bool,
        Option(
            "--share-features",
            help="As published: let the surrogate's paths use the target's own random features.",
        ),
    ] = False
    coordinate_features: Annotated[
        bool,
        Option(
            "--coordinate-features",
            help="As published: random features of a product of one-dimensional Matérn kernels.",
        ),
    ] = False
    published_weights: Annotated[
        bool,
        Option(
            "--published-weights",
            help="As published: candidates around data drawn by y + min y, in place of y - min y.",
        ),
    ] = False
    own_search: Annotated[
        bool,
        Option(
            "--own-search",
            help="Maximise the paths by the defaults of this package, not the preset's settings.",
        ),
    ] = False
    scale: Annotated[
        float,
        Option(
            help="Factor of data, batches and candidates, at most 1; its root is that of rounds and"
            " features."
        ),
    ] = 1.0
    rerun: Annotated[
        bool,
        Option("--rerun", help="Run also what the folder has a record of, from the first round."),
    ] = False
    device: Device = "cpu"
    out: Out = Path("results")

    @under_torchrun
    def run(self) -> None:
        with bad_input():
            from scalable_bo.experiments.presets import find_preset, vary
            from scalable_bo.experiments.thompson.cell import ThompsonCell, check_settings
            from surrogates.systems.processes import shares

            chosen = vary(
                find_preset(self.preset),
                scale=self.scale,
                share_features=self.share_features,
                coordinate_features=self.coordinate_features,
                published_weights=self.published_weights,
                own_search=self.own_search,
            )
            overrides: dict[str, Any] = {
                "num_rounds": self.rounds,
                "q": self.q,
                "num_initial": self.num_initial,
                "dtype": self.dtype,
            }
            chosen = replace(chosen, **{k: v for k, v in overrides.items() if v is not None})
            names = read_names(self.solver, "solver")
            cells = [
                ThompsonCell(chosen, name, ls, seed, device=self.device)
                for ls in optional(read_floats, self.lengthscale, "lengthscale")
                or chosen.lengthscales
                for seed in optional(read_integers, self.seeds, "seeds") or range(chosen.num_seeds)
                for name in names
            ]
            check_device(self.device)
            shares("q", chosen.q)
            check_folder(self.out)
            if not self.rerun:
                check_settings(cells, self.out)

        from scalable_bo.cli.running import complete, run_and_show
        from scalable_bo.cli.summaries import print_thompson
        from scalable_bo.experiments.plots import plot_thompson
        from scalable_bo.experiments.tables import THOMPSON
        from scalable_bo.experiments.thompson.table import summarise

        plot = self.out / f"thompson_{chosen.name}.png"
        advice = f"; the same command{' without --rerun' if self.rerun else ''} goes on"
        records = run_and_show(
            cells,
            self.out,
            rerun=self.rerun,
            table=THOMPSON,
            draw=lambda records: plot_thompson(records, plot),
            written=lambda records: complete(cells, records) + f" in {self.out}{advice}",
        )
        print_thompson(summarise(records), chosen.num_rounds)
        typer.echo(
            f"{count(records, 'record')} in {self.out}, all beside the published in"
            f" {self.out / 'thompson.md'}, plot in {plot}"
        )


@bench.command("regression")
@dataclass(frozen=True)
class RegressionCommand:
    """Measure a Gaussian process on regression data: UCI's, or your own table.

    On the UCI sets it has their published hyperparameters. Cells (data set, split, method) that the
    folder has a record of, with the same settings, are kept and not run again.
    """

    data: Annotated[
        str,
        Option(
            help="Data sets, separated by commas: pol, elevators, bike, protein, keggdirected; or"
            " your .parquet and .csv tables."
        ),
    ] = "pol"
    split: Annotated[str, Option(help="Splits, such as 0 or 0-4.")] = "0"
    solver: Annotated[
        str,
        Option(
            help=f"Methods, separated by commas: {_SOLVERS}, sgd-inducing, inducing, svgp, subset;"
            " or module:Class of your own."
        ),
    ] = "cg"
    noise: Noise = None
    mean_only: Annotated[
        bool,
        Option("--mean-only", help="Compute the posterior mean alone: no paths, no likelihood."),
    ] = False
    tolerance: Annotated[
        float | None,
        Option(
            help="Relative residual at which a column stops, in place of the posterior's error."
        ),
    ] = None
    max_epochs: Annotated[
        float, Option(help="Passes over the kernel matrix that a method may spend.")
    ] = 100.0
    sgd_steps: Annotated[
        int, Option(help="Steps of sgd and sgd-inducing, all of which they take.")
    ] = 100_000
    num_points: Annotated[int, Option(help="Inducing points, or points of the subset.")] = 4096
    target: Annotated[Text, Option(help="Column of your table to predict from all others.")] = None
    test_fraction: Annotated[
        float, Option(help="Part of your table to test on, chosen at random for each split.")
    ] = 0.1
    rerun: Rerun = False
    data_dir: DataDir = None
    dtype: Dtype = "float32"
    device: Device = "cpu"
    out: Out = Path("results")

    @under_torchrun
    def run(self) -> None:
        with bad_input():
            splits = read_integers(self.split, "split")
            sets = read_names(self.data, "data")
            names = read_names(self.solver, "solver")

            from scalable_bo.experiments.regression.cell import RegressionCell
            from scalable_bo.experiments.regression.methods import Budget
            from scalable_bo.experiments.shared import check_methods

            check_device(self.device)
            settings: dict[str, Any] = {
                "noise": self.noise,
                "mean_only": self.mean_only,
                "budget": Budget(self.tolerance, self.max_epochs, self.sgd_steps, self.num_points),
                "target": self.target,
                "test_fraction": self.test_fraction,
                "dtype": self.dtype,
                "device": self.device,
            }
            cells = [
                # One data set and split after another: they are loaded once
                RegressionCell(name, index, method, self.data_dir, **settings)
                for name in sets
                for index in splits
                for method in names
            ]
            for cell in cells[:: len(names)]:
                cell.check_files()
            check_methods(names, self.mean_only)
            check_folder(self.out)

        from scalable_bo.cli.running import run_and_show
        from scalable_bo.cli.summaries import print_records
        from scalable_bo.experiments.tables import REGRESSION

        records = run_and_show(cells, self.out, rerun=self.rerun, table=REGRESSION)
        title = "Regression on standardised targets"
        print_records(title, RegressionCell, ("data", "split", "solver"), records)
        typer.echo(
            f"{count(records, 'record')} in {self.out}, with all others there in"
            f" {self.out / 'regression.md'}"
        )


@bench.command()
def table(out: Out = Path("results")) -> None:
    """Write regression.md again, the table of the regression records in a folder."""
    with bad_input():
        from scalable_bo.experiments.tables import REGRESSION, write_table

        check_folder(out)
    typer.echo(f"Wrote {write_table(out, REGRESSION)}")
