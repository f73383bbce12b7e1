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
    check_folder,
    optional,
    read_floats,
    read_integers,
    read_names,
)
from scalable_bo.cli.running import Benchmark, BenchmarkPlan, arguments_for

bench = Commands(
    help="Run the papers' benchmarks; each run writes one JSON record.", no_args_is_help=True
)


@bench.command("thompson")
@dataclass(frozen=True)
class ThompsonCommand(Benchmark):
    """Maximise functions drawn from a prior by parallel Thompson sampling.

    Random search is run for comparison. A run (solver, lengthscale, seed) with a complete record in
    the folder is not repeated; an interrupted one continues after its last finished round.

    Args:
        preset: name of the settings: smoke, laptop, lin2023-small, lin2023-large or adasap2025.
        solver: methods, separated by commas: auto, cholesky, cg, sdd, sdd-1, sdd-10, sdd-100, sgd,
            sap, asap, adasap, adasap-i, svgp; or module:Class of your own.
        seeds: seeds, such as 0-4 or 0,3; by default the preset's.
        lengthscale: lengthscales, separated by commas; by default the preset's.
        rounds: rounds, instead of the preset's.
        q: points a round, instead of the preset's.
        num_initial: initial points, instead of the preset's.
        dtype: precision, float32 or float64, instead of the preset's.
        share_features: as published: let the surrogate's paths use the target's own random
            features.
        coordinate_features: as published: random features of a product of one-dimensional Matérn
            kernels.
        published_weights: as published: candidates around data drawn by y + min y, in place of
            y - min y.
        own_search: maximise the paths by the defaults of this package, not the preset's settings.
        scale: factor of data, batches and candidates, at most 1; its root is that of rounds and
            features.
    """

    preset: str = "laptop"
    solver: str = "auto,cg"
    seeds: str | None = None
    lengthscale: str | None = None
    rounds: int | None = None
    q: int | None = None
    num_initial: int | None = None
    dtype: str | None = None
    share_features: bool = False
    coordinate_features: bool = False
    published_weights: bool = False
    own_search: bool = False
    scale: float = 1.0

    def plan(self) -> BenchmarkPlan:
        from scalable_bo.cli.summaries import print_thompson
        from scalable_bo.experiments.cells import Grid
        from scalable_bo.experiments.markdown_tables import THOMPSON
        from scalable_bo.experiments.plots import plot_thompson
        from scalable_bo.experiments.presets import VARIATIONS, find_preset, vary
        from scalable_bo.experiments.thompson.cell import ThompsonCell, check_settings
        from surrogates.systems.processes import shares

        variations = {name: getattr(self, name) for name in VARIATIONS}
        chosen = vary(find_preset(self.preset), scale=self.scale, **variations)
        sizes: dict[str, Any] = {
            "num_rounds": self.rounds,
            "q": self.q,
            "num_initial": self.num_initial,
            "dtype": self.dtype,
        }
        chosen = replace(chosen, **{k: v for k, v in sizes.items() if v is not None})
        axes = {
            "lengthscale": optional(read_floats, self.lengthscale, "lengthscale")
            or chosen.lengthscales,
            "seed": optional(read_integers, self.seeds, "seeds") or range(chosen.num_seeds),
            "solver": read_names(self.solver, "solver"),
        }
        fixed = {"preset": chosen, "device": self.device}
        cells = Grid(ThompsonCell, axes, fixed, "solver").cells()
        shares("q", chosen.q)
        if not self.rerun:
            check_settings(cells, self.out)
        return BenchmarkPlan(
            cells, print_thompson, THOMPSON, plot_thompson, f"thompson_{chosen.name}.png"
        )


@bench.command("regression")
@dataclass(frozen=True)
class RegressionCommand(Benchmark):
    """Measure a Gaussian process on regression data: UCI's, or your own table.

    The UCI sets have their published hyperparameters. A cell (data set, split, method) that has a
    record with the same settings in the folder is not run again; one of the same name with other
    settings is refused.

    Args:
        data: data sets, separated by commas: pol, elevators, bike, protein, keggdirected; or your
            .parquet and .csv tables.
        split: splits, such as 0 or 0-4.
        solver: methods, separated by commas: auto, cholesky, cg, sdd, sdd-1, sdd-10, sdd-100, sgd,
            sap, asap, adasap, adasap-i, sgd-inducing, inducing, svgp, subset; or module:Class of
            your own.
        noise: noise variance, such as 1e-6, instead of the given or fitted one.
        mean_only: compute the posterior mean alone: no paths, no likelihood.
        tolerance: relative residual at which a column stops, in place of the posterior's error.
        max_epochs: passes over the kernel matrix that a method may spend; several, such as 1,2,5,
            for a run of each, and with a tiny tolerance the course of every method.
        sgd_steps: steps of sgd and sgd-inducing, all of which they take.
        num_points: inducing points, or points of the subset.
        num_blocks: blocks of the data, or batches, of adasap, adasap-i and sdd-1 to sdd-100.
        target: column of your table to predict from all others.
        test_fraction: part of your table to test on, chosen at random for each split.
        kernel: fitted to your table: matern12, matern32, matern52 or rbf.
        data_dir: folder of the data sets; by default ../shared/data/uci.
        dtype: precision, float32 or float64.
    """

    data: str = "pol"
    split: str = "0"
    solver: str = "cg"
    noise: float | None = None
    mean_only: bool = False
    tolerance: float | None = None
    max_epochs: str = "100"
    sgd_steps: int = 100_000
    num_points: int = 4096
    num_blocks: int = 100
    target: str | None = None
    test_fraction: float = 0.1
    kernel: str = "matern32"
    data_dir: Path | None = None
    dtype: str = "float32"

    def plan(self) -> BenchmarkPlan:
        axes: dict[str, list[Any]] = {
            "data": read_names(self.data, "data"),
            "split": read_integers(self.split, "split"),
            "solver": read_names(self.solver, "solver"),
        }
        epochs = read_floats(self.max_epochs, "max_epochs")

        from scalable_bo.cli.summaries import printing
        from scalable_bo.experiments.cells import Grid
        from scalable_bo.experiments.markdown_tables import REGRESSION
        from scalable_bo.experiments.regression.methods import Budget
        from scalable_bo.experiments.regression.regression_cell import RegressionCell
        from scalable_bo.experiments.thompson.cell import check_settings
        from scalable_bo.experiments.torchrun import check_methods

        options = arguments_for(self, Budget)
        axes["budget"] = [Budget(**options | {"max_epochs": most}) for most in epochs]
        settings = arguments_for(self, RegressionCell)
        cells = Grid(RegressionCell, axes, settings, "solver").cells()
        check_methods(axes["solver"])
        if not self.rerun:
            check_settings([cell for cell in cells if not cell.is_table], self.out)
        title = "Regression on standardised targets"
        return BenchmarkPlan(
            cells, printing(title, RegressionCell, ("data", "split", "solver")), REGRESSION
        )


@bench.command("table")
def rewrite_table(
    out: Annotated[Path, Option(help="Folder of the records and the table.")] = Path("results"),
) -> None:
    """Write regression.md again, the table of the regression records in a folder."""
    with bad_input():
        from scalable_bo.experiments.markdown_tables import REGRESSION, write_markdown

        check_folder(out)
    typer.echo(f"Wrote {write_markdown(out, REGRESSION)}")
