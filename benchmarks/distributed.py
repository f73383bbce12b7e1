"""Solves shared over processes: memory of each, traffic and seconds a step against the prediction,
and the speed-up.

    python benchmarks/distributed.py --sizes 1e5,1e6,1e7 --ranks 1,2 \\
        --out results/distributed.json --plot results/distributed.png

Single-thread processes are started by torchrun on this machine. Inputs are uniform on [0, 1]^d,
made where they are needed from streams of random numbers that do not depend on how many processes
there are; the target is a smooth function with noise, the kernel Matérn-3/2.

memory    a few steps of each solver, the mean alone, on each number of points: peak resident
          memory of each process, bytes and seconds beside those that the cost calculator
          predicts, whose rates are measured first. The residual of the result, a product with
          all of K, is left out: at n = 10⁷ it would take a day.
speed-up  a whole solve of n = 50 000 points and 64 right-hand sides, the same steps whatever the
          number of processes.
"""

import argparse
import math
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scalable_bo.cli.costs import Costs, Rates, Shape, measure_rates, predict
from scalable_bo.experiments.formats import number
from scalable_bo.experiments.launching import BACKENDS, launch, run_job
from scalable_bo.experiments.models import matern_kernel
from scalable_bo.experiments.records import peak_memory_bytes, reset_peak_memory
from scalable_bo.experiments.scripts import print_rows, script_parser, write_benchmark
from scalable_bo.experiments.thompson.samplers import Stopwatch
from surrogates import CG, IterativeSolver
from surrogates.solvers.run import Start
from surrogates.systems.processes import own_rows
from surrogates.systems.shared import DistributedKernelSystem

LENGTHSCALE = 0.5
NOISE = 1e-2
ROWS_PER_STREAM = 2**16
MEBIBYTE = 2**20


def inputs(rows: slice, dim: int) -> Tensor:
    """Return the rows of X."""
    return streamed(rows, dim, torch.rand, seed=0)


def targets(X: Tensor, rows: slice, columns: int) -> Tensor:
    """Return a right-hand side for each column: waves with noise."""
    waves = torch.arange(1, columns + 1, dtype=X.dtype, device=X.device)
    noise = streamed(rows, columns, torch.randn, seed=2**40).to(X.device)
    return torch.sin(3.0 * X.sum(1, keepdim=True) * waves / columns).add_(noise, alpha=NOISE**0.5)


