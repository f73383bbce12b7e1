"""Studies whose process is killed: nothing that was returned is lost,
and the study goes on as if it had never stopped.
"""

import random
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from scalable_bo.study.study import Study
from tests.forked import CONTEXT
from tests.scalable_bo.crashes import (
    FAULTS,
    FAULTS_OF_CLOSING,
    open_study,
    start,
    tell_and_die,
    work,
)
from tests.scalable_bo.frames import timeless

NUM_POINTS = 18
QUICK_FAULTS = (
    "in the middle of the added data",
    "after a tell is stored",
    "before a checkpoint gets its name",
    "between a checkpoint and its ask",
)


def assert_logged_is_stored(path: Path, study: Study) -> None:
    log = path.with_suffix(".log")
    lines = log.read_text().splitlines() if log.exists() else []
    frame = study.to_dataframe()
    for line in lines:
        what, number = line.split()
        if what == "rows":
            assert (frame["status"][: int(number)] == "observed").all()
        if what == "asked":
            assert len(frame) > int(number)
        if what == "told":
            assert frame["status"][int(number)] == "observed"


@pytest.fixture(scope="module")
def uninterrupted() -> Study:
    return work(None, NUM_POINTS, 60)


@pytest.mark.parametrize(
    "fault",
    [pytest.param(name, marks=() if name in QUICK_FAULTS else pytest.mark.slow) for name in FAULTS],
)
def test_a_study_killed_at_any_step_goes_on_to_the_same_design(
    tmp_path: Path, uninterrupted: Study, fault: str
) -> None:
    path = tmp_path / "study"
    process = start(path, NUM_POINTS, 60, fault)
    process.join(120)
    assert process.exitcode == -9
    with open_study(path) as study:
        assert_logged_is_stored(path, study)
        assert len(study.to_dataframe()) < 60 + NUM_POINTS
    with work(path, NUM_POINTS, 60) as study:
        assert timeless(study).equals(timeless(uninterrupted))


@pytest.mark.parametrize("fault", FAULTS_OF_CLOSING)
def test_a_process_that_dies_while_it_puts_the_log_together_loses_nothing(
    tmp_path: Path, fault: str
) -> None:
    process = CONTEXT.Process(target=tell_and_die, args=(tmp_path / "study", fault))
    process.start()
    process.join(120)
    assert process.exitcode == -9
    for _ in range(2):
        with Study.open(tmp_path / "study") as study:
            assert study.result.values.tolist() == [id / 3 for id in range(20)]
    assert not list(tmp_path.rglob("*.tmp")) and not list(tmp_path.rglob("*-journal"))


@pytest.mark.parametrize(("num_broken", "num_warnings"), [(1, 1), (2, 2)])
def test_broken_checkpoints_are_made_up_for_from_the_rows(
    tmp_path: Path, uninterrupted: Study, num_broken: int, num_warnings: int
) -> None:
    work(tmp_path, NUM_POINTS - 3, 60).close()
    files = sorted((tmp_path / "checkpoints").iterdir())
    assert len(files) == 2
    for file in files[2 - num_broken :]:
        file.write_bytes(file.read_bytes()[:-100])
    with (
        pytest.warns(UserWarning, match="is damaged and was passed over") as caught,
        work(tmp_path, NUM_POINTS, 60) as study,
    ):
        assert len(caught) == num_warnings
        assert timeless(study).equals(timeless(uninterrupted))


@pytest.mark.slow
def test_fifty_kills_at_random_instants_lose_nothing(tmp_path: Path) -> None:
    instants = random.Random(0)
    for number in range(15):  # while data are added
        path = tmp_path / f"ingest{number}"
        kill_after(path, 1, instants.uniform(0.0, 0.3), num_rows=20_000)
        with open_study(path) as study:
            assert len(study.to_dataframe()) in (0, 20_000)
            assert_logged_is_stored(path, study)
    path = tmp_path / "study"
    num_killed = 0
    while num_killed < 40:  # while points are asked and told, and checkpoints written
        num_killed += kill_after(
            path, instants.randrange(1, 7), instants.uniform(0.0, 0.2), num_rows=60
        )
        with closing(sqlite3.connect(path / "study.sqlite")) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        with open_study(path) as study:
            assert_logged_is_stored(path, study)
            num_points = len(study.to_dataframe()) - 60 + 3
    assert num_points >= 20
    with work(path, num_points, 60) as study:
        assert timeless(study).equals(timeless(work(None, num_points, 60)))


def kill_after(path: Path, num_lines: int, seconds: float, num_rows: int) -> bool:
    """Kill a process some time after it has logged so many lines;
    return whether it still worked.
    """
    log = path.with_suffix(".log")

    def num_logged() -> int:
        return log.read_text().count("\n") if log.exists() else 0

    target = num_logged() + num_lines
    process = start(path, 10_000, num_rows)
    while process.is_alive() and num_logged() < target:
        time.sleep(0.001)
    process.join(seconds)
    process.kill()
    process.join()
    return process.exitcode == -9
