"""``python -m benchmarks.traces``: how solvers approach the exact mean. Quick to import."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from scalable_bo.cli.bench import SOLVER_NAMES, DataDir, Device, Dtype, Noise, Out, Text
from scalable_bo.cli.console import (
    Commands,
    bad_input,
    check_device,
    check_folder,
    count,
    read_names,
    under_torchrun,
)
from scalable_bo.cli.main import main

if TYPE_CHECKING:
    from scalable_bo.experiments.records import Record

# Options that are arguments of the cell, by the same names
SETTINGS = (
    *("n", "lengthscale", "noise", "epochs", "points", "exact", "data_dir", "dtype", "device"),
)

traces = Commands(add_completion=False, pretty_exceptions_enable=False)


@traces.command()
@dataclass(frozen=True)
class TracesCommand:
    """Trace how solvers approach the exact posterior mean."""

    data: Annotated[
        str, Option(help="Data set: pol, elevators, bike, protein or keggdirected.")
    ] = "pol"
    split: Annotated[int, Option(help="Split of the data set.")] = 0
    problem: Annotated[
        Text,
        Option(
            help="thompson: a function drawn from the prior on [0, 1]^8, instead of a data set."
        ),
    ] = None
    n: Annotated[
        int,
        Option(
            "--n",
            "--num-data",
            help="Points of the Thompson problem; torchrun takes --n for its own.",
        ),
    ] = 2000
    lengthscale: Annotated[float, Option(help="Lengthscale of the Thompson problem.")] = 0.5
    noise: Noise = None
    solver: Annotated[
        str, Option(help=f"Solvers, separated by commas: {', '.join(SOLVER_NAMES)}.")
    ] = "sgd,sdd,cg,sap,adasap"
    epochs: Annotated[float, Option(help="Largest budget, in passes over the kernel matrix.")] = (
        100.0
    )
    points: Annotated[
        int,
        Option(
            help="Checkpoints, their budgets in geometric progression; each is a run of its own."
        ),
    ] = 12
    exact: Annotated[
        bool, Option(help="Compare with the exact solution, by Cholesky; up to 20 000 points.")
    ] = True
    data_dir: DataDir = None
    dtype: Dtype = "float32"
    device: Device = "cpu"
    out: Out = Path("results")

    @under_torchrun
    def run(self) -> None:
        with bad_input():
            names = read_names(self.solver, "solver")

            from benchmarks.traces.cell import THOMPSON, TraceCell
            from scalable_bo.experiments.shared import check_methods

            if self.problem not in (None, THOMPSON):
                raise ValueError(
                    f"`problem` must be {THOMPSON}, got {self.problem!r}. Data sets are named by"
                    " --data."
                )
            check_device(self.device)
            settings: dict[str, Any] = {name: getattr(self, name) for name in SETTINGS}
            cells = [
                TraceCell(name, self.problem or self.data, self.split, **settings) for name in names
            ]
            cells[0].check_files()
            check_methods(names, mean_only=True)
            check_folder(self.out)

        from benchmarks.traces.plots import plot_solvers
        from scalable_bo.cli.running import run_and_show
        from scalable_bo.cli.summaries import print_records

        def written(records: list[Record]) -> str:
            checkpoints = sum(len(record["checkpoints"]) for record in records)
            return f"{count(checkpoints, 'checkpoint')} in {self.out}"

        plot = self.out / f"solvers_{cells[0].problem_name}.png"
        records = run_and_show(
            cells,
            self.out,
            rerun=True,
            draw=lambda records: plot_solvers(records, plot),
            written=written,
        )
        print_records("Each solver's last checkpoint", TraceCell, ("solver",), records)
        typer.echo(f"{count(records, 'record')} in {self.out}, plot in {plot}")


if __name__ == "__main__":
    main(traces)
