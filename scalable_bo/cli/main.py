"""The command line: the commands for studies, and ``scalable-bo bench`` with its own.

Heavy imports happen inside the commands, so that ``--help`` is quick.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from scalable_bo.cli.study_commands import COMMANDS
from scalable_bo.cli.summaries import regression_table, solvers_table, thompson_table
from scalable_bo.console import (
    bad_input,
    check_device,
    check_folder,
    count,
    in_several_processes,
    interruptible,
    lines_of,
    print_table,
    read_floats,
    read_integers,
    read_names,
    stop,
    under_torchrun,
)

app = typer.Typer(
    name="scalable-bo",
    help="Bayesian optimisation with Gaussian processes on large data and in large batches.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
bench = typer.Typer(
    help="Run the papers' benchmarks; each run writes one JSON record.", no_args_is_help=True
)
app.add_typer(bench, name="bench")
for command in COMMANDS:
    app.command()(command)

_SOLVERS = "auto, cholesky, cg, sdd, sdd-1, sdd-10, sdd-100, sgd, sap, asap, adasap, adasap-i"
_METHODS = f"{_SOLVERS}, sgd-inducing, inducing, svgp, subset"
_THOMPSON_METHODS = f"{_SOLVERS}, svgp"
Solvers = Annotated[
    str, typer.Option("--solver", help=f"Solvers, separated by commas: {_SOLVERS}.")
]
Out = Annotated[Path, typer.Option(help="Folder for the records and the plot, made if needed.")]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder of the data sets.  [default: ../shared/data/uci]")
]
Device = Annotated[str, typer.Option(help="Device to compute on: cpu, cuda, cuda:1.")]


def main() -> None:
    """Run the command line. An error is one line on stderr with exit code 2;
    Ctrl-C is exit code 130.
    """
    try:
        code = app(standalone_mode=False)
        if code == 130:  # a command's own work says more, see `interruptible`
            stop("Interrupted; nothing has been written.", code)
        sys.exit(code)
    except Exception as error:
        # Typer's errors of usage know their message and exit code; any other exception is a defect
        # and keeps its trace.
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
        if not message:  # without a subcommand, Typer has shown the help already
            sys.exit(2)
        stop(message, getattr(error, "exit_code", 2))


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        from scalable_bo import __version__

        typer.echo(f"scalable-bo {__version__}")
        raise typer.Exit


@bench.callback()
def alone(context: typer.Context) -> None:
    if in_several_processes() and context.invoked_subcommand not in ("regression", "solvers"):
        stop(
            f"`bench {context.invoked_subcommand}` runs in one process, unlike regression and"
            " solvers. Start it without torchrun.",
            2,
        )


@bench.command()
def thompson(
    preset: Annotated[
        str,
        typer.Option(help="Settings: smoke, laptop, lin2023-small, lin2023-large or adasap2025."),
    ] = "laptop",
    solver: Annotated[
        str, typer.Option("--solver", help=f"Methods, separated by commas: {_THOMPSON_METHODS}.")
    ] = "cg",
    seeds: Annotated[
        str | None, typer.Option(help="Seeds, such as 0-4 or 0,3; by default the preset's.")
    ] = None,
    lengthscale: Annotated[
        str | None, typer.Option(help="Lengthscales, separated by commas; by default the preset's.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds, instead of the preset's.")] = None,
    q: Annotated[int | None, typer.Option(help="Points a round, instead of the preset's.")] = None,
    num_initial: Annotated[
        int | None, typer.Option(help="Initial points, instead of the preset's.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32 or float64, instead of the preset's.")
    ] = None,
    share_features: Annotated[
        bool,
        typer.Option(
            "--share-features",
            help="As published: let the surrogate's paths use the target's own random features.",
        ),
    ] = False,
    coordinate_features: Annotated[
        bool,
        typer.Option(
            "--coordinate-features",
            help="As published: random features of a product of one-dimensional Matérn kernels.",
        ),
    ] = False,
    published_weights: Annotated[
        bool,
        typer.Option(
            "--published-weights",
            help="As published: candidates around data drawn by y + min y, in place of y - min y.",
        ),
    ] = False,
    scale: Annotated[
        float,
        typer.Option(
            help=(
                "Factor of data, batches and candidates, at most 1; its root is that of rounds and"
                " features."
            )
        ),
    ] = 1.0,
    rerun: Annotated[
        bool,
        typer.Option(
            "--rerun", help="Run also what the folder has a record of, from the first round."
        ),
    ] = False,
    device: Device = "cpu",
    out: Out = Path("results"),
) -> None:
    """Maximise functions drawn from a Gaussian process prior by parallel Thompson sampling, random
    search beside.

    Runs (solver, lengthscale, seed) that the folder has a complete record of are kept and not run
    again; an interrupted one goes on after its last finished round.
    """
    with bad_input():
        from scalable_bo.experiments.presets import find_preset, vary

        chosen = vary(
            find_preset(preset),
            scale=scale,
            share_features=share_features,
            coordinate_features=coordinate_features,
            published_weights=published_weights,
        )
        overrides: dict[str, Any] = {
            "num_rounds": rounds,
            "q": q,
            "num_initial": num_initial,
            "dtype": dtype,
        }
        overrides = {name: value for name, value in overrides.items() if value is not None}
        chosen = replace(chosen, **overrides)
        seed_list = (
            list(range(chosen.num_seeds)) if seeds is None else read_integers(seeds, "seeds")
        )
        lengthscales = (
            chosen.lengthscales if lengthscale is None else read_floats(lengthscale, "lengthscale")
        )
        names = read_names(solver, "solver")

        from scalable_bo.experiments.thompson import ThompsonRun, describe_round, summarise
        from scalable_bo.experiments.thompson_cells import check_settings, run_cells

        check_device(device)
        runs = [
            ThompsonRun(chosen, name, ls, seed, device)
            for ls in lengthscales
            for seed in seed_list
            for name in names
        ]
        check_folder(out)
        if not rerun:
            check_settings(runs, out)

    from scalable_bo.experiments.plots import plot_thompson
    from scalable_bo.experiments.thompson_table import write_thompson_table
    from scalable_bo.progress import RoundProgress

    records: list[dict[str, Any]] = []
    written = ""
    how_to_go_on = f"the same command{' without --rerun' if rerun else ''} goes on"
    with interruptible(
        lambda: f"{count(records, 'complete run')}{written} in {out}; {how_to_go_on}"
    ):
        with RoundProgress(len(runs) * chosen.num_rounds) as progress:

            def describe(record: dict[str, Any]) -> None:
                nonlocal written
                written = (
                    ""
                    if record["complete"]
                    else f" and {count(record['rounds'], 'round')} of {runs[len(records)].name}"
                )
                progress.finish_round(describe_round(record))
                progress.status("", len(records) * chosen.num_rounds + len(record["rounds"]))

            for record, kept in run_cells(
                runs, out, rerun=rerun, on_round=describe, on_status=progress.status
            ):
                records.append(record)
                if kept:
                    progress.note(f"{describe_round(record)} (kept)")
                    progress.status("", len(records) * chosen.num_rounds)
        plot = out / f"thompson_{chosen.name}.png"
        plot_thompson(records, plot)
    print_table(thompson_table(summarise(records), chosen.num_rounds))
    typer.echo(
        f"{count(records, 'record')} in {out}, all beside the published in"
        f" {write_thompson_table(out)}, plot in {plot}"
    )


@bench.command()
@under_torchrun
def regression(
    data: Annotated[
        str,
        typer.Option(
            help=(
                "Data sets, separated by commas: pol, elevators, bike, protein, keggdirected; or"
                " your .parquet and .csv tables."
            )
        ),
    ] = "pol",
    split: Annotated[str, typer.Option(help="Splits, such as 0 or 0-4.")] = "0",
    solver: Annotated[
        str, typer.Option("--solver", help=f"Methods, separated by commas: {_METHODS}.")
    ] = "cg",
    noise: Annotated[
        float | None,
        typer.Option(help="Noise variance, such as 1e-6, instead of the given or fitted one."),
    ] = None,
    mean_only: Annotated[
        bool,
        typer.Option(
            "--mean-only", help="Compute the posterior mean alone: no paths, no likelihood."
        ),
    ] = False,
    tolerance: Annotated[
        float, typer.Option(help="Relative residual at which a column stops.")
    ] = 1e-2,
    max_epochs: Annotated[
        float, typer.Option(help="Passes over the kernel matrix that a method may spend.")
    ] = 100.0,
    sgd_steps: Annotated[
        int, typer.Option(help="Steps of sgd and sgd-inducing, all of which they take.")
    ] = 100_000,
    num_points: Annotated[
        int, typer.Option(help="Inducing points, or points of the subset.")
    ] = 4096,
    target: Annotated[
        str | None, typer.Option(help="Column of your table to predict from all others.")
    ] = None,
    test_fraction: Annotated[
        float, typer.Option(help="Part of your table to test on, chosen at random for each split.")
    ] = 0.1,
    rerun: Annotated[
        bool, typer.Option("--rerun", help="Run also what the folder has a record of.")
    ] = False,
    data_dir: DataDir = None,
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    device: Device = "cpu",
    out: Out = Path("results"),
) -> None:
    """Measure a Gaussian process on regression data: the UCI sets with their published
    hyperparameters, or your own table.

    Cells (data set, split, method) that the folder has a record of, with the same settings, are
    kept and not run again.
    """
    with bad_input():
        splits = read_integers(split, "split")
        sets = read_names(data, "data")
        names = read_names(solver, "solver")

        from scalable_bo.experiments.methods import Budget
        from scalable_bo.experiments.regression import (
            RegressionRun,
            check_files,
            describe_cell,
            run_cells,
        )
        from scalable_bo.experiments.shared import check_methods
        from scalable_bo.experiments.tables import write_regression_table

        check_device(device)
        shared: dict[str, Any] = {
            "noise": noise,
            "mean_only": mean_only,
            "budget": Budget(tolerance, max_epochs, sgd_steps, num_points),
            "target": target,
            "test_fraction": test_fraction,
            "dtype": dtype,
            "device": device,
        }
        runs = [
            # One data set and split after another: they are loaded once
            RegressionRun(name, index, method, data_dir, **shared)
            for name in sets
            for index in splits
            for method in names
        ]
        for run in runs[:: len(names)]:
            check_files(run)
        check_methods(names, mean_only)
        check_folder(out)

    from scalable_bo.progress import RoundProgress

    records: list[dict[str, Any]] = []
    table = ""

    def written() -> str:
        return f"{count(records, 'complete run')}{table} in {out}"

    with interruptible(written):
        try:
            with RoundProgress(len(runs)) as progress:
                for run, record, kept in run_cells(
                    runs, out, rerun=rerun, on_status=lines_of(progress.status)
                ):
                    records.append(record)
                    progress.finish_round(describe_cell(run, record, kept))
        finally:
            table = f" and {write_regression_table(out).name}"
    print_table(regression_table(records))
    typer.echo(
        f"{count(records, 'record')} in {out}, with all others there in {out / 'regression.md'}"
    )


@bench.command()
def hyperparameters(
    preset: Annotated[
        str,
        typer.Option(
            help=(
                "Benchmark: recovery, penalty, simulated, real, epochs, millions, batch-sizes,"
                " curvature or memory."
            )
        ),
    ] = "recovery",
    method: Annotated[
        str | None,
        typer.Option(
            help=(
                "Methods, separated by commas, instead of the preset's: nearest, uniform, subsets,"
                " refined, iterative, exact, sgpr, scgd; "
                "recovery and penalty: also minimax-MU, exact-features; data: also auto;"
                " batch-sizes, memory: scgd, minimax, biased, svgp."
            )
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help=(
                "Data, separated by commas: levy, griewank, borehole, otl, wing; or sets such as"
                " bike, protein."
            )
        ),
    ] = None,
    kernel: Annotated[
        str | None,
        typer.Option(help="Kernels over a network, separated by commas: linear, gaussian."),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds of data, splits and methods, such as 0-9.")
    ] = None,
    n: Annotated[int | None, typer.Option(help="Points, of training and test together.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data at most.")] = None,
    batch_sizes: Annotated[
        str | None, typer.Option(help="Sizes of minibatches, such as 32,128.")
    ] = None,
    rerun: Annotated[
        bool, typer.Option("--rerun", help="Run also what the folder has a record of.")
    ] = False,
    data_dir: DataDir = None,
    device: Device = "cpu",
    out: Out = Path("results"),
) -> None:
    """Measure how hyperparameters are learned: the papers' experiments, small enough for a laptop.

    Cells that the folder has a record of, with the same settings, are kept and not run again.
    """
    with bad_input():
        choices: dict[str, Any] = {
            "methods": None if method is None else read_names(method, "method"),
            "data_sets": None if data is None else read_names(data, "data"),
            "kernels": None if kernel is None else read_names(kernel, "kernel"),
            "seeds": None if seeds is None else tuple(read_integers(seeds, "seeds")),
            "batch_sizes": (
                None if batch_sizes is None else tuple(read_integers(batch_sizes, "batch_sizes"))
            ),
            "n": n,
            "max_epochs": epochs,
            "data_dir": data_dir,
        }

        from scalable_bo.experiments.fits.cells import run_cells
        from scalable_bo.experiments.fits.presets import check_files, plan
        from scalable_bo.experiments.fits.tables import write_fits_table

        check_device(device)
        cells = plan(preset, **choices, device=device)
        check_files(cells)
        check_folder(out)

    from scalable_bo.experiments.fits.plots import plot_fits
    from scalable_bo.progress import RoundProgress

    records: list[dict[str, Any]] = []
    written_table = ""
    with interruptible(lambda: f"{count(records, 'complete run')}{written_table} in {out}"):
        try:
            with RoundProgress(len(cells)) as progress:
                for cell, record, kept in run_cells(
                    cells, out, rerun=rerun, on_status=lines_of(progress.status)
                ):
                    records.append(record)
                    progress.finish_round(f"{cell.describe(record)}{' (kept)' if kept else ''}")
        finally:
            written_table = f" and {write_fits_table(out).name}"
        plot = out / f"hyperparameters_{preset}.png"
        plot_fits(records, plot)
    typer.echo(
        f"{count(records, 'record')} in {out}, with all others there in"
        f" {out / 'hyperparameters.md'}, plot in {plot}"
    )


@bench.command()
def table(out: Out = Path("results")) -> None:
    """Write regression.md again, the table of the regression records in a folder."""
    with bad_input():
        from scalable_bo.experiments.tables import write_regression_table

        check_folder(out)
    typer.echo(f"Wrote {write_regression_table(out)}")


@bench.command()
@under_torchrun
def solvers(
    data: Annotated[
        str, typer.Option(help="Data set: pol, elevators, bike, protein or keggdirected.")
    ] = "pol",
    split: Annotated[int, typer.Option(help="Split of the data set.")] = 0,
    problem: Annotated[
        str | None,
        typer.Option(
            help="thompson: a function drawn from the prior on [0, 1]^8, instead of a data set."
        ),
    ] = None,
    n: Annotated[
        int,
        typer.Option(
            "--n",
            "--num-data",
            help="Points of the Thompson problem; torchrun takes --n for its own.",
        ),
    ] = 2000,
    lengthscale: Annotated[float, typer.Option(help="Lengthscale of the Thompson problem.")] = 0.5,
    noise: Annotated[
        float | None, typer.Option(help="Noise variance, such as 1e-6, instead of the problem's.")
    ] = None,
    solver: Solvers = "sgd,sdd,cg,sap,adasap",
    epochs: Annotated[
        float, typer.Option(help="Largest budget, in passes over the kernel matrix.")
    ] = 100.0,
    points: Annotated[
        int,
        typer.Option(
            help="Checkpoints, their budgets in geometric progression; each is a run of its own."
        ),
    ] = 12,
    exact: Annotated[
        bool,
        typer.Option(help="Compare with the exact solution, by Cholesky; up to 20 000 points."),
    ] = True,
    data_dir: DataDir = None,
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    device: Device = "cpu",
    out: Out = Path("results"),
) -> None:
    """Trace how solvers approach the exact posterior mean, against epochs and seconds."""
    with bad_input():
        names = read_names(solver, "solver")

        from scalable_bo.experiments.records import write_record
        from scalable_bo.experiments.shared import check_methods
        from scalable_bo.experiments.solver_traces import (
            THOMPSON,
            TraceRun,
            check_problem,
            describe_checkpoint,
            load_system,
            run_trace,
            solve_exactly,
        )

        if problem not in (None, THOMPSON):
            raise ValueError(
                f"`problem` must be {THOMPSON}, got {problem!r}. Data sets are named by --data."
            )
        check_device(device)
        settings: dict[str, Any] = {
            "n": n,
            "lengthscale": lengthscale,
            "noise": noise,
            "epochs": epochs,
            "points": points,
        }
        settings |= {"exact": exact, "data_dir": data_dir, "dtype": dtype, "device": device}
        runs = [TraceRun(name, problem or data, split, **settings) for name in names]
        check_problem(runs[0])
        check_methods(names, mean_only=True)
        system = load_system(runs[0])
        check_folder(out)

    from scalable_bo.experiments.plots import plot_solvers
    from scalable_bo.progress import RoundProgress

    records: dict[str, dict[str, Any]] = {}

    def written() -> str:
        return (
            f"{count(sum(len(record['checkpoints']) for record in records.values()), 'checkpoint')}"
            f" in {out}"
        )

    with interruptible(written):
        with RoundProgress(sum(len(run.budgets()) for run in runs)) as progress:
            progress.status("solving exactly")
            solution = solve_exactly(system, device) if exact else None
            for run in runs:

                def keep(record: dict[str, Any], run: TraceRun = run) -> None:
                    write_record(out / f"{run.name}.json", record)
                    records[run.solver] = record
                    progress.finish_round(describe_checkpoint(record))

                run_trace(
                    run, system, solution, on_checkpoint=keep, on_status=lines_of(progress.status)
                )
        plot = out / f"solvers_{runs[0].problem_name}.png"
        plot_solvers(list(records.values()), plot)
    print_table(solvers_table(list(records.values())))
    typer.echo(f"{count(len(records), 'record')} in {out}, plot in {plot}")


if __name__ == "__main__":
    main()
