"""A day with a GPU, rehearsed on the CPU: stages end at their deadline, go on, and keep records."""

import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_day
from benchmarks.gpu_day import STAGES, Day, Step, begin_stage, best_solver, run_stage
from scalable_bo.experiments.records import read_record, write_record

LONG = 3600.0  # seconds that no stage here takes


def python(name: str, code: str) -> Step:
    return Step(name, (sys.executable, "-c", code))


@pytest.fixture
def day(tmp_path: Path) -> Day:
    return Day("cpu", tmp_path, small=True)


def stage_of(monkeypatch: pytest.MonkeyPatch, *steps: Step) -> None:
    def stage(day: Day) -> Iterator[Step]:
        yield from steps

    monkeypatch.setitem(STAGES, "stage", stage)


def test_a_step_that_fails_is_recorded_and_does_not_stop_the_others(
    day: Day, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = (python("bad", "raise ValueError('no')"), python("good", "print('fine')"))
    stage_of(monkeypatch, *steps)
    record = run_stage(begin_stage("stage", day), day, LONG)
    assert record["steps"]["bad"]["returned"] == 1
    assert "ValueError: no" in record["steps"]["bad"]["output"]
    assert record["steps"]["good"]["output"] == "fine\n"
    assert not record["complete"]
    assert read_record(day.folder / "stage.json")["steps"].keys() == {"bad", "good"}


def test_finished_steps_are_kept_and_others_run_again(
    day: Day, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = f"open({str(day.folder / 'runs')!r}, 'a').write('x')"
    stage_of(monkeypatch, python("once", note))
    for _ in range(2):
        assert run_stage(begin_stage("stage", day), day, LONG)["complete"]
    assert (day.folder / "runs").read_text() == "x"
    stage_of(monkeypatch, python("once", note), python("new", note))
    assert run_stage(begin_stage("stage", day), day, LONG)["complete"]
    assert (day.folder / "runs").read_text() == "xx"


@pytest.mark.parametrize("changed", ["command", "environment"])
def test_a_finished_step_of_the_same_name_runs_again_if_it_is_another(
    day: Day, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    small = python("tests", "print('small')")
    stage_of(monkeypatch, small)
    assert run_stage(begin_stage("stage", day), day, LONG)["complete"]
    command = python("tests", "print('large')").command
    step = Step("tests", command) if changed == "command" else replace(small, environment={"A": ""})
    stage_of(monkeypatch, step)
    record = run_stage(begin_stage("stage", day), day, LONG)
    assert record["steps"]["tests"]["command"] == list(step.command)
    assert record["steps"]["tests"]["environment"] == step.environment


def main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    """Run the script in this process, and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["gpu_day.py", "stage", *arguments])
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            gpu_day.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    return ended.value.code


ON_CPU = ("--deadline", str(LONG), "--device", "cpu")


@pytest.mark.parametrize(("key", "there"), [("device", "NVIDIA H100"), ("small", "True")])
def test_a_rehearsal_does_not_pass_for_the_day(
    day: Day,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    key: str,
    there: str,
) -> None:
    stage_of(monkeypatch, python("once", f"open({str(day.folder / 'run')!r}, 'x')"))
    found = begin_stage("stage", replace(day, small=key == "small"))
    if key == "device":
        found["environment"]["device"] = there
    write_record(day.folder / "stage.json", found)
    assert main(monkeypatch, *ON_CPU, "--out", str(day.folder)) == 2
    message = capsys.readouterr().err
    assert f"`out` has another record of the stage stage: {key} is {there} there, " in message
    assert message.endswith("now. Choose another folder.\n")
    assert not (day.folder / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--deadline", "nan"), "`deadline` must be finite and above 0, got nan. Give the seconds"),
        (("--deadline", "0"), "`deadline` must be finite and above 0, got 0.0"),
        (("--deadline", "-5"), "`deadline` must be finite and above 0, got -5.0"),
        (("--device", "tpu"), "`device` must name a torch device, got 'tpu'"),
        (("--out", __file__), f"`out` must be a folder to write to, got {__file__}"),
    ],
)
def test_bad_arguments_are_one_line_before_any_work(
    day: Day,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    stage_of(monkeypatch, python("never", f"open({str(day.folder / 'run')!r}, 'x')"))
    assert main(monkeypatch, *ON_CPU, "--out", str(day.folder), *arguments) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert not list(day.folder.iterdir())


@pytest.mark.parametrize(
    "text", ['{"stage": "sta', "[]", '{"stage": "other"}', '{"stage": "stage"}']
)
def test_a_file_that_is_no_record_of_the_stage_is_neither_read_nor_replaced(
    day: Day, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    stage_of(monkeypatch, python("never", f"open({str(day.folder / 'run')!r}, 'x')"))
    path = day.folder / "stage.json"
    path.write_text(text)
    assert main(monkeypatch, *ON_CPU, "--out", str(day.folder)) == 2
    errors = capsys.readouterr().err
    assert f"record of the stage stage in {path}, which holds something else" in errors
    assert len(errors.splitlines()) == 1
    assert path.read_text() == text
    assert not (day.folder / "run").exists()


def test_at_the_deadline_the_running_step_ends_and_none_begins(
    day: Day, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage_of(
        monkeypatch,
        python("endless", "import time; print('on', flush=True); time.sleep(10**6)"),
        python("next", "pass"),
    )
    record = run_stage(begin_stage("stage", day), day, 0.5)
    assert record["steps"].keys() == {"endless"}
    assert record["steps"]["endless"]["ended_by_deadline"]
    assert record["steps"]["endless"]["returned"] != 0
    assert not record["complete"]


def test_a_step_ends_with_the_stage_that_is_told_to_end(
    day: Day, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = day.folder / "number"
    endless = f"""
import os, pathlib, signal, time
pathlib.Path({str(note)!r}).write_text(str(os.getpid()))
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(10**6)
"""
    stage_of(monkeypatch, python("endless", endless))
    code = main(monkeypatch, *ON_CPU, "--out", str(day.folder))
    assert code == 128 + signal.SIGTERM
    assert not Path(f"/proc/{note.read_text()}").exists()


def test_the_environment_of_a_step_reaches_it(day: Day, monkeypatch: pytest.MonkeyPatch) -> None:
    command = python("mode", "import os; print(os.environ['SCALABLE_BO_COMPILE'])").command
    stage_of(monkeypatch, Step("mode", command, {"SCALABLE_BO_COMPILE": "never"}))
    assert run_stage(begin_stage("stage", day), day, LONG)["steps"]["mode"]["output"] == "never\n"


def test_the_best_solver_has_the_best_value_and_of_equal_ones_the_least_time(
    tmp_path: Path,
) -> None:
    assert best_solver(tmp_path) is None
    for solver, best, seconds in (("cg", 2.0, 5.0), ("sdd", 2.0, 3.0), ("sgd", 1.0, 0.1)):
        last = {"best_noiseless": best, "seconds_solve": seconds, "seconds_acquisition": 1.0}
        record: dict[str, Any] = {
            "experiment": "thompson",
            "complete": True,
            "settings": {"solver": solver},
            "rounds": [last],
        }
        write_record(tmp_path / f"{solver}.json", record)
    assert best_solver(tmp_path) == "sdd"


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("stage", STAGES)
def test_the_commands_of_every_stage_exist(stage: str, small: bool, tmp_path: Path) -> None:
    steps = list(STAGES[stage](Day("cuda", tmp_path, small)))
    assert len({step.name for step in steps}) == len(steps) > 0
    for step in steps:
        assert step.command[0] == sys.executable
        scripts = [part for part in step.command if part.endswith(".py") and "/" in part]
        assert all((gpu_day.ROOT / script).is_file() for script in scripts)
        assert {"cuda", "pytest", "torch.distributed.run"} & {*step.command}


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_runs_whole_on_the_cpu(stage: str, day: Day) -> None:
    record = run_stage(begin_stage(stage, day), day, LONG)
    failed = {name: s["output"] for name, s in record["steps"].items() if s["returned"]}
    assert not failed
    assert record["complete"]
