"""Kills at random instants, and requests of every wrong kind; in numbers with ``-m slow``."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from scalable_bo.serving.client import RemoteStudy
from scalable_bo.serving.server import Server
from scalable_bo.study.study import Study
from tests.scalable_bo.serving.campaigns import SPACE, Fuzz, kill_at_random, told

NUM_KILLS = int(os.environ.get("NUM_KILLS", "100"))
NUM_REQUESTS = int(os.environ.get("NUM_REQUESTS", "10000"))


@pytest.mark.skipif(sys.platform != "linux", reason="kills processes as Linux does")
@pytest.mark.parametrize("num_kills", [4, pytest.param(NUM_KILLS, marks=pytest.mark.slow)])
def test_what_was_told_outlives_kills_of_server_and_workers(tmp_path: Path, num_kills: int) -> None:
    path = tmp_path / "study"
    counts = kill_at_random(path, num_kills)
    with Study.open(path, num_initial=10**6) as study:
        frame = study.to_dataframe()
    for id, value in told(path).items():
        assert frame["value"][id] == value
    # What a kill interrupted comes again: not one of the points is skipped but the last that were
    # out or waited
    assert (frame["status"] == "pending").sum() <= 4 + 2 + 4 * (counts["server"] + 1)
    assert not list(path.rglob("*.tmp"))
    print(dict(counts))  # noqa: T201  # the figures of a campaign


@pytest.fixture
def fuzzed(tmp_path: Path) -> Iterator[tuple[Server, str]]:
    study = Study(SPACE, maximize=True, num_initial=10**6)
    file = tmp_path / "token"
    with Server(study, token_file=file) as server:
        old = server.token
    file.unlink()
    with Server(study, token_file=file) as server:
        yield server, old


@pytest.mark.parametrize("num_requests", [300, pytest.param(NUM_REQUESTS, marks=pytest.mark.slow)])
def test_wrong_requests_are_refused_and_change_nothing(
    fuzzed: tuple[Server, str], num_requests: int
) -> None:
    server, old = fuzzed
    with RemoteStudy(server.url, token=server.token) as remote:
        ids = remote.ask(2).ids
        before = server.leased.study.to_dataframe()
        fuzz = Fuzz(server, old)
        fuzz.run(num_requests)
        assert server.leased.study.to_dataframe().equals(before)
        remote.tell(ids[:1], [1.0])  # and workers go on
        assert remote.num_observations == 1
    print(dict(fuzz.counts))  # noqa: T201  # the figures of a campaign
