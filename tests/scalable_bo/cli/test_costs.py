"""The prediction of shared solves: what is held is what the solvers hold,
what moves is what the system counts, and the command's words.
"""

import json
from typing import Any

import pytest
import torch

from acquisition.strategies import NUM_CANDIDATES
from benchmarks.distributed import found_by, inputs, measured_memory
from scalable_bo.cli import costs
from scalable_bo.cli.costs import Rates, Shape, measure_rates, predict
from scalable_bo.cli.search_costs import measure_slopes, predict_round
from scalable_bo.cli.solve_check import describe_bytes, describe_seconds
from surrogates import CG, SDD, SGD, Nystrom, SketchAndProject
from surrogates.solvers.footprint import Size
from tests.scalable_bo.cli.test_main import call

RATES = Rates(
    entry_seconds=1e-9, gemm_flops=1e11, memory_bytes=1e10, network_bytes=1e9, latency_seconds=1e-4
)


def test_names_and_sizes_make_the_solver_of_the_registry() -> None:
    assert Shape(60, 2, solver="asap", block_size=20).make_solver() == SketchAndProject.asap(
        block_size=20
    )
    assert Shape(60, 2, solver="sdd-10", block_size=20).make_solver() == SDD(10.0, 20)
    assert Shape(60, 2, solver="cg", rank=7).make_solver() == CG(Nystrom(7))
    assert Shape(60, 2, solver="adasap", rank=0).make_solver() == SketchAndProject.adasap_identity()
    assert Shape(60, 2, 3, 2, solver="sgd").footprint == SGD().footprint(Size(60, 2, 3, 2))
    with pytest.raises(ValueError, match="`solver` must declare .* in 2 processes, got 'cholesky'"):
        _ = Shape(60, 2, ranks=2, solver="cholesky").footprint


def test_processes_share_the_rows_and_what_is_held_of_them() -> None:
    alone, shared = (
        predict(Shape(10**6, 9, 65, ranks, "asap", 1000), RATES, 10**8) for ranks in (1, 8)
    )
    # Factorised side by side
    assert shared.memory["blocks' points"] == 8 * 1000 * 9 * 4 == 8 * alone.memory["blocks' points"]
    assert shared.memory["block"] == 4 * 1000**2 * 4 == 4 / 3 * alone.memory["block"]
    ours = [
        found.step_memory
        - sum(found.memory[part] for part in ("order", "block", "blocks' points", "process"))
        for found in (alone, shared)
    ]
    assert ours[1] == pytest.approx(ours[0] / 8)
    assert shared.memory["points"] == alone.memory["points"] / 8
    assert alone.memory["points"] == 10**6 * 9 * 4
    assert alone.memory["iterates"] == 4 * 10**6 * 65 * 4
    assert alone.step_memory <= alone.total_memory == sum(alone.memory.values())


def test_a_step_moves_the_points_and_the_sums_of_a_block() -> None:
    for ranks in (1, 2, 64):
        found = predict(Shape(10**6, 9, 65, ranks, "sap", 1000), RATES)
        assert found.network_bytes == pytest.approx(
            2 * (ranks - 1) / ranks * 1000 * (9 + 65) * 4, abs=1
        )
    # A sum in pairs of processes, for the one whose turn it is, comes to it in slices
    ordered = predict(Shape(10**6, 9, 65, 4, "sap", 1000), RATES)
    assert ordered.network_bytes == 2 * 0.75 * 1000 * (9 + 65) * 4 + 0.75 * 1000 * 65
    passing = predict(Shape(10**6, 9, 65, 4, "cg", rank=0), RATES)
    assert passing.network_bytes == 0.75 * 10**6 * (9 + 65) * 4


def test_products_and_factorisations_are_shared_and_the_block_solves_are_not() -> None:
    alone, shared = (predict(Shape(50_000, 8, 64, ranks, "asap", 1000), RATES) for ranks in (1, 4))
    assert alone.seconds["product"] == pytest.approx(1000 * 50_000 * (1e-9 + 2 * 64 / 1e11))
    assert shared.seconds["product"] == pytest.approx(alone.seconds["product"] / 4)
    factorised = 1000**3 / 3 / 1e11 + 1000**2 * 1e-9
    assert alone.seconds["block"] == pytest.approx(factorised + 2 * 1000**2 * 64 / 1e11)
    assert shared.seconds["block"] == pytest.approx(factorised / 4 + 2 * 1000**2 * 64 / 1e11)
    assert alone.seconds["network"] == 0 < shared.seconds["network"]
    assert alone.seconds_per_epoch == 50 * alone.seconds_per_step


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n": 0}, "`n` must be at least 1"),
        ({"solver": "lu"}, "`solver` must be one of auto, cholesky, cg, .*, got 'lu'"),
        ({"ranks": 101}, "`ranks` must be at most n = 100, got 101. Every process needs a row"),
        ({"block_size": 0}, "`block_size` must be at least 1"),
        ({"rank": -1}, "`rank` must be at least 0"),
    ],
)
def test_bad_shapes_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Shape(**({"n": 100, "dim": 2} | changes))


def test_rates_are_measured_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALABLE_BO_COMPILE", "never")
    rates = measure_rates(3, 4, seconds=0.1)
    assert 1e-12 < rates.entry_seconds < 1e-6
    assert 1e8 < rates.gemm_flops < 1e15
    assert min(rates.memory_bytes, rates.network_bytes) > 1e6
    assert 0 < rates.latency_seconds < 1


