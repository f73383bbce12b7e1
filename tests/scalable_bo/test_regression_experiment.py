"""The regression benchmark: how data are read and standardised, and what the scores are."""

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from scalable_bo.experiments import regression
from scalable_bo.experiments.regression import (
    RegressionRun,
    check_files,
    find_data_dir,
    load_hyperparameters,
    load_regression_data,
    negative_log_likelihood,
    run_regression,
)

NOISE_STD, SIGNAL_STD, LENGTHSCALE = 0.1, 0.9, [0.8, 1.5, 1.0]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data set of 120 points in the files' format: two inputs, a constant one, and a smooth noisy target."""
    random = np.random.default_rng(0)
    X = np.column_stack([random.normal(3.0, 2.0, (120, 2)), np.full(120, 7.0)])
    y = 5.0 * np.sin(X[:, 0] / 2) + X[:, 1] + 100.0 + 0.05 * random.normal(size=120)
    masks = np.zeros((120, 10), dtype=int)
    for split in range(10):
        masks[split::10, split] = 1
    write(tmp_path / "toy.data.csv.gz", np.column_stack([X, y]))
    write(tmp_path / "toy.test_mask.csv.gz", masks)
    values = {"noise_std": NOISE_STD, "signal_std": SIGNAL_STD, "lengthscale": LENGTHSCALE}
    lost = values | {"noise_std": None}
    (tmp_path / "matern32_hyperparameters.json").write_text(json.dumps({"toy": {"0": values, "3": values, "4": lost}}))
    return tmp_path


def write(path: Path, table: np.ndarray) -> None:
    with gzip.open(path, "wt") as file:
        np.savetxt(file, table, delimiter=",", fmt="%.17g")


