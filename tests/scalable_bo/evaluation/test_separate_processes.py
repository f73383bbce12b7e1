"""A process that is lost costs its own point."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from scalable_bo.evaluation.evaluator import Evaluation, Evaluator, call
from scalable_bo.evaluation.separate_processes import SeparateProcesses
from tests.forked import CONTEXT
from tests.scalable_bo.objectives import square
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
    assert [one.reason for one in found.values()] == ["its process ended: exit code 3"] * 4


def test_points_fail_where_a_start_takes_for_ever() -> None:
    found = evaluated(float, partial(pools, initializer=time.sleep, initargs=(600,)))
    assert [one.reason for one in found.values()] == ["no answer within 2 s"] * 4


def test_a_timeout_beyond_what_a_thread_can_wait_is_none() -> None:
    evaluate = partial(call, square, 1e10)
    with Evaluator(evaluate, pools, 1e10, lambda: False) as evaluator:
        ((found,),) = evaluator.run({0: {"x": 0.3}})
    assert found == Evaluation(0, 0.0)


def test_an_interruption_while_processes_start_begins_no_point(tmp_path: Path) -> None:
    make = partial(pools, initializer=time.sleep, initargs=(2,))
    evaluate = partial(call, partial(noted, "", str(tmp_path)), None)
    start = time.monotonic()
    with (
        pytest.raises(KeyboardInterrupt),
        Evaluator(evaluate, make, None, lambda: time.monotonic() > start + 1.0) as evaluator,
    ):
        for found in evaluator.run({id: {"x": float(id)} for id in range(4)}):
            assert found == []
            executor = evaluator.executor
            raise KeyboardInterrupt
    assert isinstance(executor, SeparateProcesses)
    executor._threads.shutdown()
    assert not list(tmp_path.iterdir()) and not any(slot.pids for slot in executor._all)


def test_a_function_makes_an_executor_for_each_process_and_never_one_twice() -> None:
    made: list[ProcessPoolExecutor] = []

    def make() -> ProcessPoolExecutor:
        made.append(pools())
        return made[-1]

    assert len(evaluated(square, make)) == 4
    assert len(made) == 2
    one = pools()
    with pytest.raises(ValueError, match="`executor` must make a new ProcessPoolExecutor in every"):
        evaluated(square, lambda: one)
    one.shutdown()


def test_processes_that_end_after_a_call_are_followed_by_others() -> None:
    spawned = partial(pools, mp_context=get_context("spawn"), max_tasks_per_child=1)
    assert [one.reason for one in evaluated(square, spawned).values()] == [None] * 4
