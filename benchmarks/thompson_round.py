"""Laptop Thompson rounds by our samplers and by BoTorch's exact route, in one run.

    python benchmarks/thompson_round.py --methods cg,cholesky,botorch --rounds 1 \\
        --out benchmarks/results/thompson_round.json
    python benchmarks/thompson_round.py --methods cg,botorch-10 --rounds 5 --seeds 3 \\
        --out benchmarks/results/thompson_values.json

`botorch` is the exact route in double precision: Cholesky paths by `draw_matheron_paths`, all q at
once, maximised by `optimize_posterior_samples` with its defaults (1024 raw samples, 20 restarts,
L-BFGS); it needs about 20 GB. `botorch-10` is the same, ten paths at a time: less memory, and much
faster. All methods meet the same target, initial data and observation noise.
"""

import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from botorch.models import SingleTaskGP
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.utils.sampling import manual_seed, optimize_posterior_samples
from gpytorch.kernels import Kernel
from gpytorch.means import ZeroMean
from rich.console import Console
from torch import Tensor

from scalable_bo.experiments.cells import run_cell
from scalable_bo.experiments.formats import mean_and_error
from scalable_bo.experiments.presets import THOMPSON_PRESETS
from scalable_bo.experiments.problems import GPPrior
from scalable_bo.experiments.records import Record
from scalable_bo.experiments.scripts import print_rows, script_parser, write_benchmark
from scalable_bo.experiments.thompson.cell import ThompsonCell
from scalable_bo.experiments.thompson.samplers import (
    PathwiseSampler,
    Proposal,
    Sampler,
    Stopwatch,
    draw_seed,
)
from scalable_bo.experiments.thompson.settings import ThompsonPreset
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
        *others: Any,  # what is for our own
    ) -> Sampler:
        if name == "botorch":
            return BoTorchSampler(int(group or preset.q), preset, target, kernel, generators)
        return PathwiseSampler(preset, method, target, kernel, generators, *others)

    return make


def run(preset: ThompsonPreset, method: str, seed: int, device: str = "cpu") -> Record:
    """Return the record of one method's rounds."""
    solver = "cholesky" if method.startswith("botorch") else method
    lengthscale = preset.lengthscales[0]
    sampler = sampler_of(method)
    cell = ThompsonCell(preset, solver, lengthscale, seed, sampler=sampler, device=device)
    record = run_cell(cell)
    record["settings"]["solver"] = method
    Console().print(cell.describe(record), soft_wrap=True)
    return record


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--methods",
        default="cg,cholesky,sdd,botorch-10",
        help="cg, cholesky, sdd, botorch, botorch-<paths at once>",
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    # BoTorch's, on the scaling of data that are what they are
    warnings.filterwarnings("ignore", category=UserWarning)

    preset = replace(THOMPSON_PRESETS["laptop"], num_rounds=arguments.rounds)
    methods = arguments.methods.split(",")
    runs = [
        run(preset, method, seed, arguments.device)
        for seed in range(arguments.seeds)
        for method in methods
    ]
    summary = {
        method: summarise([run for run in runs if run["settings"]["solver"] == method])
        for method in methods
    }
    headings = ("best", "random search", "solve s/round", "acquisition s/round", "peak GiB")
    print_rows(
        f"Laptop preset, {arguments.rounds} rounds, {arguments.seeds} seeds",
        ("method", *headings),
        [
            [
                method,
                f"{row['best_noiseless_mean']:.3f}",
                f"{row['random_search_mean']:.3f}",
                f"{row['seconds_solve']:.1f}",
                f"{row['seconds_acquisition']:.1f}",
                f"{row['peak_memory_bytes'] / 2**30:.1f}",
            ]
            for method, row in summary.items()
        ],
    )
    keys = ("settings", "initial", "rounds", "random_search")
    compact = [{key: record[key] for key in keys} for record in runs]
    write_benchmark(
        arguments.out, "thompson_round", device=arguments.device, summary=summary, runs=compact
    )


def summarise(runs: list[Record]) -> Record:
    """Return what the runs of one method found, and what a round of them took."""
    rounds = [entry for record in runs for entry in record["rounds"]]
    best = [record["rounds"][-1]["best_noiseless"] for record in runs]
    random = [record["random_search"]["rounds"][-1]["best_noiseless"] for record in runs]
    mean, error = mean_and_error(best)
    seconds = ("seconds_solve", "seconds_acquisition")
    return {
        "best_noiseless": best,
        "best_noiseless_mean": mean,
        "best_noiseless_standard_error": error,  # not a number, null in the record, for one seed
        "random_search_mean": statistics.fmean(random),
        **{key: statistics.median(entry[key] for entry in rounds) for key in seconds},
        "peak_memory_bytes": max(entry["peak_memory_bytes"] for entry in rounds),
    }


if __name__ == "__main__":
    main()
