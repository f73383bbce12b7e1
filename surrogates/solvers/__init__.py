"""Solvers of (K + Σ) W = B: each a frozen dataclass, which is its own configuration."""

from surrogates.solvers.auto import Auto
from surrogates.solvers.base import Callback, IterativeSolver, Progress, Solution, Solver, State
from surrogates.solvers.cg import CG
from surrogates.solvers.cholesky import Cholesky
from surrogates.solvers.sdd import SDD
from surrogates.solvers.sgd import SGD
from surrogates.solvers.sketch_and_project import SketchAndProject

__all__ = [
    "CG",
    "SDD",
    "SGD",
    "Auto",
    "Callback",
    "Cholesky",
    "IterativeSolver",
    "Progress",
    "SketchAndProject",
    "Solution",
    "Solver",
    "State",
]
