"""``python -m benchmarks.traces``: how solvers approach the exact mean. Quick to import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Option

from scalable_bo.cli.bench import SOLVER_NAMES, DataDir, Dtype, Noise, Text
from scalable_bo.cli.console import Commands, read_names
from scalable_bo.cli.main import main
from scalable_bo.cli.running import Benchmark, Plan, options_of

traces = Commands(add_completion=False, pretty_exceptions_enable=False)


@traces.command()
@dataclass(frozen=True)
class TracesCommand(Benchmark):
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

    def plan(self) -> Plan:
        names = read_names(self.solver, "solver")

        from benchmarks.traces.cell import THOMPSON, TraceCell
        from benchmarks.traces.plots import plot_solvers
        from scalable_bo.cli.summaries import printing
        from scalable_bo.experiments.shared import check_methods

        if self.problem not in (None, THOMPSON):
            raise ValueError(
                f"`problem` must be {THOMPSON}, got {self.problem!r}. Data sets are named by"
                " --data."
            )
        settings = options_of(self, TraceCell) | {"problem": self.problem or self.data}
        cells = [TraceCell(**settings | {"solver": name}) for name in names]
        check_methods(names, mean_only=True)
        show = printing("Each solver's last checkpoint", TraceCell, ("solver",))
        picture = f"solvers_{cells[0].problem_name}.png"
        return Plan(cells, show, draw=plot_solvers, picture=picture)


if __name__ == "__main__":
    main(traces)
