"""Points one by one, and callbacks for each."""

import dataclasses
import math
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import scalable_bo as sbo
from tests.scalable_bo.serving.served import served

SPACE = sbo.Space(x=sbo.Float(0.0, 1.0), kind=sbo.Categorical(["a", None, True, 2]))
PAST = [{"x": 0.25, "kind": None}]


def make(**options: Any) -> sbo.Study:
    return sbo.Study(SPACE, **{"maximize": True, "seed": 1, "num_initial": 10_000} | options)


def test_points_are_what_was_asked_for_and_told() -> None:
    study = make()
    study.add_data(PAST, [1.0], noise=0.5)
    batch = study.ask(3)
    study.tell(batch.ids[:2], [2.0, math.nan], noise=0.25, seconds=[3.0, math.nan])
    study.note(batch.ids[1], "the vial broke")
    past, observed, failed, pending = points = study.points()
    assert [point.id for point in points] == [0, 1, 2, 3]
    assert [point.params for point in points] == [*PAST, *batch.params]
    assert [point.status for point in points] == ["observed", "observed", "failed", "pending"]
    assert [point.outcomes for point in points] == [{"value": 1.0}, {"value": 2.0}, {}, {}]
    assert [point.noise for point in points] == [0.5, 0.25, None, None]
    assert [point.ask for point in points] == [0, 1, 1, 1]
    assert (observed.reason, failed.reason) == (None, "the value is nan")
    assert (observed.seconds, failed.seconds) == (3.0, None)
    assert (observed.note, failed.note) == ("", "the vial broke")
    assert past.asked is None and past.told is not None and pending.told is None
    assert timedelta() <= observed.told - observed.asked <= datetime.now(UTC) - observed.asked
    assert study.points([3, 1]) == (pending, observed)
    with pytest.raises(dataclasses.FrozenInstanceError):
        observed.note = "another"  # type: ignore[misc]
    with pytest.raises(ValueError, match="unknown 4"):
        study.points([4])
    assert make().points() == ()


def test_points_of_several_outcomes_have_those_that_are_known() -> None:
    study = make(maximize=None, objectives={"cost": "minimize", "gain": "maximize"})
    ids = study.ask(3).ids
    study.tell(ids, [{"cost": 1.0}, (2.0, 3.0), math.nan])
    assert [(point.status, point.outcomes) for point in study.points()] == [
        ("pending", {"cost": 1.0}),
        ("observed", {"cost": 2.0, "gain": 3.0}),
        ("failed", {}),
    ]


def test_a_server_gives_the_same_points() -> None:
    study = make()
    with served(study, batch=4) as (_, remote):
        ids = remote.ask(4).ids
        remote.tell(ids[:2], [1.0, math.nan], seconds=[0.5, 1.5])
        study.note(ids[0], "ü <b>")
        found = remote.points()
        told = study.points()[: len(found)]  # the server may have asked for others ahead meanwhile
        assert found == told and len(found) >= 4
        assert [type(point.params["kind"]) for point in found] == [
            type(point.params["kind"]) for point in told
        ]


def halve(params: dict[str, Any]) -> float:
    if params["x"] > 0.5:
        raise ValueError("too large")
    return params["x"] / 2


@pytest.mark.parametrize("executor", [None, lambda: ThreadPoolExecutor(2)])
def test_a_callback_for_each_point_comes_as_soon_as_it_is_told(executor: Any) -> None:
    study = make()
    found: list[tuple[Any, ...]] = []

    @sbo.EachPoint
    def each(study: sbo.Study, point: sbo.Point) -> None:
        assert point == study.points([point.id])[0]
        found.append((point.id, point.status, point.reason is None))

    def at_the_end(study: sbo.Study, report: sbo.Round) -> None:
        found.append(("round", report.number))

    options: dict[str, Any] = {"executor": executor, "progress": False}
    study.optimize(halve, 2, 8, callbacks=[each, at_the_end], **options)
    told = [(p.id, p.status, p.reason is None) for p in study.points()]
    assert {status for _, status, _ in told} == {"observed", "failed"}
    assert sorted(found[:8]) == told[:8] and sorted(found[9:17]) == told[8:]
    assert [found[8], found[17]] == [("round", 1), ("round", 2)]


def test_a_callback_for_each_point_may_stop_the_run() -> None:
    study = make()

    def enough(study: sbo.Study, point: sbo.Point) -> None:
        if point.id == 2:
            study.stop()

    study.optimize(lambda params: params["x"], 3, 5, callbacks=[sbo.EachPoint(enough)])
    assert study.num_observations == 3


def test_a_callback_for_each_point_of_a_round_evaluated_together() -> None:
    study = make()
    ids: list[int] = []
    each = sbo.EachPoint(lambda study, point: ids.append(point.id))
    study.optimize(lambda X: X[:, 0], 1, 4, vectorized=True, callbacks=[each])
    assert ids == [0, 1, 2, 3]
