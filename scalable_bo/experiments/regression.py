"""The regression benchmark: one cell is a data set's split with one method.

RMSE is that of the posterior mean on standardised targets; the negative log likelihood is that of
N(mean, v + noise), v the mean square of 64 posterior paths about the exact mean. The UCI sets come
with published Matérn-3/2 hyperparameters; those of a user's table are fitted.

References:
    Lin et al. (2023), "Sampling from Gaussian Process Posteriors using Stochastic Gradient
    Descent", Section 4.1.
    Differs: the noise is added to the predictive variance once.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scalable_bo.experiments import shared
from scalable_bo.experiments.hyperparameters import fit_hyperparameters
from scalable_bo.experiments.methods import (
    METHODS,
    Budget,
    Problem,
    SplitSolver,
    check_method,
    heeded,
    solver_within,
)
from scalable_bo.experiments.models import matern_kernel
from scalable_bo.experiments.records import describe_environment, finished_record, write_record
from scalable_bo.experiments.regression_data import (
    NUM_SPLITS,
    Hyperparameters,
    RegressionData,
    check_data_set,
    digest,
    is_table,
    load_hyperparameters,
    load_regression_data,
    read_table,
    split_table,
)
from surrogates import Solution, Solver, checks, kernel_operator

Status = Callable[[str], None]


@dataclass(frozen=True)
class RegressionRun:
    """One cell: a data set's split with one method.

    Args:
        data: the data set's name, or the path of a user's table ending in ``.parquet`` or ``.csv``.
        split: which of the ten test masks; of a user's table, the seed of the choice of test rows.
        solver: one of ``METHODS``.
        data_dir: folder of the data sets; ``None`` for ``../shared/data/uci``, from here or from
            the project's root.
        noise: noise variance σ² in place of the given or fitted one; ``None`` for that.
        mean_only: compute the posterior mean alone: an RMSE, and no likelihood.
        budget: of the method.
        target: column of the user's table to predict.
        test_fraction: of the rows of the user's table, in (0, 1).
        num_paths: posterior paths behind the predictive variance.
        seed: of the paths, the method and the fit of hyperparameters.
        dtype: ``float32`` or ``float64``.
        device: where to compute.
    Raises:
        TypeError, ValueError: if the method is unknown, a number out of range, or a table without a
            target.
    """

    data: str
    split: int
    solver: str
    data_dir: Path | None = None
    noise: float | None = None
    mean_only: bool = False
    budget: Budget = field(default_factory=Budget)
    target: str | None = None
    test_fraction: float = 0.1
    num_paths: int = 64
    seed: int = 0
    dtype: str = "float32"
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_method(self.solver)
        checks.integer("split", self.split, 0)
        if not self.is_table and self.split >= NUM_SPLITS:
            raise ValueError(f"`split` must be between 0 and {NUM_SPLITS - 1}, got {self.split}.")
        if self.noise is not None:
            checks.positive_float("noise", self.noise, "Use a small value such as 1e-6.")
        if self.is_table != (self.target is not None):
            needs = (
                "must name the column to predict"
                if self.is_table
                else "goes with a table ending in .parquet or .csv only"
            )
            raise ValueError(f"`target` {needs}, got {self.target!r} for {self.data}.")
        if not 0.0 < self.test_fraction < 1.0:
            raise ValueError(f"`test_fraction` must be between 0 and 1, got {self.test_fraction}.")
        checks.positive_int("num_paths", self.num_paths)
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f"`dtype` must be float32 or float64, got {self.dtype!r}.")

    @property
    def is_table(self) -> bool:
        """Whether the data are a user's table."""
        return is_table(self.data)

    @property
    def label(self) -> str:
        """The data set's name in tables; that of a user's table is FILE.TARGET."""
        return f"{Path(self.data).stem}.{self.target}" if self.is_table else self.data

    @property
    def name(self) -> str:
        """A file name for the cell's record, without its ending;
        cells that differ in a result have names that differ.
        """
        noise = [] if self.noise is None else [f"noise{self.noise:g}"]
        parts = [
            self.label,
            str(self.split),
            self.solver,
            *noise,
            *(["mean"] if self.mean_only else []),
            *self.variation,
        ]
        return re.sub(r"[^\w.=-]", "-", "_".join(["regression", *parts]))

    @property
    def variation(self) -> list[str]:
        """What differs from the defaults and makes a row of its own in the table:
        words such as ``sgd_steps=1000``.
        """
        standard = asdict(Budget())
        words = [
            f"{key}={value:g}"
            for key, value in heeded(self.solver, self.budget).items()
            if value != standard[key]
        ]
        for entry in fields(self):
            if (
                entry.name in ("test_fraction", "num_paths", "seed", "dtype", "device")
                and (value := getattr(self, entry.name)) != entry.default
            ):
                words.append(f"{entry.name}={value}")
        return words

    def settings(self) -> dict[str, Any]:
        """Return all that decides the result, as it stands in the record:
        a cell with the same settings need not run again.
        """
        settings = {key: value for key, value in asdict(self).items() if key != "data_dir"}
        settings |= {
            "data": self.label,
            "budget": heeded(self.solver, self.budget),
            "variation": self.variation,
        }
        if self.is_table:
            return settings | {"sha256": digest(Path(self.data))}
        return {
            key: value for key, value in settings.items() if key not in ("target", "test_fraction")
        }


