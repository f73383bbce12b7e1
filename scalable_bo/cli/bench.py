"""``scalable-bo bench``: the papers' benchmarks, each a list of cells and what is made of their
records. Quick to import.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from scalable_bo.cli.console import (
    Commands,
    bad_input,
    check_folder,
    optional,
    read_floats,
    read_integers,
    read_names,
)
from scalable_bo.cli.running import Benchmark, Plan, options_of

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
DataDir = Annotated[
    Path | None, Option(help="Folder of the data sets.  [default: ../shared/data/uci]")
]
Dtype = Annotated[str, Option(help="float32 or float64.")]

bench = Commands(
    help="Run the papers' benchmarks; each run writes one JSON record.", no_args_is_help=True
)


@bench.command("thompson")
@dataclass(frozen=True)
class ThompsonCommand(Benchmark):
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
    num_rounds: Annotated[Whole, Option("--rounds", help="Rounds, instead of the preset's.")] = None
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

    def plan(self) -> Plan:
        from scalable_bo.cli.summaries import print_thompson
        from scalable_bo.experiments.plots import plot_thompson
        from scalable_bo.experiments.presets import find_preset, vary
        from scalable_bo.experiments.tables import THOMPSON
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
        sizes = ("num_rounds", "q", "num_initial", "dtype")
        given = {name: getattr(self, name) for name in sizes if getattr(self, name) is not None}
        chosen = replace(chosen, **given)
        axes = (
            optional(read_floats, self.lengthscale, "lengthscale") or chosen.lengthscales,
            optional(read_integers, self.seeds, "seeds") or range(chosen.num_seeds),
            read_names(self.solver, "solver"),
        )
        cells = [
            ThompsonCell(chosen, solver, lengthscale, seed, device=self.device)
            for lengthscale, seed, solver in product(*axes)
        ]
        shares("q", chosen.q)
        if not self.rerun:
            check_settings(cells, self.out)
        return Plan(cells, print_thompson, THOMPSON, plot_thompson, f"thompson_{chosen.name}.png")


@bench.command("regression")
@dataclass(frozen=True)
class RegressionCommand(Benchmark):
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
    data_dir: DataDir = None
    dtype: Dtype = "float32"

    def plan(self) -> Plan:
        splits = read_integers(self.split, "split")
        sets = read_names(self.data, "data")
        solvers = read_names(self.solver, "solver")

        from scalable_bo.cli.summaries import printing
        from scalable_bo.experiments.regression.cell import RegressionCell
        from scalable_bo.experiments.regression.methods import Budget
        from scalable_bo.experiments.shared import check_methods
        from scalable_bo.experiments.tables import REGRESSION

        budget = Budget(**options_of(self, Budget))
        settings = options_of(self, RegressionCell) | {"budget": budget}
        cells = [
            # One data set and split after another: they are loaded once
            RegressionCell(**settings | {"data": data, "split": split, "solver": solver})
            for data, split, solver in product(sets, splits, solvers)
        ]
        check_methods(solvers, self.mean_only)
        title = "Regression on standardised targets"
        return Plan(cells, printing(title, RegressionCell, ("data", "split", "solver")), REGRESSION)


@bench.command()
def table(
    out: Annotated[Path, Option(help="Folder of the records and the table.")] = Path("results"),
) -> None:
    """Write regression.md again, the table of the regression records in a folder."""
    with bad_input():
        from scalable_bo.experiments.tables import REGRESSION, write_table

        check_folder(out)
    typer.echo(f"Wrote {write_table(out, REGRESSION)}")
