"""Gaussian processes whose posterior is a set of functions, computed by iterative solvers."""

from surrogates.dispatch import PathwiseSamplePath
from surrogates.distributed_system import DistributedKernelSystem
from surrogates.fantasies import FantasyGP
from surrogates.feature_maps import (
    AttentionFeatures,
    FeatureKernel,
    FourierFeatures,
    NystromFeatures,
)
from surrogates.features import PriorPaths, RandomFeatures
from surrogates.finite_features import FiniteFeatureGP
from surrogates.fitting import (
    SCGD,
    Minimax,
    choose_fit,
    fit,
    fit_exact,
    fit_finite_features,
    fit_iterative,
    fit_minibatch,
    fit_subsets,
    fit_variational,
)
from surrogates.inducing import choose_inducing_points
from surrogates.inducing_models import InducingPathwiseGP
from surrogates.models import PathwiseGP
from surrogates.neighbour_prediction import predict_by_neighbours
from surrogates.noise import gaussian_likelihood
from surrogates.nystrom_sgm import NystromSGM
from surrogates.operators import Dense, KernelOperator, Tiled, kernel_operator
from surrogates.operators.distributed import SharedRows, own_rows, processes
from surrogates.paths import BatchPaths, SamplePaths
from surrogates.preconditioners import Exact, Identity, Nystrom, PivotedCholesky, Preconditioner
from surrogates.shared_paths import shared_paths
from surrogates.solvers import (
    CG,
    SDD,
    SGD,
    Auto,
    Checkpoint,
    Cholesky,
    IterativeSolver,
    Progress,
    SketchAndProject,
    Solution,
    Solver,
)
from surrogates.systems import InducingSystem, KernelSystem, Targets
from surrogates.variational import VariationalGP

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
    "FourierFeatures",
    "Identity",
    "InducingPathwiseGP",
    "InducingSystem",
    "IterativeSolver",
    "KernelOperator",
    "KernelSystem",
    "Minimax",
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
    "Targets",
    "Tiled",
    "VariationalGP",
    "choose_fit",
    "choose_inducing_points",
    "fit",
    "fit_exact",
    "fit_finite_features",
    "fit_iterative",
    "fit_minibatch",
    "fit_subsets",
    "fit_variational",
    "gaussian_likelihood",
    "kernel_operator",
    "own_rows",
    "predict_by_neighbours",
    "processes",
    "shared_paths",
]
