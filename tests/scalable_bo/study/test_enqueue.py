"""Points that a user enqueues are evaluated next, and are not lost."""

from pathlib import Path
from typing import Any

import pytest
import torch

from scalable_bo.space.space import Float, Int, LinearConstraint, Space
from scalable_bo.study.study import Study
from tests.quick import QUICK

SPACE = Space(LinearConstraint({"x": 1}, at_most=1.5), x=Float(-2.0, 2.0), n=Int(1, 9))
WISHES = [{"x": 0.5, "n": 3}, {"x": -1.0, "n": 9}, {"x": 1.5, "n": 1}]


def make_study(**options: Any) -> Study:
    settings = {"maximize": True, "sampler": QUICK, "num_initial": 2} | options
    return Study(SPACE, **settings)


def test_the_next_asks_give_out_what_was_enqueued_first() -> None:
    study = make_study()
    study.enqueue(WISHES[0])
    study.enqueue(WISHES[1:])
    assert study.num_queued == 3
    first = study.ask(2)
    assert first.params == WISHES[:2]
    second = study.ask(3)
    assert second.params[0] == WISHES[2]
    assert (second.ids, study.num_queued) == ([2, 3, 4], 0)
    assert study.pending.ids == [0, 1, 2, 3, 4]
    # The design's points are those that it would have had, shifted by what was asked for
    assert torch.equal(second.X[1:], make_study().ask(2).X)


def test_beside_enqueued_points_the_surrogate_chooses_others() -> None:
    study = make_study()
    batch = study.ask(4)
    study.tell(batch.ids, batch.X[:, 0])
    study.enqueue(torch.tensor([[0.5, 3.0]]))
    batch = study.ask(3)
    assert batch.params[0] == WISHES[0]
    assert batch.params[0] not in batch.params[1:]
    assert study.model is not None


def test_a_queue_outlives_the_process(tmp_path: Path) -> None:
    with make_study(path=tmp_path) as study:
        study.ask(1)
        study.enqueue(WISHES)
    with make_study(path=tmp_path) as study:
        assert study.ask(1).params == WISHES[:1]
    with make_study(path=tmp_path) as study:
        assert study.num_queued == 2
        seen: list[dict[str, Any]] = []
        study.optimize(lambda params: seen.append(params) or params["x"], rounds=2, batch=2)
        assert seen[2:4] == WISHES[1:]
        assert len(seen) == 2 + 4


def test_a_finite_space_counts_what_is_enqueued() -> None:
    study = Study(Space(n=Int(1, 4)), maximize=True, num_initial=2, sampler=QUICK)
    study.enqueue([{"n": 4}])
    result = study.optimize(lambda p: p["n"], rounds=3, batch=3)
    assert sorted(result.X.flatten().tolist()) == [1, 2, 3, 4]
    assert result.best_params == {"n": 4}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"x": 3.0, "n": 1}, "`x` must be between"),
        ([{"x": 0.0, "n": 1}, {"x": 1.9, "n": 1}], "must meet the constraints .*'x': 1.9.* row 1"),
        ({"x": 0.0}, "must have exactly the parameters x, n"),
    ],
)
def test_points_that_cannot_be_evaluated_are_refused(params: Any, message: str) -> None:
    study = make_study()
    with pytest.raises(ValueError, match=message):
        study.enqueue(params)
    assert study.num_queued == 0
