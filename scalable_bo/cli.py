"""The command line: ``scalable-bo bench thompson`` and ``scalable-bo bench regression``.

Heavy imports happen inside the commands, so that ``--help`` is quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from scalable_bo.experiments.thompson import Summary

app = typer.Typer(
    name="scalable-bo",
    help="Bayesian optimisation with Gaussian processes on large data and in large batches.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
bench = typer.Typer(help="Run the papers' benchmarks; each run writes one JSON record.", no_args_is_help=True)
app.add_typer(bench, name="bench")

Solvers = Annotated[str, typer.Option("--solver", help="Solvers, separated by commas: cholesky, cg, sdd, sgd, sap, adasap, adasap-i.")]
Out = Annotated[Path, typer.Option(help="Folder for the records and the plot, made if needed.")]
Device = Annotated[str, typer.Option(help="Device to compute on: cpu, cuda, cuda:1.")]


def main() -> None:
    """Run the command line. An error is one line on stderr with exit code 2; Ctrl-C is exit code 130."""
    try:
        code = app(standalone_mode=False)
        if code == 130:  # a command's own work says more, see `_interruptible`
            _stop("Interrupted; nothing has been written.", code)
        sys.exit(code)
    except Exception as error:
        # Typer's errors of usage know their message and exit code; any other exception is a defect and keeps its trace.
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
        if not message:  # without a subcommand, Typer has shown the help already
            sys.exit(2)
        _stop(message, getattr(error, "exit_code", 2))


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        from scalable_bo import __version__

        typer.echo(f"scalable-bo {__version__}")
        raise typer.Exit


@bench.command()
def thompson(
    preset: Annotated[str, typer.Option(help="Settings: smoke, laptop, lin2023-small, lin2023-large or adasap2025.")] = "laptop",
    solver: Solvers = "cg",
    seeds: Annotated[str | None, typer.Option(help="Seeds, such as 0-4 or 0,3; by default the preset's.")] = None,
    lengthscale: Annotated[str | None, typer.Option(help="Lengthscales, separated by commas; by default the preset's.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds, instead of the preset's.")] = None,
    q: Annotated[int | None, typer.Option(help="Points a round, instead of the preset's.")] = None,
    num_initial: Annotated[int | None, typer.Option(help="Initial points, instead of the preset's.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or float64, instead of the preset's.")] = None,
    share_features: Annotated[
        bool, typer.Option("--share-features", help="Let the surrogate's paths use the target's own random features.")
    ] = False,
    device: Device = "cpu",
    out: Out = Path("results"),
) -> None:
    """Maximise functions drawn from a Gaussian process prior by parallel Thompson sampling, random search beside."""
    with _bad_input():
        from scalable_bo.experiments.presets import find_preset

        chosen = find_preset(preset)
        overrides: dict[str, Any] = {"num_rounds": rounds, "q": q, "num_initial": num_initial, "dtype": dtype}
        overrides = {name: value for name, value in overrides.items() if value is not None}
        if share_features:
            overrides |= {"share_features": True, "path_features": chosen.target_features}
        chosen = replace(chosen, **overrides)
        seed_list = list(range(chosen.num_seeds)) if seeds is None else _integers(seeds, "seeds")
        lengthscales = chosen.lengthscales if lengthscale is None else _floats(lengthscale, "lengthscale")
        names = _names(solver, "solver")

        from scalable_bo.experiments.records import write_record
        from scalable_bo.experiments.thompson import ThompsonRun, describe_round, run_thompson, summarise

        _check_device(device)
        runs = [ThompsonRun(chosen, name, ls, seed, device) for ls in lengthscales for seed in seed_list for name in names]
        _check_folder(out)

    from scalable_bo.experiments.plots import plot_thompson
    from scalable_bo.progress import RoundProgress

    records: list[dict[str, Any]] = []
    written = ""
    with _interruptible(lambda: f"{_count(records, 'complete run')}{written} in {out}"):
        with RoundProgress(len(runs) * chosen.num_rounds) as progress:
            for run in runs:

                def keep(record: dict[str, Any], name: str = run.name) -> None:
                    nonlocal written
                    write_record(out / f"{name}.json", record)
                    written = "" if record["complete"] else f" and {_count(record['rounds'], 'round')} of {name}"
                    progress.finish_round(describe_round(record))

                records.append(run_thompson(run, on_round=keep, on_status=progress.status))
        plot = out / f"thompson_{chosen.name}.png"
        plot_thompson(records, plot)
    _print_table(_thompson_table(summarise(records), chosen.num_rounds))
    typer.echo(f"{_count(records, 'record')} in {out}, plot in {plot}")


@bench.command()
def regression(
    data: Annotated[str, typer.Option(help="Data sets, separated by commas: pol, elevators, bike, protein, keggdirected.")] = "pol",
    split: Annotated[str, typer.Option(help="Splits, such as 0 or 0-4.")] = "0",
    solver: Solvers = "cg",
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the data sets.  [default: ../shared/data/uci]")] = None,
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    device: Device = "cpu",
    out: Out = Path("results"),
) -> None:
    """Measure a Gaussian process on UCI regression data, with the published hyperparameters."""
    with _bad_input():
        splits, sets, names = _integers(split, "split"), _names(data, "data"), _names(solver, "solver")

        from scalable_bo.experiments.records import write_record
        from scalable_bo.experiments.regression import RegressionRun, check_files, run_regression

        _check_device(device)
        runs = [
            RegressionRun(name, number, method, data_dir, dtype=dtype, device=device)
            for name in sets
            for number in splits
            for method in names
        ]
        for run in runs:
            check_files(run)
        _check_folder(out)

    from scalable_bo.progress import RoundProgress

    records: list[dict[str, Any]] = []
    with _interruptible(lambda: f"{_count(records, 'complete run')} in {out}"), RoundProgress(len(runs)) as progress:
        for run in runs:
            record = run_regression(run, on_status=progress.status)
            write_record(out / f"{run.name}.json", record)
            records.append(record)
            progress.finish_round(
                f"{run.data} split {run.split} {run.solver}: RMSE {record['rmse']:.4f}, NLL {record['nll']:.4f}, "
                f"residual {record['residual']:.1e}, {record['epochs']:.1f} epochs, {record['seconds']:.1f} s"
            )
    _print_table(_regression_table(records))
    typer.echo(f"{_count(records, 'record')} in {out}")


def _thompson_table(summaries: Sequence[Summary], num_rounds: int) -> Table:
    seeds = f"{summaries[0].num_seeds} seed{'s' if summaries[0].num_seeds > 1 else ''}"
    table = _table(
        f"Best value after {num_rounds} rounds, mean ± standard error over {seeds}; seconds a round",
        ("solver",),
        ("length-\nscale", "best", "random\nsearch", "better\nby (%)", "worst\nresidual", "solve\n(s)", "acquire\n(s)"),
    )
    for row in summaries:
        table.add_row(
            row.solver,
            f"{row.lengthscale:g}",
            _plus_minus(*row.best_noiseless, digits=3),
            _plus_minus(*row.random_search, digits=3),
            _plus_minus(*row.improvement, digits=0),
            f"{row.worst_residual:.1e}",
            f"{row.seconds_solve:.1f}",
            f"{row.seconds_acquisition:.1f}",
        )
    return table


def _regression_table(records: Sequence[dict[str, Any]]) -> Table:
    numbers = ("RMSE", "NLL", "residual", "epochs", "seconds")
    table = _table("Regression on standardised targets", ("data", "split", "solver"), numbers)
    for record in records:
        settings = record["settings"]
        table.add_row(
            settings["data"],
            str(settings["split"]),
            settings["solver"],
            f"{record['rmse']:.4f}",
            f"{record['nll']:.4f}",
            f"{record['residual']:.1e}",
            f"{record['epochs']:.1f}",
            f"{record['seconds']:.1f}",
        )
    return table


def _table(title: str, names: Sequence[str], numbers: Sequence[str]) -> Table:
    """Return an empty table, its numbers flush right, narrow enough for 80 columns."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)
    for heading in names:
        table.add_column(heading, no_wrap=True)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _count(things: Sequence[Any], name: str) -> str:
    return f"{len(things)} {name}" if len(things) == 1 else f"{len(things)} {name}s"


