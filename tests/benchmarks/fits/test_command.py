"""``python -m benchmarks.fits`` as a user meets it: records, a table, exit codes."""

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fits import batch_sizes, grid, recovery, scores
from benchmarks.fits.__main__ import fits
from benchmarks.fits.presets import FIT_PRESETS
from benchmarks.fits.scores import ScoreCell
from benchmarks.fits.simulators import SIMULATORS
from tests.benchmarks.calls import call


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "--preset speed",
            "`preset` must be one of recovery, penalty, .*, got 'speed'",
        ),
        ("--method adam", "`method` must be one of nearest, .*, got 'adam'"),
        (
            "--data bike",
            r"`data` does not go with the preset recovery, got \['bike'\]",
        ),
        (
            "--preset real --data nope --data-dir /",
            "`data` must be one of the data sets in /",
        ),
        (
            "--preset real --epochs 0",
            "`max_epochs` must be at least 1, got 0",
        ),
        (
            "--preset batch-sizes --kernel cubic",
            "`kernel` must be one of linear, gaussian, got 'cubic'",
        ),
    ],
)
def test_bad_input_is_one_line_on_stderr_and_exit_code_2_before_any_work(
    arguments: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(monkeypatch, fits, *arguments.split(), "--out", str(tmp_path / "out")) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert len(output.err.splitlines()) == 1
    assert re.search(message, output.err)
    assert not (tmp_path / "out").exists()


def test_records_and_a_table_are_written_and_what_is_finished_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [
        "--preset",
        "simulated",
        "--data",
        "otl,levy",
        "--method",
        "nearest",
        "--seeds",
        "2",
        "--n",
        "50",
        "--epochs",
        "1",
    ]
    arguments = [*options, "--out", str(tmp_path)]
    assert call(monkeypatch, fits, *arguments) == 0
    names = [f"fit_scores_{data}_nearest_seed=2_n=50_max_epochs=1.json" for data in ("levy", "otl")]
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        *names,
        "hyperparameters.md",
    ]
    output = capsys.readouterr()
    assert re.match(
        r"fit_scores_otl_nearest_seed=2\S*: noise 0\.\d{3}, RMSE \d\.\d{3}, NLL ", output.err
    )
    assert "2 records in" in output.out
    assert call(monkeypatch, fits, *arguments) == 0
    assert capsys.readouterr().err.count("(kept)") == 2


def test_an_interrupted_fit_leaves_its_records_and_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure = ScoreCell.measure

    def interrupted(cell: ScoreCell, on_status: Any) -> dict[str, Any]:
        if cell.seed == 1:
            raise KeyboardInterrupt
        return measure(cell, on_status)

    monkeypatch.setattr(ScoreCell, "measure", interrupted)
    arguments = [
        *("--preset", "simulated", "--data", "otl", "--method", "nearest", "--seeds", "0-1"),
        *("--n", "50", "--epochs", "1", "--out", str(tmp_path)),
    ]
    assert call(monkeypatch, fits, *arguments) == 130
    assert (
        capsys.readouterr().err.splitlines()[-1]
        == f"Interrupted; 1 complete run and hyperparameters.md in {tmp_path};"
        " the same command goes on."
    )
    assert "| otl | 30 | nearest | " in (tmp_path / "hyperparameters.md").read_text()


def test_help_names_every_preset_method_and_simulator(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, fits, "--help") == 0
    text = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    methods = {*recovery.RECOVERY_METHODS, *scores.SCORE_METHODS, *batch_sizes.BATCH_METHODS}
    names = (*methods, *grid.GRID_METHODS, *grid.KERNELS, *grid.FUNCTIONS)
    for name in (*FIT_PRESETS, *SIMULATORS, *names):
        assert re.sub(r"^minimax-\d+$", "minimax-MU", name) in text
