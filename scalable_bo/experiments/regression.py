"""Regression on the UCI data sets of the papers, with their published Matérn-3/2 hyperparameters.

Inputs and targets are standardised by training statistics. RMSE is that of the posterior mean on standardised
targets; the negative log likelihood is that of N(mean, v + noise), v the mean square of 64 posterior paths about the
exact mean.

References:
    Lin et al. (2023), "Sampling from Gaussian Process Posteriors using Stochastic Gradient Descent", Section 4.1.
    Differs: the noise is added to the predictive variance once.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalable_bo.experiments.models import fixed_model, matern_kernel
from scalable_bo.experiments.presets import CGBudget, SDDBudget
from scalable_bo.experiments.records import describe_environment
from scalable_bo.experiments.solvers import check_solver, make_solver

NUM_SPLITS = 10
DEFAULT_DATA_DIR = Path("../shared/data/uci")
_PROJECT = Path(__file__).resolve().parents[2]
_HYPERPARAMETERS = "matern32_hyperparameters.json"
_SOURCES = (
    "NAME.data.csv.gz and NAME.test_mask.csv.gz come from the `uci_datasets` repository (data of the UCI machine "
    f"learning repository), {_HYPERPARAMETERS} from the code of the SGD paper (Lin et al., 2023)"
)


@dataclass(frozen=True)
class RegressionData:
    """One split of a data set, standardised by its training statistics.

    ``train_X (n, d)``, ``train_y (n,)``, ``test_X (m, d)``, ``test_y (m,)``, float64.
    """

    train_X: Tensor
    train_y: Tensor
    test_X: Tensor
    test_y: Tensor


@dataclass(frozen=True)
class Hyperparameters:
    """Of a Matérn-3/2 kernel on standardised data: variances and one lengthscale an input."""

    noise: float
    outputscale: float
    lengthscale: tuple[float, ...]


@dataclass(frozen=True)
class RegressionRun:
    """One run: a data set's split with one solver.

    Args:
        data: the data set's name.
        split: which of the ten test masks.
        solver: one of ``SOLVERS``.
        data_dir: folder of the data; ``None`` for ``../shared/data/uci``, from here or from the project's root.
        num_paths: posterior paths behind the predictive variance.
        seed: of the paths and the solver.
        dtype: ``float32`` or ``float64``.
        device: where to compute.
    Raises:
        ValueError: if the solver is unknown, or a number out of range.
    """

    data: str
    split: int
    solver: str
    data_dir: Path | None = None
    num_paths: int = 64
    seed: int = 0
    dtype: str = "float32"
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_solver(self.solver)
        if not 0 <= self.split < NUM_SPLITS:
            raise ValueError(f"`split` must be between 0 and {NUM_SPLITS - 1}, got {self.split}.")
        if self.num_paths < 1:
            raise ValueError(f"`num_paths` must be at least 1, got {self.num_paths}.")
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f"`dtype` must be float32 or float64, got {self.dtype!r}.")

    @property
    def name(self) -> str:
        """A file name for the run's record, without its ending."""
        return f"regression_{self.data}_{self.split}_{self.solver}"


def find_data_dir(data_dir: Path | None) -> Path:
    """Return the folder of the data sets.

    Args:
        data_dir: the folder; ``None`` for ``../shared/data/uci``, from the current folder or from the project's root.
    Raises:
        ValueError: if it is not there; the message says where the files come from.
    """
    tried = [data_dir] if data_dir is not None else [DEFAULT_DATA_DIR, _PROJECT / DEFAULT_DATA_DIR]
    for folder in tried:
        if folder.is_dir():
            return folder
    raise ValueError(f"`data_dir` must be a folder of data sets, and {tried[0]} is not there. {_SOURCES}.")


def load_regression_data(name: str, split: int, data_dir: Path | None = None) -> RegressionData:
    """Load one split of a data set.

    Args:
        name: the data set.
        split: the column of the test mask, from 0.
        data_dir: see ``find_data_dir``.
    Raises:
        ValueError: if the folder, the data set or the split is not there, or the files do not fit together.
    """
    folder = find_data_dir(data_dir)
    table, masks = _table(folder, f"{name}.data.csv.gz", float), _table(folder, f"{name}.test_mask.csv.gz", int)
    if len(table) != len(masks):
        raise ValueError(f"`data_dir`: {name} has {len(table)} rows of data and {len(masks)} of test masks.")
    if not 0 <= split < masks.shape[1]:
        raise ValueError(f"`split` must be between 0 and {masks.shape[1] - 1} for {name}, got {split}.")
    if not np.isfinite(table).all():
        raise ValueError(f"`data_dir`: {name} has values that are not finite.")
    test = masks[:, split] == 1
    mean, std = table[~test].mean(0), table[~test].std(0)
    std[std == 0] = 1.0  # a constant column
    standardised = torch.from_numpy((table - mean) / std)
    train, test_rows = standardised[~torch.from_numpy(test)], standardised[torch.from_numpy(test)]
    return RegressionData(train[:, :-1], train[:, -1], test_rows[:, :-1], test_rows[:, -1])


