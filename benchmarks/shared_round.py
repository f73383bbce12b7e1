"""A Thompson round by several processes: seconds and memory of the solve and of the search, and
whether any number of processes finds the same batch.

    python benchmarks/shared_round.py --sizes 50000 --q 256 --ranks 1,2 --repeats 3 \\
        --out results/shared_round.json

Single-thread processes are started by torchrun on this machine, in turn. Inputs are uniform on
[0, 1]^d, the target is a draw of the Matérn-3/2 prior that the surrogate has, with noise. Beside
wall-clock seconds there are those of the processor, which a busy machine changes less; of several
processes those of the busiest count.
"""

import argparse
import os
import statistics
import time
import warnings
from typing import Any

import torch
from torch import Tensor

from acquisition import ParallelThompsonSampling
from acquisition.strategies import NUM_CANDIDATES, default_num_starts
from scalable_bo.experiments.formats import number
from scalable_bo.experiments.launching import BACKENDS, launch, run_job
from scalable_bo.experiments.models import fixed_model, matern_kernel
from scalable_bo.experiments.problems import GPPrior
from scalable_bo.experiments.records import peak_memory_bytes, reset_peak_memory
from scalable_bo.experiments.scripts import print_rows, script_parser, write_benchmark
from surrogates import Checkpoint, SketchAndProject, UnsolvedWarning
from surrogates.systems.processes import shares
from surrogates.systems.shared_rows import SharedRows

MEBIBYTE = 2**20


