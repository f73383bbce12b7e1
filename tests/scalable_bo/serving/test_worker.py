"""Workers: as calls, as commands, and ended by signals."""

import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("fastapi")

from scalable_bo.evaluation.evaluator import Evaluation, call
from scalable_bo.serving.client import RemoteStudy
from scalable_bo.serving.server import Server
from scalable_bo.serving.worker import work
from scalable_bo.study.study import Study
from tests.scalable_bo.objectives import lacking_above_half, misnamed_above_half
from tests.scalable_bo.serving.served import make_study, served
from tests.waiting import eventually

OBJECTIVES = """
import os, subprocess, time

def value(params):
    return -(params["x"] - 0.3) ** 2

def slow(params):
    child = subprocess.Popen(["sleep", "60"])
    open("children", "a").write(f"{child.pid}\\n")
    time.sleep(60)

def brief(params):
    open("begun", "w").close()
    time.sleep(1)
    return 1.0

def broken(params):
    import a_package_that_is_not_there
"""


def evaluate(id: int, params: dict[str, Any]) -> Evaluation:
    return Evaluation.of(id, params["x"])


def test_a_worker_evaluates_until_there_are_no_more_points(study: Study) -> None:
    with served(study, evaluations=7, batch=3) as (server, remote):
        assert work(remote, evaluate) == 7
    frame = study.to_dataframe()
    assert (frame["value"] == frame["x"]).all() and len(frame) == 7


def test_a_worker_with_an_unknown_outcome_ends_and_gives_its_point_back() -> None:
    study = make_study(objectives={"cost": "minimize", "gain": "maximize"})
    with served(study, evaluations=4, batch=4) as (server, remote):
        misnamed = partial(call, misnamed_above_half, None, outcomes=remote.outcomes)
        with pytest.raises(ValueError, match="got 'gian'; the nearest is 'gain'"):
            work(remote, misnamed)
        assert study.num_failed == 0
        lacking = partial(call, lacking_above_half, None, outcomes=remote.outcomes)
        work(remote, lacking)
        frame = study.to_dataframe()
        assert (frame["cost"] == frame["x"]).all()
        assert ((frame["status"] == "pending") == (frame["x"] > 0.5)).all()
    assert len(study.pending.ids) == 2


def test_a_worker_on_which_nothing_works_ends_after_three_points(study: Study) -> None:

    def broken(id: int, params: dict[str, Any]) -> Evaluation:
        return Evaluation.failed(id, "ImportError: no such package", ImportError())

    with served(study) as (_, remote), pytest.raises(RuntimeError, match="no such package"):
        work(remote, broken)
    assert study.num_failed == 3


def test_a_worker_that_is_stopped_does_not_wait_for_a_server_that_is_down() -> None:
    with served(make_study()) as (server, remote):
        pass
    looks = iter([False, False])  # before a request, and after one that was not answered
    assert work(remote, evaluate, stopped=lambda: next(looks, True)) == 0


def test_an_interrupted_point_goes_back_at_once() -> None:
    with (
        served(make_study(), batch=1) as (server, remote),
        RemoteStudy(server.url, token=server.token) as other,
    ):
        with pytest.raises(KeyboardInterrupt):
            work(remote, Mock(side_effect=KeyboardInterrupt))
        assert 0 in other.ask(100).ids


def test_a_value_that_comes_too_late_is_said_and_the_worker_goes_on(
    caplog: pytest.LogCaptureFixture, study: Study
) -> None:
    with served(study, evaluations=3) as (server, remote):

        def overtaken(id: int, params: dict[str, Any]) -> Evaluation:
            if id == 1:
                remote.tell([id], [5.0])
            return evaluate(id, params)

        assert work(remote, overtaken) == 2
    assert study.best_value == 5.0
    assert "another value" in caplog.text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "objectives.py").write_text(OBJECTIVES)
    return tmp_path


def start_worker(folder: Path, server: Server, function: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "scalable_bo", "work", server.url, "--token-file", "token"]
    return subprocess.Popen(
        [*command, "--function", f"objectives:{function}"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_command_evaluates_all_and_ends(folder: Path, study: Study) -> None:
    with Server(study, token_file=folder / "token", evaluations=5) as server:
        worker = start_worker(folder, server, "value")
        said, complaint = worker.communicate(timeout=300)
    assert (worker.returncode, complaint) == (0, "")
    assert said.endswith("evaluated 5 points\n")
    assert study.num_observations == 5


def test_the_command_says_what_is_broken_on_its_machine(folder: Path, study: Study) -> None:
    with Server(study, token_file=folder / "token") as server:
        worker = start_worker(folder, server, "broken")
        _, complaint = worker.communicate(timeout=300)
        nothing = start_worker(folder, server, "nothing")
        _, refused = nothing.communicate(timeout=300)
    assert worker.returncode == 1 and "a_package_that_is_not_there" in complaint
    assert nothing.returncode == 2 and "`--function` must be importable" in refused


def test_a_worker_that_is_interrupted_once_finishes_and_tells(folder: Path, study: Study) -> None:
    with Server(study, token_file=folder / "token") as server:
        worker = start_worker(folder, server, "brief")
        eventually((folder / "begun").exists)
        worker.send_signal(signal.SIGINT)
        said, complaint = worker.communicate(timeout=300)
    assert (worker.returncode, complaint) == (0, "")
    assert said.endswith("evaluated 1 point\n")
    assert (study.num_observations, study.best_value) == (1, 1.0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_a_worker_that_is_ended_leaves_nothing_behind(
    folder: Path, number: int, study: Study
) -> None:
    with Server(study, token_file=folder / "token", lease=2.0, batch=1) as server:
        worker = start_worker(folder, server, "slow")
        children = folder / "children"
        eventually(lambda: children.exists() and children.read_text().endswith("\n"))
        child = Path("/proc", children.read_text().strip())
        assert server.leased.held()
        worker.send_signal(number)
        worker.communicate(timeout=300)
        assert worker.returncode in (128 + number, -number)
        eventually(lambda: not child.exists() or "Z" in (child / "stat").read_text().split()[2])
        eventually(lambda: not server.leased.held())
        with RemoteStudy(server.url, token=server.token) as other:
            eventually(lambda: 0 in other.ask(100).ids)
