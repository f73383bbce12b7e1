"""The options of ``scalable-bo bench``: a dataclass a command, which a function of one argument
takes. Quick to import.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from typer import Option

from scalable_bo.cli.console import solver_names

_SOLVERS = ", ".join(solver_names())
Solvers = Annotated[str, Option(help=f"Solvers, separated by commas: {_SOLVERS}.")]
Text = str | None
Whole = int | None
Noise = Annotated[
    float | None, Option(help="Noise variance, such as 1e-6, instead of the given or fitted one.")
]
Rerun = Annotated[bool, Option("--rerun", help="Run also what the folder has a record of.")]
Out = Annotated[Path, Option(help="Folder for the records and the plot, made if needed.")]
DataDir = Annotated[
    Path | None, Option(help="Folder of the data sets.  [default: ../shared/data/uci]")
]
Dtype = Annotated[str, Option(help="float32 or float64.")]
Device = Annotated[str, Option(help="Device to compute on: cpu, cuda, cuda:1.")]
Options = TypeVar("Options")


@dataclass(frozen=True)
class ThompsonOptions:
    """The options of ``bench thompson``."""

    preset: Annotated[
        str, Option(help="Settings: smoke, laptop, lin2023-small, lin2023-large or adasap2025.")
    ] = "laptop"
    solver: Annotated[str, Option(help=f"Methods, separated by commas: {_SOLVERS}, svgp.")] = (
        "auto,cg"
    )
    seeds: Annotated[Text, Option(help="Seeds, such as 0-4 or 0,3; by default the preset's.")] = (
        None
    )
    lengthscale: Annotated[
        Text, Option(help="Lengthscales, separated by commas; by default the preset's.")
    ] = None
    rounds: Annotated[Whole, Option(help="Rounds, instead of the preset's.")] = None
    q: Annotated[Whole, Option(help="Points a round, instead of the preset's.")] = None
    num_initial: Annotated[Whole, Option(help="Initial points, instead of the preset's.")] = None
    dtype: Annotated[Text, Option(help="float32 or float64, instead of the preset's.")] = None
    share_features: Annotated[
        bool,
        Option(
            "--share-features",
            help="As published: let the surrogate's paths use the target's own random features.",
        ),
    ] = False
    coordinate_features: Annotated[
        bool,
        Option(
            "--coordinate-features",
            help="As published: random features of a product of one-dimensional Matérn kernels.",
        ),
    ] = False
    published_weights: Annotated[
        bool,
        Option(
            "--published-weights",
            help="As published: candidates around data drawn by y + min y, in place of y - min y.",
        ),
    ] = False
    own_search: Annotated[
        bool,
        Option(
            "--own-search",
            help="Maximise the paths by the defaults of this package, not the preset's settings.",
        ),
    ] = False
    scale: Annotated[
        float,
        Option(
            help="Factor of data, batches and candidates, at most 1; its root is that of rounds and"
            " features."
        ),
    ] = 1.0
    rerun: Annotated[
        bool,
        Option("--rerun", help="Run also what the folder has a record of, from the first round."),
    ] = False
    device: Device = "cpu"
    out: Out = Path("results")


@dataclass(frozen=True)
class RegressionOptions:
    """The options of ``bench regression``."""

    data: Annotated[
        str,
        Option(
            help="Data sets, separated by commas: pol, elevators, bike, protein, keggdirected; or"
            " your .parquet and .csv tables."
        ),
    ] = "pol"
    split: Annotated[str, Option(help="Splits, such as 0 or 0-4.")] = "0"
    solver: Annotated[
        str,
        Option(
            help=f"Methods, separated by commas: {_SOLVERS}, sgd-inducing, inducing, svgp, subset."
        ),
    ] = "cg"
    noise: Noise = None
    mean_only: Annotated[
        bool,
        Option("--mean-only", help="Compute the posterior mean alone: no paths, no likelihood."),
    ] = False
    tolerance: Annotated[
        float | None,
        Option(
            help="Relative residual at which a column stops, in place of the posterior's error."
        ),
    ] = None
    max_epochs: Annotated[
        float, Option(help="Passes over the kernel matrix that a method may spend.")
    ] = 100.0
    sgd_steps: Annotated[
        int, Option(help="Steps of sgd and sgd-inducing, all of which they take.")
    ] = 100_000
    num_points: Annotated[int, Option(help="Inducing points, or points of the subset.")] = 4096
    target: Annotated[Text, Option(help="Column of your table to predict from all others.")] = None
    test_fraction: Annotated[
        float, Option(help="Part of your table to test on, chosen at random for each split.")
    ] = 0.1
    rerun: Rerun = False
    data_dir: DataDir = None
    dtype: Dtype = "float32"
    device: Device = "cpu"
    out: Out = Path("results")


@dataclass(frozen=True)
class HyperparametersOptions:
    """The options of ``bench hyperparameters``."""

    preset: Annotated[
        str,
        Option(
            help="Benchmark: recovery, penalty, simulated, real, epochs, millions, batch-sizes,"
            " curvature or memory."
        ),
    ] = "recovery"
    method: Annotated[
        Text,
        Option(
            help="Methods, separated by commas, instead of the preset's: nearest, uniform, subsets,"
            " refined, iterative, exact, sgpr, scgd; "
            "recovery and penalty: also minimax-MU, exact-features; data: also auto;"
            " batch-sizes, memory: scgd, minimax, biased, svgp."
        ),
    ] = None
    data: Annotated[
        Text,
        Option(
            help="Data, separated by commas: levy, griewank, borehole, otl, wing; or sets such as"
            " bike, protein."
        ),
    ] = None
    kernel: Annotated[
        Text, Option(help="Kernels over a network, separated by commas: linear, gaussian.")
    ] = None
    seeds: Annotated[Text, Option(help="Seeds of data, splits and methods, such as 0-9.")] = None
    n: Annotated[Whole, Option(help="Points, of training and test together.")] = None
    epochs: Annotated[Whole, Option(help="Passes over the data at most.")] = None
    batch_sizes: Annotated[Text, Option(help="Sizes of minibatches, such as 32,128.")] = None
    rerun: Rerun = False
    data_dir: DataDir = None
    device: Device = "cpu"
    out: Out = Path("results")


@dataclass(frozen=True)
class SolversOptions:
    """The options of ``bench solvers``."""

    data: Annotated[
        str, Option(help="Data set: pol, elevators, bike, protein or keggdirected.")
    ] = "pol"
    split: Annotated[int, Option(help="Split of the data set.")] = 0
    problem: Annotated[
        Text,
        Option(
            help="thompson: a function drawn from the prior on [0, 1]^8, instead of a data set."
        ),
    ] = None
    n: Annotated[
        int,
        Option(
            "--n",
            "--num-data",
            help="Points of the Thompson problem; torchrun takes --n for its own.",
        ),
    ] = 2000
    lengthscale: Annotated[float, Option(help="Lengthscale of the Thompson problem.")] = 0.5
    noise: Noise = None
    solver: Solvers = "sgd,sdd,cg,sap,adasap"
    epochs: Annotated[float, Option(help="Largest budget, in passes over the kernel matrix.")] = (
        100.0
    )
    points: Annotated[
        int,
        Option(
            help="Checkpoints, their budgets in geometric progression; each is a run of its own."
        ),
    ] = 12
    exact: Annotated[
        bool, Option(help="Compare with the exact solution, by Cholesky; up to 20 000 points.")
    ] = True
    data_dir: DataDir = None
    dtype: Dtype = "float32"
    device: Device = "cpu"
    out: Out = Path("results")


def taking(options: type[Options]) -> Callable[[Callable[[Options], None]], Callable[..., None]]:
    """Make a command of a function of one argument: its options are the fields of a dataclass,
    which Typer reads as it reads parameters.
    """
    hints = get_type_hints(options, include_extras=True)
    parameters = [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(options)  # type: ignore[arg-type]
    ]

    def decorate(function: Callable[[Options], None]) -> Callable[..., None]:
        @wraps(function)
        def command(**given: Any) -> None:
            function(options(**given))

        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = hints
        return command

    return decorate
