"""What a round of Thompson sampling may take over from the last, as its data grow: in cost, in
statistics and in what is found.

    python benchmarks/warm_starts.py --seeds 0,1,2,3 --out benchmarks/results/warm_starts.json

Every round of parallel Thompson sampling solves (K + Σ) v = y for the mean and (K + Σ) a = f(X) + ε
for q prior functions f. Compared are

* ``zero``: fresh functions, from zero;
* ``mean-block``: fresh functions from zero, the mean from its last weights, with those of new
  points from a solve of their own rows: what a study does;
* ``kept-block``: the functions and noise of the last round, evaluated at the new points too, from
  their old weights and a solve of the new rows.

Every start meets the same target, initial data and noise. Recorded are the best value found, the
epochs, the mean distance between the points of a batch, the mean maximum of the last paths less
that of fresh paths on the same data, and z = (path − mean) / standard deviation of the exact
posterior, of which fresh paths are draws: at uniform points, and a tenth of a lengthscale from the
points that the same path (``own``) or another (``others``) chose.

References:
    Dong, Lin, Hernández-Lobato (2025), "Warm-Starting Iterative Gaussian Processes for Faster
    Sequential Inference", for functions that are kept.
"""

import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import torch
from gpytorch.kernels import Kernel
from gpytorch.means import ZeroMean
from torch import Tensor

from acquisition import ParallelThompsonSampling
from scalable_bo.experiments.formats import mean_and_error, plus_minus
from scalable_bo.experiments.models import fixed_model, matern_kernel
from scalable_bo.experiments.problems import GPPrior
from scalable_bo.experiments.records import describe_environment, write_record
from scalable_bo.experiments.scripts import print_rows, script_parser
from surrogates import (
    CG,
    SDD,
    Auto,
    Cholesky,
    KernelSystem,
    PriorPaths,
    SamplePaths,
    SketchAndProject,
    Solution,
    Solver,
)
from surrogates.functions.draws import standard_normal
from surrogates.operators.differentiable import KernelBasis
from surrogates.operators.kernel_matrix import kernel_operator
from surrogates.solvers.accuracy import PosteriorError
from surrogates.solvers.growing import extended
from surrogates.systems.base import Targets

DIM = 8
NOISE = 1e-6
Q = 100
NUM_FEATURES = 2048
SOLVERS: dict[str, Callable[[float | None], Solver]] = {
    "asap": lambda tolerance: SketchAndProject.asap(tolerance=tolerance),
    "cg": lambda tolerance: CG(tolerance=tolerance),
    "sdd": lambda tolerance: SDD(tolerance=tolerance),
    "auto": lambda tolerance: Auto(tolerance=tolerance),
    "cholesky": lambda tolerance: Cholesky(),
}
BESIDE = 0.1  # lengthscales from a path's earlier maximisers
NUM_UNIFORM = 20  # uniform points a path
STATISTICS = (
    "uniform_square",
    "own_mean",
    "own_square",
    "others_square",
    "maximum_less_fresh",
    "distance",
)


class Start(NamedTuple):
    """What a round takes over from the last.

    Attributes:
        keeps_functions: whether it has the same functions and noise.
        keeps_weights: whether the last weights go on: of all columns, or of the mean's alone where
            the functions are fresh.
    """

    keeps_functions: bool = False
    keeps_weights: bool = False


STARTS = {
    "zero": Start(),
    "mean-block": Start(keeps_weights=True),
    "kept-block": Start(keeps_functions=True, keeps_weights=True),
}


class Method(NamedTuple):
    """A solver of ``SOLVERS``, a start of ``STARTS``, and the relative residual to reach; 0 for the
    solver's default error of the posterior.
    """

    solver: str
    tolerance: float
    start: str

    def make_solver(self) -> Solver:
        return SOLVERS[self.solver](self.tolerance or None)


class Solve(NamedTuple):
    """The solve of a round: its system, right-hand sides (n, 1 + q), start, result, seconds."""

    system: KernelSystem
    B: Tensor
    initial: Tensor | None
    solution: Solution
    seconds: float