def data(job: dict[str, Any], device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(job["seed"])
    kernel = matern_kernel(job["lengthscale"], 1.0).float().to(device)
    target = GPPrior(
        kernel,
        job["dim"],
        noise=job["noise"],
        num_features=1000,
        generator=generator,
        dtype=torch.float32,
        device=device,
    )
    X = torch.rand(job["n"], job["dim"], generator=generator).to(device)
    values = torch.cat([target(part) for part in X.split(2**16)])
    return X, target.add_noise(values, generator)


def clocks(device: torch.device) -> tuple[float, float]:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter(), time.process_time()


def asap(job: dict[str, Any]) -> SketchAndProject:
    folder = job["checkpoint"]
    return SketchAndProject.asap(
        block_size=job["block_size"],
        max_epochs=job["epochs"],
        tolerance=job["tolerance"],
        checkpoint=None if folder is None else Checkpoint(folder, keep_solution=True),
    )


def work(job: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Make a round, and return what it took and found."""
    warnings.simplefilter("ignore", UnsolvedWarning)  # a budget may be spent on purpose
    os.environ["SCALABLE_BO_COMPILE"] = "always"  # "auto" may differ between processes, on a device
    X, y = data(job, device)
    kernel = matern_kernel(job["lengthscale"], 1.0).float().to(device)
    reset_peak_memory(device)
    base = peak_memory_bytes(device) - X.numel() * 4 - y.numel() * 4
    model = fixed_model(X, y, kernel, job["noise"], asap(job))
    q = job["q"]
    bounds = torch.tensor([[0.0] * job["dim"], [1.0] * job["dim"]], device=device)
    began = clocks(device)
    paths = model.paths(q, generator=torch.Generator().manual_seed(1), shared=True)
    solved = clocks(device)
    solution = model.solution
    assert solution is not None  # paths() has just made it
    solve_peak = peak_memory_bytes(device)
    starts = job["starts"] or default_num_starts(q, job["n"])
    sampler = ParallelThompsonSampling(
        model,
        bounds,
        num_candidates=NUM_CANDIDATES // starts,
        num_rounds=starts,
        num_starts=starts,
        num_steps=job["steps"],
        seed=2,
        shared=True,
    )
    batch = sampler.generate(q, paths=paths)
    done = clocks(device)
    share = shares("q", q)
    rows = SharedRows(share.stop - share.start, device)
    own = batch[share].unsqueeze(1)
    with torch.no_grad():
        values = rows.gather(paths.parts[0].each(own)).squeeze(1)
    mine = torch.zeros(rows.size, 7, dtype=torch.float64, device=device)
    mine[rows.rank] = torch.tensor(
        [
            max(solved[0] - began[0], solution.seconds),
            solved[1] - began[1],
            done[0] - solved[0],
            done[1] - solved[1],
            base,
            solve_peak,
            peak_memory_bytes(device),
        ],
        dtype=torch.float64,
    )
    names = ("solve", "solve_cpu", "search", "search_cpu", "base", "solve_peak", "peak")
    found = dict(zip(names, rows.sum(mine).T.tolist(), strict=True))
    return found | {
        "epochs": solution.epochs,
        "residual": float(solution.residual.max()),
        "starts": starts,
        "float64_sums": paths.parts[0].weights.dtype == torch.float64,
        "batch": batch.tolist(),
        "values": values.tolist(),
    }


def difference(found: dict[str, Any], alone: dict[str, Any]) -> dict[str, float]:
    """Return how far the batch is from that of the fewest processes, and how much lower its paths
    are there.
    """
    distance = (torch.tensor(found["batch"]) - torch.tensor(alone["batch"])).abs().amax(1)
    values = torch.tensor(alone["values"])
    loss = values - torch.tensor(found["values"])
    return {
        "same_within_1e-3": float((distance < 1e-3).double().mean()),
        "same_within_1e-2": float((distance < 1e-2).double().mean()),
        "mean_loss": float(loss.mean()),
        "largest_loss": float(loss.max()),
        "spread_of_values": float(values.std()),
    }


def summary(runs: list[dict[str, Any]], ranks: int) -> dict[str, Any]:
    return {
        "ranks": ranks,
        **{
            name: statistics.median(max(run[name]) for run in runs)
            for name in ("solve", "solve_cpu", "search", "search_cpu", "solve_peak", "peak")
        },
        "runs": [
            {name: run[name] for name in run if name not in ("batch", "values")} for run in runs
        ],
    }


def options() -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--sizes", type=numbers, default=[50_000], help="points, such as 5e4,1e6")
    parser.add_argument("--ranks", type=numbers, default=[1, 2], help="numbers of processes")
    parser.add_argument("--q", type=int, default=256)
    parser.add_argument("--dim", type=int, default=8)
    parser.add_argument("--lengthscale", type=float, default=0.5)
    parser.add_argument("--noise", type=float, default=1e-2)
    parser.add_argument("--block-size", type=int, default=None)
    parser.add_argument("--epochs", type=float, default=100.0, help="budget of the solve")
    parser.add_argument("--tolerance", type=float, default=1e-2)
    parser.add_argument("--starts", type=int, default=0, help="ascents a path; 0: a study's")
    parser.add_argument("--steps", type=int, default=80, help="of the ascent")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=1, help="of each round, in turn")
    parser.add_argument(
        "--checkpoint", default=None, help="folder of unfinished solves; remove it when all is done"
    )
    parser.add_argument("--timeout", type=float, default=36_000.0, help="seconds of one launch")
    parser.add_argument(
        "--device", default="cpu", choices=BACKENDS, help="cuda: one for each process"
    )
    parser.add_argument("--job", default=None, help=argparse.SUPPRESS)
    return parser.parse_args()


def numbers(text: str) -> list[int]:
    return [int(float(part)) for part in text.split(",")]


def main() -> None:
    arguments = options()
    if arguments.job is not None:
        run_job(arguments.job, work, timeout_seconds=7200.0)
        return
    apart = ("out", "job", "timeout", "checkpoint")
    settings = {k: v for k, v in vars(arguments).items() if k not in apart}
    results: list[dict[str, Any]] = []
    for n in arguments.sizes:
        job = settings | {"n": n}
        runs: dict[int, list[dict[str, Any]]] = {ranks: [] for ranks in arguments.ranks}
        for repeat in range(arguments.repeats):
            for ranks, found in runs.items():
                parent = arguments.checkpoint
                job["checkpoint"] = parent and f"{parent}/{n}-{ranks}-{repeat}"
                found.append(launch(__file__, job, ranks, arguments.timeout))
        alone = runs[min(runs)]
        first = summary(alone, min(runs))
        for ranks, found in runs.items():
            own = summary(found, ranks)
            for clock in ("", "_cpu"):
                whole = first["solve" + clock] + first["search" + clock]
                own["speed_up" + clock] = whole / (own["solve" + clock] + own["search" + clock])
            own |= {"n": n, "difference": difference(found[0], alone[0])}
            results.append(own)
            write_benchmark(
                arguments.out,
                "shared_round",
                device=arguments.device,
                settings=settings,
                rounds=results,
            )
    print_results(results)


def print_results(results: list[dict[str, Any]]) -> None:
    print_rows(
        "A Thompson round, one thread a process: processor seconds of the busiest process",
        ("n", "processes", "solve", "search", "speed-up", "by the clock", "peak MiB")
        + ("same points", "lower by"),
        [
            [
                str(result["n"]),
                str(result["ranks"]),
                f"{result['solve_cpu']:.1f}",
                f"{result['search_cpu']:.1f}",
                f"{result['speed_up_cpu']:.2f}",
                f"{result['speed_up']:.2f}",
                f"{result['peak'] / MEBIBYTE:.0f}",
                f"{result['difference']['same_within_1e-2']:.0%}",
                number(result["difference"]["mean_loss"], ".1e"),
            ]
            for result in results
        ],
    )


if __name__ == "__main__":
    main()
