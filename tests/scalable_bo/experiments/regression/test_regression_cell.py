"""The regression benchmark: what the scores are, what a record holds, and which cells run again."""

import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel

from scalable_bo.experiments.cells import run_cell, run_cells
from scalable_bo.experiments.markdown_tables import REGRESSION, write_markdown
from scalable_bo.experiments.models import matern_kernel
from scalable_bo.experiments.presets import find_preset
from scalable_bo.experiments.records import finished_record
from scalable_bo.experiments.regression.data import load_regression_data, split_table
from scalable_bo.experiments.regression.methods import REGRESSION_METHODS, Budget
from scalable_bo.experiments.regression.regression_cell import (
    RegressionCell,
    fit_hyperparameters,
    negative_log_likelihood,
)
from scalable_bo.experiments.thompson.cell import ThompsonCell
from surrogates import CG, Solver
from tests.surrogates.solvers.toy_solver import ConjugateResiduals
from tests.toy_regression import LENGTHSCALE, NOISE_STD, SIGNAL_STD, toy_table

SHORT = Budget(sgd_steps=50, max_epochs=20.0)


def exact_scores(data_dir: Path, noise: float = NOISE_STD**2) -> tuple[float, float]:
    """Return RMSE and NLL of the exact Gaussian process on split 0."""
    data = load_regression_data("toy", 0, data_dir)

    def kernel(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        scales = torch.tensor(LENGTHSCALE, dtype=torch.float64)
        r = math.sqrt(3) * torch.cdist(A / scales, B / scales)
        return SIGNAL_STD**2 * (1 + r) * torch.exp(-r)

    H = kernel(data.train_X, data.train_X) + noise * torch.eye(108, dtype=torch.float64)
    cross = kernel(data.test_X, data.train_X)
    mean = cross @ torch.linalg.solve(H, data.train_y)
    variance = SIGNAL_STD**2 - (cross * torch.linalg.solve(H, cross.T).T).sum(1) + noise
    density = torch.distributions.Normal(mean, variance.sqrt()).log_prob(data.test_y)
    return (mean - data.test_y).square().mean().sqrt().item(), -density.mean().item()


@pytest.mark.parametrize("solver", ["cholesky", "cg", "sdd", "inducing", "subset"])
def test_scores_agree_with_the_exact_gaussian_process(data_dir: Path, solver: str) -> None:
    record = run_cell(RegressionCell("toy", 0, solver, data_dir, num_paths=512, dtype="float64"))
    rmse, nll = exact_scores(data_dir)
    assert record["rmse"] == pytest.approx(
        rmse, abs=1e-6 if solver in ("cholesky", "subset") else 0.02
    )
    assert record["nll"] == pytest.approx(nll, abs=0.05)  # one feature draw, 512 paths
    # Posterior standard deviations, where a solve ends by default; SDD spends its budget before
    assert (record["error"] <= 0.1) == (solver != "sdd")


@pytest.mark.parametrize("solver", ["cholesky", "svgp"])
def test_a_noise_variance_stands_in_for_the_published_one(data_dir: Path, solver: str) -> None:
    record = run_cell(
        RegressionCell("toy", 0, solver, data_dir, noise=0.5, num_paths=512, dtype="float64")
    )
    rmse, nll = exact_scores(data_dir, noise=0.5)
    assert record["rmse"] == pytest.approx(rmse, abs=1e-4)
    assert record["nll"] == pytest.approx(nll, abs=0.05)
    assert record["hyperparameters"]["noise"] == 0.5


@pytest.mark.parametrize("solver", REGRESSION_METHODS)
def test_every_method_gives_a_mean_alone_and_a_record_in_plain_json(
    data_dir: Path, solver: str
) -> None:
    run = RegressionCell("toy", 0, solver, data_dir, mean_only=True, budget=SHORT, dtype="float64")
    record = run_cell(run)
    assert record["nll"] is None
    assert record["error"] is None
    assert record["rmse"] < 1.0  # that of predicting the mean
    assert (record["num_train"], record["num_test"]) == (108, 12)
    assert {"seconds", "epochs", "residual", "settings", "environment", "method"} <= set(record)
    json.dumps(record)
    assert run.describe(record).startswith(f"{run.name}: RMSE ")
    assert "NLL" not in run.describe(record)


OWN = "tests.surrogates.solvers.toy_solver:ConjugateResiduals"


@pytest.mark.parametrize("solver", [OWN, ConjugateResiduals(tolerance=1e-4), CG(tolerance=1e-6)])
def test_a_solver_from_outside_enters_with_its_own_settings(
    data_dir: Path, solver: str | Solver
) -> None:
    run = RegressionCell("toy", 0, solver, data_dir, mean_only=True, dtype="float64")
    exact = RegressionCell("toy", 0, "cholesky", data_dir, mean_only=True, dtype="float64")
    record = run_cell(run)
    assert record["rmse"] == pytest.approx(run_cell(exact)["rmse"], rel=1e-2)
    assert "ConjugateResiduals(" in record["method"] or "CG(" in record["method"]
    assert (record["settings"]["solver"] == OWN) == (solver == OWN)
    json.dumps(record)
    assert ":" not in run.name


def test_published_settings_are_named_by_their_constructor(data_dir: Path) -> None:
    run = RegressionCell("toy", 0, "surrogates:SGD.paper", data_dir, mean_only=True)
    assert "sample_step_size=0.1" in run_cell(run)["method"]
    with pytest.raises(ValueError, match="must be importable, got 'surrogates:SGD.papers'"):
        RegressionCell("toy", 0, "surrogates:SGD.papers", data_dir)


@pytest.mark.parametrize(
    ("solver", "message"),
    [
        ("tests.nowhere:Solver", "`solver` must be importable"),
        ("math:sin", "`solver` must make a Solver, got TypeError.* from 'math:sin'"),
        ("json:JSONDecoder", "`solver` must make a Solver, got <json"),
        ("nothing", "`solver` must be one of auto, cholesky"),
    ],
)
def test_what_is_no_solver_is_refused_before_any_work(solver: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RegressionCell("pol", 0, solver)
    with pytest.raises(ValueError, match=message):
        ThompsonCell(find_preset("smoke"), solver, 0.5, 0)


def test_the_mean_alone_is_that_of_the_full_run(data_dir: Path) -> None:
    full = RegressionCell("toy", 0, "cholesky", data_dir, num_paths=4, dtype="float64")
    alone = run_cell(replace(full, mean_only=True))
    assert alone["rmse"] == pytest.approx(run_cell(full)["rmse"], rel=1e-10)
    assert alone["residual"] < 1e-10  # the mean's, not that of columns that were not solved for


@pytest.mark.parametrize("solver", ["inducing", "svgp", "sgd-inducing", "subset"])
def test_small_methods_use_the_number_of_points_that_they_are_given(
    data_dir: Path, solver: str
) -> None:
    budget = Budget(num_points=30, sgd_steps=50)
    record = run_cell(
        RegressionCell("toy", 0, solver, data_dir, mean_only=True, budget=budget, dtype="float64")
    )
    assert record["num_weights"] == 30
    assert record["settings"]["budget"]["num_points"] == 30


def test_gradient_descent_takes_the_published_steps_for_mean_and_samples(data_dir: Path) -> None:
    record = run_cell(RegressionCell("toy", 0, "sgd", data_dir, num_paths=2, budget=SHORT))
    assert "step_size=0.5, sample_step_size=0.1" in record["method"]
    # Its batches are all 108 points: an epoch a step, and one more to evaluate the residual.
    assert record["epochs"] == pytest.approx(50 + 1, abs=1.0)


def test_progress_says_how_much_of_the_budget_is_spent(data_dir: Path) -> None:
    seen: list[str] = []
    run_cell(
        RegressionCell("toy", 0, "sgd", data_dir, mean_only=True, budget=SHORT),
        on_status=seen.append,
    )
    assert any(text.startswith("solving, 10.0 of at most 51 epochs, residual ") for text in seen)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the cells that have been run."""
    ran: list[str] = []
    run_one = RegressionCell.run

    def spied(run: RegressionCell, *arguments: Any) -> Iterator[dict[str, Any]]:
        ran.append(run.name)
        return run_one(run, *arguments)

    monkeypatch.setattr(RegressionCell, "run", spied)
    return ran


def test_cells_of_a_split_have_its_data_in_common(data_dir: Path) -> None:
    runs = [
        RegressionCell("toy", split, solver, data_dir, mean_only=True)
        for split in (0, 1)
        for solver in ("cg", "cholesky")
    ]
    assert [run.source == runs[0].source for run in runs] == [True, True, False, False]


def test_a_cell_with_other_settings_is_run_beside_the_first(
    data_dir: Path, tmp_path: Path, spy: list[str]
) -> None:
    run = RegressionCell("toy", 0, "cg", data_dir, mean_only=True)
    changes: list[dict[str, Any]] = [
        {"noise": 1e-3},
        {"mean_only": False, "num_paths": 2},
        {"budget": Budget(tolerance=1e-3)},
        {"budget": Budget(max_epochs=7.0)},
        {"dtype": "float64"},
        {"seed": 1},
    ]
    runs = [run, *(replace(run, **change) for change in changes)]
    list(run_cells(runs, tmp_path))
    assert spy == [each.name for each in runs]
    assert len(list(tmp_path.glob("*.json"))) == len(runs)


def test_a_budget_that_a_method_does_not_heed_changes_nothing(
    data_dir: Path, tmp_path: Path, spy: list[str]
) -> None:
    run = RegressionCell("toy", 0, "cg", data_dir, mean_only=True)
    list(run_cells([run, replace(run, budget=Budget(sgd_steps=7, num_points=9))], tmp_path))
    assert spy == [run.name]


@pytest.fixture
def homes(tmp_path: Path) -> Path:
    path = tmp_path / "homes.csv"
    pandas.DataFrame(toy_table(), columns=["a", "b", "c", "price"]).to_csv(path, index=False)
    return path


def test_a_user_s_table_is_fitted_and_predicted(homes: Path) -> None:
    record = run_cell(
        RegressionCell(
            str(homes), 0, "cholesky", target="price", test_fraction=0.2, dtype="float64"
        )
    )
    assert (record["num_train"], record["num_test"]) == (96, 24)
    assert record["rmse"] < 0.3  # of targets of variance 1: 24 points in the plane, smooth
    assert record["nll"] < 0.5
    assert record["settings"]["data"] == "homes.price"
    assert len(record["hyperparameters"]["lengthscale"]) == 3


@pytest.mark.parametrize("kernel", ["matern52", "rbf"])
def test_a_user_s_table_is_predicted_by_the_kernel_that_was_asked_for(
    homes: Path, kernel: str
) -> None:
    run = RegressionCell(
        str(homes), 0, "cholesky", mean_only=True, target="price", kernel=kernel, dtype="float64"
    )
    record = run_cell(run)
    assert f"_kernel={kernel}_" in run.name
    assert record["settings"]["kernel"] == kernel
    found = record["hyperparameters"]
    data = split_table(toy_table(), 0, 0.1)
    lengthscale = torch.tensor(found["lengthscale"])
    scaled = (data.train_X / lengthscale, data.test_X / lengthscale)
    base = RBFKernel() if kernel == "rbf" else MaternKernel(nu=2.5)
    base.lengthscale = 1.0
    K, cross = (found["outputscale"] * base(scaled[0], Z).to_dense() for Z in scaled)
    H = K + found["noise"] * torch.eye(len(K), dtype=K.dtype)
    mean = cross.T @ torch.linalg.solve(H, data.train_y)
    error = (mean - data.test_y).square().mean().sqrt().item()
    assert record["rmse"] == pytest.approx(error, rel=1e-6)


def test_every_kernel_of_a_table_is_fitted(homes: Path, tmp_path: Path) -> None:
    run = RegressionCell(str(homes), 0, "cholesky", mean_only=True, target="price")
    runs = [run, replace(run, kernel="rbf")]
    list(run_cells(runs, tmp_path))
    first, second = (json.loads((tmp_path / f"{each.name}.json").read_text()) for each in runs)
    assert first["hyperparameters"] != second["hyperparameters"]


def test_published_hyperparameters_are_of_one_kernel_only() -> None:
    with pytest.raises(ValueError, match="`kernel` goes with a table of your own.*got 'rbf' for p"):
        RegressionCell("pol", 0, "cg", kernel="rbf")
    with pytest.raises(ValueError, match="`kernel` must be one of .*, got 'cosine'"):
        RegressionCell("pol", 0, "cg", kernel="cosine")


def test_other_targets_and_fractions_of_a_table_have_records_of_their_own(homes: Path) -> None:
    run = RegressionCell(str(homes), 0, "cholesky", target="price")
    others = [
        replace(run, target="a/b: c"),
        replace(run, target="a-b: c"),
        replace(run, test_fraction=0.3),
    ]
    names = [each.name for each in (run, *others)]
    assert [re.sub("_[0-9a-f]{8}$", "", name) for name in names] == [
        "regression_homes.price_0_cholesky",
        "regression_homes.a-b--c_0_cholesky",
        "regression_homes.a-b--c_0_cholesky",
        "regression_homes.price_0_cholesky_test_fraction=0.3",
    ]
    assert len(set(names)) == len(names)
    assert run.name == replace(run).name


def test_tables_of_one_stem_have_records_of_their_own(homes: Path, tmp_path: Path) -> None:
    table = pandas.read_csv(homes)
    table.to_parquet(tmp_path / "homes.parquet")
    (tmp_path / "other").mkdir()
    (-table).to_csv(tmp_path / "other" / "homes.csv", index=False)
    paths = [homes, tmp_path / "homes.parquet", tmp_path / "other" / "homes.csv"]
    runs = [
        RegressionCell(str(path), 0, "cholesky", target="price", mean_only=True) for path in paths
    ]
    list(run_cells(runs, tmp_path / "out"))
    assert len(list((tmp_path / "out").glob("*.json"))) == 3
    text = write_markdown(tmp_path / "out", REGRESSION).read_text()
    for path in paths:
        assert f"| homes.price {hashlib.sha256(path.read_bytes()).hexdigest()[:8]} |" in text


SYNTHETIC = sorted(Path("benchmarks/results/synthetic").glob("*.json"))


def test_committed_records_of_tables_are_kept_by_a_rerun(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(SYNTHETIC) == 36
    for file in SYNTHETIC:
        settings = json.loads(file.read_text())["settings"]
        monkeypatch.setattr(RegressionCell, "sha256", settings["sha256"])  # of a table not here
        run = RegressionCell(
            settings["data"].removesuffix(".y") + ".parquet",
            settings["split"],
            settings["solver"],
            budget=Budget(**settings["budget"]),
            target=settings["target"],
            kernel=settings.get("kernel", "matern32"),
        )
        assert run.name == file.stem
        assert finished_record(file, run.settings()) is not None


def test_the_name_of_a_table_s_cell_reads_the_table_once(homes: Path) -> None:
    run = RegressionCell(str(homes), 0, "cholesky", target="price")
    name = run.name
    homes.unlink()
    assert run.name == name
    assert run.settings()["sha256"] == run.sha256


def test_numbers_that_differ_in_a_late_digit_have_records_of_their_own() -> None:
    run = RegressionCell("pol", 0, "cg", noise=1e-6, budget=Budget(max_epochs=7.5))
    assert run.name == "regression_pol_0_cg_noise1e-06_max_epochs=7.5"
    assert replace(run, noise=1.0000001e-6).name != run.name
    assert replace(run, budget=Budget(max_epochs=7.5000001)).name != run.name


def test_a_table_that_changed_is_run_again(homes: Path, tmp_path: Path, spy: list[str]) -> None:
    run = RegressionCell(str(homes), 0, "cholesky", target="price", mean_only=True)
    list(run_cells([run], tmp_path))
    list(run_cells([run], tmp_path))
    assert len(spy) == 1
    run = replace(run)
    pandas.DataFrame(1.0 + toy_table(), columns=["a", "b", "c", "price"]).to_csv(homes, index=False)
    list(run_cells([run], tmp_path))
    assert len(spy) == 2
    assert len(list(tmp_path.glob("*.json"))) == 2  # the first is not lost


def drawn_from_the_prior(noise: float) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(300, 2, generator=generator, dtype=torch.float64)
    K = matern_kernel(torch.tensor([0.7, 3.0], dtype=torch.float64), 1.5)(X).to_dense()
    root = torch.linalg.cholesky(K + noise * torch.eye(300, dtype=torch.float64))
    return X, root @ torch.randn(300, generator=generator, dtype=torch.float64)


def test_the_fit_recovers_the_hyperparameters_of_a_prior_draw() -> None:
    seen: list[str] = []
    fitted = fit_hyperparameters(*drawn_from_the_prior(noise=0.01), on_status=seen.append)
    assert seen[0] == "fitting, 1 evaluation"
    assert fitted.noise == pytest.approx(0.01, rel=0.5)
    assert fitted.outputscale == pytest.approx(1.5, rel=0.8)
    assert fitted.lengthscale[0] == pytest.approx(0.7, rel=0.4)
    assert fitted.lengthscale[1] == pytest.approx(3.0, rel=0.4)


def test_a_constant_target_is_fitted() -> None:
    X, _ = drawn_from_the_prior(noise=0.01)
    fitted = fit_hyperparameters(X, torch.zeros(300))
    assert fitted.noise > 0
    assert fitted.outputscale > 0


def test_the_likelihood_is_that_of_a_normal() -> None:
    y, mean, variance = torch.tensor([[0.3, -1.0], [0.0, 0.5], [0.04, 2.0]], dtype=torch.float64)
    expected = -torch.distributions.Normal(mean, variance.sqrt()).log_prob(y).mean().item()
    assert negative_log_likelihood(y, mean, variance) == pytest.approx(expected)
