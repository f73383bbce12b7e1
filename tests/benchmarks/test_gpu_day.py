"""A day with a GPU, rehearsed on the CPU: stages end at their deadline, go on, and keep records."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_day
from benchmarks.gpu_day import STAGES, Day, Step, best_solver, run_stage
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
    record = run_stage("stage", day, LONG)
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
        assert run_stage("stage", day, LONG)["complete"]
    assert (day.folder / "runs").read_text() == "x"
    stage_of(monkeypatch, python("once", note), python("new", note))
    assert run_stage("stage", day, LONG)["complete"]
    assert (day.folder / "runs").read_text() == "xx"


def test_at_the_deadline_the_running_step_ends_and_none_begins(
    day: Day, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage_of(
        monkeypatch,
        python("endless", "import time; print('on', flush=True); time.sleep(10**6)"),
        python("next", "pass"),
    )
    record = run_stage("stage", day, 0.5)
    assert record["steps"].keys() == {"endless"}
    assert record["steps"]["endless"]["ended_by_deadline"]
    assert record["steps"]["endless"]["returned"] != 0
    assert not record["complete"]


def test_a_step_ends_with_the_stage_that_is_told_to_end(
    day: Day, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = day.folder / "number"
    code = f"""
import os, pathlib, signal, time
pathlib.Path({str(note)!r}).write_text(str(os.getpid()))
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(10**6)
"""
    stage_of(monkeypatch, python("endless", code))
    arguments = ["stage", "--deadline", str(LONG), "--device", "cpu", "--out", str(day.folder)]
    monkeypatch.setattr(sys, "argv", ["gpu_day.py", *arguments])
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            gpu_day.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 128 + signal.SIGTERM
    assert not Path(f"/proc/{note.read_text()}").exists()


def test_the_environment_of_a_step_reaches_it(day: Day, monkeypatch: pytest.MonkeyPatch) -> None:
    command = python("mode", "import os; print(os.environ['SCALABLE_BO_COMPILE'])").command
    stage_of(monkeypatch, Step("mode", command, {"SCALABLE_BO_COMPILE": "never"}))
    assert run_stage("stage", day, LONG)["steps"]["mode"]["output"] == "never\n"


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
        assert "cuda" in step.command or "pytest" in step.command


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_runs_whole_on_the_cpu(stage: str, day: Day) -> None:
    record = run_stage(stage, day, LONG)
    failed = {name: s["output"] for name, s in record["steps"].items() if s["returned"]}
    assert not failed
    assert record["complete"]
