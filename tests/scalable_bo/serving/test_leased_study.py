"""Points given out by lease, and taken back, without a network."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scalable_bo.evaluation.evaluator import LateError
from scalable_bo.serving.leased_study import Handout, LeasedStudy, UnavailableError
from scalable_bo.serving.tells import Told
from scalable_bo.space.space import Float, Int, Space
from scalable_bo.storage.rounds import Batch
from scalable_bo.study.study import Study
from tests.refusals import assert_refused
from tests.waiting import eventually

SPACE = Space(x=Float(0.0, 1.0))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def ask(leased: LeasedStudy, q: int = 1, worker: str = "one") -> Handout:
    """Ask until there are q points, and none is left to come."""
    points: list[tuple[int, dict[str, Any]]] = []
    while len(points) < q:
        found = leased.ask(q - len(points), worker)
        points += found.points
        if found.finished:
            return Handout(points, 0.0, True)
        time.sleep(0.005)
    return Handout(points)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def leased(clock: Clock) -> Iterator[LeasedStudy]:
    leased = LeasedStudy(
        Study(SPACE, maximize=True, num_initial=10_000), lease=10.0, batch=2, clock=clock
    )
    yield leased
    leased.close()


def test_points_are_leased_one_by_one_and_no_two_workers_have_the_same(leased: LeasedStudy) -> None:
    one = ask(leased, 3, "one").points
    other = ask(leased, 3, "another").points
    ids = [id for id, _ in one + other]
    assert len(set(ids)) == 6
    assert {id: lease.worker for id, lease in leased.held().items()} == dict.fromkeys(
        ids[:3], "one"
    ) | dict.fromkeys(ids[3:], "another")
    assert leased.study.pending.params[ids[0]] == one[0][1]


def test_the_point_of_a_lost_worker_goes_to_the_next_one(leased: LeasedStudy, clock: Clock) -> None:
    ((id, params),) = ask(leased, 1, "lost").points
    clock.now = 6.0
    assert leased.renew([id], "lost") == []
    clock.now = 15.0
    assert leased.held()[id].worker == "lost"
    clock.now = 17.0
    assert ask(leased, 1, "next").points == [(id, params)]
    assert leased.renew([id], "lost") == [id]
    assert leased.renew([id], "next") == []


def test_a_worker_that_was_silent_gets_its_point_again_while_nobody_has_it(
    leased: LeasedStudy, clock: Clock
) -> None:
    ((id, _),) = ask(leased, 1, "slow").points
    clock.now = 11.0
    assert leased.held() == {}
    assert leased.renew([id], "slow") == []
    assert leased.held()[id].worker == "slow"
    assert id not in [other for other, _ in ask(leased, 3, "next").points]


def test_what_is_released_is_the_next_to_be_given_out(leased: LeasedStudy) -> None:
    points = ask(leased, 2, "one").points
    ids = [id for id, _ in points]
    leased.release(ids, "another")  # whose they are not
    assert set(ids) <= leased.held().keys()
    leased.release([*ids, ids[0]], "one")
    assert ask(leased, 2, "another").points == points


def test_a_told_point_is_given_to_nobody_any_more(leased: LeasedStudy, clock: Clock) -> None:
    ((id, _),) = ask(leased, 1, "one").points
    clock.now = 11.0
    assert leased.held() == {}  # it waits for the next worker
    leased.tell([]).result(60)
    leased.tell([Told(id, 1.0)]).result(60)
    assert id not in [other for other, _ in ask(leased, 3, "next").points]
    assert leased.renew([id], "one") == [id]
    assert leased.study.num_observations == 1


def test_what_another_process_has_told_is_late_and_given_to_nobody_any_more(
    tmp_path: Path,
) -> None:
    pytest.importorskip("sqlalchemy")
    place: dict[str, Any] = {"storage": f"sqlite:///{tmp_path}/shared.db", "name": "tuning"}
    study, other = (Study(SPACE, maximize=True, num_initial=10_000, **place) for _ in range(2))
    leased = LeasedStudy(study, evaluations=5, batch=5)
    ids = [id for id, _ in ask(leased, 2).points]
    waiting = [id for id in other.pending.ids if id not in ids]
    other.tell([ids[0], *waiting[:2]], [7.0, 8.0, 9.0])
    with pytest.raises(LateError, match="another value"):
        leased.tell([Told(ids[0], 1.0)]).result(60)
    leased.release([ids[0]], "one")  # as a worker does that ends
    found = leased.ask(5, "another")
    assert [id for id, _ in found.points] == waiting[2:]
    assert leased.held().keys() == {ids[1], *waiting[2:]}
    leased.tell([Told(id, 1.0) for id in (ids[1], *waiting[2:])]).result(60)
    assert leased.ask(1, "another").finished
    assert leased.study.result.num_observations == 5
    leased.close()
    study.close()
    other.close()


def test_what_was_pending_at_the_start_waits_for_its_worker_and_then_for_any(clock: Clock) -> None:
    study = Study(SPACE, maximize=True, num_initial=10_000)
    ids = study.ask(3).ids
    leased = LeasedStudy(study, lease=10.0, evaluations=3, clock=clock)
    assert leased.ask(3, "new").points == []
    assert leased.renew([ids[1]], "old") == []  # the worker that had it before
    clock.now = 11.0
    leased.renew([ids[1]], "old")
    assert sorted(id for id, _ in ask(leased, 2, "new").points) == [ids[0], ids[2]]
    leased.close()


@pytest.mark.parametrize(("evaluations", "space"), [(5, SPACE), (None, Space(n=Int(1, 5)))])
def test_all_points_are_evaluated_once_and_then_it_is_finished(
    evaluations: int | None, space: Space
) -> None:
    study = Study(space, maximize=True, num_initial=10_000)
    leased = LeasedStudy(study, evaluations=evaluations, batch=3)
    ids = [id for id, _ in ask(leased, 5).points]
    assert sorted(ids) == list(range(5))
    eventually(lambda: leased.is_exhausted)
    found = leased.ask(1, "another")
    assert (found.points, found.finished) == ([], False)  # one of them may come back
    assert found.retry_after > 0
    leased.tell([Told(id, float(id)) for id in ids]).result(60)
    assert leased.ask(1, "another").finished
    leased.close()


def test_an_ask_that_fails_is_said_and_repeated(caplog: pytest.LogCaptureFixture) -> None:
    study = Study(SPACE, maximize=True, num_initial=10_000)
    ask_study = study.ask
    fails = True

    def ask_or_fail(q: int, *, callback: Any = None) -> Batch:
        if fails:
            raise OSError("the disk is full")
        return ask_study(q, callback=callback)

    study.ask = ask_or_fail  # type: ignore[method-assign]
    leased = LeasedStudy(study)
    eventually(lambda: leased.trouble)
    with pytest.raises(UnavailableError, match="the disk is full"):
        leased.ask(1, "one")
    fails = False
    assert eventually(lambda: ask_in_spite_of_trouble(leased)).points
    assert leased.trouble is None
    assert "the disk is full" in caplog.text
    leased.close()


def ask_in_spite_of_trouble(leased: LeasedStudy) -> Handout | None:
    try:
        return ask(leased)
    except UnavailableError:
        return None


class Paced:
    """Asks that take as long as they are let, and the sizes of them."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def ask(self, q: int, *, callback: Any = None) -> Batch:
        self.sizes.append(q)
        time.sleep(0.05)
        first = sum(self.sizes[:-1])
        X = SPACE.unnormalize(SPACE.normalize([[0.5]] * q))
        return Batch(list(range(first, first + q)), [{"x": 0.5}] * q, X)


def test_more_is_asked_for_at_once_where_workers_are_quick() -> None:
    paced = Paced()
    study = Study(SPACE, maximize=True)
    study.ask = paced.ask  # type: ignore[method-assign]
    leased = LeasedStudy(study, batch=2)
    eventually(lambda: leased.num_waiting)
    for _ in range(20):
        leased.ask(leased.num_waiting + 50, "one")  # as if 50 workers were idle
        eventually(lambda: leased.num_waiting)
    leased.close()
    assert paced.sizes[0] == 2
    assert 50 <= max(paced.sizes) <= 1000


def test_an_ask_that_runs_is_abandoned_at_the_end() -> None:
    def ask_forever(q: int, *, callback: Any = None) -> Batch:
        while True:
            time.sleep(0.01)
            callback("solving")

    study = Study(SPACE, maximize=True)
    study.ask = ask_forever  # type: ignore[method-assign]
    leased = LeasedStudy(study)
    time.sleep(0.05)
    assert leased.close()


def test_wrong_arguments_are_named() -> None:
    leased = partial(LeasedStudy, Study(SPACE, maximize=True))
    assert_refused(ValueError, leased, lease=[0.0], batch=[0], evaluations=[0])
    assert_refused(TypeError, leased, evaluations=[True])
