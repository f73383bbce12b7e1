"""Seconds and epochs that each solver needs for a right posterior, over systems easy and hard.

    python benchmarks/solver_sweep.py --size 2000 --fraction 6 \\
        --out benchmarks/results/solver_sweep.json
    python benchmarks/solver_sweep.py --summary --out benchmarks/results/solver_sweep.json

The design crosses inputs, dimension, lengthscale, noise and paths, and takes one of ``--fraction``
cells, in an order that is shuffled by a fixed seed. Inputs are uniform on the unit cube, or half
uniform and half clustered as Thompson rounds leave them: maximisers of posterior paths, a tenth of
the data a round. Every solver solves for the mean and the paths until its default error, 0.1
posterior standard deviations, ``--repeats`` times, of which the median counts, the kernel matrix
included. A run ends after three times the seconds of the fastest so far. A finished cell is not run
again.
"""

import itertools
import json
import math
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from gpytorch.kernels import MaternKernel
from rich.console import Console
from torch import Tensor

from acquisition import ParallelThompsonSampling
from scalable_bo.experiments.models import fixed_model
from scalable_bo.experiments.records import describe_environment, write_record
from scalable_bo.experiments.scripts import script_parser
from surrogates import (
    CG,
    SDD,
    Auto,
    Cholesky,
    KernelSystem,
    PriorPaths,
    SketchAndProject,
    Solver,
    kernel_operator,
)
from surrogates.solvers.accuracy import PosteriorError
from surrogates.systems.base import Targets

SMALL = 4000
ERROR = 0.1  # posterior standard deviations
CLUSTER_ROUNDS = 5
CLUSTER_MODEL = 1000  # points that the path maximisers of the clustered inputs are conditioned on
OUT_OF_REACH = 3.0  # a solver is stopped after so many times the seconds of the fastest so far
SHORTEST = 0.3  # seconds that every solver is given
SOLVERS: dict[str, Callable[..., Solver]] = {
    "cholesky": lambda **budget: Cholesky(),
    "auto": Auto,
    "cg": CG,
    "asap": SketchAndProject.asap,
    "sdd": SDD,
}


@dataclass(frozen=True)
class SweepSystem:
    """One system: ``kind`` is ``uniform`` or ``clustered``, ``s`` the number of columns."""

    n: int
    kind: str
    dim: int
    lengthscale: float
    noise: float
    s: int

    @property
    def name(self) -> str:
        return f"n{self.n}-{self.kind}-d{self.dim}-l{self.lengthscale:g}-v{self.noise:g}-s{self.s}"


def design(n: int, fraction: int) -> list[SweepSystem]:
    """Return one of ``fraction`` of the shuffled cells of n points."""
    levels = itertools.product(
        ["uniform", "clustered"],
        [2, 8, 20],
        [0.1, 0.5, 2.0, 3.0],
        [1e-6, 1e-2, 1e-1],
        [1, 64, 1000],
    )
    cells = [SweepSystem(n, *level) for level in levels]
    random.Random(n).shuffle(cells)
    return cells[::fraction]


