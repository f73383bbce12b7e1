"""The solvers by name: the one list that the experiments and the messages of errors read, and with
which a test compares the names in the help of the command line.

A further solver is one line of ``SOLVERS``.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from surrogates import checks
from surrogates.solvers.auto import Auto
from surrogates.solvers.cg import CG
from surrogates.solvers.cholesky import Cholesky
from surrogates.solvers.sdd import SDD
from surrogates.solvers.sgd import SGD
from surrogates.solvers.sketch_and_project import SketchAndProject
from surrogates.solvers.solver import Solver

# Each takes the settings of the solver's class by keyword, and has defaults for all of them
SOLVERS: dict[str, Callable[..., Solver]] = {
    "auto": Auto,
    "cholesky": Cholesky,
    "cg": CG,
    "sdd": SDD,
    "sdd-1": partial(SDD, step_size=1.0),
    "sdd-10": partial(SDD, step_size=10.0),
    "sdd-100": partial(SDD, step_size=100.0),
    "sgd": SGD,
    "sap": SketchAndProject.sap,
    "asap": SketchAndProject.asap,
    "adasap": SketchAndProject.adasap,
    "adasap-i": SketchAndProject.adasap_identity,
}


def check_solver(name: str) -> str:
    """Return ``name`` if there is a solver of that name.

    Raises:
        ValueError: if there is none; the message lists those there are.
    """
    return checks.one_of("solver", name, SOLVERS)


def make_solver(name: str, **settings: Any) -> Solver:
    """Return the named solver, with its own settings but for those given.

    The solver is a dataclass: ``dataclasses.fields`` tells which settings it has, and
    ``dataclasses.replace`` changes them.

    Args:
        name: one of ``SOLVERS``.
        settings: by the names of the solver's fields.

    Raises:
        TypeError: for a setting that the solver does not have.
        ValueError: if the name is unknown, or a setting out of range.
    """
    return SOLVERS[check_solver(name)](**settings)