def _plus_minus(mean: float, error: float, digits: int) -> str:
    return f"{mean:.{digits}f}" if error != error else f"{mean:.{digits}f} ± {error:.{digits}f}"


def _print_table(table: Table) -> None:
    from rich.console import Console

    Console().print(table)


@contextmanager
def _bad_input() -> Iterator[None]:
    """Turn the errors of wrong arguments into one line and exit code 2."""
    try:
        yield
    except (TypeError, ValueError) as error:
        _stop(str(error), 2)


@contextmanager
def _interruptible(written: Callable[[], str]) -> Iterator[None]:
    """Turn Ctrl-C into one line that says what has been written, and memory that is not there into one that says so."""
    try:
        yield
    except KeyboardInterrupt:
        _stop(f"Interrupted; {written()}.", 130)
    except MemoryError as error:
        _stop(f"{error} So far: {written()}.", 1)


def _stop(message: str, code: int) -> NoReturn:
    typer.echo(" ".join(message.split()), err=True)
    raise SystemExit(code)


def _check_device(name: str) -> None:
    import torch

    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"`device` must name a torch device, got {name!r}. Try cpu or cuda.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"`device` is {name!r}, and torch finds no CUDA device. Use cpu.")


def _check_folder(folder: Path) -> None:
    """Make the folder, and find out now rather than after the first round that it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"`out` must be a folder to write to, got {folder} ({error.strerror}).") from error
    if not os.access(folder, os.W_OK):
        raise ValueError(f"`out` must be a folder to write to, and {folder} is read-only.")


def _names(text: str, option: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError(f"`{option}` must be names separated by commas, got {text!r}.")
    return list(dict.fromkeys(names))


def _integers(text: str, option: str) -> list[int]:
    """Read `0-4`, `3` or `0,2,5-7`."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise ValueError(f"`{option}` must be whole numbers and ranges such as 0-4 or 0,3, got {text!r}.")
        numbers.extend(range(int(first), int(last or first) + 1))
    return list(dict.fromkeys(numbers))


def _floats(text: str, option: str) -> list[float]:
    try:
        return list(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        raise ValueError(f"`{option}` must be numbers separated by commas, got {text!r}.") from None


if __name__ == "__main__":
    main()
