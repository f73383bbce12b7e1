"""Seconds and epochs that each solver needs for residuals of 1e-1, 1e-2 and 1e-3, over systems easy and hard.

    python benchmarks/solver_sweep.py --sizes 2000,5000 --fraction 6 --out benchmarks/results/solver_sweep.json

The design crosses size, inputs, dimension, lengthscale, noise and columns, and takes every ``fraction``-th cell, in an order that is shuffled
by a fixed seed. Inputs are uniform on the unit cube, or half uniform and half clustered as Thompson rounds leave them: maximisers of
posterior paths, a tenth of the data a round. Right-hand sides are a noisy target and noisy prior draws. Every solver runs once to 1e-3,
where its own estimate of the worst column says when the larger residuals were passed, and ``--repeats`` times to 1e-2 on its own, of which
the median counts. A finished cell is not run again.
"""

import argparse
import itertools
import json
import random
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from gpytorch.kernels import MaternKernel
from rich.console import Console
from torch import Tensor

from acquisition import ParallelThompsonSampling
from scalable_bo.experiments.models import fixed_model
from scalable_bo.experiments.records import describe_environment, write_record
from surrogates import CG, SDD, Auto, Cholesky, KernelSystem, PriorPaths, Progress, SketchAndProject, Solver, kernel_operator

TOLERANCES = (1e-1, 1e-2, 1e-3)
COMPARED = 1e-2
CLUSTER_ROUNDS = 5
CLUSTER_MODEL = 1000  # points that the path maximisers of the clustered inputs are conditioned on
OUT_OF_REACH = 4.0  # a solver is stopped after so many times the seconds of the direct solve


@dataclass(frozen=True)
class Cell:
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


def design(sizes: list[int], fraction: int) -> list[Cell]:
    """Return every ``fraction``-th of the shuffled cells of each size."""
    chosen = []
    for n in sizes:
        levels = itertools.product([n], ["uniform", "clustered"], [2, 8, 20], [0.1, 0.5, 2.0, 3.0], [1e-6, 1e-2, 1e-1], [1, 64, 1000])
        cells = [Cell(*level) for level in levels]
        random.Random(n).shuffle(cells)
        chosen += cells[::fraction]
    return chosen


