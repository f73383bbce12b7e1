"""What the sample columns of a Thompson round may start from: in cost, in statistics and in what is
found.

    python benchmarks/warm_starts.py --parts cost,carrying --out benchmarks/results/warm_starts.json

Every round of parallel Thompson sampling solves (K + Σ) a = f(X) + ε anew for q prior functions f.
Compared are

* ``zero``: fresh functions, from zero;
* ``nystrom``, ``subset``: fresh functions, from a coarse solve whose set-up could be kept over the
  rounds (it is not charged for): P⁻¹B with the Nyström approximation P by n/10 columns, or the
  exact solve of the first n/4 points alone, and zero elsewhere;
* ``carried``: the functions and noise of the last round, evaluated at the new points too, from
  their old weights.

``cost`` gives epochs and processor seconds a round, on the same growing data, to a residual of
1e-2; a kept K is not charged for. ``carrying`` runs Thompson rounds with fresh and with carried
paths on the same target, initial data and noise: the best value found, the mean maximum of the last
paths less that of fresh paths on the same data, and z = (path − mean) / standard deviation of the
exact posterior, of which fresh paths are draws: at uniform points, and a tenth of a lengthscale
from the points that the same path (``own``) or another (``others``) chose.
"""

import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from gpytorch.kernels import Kernel
from gpytorch.means import ZeroMean
from torch import Tensor

from acquisition import ParallelThompsonSampling
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
    Nystrom,
    PriorPaths,
    SamplePaths,
    SketchAndProject,
    Solver,
)
from surrogates.functions.draws import standard_normal
from surrogates.operators.differentiable import KernelBasis
from surrogates.operators.kernel_matrix import kernel_operator

DIM = 8
NOISE = 1e-6
Q = 100
NUM_FEATURES = 2048
SOLVERS: dict[str, Solver] = {
    "asap": SketchAndProject.asap(),
    "cg": CG(),
    "sdd": SDD(),
    "auto": Auto(),
    "cholesky": Cholesky(),
}
STARTS = ("zero", "nystrom", "subset", "carried")
BESIDE = 0.1  # lengthscales from a path's earlier maximisers
STATISTICS = (
    "uniform_mean",
    "uniform_square",
    "own_mean",
    "own_square",
    "own_outside",
    "others_mean",
    "others_square",
    "maximum_less_fresh",
)


@dataclass
class Draws:
    """q prior functions and their noise at the data: new ones, or those of before,
    extended to further data.
    """

    kernel: Kernel
    generator: torch.Generator
    prior: PriorPaths | None = field(default=None, init=False)
    noise: Tensor = field(init=False)

    def at(self, X: Tensor, carry: bool) -> Tensor:
        """Return f(X) + ε, (n, q)."""
        if self.prior is None or not carry:
            self.prior = PriorPaths.draw(
                self.kernel, DIM, Q, num_features=NUM_FEATURES, generator=self.generator, like=X
            )
            self.noise = X.new_empty(0, Q)
        new = math.sqrt(NOISE) * standard_normal((len(X) - len(self.noise), Q), X, self.generator)
        self.noise = torch.cat([self.noise, new])
        return self.prior(X).T + self.noise

    def paths(self, X: Tensor, y: Tensor, carry: bool) -> SamplePaths:
        """Return the functions conditioned on y at X exactly."""
        B = torch.cat([y.unsqueeze(1), self.at(X, carry)], dim=1)
        weights = Cholesky().solve(system_of(self.kernel, X), B).value
        v = weights[:, :1]
        a = weights[:, 1:]
        return SamplePaths(self.prior, KernelBasis(self.kernel, X), v - a, v, ZeroMean())


@dataclass
class Run:
    """Thompson rounds: the data after them, the best value before and after each,
    their batches, and paths on all data.
    """

    kernel: Kernel
    X: Tensor
    y: Tensor
    best: list[float]
    batches: list[Tensor]
    paths: SamplePaths


def run_rounds(
    n: int,
    lengthscale: float,
    rounds: int,
    seed: int,
    *,
    carry: bool,
    dtype: torch.dtype = torch.float64,
    device: torch.device,
) -> Run:
    """Run Thompson rounds from n uniform points; either kind of paths meets the same target,
    data and noise.
    """
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
    draws = Draws(kernel, streams[3])
    for number in range(rounds):
        batch = maximisers(draws.paths(X, y, carry), X, y, kernel, 1000 * seed + number)
        values = target(batch)
        X = torch.cat([X, batch])
        y = torch.cat([y, target.add_noise(values, streams[2])])
        best.append(max(best[-1], float(values.max())))
        batches.append(batch)
    return Run(kernel, X, y, best, batches, draws.paths(X, y, carry))


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


