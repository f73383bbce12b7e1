"""Regression data: the UCI sets of the papers with their published hyperparameters, and a user's
own table.

Inputs and targets are standardised by training statistics.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalable_bo._packages import require

NUM_SPLITS = 10
DEFAULT_DATA_DIR = Path("../shared/data/uci")
TABLE_ENDINGS = (".parquet", ".csv")
_PROJECT = Path(__file__).resolve().parents[3]
_HYPERPARAMETERS = "matern32_hyperparameters.json"
_SOURCES = (
    "NAME.data.csv.gz and NAME.test_mask.csv.gz come from the `uci_datasets` repository (data of"
    f" the UCI machine learning repository), {_HYPERPARAMETERS} from the code of the SGD paper (Lin"
    " et al., 2023)"
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


def find_data_dir(data_dir: Path | None) -> Path:
    """Return the folder of the data sets.

    Args:
        data_dir: the folder; ``None`` for ``../shared/data/uci``, from the current folder or from
            the project's root.
    Raises:
        ValueError: if it is not there; the message says where the files come from.
    """
    tried = [data_dir] if data_dir is not None else [DEFAULT_DATA_DIR, _PROJECT / DEFAULT_DATA_DIR]
    for folder in tried:
        if folder.is_dir():
            return folder
    raise ValueError(
        f"`data_dir` must be a folder of data sets, and {tried[0]} is not there. {_SOURCES}."
    )


def load_regression_data(name: str, split: int, data_dir: Path | None = None) -> RegressionData:
    """Load one split of a data set.

    Args:
        split: the column of the test mask, from 0.
    Raises:
        ValueError: if the folder, the data set or the split is missing, or the files do not match.
    """
    table = load_table(name, data_dir)
    masks = np.loadtxt(existing_data_set(name, data_dir, "test_mask"), int, delimiter=",", ndmin=2)
    if len(table) != len(masks):
        raise ValueError(
            f"`data_dir`: {name} has {len(table)} rows of data and {len(masks)} of test masks."
        )
    if not 0 <= split < masks.shape[1]:
        raise ValueError(
            f"`split` must be between 0 and {masks.shape[1] - 1} for {name}, got {split}."
        )
    return _standardise(table, masks[:, split] == 1)


def load_table(name: str, data_dir: Path | None = None) -> np.ndarray[Any, Any]:
    """Load a data set, (rows, d + 1), the target last, as it is in its file; raise ValueError if
    the folder or the data set is not there, or a value is not finite.
    """
    table = np.loadtxt(existing_data_set(name, data_dir), delimiter=",", ndmin=2)
    if not np.isfinite(table).all():
        raise ValueError(f"`data_dir`: {name} has values that are not finite.")
    return table


def load_hyperparameters(name: str, split: int, data_dir: Path | None = None) -> Hyperparameters:
    """Load the published hyperparameters of one split, or raise ValueError if there are none; the
    file's standard deviations are squared.
    """
    path = find_data_dir(data_dir) / _HYPERPARAMETERS
    if not path.is_file():
        raise ValueError(
            f"`data_dir` must hold {_HYPERPARAMETERS}, and {path} is not there. {_SOURCES}."
        )
    values = json.loads(path.read_text(encoding="utf-8")).get(name, {}).get(str(split))
    if values is None or None in (values["noise_std"], values["signal_std"], values["lengthscale"]):
        raise ValueError(
            f"`split`: no hyperparameters are published for {name}, split {split}. Splits 0 to 4"
            " have them."
        )
    return Hyperparameters(
        values["noise_std"] ** 2, values["signal_std"] ** 2, tuple(values["lengthscale"])
    )


def existing_data_set(name: str, data_dir: Path | None = None, part: str = "data") -> Path:
    """Return the file of a data set with its ``data``, or with its ``test_mask``; if it is not
    there, a ValueError says where it comes from.
    """
    folder = find_data_dir(data_dir)
    path = folder / f"{name}.{part}.csv.gz"
    if not path.is_file():
        known = sorted(
            entry.name.removesuffix(".data.csv.gz") for entry in folder.glob("*.data.csv.gz")
        )
        raise ValueError(
            f"`data` must be one of the data sets in {folder} ({', '.join(known) or 'none'}), and"
            f" {path.name} is not there. {_SOURCES}."
        )
    return path


def check_data_set(name: str, split: int, data_dir: Path | None = None) -> None:
    """Raise ValueError, naming it, if a file of the data set is missing; read no data."""
    existing_data_set(name, data_dir)
    existing_data_set(name, data_dir, "test_mask")
    load_hyperparameters(name, split, data_dir)


def read_numbers(path: Path, target: str) -> np.ndarray[Any, Any]:
    """Read a table of numbers and return it with the target as its last column, (rows, d + 1),
    float64.

    Args:
        path: a Parquet or CSV file with a row of names; every column but the target is an input.
    Raises:
        ValueError: if the file or the column is not there, a column is not numeric, a value is
            missing or not finite, or there are fewer than 10 rows.
    """
    require("pandas", extra="bench", user="A table of your own")
    import pandas

    if not path.is_file():
        raise ValueError(f"`data` must be a Parquet or CSV file, and {path} is not there.")
    try:
        is_parquet = path.suffix.lower() == ".parquet"
        table = pandas.read_parquet(path) if is_parquet else pandas.read_csv(path)
    # Pandas' and pyarrow's errors of parsing are ValueErrors
    except (ValueError, OSError) as error:
        raise ValueError(f"`data`: {path} cannot be read as a table ({error}).") from error
    table.columns = [str(name) for name in table.columns]
    if target not in table.columns:
        near = difflib.get_close_matches(target, table.columns, n=3) or list(table.columns[:10])
        raise ValueError(
            f"`target` must be a column of {path}, got {target!r}. Near it: {', '.join(near)}."
        )
    if len(table.columns) < 2:
        raise ValueError(
            f"`data`: {path} must have at least one column of inputs beside {target!r}."
        )
    text = [name for name in table.columns if not pandas.api.types.is_numeric_dtype(table[name])]
    if text:
        raise ValueError(
            f"`data`: columns of {path} must be numeric, got {', '.join(text)}. Encode them as"
            " numbers or drop them."
        )
    names = [*(name for name in table.columns if name != target), target]
    values = table[names].to_numpy(dtype=float, na_value=np.nan)
    bad = ~np.isfinite(values)
    if bad.any():
        columns = ", ".join(compress(names, bad.any(0)))
        raise ValueError(
            f"`data`: values of {path} must be finite, and {bad.any(1).sum()} rows have missing or"
            f" infinite ones (the first is row {int(bad.any(1).argmax())}, columns {columns}). Fill"
            " them in or drop those rows."
        )
    if len(values) < NUM_SPLITS:
        raise ValueError(f"`data`: {path} must have at least {NUM_SPLITS} rows, got {len(values)}.")
    return values


def split_table(table: np.ndarray[Any, Any], split: int, test_fraction: float) -> RegressionData:
    """Return the table with random rows held out as the test set.

    Args:
        table: (rows, d + 1), the target last.
        split: seed of the choice of rows.
        test_fraction: of the rows, in (0, 1); at least one is held out, and at least two are kept.
    """
    num_test = min(max(1, round(test_fraction * len(table))), len(table) - 2)
    test = np.zeros(len(table), dtype=bool)
    test[np.random.default_rng(split).permutation(len(table))[:num_test]] = True
    return _standardise(table, test)


def _standardise(table: np.ndarray[Any, Any], test: np.ndarray[Any, Any]) -> RegressionData:
    mean = table[~test].mean(0)
    std = table[~test].std(0)
    std[std == 0] = 1.0  # a constant column
    standardised = (table - mean) / std
    train, held_out = (torch.from_numpy(standardised[rows]) for rows in (~test, test))
    return RegressionData(train[:, :-1], train[:, -1], held_out[:, :-1], held_out[:, -1])
