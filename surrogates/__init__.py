"""Gaussian processes whose posterior is a set of functions, computed by iterative solvers."""

from surrogates.features import PriorPaths, RandomFeatures
from surrogates.fitting import fit_exact
from surrogates.models import PathwiseGP, gaussian_likelihood
from surrogates.operators import Dense, KernelOperator, Tiled, kernel_operator
from surrogates.paths import SamplePaths
from surrogates.preconditioners import Exact, Identity, Nystrom, PivotedCholesky, Preconditioner
from surrogates.solvers import CG, SDD, SGD, Cholesky, IterativeSolver, Progress, SketchAndProject, Solution, Solver
from surrogates.systems import KernelSystem, Targets

__all__ = [
    "CG",
    "SDD",
    "SGD",
    "Cholesky",
    "Dense",
    "Exact",
    "Identity",
    "IterativeSolver",
    "KernelOperator",
    "KernelSystem",
    "Nystrom",
    "PathwiseGP",
    "PivotedCholesky",
    "Preconditioner",
    "PriorPaths",
    "Progress",
    "RandomFeatures",
    "SamplePaths",
    "SketchAndProject",
    "Solution",
    "Solver",
    "Targets",
    "Tiled",
    "fit_exact",
    "gaussian_likelihood",
    "kernel_operator",
]
