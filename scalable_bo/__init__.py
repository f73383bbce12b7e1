"""Bayesian optimisation with Gaussian processes on large data and in large batches.

The public names of `surrogates`, `acquisition` and `scalable_bo` in one place. Each is imported at its first use, so
that `import scalable_bo`, and with it the command line's `--help`, is quick.
"""

from typing import TYPE_CHECKING, Any

from scalable_bo._packages import check_sibling_packages

check_sibling_packages()

if TYPE_CHECKING:
    from acquisition import ParallelThompsonSampling, TrustRegion
    from scalable_bo.problems import GPPrior, Problem, TestFunction, test_function
    from scalable_bo.space import Float, Space
    from scalable_bo.study import AskReport, Batch, Result, Round, Study
    from surrogates import (
        CG,
        SDD,
        SGD,
        Auto,
        Cholesky,
        InducingPathwiseGP,
        Nystrom,
        NystromSGM,
        PathwiseGP,
        PivotedCholesky,
        PriorPaths,
        RandomFeatures,
        SamplePaths,
        SketchAndProject,
        Solution,
        VariationalGP,
        choose_inducing_points,
        fit_exact,
        fit_variational,
        gaussian_likelihood,
    )

__all__ = [
    "CG",
    "SDD",
    "SGD",
    "AskReport",
    "Auto",
    "Batch",
    "Cholesky",
    "Float",
    "GPPrior",
    "InducingPathwiseGP",
    "Nystrom",
    "NystromSGM",
    "ParallelThompsonSampling",
    "PathwiseGP",
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
    "VariationalGP",
    "choose_inducing_points",
    "fit_exact",
    "fit_variational",
    "gaussian_likelihood",
    "test_function",
]

_MODULES = {
    "acquisition": ("ParallelThompsonSampling", "TrustRegion"),
    "scalable_bo.problems": ("GPPrior", "Problem", "TestFunction", "test_function"),
    "scalable_bo.space": ("Float", "Space"),
    "scalable_bo.study": ("AskReport", "Batch", "Result", "Round", "Study"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("scalable-bo")
        except PackageNotFoundError:  # run from a source tree that was not installed
            return "0+unknown"
    if name not in __all__:
        raise AttributeError(f"module 'scalable_bo' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME.get(name, "surrogates")), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
