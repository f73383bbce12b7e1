"""Regression data: how sets and a user's tables are read, split and standardised,
and what is refused.
"""

import math
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

from scalable_bo.experiments.regression import data as regression_data
from scalable_bo.experiments.regression.data import (
    find_data_dir,
    load_hyperparameters,
    load_regression_data,
    read_numbers,
    split_table,
)
from scalable_bo.experiments.regression.regression_cell import RegressionCell
from tests.toy_regression import LENGTHSCALE, NOISE_STD, SIGNAL_STD, write


def test_training_statistics_standardise_both_parts(data_dir: Path) -> None:
    data = load_regression_data("toy", 3, data_dir)
    assert (data.train_X.shape, data.test_X.shape) == ((108, 3), (12, 3))
    torch.testing.assert_close(data.train_X.mean(0), torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(
        data.train_X[:, :2].std(0, correction=0), torch.ones(2, dtype=torch.float64)
    )
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


def test_a_missing_folder_says_where_the_files_come_from(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"`data_dir` must be.*nowhere is not there.*uci_datasets.*UCI.*Lin et al"
    ):
        find_data_dir(tmp_path / "nowhere")


def test_the_default_folder_is_found_beside_the_project_or_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "elsewhere" / "below").mkdir(parents=True)
    monkeypatch.setattr(regression_data, "_PROJECT", tmp_path / "project")
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
    ("data", "split", "message"),
    [
        ("nope", 0, r"`data` must be one of.*\(toy\), and nope.data.csv.gz is not there"),
        ("toy", 2, "no hyperparameters are published for toy, split 2"),
        ("toy", 4, "no hyperparameters are published for toy, split 4"),
        ("toy", 10, "`split` must be between 0 and 9, got 10"),
        ("toy", -1, "`split` must be at least 0, got -1"),
    ],
)
def test_what_is_missing_is_named(data_dir: Path, data: str, split: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RegressionCell(data, split, "cg", data_dir).check_files()


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


def frame(rows: int = 20) -> pandas.DataFrame:
    """Integers, floats and booleans; the target stands in the middle."""
    numbers = np.arange(rows)
    return pandas.DataFrame(
        {
            "rooms": numbers % 5,
            "price": 2.5 * numbers,
            "area": np.sqrt(numbers),
            "garden": numbers % 2 == 0,
        }
    )


@pytest.mark.parametrize("ending", ["parquet", "csv", "PARQUET"])
def test_a_table_is_read_with_its_target_last(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"homes.{ending}"
    frame().to_parquet(path) if ending != "csv" else frame().to_csv(path, index=False)
    expected = frame()[["rooms", "area", "garden", "price"]].to_numpy(dtype=float)
    np.testing.assert_allclose(read_numbers(path, "price"), expected)


def test_nullable_integers_without_missing_values_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "homes.parquet"
    frame().astype({"rooms": "Int64"}).to_parquet(path)
    assert read_numbers(path, "price").shape == (20, 4)


def test_a_table_s_splits_are_disjoint_parts_that_the_split_alone_decides() -> None:
    table = np.column_stack([np.arange(50.0), np.arange(50.0)])
    for split in (0, 1):
        data = split_table(table, split, 0.2)
        assert (len(data.train_y), len(data.test_y)) == (40, 10)
        again = split_table(table, split, 0.2)
        torch.testing.assert_close(data.test_X, again.test_X, rtol=0, atol=0)
        assert data.train_y.mean().item() == pytest.approx(0.0, abs=1e-12)
        assert len(torch.cat([data.train_y, data.test_y]).unique()) == 50
    assert not torch.equal(split_table(table, 0, 0.2).test_X, split_table(table, 1, 0.2).test_X)


def with_text(table: pandas.DataFrame) -> pandas.DataFrame:
    return table.assign(town=["here"] * len(table))


def with_gaps(table: pandas.DataFrame) -> pandas.DataFrame:
    return table.assign(area=table["area"].where(table.index % 7 != 3))


def with_infinity(table: pandas.DataFrame) -> pandas.DataFrame:
    return table.assign(area=table["area"].where(table.index != 4, math.inf))


@pytest.mark.parametrize(
    ("change", "target", "message"),
    [
        (
            with_text,
            "price",
            "columns of .* must be numeric, got town. Encode them as numbers or drop them",
        ),
        (
            with_gaps,
            "price",
            "3 rows have missing or infinite ones .*first is row 3, columns area.*drop those rows",
        ),
        (
            with_infinity,
            "price",
            "1 rows have missing or infinite ones .*first is row 4, columns area",
        ),
        (
            lambda table: table,
            "prize",
            "`target` must be a column of .*, got 'prize'. Near it: price",
        ),
        (lambda table: table[:9], "price", "must have at least 10 rows, got 9"),
        (lambda table: table[["price"]], "price", "at least one column of inputs beside 'price'"),
    ],
)
def test_what_is_wrong_with_a_table_is_named(
    tmp_path: Path, change: object, target: str, message: str
) -> None:
    table = change(frame())  # type: ignore[operator]
    table.to_parquet(tmp_path / "homes.parquet")
    table.to_csv(tmp_path / "homes.csv", index=False)
    for name in ("homes.parquet", "homes.csv"):
        with pytest.raises(ValueError, match=message):
            read_numbers(tmp_path / name, target)


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"homes.{ending}"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="`data`: .*homes.* cannot be read as a table"):
        read_numbers(path, "price")
    with pytest.raises(
        ValueError, match=f"`data` must be a Parquet or CSV file, and .*none.{ending} is not there"
    ):
        read_numbers(tmp_path / f"none.{ending}", "price")


@pytest.mark.parametrize(
    ("data", "settings", "message"),
    [
        ("homes.csv", {}, "`target` must name the column to predict, got None"),
        (
            "toy",
            {"target": "price"},
            "`target` goes with a table ending in .parquet or .csv only, got 'price' for toy",
        ),
        (
            "homes.csv",
            {"target": "price", "test_fraction": 1.0},
            "`test_fraction` must be between 0 and 1, got 1.0",
        ),
        ("toy", {"noise": 0.0}, "`noise` must be finite and above 0, got 0.0. Use a small value"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    data: str, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        RegressionCell(data, 0, "cg", **settings)  # type: ignore[arg-type]
