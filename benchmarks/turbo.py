"""TuRBO with batches of 100: Thompson batches of posterior paths, and BoTorch's way with a
SingleTaskGP, in one run.

    python benchmarks/turbo.py --problems ackley,levy --evaluations 1000 --seeds 2 \\
        --out benchmarks/results/turbo.json

Both methods meet the same functions (Ackley of 20 inputs, Levy of 50, on [-5, 10]; the optimum of
both is 0), initial points, kernel and rules of the trust region. `pathwise` fits a PathwiseGP to
neighbourhoods of the data, from the last round's hyperparameters, and ascends each path inside the
region. `botorch` is the way of BoTorch's TuRBO tutorial: the marginal likelihood of all data, and
joint draws at up to 5000 candidates. Both start anew from Sobol points when their region has shrunk
to nothing.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.generation.sampling import MaxPosteriorSampling
from botorch.models import SingleTaskGP
from botorch.test_functions.synthetic import Ackley, Levy, SyntheticTestFunction
from botorch.utils.sampling import draw_sobol_samples, manual_seed
from botorch.utils.transforms import unnormalize
from gpytorch.constraints import Interval
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from rich.console import Console
from torch import Tensor

from acquisition import ParallelThompsonSampling, TrustRegion
from scalable_bo.experiments.scripts import print_rows, script_parser, write_benchmark
from surrogates import PathwiseGP, fit_subsets

DTYPE = torch.float64
PROBLEMS: dict[str, Callable[[], SyntheticTestFunction]] = {
    "ackley": lambda: Ackley(dim=20, negate=True, bounds=[(-5.0, 10.0)] * 20),
    "levy": lambda: Levy(dim=50, negate=True, bounds=[(-5.0, 10.0)] * 50),
}
FIT: dict[str, Any] = {"num_subsets": 2, "subset_size": 500, "num_steps": 30}
SEARCH: dict[str, Any] = {"num_candidates": 5000, "num_rounds": 5, "num_starts": 5, "num_steps": 50}


class Pathwise:
    """Thompson batches by our paths; the hyperparameters of a round are where the next one's fit
    starts.
    """

    def __init__(self, dim: int) -> None:
        self.modules = prior(dim)

    def __call__(self, X: Tensor, Y: Tensor, region: TrustRegion, seed: int) -> Tensor:
        modules = {name: module.to(X) for name, module in self.modules.items()}
        model = fit_subsets(PathwiseGP(X, Y, **modules, seed=seed), **FIT)
        return ParallelThompsonSampling(
            model, unit_box(region.dim).to(X), trust_region=region, **SEARCH
        ).generate(region.batch_size)


def tutorial_batch(X: Tensor, Y: Tensor, region: TrustRegion, seed: int) -> Tensor:
    """Return a Thompson batch as BoTorch's tutorial makes it."""
    model = SingleTaskGP(X, Y, **prior(region.dim)).to(X)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    center = X[Y.argmax()]
    num_candidates = min(5000, max(2000, 200 * region.dim))
    corners = region.bounds(
        center,
        unit_box(region.dim).to(X),
        model.covar_module.base_kernel.lengthscale.detach().squeeze(0),
    )
    points = draw_sobol_samples(corners.cpu(), num_candidates, 1, seed=seed).squeeze(1)
    generator = torch.Generator().manual_seed(seed)
    changed = torch.rand(points.shape, generator=generator) < min(20 / region.dim, 1.0)
    one = torch.randint(region.dim, (num_candidates, 1), generator=generator)
    candidates = torch.where(changed.scatter(1, one, True).to(X.device), points.to(X), center)
    with torch.no_grad(), manual_seed(seed):
        return MaxPosteriorSampling(model, replacement=False)(
            candidates, num_samples=region.batch_size
        )


METHODS: dict[str, Callable[[int], Any]] = {
    "pathwise": Pathwise,
    "botorch": lambda dim: tutorial_batch,
}


def prior(dim: int) -> dict[str, Any]:
    kernel = ScaleKernel(
        MaternKernel(nu=2.5, ard_num_dims=dim, lengthscale_constraint=Interval(0.005, 4.0))
    )
    return {
        "covar_module": kernel.to(DTYPE),
        "likelihood": GaussianLikelihood(noise_constraint=Interval(1e-8, 1e-3)).to(DTYPE),
    }


