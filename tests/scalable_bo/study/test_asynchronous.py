"""Workers that do not wait for one another: points asked for ahead, and runs that end early."""

import heapq
import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from acquisition import Request
from scalable_bo import Float, Space, Study
from scalable_bo.storage.rounds import Batch, Round
from scalable_bo.study.asynchronous import Feed
from tests.quick import QUICK

SPACE = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))


def bowl(params: Mapping[str, float]) -> float:
    return (params["x"] - 0.3) ** 2 + params["y"] ** 2


def study(**settings: Any) -> Study:
    return Study(SPACE, maximize=False, seed=0, sampler=QUICK, **settings)


class Simulation:
    """Workers whose evaluations take random times, and asks that take a time for each point, by a
    clock of their own.
    """

    def __init__(
        self,
        num_workers: int,
        seconds_of_point: float,
        budget: int,
        duration: Callable[[random.Random], float] = lambda source: source.expovariate(1.0),
    ) -> None:
        self.now = 0.0
        self._duration = duration
        self._idle = 0.0
        self._idle_so_far = 0.0
        self._last = 0.0
        self._random = random.Random(0)
        self._num_workers = num_workers
        self._seconds_of_point = seconds_of_point
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._num_out = 0
        self.sizes: list[int] = []
        self.feed = Feed(
            self._ask, {}, num_workers, 1, budget, begin=self._begin, clock=lambda: self.now
        )

    @property
    def idle_while_points_were_left(self) -> float:
        """The share of the workers' time up to when the last point was handed out."""
        return self._idle / (self._num_workers * self._last)

    def run(self) -> None:
        while (points := self.feed.take(self._num_out)) is not None:
            for _ in points:
                self._num_out += 1
                self._after(self._duration(self._random), self._end)
            if points:
                self._last = self.now
                self._idle = self._idle_so_far
            if self._events:
                before = self.now
                self.now, _, event = heapq.heappop(self._events)
                self._idle_so_far += (self._num_workers - self._num_out) * (self.now - before)
                event()

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now + seconds, self._number, event))

    def _end(self) -> None:
        self._num_out -= 1
        self.feed.count(1)

    def _ask(self, q: int) -> Batch:
        self.sizes.append(q)
        ids = list(range(self._number, self._number + q))
        self._number += q
        return Batch(ids, [{} for _ in ids], torch.zeros(q, 1))

    def _begin(self, ask: Callable[[], Batch]) -> Future[Batch]:
        future: Future[Batch] = Future()
        points = ask()
        seconds = self._seconds_of_point * len(points.ids)
        self._after(seconds, partial(future.set_result, points))
        return future


def test_five_hundred_workers_are_idle_less_than_a_fiftieth_of_their_time() -> None:
    """An ask for a point takes a tenth of what the workers take for one, 1/500."""
    budget = 20_000
    simulation = Simulation(500, 0.1 / 500, budget)
    simulation.run()
    assert sum(simulation.sizes) == budget
    assert simulation.idle_while_points_were_left < 0.02


def test_unequal_evaluations_are_twice_as_many_as_in_rounds() -> None:
    """Durations vary by a factor of ten among 64 workers, which in rounds wait for the slowest."""

    def duration(source: random.Random) -> float:
        return 10.0 ** source.random()

    simulation = Simulation(64, 1e-3, 64 * 50, duration)
    simulation.run()
    source = random.Random(1)
    in_rounds = sum(max(duration(source) for _ in range(64)) + 64e-3 for _ in range(50))
    assert in_rounds > 2.0 * simulation.now


def test_points_are_asked_for_as_late_as_asks_allow() -> None:
    simulation = Simulation(10, 1e-6, 300)
    simulation.run()
    assert max(simulation.sizes[1:]) == 1


def test_all_points_are_evaluated_and_told_once() -> None:
    seen = []
    lock = threading.Lock()

    def objective(params: Mapping[str, float]) -> float:
        with lock:
            seen.append((params["x"], params["y"]))
        time.sleep(0.002)
        return bowl(params)

    with study() as some:
        rounds = []
        result = some.optimize(
            objective,
            rounds=3,
            batch=8,
            executor=lambda: ThreadPoolExecutor(4),
            asynchronous=True,
            callbacks=[lambda _, each: rounds.append(each)],
        )
        assert result.num_observations == 24
        assert result.num_pending == 0
        assert len(set(seen)) == len(seen) == 24
        assert [each.num_observations >= 8 * (i + 1) for i, each in enumerate(rounds)] == [True] * 3


