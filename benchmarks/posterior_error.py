"""How far the posteriors of iterative solvers are from the exact one, and what the solvers say of
it.

    python benchmarks/posterior_error.py --size 1200 --cells 24 --solvers auto-iterative,cg,asap \\
        --out benchmarks/results/posterior_error.json
    python benchmarks/posterior_error.py --summary --out benchmarks/results/posterior_error.json

The design crosses dimension, smoothness, lengthscale, noise, layout and dtype; ``--cells`` of its
cells are taken in an order that is shuffled by a fixed seed. Every cell draws its data and 256
paths from the prior. A solver runs with its own settings, and the mean and the paths that come out
are held against a Cholesky factorisation in float64 at 300 new points anywhere and 300 beside the
clusters, or else beside data: the errors are root mean squares in posterior standard deviations,
variances ratios of the paths' to the exact ones of the same draws. A finished cell is not run
again.
"""

import itertools
import random
import time
import warnings
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from torch import Tensor

from benchmarks.scripts import script_parser
from scalable_bo.experiments.records import describe_environment, existing_record, write_record
from surrogates import (
    Auto,
    KernelSystem,
    Solver,
    UnsolvedWarning,
    kernel_operator,
)
from surrogates.solvers.accuracy import PosteriorError
from surrogates.solvers.registry import make_solver
from surrogates.systems.system import Targets


@dataclass(frozen=True)
class Cell:
    """Data drawn from a prior; ``share`` of them lie in clusters."""

    n: int
    dim: int
    nu: float | None
    lengthscale: float
    noise: float
    share: float
    dtype: str

    @property
    def name(self) -> str:
        kernel = "rbf" if self.nu is None else f"matern{self.nu:g}"
        return (
            f"n{self.n}-d{self.dim}-{kernel}-l{self.lengthscale:g}-v{self.noise:g}"
            f"-c{self.share:g}-{self.dtype}"
        )

    @property
    def kernel(self) -> Kernel:
        kernel = RBFKernel() if self.nu is None else MaternKernel(self.nu)
        kernel.lengthscale = self.lengthscale
        return kernel.double()


def design(n: int) -> list[Cell]:
    """Return all cells of n points, shuffled."""
    levels = itertools.product(
        [1, 2, 3, 4, 8],
        [0.5, 1.5, 2.5, None],
        [0.2, 0.5, 1.0, 2.0],
        [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1],
        [0.0, 0.3],
        ["float32", "float64"],
    )
    cells = [Cell(n, *level) for level in levels]
    random.Random(0).shuffle(cells)
    return cells


class Exact:
    """A cell's data and draws, and what its posterior is.

    Args:
        cell: what is drawn.
        num_paths: draws from the prior.
        num_new: points to compare at, anywhere, and as many beside the clusters.
        width: standard deviation of a cluster.
    """

    def __init__(self, cell: Cell, num_paths: int = 256, num_new: int = 300, width: float = 0.03):
        n, dim = cell.n, cell.dim
        generator = torch.Generator().manual_seed(0)
        double: Any = {"generator": generator, "dtype": torch.float64}
        X = torch.rand(n, dim, **double)
        num = int(cell.share * n)
        centres = torch.rand(15, dim, **double)
        own = torch.randint(15, (num,), generator=generator)
        X[:num] = (centres[own] + width * torch.randn(num, dim, **double)).clamp(0.0, 1.0)
        beside = X[torch.randint(num or n, (num_new,), generator=generator)]
        beside = (beside + width * torch.randn(num_new, dim, **double)).clamp(0.0, 1.0)
        new = torch.cat([torch.rand(num_new, dim, **double), beside])
        # The draws are exact, too, but for what rounds the joint covariance
        joint = cell.kernel(torch.cat([X, new])).to_dense().detach()
        H = joint[:n, :n] + cell.noise * torch.eye(n, dtype=torch.float64)
        self.cross = joint[n:, :n].clone()
        joint.diagonal().add_(1e-10)
        prior = torch.linalg.cholesky(joint) @ torch.randn(len(joint), 1 + num_paths, **double)
        del joint
        noise = cell.noise**0.5 * torch.randn(n, 1 + num_paths, **double)
        values = prior[:n].clone()
        values[:, 0] += noise[:, 0]
        noise[:, 0] = 0.0
        self.X = X
        self.targets = Targets(values, noise)
        self.prior = prior[n:]
        root = torch.linalg.cholesky(H)
        del H
        self.weights = torch.cholesky_solve(values + noise, root)
        explained = torch.linalg.solve_triangular(root, self.cross.T, upper=False).square().sum(0)
        # A variance that rounding has taken cannot be a unit
        self.variance = (1.0 - explained).clamp_min(1e-9)

    def compare(self, W: Tensor) -> dict[str, float]:
        """Return the true errors of weights W, anywhere and beside data, and the ratios of
        variances.
        """
        squares = (self.cross @ (W.double() - self.weights)).square() / self.variance.unsqueeze(1)
        deviations = [(self.prior - self.cross @ w)[:, 1:] for w in (W.double(), self.weights)]
        variances, exact = (part.square().mean(1) for part in deviations)
        found = {}
        halves = squares.chunk(2), (variances / exact).chunk(2)
        for place, own, ratio in zip(("anywhere", "beside"), *halves, strict=True):
            found[f"mean_{place}"] = own[:, 0].mean().sqrt().item()
            found[f"paths_{place}"] = own[:, 1:].mean().sqrt().item()
            found[f"variance_{place}"] = ratio.mean().item()
        return found