def unit_box(dim: int) -> Tensor:
    return torch.tensor([[0.0], [1.0]], dtype=DTYPE).repeat(1, dim)


def optimise(
    name: str,
    method: str,
    seed: int,
    num_evaluations: int,
    num_initial: int,
    batch_size: int,
    device: torch.device,
) -> list[dict[str, float]]:
    """Return a row a round: evaluations, best value, region's length,
    seconds (process and wall) of proposing that round's batch on ``device``.
    """
    problem = PROBLEMS[name]()
    rounds: list[dict[str, float]] = []
    count = 0
    best = -float("inf")
    region: TrustRegion | None = None
    while count < num_evaluations:
        draw = 1000 * seed + len(rounds)
        wall = time.perf_counter()
        process = time.process_time()
        if region is None or region.restart:
            region = TrustRegion(problem.dim, batch_size)
            propose = METHODS[method](problem.dim)
            X = torch.zeros(0, problem.dim, dtype=DTYPE, device=device)
            Y = torch.zeros(0, 1, dtype=DTYPE, device=device)
            batch = draw_sobol_samples(unit_box(problem.dim), num_initial, 1, seed=draw).squeeze(1)
        else:
            batch = propose(X, Y, region, draw).cpu()  # which waits for the device
        wall = time.perf_counter() - wall
        process = time.process_time() - process
        values = problem(unnormalize(batch, torch.as_tensor(problem.bounds).to(batch))).unsqueeze(1)
        X = torch.cat([X, batch.to(device)])
        Y = torch.cat([Y, values.to(device)])
        region = region.update(values)
        count = count + len(batch)
        best = max(best, values.max().item())
        rounds.append(
            {
                "evaluations": count,
                "best": best,
                "length": region.length,
                "seconds": wall,
                "process_seconds": process,
            }
        )
    return rounds


def summarise(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for every problem and method: best values, mean seconds a run,
    and seconds of the last full round.
    """
    rows = []
    for name, method in dict.fromkeys((run["problem"], run["method"]) for run in runs):
        own = [run["rounds"] for run in runs if (run["problem"], run["method"]) == (name, method)]
        final = [rounds[-1] for rounds in own]
        rows.append(
            {
                "problem": name,
                "method": method,
                "evaluations": final[0]["evaluations"],
                "best": [last["best"] for last in final],
                "best_mean": statistics.fmean(last["best"] for last in final),
                "process_seconds": statistics.fmean(
                    sum(entry["process_seconds"] for entry in rounds) for rounds in own
                ),
                "process_seconds_last_round": statistics.fmean(
                    last["process_seconds"] for last in final
                ),
            }
        )
    return rows


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--problems", default=",".join(PROBLEMS))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--evaluations", type=int, default=1000)
    parser.add_argument("--initial", type=int, default=200, help="Sobol points of every start")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="of the surrogates of both methods")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    console = Console()
    runs = []
    for seed in range(arguments.seeds):
        for name in arguments.problems.split(","):
            for method in arguments.methods.split(","):
                rounds = optimise(
                    name,
                    method,
                    seed,
                    arguments.evaluations,
                    arguments.initial,
                    arguments.batch,
                    device,
                )
                runs.append({"problem": name, "method": method, "seed": seed, "rounds": rounds})
                total = sum(entry["process_seconds"] for entry in rounds)
                last = rounds[-1]
                line = (
                    f"{name} {method} seed {seed}: best {last['best']:.3f} after"
                    f" {last['evaluations']} evaluations, {total:.1f} s"
                )
                console.print(line, soft_wrap=True, highlight=False)
                settings = {key: value for key, value in vars(arguments).items() if key != "out"}
                write_benchmark(
                    arguments.out,
                    "turbo",
                    device=device,
                    settings=settings | {"fit": FIT, "search": SEARCH},
                    summary=summarise(runs),
                    runs=runs,
                )
    keys = ("process_seconds", "process_seconds_last_round")
    print_rows(
        f"{arguments.evaluations} evaluations in batches of {arguments.batch},"
        f" {arguments.seeds} seeds",
        ("problem", "method", "best", "processor s/run", "s/last round"),
        [
            [
                row["problem"],
                row["method"],
                f"{row['best_mean']:.3f}",
                *(f"{row[key]:.1f}" for key in keys),
            ]
            for row in summarise(runs)
        ],
        num_words=2,
    )


if __name__ == "__main__":
    main()
