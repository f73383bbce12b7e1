"""A small data set in the format of the regression benchmark's files."""

import gzip
import json
from pathlib import Path

import numpy as np

NOISE_STD = 0.1
SIGNAL_STD = 0.9
LENGTHSCALE = [0.8, 1.5, 1.0]


def toy_table() -> np.ndarray:
    """Return 120 points: two inputs, a constant one, and, last, a smooth noisy target."""
    random = np.random.default_rng(0)
    X = np.column_stack([random.normal(3.0, 2.0, (120, 2)), np.full(120, 7.0)])
    y = 5.0 * np.sin(X[:, 0] / 2) + X[:, 1] + 100.0 + 0.05 * random.normal(size=120)
    return np.column_stack([X, y])


def write_toy_folder(folder: Path) -> None:
    """Write the data set `toy`: splits 0, 1 and 3 have hyperparameters, that of split 4 is lost."""
    masks = np.zeros((120, 10), dtype=int)
    for split in range(10):
        masks[split::10, split] = 1
    write(folder / "toy.data.csv.gz", toy_table())
    write(folder / "toy.test_mask.csv.gz", masks)
    values = {"noise_std": NOISE_STD, "signal_std": SIGNAL_STD, "lengthscale": LENGTHSCALE}
    splits = {"0": values, "1": values, "3": values, "4": values | {"noise_std": None}}
    (folder / "matern32_hyperparameters.json").write_text(json.dumps({"toy": splits}))


def write(path: Path, table: np.ndarray) -> None:
    with gzip.open(path, "wt") as file:
        np.savetxt(file, table, delimiter=",", fmt="%.17g")
