"""Solvers of (K + Σ) W = B: each a frozen dataclass, which is its own configuration."""

from surrogates.solvers.auto import Auto
from surrogates.solvers.cg import CG
from surrogates.solvers.checkpoint import Checkpoint
from surrogates.solvers.cholesky import Cholesky
from surrogates.solvers.registry import SOLVERS, make_solver
from surrogates.solvers.run import IterativeSolver
from surrogates.solvers.sdd import SDD
from surrogates.solvers.sgd import SGD
from surrogates.solvers.sketch_and_project import SketchAndProject
from surrogates.solvers.solver import Callback, Progress, Solution, Solver, UnsolvedWarning
from surrogates.solvers.state import State

__all__ = [
    "CG",
    "SDD",
    "SGD",
    "SOLVERS",
    "Auto",
    "Callback",
    "Checkpoint",
    "Cholesky",
    "IterativeSolver",
    "Progress",
    "SketchAndProject",
    "Solution",
    "Solver",
    "State",
    "UnsolvedWarning",
    "make_solver",
]