def check_files(run: RegressionRun) -> None:
    """Raise if the data are not there or, for a user's table, not usable.

    Raises:
        ValueError: naming what is missing or wrong, and the remedy.
    """
    if run.target is not None:
        read_table(Path(run.data), run.target)
    else:
        check_data_set(run.data, run.split, run.data_dir)


def load(
    run: RegressionRun, *, on_status: Status | None = None
) -> tuple[RegressionData, Hyperparameters]:
    """Return the cell's data, and their published hyperparameters or, for a user's table,
    fitted ones.
    """
    if run.target is None:
        return load_regression_data(run.data, run.split, run.data_dir), load_hyperparameters(
            run.data, run.split, run.data_dir
        )
    data = split_table(read_table(Path(run.data), run.target), run.split, run.test_fraction)
    return data, fit_hyperparameters(
        data.train_X.to(run.device), data.train_y.to(run.device), seed=run.seed, on_status=on_status
    )


def run_cells(
    runs: Sequence[RegressionRun],
    folder: Path,
    *,
    rerun: bool = False,
    on_status: Status | None = None,
) -> Iterator[tuple[RegressionRun, dict[str, Any], bool]]:
    """Run the cells one after the other, each record written as it comes; yield cell, record, and
    whether it was kept.

    Args:
        runs: the cells; those of one data set and split next to each other share its data and
            hyperparameters.
        folder: of the records. A record there with the same settings is kept and its cell not run.
        rerun: run those cells, too.
        on_status: called with a few words on what is happening now.
    """
    loaded: tuple[Any, Any] = (None, None)
    for run in runs:
        path = folder / f"{run.name}.json"
        settings = run.settings()
        record = shared.of_first(None if rerun else finished_record(path, settings))
        kept = record is not None
        if record is None:
            key = (run.data, run.split, run.data_dir, run.target, run.test_fraction, run.seed)
            if loaded[0] != key:
                loaded = (key, load(run, on_status=on_status))
            record = run_regression(run, loaded[1], on_status=on_status)
            write_record(path, record)
        yield run, record, kept


def run_regression(
    run: RegressionRun,
    loaded: tuple[RegressionData, Hyperparameters] | None = None,
    *,
    on_status: Status | None = None,
) -> dict[str, Any]:
    """Run one cell.

    Args:
        run: what to run.
        loaded: what ``load(run)`` returned; ``None`` to load it.
        on_status: called with a few words on what is happening now.
    Returns:
        The record: ``experiment``, ``settings``, ``method`` (the solver's settings),
            ``hyperparameters``, ``environment``,
        ``num_train``, ``num_test``, ``num_weights`` (of the posterior mean), ``rmse``, ``nll``
        (``None`` for a mean alone), ``seconds`` (model and solve), ``seconds_prediction``,
        ``epochs``, ``residual`` (the worst relative one) and ``note``; the last three are ``None``
        for methods without a linear solver.
    """
    data, hyperparameters = load(run, on_status=on_status) if loaded is None else loaded
    device = torch.device(run.device)
    dtype = getattr(torch, run.dtype)
    noise = hyperparameters.noise if run.noise is None else run.noise
    kernel = matern_kernel(
        torch.tensor(hyperparameters.lengthscale), hyperparameters.outputscale
    ).to(device, dtype)
    train_X, train_y, test_X = (
        tensor.to(device, dtype) for tensor in (data.train_X, data.train_y, data.test_X)
    )
    if on_status is not None:
        on_status("preparing")
    start = time.perf_counter()
    problem = Problem(train_X, train_y, kernel, noise, run.mean_only, run.budget, run.seed)
    posterior = (_model_posterior if shared.num_processes() == 1 else _shared_mean)(
        run, problem, on_status
    )
    solved = time.perf_counter()
    solution = posterior.solution
    with torch.no_grad():
        mean = posterior.mean(test_X).double().cpu()
        nll = None
        if posterior.values is not None:
            variance = (posterior.values(test_X).double().cpu() - mean).square().mean(0) + noise
            nll = negative_log_likelihood(data.test_y, mean, variance)
    predicted = time.perf_counter()
    return {
        "experiment": "regression",
        "settings": run.settings(),
        "method": None if posterior.solver is None else repr(posterior.solver),
        "hyperparameters": asdict(hyperparameters) | {"noise": noise},
        "environment": describe_environment(device) | {"processes": shared.num_processes()},
        "num_train": len(train_X),
        "num_test": len(test_X),
        "num_weights": posterior.num_weights,
        "rmse": (mean - data.test_y).square().mean().sqrt().item(),
        "nll": nll,
        "seconds": solved - start,
        "seconds_prediction": predicted - solved,
        "epochs": None if solution is None else float(solution.epochs),
        "residual": (
            None
            if solution is None
            else float((solution.residual[:1] if run.mean_only else solution.residual).max())
        ),
        "note": None if solution is None else solution.note,
    }


