"""``scalable-bo bench``: the papers' benchmarks, each a list of cells and what is made of their
records. Quick to import.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from scalable_bo.cli.console import (
    Commands,
    bad_input,
    check_device,
    check_folder,
    count,
    in_several_processes,
    optional,
    print_table,
    read_floats,
    read_integers,
    read_names,
    stop,
    under_torchrun,
)
from scalable_bo.cli.options import (
    HyperparametersOptions,
    Out,
    RegressionOptions,
    SolversOptions,
    ThompsonOptions,
    taking,
)

if TYPE_CHECKING:
    from scalable_bo.experiments.records import Record

SHARED = ("thompson", "regression", "solvers")  # by the processes that torchrun starts

bench = Commands(
    help="Run the papers' benchmarks; each run writes one JSON record.", no_args_is_help=True
)


@bench.callback()
def alone(context: typer.Context) -> None:
    if in_several_processes() and context.invoked_subcommand not in SHARED:
        stop(
            f"`bench {context.invoked_subcommand}` runs in one process, unlike {', '.join(SHARED)}."
            " Start it without torchrun.",
            2,
        )


@bench.command()
@under_torchrun
@taking(ThompsonOptions)
def thompson(options: ThompsonOptions) -> None:
    """Maximise functions drawn from a prior by parallel Thompson sampling.

    Random search stands beside it. Runs (solver, lengthscale, seed) that the folder has a complete
    record of are kept and not run again; an interrupted one goes on after its last finished round.
    """
    with bad_input():
        from scalable_bo.experiments.presets import find_preset, vary
        from scalable_bo.experiments.thompson.cell import ThompsonCell, check_settings
        from surrogates.systems.processes import shares

        chosen = vary(
            find_preset(options.preset),
            scale=options.scale,
            share_features=options.share_features,
            coordinate_features=options.coordinate_features,
            published_weights=options.published_weights,
            own_search=options.own_search,
        )
        overrides: dict[str, Any] = {
            "num_rounds": options.rounds,
            "q": options.q,
            "num_initial": options.num_initial,
            "dtype": options.dtype,
        }
        chosen = replace(chosen, **{k: v for k, v in overrides.items() if v is not None})
        names = read_names(options.solver, "solver")
        cells = [
            ThompsonCell(chosen, name, ls, seed, device=options.device)
            for ls in optional(read_floats, options.lengthscale, "lengthscale")
            or chosen.lengthscales
            for seed in optional(read_integers, options.seeds, "seeds") or range(chosen.num_seeds)
            for name in names
        ]
        check_device(options.device)
        shares("q", chosen.q)
        check_folder(options.out)
        if not options.rerun:
            check_settings(cells, options.out)

    from scalable_bo.cli.running import complete, run_and_show
    from scalable_bo.cli.summaries import thompson_table
    from scalable_bo.experiments.plots import plot_thompson
    from scalable_bo.experiments.tables import THOMPSON
    from scalable_bo.experiments.thompson.table import summarise

    plot = options.out / f"thompson_{chosen.name}.png"
    advice = f"; the same command{' without --rerun' if options.rerun else ''} goes on"
    records = run_and_show(
        cells,
        options.out,
        rerun=options.rerun,
        table=THOMPSON,
        draw=lambda records: plot_thompson(records, plot),
        written=lambda records: complete(cells, records) + f" in {options.out}{advice}",
    )
    print_table(thompson_table(summarise(records), chosen.num_rounds))
    typer.echo(
        f"{count(records, 'record')} in {options.out}, all beside the published in"
        f" {options.out / 'thompson.md'}, plot in {plot}"
    )


@bench.command()
@under_torchrun
@taking(RegressionOptions)
def regression(options: RegressionOptions) -> None:
    """Measure a Gaussian process on regression data: UCI's, or your own table.

    On the UCI sets it has their published hyperparameters. Cells (data set, split, method) that the
    folder has a record of, with the same settings, are kept and not run again.
    """
    with bad_input():
        splits = read_integers(options.split, "split")
        sets = read_names(options.data, "data")
        names = read_names(options.solver, "solver")

        from scalable_bo.experiments.regression.cell import RegressionCell
        from scalable_bo.experiments.regression.methods import Budget
        from scalable_bo.experiments.shared import check_methods

        check_device(options.device)
        settings: dict[str, Any] = {
            "noise": options.noise,
            "mean_only": options.mean_only,
            "budget": Budget(
                options.tolerance, options.max_epochs, options.sgd_steps, options.num_points
            ),
            "target": options.target,
            "test_fraction": options.test_fraction,
            "dtype": options.dtype,
            "device": options.device,
        }
        cells = [
            # One data set and split after another: they are loaded once
            RegressionCell(name, index, method, options.data_dir, **settings)
            for name in sets
            for index in splits
            for method in names
        ]
        for cell in cells[:: len(names)]:
            cell.check_files()
        check_methods(names, options.mean_only)
        check_folder(options.out)

    from scalable_bo.cli.running import run_and_show
    from scalable_bo.cli.summaries import regression_table
    from scalable_bo.experiments.tables import REGRESSION

    records = run_and_show(cells, options.out, rerun=options.rerun, table=REGRESSION)
    print_table(regression_table(records))
    typer.echo(
        f"{count(records, 'record')} in {options.out}, with all others there in"
        f" {options.out / 'regression.md'}"
    )


@bench.command()
@taking(HyperparametersOptions)
def hyperparameters(options: HyperparametersOptions) -> None:
    """Measure how hyperparameters are learned.

    These are the papers' experiments, small enough for a laptop. Cells that the folder has a record
    of, with the same settings, are kept and not run again.
    """
    with bad_input():
        choices: dict[str, Any] = {
            "methods": optional(read_names, options.method, "method"),
            "data_sets": optional(read_names, options.data, "data"),
            "kernels": optional(read_names, options.kernel, "kernel"),
            "seeds": optional(read_integers, options.seeds, "seeds"),
            "batch_sizes": optional(read_integers, options.batch_sizes, "batch_sizes"),
            "n": options.n,
            "max_epochs": options.epochs,
            "data_dir": options.data_dir,
        }

        from scalable_bo.experiments.presets import plan

        check_device(options.device)
        cells = plan(options.preset, **choices, device=options.device)
        for cell in cells:
            cell.check_files()
        check_folder(options.out)

    from scalable_bo.cli.running import run_and_show
    from scalable_bo.experiments.plots import plot_fits
    from scalable_bo.experiments.tables import HYPERPARAMETERS

    plot = options.out / f"hyperparameters_{options.preset}.png"
    records = run_and_show(
        cells,
        options.out,
        rerun=options.rerun,
        table=HYPERPARAMETERS,
        draw=lambda records: plot_fits(records, plot),
    )
    typer.echo(
        f"{count(records, 'record')} in {options.out}, with all others there in"
        f" {options.out / 'hyperparameters.md'}, plot in {plot}"
    )


@bench.command()
def table(out: Out = Path("results")) -> None:
    """Write regression.md again, the table of the regression records in a folder."""
    with bad_input():
        from scalable_bo.experiments.tables import REGRESSION, write_table

        check_folder(out)
    typer.echo(f"Wrote {write_table(out, REGRESSION)}")


@bench.command()
@under_torchrun
@taking(SolversOptions)
def solvers(options: SolversOptions) -> None:
    """Trace how solvers approach the exact posterior mean."""
    with bad_input():
        names = read_names(options.solver, "solver")

        from scalable_bo.experiments.shared import check_methods
        from scalable_bo.experiments.traces import THOMPSON, TraceCell

        if options.problem not in (None, THOMPSON):
            raise ValueError(
                f"`problem` must be {THOMPSON}, got {options.problem!r}. Data sets are named by"
                " --data."
            )
        check_device(options.device)
        settings: dict[str, Any] = {
            "n": options.n,
            "lengthscale": options.lengthscale,
            "noise": options.noise,
            "epochs": options.epochs,
            "points": options.points,
            "exact": options.exact,
            "data_dir": options.data_dir,
            "dtype": options.dtype,
            "device": options.device,
        }
        cells = [
            TraceCell(name, options.problem or options.data, options.split, **settings)
            for name in names
        ]
        cells[0].check_files()
        check_methods(names, mean_only=True)
        check_folder(options.out)

    from scalable_bo.cli.running import run_and_show
    from scalable_bo.cli.summaries import solvers_table
    from scalable_bo.experiments.plots import plot_solvers

    def written(records: list[Record]) -> str:
        checkpoints = sum(len(record["checkpoints"]) for record in records)
        return f"{count(checkpoints, 'checkpoint')} in {options.out}"

    plot = options.out / f"solvers_{cells[0].problem_name}.png"
    records = run_and_show(
        cells,
        options.out,
        rerun=True,
        draw=lambda records: plot_solvers(records, plot),
        written=written,
    )
    print_table(solvers_table(records))
    typer.echo(f"{count(records, 'record')} in {options.out}, plot in {plot}")
