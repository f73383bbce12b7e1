"""Gaussian processes whose posterior is a set of functions, computed by iterative solvers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from surrogates.fitting.account import FineStructureWarning, FitAccount, NoSignalWarning
from surrogates.fitting.choice import choose_fit, fit
from surrogates.fitting.exact import fit_exact
from surrogates.fitting.hook import custom_fit as _  # noqa: F401  # which registers itself
from surrogates.fitting.iterative import fit_iterative
from surrogates.fitting.minibatch import fit_minibatch
from surrogates.fitting.sample import fit_sample
from surrogates.fitting.subsets import fit_subsets
from surrogates.functions.feature_maps import (
    AttentionFeatures,
    FeatureKernel,
    FourierFeatures,
    NystromFeatures,
)
from surrogates.functions.features import PriorPaths, RandomFeatures
from surrogates.functions.paths import BatchPaths, SamplePaths
from surrogates.functions.spectra import register_kernel
from surrogates.models.data import gaussian_likelihood
from surrogates.models.fantasies import FantasyGP
from surrogates.models.finite_feature_gp import FiniteFeatureGP
from surrogates.models.inducing_gp import InducingPathwiseGP
from surrogates.models.multi_task import multi_task_kernel
from surrogates.models.pathwise import PathwiseGP
from surrogates.models.registrations import PathwiseSamplePath
from surrogates.models.shared_paths import shared_paths
from surrogates.models.variational_gp import VariationalGP
from surrogates.operators.kernel_matrix import Dense, KernelOperator, Tiled, kernel_operator
from surrogates.operators.tanimoto import TanimotoKernel
from surrogates.regressors.by_neighbours import predict_by_neighbours
from surrogates.rules.finite_features_fit import fit_finite_features
from surrogates.rules.finite_objective import SCGD, Minimax
from surrogates.rules.inducing_points import choose_inducing_points
from surrogates.rules.variational_fit import fit_variational
from surrogates.solvers.auto import Auto
from surrogates.solvers.cg import CG
from surrogates.solvers.checkpoint import Checkpoint
from surrogates.solvers.cholesky import Cholesky
from surrogates.solvers.run import IterativeSolver
from surrogates.solvers.sdd import SDD
from surrogates.solvers.sgd import SGD
from surrogates.solvers.sketch_and_project import SketchAndProject
from surrogates.solvers.solver import Progress, Solution, Solver, UnsolvedWarning
from surrogates.systems.inducing_system import InducingSystem
from surrogates.systems.preconditioners import (
    Exact,
    Identity,
    Nystrom,
    PivotedCholesky,
    Preconditioner,
)
from surrogates.systems.processes import own_rows, processes
from surrogates.systems.shared import DistributedKernelSystem
from surrogates.systems.shared_rows import SharedRows
from surrogates.systems.system import KernelSystem, Targets

if TYPE_CHECKING:
    from surrogates.regressors.gp_regressor import GPRegressor
    from surrogates.regressors.nystrom_sgm import NystromSGM

# Imported at their first use: scikit-learn takes as long to import as all the rest beside PyTorch
_ESTIMATORS = {"GPRegressor": "gp_regressor", "NystromSGM": "nystrom_sgm"}

__all__ = [
    "CG",
    "SCGD",
    "SDD",
    "SGD",
    "AttentionFeatures",
    "Auto",
    "BatchPaths",
    "Checkpoint",
    "Cholesky",
    "Dense",
    "DistributedKernelSystem",
    "Exact",
    "FantasyGP",
    "FeatureKernel",
    "FiniteFeatureGP",
    "FineStructureWarning",
    "FitAccount",
    "FourierFeatures",
    "GPRegressor",
    "Identity",
    "InducingPathwiseGP",
    "InducingSystem",
    "IterativeSolver",
    "KernelOperator",
    "KernelSystem",
    "Minimax",
    "NoSignalWarning",
    "Nystrom",
    "NystromFeatures",
    "NystromSGM",
    "PathwiseGP",
    "PathwiseSamplePath",
    "PivotedCholesky",
    "Preconditioner",
    "PriorPaths",
    "Progress",
    "RandomFeatures",
    "SamplePaths",
    "SharedRows",
    "SketchAndProject",
    "Solution",
    "Solver",
    "TanimotoKernel",
    "Targets",
    "Tiled",
    "UnsolvedWarning",
    "VariationalGP",
    "choose_fit",
    "choose_inducing_points",
    "fit",
    "fit_exact",
    "fit_finite_features",
    "fit_iterative",
    "fit_minibatch",
    "fit_sample",
    "fit_subsets",
    "fit_variational",
    "gaussian_likelihood",
    "kernel_operator",
    "multi_task_kernel",
    "own_rows",
    "predict_by_neighbours",
    "processes",
    "register_kernel",
    "shared_paths",
]


def __getattr__(name: str) -> Any:
    if name not in _ESTIMATORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.regressors.{_ESTIMATORS[name]}"), name)