@dataclass
class Columns:
    """The mean, q prior functions and their noise at the data, with their last weights."""

    kernel: Kernel
    start: Start
    generator: torch.Generator
    prior: PriorPaths | None = field(default=None, init=False)
    noise: Tensor = field(init=False)  # (n, q)
    weights: Tensor | None = field(default=None, init=False)  # (n, 1 + q) of the last round

    def solve(self, X: Tensor, y: Tensor, solver: Solver) -> Solve:
        """Return the solve of the next round."""
        values = torch.cat([y.unsqueeze(1), self.functions_at(X)], dim=1)
        noise = torch.cat([torch.zeros_like(values[:, :1]), self.noise], dim=1)
        B = values + noise
        system = system_of(self.kernel, X)
        began = time.process_time()
        initial = self.initial(system, B)
        posterior = PosteriorError.for_targets(system, Targets(values, noise))
        solution = solver.solve(
            system,
            B,
            initial=initial,
            generator=torch.Generator().manual_seed(len(X)),
            posterior=posterior,
        )
        seconds = time.process_time() - began
        self.weights = solution.value
        return Solve(system, B, initial, solution, seconds)

    def functions_at(self, X: Tensor) -> Tensor:
        """Return f(X) of the round's functions, (n, q), and extend their noise ε to X."""
        if self.prior is None or not self.start.keeps_functions:
            self.prior = PriorPaths.draw(
                self.kernel, DIM, Q, num_features=NUM_FEATURES, generator=self.generator, like=X
            )
            self.noise = X.new_empty(0, Q)
        new = math.sqrt(NOISE) * standard_normal((len(X) - len(self.noise), Q), X, self.generator)
        self.noise = torch.cat([self.noise, new])
        return self.prior(X).T

    def initial(self, system: KernelSystem, B: Tensor) -> Tensor | None:
        """Return the weights (n, 1 + q) that the solve starts from; ``None`` for zeros."""
        if self.weights is None or not self.start.keeps_weights:
            return None
        taken = slice(None if self.start.keeps_functions else 1)
        W = torch.zeros_like(B)
        W[:, taken] = extended(system, B[:, taken], self.weights[:, taken])
        return W

    def paths(self, X: Tensor, y: Tensor, solver: Solver) -> tuple[SamplePaths, Solution]:
        """Return the round's functions conditioned on y at X."""
        solution = self.solve(X, y, solver).solution
        v = solution.value[:, :1]
        a = solution.value[:, 1:]
        data = KernelBasis(self.kernel, X)
        return SamplePaths(self.prior, data, v - a, v, ZeroMean()), solution


@dataclass
class Run:
    """Thompson rounds: the data after them, the best value before and after each, their batches,
    the epochs of their solves, and paths on all data.
    """

    kernel: Kernel
    X: Tensor
    y: Tensor
    best: list[float]
    batches: list[Tensor]
    epochs: list[float]
    paths: SamplePaths


def run_rounds(
    n: int,
    lengthscale: float,
    rounds: int,
    seed: int,
    *,
    start: Start = STARTS["zero"],
    solver: Solver | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device,
) -> Run:
    """Run Thompson rounds from n uniform points; every start meets the same target, data and noise.

    Args:
        solver: of the rounds; exact if ``None``.
    """
    solver = Cholesky() if solver is None else solver
    streams = [torch.Generator().manual_seed(1000 * seed + i) for i in range(4)]
    kernel = matern_kernel(lengthscale, 1.0).to(device, dtype)
    target = GPPrior(
        kernel,
        DIM,
        noise=NOISE,
        num_features=5000,
        generator=streams[0],
        dtype=dtype,
        device=device,
    )
    X = torch.rand(n, DIM, generator=streams[1], dtype=dtype).to(device)
    values = target(X)
    y = target.add_noise(values, streams[2])
    best = [float(values.max())]
    batches = []
    epochs = []
    columns = Columns(kernel, start, streams[3])
    for number in range(rounds):
        paths, solution = columns.paths(X, y, solver)
        batch = maximisers(paths, X, y, kernel, 1000 * seed + number)
        values = target(batch)
        X = torch.cat([X, batch])
        y = torch.cat([y, target.add_noise(values, streams[2])])
        best.append(max(best[-1], float(values.max())))
        batches.append(batch)
        epochs.append(solution.epochs)
    return Run(kernel, X, y, best, batches, epochs, columns.paths(X, y, solver)[0])


def maximisers(paths: SamplePaths, X: Tensor, y: Tensor, kernel: Kernel, seed: int) -> Tensor:
    """Return a batch by a cheap search: 4 times 2000 candidates, two starts a path, 30 steps."""
    model = fixed_model(X, y, kernel, NOISE, Cholesky())
    bounds = torch.tensor([[0.0], [1.0]]).to(X).repeat(1, DIM)
    search = ParallelThompsonSampling(
        model, bounds, num_candidates=2000, num_rounds=4, num_starts=2, num_steps=30, seed=seed
    )
    return search.generate(Q, paths=paths)


def system_of(kernel: Kernel, X: Tensor) -> KernelSystem:
    return KernelSystem(kernel_operator(kernel, X), NOISE)


def rounds_of(
    n: int,
    lengthscale: float,
    num_rounds: int,
    seed: int,
    *,
    start: str,
    solver: Solver,
    device: torch.device,
) -> dict[str, Any]:
    """Return what Thompson rounds found, and the statistics of the paths after the last."""
    run = run_rounds(
        n, lengthscale, num_rounds, seed, start=STARTS[start], solver=solver, device=device
    )
    found = {"best": run.best, "epochs": run.epochs}
    return found | statistics_of(run, lengthscale, seed)


