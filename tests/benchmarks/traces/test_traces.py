"""Traces of solvers: they end at the exact solution, and their distances are what they say."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks.traces.trace_cell import THOMPSON, TraceCell, load_system, plot_solvers
from scalable_bo.experiments.cells import run_cell
from surrogates.regressors.gp_regressor import MOST_JOINT
from tests.refusals import assert_refused

SMALL = TraceCell("cg", THOMPSON, n=150, noise=1e-2, epochs=30.0, points=4, dtype="float64")
DISTANCES = ("residual", "mean_error", "weights_error", "rkhs_error")


def test_conjugate_gradients_approach_the_exact_solution_and_end_there() -> None:
    record = run_cell(SMALL)
    assert record["complete"]
    for key in DISTANCES:
        values = [checkpoint[key] for checkpoint in record["checkpoints"]]
        assert values == sorted(values, reverse=True)
        assert values[-1] < 1e-6
    last = record["checkpoints"][-1]
    assert last["test_rmse"] == pytest.approx(record["exact_test_rmse"], rel=1e-6)
    json.dumps(record)


@pytest.mark.parametrize("solver", ["sgd", "sdd", "sap", "adasap"])
def test_every_solver_comes_nearer(solver: str) -> None:
    checkpoints = run_cell(replace(SMALL, solver=solver))["checkpoints"]
    assert checkpoints[-1]["mean_error"] < checkpoints[0]["mean_error"]
    assert checkpoints[-1]["test_rmse"] < checkpoints[0]["test_rmse"]


def test_a_checkpoint_spends_its_budget_and_no_more_than_evaluating_takes() -> None:
    for checkpoint in run_cell(replace(SMALL, solver="sdd"))["checkpoints"]:
        assert checkpoint["epochs"] <= checkpoint["budget"] + 2.0


def test_the_direct_solve_is_one_checkpoint_at_the_exact_solution() -> None:
    (checkpoint,) = run_cell(replace(SMALL, solver="cholesky"))["checkpoints"]
    assert all(checkpoint[key] < 1e-9 for key in DISTANCES)


def test_distances_are_those_of_dense_algebra() -> None:
    run = replace(SMALL, solver="cg", points=1, epochs=3.0)
    system = load_system(run)
    data = system.data
    K = system.kernel(data.train_X).to_dense()
    cross = system.kernel(data.test_X, data.train_X).to_dense()
    H = K + system.noise * torch.eye(150, dtype=torch.float64)
    exact = torch.linalg.solve(H, data.train_y)
    solved = system.solved()
    torch.testing.assert_close(solved.weights[:, 0], exact, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(solved.mean[:, 0], cross @ exact, rtol=1e-8, atol=1e-8)
    # Measured against other weights: the differences are then known.
    offset = torch.linspace(-1.0, 1.0, 150, dtype=torch.float64)
    shifted = replace(solved, weights=solved.weights + offset[:, None], mean=solved.mean + 0.5)
    direct = replace(run, solver="cholesky")
    (checkpoint,) = run_cell(direct, shifted)["checkpoints"]
    assert checkpoint["weights_error"] == pytest.approx(offset.norm().item(), rel=1e-6)
    assert checkpoint["rkhs_error"] == pytest.approx((offset @ K @ offset).sqrt().item(), rel=1e-6)
    assert checkpoint["mean_error"] == pytest.approx(0.5, rel=1e-6)
    assert checkpoint["test_rmse"] == pytest.approx(
        (cross @ exact - data.test_y).square().mean().sqrt().item(), rel=1e-6
    )


def test_budgets_grow_geometrically_to_the_largest() -> None:
    assert replace(SMALL, epochs=27.0, points=4).budgets() == pytest.approx([1.0, 3.0, 9.0, 27.0])
    assert replace(SMALL, points=1).budgets() == [30.0]


def test_a_data_set_is_a_problem_too_and_low_noise_replaces_its_own(data_dir: Path) -> None:
    run = TraceCell("cg", "toy", 0, data_dir=data_dir, noise=1e-3, epochs=4.0, points=2)
    record = run_cell(run)
    assert (record["num_train"], record["noise"]) == (108, 1e-3)
    assert run.name == "solvers_toy_0_noise0.001_cg"
    assert len(record["checkpoints"]) == 2


def test_single_precision_does_not_touch_the_reference() -> None:
    # Which single precision would round
    run = replace(SMALL, dtype="float32", points=1, lengthscale=0.3)
    system = load_system(run)
    before = system.kernel(system.data.train_X).to_dense()
    run_cell(run, system)
    after = system.kernel(system.data.train_X).to_dense()
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_without_the_exact_solution_there_are_no_distances_and_no_limit() -> None:
    checkpoints = run_cell(replace(SMALL, exact=False, points=1))["checkpoints"]
    assert checkpoints[0]["mean_error"] is None
    assert checkpoints[0]["test_rmse"] > 0
    assert TraceCell("cg", THOMPSON, n=MOST_JOINT + 1, exact=False).n == MOST_JOINT + 1


def test_settings_out_of_range_are_refused() -> None:
    assert_refused(
        ValueError,
        partial(replace, SMALL),
        solver=["lu"],
        points=[0],
        epochs=[0.5],
        noise=[-1.0],
        split=[10],
        dtype=["half"],
    )
    with pytest.raises(ValueError, match="computed for up to 20000 points, got 20001. Use --no-ex"):
        replace(SMALL, n=MOST_JOINT + 1)


def test_a_data_set_that_is_not_there_is_named(data_dir: Path) -> None:
    with pytest.raises(ValueError, match="`data` must be one of the data sets"):
        TraceCell("cg", "nope", data_dir=data_dir).check_files()


def test_traces_are_drawn_with_and_without_the_exact_solution(tmp_path: Path) -> None:
    records = [run_cell(replace(SMALL, solver=solver, points=2)) for solver in ("cg", "sdd")]
    plot_solvers(records, tmp_path / "with.png")
    plot_solvers([run_cell(replace(SMALL, exact=False, points=2))], tmp_path / "without.png")
    assert (tmp_path / "with.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "without.png").stat().st_size < (tmp_path / "with.png").stat().st_size
    with pytest.raises(ValueError, match="at least one trace with a checkpoint"):
        plot_solvers([{**records[0], "checkpoints": []}], tmp_path / "none.png")
