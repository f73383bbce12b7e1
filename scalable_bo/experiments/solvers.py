"""The solvers of the registry with the budget that a benchmark gives them, and those from outside
with their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from scalable_bo.evaluation.functions import load_function
from surrogates import (
    CG,
    SDD,
    SGD,
    Auto,
    Checkpoint,
    IterativeSolver,
    Nystrom,
    PivotedCholesky,
    Preconditioner,
    SketchAndProject,
    Solver,
)
from surrogates.solvers.auto import EPOCHS_AROUND
from surrogates.solvers.registry import make_solver

# A fixed budget is spent whole: no solver reaches this residual within it.
SPEND_IT_ALL = 1e-7
# The methods of the ADASAP paper, which share their blocks
ADASAP_DESCENTS = ("sdd-1", "sdd-10", "sdd-100")

_PRECONDITIONERS: dict[str, Callable[..., Preconditioner]] = {
    "nystrom": Nystrom,
    "gaussian": partial(Nystrom, sketch="gaussian"),
    "pivoted-cholesky": PivotedCholesky,
}


@dataclass(frozen=True)
class CGBudget:
    """What conjugate gradients may spend on one round.

    Args:
        tolerance: relative residual at which a column stops; ``None`` for the solver's own end, an
            error in posterior standard deviations.
        num_iterations: at most so many; ``None`` for the solver's own budget.
        preconditioner: ``nystrom`` (of columns), ``gaussian`` (Nyström, by a Gaussian sketch) or
            ``pivoted-cholesky``.
        rank: of the preconditioner; ``None`` for its own default.
    """

    tolerance: float | None = None
    num_iterations: int | None = None
    preconditioner: str = "nystrom"
    rank: int | None = None


@dataclass(frozen=True)
class SDDBudget:
    """What stochastic dual descent may spend on one round.

    Args:
        tolerance: relative residual at which a column stops; likewise.
        num_steps: at most so many steps; ``None`` for ``num_epochs``.
        num_epochs: at most so many passes over the kernel matrix; ``None`` for the solver's own.
        batch_size: rows a step; ``None`` for n / ``num_blocks``.
        num_blocks: batches in a pass; ``None`` for the solver's own batch size.
        step_size: βn; ``None`` for an estimate.
    """

    tolerance: float | None = None
    num_steps: int | None = None
    num_epochs: float | None = None
    batch_size: int | None = None
    num_blocks: int | None = None
    step_size: float | None = None


def from_outside(solver: str | Solver) -> Solver | None:
    """Return a solver that is given as an object or by "module:Class", which is imported from the
    working directory or from where Python finds modules, or a ValueError says why not; ``None`` for
    a name.
    """
    if isinstance(solver, Solver):
        return solver
    if ":" not in solver:
        return None
    make = load_function("solver", solver, Path.cwd())
    try:
        made: object = make()
    except (TypeError, ValueError) as error:
        made = error
    if not isinstance(made, Solver):
        raise ValueError(f"`solver` must make a Solver, got {made!r:.80} from {solver!r}.")
    return made


def name_of(solver: str | Solver) -> str:
    """Return what records call a solver; objects with different settings have different names."""
    if isinstance(solver, str):
        return solver
    return f"{type(solver).__name__}-{hashlib.sha256(repr(solver).encode()).hexdigest()[:8]}"


def solver_for(
    name: str | Solver,
    n: int,
    cg: CGBudget = CGBudget(),
    sdd: SDDBudget = SDDBudget(),
    checkpoint: Checkpoint | None = None,
) -> Solver:
    """Return the named solver for a system of ``n`` points, with the budgets given.

    Args:
        name: of the registry; or a solver from outside, which spends its own budget.
        n: number of data; budgets in steps, and batches as fractions of the data, depend on it.
        checkpoint: where a solve is saved as it goes on; ``None`` for nowhere.
    Raises:
        ValueError: if the name is unknown.
    """
    if (given := from_outside(name)) is not None:
        resumes = isinstance(given, Auto | IterativeSolver)
        return replace(given, checkpoint=checkpoint) if resumes else given  # type: ignore[type-var]
    assert isinstance(name, str)  # of the registry
    solver = make_solver(name)
    settings: dict[str, Any]
    if isinstance(solver, CG):
        low_rank = _PRECONDITIONERS[cg.preconditioner]
        preconditioner = low_rank() if cg.rank is None else low_rank(rank=min(cg.rank, n))
        settings = {"preconditioner": preconditioner, "tolerance": cg.tolerance}
        settings |= _iterations(cg, 1.0 if cg.preconditioner == "gaussian" else (cg.rank or 0) / n)
    elif isinstance(solver, SDD):
        step_size = sdd.step_size if solver.step_size is None else solver.step_size
        settings = {"step_size": step_size} | _stochastic(n, sdd)
        if name in ADASAP_DESCENTS and sdd.num_epochs is not None and sdd.num_blocks is not None:
            # The published programs average the iterates of T steps with r = 10 / T
            settings["averaging"] = min(1.0, 10.0 / (sdd.num_epochs * sdd.num_blocks))
    elif isinstance(solver, SGD):
        # Published for the mean, and 3e-4 for samples, which 0.3 brings farther in the same steps
        settings = {"step_size": 0.3} | _stochastic(n, sdd)
    elif isinstance(solver, SketchAndProject) and name != "asap":  # which chooses its own blocks
        # In five blocks, as published for Bayesian optimisation, where the preset says nothing
        block_size = max(1, n // (sdd.num_blocks or 5))
        settings = {"block_size": block_size, "tolerance": cg.tolerance} | _passes(sdd.num_epochs)
    elif isinstance(solver, Auto):
        # What chooses itself knows when to end; a published budget only bounds it
        own = cg.tolerance == SPEND_IT_ALL
        settings = {} if own else {"tolerance": cg.tolerance}
        settings |= _iterations(cg)
    else:
        settings = {"tolerance": cg.tolerance} if isinstance(solver, IterativeSolver) else {}
    if isinstance(solver, Auto | IterativeSolver):
        settings["checkpoint"] = checkpoint
    if isinstance(solver, IterativeSolver):
        settings["keep_descent"] = True  # what a method has within a budget is what is compared
    return replace(solver, **settings)  # type: ignore[type-var]  # every solver is a dataclass


def _iterations(cg: CGBudget, set_up: float = 0.0) -> dict[str, float]:
    """Return the budget in epochs, the ``set_up`` of a preconditioner included."""
    if cg.num_iterations is None:
        return {}
    return {"max_epochs": float(cg.num_iterations + EPOCHS_AROUND) + set_up}


def _stochastic(n: int, sdd: SDDBudget) -> dict[str, Any]:
    batch_size = sdd.batch_size if sdd.num_blocks is None else n // sdd.num_blocks
    num_epochs = sdd.num_epochs
    if batch_size is not None:
        batch_size = min(batch_size, n)
        if sdd.num_steps is not None:
            num_epochs = sdd.num_steps * batch_size / n
    return {"batch_size": batch_size, "tolerance": sdd.tolerance} | _passes(num_epochs)


def _passes(num_epochs: float | None) -> dict[str, Any]:
    return {} if num_epochs is None else {"max_epochs": num_epochs + EPOCHS_AROUND}
