"""``python -m benchmarks.traces`` as a user meets it: records, a plot, and the exit codes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.traces.__main__ import traces
from benchmarks.traces.cell import TraceCell
from tests.benchmarks.calls import call


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--problem sampling", "`problem` must be thompson, got 'sampling'"),
        (
            "--problem thompson --n 20001",
            "`exact`: .* up to 20000 points, got 20001. Use --no-exact",
        ),
        ("--data-dir nowhere", "`data_dir` must be.*nowhere is not there"),
    ],
)
def test_bad_input_is_one_line_on_stderr_and_exit_code_2_before_any_work(
    arguments: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(monkeypatch, traces, *arguments.split(), "--out", str(tmp_path / "out")) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert len(output.err.splitlines()) == 1
    assert re.search(message, output.err)
    assert not (tmp_path / "out").exists()


def test_solvers_are_traced_and_drawn(
    data_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    arguments = [
        "--data",
        "toy",
        "--data-dir",
        str(data_dir),
        "--solver",
        "cg,sdd",
        "--epochs",
        "8",
        "--points",
        "3",
        "--out",
        str(out),
    ]
    assert call(monkeypatch, traces, *arguments) == 0
    assert sorted(file.name for file in out.iterdir()) == [
        "solvers_toy_0.png",
        "solvers_toy_0_cg.json",
        "solvers_toy_0_sdd.json",
    ]
    output = capsys.readouterr()
    assert len(output.err.splitlines()) == 6
    assert re.search(r"^sdd +\d", output.out, re.MULTILINE)
    record = json.loads((out / "solvers_toy_0_cg.json").read_text())
    assert [checkpoint["budget"] for checkpoint in record["checkpoints"]] == pytest.approx(
        [1.0, 8.0**0.5, 8.0]
    )


def test_an_interrupted_trace_says_what_has_been_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    describe = TraceCell.describe

    def described(cell: TraceCell, record: dict[str, Any]) -> str:
        if len(record["checkpoints"]) > 2:
            raise KeyboardInterrupt
        return describe(cell, record)

    monkeypatch.setattr(TraceCell, "describe", described)
    arguments = [
        "--problem",
        "thompson",
        "--n",
        "60",
        "--points",
        "5",
        "--solver",
        "cg",
        "--no-exact",
        "--out",
        str(tmp_path),
    ]
    assert call(monkeypatch, traces, *arguments) == 130
    assert capsys.readouterr().err.splitlines()[-1] == (
        "Interrupted; 0 complete runs and 3 checkpoints of solvers_thompson_n60_l0.5_s0_cg in"
        f" {tmp_path}; the same command goes on."
    )
    record = json.loads((tmp_path / "solvers_thompson_n60_l0.5_s0_cg.json").read_text())
    assert (len(record["checkpoints"]), record["complete"]) == (3, False)