@pytest.mark.parametrize(
    ("threads", "workers", "expected"), [(None, 3, 5), (None, 9, 1), (6, 9, 6)]
)
def test_an_ask_leaves_the_cores_to_the_workers(
    threads: int | None, workers: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Spy:
        def generate(self, request: Request) -> torch.Tensor:
            seen.append(torch.get_num_threads())
            return torch.rand(request.q, 2, dtype=torch.float64, generator=request.generator)

    seen: list[int] = []
    before = torch.get_num_threads()
    torch.set_num_threads(8)
    try:
        with Study(SPACE, maximize=False, num_initial=2, strategy=Spy(), threads=threads) as some:
            some.ask(2)
            some.tell([0, 1], [0.0, 1.0])
            executor = lambda: ThreadPoolExecutor(workers)  # noqa: E731
            run = {"rounds": 1, "batch": 4, "executor": executor, "progress": False}
            some.optimize(bowl, **run, asynchronous=True)
            assert seen == [expected]
            some.optimize(bowl, **run)
            assert seen[1] == (threads or 8)
        assert torch.get_num_threads() == 8
    finally:
        torch.set_num_threads(before)


def test_rounds_of_a_run_that_goes_on_are_counted_by_its_values(tmp_path: Path) -> None:
    rounds: list[Round] = []

    def watch(study: Study, each: Round) -> None:
        rounds.append(each)
        if len(rounds) == 2:
            study.stop()

    def slow(params: Mapping[str, float]) -> float:
        time.sleep(0.001)
        return bowl(params)

    run = {"batch": 4, "executor": lambda: ThreadPoolExecutor(2), "progress": False}
    with study(path=tmp_path) as some:
        some.add_data([[0.5, 0.5]], [0.0])
        some.optimize(slow, rounds=5, callbacks=[watch], asynchronous=True, **run)
        left = 5 - math.ceil((some.num_evaluated + len(some.pending.ids)) / 4)
    with study(path=tmp_path) as some:
        started = time.perf_counter()
        some.optimize(slow, rounds=left, callbacks=[watch], asynchronous=True, **run)
        seconds = time.perf_counter() - started
        # What was out when the run stopped need not fill a round
        assert 4 <= len(rounds) == some.num_evaluated // 4
    assert [each.number for each in rounds] == list(range(1, len(rounds) + 1))
    asked = [each for each in rounds if each.ask.choice != "no ask in this round"]
    assert 1 <= len(asked) <= 5
    assert sum(each.seconds_objective for each in rounds[3:]) <= seconds


def test_a_slow_evaluation_keeps_nobody_waiting() -> None:
    """In rounds, nothing is begun before the slow one ends."""
    slow = threading.Event()
    begun = []

    def objective(params: Mapping[str, float]) -> float:
        begun.append(params)
        if len(begun) == 1:
            assert slow.wait(60)
        elif len(begun) == 12:
            slow.set()
        return bowl(params)

    with study() as some:
        some.optimize(
            objective, rounds=3, batch=4, executor=lambda: ThreadPoolExecutor(2),
            asynchronous=2)  # fmt: skip
        assert some.num_observations == 12


def test_points_that_wait_are_evaluated_after_a_crash(tmp_path: Path) -> None:
    def objective(params: Mapping[str, float]) -> float:
        if len(told) == 6:
            raise KeyboardInterrupt
        told.append(params)
        return bowl(params)

    told: list[Any] = []
    run = {
        "rounds": 3,
        "batch": 4,
        "executor": lambda: ThreadPoolExecutor(1),
        "asynchronous": True,
        "progress": False,
    }
    with study(path=tmp_path / "study") as some, pytest.raises(KeyboardInterrupt):
        some.optimize(objective, **run)
    with study(path=tmp_path / "study") as some:
        waiting = some.pending.ids
        assert waiting
        assert some.num_observations >= 5
        some.optimize(bowl, **{**run, "rounds": 0})
        assert not some.pending.ids
        assert some.num_failed == 0


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_callback_can_stop_a_run(asynchronous: bool) -> None:
    with study() as some:
        result = some.optimize(
            bowl,
            rounds=50,
            batch=4,
            executor=lambda: ThreadPoolExecutor(2),
            asynchronous=asynchronous,
            callbacks=[lambda study, each: study.stop()],
        )
        assert 4 <= result.num_observations < 20
        assert some.stop_requested
        some.optimize(bowl, rounds=0, batch=1)
        assert not some.pending.ids


def test_a_run_without_an_executor_stops_between_points() -> None:
    def objective(params: Mapping[str, float]) -> float:
        some.stop()
        return bowl(params)

    with study() as some:
        assert some.optimize(objective, rounds=2, batch=5).num_observations == 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_run_ends_after_its_seconds(asynchronous: bool) -> None:
    def objective(params: Mapping[str, float]) -> float:
        time.sleep(0.02)
        return bowl(params)

    with study() as some:
        started = time.monotonic()
        result = some.optimize(
            objective, rounds=10_000, batch=2, executor=lambda: ThreadPoolExecutor(2),
            asynchronous=asynchronous, seconds=0.5)  # fmt: skip
        assert result.num_observations > 2
        assert time.monotonic() - started < 60.0


def dies_at_times(params: Mapping[str, float]) -> float:
    if params["x"] > 0.8:
        import os

        os._exit(3)
    return bowl(params)


def test_a_worker_that_dies_fails_its_own_point_alone() -> None:
    with study() as some:
        some.optimize(
            dies_at_times, rounds=2, batch=6, executor=lambda: ProcessPoolExecutor(2),
            asynchronous=True, max_failures=12)  # fmt: skip
        frame = some.to_dataframe()
        assert (frame["status"] != "pending").all()
        assert ((frame["x"] > 0.8) == (frame["status"] == "failed")).all()
        assert (frame["status"] == "failed").any()


def test_what_it_needs_is_said() -> None:
    class Anonymous(Executor):
        pass

    with study() as some:
        with pytest.raises(ValueError, match="`asynchronous` needs an `executor`"):
            some.optimize(bowl, rounds=1, batch=1, asynchronous=True)
        with pytest.raises(ValueError, match="must be the number of workers"):
            some.optimize(bowl, rounds=1, batch=1, asynchronous=True, executor=Anonymous())
        with pytest.raises(ValueError, match="`asynchronous`"):
            some.optimize(bowl, rounds=1, batch=1, asynchronous=-2)
        with pytest.raises(ValueError, match="`seconds`"):
            some.optimize(bowl, rounds=1, batch=1, seconds=0.0)
        assert not some.pending.ids
