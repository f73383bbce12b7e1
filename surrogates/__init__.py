"""Gaussian processes whose posterior is a set of functions, computed by iterative solvers."""

from surrogates.dispatch import PathwiseSamplePath
from surrogates.features import PriorPaths, RandomFeatures
from surrogates.fitting import fit_exact, fit_variational
from surrogates.inducing import choose_inducing_points
from surrogates.inducing_models import InducingPathwiseGP
from surrogates.models import PathwiseGP
from surrogates.noise import gaussian_likelihood
from surrogates.nystrom_sgm import NystromSGM
from surrogates.operators import Dense, KernelOperator, Tiled, kernel_operator
from surrogates.paths import SamplePaths
from surrogates.preconditioners import Exact, Identity, Nystrom, PivotedCholesky, Preconditioner
from surrogates.solvers import CG, SDD, SGD, Auto, Cholesky, IterativeSolver, Progress, SketchAndProject, Solution, Solver
from surrogates.systems import InducingSystem, KernelSystem, Targets
from surrogates.variational import VariationalGP

__all__ = [
    "CG",
    "SDD",
    "SGD",
    "Auto",
    "Cholesky",
    "Dense",
    "Exact",
    "Identity",
    "InducingPathwiseGP",
    "InducingSystem",
    "IterativeSolver",
    "KernelOperator",
    "KernelSystem",
    "Nystrom",
    "NystromSGM",
    "PathwiseGP",
    "PathwiseSamplePath",
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
    "VariationalGP",
    "choose_inducing_points",
    "fit_exact",
    "fit_variational",
    "gaussian_likelihood",
    "kernel_operator",
]