def streamed(rows: slice, width: int, draw: Callable[..., Tensor], seed: int) -> Tensor:
    """Return rows of random numbers that have a stream of their own for each 65 536 rows,
    so that it does not matter who holds which.
    """
    out = torch.empty(rows.stop - rows.start, width)
    part = torch.empty(ROWS_PER_STREAM, width)
    for stream in range(rows.start // ROWS_PER_STREAM, math.ceil(rows.stop / ROWS_PER_STREAM)):
        first = stream * ROWS_PER_STREAM
        draw(part.shape, generator=torch.Generator().manual_seed(seed + stream), out=part)
        low = max(first, rows.start)
        high = min(first + ROWS_PER_STREAM, rows.stop)
        out[low - rows.start : high - rows.start] = part[low - first : high - first]
    return out


def make_solver(shape: Shape, **settings: Any) -> IterativeSolver:
    """Return the solver of ``shape``, with no power iterations before the first step."""
    settings |= {"tolerance": 1e-12}
    if shape.solver == "cg":
        return CG(None, **settings)
    if shape.solver == "sdd":
        settings["step_size"] = 1.0
    solver = shape.make_solver(**settings)
    assert isinstance(solver, IterativeSolver)
    return solver


def work(shape: Shape, steps: int, epochs: float, device: torch.device) -> dict[str, Any]:
    """Run on this process's rows: so many steps, or a solve of so many epochs if there are no
    steps. Return what it took.
    """
    os.environ["SCALABLE_BO_COMPILE"] = "always"
    generator = torch.Generator().manual_seed(0)
    kernel = matern_kernel(LENGTHSCALE, 1.0).float().to(device)
    # Compiles, and opens the connections
    warm = DistributedKernelSystem(kernel, inputs(slice(0, 4096), shape.dim).to(device), NOISE)
    few = torch.arange(min(256, warm.n), device=device)
    zeros = torch.zeros(4096, shape.columns, device=device)
    warm.rows_matmul(few, zeros, minus=zeros)
    warm.block(few)
    del warm, zeros
    reset_peak_memory(device)
    base = peak_memory_bytes(device)

    rows = own_rows(shape.n)
    X = inputs(rows, shape.dim).to(device)
    rhs = targets(X, rows, shape.columns)
    system = DistributedKernelSystem(kernel, X, NOISE)
    solver = make_solver(shape, max_epochs=epochs)
    found: dict[str, Any] = {}
    if steps == 0:
        with Stopwatch(device) as watch:
            solution = solver.solve(system, rhs, generator=generator)
        found |= {
            "seconds": watch.seconds,
            "epochs": solution.epochs,
            "residual": float(solution.residual.max()),
        }
    else:
        prepared = solver.prepare(system, generator)
        state = solver.init(system, Start(rhs, torch.zeros_like(rhs), rhs, prepared))
        # The first brings the points into the epoch's order
        state = solver.step(system, rhs, state, generator)
        seconds = []
        moved = []
        for _ in range(steps):
            before = system.bytes_moved
            with Stopwatch(device) as watch:
                state = solver.step(system, rhs, state, generator)
            seconds.append(watch.seconds)
            moved.append(system.bytes_moved - before)
        # Means, as processes that factorise blocks side by side do so in one of several steps.
        found |= {"seconds": statistics.fmean(seconds), "network_bytes": statistics.fmean(moved)}
    peaks = torch.zeros(system.rows.size, dtype=torch.long, device=device)
    peaks[system.rows.rank] = peak_memory_bytes(device)
    bases = torch.zeros_like(peaks)
    bases[system.rows.rank] = base
    return found | {
        "peaks": system.rows.sum(peaks).tolist(),
        "bases": system.rows.sum(bases).tolist(),
    }


def found_by(
    shape: Shape, steps: int, epochs: float, timeout: float, device: str = "cpu"
) -> dict[str, Any]:
    """Return what the first of ``shape.ranks`` processes found by ``work``."""
    job = {"shape": asdict(shape), "steps": steps, "epochs": epochs, "device": device}
    return launch(__file__, job, shape.ranks, timeout)


def work_of(job: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return work(Shape(**job["shape"]), job["steps"], job["epochs"], device)


def measured_memory(
    shape: Shape, rates: Rates, steps: int, timeout: float, device: str = "cpu"
) -> dict[str, Any]:
    found = found_by(shape, steps, 100.0, timeout, device)
    costs = predict(shape, rates, process_bytes=max(found["bases"]))
    return {
        "shape": asdict(shape),
        "steps": steps,
        "measured": found,
        "predicted": described(costs),
        "memory_ratio": max(found["peaks"]) / costs.step_memory,
        "time_ratio": found["seconds"] / costs.seconds_per_step,
    }


def described(costs: Costs) -> dict[str, Any]:
    return {
        "step_memory": costs.step_memory,
        "memory": costs.memory,
        "network_bytes": costs.network_bytes,
        "seconds": costs.seconds,
        "seconds_per_step": costs.seconds_per_step,
    }


def numbers(text: str) -> list[int]:
    return [int(float(part)) for part in text.split(",")]


def options() -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--sizes", type=numbers, default=[10**5, 10**6], help="points, such as 1e5,1e6,1e7"
    )
    parser.add_argument("--ranks", type=numbers, default=[1, 2], help="numbers of processes")
    parser.add_argument("--solvers", default="asap,adasap,sdd", help="asap, sap, adasap, sdd")
    parser.add_argument("--dim", type=int, default=9)
    parser.add_argument("--block-size", type=int, default=512)
    parser.add_argument(
        "--steps", type=int, default=4, help="whose mean is taken: a multiple of the processes"
    )
    parser.add_argument(
        "--speedup-n",
        type=int,
        default=50_000,
        help="points of the solve that is timed; 0 for none",
    )
    parser.add_argument("--speedup-columns", type=int, default=64)
    parser.add_argument("--speedup-solvers", default="asap,sdd")
    parser.add_argument("--speedup-block", type=int, default=1000)
    parser.add_argument("--speedup-epochs", type=float, default=4.0)
    parser.add_argument(
        "--repeats", type=int, default=3, help="of each solve that is timed, in turn"
    )
    parser.add_argument(
        "--timeout", type=float, default=600.0, help="seconds that one launch may take"
    )
    parser.add_argument(
        "--device", default="cpu", choices=BACKENDS, help="cuda: one for each process"
    )
    parser.add_argument("--plot", type=Path, default=None, help="PNG to write")
    parser.add_argument("--job", default=None, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = options()
    if arguments.job is not None:
        run_job(arguments.job, work_of)
        return

    torch.set_num_threads(1)
    os.environ["SCALABLE_BO_COMPILE"] = "always"
    rates = measure_rates(arguments.dim, 1)
    memory = []
    for n in arguments.sizes:
        for solver in arguments.solvers.split(","):
            for ranks in arguments.ranks:
                shape = Shape(n, arguments.dim, 1, ranks, solver, arguments.block_size)
                memory.append(
                    measured_memory(
                        shape, rates, arguments.steps, arguments.timeout, arguments.device
                    )
                )
                print(line(memory[-1]), file=sys.stderr, flush=True)
    settings = {
        name: value for name, value in vars(arguments).items() if name not in ("out", "plot", "job")
    }
    parts: dict[str, Any] = {"settings": settings, "rates": asdict(rates), "memory": memory}
    parts |= {"device": arguments.device}
    # Written before, too: a process that fails in the solves below does not take it with it
    write_benchmark(arguments.out, "distributed", **parts, speed_up=[])
    speed = speed_ups(arguments) if arguments.speedup_n else []
    write_benchmark(arguments.out, "distributed", **parts, speed_up=speed)
    print_memory(memory)
    if speed:
        print_speed(speed)
    if arguments.plot is not None:
        draw(memory, speed, arguments.plot)


def speed_ups(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    results = []
    for solver in arguments.speedup_solvers.split(","):
        shape = Shape(
            arguments.speedup_n,
            arguments.dim,
            arguments.speedup_columns,
            1,
            solver,
            arguments.speedup_block,
        )
        seconds: dict[int, list[float]] = {ranks: [] for ranks in arguments.ranks}
        residuals = {}
        for _ in range(arguments.repeats):
            for ranks in arguments.ranks:
                found = found_by(
                    replace(shape, ranks=ranks),
                    0,
                    arguments.speedup_epochs,
                    arguments.timeout,
                    arguments.device,
                )
                seconds[ranks].append(found["seconds"])
                residuals[ranks] = found["residual"]
        alone = statistics.median(seconds[min(seconds)])
        for ranks, values in seconds.items():
            results.append(
                {
                    "shape": asdict(replace(shape, ranks=ranks)),
                    "seconds": values,
                    "residual": residuals[ranks],
                    "speed_up": alone / statistics.median(values),
                }
            )
    return results


def line(result: dict[str, Any]) -> str:
    shape = result["shape"]
    measured = result["measured"]
    predicted = result["predicted"]
    return (
        f"{shape['solver']} n {shape['n']:.0e} ranks {shape['ranks']}: peak"
        f" {max(measured['peaks']) / MEBIBYTE:.0f} MiB ({result['memory_ratio']:.2f} of predicted,"
        f" {max(measured['bases']) / MEBIBYTE:.0f} MiB before), {measured['seconds']:.3f} s a step"
        f" ({result['time_ratio']:.2f} of predicted), {measured['network_bytes']:.0f} bytes a step"
        f" (predicted {predicted['network_bytes']})"
    )


def print_memory(results: list[dict[str, Any]]) -> None:
    rows = []
    for result in results:
        shape = result["shape"]
        measured = result["measured"]
        alone = shape["ranks"] == 1
        sent = None if alone else measured["network_bytes"] / result["predicted"]["network_bytes"]
        rows.append(
            [
                shape["solver"],
                f"{shape['n']:.0e}",
                str(shape["ranks"]),
                f"{max(measured['peaks']) / MEBIBYTE:.0f}",
                f"{result['memory_ratio']:.2f}",
                f"{measured['seconds']:.3f}",
                f"{result['time_ratio']:.2f}",
                f"{measured['network_bytes'] / 1e6:.3f}",
                number(sent, ".2f"),
            ]
        )
    pairs = ((name, "of predicted") for name in ("peak MiB", "s a step", "MB a step"))
    print_rows(
        "A few steps, the mean alone: measured, and measured over predicted",
        ("solver", "n", "ranks", *(heading for pair in pairs for heading in pair)),
        rows,
    )


def print_speed(results: list[dict[str, Any]]) -> None:
    shape = results[0]["shape"]
    print_rows(
        f"Solves of n = {shape['n']}, s = {shape['columns']}, one thread a process",
        ("solver", "ranks", "seconds", "speed-up", "residual"),
        [
            [
                result["shape"]["solver"],
                str(result["shape"]["ranks"]),
                f"{statistics.median(result['seconds']):.1f}",
                f"{result['speed_up']:.2f}",
                f"{result['residual']:.1e}",
            ]
            for result in results
        ],
    )


def draw(memory: list[dict[str, Any]], speed: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for ranks in sorted({result["shape"]["ranks"] for result in memory}):
        own = [result for result in memory if result["shape"]["ranks"] == ranks]
        predicted = [result["predicted"]["step_memory"] / MEBIBYTE for result in own]
        measured = [max(result["measured"]["peaks"]) / MEBIBYTE for result in own]
        left.plot(
            predicted, measured, "o", alpha=0.7, label=f"{ranks} process{'es' if ranks > 1 else ''}"
        )
    ends = [result["predicted"]["step_memory"] / MEBIBYTE for result in memory]
    left.plot(
        [min(ends), max(ends)],
        [min(ends), max(ends)],
        color="black",
        linewidth=0.8,
        label="as predicted",
    )
    scale = "log" if max(ends) > 10 * min(ends) else "linear"
    left.set(
        xscale=scale,
        yscale=scale,
        xlabel="predicted MiB of a process",
        ylabel="measured peak MiB",
        title="Memory",
    )
    left.legend()
    for solver in dict.fromkeys(result["shape"]["solver"] for result in speed):
        own = [result for result in speed if result["shape"]["solver"] == solver]
        right.plot(
            [r["shape"]["ranks"] for r in own], [r["speed_up"] for r in own], "o-", label=solver
        )
    most = max((result["shape"]["ranks"] for result in speed), default=1)
    right.plot([1, most], [1, most], color="black", linewidth=0.8, label="ideal")
    right.set(
        xlabel="single-thread processes",
        ylabel="speed-up",
        title="Solve",
        xticks=range(1, most + 1),
    )
    right.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