def cost(
    n: int, lengthscale: float, rounds: int, seed: int, device: torch.device
) -> list[dict[str, Any]]:
    """Return epochs and seconds a round of every solver and start, from the second round on."""
    run = run_rounds(n, lengthscale, rounds, seed, carry=False, dtype=torch.float32, device=device)
    rows = []
    for solver in SOLVERS:
        for start in ("zero",) if solver == "cholesky" else STARTS:
            for row in solves(run, n, solver, start):
                rows.append(
                    {
                        "lengthscale": lengthscale,
                        "seed": seed,
                        "solver": solver,
                        "start": start,
                        **row,
                    }
                )
    return rows


@torch.no_grad()
def solves(run: Run, n: int, solver: str, start: str) -> list[dict[str, Any]]:
    """Return what the solve of every round took, from the first n points to all of them."""
    draws = Draws(run.kernel, torch.Generator().manual_seed(0))
    rows = []
    value = None
    for size in range(n, len(run.X) + 1, Q):
        X = run.X[:size]
        B = draws.at(X, carry=start == "carried")
        coarse = COARSE[start](system_of(run.kernel, X)) if start in COARSE else None
        system = system_of(run.kernel, X)
        began = time.process_time()
        initial = None
        if coarse is not None:
            initial = coarse(B)
        elif start == "carried" and value is not None:
            initial = torch.cat([value, value.new_zeros(Q, Q)])
        solution = SOLVERS[solver].solve(
            system, B, initial=initial, generator=torch.Generator().manual_seed(size)
        )
        seconds = time.process_time() - began
        value = solution.value
        gap = (
            1.0
            if initial is None
            else float((system.rows.norm(B - system @ initial) / system.rows.norm(B)).mean())
        )
        residual = float(solution.residual.max())
        rows.append(
            {
                "n": size,
                "start_residual": gap,
                "residual": residual,
                "epochs": solution.epochs,
                "seconds": seconds,
            }
        )
    return rows[1:]


