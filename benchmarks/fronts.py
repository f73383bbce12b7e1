"""The front that a study of several outcomes finds, by its hypervolume.

    python benchmarks/fronts.py --problems vehicle,zdt2,dtlz2 --evaluations 300 --batch 100 \\
        --seeds 3 --out benchmarks/results/fronts.json

A study with its defaults minimises BoTorch's problems, without noise. The hypervolume is that of
all that was evaluated, over the reference point of the problem. A run that the record has is not
made again.
"""

import json
import time
from collections.abc import Callable
from typing import Any

import torch
from botorch.test_functions.base import MultiObjectiveTestProblem
from botorch.test_functions.multi_objective import DTLZ2, ZDT2, ZDT3, VehicleSafety
from botorch.utils.multi_objective.hypervolume import Hypervolume
from botorch.utils.multi_objective.pareto import is_non_dominated
from torch import Tensor

from scalable_bo import Study
from scalable_bo.experiments.scripts import print_rows, script_parser, write_benchmark

PROBLEMS: dict[str, Callable[[], MultiObjectiveTestProblem]] = {
    "vehicle": VehicleSafety,
    "zdt2": lambda: ZDT2(dim=8, num_objectives=2),
    "zdt3": lambda: ZDT3(dim=6, num_objectives=2),
    "dtlz2": lambda: DTLZ2(dim=6, num_objectives=2),
    "dtlz2-three": lambda: DTLZ2(dim=7, num_objectives=3),
}


def hypervolume(problem: MultiObjectiveTestProblem, Y: Tensor) -> float:
    """Return the volume that the values Y (n, m), to be minimised, dominate."""
    reference = -torch.as_tensor(problem.ref_point, dtype=Y.dtype)
    front = -Y[is_non_dominated(-Y)]
    front = front[(front > reference).all(1)]
    return Hypervolume(reference).compute(front) if len(front) else 0.0


def optimise(name: str, num_evaluations: int, batch: int, seed: int) -> dict[str, Any]:
    """Return the hypervolume after each batch, and the processor seconds of all asks."""
    problem = PROBLEMS[name]().double()
    number = problem.num_objectives
    objectives = {f"f{j}": "minimize" for j in range(number)}
    study = Study(problem.bounds.double(), objectives=objectives, seed=seed)
    Y = torch.empty(0, number, dtype=torch.float64)
    volumes = []
    seconds = 0.0
    while len(Y) < num_evaluations:
        start = time.process_time()
        asked = study.ask(min(batch, num_evaluations - len(Y)))
        seconds += time.process_time() - start
        values = problem.evaluate_true(asked.X).double()
        study.tell(asked.ids, values)
        Y = torch.cat([Y, values])
        volumes.append(hypervolume(problem, Y))
    return {"hypervolume": volumes, "seconds": seconds}


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--problems", default="vehicle,zdt2,dtlz2")
    parser.add_argument("--evaluations", type=int, default=300)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs: list[dict[str, Any]] = []
    if options.out is not None and options.out.exists():
        runs = json.loads(options.out.read_text())["runs"]
    for name in options.problems.split(","):
        for seed in range(options.seeds):
            settings = {
                "problem": name,
                "evaluations": options.evaluations,
                "batch": options.batch,
                "seed": seed,
            }
            if not any(settings.items() <= run.items() for run in runs):
                found = optimise(name, options.evaluations, options.batch, seed)
                runs.append(settings | found)
                write_benchmark(options.out, "fronts", runs=runs)
    print_rows(
        "Hypervolume",
        ("problem", "evaluations", "batch", "seed", "hypervolume", "seconds"),
        [
            (
                run["problem"],
                *(str(run[key]) for key in ("evaluations", "batch", "seed")),
                f"{run['hypervolume'][-1]:.4g}",
                f"{run['seconds']:.1f}",
            )
            for run in runs
        ],
    )


if __name__ == "__main__":
    main()