def statistics_of(run: Run, lengthscale: float, seed: int) -> dict[str, float]:
    """Return mean, mean square and share beyond 1.96 of z at three kinds of points, the mean
    maximum less that of fresh paths, and the mean distance within the batches, in lengthscales.
    """
    generator = torch.Generator().manual_seed(seed)
    own = torch.stack(run.batches, dim=1)  # (q, rounds, d)
    step = torch.nn.functional.normalize(
        torch.randn(own.shape, generator=generator, dtype=own.dtype).to(own.device), dim=-1
    )
    beside = own + BESIDE * lengthscale * step
    uniform = torch.rand(Q, NUM_UNIFORM, DIM, generator=generator, dtype=own.dtype)
    uniform = uniform.to(own.device)
    moments: dict[str, float] = {}
    with torch.no_grad():
        factor = torch.linalg.cholesky(system_of(run.kernel, run.X).to_dense())
        v = torch.cholesky_solve(run.y.unsqueeze(1), factor)
        for name, points in {
            "uniform": uniform,
            "own": beside,
            "others": beside.roll(1, 0),
        }.items():
            cross = run.kernel(run.X, points.reshape(-1, DIM)).to_dense()
            explained = torch.linalg.solve_triangular(factor, cross, upper=False).square().sum(0)
            mean = (cross.T @ v).reshape(points.shape[:2])
            # The prior variance is 1
            std = (1.0 - explained).sqrt().reshape(points.shape[:2])
            z = (run.paths.each(points) - mean) / std
            moments |= {f"{name}_mean": z.mean().item(), f"{name}_square": z.square().mean().item()}
            moments |= {f"{name}_outside": (z.abs() > 1.96).double().mean().item()}
    fresh = Columns(run.kernel, STARTS["zero"], generator)
    reference = fresh.paths(run.X, run.y, Cholesky())[0]
    distances = [torch.pdist(batch).mean().item() / lengthscale for batch in run.batches]
    return moments | {
        "maximum_less_fresh": (
            mean_maximum(run.paths, run, seed) - mean_maximum(reference, run, seed)
        ),
        "distance": statistics.fmean(distances),
    }


def mean_maximum(paths: SamplePaths, run: Run, seed: int) -> float:
    """Return the mean of the maxima of the paths, as far as the cheap search finds them."""
    points = maximisers(paths, run.X, run.y, run.kernel, seed)
    with torch.no_grad():
        return paths.each(points.unsqueeze(1)).mean().item()


def print_rounds(results: list[dict[str, Any]]) -> None:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for result in results:
        key = tuple(result[name] for name in ("lengthscale", "solver", "tolerance", "start"))
        groups.setdefault(key, []).append(result)
    rows = []
    for (lengthscale, solver, tolerance, start), group in sorted(groups.items()):
        values = [
            [result["best"][-1] for result in group],
            [statistics.fmean(result["epochs"][1:]) for result in group],
            *([result[statistic] for result in group] for statistic in STATISTICS),
        ]
        words = [f"{lengthscale:g}", f"{solver} {tolerance:g}", start]
        rows.append(words + [plus_minus(*mean_and_error(value), 2) for value in values])
    print_rows(
        "Rounds (mean ± standard error over seeds)",
        ("lengthscale", "solver", "start", "best", "epochs", *STATISTICS),
        rows,
        num_words=3,
    )


def main() -> None:
    parser = script_parser(__doc__, "JSON record; what it has already is not run again")
    parser.add_argument("--initial", type=int, default=2000, help="points before the first round")
    parser.add_argument("--lengthscales", default="0.2,0.5,2")
    parser.add_argument("--solvers", default="asap,cg,sdd,auto,cholesky")
    parser.add_argument("--tolerances", default="0.01,0.1", help="0 for the posterior's error")
    parser.add_argument("--starts", default=",".join(STARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", default="0,1,2,3", help="separated by commas")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()

    def choices(name: str, kind: Callable[[str], Any] = str) -> list[Any]:
        return [kind(part) for part in getattr(arguments, name).split(",")]

    device = torch.device(arguments.device)
    record: dict[str, Any] = {"benchmark": "warm_starts", "rounds": []}
    if arguments.out is not None and arguments.out.exists():
        record = json.loads(arguments.out.read_text())
    record |= {"environment": describe_environment(device)}
    methods = product(choices("solvers"), choices("tolerances", float), choices("starts"))
    for seed, lengthscale, method in product(
        choices("seeds", int), choices("lengthscales", float), [Method(*m) for m in methods]
    ):
        run = {"n": arguments.initial, "num_rounds": arguments.rounds}
        run |= {"lengthscale": lengthscale, "seed": seed}
        settings = run | method._asdict()
        if any(settings.items() <= row.items() for row in record["rounds"]):
            continue
        found = rounds_of(**run, start=method.start, solver=method.make_solver(), device=device)
        record["rounds"].append(settings | found)
        if arguments.out is not None:
            write_record(arguments.out, record)
    print_rounds(record["rounds"])


if __name__ == "__main__":
    main()