def coarse_nystrom(system: KernelSystem) -> Callable[[Tensor], Tensor]:
    return Nystrom(system.n // 10)(system, torch.Generator().manual_seed(0))


def coarse_subset(system: KernelSystem) -> Callable[[Tensor], Tensor]:
    m = system.n // 4
    factor = torch.linalg.cholesky(system.block(torch.arange(m, device=system.device)))
    return lambda B: torch.cat([torch.cholesky_solve(B[:m], factor), torch.zeros_like(B[m:])])


COARSE = {"nystrom": coarse_nystrom, "subset": coarse_subset}


def compare_carried(
    n: int, lengthscale: float, rounds: int, seed: int, device: torch.device
) -> dict[str, Any]:
    """Return what fresh and carried paths found from one seed,
    and the statistics of the paths after the last round.
    """
    result: dict[str, Any] = {"n": n, "lengthscale": lengthscale, "rounds": rounds, "seed": seed}
    for name in ("fresh", "carried"):
        run = run_rounds(n, lengthscale, rounds, seed, carry=name == "carried", device=device)
        result[name] = {"best": run.best, **path_statistics(run, lengthscale, seed)}
    return result


def path_statistics(run: Run, lengthscale: float, seed: int) -> dict[str, float]:
    """Return mean, mean square and share beyond 1.96 of z at three kinds of points,
    and the mean maximum less that of fresh paths.
    """
    generator = torch.Generator().manual_seed(seed)
    own = torch.stack(run.batches, dim=1)  # (q, rounds, d)
    step = torch.nn.functional.normalize(
        torch.randn(own.shape, generator=generator, dtype=own.dtype).to(own.device), dim=-1
    )
    beside = own + BESIDE * lengthscale * step
    uniform = torch.rand(200, DIM, generator=generator, dtype=own.dtype).to(own.device)
    uniform = uniform.expand(Q, -1, -1)
    moments: dict[str, float] = {}
    with torch.no_grad():
        factor = torch.linalg.cholesky(system_of(run.kernel, run.X).to_dense())
        for name, points in {
            "uniform": uniform,
            "own": beside,
            "others": beside.roll(1, 0),
        }.items():
            cross = run.kernel(run.X, points.reshape(-1, DIM)).to_dense()
            explained = (
                torch.linalg.solve_triangular(factor, cross, upper=False)
                .square()
                .sum(0)
                .reshape(points.shape[:2])
            )
            # The prior variance is 1
            z = (run.paths.each(points) - run.paths.mean(points)) / (1.0 - explained).sqrt()
            moments |= {f"{name}_mean": z.mean().item(), f"{name}_square": z.square().mean().item()}
            moments |= {f"{name}_outside": (z.abs() > 1.96).double().mean().item()}
    reference = Draws(run.kernel, generator).paths(run.X, run.y, carry=False)
    return moments | {
        "maximum_less_fresh": (
            mean_maximum(run.paths, run, seed) - mean_maximum(reference, run, seed)
        )
    }


def mean_maximum(paths: SamplePaths, run: Run, seed: int) -> float:
    """Return the mean of the maxima of the paths, as far as the cheap search finds them."""
    points = maximisers(paths, run.X, run.y, run.kernel, seed)
    with torch.no_grad():
        return paths.each(points.unsqueeze(1)).mean().item()


def print_cost(rows: list[dict[str, Any]]) -> None:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        key = (row["num_initial"], row["lengthscale"], row["solver"], row["start"])
        groups.setdefault(key, []).append(row)
    numbers = (("start_residual", 2), ("epochs", 1), ("seconds", 2))
    print_rows(
        "A round's solve (medians)",
        ("n, lengthscale", "solver", "start", "starting residual", "epochs", "seconds"),
        [
            [
                f"{n}, {lengthscale:g}",
                solver,
                start,
                *(
                    f"{statistics.median(row[key] for row in group):.{digits}f}"
                    for key, digits in numbers
                ),
            ]
            for (n, lengthscale, solver, start), group in groups.items()
        ],
        num_words=6,
    )


def print_carrying(results: list[dict[str, Any]]) -> None:
    rows = []
    for lengthscale in sorted({result["lengthscale"] for result in results}):
        group = [result for result in results if result["lengthscale"] == lengthscale]
        for statistic in (*STATISTICS, "best"):
            fresh, carried = (
                [
                    result[kind][statistic][-1] if statistic == "best" else result[kind][statistic]
                    for result in group
                ]
                for kind in ("fresh", "carried")
            )
            difference = [c - f for c, f in zip(carried, fresh, strict=True)]
            values = map(with_error, (fresh, carried, difference))
            rows.append([f"{lengthscale:g}", statistic, *values])
    print_rows(
        "Carried paths beside fresh ones (mean ± standard error over seeds)",
        ("lengthscale", "statistic", "fresh", "carried", "difference"),
        rows,
        num_words=5,
    )


def with_error(values: list[float]) -> str:
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{statistics.fmean(values):.3f} ± {error:.3f}"


def main() -> None:
    parser = script_parser(__doc__, "JSON record; what it has already is not run again")
    parser.add_argument("--parts", default="cost,carrying")
    parser.add_argument("--sizes", default="2000,5000", help="initial points of the cost")
    parser.add_argument(
        "--initial", type=int, default=2000, help="initial points of the runs with carried paths"
    )
    parser.add_argument("--lengthscales", default="0.3,0.5")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seeds", type=int, default=10, help="of the runs with carried paths; the cost has one"
    )
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    lengthscales = [float(part) for part in arguments.lengthscales.split(",")]
    record: dict[str, Any] = {
        "benchmark": "warm_starts",
        "environment": describe_environment(device),
        "cost": [],
        "carrying": [],
    }
    if arguments.out is not None and arguments.out.exists():
        record = json.loads(arguments.out.read_text())

    def done(part: str, **settings: Any) -> bool:
        return any(settings.items() <= row.items() for row in record[part])

    def save() -> None:
        if arguments.out is not None:
            write_record(arguments.out, record)

    if "cost" in arguments.parts.split(","):
        for n in map(int, arguments.sizes.split(",")):
            for lengthscale in lengthscales:
                if not done("cost", num_initial=n, lengthscale=lengthscale):
                    record["cost"] += [
                        {"num_initial": n, **row}
                        for row in cost(n, lengthscale, arguments.rounds, 0, device)
                    ]
                    save()
        print_cost(record["cost"])
    if "carrying" in arguments.parts.split(","):
        for seed in range(arguments.seeds):
            for lengthscale in lengthscales:
                settings = {
                    "n": arguments.initial,
                    "rounds": arguments.rounds,
                    "lengthscale": lengthscale,
                    "seed": seed,
                }
                if not done("carrying", **settings):
                    record["carrying"].append(compare_carried(**settings, device=device))
                    save()
        print_carrying(record["carrying"])


if __name__ == "__main__":
    main()
