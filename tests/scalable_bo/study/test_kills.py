"""Runs that are ended by signals at random instants: nothing told is lost, nothing lives on."""

import os
import random
import signal
import sys
import time
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from scalable_bo.evaluation import processes
from tests.forked import CONTEXT
from tests.scalable_bo.crashes import open_in, run_until_killed

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")]
NUM_KILLS = int(os.environ.get("NUM_KILLS", "60"))
KINDS = ("threads", "processes", "programs", "asynchronous", "writers")
SHARE_AT_FORKS = 0.1  # of the kills, which are aimed at the instant when a child appears
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def num_told(path: Path) -> int:
    log = path.with_suffix(".log")
    return log.read_text().count("\n") if log.exists() else 0


def alive(those: set[tuple[int, str]]) -> set[int]:
    return {pid for pid in processes._find(those, "") if (pid, processes._stat(pid)[2]) in those}


def family(process: BaseProcess) -> set[tuple[int, str]]:
    assert process.pid is not None
    found = processes._find({(process.pid, processes._stat(process.pid)[2])}, "")
    return {(pid, processes._stat(pid)[2]) for pid in found}


@pytest.mark.parametrize("kind", KINDS)
def test_runs_that_are_ended_at_random_instants(tmp_path: Path, kind: str) -> None:
    instants = random.Random(0)
    path = tmp_path / "study"
    counts: Counter[str] = Counter()
    told: list[str] = []
    for _ in range(NUM_KILLS // len(KINDS)):
        process = CONTEXT.Process(target=run_until_killed, args=(path, kind))
        process.start()
        if kind == "writers":  # another is at it, too, and lives on until the next kill
            beside = CONTEXT.Process(target=run_until_killed, args=(path, kind))
            beside.start()
        # While it opens the study, or so many values later
        num_lines = num_told(path) + instants.choice([0, 0, 1, 3, 8])
        end = time.monotonic() + 60
        while num_told(path) < num_lines and time.monotonic() < end:
            time.sleep(0.001)
        if instants.random() < SHARE_AT_FORKS:
            size = len(family(process))
            while len(family(process)) <= size and time.monotonic() < end:
                pass
        else:
            time.sleep(instants.uniform(0.0, 0.3))
        those = family(process)
        number = instants.choice(SIGNALS)
        assert process.pid is not None
        os.kill(process.pid, number)
        those |= family(process)
        end = time.monotonic() + 5
        while (left := alive(those)) and time.monotonic() < end:
            time.sleep(0.02)
        assert not left, (number, left)
        process.join()
        counts[f"{signal.Signals(number).name}, {len(those) > 1}"] += 1
        if kind == "writers":
            beside.kill()
            beside.join()
        if num_told(path):
            with open_in(path, kind) as study:
                frame = study.to_dataframe()
            told = path.with_suffix(".log").read_text().split()
            assert (frame["status"][[int(id) for id in told]] == "observed").all()
            assert number == signal.SIGKILL or not list(path.rglob("*.tmp"))
    print(dict(counts), len(told), "told")  # noqa: T201  # the figures of a campaign
    assert len(told) > NUM_KILLS // len(KINDS)
