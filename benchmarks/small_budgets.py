"""Regret of a study after 60 evaluations, one by one and in batches of 5, beside Optuna's samplers.

Every run is a record in one JSON file, and runs that it holds are not repeated:

    python benchmarks/small_budgets.py --out benchmarks/results/small_budgets.json \
        --methods auto,thompson,optuna-gp --seeds 0-2
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from botorch.test_functions.synthetic import (
    Ackley,
    Branin,
    Griewank,
    Hartmann,
    Levy,
    Michalewicz,
    Powell,
    Rosenbrock,
    SixHumpCamel,
    StyblinskiTang,
    SyntheticTestFunction,
)

from scalable_bo import Study
from surrogates.atomic import write_atomically

BUDGET = 60
PROBLEMS: dict[str, Callable[[], SyntheticTestFunction]] = {
    "hartmann-6": lambda: Hartmann(dim=6),
    "branin": Branin,
    "rosenbrock-4": lambda: Rosenbrock(dim=4),
    "camel": SixHumpCamel,
    "levy-4": lambda: Levy(dim=4),
    "powell-4": lambda: Powell(dim=4),
    "styblinski-tang-4": lambda: StyblinskiTang(dim=4),
    "hartmann-3": lambda: Hartmann(dim=3),
    "ackley-5": lambda: Ackley(dim=5),
    "griewank-5": lambda: Griewank(dim=5),
    "michalewicz-5": lambda: Michalewicz(dim=5),
}
BATCHES = (1, 5)


def run_study(
    problem: SyntheticTestFunction, q: int, seed: int, strategy: str, device: str = "cpu"
) -> list[float]:
    """Return the values of a study with a strategy, ``"default"`` for its own, in their order."""
    options: dict[str, Any] = {} if strategy == "default" else {"strategy": strategy}
    study = Study(problem.bounds, maximize=False, seed=seed, device=device, **options)
    values: list[float] = []
    while len(values) < BUDGET:
        batch = study.ask(min(q, BUDGET - len(values)))
        told = problem(batch.X).tolist()
        study.tell(batch.ids, told)
        values += told
    return values


def run_optuna(problem: SyntheticTestFunction, q: int, seed: int, sampler: str) -> list[float]:
    """Return the values of an Optuna study with the defaults of a sampler, ``"gp"`` or ``"tpe"``,
    in batches that are asked before any of their values is told.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    make = {"gp": optuna.samplers.GPSampler, "tpe": optuna.samplers.TPESampler}[sampler]
    study = optuna.create_study(sampler=make(seed=seed))
    space: dict[str, Any] = {
        f"x{i}": optuna.distributions.FloatDistribution(low, high)
        for i, (low, high) in enumerate(zip(*torch.as_tensor(problem.bounds).tolist(), strict=True))
    }
    values: list[float] = []
    while len(values) < BUDGET:
        trials = [study.ask(space) for _ in range(min(q, BUDGET - len(values)))]
        X = torch.tensor([list(trial.params.values()) for trial in trials], dtype=torch.float64)
        told = problem(X).tolist()
        for trial, value in zip(trials, told, strict=True):
            study.tell(trial, value)
        values += told
    return values


def device_of(method: str, device: str) -> str:
    """Return where ``method`` computes if studies do so on ``device``."""
    return "cpu" if method.startswith("optuna-") else device


def run(problem_name: str, q: int, method: str, seed: int, device: str) -> dict[str, Any]:
    """Return the record of a run: its regret after the budget, and seconds."""
    problem = PROBLEMS[problem_name]()
    start = time.perf_counter()
    peer = method.removeprefix("optuna-")
    if peer == method:
        values = run_study(problem, q, seed, method, device)
    else:
        values = run_optuna(problem, q, seed, peer)
    seconds = time.perf_counter() - start
    return {
        "problem": problem_name,
        "batch": q,
        "method": method,
        "seed": seed,
        "device": device_of(method, device),
        "regret": min(values) - float(problem.optimal_value),
        "seconds": seconds,
    }


def table(records: list[dict[str, Any]]) -> Iterator[str]:
    """Yield lines: the median regret of every method, and its seconds of a run."""
    cells = dict.fromkeys((r["problem"], r["batch"], r["method"]) for r in records)
    for problem, q, method in sorted(cells):
        runs = [
            r for r in records if (r["problem"], r["batch"], r["method"]) == (problem, q, method)
        ]
        regret = statistics.median(r["regret"] for r in runs)
        seconds = statistics.median(r["seconds"] for r in runs)
        yield f"{problem:14} {q:3} {method:12} {regret:10.2g} {seconds:6.0f} s, {len(runs)} seeds"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", default="default,optuna-gp,optuna-tpe")
    parser.add_argument("--problems", default=",".join(PROBLEMS))
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    parser.add_argument("--seeds", default="0-2", help="first-last")
    parser.add_argument(
        "--device", default="cpu", help="of the studies; Optuna's samplers compute on the CPU"
    )
    options = parser.parse_args()
    first, last = map(int, options.seeds.split("-"))
    records = json.loads(options.out.read_text()) if options.out.is_file() else []
    done = {
        (r["problem"], r["batch"], r["method"], r["seed"], r.get("device", "cpu")) for r in records
    }
    for seed, problem, q, method in product(
        range(first, last + 1),
        options.problems.split(","),
        map(int, options.batches.split(",")),
        options.methods.split(","),
    ):
        if (problem, q, method, seed, device_of(method, options.device)) not in done:
            records.append(run(problem, q, method, seed, options.device))
            write_atomically(options.out, (json.dumps(records, indent=1) + "\n").encode())
    print("\n".join(table(records)))


if __name__ == "__main__":
    main()
