"""Bayesian optimisation with Gaussian processes on large data and in large batches.

The public names of `surrogates`, `acquisition` and `scalable_bo` in one place. Each is imported at
its first use, so that `import scalable_bo`, and with it the command line's `--help`, is quick.
"""

from typing import TYPE_CHECKING, Any

from scalable_bo._packages import check_sibling_packages, installed_version

check_sibling_packages()

if TYPE_CHECKING:
    from acquisition import (
        ParallelThompsonSampling,
        PathwiseMaxPosteriorSampling,
        PathwiseThompsonSampling,
        TrustRegion,
    )
    from scalable_bo.evaluation.external import Command
    from scalable_bo.problems import GPPrior, Problem, TestFunction, test_function
    from scalable_bo.progress import fit
    from scalable_bo.space.space import Categorical, Float, Int, LinearConstraint, Space
    from scalable_bo.storage.rounds import AskReport, Batch, Result, Round
    from scalable_bo.study.study import Study
    from surrogates import (
        CG,
        SCGD,
        SDD,
        SGD,
        AttentionFeatures,
        Auto,
        BatchPaths,
        Checkpoint,
        Cholesky,
        DistributedKernelSystem,
        FeatureKernel,
        FiniteFeatureGP,
        FitAccount,
        FourierFeatures,
        InducingPathwiseGP,
        Minimax,
        Nystrom,
        NystromFeatures,
        NystromSGM,
        PathwiseGP,
        PivotedCholesky,
        PriorPaths,
        RandomFeatures,
        SamplePaths,
        SketchAndProject,
        Solution,
        UnsolvedWarning,
        VariationalGP,
        choose_fit,
        choose_inducing_points,
        fit_exact,
        fit_finite_features,
        fit_iterative,
        fit_minibatch,
        fit_sample,
        fit_subsets,
        fit_variational,
        gaussian_likelihood,
        own_rows,
        predict_by_neighbours,
        processes,
        shared_paths,
    )

__all__ = [
    "CG",
    "SCGD",
    "SDD",
    "SGD",
    "AskReport",
    "AttentionFeatures",
    "Auto",
    "Batch",
    "BatchPaths",
    "Categorical",
    "Checkpoint",
    "Cholesky",
    "Command",
    "DistributedKernelSystem",
    "FeatureKernel",
    "FiniteFeatureGP",
    "FitAccount",
    "Float",
    "FourierFeatures",
    "GPPrior",
    "InducingPathwiseGP",
    "Int",
    "LinearConstraint",
    "Minimax",
    "Nystrom",
    "NystromFeatures",
    "NystromSGM",
    "ParallelThompsonSampling",
    "PathwiseGP",
    "PathwiseMaxPosteriorSampling",
    "PathwiseThompsonSampling",
    "PivotedCholesky",
    "PriorPaths",
    "Problem",
    "RandomFeatures",
    "Result",
    "Round",
    "SamplePaths",
    "SketchAndProject",
    "Solution",
    "Space",
    "Study",
    "TestFunction",
    "TrustRegion",
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
    "own_rows",
    "predict_by_neighbours",
    "processes",
    "shared_paths",
    "test_function",
]

_MODULES = {
    "acquisition": (
        "ParallelThompsonSampling",
        "PathwiseMaxPosteriorSampling",
        "PathwiseThompsonSampling",
        "TrustRegion",
    ),
    "scalable_bo.evaluation.external": ("Command",),
    "scalable_bo.problems": ("GPPrior", "Problem", "TestFunction", "test_function"),
    "scalable_bo.progress": ("fit",),
    "scalable_bo.storage.rounds": ("AskReport", "Batch", "Result", "Round"),
    "scalable_bo.space.space": ("Categorical", "Float", "Int", "LinearConstraint", "Space"),
    "scalable_bo.study.study": ("Study",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return installed_version()
    if name not in __all__:
        raise AttributeError(f"module 'scalable_bo' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME.get(name, "surrogates")), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
