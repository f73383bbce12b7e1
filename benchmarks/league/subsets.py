"""The league's problems in named subsets, each with its budgets, batches, noise and optimisers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from benchmarks.league.cell import OptimiserCell
from benchmarks.league.tuning import TUNING_TASKS
from surrogates import checks

# The strategies of a study that a league is about by default: its own choice
OURS = ("auto",)
SMALL_PEERS = (
    "optuna-gp",
    "optuna-tpe",
    "optuna-cmaes",
    "botorch-qlognei",
    "botorch-turbo",
    "cma",
    "sobol",
)
# Those that need no joint search of a batch, nor the marginal likelihood of thousands of points
LARGE_PEERS = ("optuna-tpe", "optuna-cmaes", "botorch-turbo", "cma", "sobol")
HUGE_PEERS = ("optuna-cmaes", "cma", "sobol")
BOTORCH = (
    *("branin-2", "sixhumpcamel-2", "rosenbrock-2", "eggholder-2", "dropwave-2"),
    *("hartmann-3", "hartmann-6", "rosenbrock-4", "levy-4", "powell-4", "shekel-4"),
    *("styblinskitang-4", "ackley-5", "griewank-5", "michalewicz-5", "rastrigin-5", "dixonprice-5"),
    *("ackley-10", "levy-10", "styblinskitang-10", "rosenbrock-20", "griewank-20"),
)


def _bbob(suite: str, functions: Sequence[int], dims: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"{suite}-f{number}-d{dim}" for dim, number in product(dims, functions))


@dataclass(frozen=True)
class Subset:
    """Problems, and how they are run.

    Attributes:
        problems: their names.
        budget: evaluations.
        batches: sizes of batches, one league each.
        optimisers: those that take part unless others are chosen.
        noise: as in ``OptimiserCell``.
        num_seeds: seeds 0, 1, … unless others are chosen.
    """

    problems: tuple[str, ...]
    budget: int
    batches: tuple[int, ...]
    optimisers: tuple[str, ...] = (*OURS, *SMALL_PEERS)
    noise: float = 0.0
    num_seeds: int = 5


_ALL = tuple(range(1, 25))
_HIGH = tuple(
    f"{name}-{dim}" for name, dim in product(("ackley", "levy", "rastrigin"), (20, 60, 100))
)
SUBSETS = {
    "smoke": Subset(
        ("branin-2", "hartmann-3", "tune-diabetes"),
        15,
        (5,),
        ("auto", "optuna-tpe", "optuna-cmaes", "cma", "sobol"),
        num_seeds=1,
    ),
    "small": Subset(BOTORCH, 60, (1, 5)),
    "small-200": Subset(("hartmann-6", "rosenbrock-4", "levy-10", "ackley-10"), 200, (1, 5)),
    # Each of the 24 functions in one dimension, in turn; `bbob-all` has each in all
    "bbob": Subset(
        tuple(f"bbob-f{number}-d{(2, 5, 10)[number % 3]}" for number in _ALL), 60, (1, 5)
    ),
    "bbob-all": Subset(_bbob("bbob", _ALL, (2, 5, 10, 20)), 60, (1, 5)),
    "mixed": Subset(
        (
            *TUNING_TASKS,
            *("mixed-hartmann-6", "mixed-ackley-5"),
            *_bbob("bbob-mixint", (1, 3, 8, 15, 20, 23), (5, 10)),
        ),
        60,
        (1, 5),
    ),
    "noisy": Subset(
        ("branin-2", "hartmann-6", "rosenbrock-4", "levy-4", "ackley-5", "bbob-f15-d5"),
        60,
        (1, 5),
        noise=0.3,
    ),
    "large": Subset(_HIGH, 1000, (100,), ("auto", "thompson", "turbo", *LARGE_PEERS)),
    "large-5000": Subset(
        _HIGH, 5000, (100,), ("auto", "thompson", "turbo", "optuna-cmaes", "cma", "sobol")
    ),
    "largescale": Subset(
        _bbob("bbob-largescale", (1, 8, 15, 20), (20, 80, 320)),
        1000,
        (100,),
        ("auto", "thompson", "turbo", *LARGE_PEERS),
    ),
    "thousand": Subset(
        ("hartmann-6", "ackley-20", "levy-20", "rastrigin-20"),
        5000,
        (1000,),
        ("auto", "thompson", "turbo", *HUGE_PEERS),
        num_seeds=3,
    ),
}
# What a night on two cores is enough for
NIGHT = ("small", "bbob", "mixed", "noisy", "large")


def plan_league(
    subset: str,
    *,
    problems: Sequence[str] | None = None,
    optimisers: Sequence[str] | None = None,
    batches: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
    budget: int | None = None,
    noise: float | None = None,
) -> list[OptimiserCell]:
    """Return the cells of a subset: all optimisers of a problem one after the other, a seed of all
    problems before the next.

    Args:
        subset: one of ``SUBSETS``, or ``night`` for several.
        problems, optimisers, batches, seeds, budget, noise: in place of the subset's;
            ``None`` for these.
    Raises:
        ValueError: if there is no such subset, or a value is out of range.
    """
    names = NIGHT if subset == "night" else (checks.one_of("subset", subset, SUBSETS),)
    cells = [
        (
            seed,
            OptimiserCell(
                problem,
                optimiser,
                q,
                budget or chosen.budget,
                seed,
                chosen.noise if noise is None else noise,
            ),
        )
        for chosen in (SUBSETS[name] for name in names)
        for seed in (range(chosen.num_seeds) if seeds is None else seeds)
        for problem in problems or chosen.problems
        for q in batches or chosen.batches
        for optimiser in optimisers or chosen.optimisers
    ]
    # A league that is interrupted has whole seeds
    return [cell for _, cell in sorted(cells, key=lambda pair: pair[0])]
