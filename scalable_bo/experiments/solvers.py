"""Solvers by name, with the budget that a benchmark gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scalable_bo.experiments.presets import CGBudget, SDDBudget
from surrogates import (
    CG,
    SDD,
    SGD,
    Auto,
    Cholesky,
    Nystrom,
    PivotedCholesky,
    SketchAndProject,
    Solver,
    checks,
)

# Products that CG makes beside its iterations: one for a warm start's residual, one for that of
# what it returns.
_CHECK_EPOCHS = 2
# Blocks of sketch-and-project where the preset says nothing; the published number, of its Bayesian
# optimisation.
_NUM_BLOCKS = 5
_ADASAP_RANK = 100
_SGD_STEP = 0.3  # the published one of the Thompson runs


def _cg(n: int, cg: CGBudget, sdd: SDDBudget) -> Solver:
    low_rank = {"nystrom": Nystrom, "pivoted-cholesky": PivotedCholesky}[cg.preconditioner]
    rank = {} if cg.rank is None else {"rank": min(cg.rank, n)}
    budget: dict[str, Any] = {}
    if cg.num_iterations is not None:
        budget["max_epochs"] = float(cg.num_iterations + _CHECK_EPOCHS) + (cg.rank or 0) / n
    return CG(low_rank(**rank), tolerance=cg.tolerance, **budget)


def _stochastic_budget(n: int, sdd: SDDBudget) -> tuple[int | None, dict[str, Any]]:
    """Return the batch size and the settings of budget and tolerance of a stochastic method."""
    batch_size = sdd.batch_size if sdd.num_blocks is None else n // sdd.num_blocks
    if batch_size is not None:
        batch_size = min(batch_size, n)
    num_epochs = sdd.num_epochs
    if sdd.num_steps is not None and batch_size is not None:
        num_epochs = sdd.num_steps * batch_size / n
    budget = {} if num_epochs is None else {"max_epochs": num_epochs + _CHECK_EPOCHS}
    return batch_size, {"tolerance": sdd.tolerance, **budget}


def _sdd(step_size: float | None = None) -> Callable[[int, CGBudget, SDDBudget], Solver]:
    def of(n: int, cg: CGBudget, sdd: SDDBudget) -> Solver:
        batch_size, budget = _stochastic_budget(n, sdd)
        return SDD(step_size or sdd.step_size, batch_size, **budget)

    return of


def _sgd(n: int, cg: CGBudget, sdd: SDDBudget) -> Solver:
    batch_size, budget = _stochastic_budget(n, sdd)
    return SGD(_SGD_STEP, batch_size, **budget)


def _cholesky(n: int, cg: CGBudget, sdd: SDDBudget) -> Solver:
    return Cholesky()


def _asap(n: int, cg: CGBudget, sdd: SDDBudget) -> Solver:
    return SketchAndProject.asap(tolerance=cg.tolerance)


def _auto(n: int, cg: CGBudget, sdd: SDDBudget) -> Solver:
    budget: dict[str, Any] = (
        {}
        if cg.num_iterations is None
        else {"max_epochs": float(cg.num_iterations + _CHECK_EPOCHS)}
    )
    return Auto(tolerance=cg.tolerance, **budget)


def _blocks(make: Callable[..., SketchAndProject]) -> Callable[[int, CGBudget, SDDBudget], Solver]:
    def of(n: int, cg: CGBudget, sdd: SDDBudget) -> Solver:
        block_size = max(1, n // (sdd.num_blocks or _NUM_BLOCKS))
        options: dict[str, Any] = (
            {} if sdd.num_epochs is None else {"max_epochs": sdd.num_epochs + _CHECK_EPOCHS}
        )
        if make == SketchAndProject.adasap and block_size <= _ADASAP_RANK:
            options["preconditioner"] = Nystrom(max(1, block_size // 2), sketch="gaussian")
        return make(block_size=block_size, tolerance=cg.tolerance, **options)

    return of


_MAKERS: dict[str, Callable[[int, CGBudget, SDDBudget], Solver]] = {
    "auto": _auto,
    "cholesky": _cholesky,
    "cg": _cg,
    "sdd": _sdd(),
    "sdd-1": _sdd(1.0),
    "sdd-10": _sdd(10.0),
    "sdd-100": _sdd(100.0),
    "sgd": _sgd,
    "sap": _blocks(SketchAndProject.sap),
    "asap": _asap,
    "adasap": _blocks(SketchAndProject.adasap),
    "adasap-i": _blocks(SketchAndProject.adasap_identity),
}
SOLVERS = tuple(_MAKERS)


def check_solver(name: str) -> str:
    """Return ``name`` if there is a solver of that name.

    Raises:
        ValueError: if there is none; the message lists those there are.
    """
    return checks.one_of("solver", name, SOLVERS)


def make_solver(
    name: str, n: int, cg: CGBudget | None = None, sdd: SDDBudget | None = None
) -> Solver:
    """Return the named solver for a system of ``n`` points, with the budgets given.

    Args:
        name: one of ``SOLVERS``.
        n: number of data; budgets in steps, and batches as fractions of the data, depend on it.
        cg: budget of conjugate gradients; ``None`` for the defaults, a relative residual of 1e-2.
        sdd: budget of stochastic dual descent; likewise.
    Raises:
        ValueError: if the name is unknown.
    """
    return _MAKERS[check_solver(name)](n, cg or CGBudget(), sdd or SDDBudget())
