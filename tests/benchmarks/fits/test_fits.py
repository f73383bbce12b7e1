"""The benchmarks of hyperparameter fits: what a cell measures, what a record holds,
and which cells run again.
"""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.fits import batch_sizes, recovery, scores
from benchmarks.fits.batch_sizes import BatchSizeCell
from benchmarks.fits.fit_cell import FitCell
from benchmarks.fits.fit_tables import HYPERPARAMETERS, fits_table
from benchmarks.fits.grid import GridCell
from benchmarks.fits.presets import FIT_PRESETS
from benchmarks.fits.recovery import RecoveryCell
from benchmarks.fits.scores import ScoreCell
from scalable_bo.experiments.cells import run_cells, silent
from scalable_bo.experiments.markdown_tables import write_markdown
from surrogates import PathwiseGP
from tests.toy_regression import toy_table


@pytest.mark.parametrize(
    "method", [method for method in recovery.RECOVERY_METHODS if not method.startswith("minimax")]
)
def test_every_method_moves_towards_the_truth(method: str) -> None:
    cell = RecoveryCell(
        method=method, start=(5.0, 3.0), seeds=(1,), n=150, batch_size=50, num_steps=60
    )
    (estimate,) = cell.measure(silent)["estimates"]
    model = (
        recovery.drawn_from_features if method in recovery.OF_FEATURES else recovery.drawn_from_rbf
    )(cell, 1)
    assert estimate["noise"] < 2.0
    assert estimate["nll"] < recovery.negative_log_likelihood(model) / cell.n - 0.05


def test_minimax_has_the_penalty_of_its_name() -> None:
    def noise(method: str) -> float:
        cell = RecoveryCell(method=method, seeds=(0,), n=40, batch_size=20, num_steps=1)
        return float(cell.measure(silent)["estimates"][0]["noise"])

    found = [noise(method) for method in recovery.RECOVERY_METHODS if method.startswith("minimax")]
    assert len(set(found)) == 5 and all(math.isfinite(value) for value in found)


@pytest.mark.parametrize("make", [recovery.drawn_from_rbf, recovery.drawn_from_features])
def test_the_likelihood_of_a_recovery_is_that_of_a_dense_gaussian(make: Any) -> None:
    model: PathwiseGP = make(RecoveryCell(method="exact", start=(2.5, 0.7), n=40), 3)
    X = model.train_inputs[0]
    y = model.train_targets
    assert (model.covar_module.outputscale.item(), model.likelihood.noise.item()) == pytest.approx(
        (2.5, 0.7)
    )
    with torch.no_grad():
        H = model.covar_module(X).to_dense() + 0.7 * torch.eye(40, dtype=X.dtype)
    exact = 0.5 * (y @ torch.linalg.solve(H, y) + torch.logdet(H) + 40 * math.log(2 * math.pi))
    assert recovery.negative_log_likelihood(model) == pytest.approx(exact.item(), rel=1e-9)


def test_recovery_data_have_the_true_variance() -> None:
    cell = RecoveryCell(method="exact", n=800)
    for make in (recovery.drawn_from_rbf, recovery.drawn_from_features):
        squares = [make(cell, seed).train_targets.square().mean() for seed in range(8)]
        # 4 + 1; about 60 independent values a seed
        assert torch.stack(squares).mean().item() == pytest.approx(5.0, rel=0.15)


@pytest.mark.parametrize("method", scores.SCORE_METHODS)
def test_every_method_predicts_simulated_data_better_than_their_mean(method: str) -> None:
    cell = ScoreCell(
        data="griewank", method=method, n=200, max_epochs=10, num_inducing=20, num_test=30
    )
    record = cell.measure(silent)
    assert (record["num_train"], record["num_test"], record["dim"]) == (120, 30, 6)
    assert record["rmse"] < 0.95
    assert math.isfinite(record["nll"]) and record["noise_std"] > 0.0
    assert len(record["lengthscale"]) == 6
    assert f"fit_scores_griewank_{method}_" in cell.describe(record)


