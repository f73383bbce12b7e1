"""The league's problems in named subsets, each with its budgets, batches, noise and optimisers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from benchmarks.league.league_cell import OptimiserCell
from benchmarks.league.tasks import FAILING, FRONTS
from benchmarks.league.tuning import TUNING_TASKS
from scalable_bo.experiments.cells import Grid
from surrogates import checks

# The strategies of a study that a league is about by default: its own choice
OURS = ("auto",)
# Those that need no joint search of a batch, nor the marginal likelihood of thousands of points
LARGE_PEERS = ("optuna-tpe", "optuna-cmaes", "botorch-turbo", "cma", "sobol")
SMALL_PEERS = ("optuna-gp", "botorch-qlognei", *LARGE_PEERS)
HUGE_PEERS = ("optuna-cmaes", "cma", "sobol")
FRONT_SEEKERS = ("auto", "optuna-gp", "optuna-tpe", "optuna-nsga2", "botorch-qlognehvi", "sobol")
VALLEYS = (
    *("valley-3-1e2", "valley-3-1e4", "valley-4-1e6", "valley-5-1e3", "valley-6-1e2"),
    *("valley-6-1e4", "valley-7-1e6", "valley-8-1e3", "valley-8-1e5", "valley-10-1e4"),
)
BOTORCH = (
    *("branin-2", "sixhumpcamel-2", "rosenbrock-2", "eggholder-2", "dropwave-2"),
    *("hartmann-3", "hartmann-6", "rosenbrock-4", "levy-4", "powell-4", "shekel-4"),
    *("styblinskitang-4", "ackley-5", "griewank-5", "michalewicz-5", "rastrigin-5", "dixonprice-5"),
    *("ackley-10", "levy-10", "styblinskitang-10", "rosenbrock-20", "griewank-20"),
)


def _bbob(suite: str, functions: Sequence[int], dims: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"{suite}-f{number}-d{dim}" for dim, number in product(dims, functions))


def subset(
    problems: Sequence[str],
    budget: int,
    batches: Sequence[int],
    optimisers: Sequence[str] = (*OURS, *SMALL_PEERS),
    *,
    noise: float = 0.0,
    num_seeds: int = 5,
) -> Grid:
    """Return problems as they are run: a seed of all problems before the next, so that a league
    that is interrupted has whole seeds, and all optimisers of a problem one after the other.
    """
    axes = {"seed": range(num_seeds), "problem": problems, "q": batches, "optimiser": optimisers}
    return Grid(OptimiserCell, axes, {"budget": budget, "noise": noise}, "optimiser")


_ALL = tuple(range(1, 25))
_HIGH = tuple(
    f"{name}-{dim}" for name, dim in product(("ackley", "levy", "rastrigin"), (20, 60, 100))
)
SUBSETS = {
    "smoke": subset(
        ("branin-2", "hartmann-3", "tune-diabetes"),
        15,
        (5,),
        ("auto", "optuna-tpe", "optuna-cmaes", "cma", "sobol"),
        num_seeds=1,
    ),
    "small": subset(BOTORCH, 60, (1, 5)),
    # Each of the 24 functions in one dimension, in turn; `bbob-all` has each in all
    "bbob": subset(
        tuple(f"bbob-f{number}-d{(2, 5, 10)[number % 3]}" for number in _ALL), 60, (1, 5)
    ),
    "bbob-all": subset(_bbob("bbob", _ALL, (2, 5, 10, 20)), 60, (1, 5)),
    "mixed": subset(
        (
            *TUNING_TASKS,
            *("mixed-hartmann-6", "mixed-ackley-5"),
            *_bbob("bbob-mixint", (1, 3, 8, 15, 20, 23), (5, 10)),
        ),
        60,
        (1, 5),
    ),
    "noisy": subset(
        ("branin-2", "hartmann-6", "rosenbrock-4", "levy-4", "ackley-5", "bbob-f15-d5"),
        60,
        (1, 5),
        noise=0.3,
    ),
    "failing": subset(
        tuple(FAILING),
        60,
        (5,),
        ("auto", "optuna-tpe", "botorch-qlognei", "botorch-qlognei-worst"),
        num_seeds=2,
    ),
    "valleys": subset(
        VALLEYS, 100, (5,), ("auto", "optuna-gp", "botorch-qlognei", "cma", "sobol"), num_seeds=1
    ),
    "fronts": subset(tuple(FRONTS), 60, (5,), FRONT_SEEKERS, num_seeds=2),
    "fronts-large": subset(
        tuple(FRONTS), 500, (100,), ("auto", "optuna-tpe", "optuna-nsga2", "sobol"), num_seeds=2
    ),
    "large": subset(_HIGH, 1000, (100,), ("auto", "thompson", "turbo", *LARGE_PEERS)),
    "largescale": subset(
        _bbob("bbob-largescale", (1, 8, 15, 20), (20, 80, 320)),
        1000,
        (100,),
        ("auto", "thompson", "turbo", *LARGE_PEERS),
    ),
    "thousand": subset(
        ("hartmann-6", "ackley-20", "levy-20", "rastrigin-20"),
        5000,
        (1000,),
        ("auto", "thompson", "turbo", *HUGE_PEERS),
        num_seeds=3,
    ),
}
# What a night on two cores is enough for
NIGHT = ("small", "bbob", "mixed", "noisy", "large")


def plan_league(name: str, **choices: Any) -> list[OptimiserCell]:
    """Return the cells of a subset, or of the several ones of ``night``, with ``choices`` in place
    of its arguments as in ``Grid.cells``; raise ValueError if there is none, or a value is out of
    range.
    """
    names = NIGHT if name == "night" else (checks.one_of("subset", name, SUBSETS),)
    cells = [cell for name in names for cell in SUBSETS[name].cells(**choices)]
    return sorted(cells, key=lambda cell: int(cell.seed))
