"""Runs of ``optimize`` beside others who tell, retry and correct the same points."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from scalable_bo.space.space import Float, Space
from scalable_bo.storage.points import EachPoint
from scalable_bo.study.study import Study

pytest.importorskip("sqlalchemy")

SPACE = Space(x=Float(0.0, 1.0))
BATCH = 4


@pytest.fixture
def studies(tmp_path: Path) -> Iterator[tuple[Study, Study]]:
    """The study of a run, and the same one as another process has it."""
    place: dict[str, Any] = {"storage": f"sqlite:///{tmp_path}/shared.db", "name": "tuning"}
    with (
        Study(SPACE, maximize=True, num_initial=100, **place) as study,
        Study(SPACE, maximize=True, num_initial=100, **place) as other,
    ):
        yield study, other


@pytest.mark.parametrize("kind", ["together", "asynchronous", "vectorized"])
def test_values_are_kept_beside_one_of_a_point_that_another_process_has_told(
    studies: tuple[Study, Study], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    study, other = studies
    together = Barrier(BATCH)

    def wait_for_all(params: Any) -> float:
        if together.wait(60) == 0:
            other.tell([1], [7.0])
        together.wait(60)
        return float(params["x"])

    def all_at_once(X: Any) -> Any:
        other.tell([1], [7.0])
        return X

    options: dict[str, Any] = {"vectorized": True}
    if kind != "vectorized":
        pool = partial(ThreadPoolExecutor, BATCH)
        options = {"executor": pool, "asynchronous": kind == "asynchronous"}
    objective = all_at_once if kind == "vectorized" else wait_for_all
    study.optimize(objective, 1, BATCH, **options)
    assert [point.outcomes["value"] for point in study.points()] == [
        7.0 if point.id == 1 else point.params["x"] for point in study.points()
    ]
    assert "Point 1 was told another value meanwhile, which it keeps." in caplog.text


def test_a_value_that_is_refused_ends_a_run_when_the_others_have_been_told() -> None:
    class Picky(Study):
        def tell(self, ids: Any, *arguments: Any, **options: Any) -> None:
            if 1 in ids:
                raise ValueError("not this one")
            super().tell(ids, *arguments, **options)

    study = Picky(SPACE, maximize=True, num_initial=100)
    with pytest.raises(ValueError, match="not this one"):
        study.optimize(lambda X: X[:, 0], 1, BATCH, vectorized=True)
    assert study.pending.ids == [1]


@pytest.mark.parametrize("by", ["retry", "correct"])
def test_a_failed_point_that_another_process_has_taken_back_is_left_to_it(
    studies: tuple[Study, Study], by: str
) -> None:
    study, other = studies
    evaluated: list[float] = []

    def objective(params: Any) -> float:
        evaluated.append(params["x"])
        if len(evaluated) in (1, 2):
            raise RuntimeError("flaky")
        if len(evaluated) == BATCH:
            other.retry([1]) if by == "retry" else other.correct(1, 7.0)
        return float(params["x"])

    study.optimize(objective, 1, BATCH, retry="once")
    again = study.points([0])[0].params["x"]
    assert evaluated[BATCH:] == [again]
    assert statuses(study, [0, 2, 3]) == ["observed"] * 3
    assert statuses(study, [1]) == ["pending" if by == "retry" else "observed"]


def test_nothing_is_evaluated_once_more_where_all_was_taken_back(
    studies: tuple[Study, Study],
) -> None:
    study, other = studies
    sizes = []

    def objective(X: Any) -> Any:
        sizes.append(len(X))
        return [float("nan"), *X[1:, 0]]

    def correct(study: Study, point: Any) -> None:
        if point.status == "failed":
            other.correct(point.id, 7.0)

    study.optimize(
        objective, 1, BATCH, vectorized=True, retry="once", callbacks=[EachPoint(correct)]
    )
    assert sizes == [BATCH]
    assert study.num_failed == 0


def statuses(study: Study, ids: Sequence[int]) -> list[str]:
    return [point.status for point in study.points(ids)]
