"""The workers of the benchmark of a server, in small: every value that they tell is recorded."""

import asyncio

import pytest

pytest.importorskip("fastapi")

from benchmarks.serve import work_together
from scalable_bo.serving.server import Server
from scalable_bo.space.space import Float, Space
from scalable_bo.study.study import Study


def test_all_that_many_workers_tell_is_recorded_and_every_request_is_timed() -> None:
    study = Study(Space(x=Float(0, 1)), maximize=True, num_initial=10**6)
    with Server(study, batch=50) as server:
        times, _ = asyncio.run(
            work_together(server.url, server.token, num_workers=30, seconds=0.05, duration=1.0)
        )
    assert len(times["tell"]) == study.num_observations > 0
    assert 0 <= len(times["ask"]) - len(times["tell"]) <= 30  # the others are being evaluated
    assert study.num_failed == 0
    frame = study.to_dataframe()
    told = frame[frame["status"] == "observed"]
    assert (told["value"] == told["x"]).all()
