"""A process that is lost costs its own point."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scalable_bo.evaluation.evaluator import Evaluation, Evaluator, call
from tests.forked import CONTEXT
from tests.waiting import eventually

pools = partial(ProcessPoolExecutor, 2, mp_context=CONTEXT)


def noted(what: str, folder: str, params: dict[str, Any]) -> float:
    """Note the call; of two points wait for the other to have begun, and then end or hang, or end
    after that.
    """
    (Path(folder) / f"{params['x']}").open("a").write("begun\n")
    eventually(lambda: (Path(folder) / "0.0").exists() and (Path(folder) / "1.0").exists())
    if params["x"] == 0.0:
        time.sleep(1.0)
    elif params["x"] == 1.0:
        {"hangs": partial(time.sleep, 600), "ends": partial(os._exit, 0), "dies": os.abort}[what]()
    return params["x"]


def evaluated(
    objective: Callable[..., Any], make: Callable[[], ProcessPoolExecutor] = pools
) -> dict[int, Evaluation]:
    evaluate = partial(call, objective, None)
    with Evaluator(evaluate, make, 0.5, lambda: False, grace=1.0) as evaluator:
        points = {id: {"x": float(id)} for id in range(4)}
        return {one.id: one for part in evaluator.run(points) for one in part}


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("ends", "its process ended: exit code 0"),
        ("dies", "its process ended: killed by SIGABRT"),
        ("hangs", "no answer within 2 s"),
    ],
)
def test_what_runs_beside_a_process_that_is_lost_is_evaluated_once(
    what: str, reason: str, tmp_path: Path
) -> None:
    found = evaluated(partial(noted, what, str(tmp_path)))
    assert {file.name: file.read_text().count("\n") for file in tmp_path.iterdir()} == {
        f"{id}.0": 1 for id in range(4)
    }
    assert [found[id].value for id in (0, 2, 3)] == [0.0, 2.0, 3.0]
    assert found[1].reason == reason


def begin_in_vain() -> None:
    os._exit(3)


def test_points_fail_where_no_process_starts() -> None:
    found = evaluated(float, partial(pools, initializer=begin_in_vain))
    assert len(found) == 4
    assert all("process" in str(one.reason) for one in found.values())
