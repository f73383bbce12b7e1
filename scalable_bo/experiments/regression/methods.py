"""The methods of the regression benchmark by name: each makes a Gaussian process from data,
hyperparameters and a budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from scalable_bo.experiments.models import fixed_model
from scalable_bo.experiments.solvers import (
    ADASAP_DESCENTS,
    SPEND_IT_ALL,
    SDDBudget,
    from_outside,
    solver_for,
)
from surrogates import (
    SGD,
    Auto,
    Cholesky,
    InducingPathwiseGP,
    IterativeSolver,
    PathwiseGP,
    Solver,
    checks,
)
from surrogates.models.variational_gp import VariationalGP
from surrogates.solvers.registry import SOLVERS
from surrogates.solvers.run import TOLERANCE

_IN_BLOCKS = ("adasap", "adasap-i", *ADASAP_DESCENTS)


@dataclass(frozen=True)
class Budget:
    """What the methods may spend; each heeds the fields that concern it.

    Args:
        tolerance: relative residual at which a column stops; ``None`` to stop where the posterior
            is right, see :class:`IterativeSolver`, and at 1e-2 if the mean alone is wanted.
        max_epochs: at most so many passes over the kernel matrix.
        sgd_steps: steps of stochastic gradient descent, all of which it takes; the published number
            is 100 000.
        num_points: points of the subset of data, or inducing points, at most n; published are 4096
            inducing points.
        num_blocks: blocks of the data, or batches, of the methods of the ADASAP paper, at most n;
            published are 100.
    """

    tolerance: float | None = None
    max_epochs: float = 100.0
    sgd_steps: int = 100_000
    num_points: int = 4096
    num_blocks: int = 100

    def __post_init__(self) -> None:
        checks.fields(self, ["tolerance", "max_epochs"], checks.positive_float)
        checks.fields(self, ["sgd_steps", "num_points", "num_blocks"], checks.positive_int)


@dataclass(frozen=True)
class RegressionProblem:
    """What a method is given: data and hyperparameters, and whether the mean alone is wanted.

    ``X (n, d)``, ``y (n,)``; ``noise`` is a variance.
    """

    X: Tensor
    y: Tensor
    kernel: Kernel
    noise: float
    mean_only: bool
    budget: Budget
    seed: int

    def model(self, solver: Solver | None, **options: Any) -> PathwiseGP:
        """Return the Gaussian process of all the data with this solver, which goes on to a residual
        if only the mean is wanted: the error of a posterior needs its samples.
        """
        limits = self.mean_only and isinstance(solver, IterativeSolver | Auto)
        if limits and solver.tolerance is None:  # type: ignore[union-attr]
            solver = replace(solver, tolerance=TOLERANCE)  # type: ignore[type-var]
        return fixed_model(self.X, self.y, self.kernel, self.noise, solver, **options)


@dataclass(frozen=True)
class RegressionMethod:
    """How a method's model is made, and the fields of :class:`Budget` that it heeds."""

    make: Callable[[RegressionProblem], PathwiseGP]
    heeds: tuple[str, ...]


def solver_within(name: str | Solver, n: int, budget: Budget) -> Solver:
    """Return the named solver, one of ``SOLVERS``, of a system of n points, with the published
    settings of the regressions and this budget; or one from outside, with its own.
    """
    if from_outside(name) is not None:
        return solver_for(name, n)
    if name == "sgd":  # an epoch is kept back for evaluating the residual of what is returned
        sgd = SGD.paper(tolerance=SPEND_IT_ALL, keep_descent=True)
        assert sgd.batch_size is not None  # as published
        return replace(sgd, max_epochs=budget.sgd_steps * min(sgd.batch_size, n) / n + 1.0)
    blocks = SDDBudget(num_epochs=budget.max_epochs, num_blocks=min(n, budget.num_blocks))
    solver = solver_for(name, n, sdd=blocks if name in _IN_BLOCKS else SDDBudget())
    if isinstance(solver, IterativeSolver | Auto):
        solver = replace(solver, tolerance=budget.tolerance, max_epochs=budget.max_epochs)
    return solver


def _exact(solver: str | Solver, heeds: tuple[str, ...]) -> RegressionMethod:
    return RegressionMethod(
        lambda problem: problem.model(solver_within(solver, len(problem.X), problem.budget)), heeds
    )


def _subset(problem: RegressionProblem) -> PathwiseGP:
    generator = torch.Generator().manual_seed(problem.seed)
    rows = torch.randperm(len(problem.X), generator=generator)[: problem.budget.num_points].to(
        problem.X.device
    )
    return replace(problem, X=problem.X[rows], y=problem.y[rows]).model(Cholesky())


def _inducing(
    problem: RegressionProblem, solver: Solver | None, kind: type[PathwiseGP] = InducingPathwiseGP
) -> PathwiseGP:
    num_points = problem.budget.num_points
    return problem.model(solver, kind=kind, inducing_points=num_points, seed=problem.seed)


_LIMITS = ("tolerance", "max_epochs")
REGRESSION_METHODS = {
    name: _exact(name, (*_LIMITS, "num_blocks") if name in _IN_BLOCKS else _LIMITS)
    for name in SOLVERS
} | {
    "sgd": _exact("sgd", ("sgd_steps",)),
    "cholesky": _exact("cholesky", ()),
    "sgd-inducing": RegressionMethod(
        lambda problem: _inducing(problem, solver_within("sgd", len(problem.X), problem.budget)),
        ("sgd_steps", "num_points"),
    ),
    "inducing": RegressionMethod(lambda problem: _inducing(problem, Cholesky()), ("num_points",)),
    # At its closed-form optimum
    "svgp": RegressionMethod(
        lambda problem: _inducing(problem, None, VariationalGP), ("num_points",)
    ),
    "subset": RegressionMethod(_subset, ("num_points",)),
}


def regression_method(solver: str | Solver) -> RegressionMethod:
    """Return the method of a name, or with a solver from outside; a ValueError lists the names."""
    if from_outside(solver) is not None:
        return _exact(solver, ())
    return REGRESSION_METHODS[checks.one_of("solver", solver, REGRESSION_METHODS)]


def heeded(solver: str | Solver, budget: Budget) -> dict[str, Any]:
    """Return the part of the budget that a method heeds; ``num_blocks`` only if it is not the
    published number, so that records without it stay valid.
    """
    heeds = set(regression_method(solver).heeds)
    if budget.num_blocks == Budget.num_blocks:
        heeds.discard("num_blocks")
    return {key: value for key, value in asdict(budget).items() if key in heeds}
