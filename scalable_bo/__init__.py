"""Bayesian optimisation with Gaussian processes on large data and in large batches.

The public names of `surrogates`, `acquisition` and `scalable_bo` in one place. Each is imported at
its first use, so that `import scalable_bo`, and with it the command line's `--help`, is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from scalable_bo._packages import check_sibling_packages, installed_version

check_sibling_packages("surrogates", "acquisition")

# The public names as type checkers read them, and again by module as they are imported
if TYPE_CHECKING:
    from acquisition import ParallelThompsonSampling as ParallelThompsonSampling
    from acquisition import PathwiseMaxPosteriorSampling as PathwiseMaxPosteriorSampling
    from acquisition import PathwiseThompsonSampling as PathwiseThompsonSampling
    from acquisition import TrustRegion as TrustRegion
    from scalable_bo.evaluation.external import Command as Command
    from scalable_bo.evaluation.progress import fit as fit
    from scalable_bo.experiments.problems import GPPrior as GPPrior
    from scalable_bo.experiments.problems import Problem as Problem
    from scalable_bo.experiments.problems import TestFunction as TestFunction
    from scalable_bo.experiments.problems import test_function as test_function
    from scalable_bo.serving.client import RemoteStudy as RemoteStudy
    from scalable_bo.serving.server import Server as Server
    from scalable_bo.space.space import Categorical as Categorical
    from scalable_bo.space.space import Float as Float
    from scalable_bo.space.space import Int as Int
    from scalable_bo.space.space import LinearConstraint as LinearConstraint
    from scalable_bo.space.space import Space as Space
    from scalable_bo.storage.fingerprints import FingerprintFile as FingerprintFile
    from scalable_bo.storage.points import EachPoint as EachPoint
    from scalable_bo.storage.points import Point as Point
    from scalable_bo.storage.rounds import AskReport as AskReport
    from scalable_bo.storage.rounds import Batch as Batch
    from scalable_bo.storage.rounds import Result as Result
    from scalable_bo.storage.rounds import Round as Round
    from scalable_bo.study.study import Study as Study
    from surrogates import CG as CG
    from surrogates import SCGD as SCGD
    from surrogates import SDD as SDD
    from surrogates import SGD as SGD
    from surrogates import AttentionFeatures as AttentionFeatures
    from surrogates import Auto as Auto
    from surrogates import BatchPaths as BatchPaths
    from surrogates import Checkpoint as Checkpoint
    from surrogates import Cholesky as Cholesky
    from surrogates import DistributedKernelSystem as DistributedKernelSystem
    from surrogates import FeatureKernel as FeatureKernel
    from surrogates import FineStructureWarning as FineStructureWarning
    from surrogates import FiniteFeatureGP as FiniteFeatureGP
    from surrogates import FitAccount as FitAccount
    from surrogates import FourierFeatures as FourierFeatures
    from surrogates import GPRegressor as GPRegressor
    from surrogates import InducingPathwiseGP as InducingPathwiseGP
    from surrogates import Minimax as Minimax
    from surrogates import NoSignalWarning as NoSignalWarning
    from surrogates import Nystrom as Nystrom
    from surrogates import NystromFeatures as NystromFeatures
    from surrogates import NystromSGM as NystromSGM
    from surrogates import PathwiseGP as PathwiseGP
    from surrogates import PivotedCholesky as PivotedCholesky
    from surrogates import PriorPaths as PriorPaths
    from surrogates import RandomFeatures as RandomFeatures
    from surrogates import SamplePaths as SamplePaths
    from surrogates import SketchAndProject as SketchAndProject
    from surrogates import Solution as Solution
    from surrogates import TanimotoKernel as TanimotoKernel
    from surrogates import UnsolvedWarning as UnsolvedWarning
    from surrogates import VariationalGP as VariationalGP
    from surrogates import choose_fit as choose_fit
    from surrogates import choose_inducing_points as choose_inducing_points
    from surrogates import fit_exact as fit_exact
    from surrogates import fit_finite_features as fit_finite_features
    from surrogates import fit_iterative as fit_iterative
    from surrogates import fit_minibatch as fit_minibatch
    from surrogates import fit_sample as fit_sample
    from surrogates import fit_subsets as fit_subsets
    from surrogates import fit_variational as fit_variational
    from surrogates import gaussian_likelihood as gaussian_likelihood
    from surrogates import multi_task_kernel as multi_task_kernel
    from surrogates import own_rows as own_rows
    from surrogates import predict_by_neighbours as predict_by_neighbours
    from surrogates import processes as processes
    from surrogates import register_kernel as register_kernel
    from surrogates import shared_paths as shared_paths

_NAMES = {
    "acquisition": (
        "ParallelThompsonSampling PathwiseMaxPosteriorSampling PathwiseThompsonSampling TrustRegion"
    ),
    "scalable_bo.evaluation.external": "Command",
    "scalable_bo.evaluation.progress": "fit",
    "scalable_bo.experiments.problems": "GPPrior Problem TestFunction test_function",
    "scalable_bo.serving.client": "RemoteStudy",
    "scalable_bo.serving.server": "Server",
    "scalable_bo.space.space": "Categorical Float Int LinearConstraint Space",
    "scalable_bo.storage.fingerprints": "FingerprintFile",
    "scalable_bo.storage.points": "EachPoint Point",
    "scalable_bo.storage.rounds": "AskReport Batch Result Round",
    "scalable_bo.study.study": "Study",
    "surrogates": (
        "CG SCGD SDD SGD AttentionFeatures Auto BatchPaths Checkpoint Cholesky "
        "DistributedKernelSystem FeatureKernel FineStructureWarning FiniteFeatureGP FitAccount "
        "FourierFeatures GPRegressor InducingPathwiseGP Minimax NoSignalWarning Nystrom "
        "NystromFeatures NystromSGM PathwiseGP PivotedCholesky PriorPaths RandomFeatures "
        "SamplePaths SketchAndProject Solution TanimotoKernel UnsolvedWarning VariationalGP "
        "choose_fit choose_inducing_points fit_exact fit_finite_features fit_iterative "
        "fit_minibatch fit_sample fit_subsets fit_variational gaussian_likelihood "
        "multi_task_kernel own_rows predict_by_neighbours processes register_kernel shared_paths"
    ),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return installed_version()
    if name not in _HOME:
        raise AttributeError(f"module 'scalable_bo' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