def test_the_command_predicts_for_each_number_of_processes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(costs, "measure_rates", lambda *_: RATES)
    arguments = [
        "check",
        "--n",
        "330000000",
        "--dim",
        "9",
        "--ranks",
        "1,64",
        "--solver",
        "sdd",
        "--block-size",
        "1000",
    ]
    assert call(monkeypatch, *arguments, "--gemm-gflops", "2000", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rates"]["gemm_flops"] == 2e12
    assert [entry["shape"]["ranks"] for entry in found["predictions"]] == [1, 64]
    assert found["predictions"][1]["network_bytes"] == 2 * 63 / 64 * 1000 * (9 + 1) * 4
    assert call(monkeypatch, *arguments) == 0
    output = capsys.readouterr().out
    assert "sdd, blocks of 1000: n = 330000000, d = 9, 1 right-hand sides, 32 bits" in output
    assert "points 177.0 MiB" in output
    assert max(map(len, output.splitlines()[2:-1])) <= 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("check", "`check` needs either STUDY.TOML or --n"),
        ("check study.toml --n 10", "`check` needs either STUDY.TOML or --n"),
        ("check --n 10 --ranks 20", "`ranks` must be at most n = 10, got 20"),
        ("check --n 10 --dtype half", "`dtype` must be float32 or float64, got 'half'"),
        ("check --n 10 --bandwidth 0", "`bandwidth` must be finite and above 0, got 0"),
    ],
)
def test_wrong_options_end_the_command_with_one_line(
    arguments: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(monkeypatch, *arguments.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_amounts_have_units() -> None:
    assert [describe_bytes(number) for number in (10, 2**20, 3 * 2**29)] == [
        "10 B",
        "1.0 MiB",
        "1.5 GiB",
    ]
    assert [describe_seconds(number) for number in (0.5, 90.0, 7200.0, 864_000.0)] == [
        "0.5 s",
        "90 s",
        "2.0 h",
        "10.0 days",
    ]


def test_inputs_do_not_depend_on_how_they_are_shared() -> None:
    whole = inputs(slice(0, 70_000), 2)
    assert torch.equal(
        torch.cat([inputs(slice(0, 66_000), 2), inputs(slice(66_000, 70_000), 2)]), whole
    )
    assert len(torch.unique(whole, dim=0)) == 70_000


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("columns", [1, 65])
@pytest.mark.parametrize("name", ["asap", "sdd"])
def test_measured_memory_and_traffic_are_those_predicted(name: str, columns: int) -> None:
    for ranks in (1, 2):
        found = measured_memory(
            Shape(1_000_000, 9, columns, ranks, name, 64), RATES, steps=2, timeout=120.0
        )
        assert 0.85 < found["memory_ratio"] < 1.15
        if ranks > 1:
            assert found["measured"]["network_bytes"] == pytest.approx(
                found["predicted"]["network_bytes"], rel=0.02
            )


@pytest.mark.slow
@pytest.mark.distributed
def test_a_shared_solve_of_the_benchmark_reaches_the_residual_of_one_process() -> None:
    alone, shared = (
        found_by(Shape(3000, 3, 4, ranks, "asap", 300), 0, 3.0, 120.0) for ranks in (1, 2)
    )
    assert shared["residual"] == pytest.approx(alone["residual"], rel=1e-2)


def test_a_round_shares_the_weights_and_the_ascent_and_not_the_kernel_of_the_screening() -> None:
    alone, shared = (
        predict_round(Shape(10**6, 8, 65, p, "asap", 1000), RATES, 4e-9, 2.0, process_bytes=10**8)
        for p in (1, 4)
    )
    assert alone.network_bytes == 0
    assert shared.network_bytes == 0.75 * 250_000 * 64 * 4
    assert shared.seconds["ascent"] == pytest.approx(alone.seconds["ascent"] / 4)
    kernel = NUM_CANDIDATES * 10**6 * RATES.entry_seconds
    assert shared.seconds["screening"] - kernel == pytest.approx(
        (alone.seconds["screening"] - kernel) / 4
    )
    assert shared.total_memory == max(shared.memory.values()) < alone.total_memory
    # All points, and the solution and the weights of a quarter of the rows and of the paths
    weights = 250_000 * 65 + 10**6 * 16
    assert shared.memory["searching"] == 10**8 + 4 * (10**6 * (9 + 5 * 8 + 8) + weights)
    assert shared.solve_seconds == 2.0 * predict(shared.shape, RATES).seconds_per_epoch
    assert measure_slopes(3, seconds=0.01) > 0


def test_the_command_predicts_a_round(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = ["--entry-ns", "1", "--gemm-gflops", "100", "--bandwidth", "1", "--slope-ns", "4"]
    size = ["--n", "1000000", "--ranks", "1,4", "--samples", "64"]
    monkeypatch.setattr(costs, "measure_rates", lambda *arguments: RATES)
    assert call(monkeypatch, "check", *size, *rates, "--epochs", "2") == 0
    assert "A Thompson round of 64 points, a solve of 2 epochs" in capsys.readouterr().out
    assert call(monkeypatch, "check", *size, *rates, "--json") == 0
    rounds = json.loads(capsys.readouterr().out)["rounds"]
    assert [entry["shape"]["ranks"] for entry in rounds] == [1, 4]