@dataclass(frozen=True)
class _Posterior:
    """What a method found: the posterior mean (m,) at points (m, d) and,
    unless it is wanted alone, values (s, m) of paths.
    """

    solver: Solver | None
    solution: Solution | None
    mean: Callable[[Tensor], Tensor]
    values: Callable[[Tensor], Tensor] | None
    num_weights: int


def _model_posterior(run: RegressionRun, problem: Problem, on_status: Status | None) -> _Posterior:
    model = METHODS[run.solver].make(problem)
    generator = torch.Generator().manual_seed(run.seed)
    paths = model.paths(
        1 if run.mean_only else run.num_paths,
        generator=generator,
        callback=_reporter(model.solver, on_status),
    )
    return _Posterior(
        model.solver,
        model.solution,
        paths.mean,
        None if run.mean_only else paths,
        len(paths.parts[0].mean_weights),
    )


def _shared_mean(run: RegressionRun, problem: Problem, on_status: Status | None) -> _Posterior:
    """Return the posterior mean, solved for by all processes."""
    solver = solver_within(run.solver, len(problem.X), problem.budget)
    solver = solver.mean if isinstance(solver, SplitSolver) else solver
    generator = torch.Generator().manual_seed(run.seed)
    report = _reporter(solver, on_status)
    solution = shared.solve(
        problem.kernel,
        problem.X,
        problem.y,
        problem.noise,
        solver,
        generator=generator,
        callback=report,
    )

    def mean(X: Tensor) -> Tensor:
        return (kernel_operator(problem.kernel, X, problem.X) @ solution.value).squeeze(1)

    return _Posterior(solver, solution, mean, None, len(problem.X))


def _reporter(solver: Solver | None, on_status: Status | None) -> Callable[[Any], None]:
    budget = getattr(solver, "max_epochs", None)

    def report(progress: Any) -> None:
        if on_status is not None:
            of = "" if budget is None else f" of {budget:.0f}"
            on_status(
                f"solving, {progress.epochs:.1f}{of} epochs, residual {progress.residual:.1e}"
            )

    return report


def describe_cell(run: RegressionRun, record: dict[str, Any], kept: bool) -> str:
    """Return one line on a finished cell; numbers that a method or a run does not have are left
    out.
    """
    numbers = (
        ("RMSE", "rmse", ".4f"),
        ("NLL", "nll", ".4f"),
        ("residual", "residual", ".1e"),
        ("epochs", "epochs", ".1f"),
        ("seconds", "seconds", ".1f"),
    )
    words = [
        f"{word} {record[key]:{digits}}" for word, key, digits in numbers if record[key] is not None
    ]
    which = " ".join([run.label, "split", str(run.split), run.solver, *run.variation])
    return f"{which}: {', '.join(words)}{' (kept)' if kept else ''}"


def negative_log_likelihood(y: Tensor, mean: Tensor, variance: Tensor) -> float:
    """Return the mean of −log N(y; mean, variance); all (m,)."""
    return (
        (0.5 * (math.log(2 * math.pi) + variance.log() + (y - mean).square() / variance))
        .mean()
        .item()
    )