def solvers(n: int) -> dict[str, Any]:
    """Return what makes each solver from a tolerance and a budget of seconds."""
    blocks = {"block_size": n // 5}
    return {
        "cholesky": lambda **budget: Cholesky(),
        "cg": lambda **budget: CG(**budget),
        "cg-plain": lambda **budget: CG(None, **budget),
        "sdd": lambda **budget: SDD(**budget),
        "sap": lambda **budget: SketchAndProject.sap(**blocks, **budget),
        "asap": lambda **budget: SketchAndProject.asap(**blocks, **budget),
        "adasap": lambda **budget: SketchAndProject.adasap(**blocks, **budget),
        "auto": lambda **budget: Auto(**budget),
    }


def inputs(cell: Cell, generator: torch.Generator) -> Tensor:
    X = torch.rand(cell.n, cell.dim, generator=generator)
    if cell.kind == "uniform":
        return X
    kernel = kernel_of(cell).double()
    bounds = torch.tensor([[0.0] * cell.dim, [1.0] * cell.dim], dtype=torch.float64)
    target = PriorPaths.draw(kernel, cell.dim, 1, num_features=2000, generator=generator, like=bounds)
    X = X[: cell.n // 2].double()
    while len(X) < cell.n:
        values = target(X)[0]
        best = values.topk(min(len(X), CLUSTER_MODEL // 2)).indices
        known = torch.cat([best, torch.randperm(len(X), generator=generator)[: CLUSTER_MODEL // 2]]).unique()
        model = fixed_model(X[known], values[known], kernel, max(cell.noise, 1e-6), Cholesky(), num_features=500)
        sampler = ParallelThompsonSampling(model, bounds, num_candidates=1000, num_rounds=3, num_starts=1, num_steps=30, seed=len(X))
        X = torch.cat([X, sampler.generate(min(cell.n // (2 * CLUSTER_ROUNDS), cell.n - len(X)))])
    return X[torch.randperm(cell.n, generator=generator)].float()


def kernel_of(cell: Cell) -> MaternKernel:
    kernel = MaternKernel(nu=1.5)
    kernel.lengthscale = cell.lengthscale
    return kernel.requires_grad_(False)


def measure(cell: Cell, repeats: int, seed: int, console: Console, names: list[str] | None) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    X = inputs(cell, generator)
    prior = PriorPaths.draw(kernel_of(cell), cell.dim, cell.s, num_features=2000, generator=generator, like=X)
    B = (prior(X) + cell.noise**0.5 * torch.randn(cell.s, cell.n, generator=generator)).T.contiguous()

    def solve(make: Any, tolerance: float, max_seconds: float | None) -> dict[str, Any]:
        trace: list[Progress] = []
        started = time.perf_counter()  # the kernel matrix, kept or not, is part of the work
        system = KernelSystem(kernel_operator(kernel_of(cell), X), cell.noise)
        solver: Solver = make(tolerance=tolerance, max_epochs=200.0, max_seconds=max_seconds)
        solution = solver.solve(system, B, callback=trace.append)
        seconds = time.perf_counter() - started
        return {
            "residual": solution.residual.max().item(),
            "epochs": solution.epochs,
            "seconds": seconds,
            "note": solution.note,
            "passed": {
                f"{level:g}": next(({"epochs": p.epochs, "seconds": p.seconds} for p in trace if p.residual <= level), None)
                for level in TOLERANCES
            },
        }

    results: dict[str, Any] = {}
    limit = None
    for name, make in solvers(cell.n).items():
        if names is not None and name not in names and name != "cholesky":
            continue
        # In turn, so that no run is the first to touch memory or compile; the direct solve says what is worth waiting for.
        solve(make, COMPARED, limit)
        if name == "cholesky":
            runs = [solve(make, COMPARED, None) for _ in range(repeats)]
            limit = OUT_OF_REACH * statistics.median(run["seconds"] for run in runs)
            results[name] = {"to_1e-2": runs}
        else:
            results[name] = {"to_1e-2": [solve(make, COMPARED, limit) for _ in range(repeats)], "to_1e-3": solve(make, 1e-3, limit)}
        runs = results[name]["to_1e-2"]
        console.print(
            f"  {name:9s} {statistics.median(r['seconds'] for r in runs):7.2f} s  residual {runs[0]['residual']:.1e} "
            f"{runs[0]['epochs']:6.1f} epochs  {runs[0]['note']}",
            soft_wrap=True,
            highlight=False,
        )
    return {"cell": asdict(cell), "solvers": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="2000", help="2000,5000,20000")
    parser.add_argument("--fraction", type=int, default=6, help="take one of so many cells")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--solvers", default=None, help="only these and cholesky")
    parser.add_argument("--out", type=Path, default=None, help="JSON record; finished cells in it are kept")
    arguments = parser.parse_args()
    console, cells = Console(), design([int(n) for n in arguments.sizes.split(",")], arguments.fraction)
    record = {"benchmark": "solver_sweep", "repeats": arguments.repeats, "cells": {}}
    if arguments.out is not None and arguments.out.exists():
        record = json.loads(arguments.out.read_text())
    names = None if arguments.solvers is None else arguments.solvers.split(",")
    for number, cell in enumerate(cells):
        if cell.name in record["cells"]:
            continue
        console.print(f"{number + 1}/{len(cells)} {cell.name}", highlight=False)
        record["cells"][cell.name] = measure(cell, arguments.repeats, number, console, names)
        record["environment"] = describe_environment(torch.device("cpu"))
        if arguments.out is not None:
            write_record(arguments.out, record)


if __name__ == "__main__":
    main()