def load_hyperparameters(name: str, split: int, data_dir: Path | None = None) -> Hyperparameters:
    """Load the published hyperparameters of one split; the file's standard deviations are squared.

    Raises:
        ValueError: if there are none for this data set and split.
    """
    path = find_data_dir(data_dir) / _HYPERPARAMETERS
    if not path.is_file():
        raise ValueError(f"`data_dir` must hold {_HYPERPARAMETERS}, and {path} is not there. {_SOURCES}.")
    values = json.loads(path.read_text(encoding="utf-8")).get(name, {}).get(str(split))
    if values is None or None in (values["noise_std"], values["signal_std"], values["lengthscale"]):
        raise ValueError(f"`split`: no hyperparameters are published for {name}, split {split}. Splits 0 to 4 have them.")
    return Hyperparameters(values["noise_std"] ** 2, values["signal_std"] ** 2, tuple(values["lengthscale"]))


def check_files(run: RegressionRun) -> None:
    """Raise if a file that the run needs is not there, without reading the data.

    Raises:
        ValueError: naming what is missing and where it comes from.
    """
    folder = find_data_dir(run.data_dir)
    _table_path(folder, f"{run.data}.data.csv.gz")
    _table_path(folder, f"{run.data}.test_mask.csv.gz")
    load_hyperparameters(run.data, run.split, run.data_dir)


def run_regression(run: RegressionRun, *, on_status: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Run the benchmark once.

    Args:
        run: what to run.
        on_status: called with a few words on what is happening now.
    Returns:
        The record: ``experiment``, ``settings``, ``environment``, ``num_train``, ``num_test``, ``rmse``, ``nll``,
        ``seconds`` (the solve), ``seconds_prediction``, ``epochs`` and ``residual`` (the worst relative one).
    """
    data = load_regression_data(run.data, run.split, run.data_dir)
    hyperparameters = load_hyperparameters(run.data, run.split, run.data_dir)
    device, dtype = torch.device(run.device), getattr(torch, run.dtype)
    kernel = matern_kernel(torch.tensor(hyperparameters.lengthscale), hyperparameters.outputscale).to(device, dtype)
    train_X, train_y = data.train_X.to(device, dtype), data.train_y.to(device, dtype)
    cg, sdd = CGBudget(), SDDBudget()
    solver = make_solver(run.solver, len(train_X), cg, sdd)
    model = fixed_model(train_X, train_y, kernel, hyperparameters.noise, solver)
    generator = torch.Generator().manual_seed(run.seed)

    def report(progress: Any) -> None:
        if on_status is not None:
            on_status(f"solving, {progress.epochs:.1f} epochs, residual {progress.residual:.1e}")

    start = time.perf_counter()
    paths = model.paths(run.num_paths, generator=generator, callback=report)
    solved = time.perf_counter()
    solution = model.solution
    assert solution is not None  # paths() has just made it
    with torch.no_grad():
        test_X = data.test_X.to(device, dtype)
        mean = paths.mean(test_X).double().cpu()
        values = paths(test_X).double().cpu()
    variance = (values - mean).square().mean(0) + hyperparameters.noise
    predicted = time.perf_counter()
    return {
        "experiment": "regression",
        "settings": {key: value for key, value in asdict(run).items() if key != "data_dir"} | {"solver_settings": repr(solver)},
        "environment": describe_environment(device),
        "num_train": len(train_X),
        "num_test": len(test_X),
        "rmse": (mean - data.test_y).square().mean().sqrt().item(),
        "nll": negative_log_likelihood(data.test_y, mean, variance),
        "seconds": solved - start,
        "seconds_prediction": predicted - solved,
        "epochs": float(solution.epochs),
        "residual": float(solution.residual.max()),
    }


def negative_log_likelihood(y: Tensor, mean: Tensor, variance: Tensor) -> float:
    """Return the mean of −log N(y; mean, variance); all (m,)."""
    return (0.5 * (math.log(2 * math.pi) + variance.log() + (y - mean).square() / variance)).mean().item()


def _table(folder: Path, file: str, kind: type) -> np.ndarray[Any, Any]:
    return np.loadtxt(_table_path(folder, file), delimiter=",", dtype=kind, ndmin=2)


def _table_path(folder: Path, file: str) -> Path:
    path = folder / file
    if not path.is_file():
        known = sorted(entry.name.removesuffix(".data.csv.gz") for entry in folder.glob("*.data.csv.gz"))
        raise ValueError(
            f"`data` must be one of the data sets in {folder} ({', '.join(known) or 'none'}), and {file} is not there. {_SOURCES}."
        )
    return path
