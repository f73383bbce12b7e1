"""A day with a GPU, rehearsed on the CPU: stages end at their deadline, go on, and keep records."""

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_day
from benchmarks.gpu_day import STAGES, Day, DayStep, best_solver, run_stage
from scalable_bo.experiments.cells import files
from scalable_bo.experiments.records import Record, existing_record, write_record


def python(name: str, code: str) -> DayStep:
    return DayStep(what=name, command=(sys.executable, "-c", code))


@pytest.fixture
def day(tmp_path: Path) -> Day:
    return Day("cpu", tmp_path, small=True)


def run(day: Day, *steps: DayStep) -> int:
    return run_stage(lambda day: iter(steps), day)


def found(day: Day, step: DayStep) -> Record:
    record = existing_record(files(step, day.folder)[0])
    assert record is not None
    return record


def test_a_step_that_fails_is_recorded_and_does_not_stop_the_others(day: Day) -> None:
    bad, good = python("bad", "raise ValueError('no')"), python("good", "print('fine')")
    assert run(day, bad, good) == 1
    assert found(day, bad)["returned"] == 1
    assert "ValueError: no" in found(day, bad)["output"]
    assert found(day, good)["output"] == "fine\n"


def test_finished_steps_are_kept_and_others_run_again(day: Day) -> None:
    runs = day.out / "runs"
    note = f"open({str(runs)!r}, 'a').write('x')"
    for _ in range(2):
        assert run(day, python("once", note)) == 0
    assert runs.read_text() == "x"
    assert run(day, python("once", note), python("new", note)) == 0
    assert runs.read_text() == "xx"


@pytest.mark.parametrize("changed", ["command", "environment"])
def test_a_finished_step_of_the_same_name_runs_again_if_it_is_another(
    day: Day, changed: str
) -> None:
    small = python("tests", "print('small')")
    assert run(day, small) == 0
    other = python("tests", "print('large')")
    step = other if changed == "command" else replace(small, environment={"A": ""})
    assert run(day, step) == 0
    assert found(day, step)["settings"] == step.settings() != small.settings()


def test_a_rehearsal_and_every_device_have_a_folder_of_their_own(day: Day, tmp_path: Path) -> None:
    days = (day, replace(day, small=False), replace(day, device="meta"))
    assert len({one.folder for one in days} - {tmp_path}) == 3


def main(monkeypatch: pytest.MonkeyPatch, stage: str, *arguments: str) -> Any:
    """Run the script in this process, and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["gpu_day.py", stage, *arguments])
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            gpu_day.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    return ended.value.code


ON_CPU = ("--deadline", "3600", "--device", "cpu")


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
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    out = ("--out", str(tmp_path / "out"))
    assert main(monkeypatch, "ceilings", *ON_CPU, *out, *arguments) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_at_the_deadline_the_running_step_ends_and_none_begins(day: Day) -> None:
    endless = python("endless", "import time; print('on', flush=True); time.sleep(10**6)")
    end = time.monotonic() + 0.5
    following = python("next", "pass")
    assert run(replace(day, end=end), replace(endless, end=end), following) == 1
    assert found(day, endless)["ended_by_deadline"]
    assert found(day, endless)["returned"] != 0
    assert not files(following, day.folder)[0].exists()


def test_a_step_ends_with_the_stage_that_is_told_to_end(
    day: Day, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = day.out / "number"
    endless = f"""
import os, pathlib, signal, time
pathlib.Path({str(note)!r}).write_text(str(os.getpid()))
os.kill({os.getpid()}, signal.SIGTERM)
time.sleep(10**6)
"""
    step = python("endless", endless)
    monkeypatch.setitem(STAGES, "ceilings", lambda day: iter([step]))
    code = main(monkeypatch, "ceilings", *ON_CPU, "--out", str(day.out))
    assert code == 128 + signal.SIGTERM
    assert not Path(f"/proc/{note.read_text()}").exists()


def test_the_environment_of_a_step_reaches_it(day: Day) -> None:
    command = python("mode", "import os; print(os.environ['SCALABLE_BO_COMPILE'])").command
    step = day.step("mode", command, SCALABLE_BO_COMPILE="never")
    assert run(day, step) == 0
    assert found(day, step)["output"] == "never\n"


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
    steps = list(STAGES[stage](Day("cpu", tmp_path, small)))
    assert len({step.name for step in steps}) == len(steps) > 0
    for step in steps:
        assert step.command[0] == sys.executable
        scripts = [part for part in step.command if part.endswith(".py") and "/" in part]
        assert all((gpu_day.ROOT / script).is_file() for script in scripts)
        assert {"cpu", "pytest", "torch.distributed.run"} & {*step.command}


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_runs_whole_on_the_cpu(stage: str, day: Day) -> None:
    assert run_stage(STAGES[stage], day) == 0
