"""``python -m benchmarks.fits``: how hyperparameters are learned. Quick to import."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scalable_bo.cli.console import Commands, optional, read_integers, read_names
from scalable_bo.cli.main import main
from scalable_bo.cli.running import Benchmark, BenchmarkPlan

fits = Commands()


@fits.command()
@dataclass(frozen=True)
class FitsCommand(Benchmark):
    """Measure how hyperparameters are learned.

    These are the papers' experiments, small enough for a laptop, and data of known functions and
    noise. Cells that the folder has a record of, with the same settings, are kept and not run
    again.

    Args:
        preset: benchmark: recovery, penalty, simulated, real, epochs, millions, batch-sizes, grid,
            weak or sparse.
        method: methods, separated by commas, instead of the preset's: nearest, uniform, subsets,
            refined, iterative, exact, sgpr, scgd; recovery and penalty: also minimax-MU,
            exact-features; data: also auto; batch-sizes: scgd, minimax, biased, svgp; grid, weak,
            sparse: fit, reference, likeliest.
        data: data, separated by commas: levy, griewank, borehole, otl, wing; or sets such as bike,
            protein; grid, weak, sparse: prior, sine, two, ripples.
        kernel: kernels, separated by commas: linear, gaussian (over a network); grid, weak, sparse:
            rbf, scaled, rq, matern12, matern32, matern52.
        seeds: seeds of data, splits and methods, such as 0-9.
        n: points, of training and test together.
        epochs: passes over the data at most.
        batch_sizes: sizes of minibatches, such as 32,128.
        sample: so many random cells of the preset, the same every time, by every method.
        data_dir: folder of the data sets; by default ../shared/data/uci.
    """

    preset: str = "recovery"
    method: str | None = None
    data: str | None = None
    kernel: str | None = None
    seeds: str | None = None
    n: int | None = None
    epochs: int | None = None
    batch_sizes: str | None = None
    sample: int | None = None
    data_dir: Path | None = None

    def plan(self) -> BenchmarkPlan:
        from benchmarks.fits.fit_tables import HYPERPARAMETERS
        from benchmarks.fits.presets import FIT_PRESETS
        from surrogates import checks

        cells = FIT_PRESETS[checks.one_of("preset", self.preset, FIT_PRESETS)].cells(
            self.sample,
            methods=optional(read_names, self.method, "method"),
            data=optional(read_names, self.data, "data"),
            kernels=optional(read_names, self.kernel, "kernel"),
            seeds=optional(read_integers, self.seeds, "seeds"),
            batch_sizes=optional(read_integers, self.batch_sizes, "batch_sizes"),
            n=self.n,
            max_epochs=self.epochs,
            data_dir=self.data_dir,
            device=self.device,
        )
        return BenchmarkPlan(cells, table=HYPERPARAMETERS)


if __name__ == "__main__":
    main(fits)
