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

import hashlib
import re
import time
import warnings
from collections.abc import Hashable, Iterator
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from gpytorch.kernels import ScaleKernel
from gpytorch.means import ZeroMean
from gpytorch.priors import LogNormalPrior
from torch import Tensor

from scalable_bo.evaluation.progress import describe_fit, describe_solve
from scalable_bo.experiments import torchrun
from scalable_bo.experiments.cells import Cell, Status, silent
from scalable_bo.experiments.formats import exact
from scalable_bo.experiments.models import SMOOTHNESS, base_kernel, matern_kernel
from scalable_bo.experiments.records import Record
from scalable_bo.experiments.regression.data import (
    NUM_SPLITS,
    TABLE_ENDINGS,
    Hyperparameters,
    RegressionData,
    check_data_set,
    load_hyperparameters,
    load_regression_data,
    read_numbers,
    split_table,
)
from scalable_bo.experiments.regression.methods import (
    Budget,
    RegressionProblem,
    heeded,
    regression_method,
)
from scalable_bo.experiments.solvers import name_of
from surrogates import PathwiseGP, Solver, UnsolvedWarning, checks, fit_sample
from surrogates.systems.shared_rows import SharedRows

Loaded = tuple[RegressionData, Hyperparameters]


@dataclass(frozen=True)
class RegressionCell(Cell[Loaded]):
    """One cell: a data set's split with one method.

    Args:
        data: the data set's name, or the path of a user's table ending in ``.parquet`` or ``.csv``.
        split: which of the ten test masks; of a user's table, the seed of the choice of test rows.
        solver: one of ``REGRESSION_METHODS``; or a solver from outside, an object or
            "module:Class", with its own budget.
        data_dir: folder of the data sets; see ``find_data_dir``.
        noise: noise variance σ² in place of the given or fitted one; ``None`` for that.
        mean_only: compute the posterior mean alone: an RMSE, and no likelihood.
        target: column of the user's table to predict.
        test_fraction: of the rows of the user's table, in (0, 1).
        kernel: fitted to the user's table, one of ``SMOOTHNESS``.
        num_paths: posterior paths behind the predictive variance.
        seed: of the paths, the method and the fit of hyperparameters.
        dtype: ``float32`` or ``float64``.
    Raises:
        TypeError, ValueError: if the method is unknown, a number out of range, or a table without a
            target.
    """

    experiment: ClassVar[str] = "regression"
    told = (
        ("rmse", "RMSE", ".4f"),
        ("nll", "NLL", ".4f"),
        ("residual", "residual", ".1e"),
        ("error", "off by", ".2g"),
        ("epochs", "epochs", ".1f"),
        ("seconds", "seconds", ".1f"),
    )
    data: str
    split: int
    solver: str | Solver
    data_dir: Path | None = None
    noise: float | None = None
    mean_only: bool = False
    budget: Budget = field(default_factory=Budget)
    target: str | None = None
    test_fraction: float = 0.1
    kernel: str = "matern32"
    num_paths: int = 64
    seed: int = 0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        regression_method(self.solver)
        checks.fields(self, ["split"], checks.integer, 0)
        if not self.is_table and self.split >= NUM_SPLITS:
            raise ValueError(f"`split` must be between 0 and {NUM_SPLITS - 1}, got {self.split}.")
        checks.fields(self, ["noise"], checks.positive_float, "Use a small value such as 1e-6.")
        if self.is_table != (self.target is not None):
            needs = "goes with a table ending in .parquet or .csv only"
            if self.is_table:
                needs = "must name the column to predict"
            raise ValueError(f"`target` {needs}, got {self.target!r} for {self.data}.")
        if not 0.0 < self.test_fraction < 1.0:
            raise ValueError(f"`test_fraction` must be between 0 and 1, got {self.test_fraction}.")
        checks.one_of("kernel", self.kernel, SMOOTHNESS)
        if self.kernel != "matern32" and not self.is_table:
            raise ValueError(
                "`kernel` goes with a table of your own: the published hyperparameters are those of"
                f" matern32, got {self.kernel!r} for {self.data}."
            )
        checks.fields(self, ["num_paths"], checks.positive_int)
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f"`dtype` must be float32 or float64, got {self.dtype!r}.")

    @property
    def is_table(self) -> bool:
        """Whether the data are a user's table, and not the name of a data set."""
        return self.data.endswith(TABLE_ENDINGS)

    @property
    def label(self) -> str:
        """The data set's name in tables; that of a user's table is FILE.TARGET."""
        return f"{Path(self.data).stem}.{self.target}" if self.is_table else self.data

    @property
    def name(self) -> str:
        """Cells that differ in a result have names that differ, tables and targets by a digest."""
        noise = [] if self.noise is None else [f"noise{exact(self.noise)}"]
        parts = [
            self.label,
            str(self.split),
            name_of(self.solver),
            *noise,
            *(["mean"] if self.mean_only else []),
            *self.variation,
        ]
        if self.target is not None:  # of tables of one stem and targets like "a b" and "a-b"
            which = f"{self.sha256} {self.target}"
            parts.append(hashlib.sha256(which.encode()).hexdigest()[:8])
        return re.sub(r"[^\w.=-]", "-", "_".join(["regression", *parts]))

    @cached_property
    def sha256(self) -> str:
        """The digest of the user's table, which may change after its record."""
        with Path(self.data).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    @property
    def variation(self) -> list[str]:
        """What differs from the defaults and makes a row of its own, as ``sgd_steps=1000``."""
        standard = asdict(Budget())
        words = [
            f"{key}={exact(value)}"
            for key, value in heeded(self.solver, self.budget).items()
            if value != standard[key]
        ]
        defaults = {entry.name: entry.default for entry in fields(self)}
        for name in ("test_fraction", "kernel", "num_paths", "seed", "dtype", "device"):
            if getattr(self, name) != defaults[name]:
                words.append(f"{name}={getattr(self, name)}")
        return words

    def settings(self) -> dict[str, Any]:
        left_out = ("data_dir",) if self.is_table else ("data_dir", "target", "test_fraction")
        settings = {key: value for key, value in asdict(self).items() if key not in left_out}
        settings |= {
            "data": self.label,
            "solver": name_of(self.solver),
            "budget": heeded(self.solver, self.budget),
            "variation": self.variation,
        }
        if self.kernel == "matern32":
            del settings["kernel"]  # records without it are of that kernel
        return settings | ({"sha256": self.sha256} if self.is_table else {})

    def check_files(self) -> None:
        if self.target is not None:
            read_numbers(Path(self.data), self.target)
        else:
            check_data_set(self.data, self.split, self.data_dir)

    @property
    def source(self) -> Hashable:
        where = (self.data, self.split, self.data_dir)
        return (*where, self.target, self.test_fraction, self.kernel, self.seed)

    def load(self, on_status: Status) -> Loaded:
        """Return the data, and hyperparameters as published or, for a user's table, fitted."""
        if self.target is None:
            where = (self.data, self.split, self.data_dir)
            return load_regression_data(*where), load_hyperparameters(*where)
        table = read_numbers(Path(self.data), self.target)
        data = split_table(table, self.split, self.test_fraction)
        X, y = (tensor.to(self.device) for tensor in (data.train_X, data.train_y))
        smoothness = SMOOTHNESS[self.kernel]
        return data, fit_hyperparameters(X, y, smoothness, seed=self.seed, on_status=on_status)

    def run(self, data: Loaded, on_status: Status, state: Path) -> Iterator[Record]:
        """Yield the record.

        It has ``method`` (the solver's settings), ``hyperparameters``, ``num_train``,
        ``num_test``, ``num_weights`` (of the posterior mean), ``rmse``, ``nll`` (``None`` for a
        mean alone), ``seconds`` (model and solve), ``seconds_prediction``, ``epochs``,
        ``residual`` (the worst relative one), ``error`` (the worst one of the mean and of a path,
        in posterior standard deviations; ``None`` for a mean alone) and ``note``; the last four are
        ``None`` for methods without a linear solver.
        """
        found, hyperparameters = data
        device = torch.device(self.device)
        dtype = getattr(torch, self.dtype)
        noise = hyperparameters.noise if self.noise is None else self.noise
        kernel = matern_kernel(
            torch.tensor(hyperparameters.lengthscale),
            hyperparameters.outputscale,
            SMOOTHNESS[self.kernel],
        ).to(device, dtype)
        train_X, train_y, test_X = (
            tensor.to(device, dtype) for tensor in (found.train_X, found.train_y, found.test_X)
        )
        on_status("preparing")
        start = time.perf_counter()
        problem = RegressionProblem(
            train_X, train_y, kernel, noise, self.mean_only, self.budget, self.seed
        )
        model = regression_method(self.solver).make(problem)
        num_processes = torchrun.num_processes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnsolvedWarning)  # a budget may be spent on purpose
            paths = model.paths(
                num_processes if self.mean_only else self.num_paths,
                generator=torch.Generator().manual_seed(self.seed),
                shared=num_processes > 1,
                callback=lambda progress: on_status(describe_solve(progress)),
            )
        solved = time.perf_counter()
        solution = model.solution
        with torch.no_grad():
            means = paths.mean(test_X).double()
            mean, nll = means.cpu(), None
            if not self.mean_only:
                squares = (paths(test_X).double() - means).square().sum(0)
                variance = SharedRows(1, squares.device).sum(squares).cpu() / self.num_paths + noise
                nll = negative_log_likelihood(found.test_y, mean, variance)
        predicted = time.perf_counter()
        yield {
            "method": None if model.solver is None else repr(model.solver),
            "hyperparameters": asdict(hyperparameters) | {"noise": noise},
            "num_train": len(train_X),
            "num_test": len(test_X),
            "num_weights": len(paths.parts[0].mean_weights),
            "rmse": (mean - found.test_y).square().mean().sqrt().item(),
            "nll": nll,
            "seconds": solved - start,
            "seconds_prediction": predicted - solved,
            "epochs": None if solution is None else float(solution.epochs),
            "residual": self._worst(None if solution is None else solution.residual),
            "error": None if solution is None or self.mean_only else self._worst(solution.error),
            "note": None if solution is None else solution.note,
        }

    def _worst(self, of_columns: Tensor | None) -> float | None:
        if of_columns is None:
            return None
        return float((of_columns[:1] if self.mean_only else of_columns).max())


