"""The command line, as a user meets it: what is printed where, and the exit codes."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from scalable_bo import cli
from scalable_bo.experiments import thompson
from scalable_bo.experiments.presets import PRESETS
from scalable_bo.experiments.solvers import SOLVERS


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the command line in this process, and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["scalable-bo", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_a_benchmark_writes_a_record_a_run_a_plot_and_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--preset", "smoke", "--solver", "cg,cholesky", "--seeds", "0-1", "--q", "4", "--num-initial", "50"]
    assert call(monkeypatch, "bench", "thompson", *arguments, "--out", str(tmp_path / "new" / "folder")) == 0
    files = sorted(file.name for file in (tmp_path / "new" / "folder").iterdir())
    runs = [f"thompson_smoke_{solver}_l0.5_s{seed}.json" for solver in ("cg", "cholesky") for seed in (0, 1)]
    assert files == sorted([*runs, "thompson_smoke.png"])
    record = json.loads((tmp_path / "new" / "folder" / runs[0]).read_text())
    assert record["complete"]
    assert record["settings"]["preset"]["q"] == 4
    assert [entry["num_points"] for entry in record["rounds"]] == [54, 58]
    output = capsys.readouterr()
    assert "4 records in" in output.out
    assert "over 2 seeds" in output.out
    assert re.search(r"^cholesky +0\.5 +-?\d\.\d{3} ± \d\.\d{3} ", output.out, re.MULTILINE)
    assert max(map(len, output.out.splitlines()[:-1])) <= 80
    assert "…" not in output.out
    lines = output.err.splitlines()
    assert len(lines) == 8
    assert all(re.match(r"(cg|cholesky) lengthscale 0.5 seed [01] round [12]/2: n \d+, best ", line) for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("bench thompson --preset desk", "`preset` must be one of smoke, laptop,.*got 'desk'"),
        ("bench thompson --preset smoke --solver cg,lu", "`solver` must be one of cholesky, cg, sdd, sgd, sap, adasap, adasap-i, got 'lu'"),
        ("bench thompson --preset smoke --solver cg,", "`solver` must be names separated by commas, got 'cg,'"),
        ("bench thompson --preset smoke --seeds 3-1", "`seeds` must be whole numbers.*got '3-1'"),
        ("bench thompson --preset smoke --seeds -1", "`seeds` must be whole numbers.*got '-1'"),
        ("bench thompson --preset smoke --lengthscale long", "`lengthscale` must be numbers.*got 'long'"),
        ("bench thompson --preset smoke --lengthscale 0.5,-1", "`lengthscale` must be positive and finite, got -1.0"),
        ("bench thompson --preset smoke --q 0", "`q` must be positive and finite, got 0"),
        ("bench thompson --preset smoke --rounds many", "'--rounds'.*valid integer"),
        ("bench thompson --preset smoke --dtype half", "`dtype` must be float32 or float64, got 'half'"),
        ("bench thompson --preset smoke --device warp", "`device` must name a torch device, got 'warp'"),
        ("bench thompson --preset smoke --colour red", "No such option.*--colour"),
        ("bench regression --data nope --data-dir /", "`data` must be one of the data sets in /"),
        ("bench regression --data-dir nowhere", "`data_dir` must be.*nowhere is not there.*uci_datasets"),
        ("bench regression --split 11", "`split` must be between 0 and 9, got 11"),
        ("bench nope", "No such command 'nope'"),
    ],
)
def test_bad_input_is_one_line_on_stderr_and_exit_code_2_before_any_work(
    arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "out")] if "thompson" in arguments else []
    assert call(monkeypatch, *arguments.split(), *out) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert len(output.err.splitlines()) == 1
    assert re.search(message, output.err)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert call(monkeypatch, "bench", "thompson", "--preset", "smoke", "--out", str(tmp_path / "file")) == 2
    assert "`out` must be a folder to write to" in capsys.readouterr().err


def interrupt_after(rounds: int, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]) -> None:
    describe, count = thompson.describe_round, 0

    def described(record: dict[str, Any]) -> str:
        nonlocal count
        count += 1
        if count > rounds:
            raise error("out of memory: 9 GiB.")
        return describe(record)

    monkeypatch.setattr(thompson, "describe_round", described)


def test_ctrl_c_exits_with_130_and_says_what_has_been_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt_after(2, monkeypatch, KeyboardInterrupt)
    arguments = ["bench", "thompson", "--preset", "smoke", "--seeds", "0-3", "--out", str(tmp_path)]
    assert call(monkeypatch, *arguments) == 130
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"Interrupted; 1 complete run and 1 round of thompson_smoke_cg_l0.5_s1 in {tmp_path}."
    assert json.loads((tmp_path / "thompson_smoke_cg_l0.5_s0.json").read_text())["complete"]
    assert not json.loads((tmp_path / "thompson_smoke_cg_l0.5_s1.json").read_text())["complete"]


def test_a_request_that_cannot_fit_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    interrupt_after(0, monkeypatch, MemoryError)
    assert call(monkeypatch, "bench", "thompson", "--preset", "smoke", "--out", str(tmp_path)) == 1
    assert capsys.readouterr().err.startswith("out of memory: 9 GiB. So far: 0 complete runs and 1 round of")


def test_the_regression_benchmark_writes_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from scalable_bo.experiments import regression

    def fake(run: regression.RegressionRun, **options: object) -> dict[str, Any]:
        settings = {"data": run.data, "split": run.split, "solver": run.solver}
        return {"settings": settings, "rmse": 0.1, "nll": -1.0, "residual": 0.01, "epochs": 3.0, "seconds": 1.0}

    monkeypatch.setattr(regression, "run_regression", fake)
    monkeypatch.setattr(regression, "check_files", lambda run: None)
    arguments = ["bench", "regression", "--data", "pol,bike", "--split", "0-1", "--solver", "sdd", "--out", str(tmp_path)]
    assert call(monkeypatch, *arguments) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        f"regression_{name}_{split}_sdd.json" for name in ("bike", "pol") for split in (0, 1)
    ]
    output = capsys.readouterr()
    assert "pol split 1 sdd: RMSE 0.1000, NLL -1.0000" in output.err
    assert "4 records in" in output.out


def test_help_names_every_preset_and_solver(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "bench", "thompson", "--help") == 0
    text = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    for name in (*PRESETS, *SOLVERS):
        assert name in text


def test_help_and_version_import_nothing_heavy_and_answer_at_once() -> None:
    script = (
        "import sys, scalable_bo, scalable_bo.cli as cli\n"
        "sys.argv = ['scalable-bo', sys.argv[1]]\n"
        "try:\n    cli.main()\n"
        "except SystemExit as ended:\n    assert not ended.code\n"
        "assert not {'torch', 'numpy', 'gpytorch', 'botorch', 'matplotlib'} & set(sys.modules)\n"
    )
    seconds = []
    for option in ("--help", "--version", "--help"):
        start = time.perf_counter()
        run = subprocess.run([sys.executable, "-c", script, option], capture_output=True, text=True)
        seconds.append(time.perf_counter() - start)
        assert (run.returncode, run.stderr) == (0, "")
        assert "scalable-bo" in run.stdout or "Usage" in run.stdout
    assert min(seconds) < 0.5


def test_seeds_are_read_from_lists_and_ranges() -> None:
    assert cli._integers("0-2,7, 5-5", "seeds") == [0, 1, 2, 7, 5]
