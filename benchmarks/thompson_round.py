"""Laptop Thompson rounds by our samplers and by BoTorch's exact route, in one run.

    python benchmarks/thompson_round.py --methods cg,cholesky,botorch --rounds 1 --out
    benchmarks/results/thompson_round.json python benchmarks/thompson_round.py --methods
    cg,botorch-10 --rounds 5 --seeds 3 --out benchmarks/results/thompson_values.json

`botorch` is the exact route in double precision: Cholesky paths by `draw_matheron_paths`, all q at
once, maximised by `optimize_posterior_samples` with its defaults (1024 raw samples, 20 restarts,
L-BFGS); it needs about 20 GB. `botorch-10` is the same, ten paths at a time: less memory, and much
faster. All methods meet the same target, initial data and observation noise.
"""

import argparse
import math
import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from botorch.models import SingleTaskGP
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.utils.sampling import manual_seed, optimize_posterior_samples
from gpytorch.kernels import Kernel
from gpytorch.means import ZeroMean
from rich.console import Console
from rich.table import Table
from torch import Tensor

from scalable_bo.experiments.cells import run_cell
from scalable_bo.experiments.presets import THOMPSON_PRESETS
from scalable_bo.experiments.records import describe_environment, write_record
from scalable_bo.experiments.thompson.cell import ThompsonCell
from scalable_bo.experiments.thompson.samplers import (
    PathwiseSampler,
    Proposal,
    Sampler,
    Stopwatch,
    draw_seed,
)
from scalable_bo.experiments.thompson.settings import ThompsonPreset
from scalable_bo.problems import GPPrior
from surrogates import gaussian_likelihood


@dataclass
class BoTorchSampler:
    """BoTorch's exact route, ``paths_at_once`` of the q paths at a time."""

    paths_at_once: int
    preset: ThompsonPreset
    target: GPPrior
    kernel: Kernel
    generators: dict[str, torch.Generator]
    mean_weights: Tensor | None = None

    def __call__(self, X: Tensor, y: Tensor, number: int) -> Proposal:
        model = SingleTaskGP(
            X.double(),
            y.double().unsqueeze(1),
            covar_module=self.kernel.double(),
            mean_module=ZeroMean(),
            likelihood=gaussian_likelihood(self.preset.noise).double(),
            outcome_transform=None,
        ).eval()
        bounds = self.target.bounds.double()
        device = X.device
        points = []
        seconds_solve = 0.0
        seconds_acquisition = 0.0
        with manual_seed(draw_seed(self.generators["paths"]) % 2**31):
            for start in range(0, self.preset.q, self.paths_at_once):
                count = min(self.paths_at_once, self.preset.q - start)
                with Stopwatch(device) as solve:
                    paths: Any = draw_matheron_paths(model, torch.Size([count]))
                with Stopwatch(device) as acquisition:
                    points.append(optimize_posterior_samples(paths, bounds)[0].reshape(count, -1))
                seconds_solve += solve.seconds
                seconds_acquisition += acquisition.seconds
        batch = torch.cat(points).detach().to(X).clamp(0.0, 1.0)
        return Proposal(batch, 0.0, 1.0, "", seconds_solve, seconds_acquisition)


def sampler_of(method: str) -> Callable[..., Sampler]:
    name, _, group = method.partition("-")

    def make(
        preset: ThompsonPreset,
        solver: str,
        target: GPPrior,
        kernel: Kernel,
        generators: dict[str, Any],
        on_status: Any,
    ) -> Sampler:
        if name == "botorch":
            return BoTorchSampler(int(group or preset.q), preset, target, kernel, generators)
        return PathwiseSampler(preset, method, target, kernel, generators, on_status)

    return make


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--methods",
        default="cg,cholesky,sdd,botorch-10",
        help="cg, cholesky, sdd, botorch, botorch-<paths at once>",
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None, help="JSON record to write")
    arguments = parser.parse_args()
    # BoTorch's, on the scaling of data that are what they are
    warnings.filterwarnings("ignore", category=UserWarning)

    preset = replace(THOMPSON_PRESETS["laptop"], num_rounds=arguments.rounds)
    lengthscale = preset.lengthscales[0]
    console = Console()
    runs = []
    for seed in range(arguments.seeds):
        for method in arguments.methods.split(","):
            solver = "cholesky" if method.startswith("botorch") else method
            cell = ThompsonCell(preset, solver, lengthscale, seed, sampler=sampler_of(method))
            record = run_cell(cell)
            record["settings"]["solver"] = method
            console.print(cell.describe(record), soft_wrap=True)
            runs.append(record)

    table = Table(title=f"Laptop preset, {arguments.rounds} rounds, {arguments.seeds} seeds")
    for heading in (
        "method",
        "best",
        "random search",
        "solve s/round",
        "acquisition s/round",
        "peak GiB",
    ):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    summary = {}
    for method in arguments.methods.split(","):
        own = [record for record in runs if record["settings"]["solver"] == method]
        rounds = [entry for record in own for entry in record["rounds"]]
        best = [record["rounds"][-1]["best_noiseless"] for record in own]
        summary[method] = {
            "best_noiseless": best,
            "best_noiseless_mean": statistics.fmean(best),
            "best_noiseless_standard_error": (
                statistics.stdev(best) / math.sqrt(len(best)) if len(best) > 1 else None
            ),
            "seconds_solve": statistics.median(entry["seconds_solve"] for entry in rounds),
            "seconds_acquisition": statistics.median(
                entry["seconds_acquisition"] for entry in rounds
            ),
            "peak_memory_bytes": max(entry["peak_memory_bytes"] for entry in rounds),
        }
        row = summary[method]
        random = [record["random_search"]["rounds"][-1]["best_noiseless"] for record in own]
        table.add_row(
            method,
            f"{row['best_noiseless_mean']:.3f}",
            f"{statistics.fmean(random):.3f}",
            f"{row['seconds_solve']:.1f}",
            f"{row['seconds_acquisition']:.1f}",
            f"{row['peak_memory_bytes'] / 2**30:.1f}",
        )
    console.print(table)
    if arguments.out is not None:
        environment = describe_environment(torch.device("cpu"))
        compact = [
            {key: record[key] for key in ("settings", "initial", "rounds", "random_search")}
            for record in runs
        ]
        write_record(
            arguments.out,
            {
                "benchmark": "thompson_round",
                "environment": environment,
                "summary": summary,
                "runs": compact,
            },
        )


if __name__ == "__main__":
    main()