def test_scores_agree_with_the_exact_gaussian_process_of_the_learned_hyperparameters() -> None:
    cell = ScoreCell(data="otl", method="nearest", n=100, max_epochs=5, num_neighbours=60)
    record = cell.measure(silent)
    data = scores.load(cell)
    scale = torch.tensor(record["lengthscale"], dtype=torch.float64)

    def kernel(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        return record["signal_std"] ** 2 * torch.exp(
            -0.5 * torch.cdist(A / scale, B / scale).square()
        )

    H = kernel(data.train_X, data.train_X) + record["noise_std"] ** 2 * torch.eye(
        60, dtype=torch.float64
    )
    cross = kernel(data.test_X, data.train_X)
    mean = cross @ torch.linalg.solve(H, data.train_y)
    variance = (
        record["signal_std"] ** 2
        + record["noise_std"] ** 2
        - (cross * torch.linalg.solve(H, cross.T).T).sum(1)
    )
    assert record["rmse"] == pytest.approx(
        (mean - data.test_y).square().mean().sqrt().item(), rel=1e-8
    )
    density = torch.distributions.Normal(mean, variance.sqrt()).log_prob(data.test_y)
    assert record["nll"] == pytest.approx(-density.mean().item(), rel=1e-8)


def test_data_sets_are_split_60_to_40_and_standardised(data_dir: Path) -> None:
    data = scores.load(ScoreCell(data="toy", method="nearest", data_dir=data_dir, n=100))
    assert (len(data.train_X), len(data.test_X)) == (60, 40)
    assert data.train_y.mean().item() == pytest.approx(0.0, abs=1e-12)
    everything = scores.load(ScoreCell(data="toy", method="nearest", data_dir=data_dir))
    assert len(everything.train_X) + len(everything.test_X) == len(toy_table()) == 120


@pytest.mark.parametrize("method", batch_sizes.BATCH_METHODS)
@pytest.mark.parametrize("kernel", batch_sizes.KERNELS)
def test_every_method_learns_a_kernel_over_a_network(
    data_dir: Path, kernel: str, method: str
) -> None:
    def measured(epochs: int) -> dict[str, Any]:
        cell = BatchSizeCell(
            data="toy",
            kernel=kernel,
            method=method,
            batch_size=27,
            n=120,
            width=8,
            max_epochs=epochs,
            data_dir=data_dir,
        )
        return cell.measure(silent)

    first = measured(1)
    last = measured(20)
    assert first["noise"] != last["noise"] != 0.1
    if method != "svgp":  # which raises a bound
        assert last["nll"] < first["nll"] - 0.02


def small_cells() -> list[FitCell]:
    return [
        RecoveryCell(method="uniform", seeds=(0,), n=40, batch_size=10, max_epochs=1),
        ScoreCell(data="otl", method="nearest", n=60, max_epochs=1),
        GridCell(data="sine", n=30, d=1, ratio=10.0, kernel="rbf", method="likeliest"),
    ]


def test_records_are_plain_json_with_settings_and_environment_and_make_tables(
    tmp_path: Path,
) -> None:
    for cell, *_ in run_cells(small_cells(), tmp_path):
        stored = json.loads((tmp_path / f"{cell.name}.json").read_text())
        assert stored["settings"] == json.loads(json.dumps(cell.settings()))
        assert {"commit", "versions", "device", "date"} <= set(stored["environment"])
    text = write_markdown(tmp_path, HYPERPARAMETERS).read_text()
    for title in ("Recovery of", "Simulated and real data", "Known functions and noise"):
        assert f"## {title}" in text
    assert "| otl | 1200000 | *sgGP (nn) (Chen et al. 2022)* | – | 0.401 | – | 2006 | – |" in text


@pytest.mark.parametrize(("data", "is_noted"), [("bike", True), ("protein", False)])
def test_a_note_says_which_scores_do_not_compare(data: str, is_noted: bool) -> None:
    folder = Path(__file__).parents[3] / "benchmarks" / "results" / "hyperparameters"
    text = fits_table([json.loads((folder / f"fit_scores_{data}_nearest.json").read_text())])
    assert ("scores on bike do not compare with the published ones" in text) is is_noted


def test_several_seeds_are_one_row_of_the_table(tmp_path: Path) -> None:
    cells = [
        ScoreCell(data="otl", method="nearest", seed=seed, n=60, max_epochs=1) for seed in (0, 1)
    ]
    values = [record["rmse"] for _, record, _ in run_cells(cells, tmp_path)]
    error = np.std(values, ddof=1) / math.sqrt(2)
    assert (
        f"| {np.mean(values):.3f} ± {error:.3f} (2) |"
        in write_markdown(tmp_path, HYPERPARAMETERS).read_text()
    )


def test_a_method_wins_where_it_ends_below_the_best_of_the_existing_ones() -> None:
    ends = {
        "bike": {"minimax": 1.0, "scgd": 2.0, "biased": 1.5, "svgp": 3.0},
        "pol": {"minimax": 1.0, "scgd": 4.0, "biased": 5.0, "svgp": 3.0},
        "protein": {"minimax": math.nan, "scgd": 0.0, "biased": 1.0, "svgp": 1.0},
        "elevators": {"minimax": 0.0, "scgd": 0.0, "biased": 1.0},  # not of all methods
    }
    settings = {"kernel": "linear", "n": 500, "batch_size": 32, "seed": 0}
    about = {"experiment": "batch-sizes", "environment": {"device": "cpu", "cpu": "one"}}
    records = [
        about
        | {"settings": settings | {"data": data, "method": method}, "nll": value, "rmse": -value}
        for data, ends_of_data in ends.items()
        for method, value in ends_of_data.items()
    ]
    text = fits_table(records)
    assert "| linear | 500 | 32 | −log p(y) | 2, 1 | 1, 2 |" in text
    assert "| linear | 500 | 32 | RMSE | 0, 3 | 0, 3 |" in text


@pytest.mark.parametrize("preset", FIT_PRESETS)
def test_the_cells_of_a_preset_have_names_of_their_own(preset: str) -> None:
    cells = FIT_PRESETS[preset].cells()
    assert len({cell.name for cell in cells}) == len(cells) > 0


def test_choices_stand_in_for_those_of_a_preset() -> None:
    cells = FIT_PRESETS["real"].cells(
        methods=["nearest"], data=["levy", "otl"], seeds=[3, 4], n=50, batch_sizes=None
    )
    assert [(cell.settings()["data"], cell.settings()["seed"]) for cell in cells] == [
        ("levy", 3),
        ("levy", 4),
        ("otl", 3),
        ("otl", 4),
    ]
    assert {cell.settings()["n"] for cell in cells} == {50}
    assert {cell.settings()["seeds"] for cell in FIT_PRESETS["recovery"].cells(seeds=[7])} == {(7,)}
    assert {cell.settings()["seed"] for cell in FIT_PRESETS["batch-sizes"].cells(seeds=[7, 8])} == {
        7,
        8,
    }


def test_bad_choices_are_refused_by_name() -> None:
    for preset, choices, message in (
        ("recovery", {"data": ["bike"]}, "`data` does not go with the benchmark recovery"),
        ("recovery", {"methods": ["adam"]}, "`method` must be one of nearest, .*, got 'adam'"),
        ("recovery", {"seeds": []}, "`seeds` must hold at least one seed"),
        ("real", {"methods": ["lbfgs"]}, "`method` must be one of nearest, .*, got 'lbfgs'"),
        ("real", {"n": 3}, "`n` must be at least 10, got 3"),
        ("real", {"max_epochs": 0}, "`max_epochs` must be at least 1, got 0"),
        ("grid", {"methods": ["far"]}, "`method` must be one of fit, reference, .*, got 'far'"),
        ("grid", {"data": ["bike"]}, "`data` must be one of prior, sine, .*, got 'bike'"),
        ("weak", {"n": 3}, "`n` must be at least 10, got 3"),
        (
            "batch-sizes",
            {"kernels": ["cubic"]},
            "`kernel` must be one of linear, gaussian, got 'cubic'",
        ),
        ("batch-sizes", {"batch_sizes": [1]}, "`batch_size` must be at least 2, got 1"),
    ):
        with pytest.raises(ValueError, match=message):
            FIT_PRESETS[preset].cells(**choices)


def test_more_points_than_a_data_set_has_are_refused(data_dir: Path) -> None:
    with pytest.raises(ValueError, match="`n` must be at most the 120 points of toy, got 121"):
        ScoreCell(data="toy", method="nearest", n=121, data_dir=data_dir).measure(silent)


def test_the_records_of_the_repository_make_its_table(tmp_path: Path) -> None:
    folder = Path(__file__).parents[3] / "benchmarks" / "results" / "hyperparameters"
    shutil.copytree(folder, tmp_path / "copy")
    expected = (folder / "hyperparameters.md").read_text()
    assert write_markdown(tmp_path / "copy", HYPERPARAMETERS).read_text() == expected