def account_of(cell: Cell, exact: Exact, solver: Solver) -> dict[str, Any]:
    """Return what ``solver`` says of its solution of ``cell``, and what is true."""
    dtype = getattr(torch, cell.dtype)
    system = KernelSystem(kernel_operator(cell.kernel.to(dtype), exact.X.to(dtype)), cell.noise)
    targets = exact.targets.to(dtype)
    posterior = PosteriorError.for_targets(system, targets)
    rhs = targets if solver.splits_targets else system.rhs(targets)
    clock, processor = time.perf_counter(), time.process_time()
    solution = solver.solve(system, rhs, posterior=posterior)
    spent = {"seconds": time.perf_counter() - clock, "processor": time.process_time() - processor}
    assert solution.error is not None  # told for a posterior
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UnsolvedWarning)
        solution.warn_if_unsolved("The paths")
    return {
        "stated_mean": solution.error[0].item(),
        "stated_paths": solution.error[1:].square().mean().sqrt().item(),
        "residual": solution.residual.max().item(),
        "warned": bool(caught),
        "epochs": solution.epochs,
        "note": solution.note,
        **spent,
        **exact.compare(solution.value),
    }


def summarise(record: dict[str, Any]) -> None:
    """Print of each solver how many cells are right, and what is wrong about the others."""
    found = record["cells"].items()
    for name in dict.fromkeys(name for _, entry in found for name in entry["solvers"]):
        runs = {cell: entry["solvers"][name] for cell, entry in found if name in entry["solvers"]}
        true = {cell: max(run["paths_anywhere"], run["paths_beside"]) for cell, run in runs.items()}
        told = {cell: runs[cell]["stated_paths"] / max(true[cell], 1e-3) for cell in runs}
        wrong = [c for c in runs if true[c] > 0.2 and not runs[c]["warned"]]
        misjudged = [c for c in runs if not 0.5 <= told[c] <= 3.0 and true[c] > 0.01]
        print(
            f"{name}: {len(runs)} cells, {sum(r['warned'] for r in runs.values())} with a warning;"
            f" beyond 0.2 without one: {wrong}; stated over true, beyond 0.5 … 3 where the error"
            f" exceeds 0.01: {misjudged}; epochs {fmean(r['epochs'] for r in runs.values()):.1f},"
            f" processor seconds {fmean(r['processor'] for r in runs.values()):.1f} in the mean"
        )


def main() -> None:
    parser = script_parser(__doc__, "JSON record; finished cells in it are kept")
    parser.add_argument("--size", type=int, default=5000, help="n")
    parser.add_argument("--cells", type=int, default=40, help="how many of the shuffled cells")
    parser.add_argument("--solvers", default="auto,auto-iterative,cg,asap,sdd")
    summary = "only summarise what the record holds"
    parser.add_argument("--summary", action="store_true", help=summary)
    arguments = parser.parse_args()
    found = None if arguments.out is None else existing_record(arguments.out)
    record = found or {"benchmark": "posterior_error", "cells": {}}
    environment = describe_environment(torch.device("cpu"))
    solvers = {
        name: Auto(direct=False) if name == "auto-iterative" else make_solver(name)
        for name in arguments.solvers.split(",")
    }
    for cell in [] if arguments.summary else design(arguments.size)[: arguments.cells]:
        entry = record["cells"].setdefault(cell.name, {"solvers": {}, "environment": environment})
        missing = [name for name in solvers if name not in entry["solvers"]]
        exact = Exact(cell) if missing else None
        for name in missing:
            assert exact is not None
            run = entry["solvers"][name] = account_of(cell, exact, solvers[name])
            print(
                f"{cell.name} {name}: stated {run['stated_paths']:.3f}, true"
                f" {run['paths_anywhere']:.3f} and {run['paths_beside']:.3f}, variances"
                f" {run['variance_anywhere']:.2f} and {run['variance_beside']:.2f},"
                f" {run['epochs']:.1f} epochs, {run['processor']:.1f} s",
                flush=True,
            )
            if arguments.out is not None:
                write_record(arguments.out, record)
    summarise(record)


if __name__ == "__main__":
    main()
