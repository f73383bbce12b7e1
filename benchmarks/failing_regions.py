"""Ten problems in which every evaluation of a region fails: how many evaluations an optimiser loses
to it, and what it finds.

    python benchmarks/failing_regions.py auto optuna-tpe botorch-qlognei --out results/failing.json

The regions are half-spaces, corners, a band, a ring and a ball around the optimum, 5 to 50 % of the
box. An optimiser of the league has 60 evaluations by fives; failures count after the first 20.
Regret is what its best value lies below the largest of 20 000 random points that succeed, and so
may be negative. Runs that the record has are not repeated.
"""

import json
import math
import time
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import torch

from benchmarks.league.base import Optimiser
from benchmarks.league.botorch_peers import ExpectedImprovementSearch
from benchmarks.league.registry import OPTIMISERS, make_optimiser
from benchmarks.scripts import script_parser, write_benchmark
from scalable_bo.space.space import Float, Space

WORST = "botorch-qlognei-worst"  # which takes failures for the worst value so far
Function = Callable[[np.ndarray], Any]  # of points (n, d)


def drawn(dim: int, seed: int) -> Function:
    generator = np.random.default_rng(seed)
    waves = 3.0 * generator.normal(size=(40, dim))
    phases = generator.uniform(0.0, 2.0 * np.pi, 40)
    amplitudes = generator.normal(size=40) * math.sqrt(2.0 / 40)
    return lambda X: np.cos(X @ waves.T + phases) @ amplitudes


def distance(X: np.ndarray, *centre: float) -> np.ndarray:
    return np.linalg.norm(X - np.array(centre), axis=1)


# The number of inputs, a function of points (n, d) of the unit cube to maximise, where it fails
PROBLEMS: dict[str, tuple[int, Function, Function]] = {
    "half-space, rising": (
        *(3, lambda X: X[:, 2] + 0.5 * X[:, 0] - (X[:, 1] - 0.4) ** 2),
        lambda X: X[:, 2] > 0.8,
    ),
    "corner, rising": (2, lambda X: X.sum(1), lambda X: (X > 0.7).all(1)),
    "oblique": (3, lambda X: X[:, 0] + X[:, 1] - X[:, 2] ** 2, lambda X: X[:, 0] + X[:, 1] > 1.4),
    "band": (2, lambda X: -(distance(X, 0.3, 0.6) ** 2), lambda X: abs(X[:, 0] - 0.55) < 0.1),
    "ball": (2, lambda X: -(distance(X, 0.5, 0.5) ** 2), lambda X: distance(X, 0.5, 0.5) < 0.2),
    "half-space, draw": (4, drawn(4, 1), lambda X: X[:, 0] > 0.6),
    "ring, draw": (2, drawn(2, 2), lambda X: abs(distance(X, 0.5, 0.5) - 0.3) < 0.06),
    "corner, draw": (6, drawn(6, 3), lambda X: (X[:, 0] > 0.6) & (X[:, 1] > 0.5)),
    "5 %, rising": (2, lambda X: X[:, 0] + 0.3 * X[:, 1], lambda X: X[:, 0] > 0.95),
    "50 %, rising": (
        *(5, lambda X: X[:, 0] - 0.1 * ((X[:, 1:] - 0.5) ** 2).sum(1)),
        lambda X: X[:, 0] > 0.5,
    ),
}


def evaluate(problem: str, X: np.ndarray) -> np.ndarray:
    """Return the values (n,) of points, NaN where evaluations fail."""
    _, value, fails = PROBLEMS[problem]
    return np.where(fails(X), math.nan, value(X))


def run_problem(problem: str, optimiser: str, seed: int) -> dict[str, Any]:
    """Return the account of an optimiser's run."""
    dim = PROBLEMS[problem][0]
    start = time.process_time()
    space = Space(**{f"x{i}": Float(0.0, 1.0) for i in range(dim)})
    if optimiser == WORST:
        search: Optimiser = ExpectedImprovementSearch(space, seed, 5, failed="worst")
    else:
        search = make_optimiser(optimiser, space, seed, 5)
    values = np.empty(0)
    while len(values) < 60:
        X = search.ask(5)
        values = np.concatenate([values, evaluate(problem, X.numpy())])
        search.tell(X, torch.from_numpy(-values[-5:]))  # the league minimises
    best = np.nanmax(evaluate(problem, np.random.default_rng(0).random((20_000, dim))))
    return {
        "problem": problem,
        "optimiser": optimiser,
        "seed": seed,
        "failed": int(np.isnan(values[20:]).sum()),
        "regret": float(best - np.nanmax(values)),
        "seconds": round(time.process_time() - start, 2),
    }


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("optimisers", nargs="+", choices=(*OPTIMISERS, WORST))
    args = parser.parse_args()
    runs = json.loads(args.out.read_text())["runs"] if args.out and args.out.exists() else []
    done = {(row["problem"], row["optimiser"], row["seed"]) for row in runs}
    for seed, problem, name in product(range(2), PROBLEMS, args.optimisers):
        if (problem, name, seed) not in done:
            runs.append(run_problem(problem, name, seed))
            print(*runs[-1].values(), sep=", ")
            write_benchmark(args.out, "failing_regions", runs=runs)


if __name__ == "__main__":
    main()
