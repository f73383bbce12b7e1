"""What the optimisers compete on, by name: a function to minimise, and a space.

``hartmann-6`` is one of BoTorch's test functions in six dimensions; ``bbob-f15-d5``,
``bbob-mixint-f3-d5`` and ``bbob-largescale-f10-d40`` are COCO's functions by number and dimension;
``tune-digits`` and so on choose the hyperparameters of a model on data that scikit-learn brings;
``mixed-hartmann-6`` is a test function with a choice and integers among its inputs;
``failing-ball`` and so on fail within a region, 5 to 50 % of the cube, where their values are NaN;
``valley-6-1e4`` is a quadratic in six inputs whose axes are turned, of condition 1e4;
``front-zdt1`` and so on have several objectives: what counts is the volume that a front dominates
within a reference point that no optimiser is told.

Notation: X (n, d) points in the user's units.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from botorch.test_functions import multi_objective
from botorch.test_functions.base import MultiObjectiveTestProblem
from botorch.utils.multi_objective.box_decompositions.dominated import DominatedPartitioning
from botorch.utils.multi_objective.pareto import is_non_dominated
from torch import Tensor

from benchmarks.league.tuning import TUNING_TASKS
from scalable_bo._packages import is_installed, require
from scalable_bo.experiments.problems import TestFunction, test_function
from scalable_bo.space.parameters import Parameter
from scalable_bo.space.space import Categorical, Float, Int, Space
from surrogates import checks

# By powers of ten that COCO multiplies the mixed suite's functions 1 … 24 by
MIXED_EXPONENTS = (
    *(0, -3, -1, -1, 0, -2, 0, -2, -2, -3, -2, -4),
    *(-1, 0, -1, 0, 1, 0, 1, -1, 0, 0, 1, -1),
)
FRONTS: dict[str, Callable[[], MultiObjectiveTestProblem]] = {
    "front-branin-currin": multi_objective.BraninCurrin,
    "front-zdt1": partial(multi_objective.ZDT1, dim=8, num_objectives=2),
    "front-zdt3": partial(multi_objective.ZDT3, dim=6, num_objectives=2),
    "front-dtlz2": partial(multi_objective.DTLZ2, dim=6, num_objectives=2),
    "front-dtlz2-of-three": partial(multi_objective.DTLZ2, dim=7, num_objectives=3),
    "front-vehicle-safety": multi_objective.VehicleSafety,
    "front-penicillin": multi_objective.Penicillin,
    "front-car-side-impact": multi_objective.CarSideImpact,
}
_COCO = re.compile(r"(bbob|bbob-mixint|bbob-largescale)-f(\d+)-d(\d+)")
_VALLEY = re.compile(r"valley-([1-9]\d*)-(1e\d\d?)")
_BOTORCH = re.compile(r"(mixed-)?([a-z_]+)-(\d+)")


Function = Callable[[np.ndarray], Any]  # of points (n, d)


def drawn(dim: int, seed: int) -> Function:
    """Return a sum of 40 random waves, of variance 1."""
    generator = np.random.default_rng(seed)
    waves = 3.0 * generator.normal(size=(40, dim))
    phases = generator.uniform(0.0, 2.0 * np.pi, 40)
    amplitudes = generator.normal(size=40) * math.sqrt(2.0 / 40)
    return lambda X: np.cos(X @ waves.T + phases) @ amplitudes


def distance(X: np.ndarray, *centre: float) -> np.ndarray:
    return np.linalg.norm(X - np.array(centre), axis=1)


# The number of inputs, a function to maximise, and where it fails
FAILING: dict[str, tuple[int, Function, Function]] = {
    "failing-rising-half-space": (
        *(3, lambda X: X[:, 2] + 0.5 * X[:, 0] - (X[:, 1] - 0.4) ** 2),
        lambda X: X[:, 2] > 0.8,
    ),
    "failing-rising-corner": (2, lambda X: X.sum(1), lambda X: (X > 0.7).all(1)),
    "failing-oblique": (
        3,
        lambda X: X[:, 0] + X[:, 1] - X[:, 2] ** 2,
        lambda X: X[:, 0] + X[:, 1] > 1.4,
    ),
    "failing-band": (
        2,
        lambda X: -(distance(X, 0.3, 0.6) ** 2),
        lambda X: abs(X[:, 0] - 0.55) < 0.1,
    ),
    "failing-ball": (
        2,
        lambda X: -(distance(X, 0.5, 0.5) ** 2),
        lambda X: distance(X, 0.5, 0.5) < 0.2,
    ),
    "failing-drawn-half-space": (4, drawn(4, 1), lambda X: X[:, 0] > 0.6),
    "failing-drawn-ring": (2, drawn(2, 2), lambda X: abs(distance(X, 0.5, 0.5) - 0.3) < 0.06),
    "failing-drawn-corner": (6, drawn(6, 3), lambda X: (X[:, 0] > 0.6) & (X[:, 1] > 0.5)),
    "failing-rising-edge": (2, lambda X: X[:, 0] + 0.3 * X[:, 1], lambda X: X[:, 0] > 0.95),
    "failing-rising-half": (
        *(5, lambda X: X[:, 0] - 0.1 * ((X[:, 1:] - 0.5) ** 2).sum(1)),
        lambda X: X[:, 0] > 0.5,
    ),
}


@dataclass(frozen=True, eq=False)
class Task:
    """A function to minimise, without noise, or several at once.

    Attributes:
        evaluate: maps X (n, d) to values (n,), or (n, k) of several objectives.
        optimum: the smallest loss; ``None`` where it is not known.
        is_cheap: whether thousands of values cost nothing.
        reference: (k,) the values within which the hypervolume of several objectives lies.
    """

    space: Space
    evaluate: Callable[[Tensor], Tensor]
    optimum: float | None
    is_cheap: bool = True
    reference: Tensor | None = None

    @property
    def num_objectives(self) -> int:
        return 1 if self.reference is None else len(self.reference)

    def loss(self, values: Tensor) -> float:
        """Return the least of values (n,), ∞ if all failed, or minus the hypervolume of (n, k)."""
        if self.reference is None:
            return float(values.nan_to_num(nan=math.inf).min())
        return -hypervolume(values, self.reference)

    def spread(self, sample: Tensor | None) -> float | None:
        """Return how much the loss of a sample's worst point exceeds the optimum; of several
        objectives that of no point, which is 0.
        """
        if self.optimum is None or (sample is None and self.reference is None):
            return None
        return (0.0 if sample is None else float(sample.max())) - self.optimum

    def sample(self, num_points: int = 1024) -> Tensor | None:
        """Return the values of Sobol points, without failures; ``None`` if they cost too much."""
        if not self.is_cheap:
            return None
        engine = torch.quasirandom.SobolEngine(self.space.encoded_dim, scramble=True, seed=0)
        U = engine.draw(num_points, dtype=torch.float64)
        values = self.evaluate(self.space.unnormalize(U))
        return values[values.isfinite()]


def hypervolume(Y: Tensor, reference: Tensor) -> float:
    """Return the volume between values ``Y`` (n, k) and ``reference`` (k,), which is above them."""
    front = Y[(reference > Y).all(1)]
    front = front[is_non_dominated(-front)]
    return float(DominatedPartitioning(-reference, -front).compute_hypervolume()) + 0.0


def make_task(name: str, seed: int = 0) -> Task:
    """Return a task by its name.

    Args:
        seed: a COCO function is its instance ``seed + 1``: shifted and rotated anew, as is a
            valley.
    Raises:
        ImportError: if COCO is not installed.
        ValueError: if there is no such task.
    """
    if name.startswith("tune-"):
        tuning = TUNING_TASKS[checks.one_of("problem", name, TUNING_TASKS)]
        return Task(tuning.space, tuning.evaluate, None, is_cheap=False)
    if name.startswith("failing-"):
        return _failing_task(checks.one_of("problem", name, FAILING))
    if name.startswith("front-"):
        several = FRONTS[checks.one_of("problem", name, FRONTS)]().double()
        space, reference = Space.from_bounds(several.bounds), torch.as_tensor(several.ref_point)
        return Task(space, several.evaluate_true, -several.max_hv, False, reference)
    if found := _VALLEY.fullmatch(name):
        return _valley_task(int(found[1]), float(found[2]), seed)
    if found := _COCO.fullmatch(name):
        suite, function, dim = found.groups()
        return _coco_task(suite, int(function), int(dim), seed + 1)
    if found := _BOTORCH.fullmatch(name):
        problem = test_function(found[2], int(found[3]))
        optimum = None if problem.optimal_value is None else -problem.optimal_value
        if found[1]:
            return _mixed_task(problem, optimum)
        return Task(Space.from_bounds(problem.bounds), lambda X: -problem(X), optimum)
    raise ValueError(
        "`problem` must be a test function and its dimension, such as hartmann-6, a function of"
        " COCO, such as bbob-f15-d5, valley-6-1e4, or one of"
        f" {', '.join((*TUNING_TASKS, *FAILING, *FRONTS))}, got {name!r}."
    )


def missing_package(name: str) -> str | None:
    """Return the package that a task needs and that is not installed, if there is one."""
    return "coco-experiment" if _COCO.fullmatch(name) and not is_installed("cocoex") else None


def _mixed_task(
    problem: TestFunction,
    optimum: float | None,
    choices: Sequence[int] = (3, 0, 4, 1, 2),
    num_integers: int = 10,
) -> Task:
    """Return a test function with a choice as its first input, and integers as the next third of
    them: levels at equal distances, one of which is an optimiser's. The levels of ``choices`` are
    in an order that says nothing of them.
    """
    if problem.optimizers is None:
        raise ValueError(
            "`problem` must be a function whose optimum is known, got one where it is not. Leave"
            " out mixed-, or take another dimension."
        )
    params: dict[str, Parameter] = {}
    levels: list[Tensor] = []
    for column, (low, high) in enumerate(problem.bounds.T.tolist()):
        if column > problem.dim // 3:
            params[f"x{column}"] = Float(low, high)
            continue
        count = num_integers if column else len(choices)
        step = (high - low) / count
        first = low + (float(problem.optimizers[0, column]) - low) % step
        along = first + step * torch.arange(count, dtype=torch.float64)
        params[f"x{column}"] = Int(0, count - 1) if column else Categorical(list("abcde"))
        levels.append(along if column else along[list(choices)])

    def evaluate(X: Tensor) -> Tensor:
        inputs = X.clone()
        for column, own in enumerate(levels):
            inputs[:, column] = own[X[:, column].long()]
        return -problem(inputs)

    return Task(Space(**params), evaluate, optimum)


def _failing_task(name: str, num_points: int = 20_000) -> Task:
    """Return a function with a region in which it fails. The best of so many random points stands
    for its optimum, so that regrets may be negative.
    """
    dim, value, fails = FAILING[name]

    def evaluate(X: np.ndarray) -> np.ndarray:
        return np.where(fails(X), math.nan, -value(X))

    optimum = np.nanmin(evaluate(np.random.default_rng(0).random((num_points, dim))))
    space = Space(**{f"x{column}": Float(0.0, 1.0) for column in range(dim)})
    return Task(space, lambda X: torch.from_numpy(evaluate(X.numpy())), float(optimum))


def _valley_task(dim: int, condition: float, seed: int, edge: float = 5.0) -> Task:
    """Return a quadratic whose axes are turned at random, and whose curvatures, from 1 to
    ``condition``, are evenly spaced in logarithms.
    """
    generator = torch.Generator().manual_seed(seed)
    axes, _ = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))
    centre = edge * (1.6 * torch.rand(dim, generator=generator, dtype=torch.float64) - 0.8)
    curvatures = torch.logspace(0.0, math.log10(condition), dim, dtype=torch.float64)
    space = Space(**{f"x{column}": Float(-edge, edge) for column in range(dim)})
    return Task(space, lambda X: ((X - centre) @ axes).square() @ curvatures, 0.0)


def _coco_task(suite: str, function: int, dim: int, instance: int) -> Task:
    require("cocoex", extra="league", user=f"`{suite}-f{function}-d{dim}`")
    import cocoex

    problems = cocoex.Suite(suite, f"instances: {instance}", f"dimensions: {dim}")
    try:
        problem = problems.get_problem_by_function_dimension_instance(function, dim, instance)
    except Exception as error:
        raise ValueError(
            f"`problem` must be a function and a dimension of COCO's {suite}, got f{function} and"
            f" d{dim} ({error})."
        ) from error
    num_integers = problem.number_of_integer_variables
    pairs = list(zip(problem.lower_bounds, problem.upper_bounds, strict=True))
    params: dict[str, Any] = {}
    for column, (low, high) in enumerate(pairs):
        whole = column < num_integers
        params[f"x{column}"] = Int(round(low), round(high)) if whole else Float(low, high)

    # Those of the other suites are not told: they are the same in all dimensions, but for a factor
    optimum = cocoex.BareProblem("bbob", function, 2, instance).best_value()
    if suite == "bbob-mixint":
        optimum *= 10.0 ** MIXED_EXPONENTS[function - 1]

    def evaluate(X: Tensor, suite: object = problems) -> Tensor:
        """Return the values (n,). The suite owns the problem, and must not go before it."""
        values = [problem(point) for point in X.double().numpy()]
        return torch.tensor(values, dtype=torch.float64)

    return Task(Space(**params), evaluate, float(optimum))