def fit_hyperparameters(
    X: Tensor, y: Tensor, smoothness: float = 1.5, *, seed: int = 0, on_status: Status = silent
) -> Hyperparameters:
    """Fit a Matérn Gaussian process of zero mean by ``fit_sample``, to 1000 random data.

    Args:
        X: (n, d), standardised.
        y: (n,), standardised.
        smoothness: of the kernel, see :func:`matern_kernel`.
        on_status: called with a few words as the fit goes on.
    References:
        Rathore et al. (2025), Appendix D.1, after Lin et al. (2023), Appendix A.1.
        Differs: they average fits of the 10 000 points around each of ten; the few hundred that a
        fit in seconds can take are a neighbourhood too small to stand for all the data.
    """
    X, y = X.double(), y.double()
    base = base_kernel(smoothness, X.shape[1])
    kernel = ScaleKernel(base, outputscale_prior=LogNormalPrior(0.0, 1.0)).to(X)
    model = PathwiseGP(
        X, y[:, None], covar_module=kernel, mean_module=ZeroMean(), outcome_transform=None
    )
    fit_sample(
        model,
        generator=torch.Generator().manual_seed(seed),
        callback=lambda number, _: on_status(describe_fit(number)),
    )
    return Hyperparameters(
        model.noise.item(), kernel.outputscale.item(), tuple(base.lengthscale.flatten().tolist())
    )


def negative_log_likelihood(y: Tensor, mean: Tensor, variance: Tensor) -> float:
    """Return the mean of −log N(y; mean, variance); all (m,)."""
    law = torch.distributions.Normal(mean, variance.sqrt(), validate_args=False)
    return -law.log_prob(y).mean().item()
