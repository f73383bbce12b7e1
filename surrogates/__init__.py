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
from surrogates.functions.tasks import multi_task_kernel
from surrogates.models.data import gaussian_likelihood
from surrogates.models.fantasies import FantasyGP
from surrogates.models.finite_feature_gp import FiniteFeatureGP
from surrogates.models.inducing_gp import InducingPathwiseGP
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

__all__ = ["Dense", "KernelOperator", "TanimotoKernel", "Tiled", "kernel_operator"]
__all__ += ["DistributedKernelSystem", "InducingSystem", "KernelSystem", "SharedRows", "Targets"]
__all__ += ["Exact", "Identity", "Nystrom", "PivotedCholesky", "Preconditioner"]
__all__ += ["CG", "SDD", "SGD", "Auto", "Cholesky", "IterativeSolver", "SketchAndProject", "Solver"]
__all__ += ["Checkpoint", "Progress", "Solution", "UnsolvedWarning", "own_rows", "processes"]
__all__ += ["AttentionFeatures", "FeatureKernel", "FourierFeatures", "NystromFeatures"]
__all__ += ["BatchPaths", "PathwiseSamplePath", "PriorPaths", "RandomFeatures", "SamplePaths"]
__all__ += ["register_kernel", "shared_paths"]
__all__ += ["FantasyGP", "FiniteFeatureGP", "InducingPathwiseGP", "PathwiseGP", "VariationalGP"]
__all__ += ["choose_inducing_points", "gaussian_likelihood", "multi_task_kernel"]
__all__ += ["SCGD", "FineStructureWarning", "FitAccount", "Minimax", "NoSignalWarning"]
__all__ += ["choose_fit", "fit", "fit_exact", "fit_finite_features", "fit_iterative"]
__all__ += ["fit_minibatch", "fit_sample", "fit_subsets", "fit_variational"]
__all__ += ["GPRegressor", "NystromSGM", "predict_by_neighbours"]


def __getattr__(name: str) -> Any:
    if name not in _ESTIMATORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.regressors.{_ESTIMATORS[name]}"), name)
