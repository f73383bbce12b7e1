"""Values that are withdrawn or corrected, and points that are evaluated once more."""

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scalable_bo.space.space import Float, Int, Space
from scalable_bo.study.study import Study
from tests.quick import QUICK
from tests.scalable_bo.frames import timeless

SPACE = Space(x=Float(0.0, 1.0), n=Int(1, 50))


def make(path: Path | None = None, **options: Any) -> Study:
    settings = {"maximize": True, "seed": 3, "num_initial": 4, "sampler": QUICK}
    return Study(SPACE, path=path, **settings | options)


def told(study: Study, rounds: int) -> Study:
    for _ in range(rounds):
        batch = study.ask(3)
        study.tell(batch.ids, batch.X[:, 0])
    return study


def test_what_is_withdrawn_is_a_failure_and_stays_on_record(tmp_path: Path) -> None:
    with told(make(tmp_path), 2) as study:
        before = study.to_dataframe()["value"]
        study.withdraw([4, 1], "wrong scale")
        study.withdraw([0])
    with make(tmp_path) as study:
        assert study.num_observations == 3
        assert study.reasons([4, 1, 0]) == ["withdrawn: wrong scale"] * 2 + ["withdrawn"]
        first, second, third = study.changes
        assert (first.kind, first.id, first.value) == ("withdrawn", 4, before[4])
        assert first.why == "wrong scale"
        assert (second.id, third.why) == (1, "")
        assert study.retry([4]).ids == [4]
        study.tell([4], [7.0])
        assert study.result.best_observed_value == 7.0


def test_a_corrected_value_replaces_the_first_and_a_failure(tmp_path: Path) -> None:
    with told(make(tmp_path), 1) as study:
        study.correct(1, 9.0, why="a typo")
        study.tell(study.ask(1).ids, [math.nan])
        study.correct(3, -2.5)
        study.correct(0, math.nan)
    with make(tmp_path) as study:
        assert study.to_dataframe()["value"][[1, 3]].tolist() == [9.0, -2.5]
        assert [change.reason for change in study.changes] == [None, "the value is nan", None]
        assert study.changes[1].value is None
        assert study.reasons([0]) == ["the value is nan"]


def test_a_changed_study_goes_on_as_one_that_is_opened_again(tmp_path: Path) -> None:
    kept = told(make(), 4)
    with told(make(tmp_path), 4) as study:
        study.withdraw([0, 1, 2, 3, 4, 5, 8])
        study.correct(9, 0.9)
    kept.withdraw([0, 1, 2, 3, 4, 5, 8])
    kept.correct(9, 0.9)
    assert not list((tmp_path / "checkpoints").iterdir())
    with make(tmp_path) as study:
        told(study, 2)
        assert timeless(study).equals(timeless(told(kept, 2)))


def test_the_surrogate_no_longer_knows_what_was_withdrawn() -> None:
    study = told(make(), 3)
    study.correct(5, 100.0)
    study.withdraw([5])
    study.ask(2)
    assert len(study.model.train_inputs[0]) == 8


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([3], "of points that were told, got 3"),
        ([0, 0], "must be distinct"),
        ([7], "that were told, got 7"),
        ([-1], "that were told, got -1"),
    ],
)
def test_only_what_was_told_can_be_withdrawn(ids: list[int], message: str) -> None:
    study = told(make(), 1)
    study.ask(1)
    frame = study.to_dataframe()
    with pytest.raises(ValueError, match=message):
        study.withdraw(ids)
    assert study.to_dataframe().equals(frame)
    assert study.changes == []


def test_a_correction_comes_with_its_noise_if_the_others_do() -> None:
    study = make()
    study.tell(study.ask(2).ids, [1.0, 2.0], noise=0.1)
    with pytest.raises(ValueError, match="`noise` must be given for all values or for none"):
        study.correct(0, 3.0)
    study.correct(0, 3.0, noise=0.2)
    assert study.to_dataframe()["noise"].tolist() == [0.2, 0.1]
    study.withdraw([0])
    study.correct(1, 4.0)  # the only value: nothing to agree with
    assert study.to_dataframe()["value"][1] == 4.0


@pytest.mark.parametrize("vectorized", [False, True])
def test_points_that_fail_are_evaluated_once_more(tmp_path: Path, vectorized: bool) -> None:
    calls: list[float] = []

    def flaky(x: float) -> float:
        calls.append(x)
        return math.nan if x < 0.75 and calls.count(x) < 2 or x < 0.25 else x

    def objective(given: Any) -> Any:
        return [flaky(x) for x in given[:, 0].tolist()] if vectorized else flaky(given["x"])

    with make(tmp_path, num_initial=100) as study:
        study.ask(2)
        study.optimize(objective, 2, 8, retry="once", max_failures=99, vectorized=vectorized)
        frame = study.to_dataframe()
        assert len(frame) == 18
        assert (frame["status"][frame["x"] >= 0.25] == "observed").all()
        assert (frame["status"][frame["x"] < 0.25] == "failed").all()
        assert all(calls.count(x) == (1 if x >= 0.75 else 2) for x in frame["x"])


def test_points_of_an_asynchronous_run_are_evaluated_once_more_at_its_end() -> None:
    seen: list[float] = []

    def flaky(params: dict[str, Any]) -> float:
        seen.append(params["x"])
        return params["x"] if seen.count(params["x"]) > 1 or params["x"] > 0.5 else math.nan

    study = make(num_initial=100)
    study.optimize(
        flaky,
        2,
        8,
        executor=lambda: ThreadPoolExecutor(2),
        asynchronous=True,
        retry="once",
        max_failures=99,
    )
    assert (study.num_observations, study.num_failed) == (16, 0)
    assert len(seen) > 16


def test_a_retry_of_another_kind_is_refused_before_anything_is_asked() -> None:
    study = make()
    with pytest.raises(ValueError, match="`retry` must be \"once\" or None, got 'always'"):
        study.optimize(lambda params: 1.0, 1, 1, retry="always")
    assert study.num_asks == 0
