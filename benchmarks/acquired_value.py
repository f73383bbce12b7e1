"""What maximising the paths of a Thompson round acquires, and what it costs: ways to screen and
ascend, side by side.

    python benchmarks/acquired_value.py --seeds 2 --out benchmarks/results/acquired_value.json
    python benchmarks/acquired_value.py --problems 8:50000:0.5:1 --paths 1000 --seeds 1 \\
        --ways "pruned;published" --out benchmarks/results/acquired_value_50000.json

A problem is d:n:lengthscale:round, a function from the surrogate's Matérn-3/2 prior on the unit
cube with noise variance 1e-6: round 1 has n uniform points, a later one n of which 100 a round
before it are Thompson points. All ways maximise the same paths, one after the other in an order
that moves on with the seed. The shortfall is the mean over paths of the best value that any way has
found less its own, in standard deviations of the prior; `reference` is 60 ascents of 300 steps,
`published` the search of Lin et al. (2023), App. A.3.
"""

import statistics
import time
from typing import Any

import torch

from acquisition import ParallelThompsonSampling
from scalable_bo.experiments.models import fixed_model, matern_kernel
from scalable_bo.experiments.problems import GPPrior
from scalable_bo.experiments.scripts import print_rows, script_parser, write_benchmark
from scalable_bo.experiments.thompson.samplers import Stopwatch
from surrogates import Auto, Cholesky, PathwiseGP, SamplePaths

PROBLEMS = (
    "8:5000:0.5:1,8:5000:0.5:5,8:3000:0.2:1,2:2000:0.2:1,2:2000:0.5:3,20:3000:0.5:1,20:3000:0.2:3"
)
NOISE = 1e-6
NUM_FEATURES = 2000
POINTS_A_ROUND = 100
MOST_DIRECT = 10_000  # points that are solved for directly
FIXED = {
    "num_candidates": 5000,
    "num_rounds": 30,
    "num_starts": 30,
    "num_steps": 100,
    "learning_rate": 2e-2,
    "prune": False,
}
WAYS: dict[str, dict[str, Any]] = {
    "reference": FIXED | {"num_rounds": 60, "num_starts": 60, "num_steps": 300},
    "fixed": FIXED,
    "published": FIXED | {"num_candidates": 50_000, "learning_rate": 1e-3},
    "fixed, published rate": FIXED | {"learning_rate": 1e-3},
    "fixed, 120 x 250": FIXED | {"num_candidates": 250, "num_rounds": 120, "num_starts": 30},
    "pruned": {},
    "pruned, 60 steps": {"num_steps": 60},
    "pruned, 100 steps": {"num_steps": 100},
    "pruned, 120 x 1000": {"num_candidates": 1000},
    "pruned, 30 x 1000": {"num_candidates": 1000, "num_rounds": 30, "num_starts": 30},
    "pruned, 10 x 3000": {"num_candidates": 3000, "num_rounds": 10, "num_starts": 10},
}


def draw_problem(
    problem: str, num_paths: int, seed: int, device: torch.device
) -> tuple[PathwiseGP, SamplePaths, torch.Tensor]:
    """Return model, paths and bounds of the problem's round;
    the rounds before it are cheap ones.
    """
    d, n, round_number = (int(part) for part in (problem.split(":")[i] for i in (0, 1, 3)))
    generator = torch.Generator().manual_seed(seed)
    kernel = matern_kernel(float(problem.split(":")[2]), 1.0).float().to(device)
    target = GPPrior(
        kernel,
        d,
        noise=NOISE,
        num_features=5000,
        generator=generator,
        dtype=torch.float32,
        device=device,
    )
    solver = Cholesky() if n <= MOST_DIRECT else Auto()
    X = torch.rand(n - POINTS_A_ROUND * (round_number - 1), d, generator=generator).to(device)
    y = target.add_noise(target(X), generator)
    for number in range(1, round_number):
        model = fixed_model(X, y, kernel, NOISE, solver, NUM_FEATURES)
        paths = model.paths(POINTS_A_ROUND, generator=generator)
        new = ParallelThompsonSampling(
            model, target.bounds, num_rounds=10, num_starts=10, num_steps=40, seed=number
        ).generate(POINTS_A_ROUND, paths=paths)
        X = torch.cat([X, new])
        y = torch.cat([y, target.add_noise(target(new), generator)])
    model = fixed_model(X, y, kernel, NOISE, solver, NUM_FEATURES)
    paths = model.paths(num_paths, generator=generator)
    assert isinstance(paths, SamplePaths)  # of one data set
    return model, paths, target.bounds


def measure(
    problem: str, ways: list[str], num_paths: int, seed: int, device: torch.device
) -> list[dict[str, Any]]:
    """Return one row a way: seconds, processor seconds,
    mean value of the batch and mean shortfall.
    """
    model, paths, bounds = draw_problem(problem, num_paths, seed, device)
    rows = {}
    found = {}
    for way in ways[seed % len(ways) :] + ways[: seed % len(ways)]:
        sampler = ParallelThompsonSampling(model, bounds, seed=seed, **WAYS[way])
        processor = time.process_time()
        with Stopwatch(device) as watch:
            batch = sampler.generate(num_paths, paths=paths)
        rows[way] = {
            "seconds": watch.seconds,
            "processor_seconds": time.process_time() - processor,
        }
        found[way] = paths.each(batch.unsqueeze(1)).squeeze(1)
    best = torch.stack(list(found.values())).amax(0)
    return [
        {
            "problem": problem,
            "seed": seed,
            "way": way,
            **rows[way],
            "value": float(found[way].mean()),
        }
        | {
            "shortfall": float((best - found[way]).mean()),
            "largest_shortfall": float((best - found[way]).max()),
        }
        for way in ways
    ]


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--problems", default=PROBLEMS, help="d:n:lengthscale:round, separated by commas"
    )
    parser.add_argument(
        "--ways",
        default=";".join(way for way in WAYS if way != "published"),
        help=f"separated by semicolons, of: {'; '.join(WAYS)}; by default all but `published`",
    )
    parser.add_argument("--paths", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()

    device = torch.device(arguments.device)
    ways = arguments.ways.split(";")
    rows = []
    for problem in arguments.problems.split(","):
        here = [
            row
            for seed in range(arguments.seeds)
            for row in measure(problem, ways, arguments.paths, seed, device)
        ]
        print_rows(
            f"{problem}, {arguments.paths} paths, {arguments.seeds} seeds",
            ("way", "value", "shortfall", "largest", "seconds", "processor seconds"),
            [mean_row(way, [row for row in here if row["way"] == way]) for way in ways],
        )
        rows += here
        settings = {"num_paths": arguments.paths, "noise": NOISE, "num_features": NUM_FEATURES}
        settings |= {"ways": {way: WAYS[way] for way in ways}}
        write_benchmark(
            arguments.out, "acquired_value", device=device, settings=settings, rows=rows
        )


def mean_row(way: str, rows: list[dict[str, Any]]) -> list[str]:
    keys = ("value", "shortfall", "largest_shortfall", "seconds", "processor_seconds")
    return [
        way,
        *(
            f"{statistics.fmean(row[key] for row in rows):.{4 if 'shortfall' in key else 2}f}"
            for key in keys
        ),
    ]


if __name__ == "__main__":
    main()