def inputs(cell: SweepSystem, generator: torch.Generator) -> Tensor:
    X = torch.rand(cell.n, cell.dim, generator=generator)
    if cell.kind == "uniform":
        return X
    kernel = kernel_of(cell).double()
    bounds = torch.tensor([[0.0] * cell.dim, [1.0] * cell.dim], dtype=torch.float64)
    target = PriorPaths.draw(
        kernel, cell.dim, 1, num_features=2000, weighted=False, generator=generator, like=bounds
    )
    X = X[: cell.n // 2].double()
    while len(X) < cell.n:
        values = target(X)[0]
        best = values.topk(min(len(X), CLUSTER_MODEL // 2)).indices
        known = torch.cat(
            [best, torch.randperm(len(X), generator=generator)[: CLUSTER_MODEL // 2]]
        ).unique()
        model = fixed_model(
            X[known], values[known], kernel, max(cell.noise, 1e-6), Cholesky(), num_features=500
        )
        sampler = ParallelThompsonSampling(
            model,
            bounds,
            num_candidates=1000,
            num_rounds=3,
            num_starts=1,
            num_steps=30,
            seed=len(X),
        )
        X = torch.cat([X, sampler.generate(min(cell.n // (2 * CLUSTER_ROUNDS), cell.n - len(X)))])
    return X[torch.randperm(cell.n, generator=generator)].float()


def kernel_of(cell: SweepSystem) -> MaternKernel:
    kernel = MaternKernel(nu=1.5)
    kernel.lengthscale = cell.lengthscale
    return kernel.requires_grad_(False)


def problem(
    cell: SweepSystem, seed: int, device: torch.device
) -> tuple[MaternKernel, Tensor, Targets]:
    """Return the kernel, the points X (n, d), and what the weights of a mean and s paths fit."""
    generator = torch.Generator().manual_seed(seed)
    X = inputs(cell, generator)
    prior = PriorPaths.draw(
        kernel_of(cell), cell.dim, 1 + cell.s, num_features=2000, generator=generator, like=X
    )
    noise = cell.noise**0.5 * torch.randn(cell.n, 1 + cell.s, generator=generator)
    values = prior(X).T.contiguous()
    values[:, 0] += noise[:, 0]
    noise[:, 0] = 0.0
    return kernel_of(cell).to(device), X.to(device), Targets(values.to(device), noise.to(device))


def measure(
    cell: SweepSystem,
    names: list[str],
    repeats: int,
    seed: int,
    console: Console,
    device: torch.device,
) -> dict[str, Any]:
    kernel, X, targets = problem(cell, seed, device)

    def solve(make: Any, max_seconds: float | None) -> dict[str, Any]:
        started = time.perf_counter()  # the kernel matrix, kept or not, is part of the work
        system = KernelSystem(kernel_operator(kernel, X), cell.noise)
        solver: Solver = make(max_epochs=200.0, max_seconds=max_seconds)
        solution = solver.solve(
            system, targets, posterior=PosteriorError.for_targets(system, targets)
        )
        assert solution.error is not None
        return {
            "error": solution.error.max().item(),
            "residual": solution.residual.max().item(),
            "epochs": solution.epochs,
            "seconds": time.perf_counter() - started,
            "note": solution.note,
        }

    results: dict[str, list[dict[str, Any]]] = {}
    fastest = math.inf
    for name in names:
        make = SOLVERS[name]
        limit = None if math.isinf(fastest) else max(SHORTEST, OUT_OF_REACH * fastest)
        if cell.n < SMALL:
            # So that no run of few milliseconds is the first to touch memory
            solve(make, limit)
        results[name] = [solve(make, limit) for _ in range(repeats)]
        if has_reached(results[name]) and name != "auto":
            fastest = min(fastest, seconds_of(results[name]))
        first = results[name][0]
        console.print(
            f"  {name:9s} {seconds_of(results[name]):7.2f} s  error {first['error']:.1e} "
            f"{first['epochs']:6.1f} epochs  {first['note']}",
            soft_wrap=True,
            highlight=False,
        )
    return {"cell": asdict(cell), "solvers": results}


def seconds_of(runs: list[dict[str, Any]]) -> float:
    return statistics.median(run["seconds"] for run in runs)


def has_reached(runs: list[dict[str, Any]]) -> bool:
    return all(run["error"] <= ERROR for run in runs)


def summarise(record: dict[str, Any], console: Console) -> None:
    """Print how far Auto is from the best single solver."""
    ratios = {}
    short = []
    totals = dict.fromkeys(("auto", "best"), 0.0)
    for name, entry in record["cells"].items():
        reached = {
            solver: seconds_of(runs)
            for solver, runs in entry["solvers"].items()
            if has_reached(runs)
        }
        singles = {solver: seconds for solver, seconds in reached.items() if solver != "auto"}
        if not singles:
            continue
        if "auto" not in reached:
            short.append(name)
            continue
        ratios[name] = reached["auto"] / min(singles.values())
        totals["auto"] += reached["auto"]
        totals["best"] += min(singles.values())
    ordered = sorted(ratios.values())
    if not ordered:
        return
    whole = totals["auto"] / totals["best"]
    console.print(
        f"{len(record['cells'])} cells, auto over the best: {whole:.2f} in total, median"
        f" {statistics.median(ordered):.2f}; short where another is not: {short}"
    )
    for name, ratio in sorted(ratios.items(), key=lambda item: -item[1])[:12]:
        entry = record["cells"][name]["solvers"]
        console.print(
            f"  {ratio:5.2f} {name}: "
            + ", ".join(f"{k} {seconds_of(v):.2f}" for k, v in entry.items()),
            soft_wrap=True,
        )


def main() -> None:
    parser = script_parser(__doc__, "JSON record; finished cells in it are kept")
    parser.add_argument("--size", type=int, default=2000, help="n")
    parser.add_argument("--fraction", type=int, default=6, help="take one of so many cells")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--solvers", default=None, help="only these, separated by commas")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--summary", action="store_true", help="only summarise what the record holds"
    )
    arguments = parser.parse_args()
    console = Console()
    cells = design(arguments.size, arguments.fraction)
    record: dict[str, Any] = {"benchmark": "solver_sweep", "cells": {}}
    if arguments.out is not None and arguments.out.exists():
        record = json.loads(arguments.out.read_text())
    device = torch.device(arguments.device)
    names = [*SOLVERS] if arguments.solvers is None else arguments.solvers.split(",")
    environment = describe_environment(device)
    for number, cell in enumerate([] if arguments.summary else cells):
        if cell.name in record["cells"]:
            continue
        console.print(f"{number + 1}/{len(cells)} {cell.name}", highlight=False)
        record["cells"][cell.name] = {
            **measure(cell, names, arguments.repeats, number, console, device),
            "environment": environment,
        }
        if arguments.out is not None:
            write_record(arguments.out, record)
    summarise(record, console)


if __name__ == "__main__":
    main()
