"""``python -m benchmarks.traces``: how solvers approach the exact mean. Quick to import."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from scalable_bo.cli.console import Commands, read_names
from scalable_bo.cli.main import main
from scalable_bo.cli.running import Benchmark, BenchmarkPlan, arguments_for

traces = Commands()


@traces.command()
@dataclass(frozen=True)
class TracesCommand(Benchmark):
    """Trace how solvers approach the exact posterior mean.

    Args:
        data: data set: pol, elevators, bike, protein or keggdirected.
        split: split of the data set.
        problem: instead of a data set, thompson: a function drawn from the prior on [0, 1]^8.
        lengthscale: lengthscale of the Thompson problem.
        noise: noise variance, such as 1e-6, instead of the given one.
        solver: solvers, separated by commas: auto, cholesky, cg, sdd, sdd-1, sdd-10, sdd-100, sgd,
            sap, asap, adasap, adasap-i.
        epochs: largest budget, in passes over the kernel matrix.
        points: checkpoints, their budgets in geometric progression; each is a run of its own.
        exact: compare with the exact solution, by Cholesky; up to 20 000 points.
        data_dir: folder of the data sets; by default ../shared/data/uci.
        dtype: precision, float32 or float64.
    """

    data: str = "pol"
    split: int = 0
    problem: str | None = None
    n: Annotated[
        int,
        Option(
            "--n",
            "--num-data",
            help="Points of the Thompson problem; torchrun takes --n for its own.",
        ),
    ] = 2000
    lengthscale: float = 0.5
    noise: float | None = None
    solver: str = "sgd,sdd,cg,sap,adasap"
    epochs: float = 100.0
    points: int = 12
    exact: bool = True
    data_dir: Path | None = None
    dtype: str = "float32"

    def plan(self) -> BenchmarkPlan:
        names = read_names(self.solver, "solver")

        from benchmarks.traces.trace_cell import THOMPSON, TraceCell, plot_solvers
        from scalable_bo.cli.summaries import printing
        from scalable_bo.experiments.torchrun import check_methods

        if self.problem not in (None, THOMPSON):
            raise ValueError(
                f"`problem` must be {THOMPSON}, got {self.problem!r}. Data sets are named by"
                " --data."
            )
        settings = arguments_for(self, TraceCell) | {"problem": self.problem or self.data}
        cells = [TraceCell(**settings | {"solver": name}) for name in names]
        check_methods(names)
        show = printing("Each solver's last checkpoint", TraceCell, ("solver",))
        picture = f"solvers_{cells[0].problem_name}.png"
        return BenchmarkPlan(cells, show, draw=plot_solvers, picture=picture)


if __name__ == "__main__":
    main(traces)