def test_training_statistics_standardise_both_parts(data_dir: Path) -> None:
    data = load_regression_data("toy", 3, data_dir)
    assert (data.train_X.shape, data.test_X.shape) == ((108, 3), (12, 3))
    torch.testing.assert_close(data.train_X.mean(0), torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(data.train_X[:, :2].std(0, correction=0), torch.ones(2, dtype=torch.float64))
    assert data.train_X[:, 2].eq(0).all()  # a constant column gets scale 1
    assert data.train_y.std(correction=0).item() == pytest.approx(1.0)
    raw = np.loadtxt(data_dir / "toy.data.csv.gz", delimiter=",")
    train = np.delete(raw, np.s_[3::10], axis=0)
    expected = (raw[3::10] - train.mean(0)) / np.where(train.std(0) > 0, train.std(0), 1.0)
    np.testing.assert_allclose(data.test_X.numpy(), expected[:, :-1])
    np.testing.assert_allclose(data.test_y.numpy(), expected[:, -1])


def test_standard_deviations_of_the_file_are_squared(data_dir: Path) -> None:
    hyperparameters = load_hyperparameters("toy", 0, data_dir)
    assert hyperparameters.noise == pytest.approx(NOISE_STD**2)
    assert hyperparameters.outputscale == pytest.approx(SIGNAL_STD**2)
    assert hyperparameters.lengthscale == tuple(LENGTHSCALE)


@pytest.mark.parametrize("solver", ["cholesky", "cg", "sdd"])
def test_scores_agree_with_the_exact_gaussian_process(data_dir: Path, solver: str) -> None:
    record = run_regression(RegressionRun("toy", 0, solver, data_dir, num_paths=512, dtype="float64"))
    data = load_regression_data("toy", 0, data_dir)

    def kernel(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        scales = torch.tensor(LENGTHSCALE, dtype=torch.float64)
        r = math.sqrt(3) * torch.cdist(A / scales, B / scales)
        return SIGNAL_STD**2 * (1 + r) * torch.exp(-r)

    H = kernel(data.train_X, data.train_X) + NOISE_STD**2 * torch.eye(108, dtype=torch.float64)
    cross = kernel(data.test_X, data.train_X)
    mean = cross @ torch.linalg.solve(H, data.train_y)
    variance = SIGNAL_STD**2 - (cross * torch.linalg.solve(H, cross.T).T).sum(1) + NOISE_STD**2
    rmse = (mean - data.test_y).square().mean().sqrt().item()
    density = torch.distributions.Normal(mean, variance.sqrt()).log_prob(data.test_y)
    tolerance = 1e-6 if solver == "cholesky" else 0.02
    assert record["rmse"] == pytest.approx(rmse, abs=tolerance)
    assert record["nll"] == pytest.approx(-density.mean().item(), abs=0.05)  # one feature draw, 512 paths


def test_a_record_has_its_keys(data_dir: Path) -> None:
    record = run_regression(RegressionRun("toy", 0, "cg", data_dir))
    assert {"rmse", "nll", "seconds", "epochs", "residual", "settings", "environment"} <= set(record)
    assert record["residual"] <= 1e-2
    assert (record["num_train"], record["num_test"]) == (108, 12)
    json.dumps(record)


def test_the_likelihood_is_that_of_a_normal() -> None:
    y, mean, variance = torch.tensor([[0.3, -1.0], [0.0, 0.5], [0.04, 2.0]], dtype=torch.float64)
    expected = -torch.distributions.Normal(mean, variance.sqrt()).log_prob(y).mean().item()
    assert negative_log_likelihood(y, mean, variance) == pytest.approx(expected)


def test_a_missing_folder_says_where_the_files_come_from(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`data_dir` must be.*nowhere is not there.*uci_datasets.*UCI.*Lin et al"):
        find_data_dir(tmp_path / "nowhere")


def test_the_default_folder_is_found_beside_the_project_or_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "elsewhere" / "below").mkdir(parents=True)
    monkeypatch.setattr(regression, "_PROJECT", tmp_path / "project")
    monkeypatch.chdir(tmp_path / "elsewhere" / "below")
    with pytest.raises(ValueError, match="is not there"):
        find_data_dir(None)
    beside_project = tmp_path / "shared" / "data" / "uci"
    beside_project.mkdir(parents=True)
    assert find_data_dir(None).resolve() == beside_project
    beside_here = tmp_path / "elsewhere" / "shared" / "data" / "uci"
    beside_here.mkdir(parents=True)
    assert find_data_dir(None).resolve() == beside_here


@pytest.mark.parametrize(
    ("data", "split", "solver", "message"),
    [
        ("nope", 0, "cg", r"`data` must be one of.*\(toy\), and nope.data.csv.gz is not there"),
        ("toy", 1, "cg", "no hyperparameters are published for toy, split 1"),
        ("toy", 4, "cg", "no hyperparameters are published for toy, split 4"),
        ("toy", 10, "cg", "`split` must be between 0 and 9, got 10"),
        ("toy", -1, "cg", "`split` must be between 0 and 9, got -1"),
        ("toy", 0, "lu", "`solver` must be one of cholesky, cg, sdd, sgd, sap, adasap, adasap-i, got 'lu'"),
    ],
)
def test_what_is_missing_is_named(data_dir: Path, data: str, split: int, solver: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_files(RegressionRun(data, split, solver, data_dir))


def test_files_that_do_not_fit_together_are_refused(data_dir: Path) -> None:
    write(data_dir / "toy.test_mask.csv.gz", np.zeros((119, 10), dtype=int))
    with pytest.raises(ValueError, match="toy has 120 rows of data and 119 of test masks"):
        load_regression_data("toy", 0, data_dir)


def test_values_that_are_not_finite_are_refused(data_dir: Path) -> None:
    table = np.loadtxt(data_dir / "toy.data.csv.gz", delimiter=",")
    table[5, 0] = math.nan
    write(data_dir / "toy.data.csv.gz", table)
    with pytest.raises(ValueError, match="toy has values that are not finite"):
        load_regression_data("toy", 0, data_dir)
