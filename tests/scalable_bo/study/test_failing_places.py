"""Where evaluations fail is learned, and points are asked for elsewhere."""

import math
import statistics
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from acquisition import ParallelThompsonSampling
from scalable_bo.space.space import Categorical, Float, Int, Space
from scalable_bo.study import pace
from scalable_bo.study.pace import Rates
from scalable_bo.study.study import Study
from tests import problems

QUICK = partial(
    ParallelThompsonSampling, num_candidates=200, num_rounds=4, num_starts=4, num_steps=20
)
SPACE = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))
STRATEGIES = ("auto", "thompson", "turbo")
LEARNED = "where evaluations fail is learned"


def fails_beyond(edge: float) -> Any:
    """The value rises towards where evaluations fail."""
    return lambda params: math.nan if params["x"] > edge else params["x"] - params["y"] ** 2


def run(study: Study, objective: Any, rounds: int = 6, batch: int = 5) -> int:
    """Ask and tell; return how many points failed after the design."""
    before = 0
    for number in range(rounds):
        points = study.ask(batch)
        study.tell(points, [objective(params) for params in points.params])
        before = study.num_failed if number == 1 else before
    return study.num_failed - before


@pytest.mark.parametrize(
    ("strategy", "num_seeds"),
    [
        ("thompson", 1),
        ("turbo", 1),
        *(pytest.param(name, 3, marks=pytest.mark.slow) for name in STRATEGIES),
    ],
)
def test_a_failing_half_is_left_alone_and_its_edge_is_found(strategy: str, num_seeds: int) -> None:
    failed = []
    best = []
    for seed in range(num_seeds):
        study = Study(SPACE, maximize=True, seed=seed, strategy=strategy, sampler=QUICK)
        failed.append(run(study, fails_beyond(0.5)))
        best.append(study.best_value)
    assert statistics.median(failed) <= 12  # of 20: the best values lie at the edge
    assert statistics.median(best) > 0.4
    assert LEARNED in study.last_ask.choice


def test_asked_for_one_at_a_time_points_stay_near_the_edge_of_a_failing_half() -> None:
    study = Study(Space(x=Float(0.0, 1.0)), maximize=True, seed=0, strategy="log-ei")
    asked = []
    for _ in range(24):
        batch = study.ask(1)
        asked.append(batch.X.item())
        study.tell(batch, [math.nan if asked[-1] > 0.6 else asked[-1]])
    assert sum(x < 0.3 for x in asked[9:]) <= 2
    assert study.best_value > 0.58


def test_a_failing_half_is_left_alone_by_several_objectives() -> None:
    study = Study(SPACE, objectives={"a": "maximize", "b": "minimize"}, seed=0, sampler=QUICK)
    outcomes = lambda p: (p["x"] - p["y"] ** 2, (p["x"] - 0.2) ** 2)  # noqa: E731
    failed = run(study, lambda p: math.nan if p["x"] > 0.5 else outcomes(p), rounds=4)
    assert failed <= 5  # of 10
    assert study.last_ask.choice.endswith(LEARNED)


def points(n: int) -> Tensor:
    return problems.uniform(n, 2)


@pytest.mark.parametrize("is_stream", [False, True], ids=["table", "stream"])
def test_a_pool_is_taken_where_evaluations_succeed_as_long_as_there_is_such_a_candidate(
    is_stream: bool,
) -> None:
    study = Study(SPACE, maximize=True, seed=0, strategy="thompson")
    pool = points(75)
    failed = []
    for _ in range(5):
        batch = study.ask(15, pool=iter(pool.split(20)) if is_stream else pool)
        study.tell(batch, [fails_beyond(0.5)(params) for params in batch.params])
        failed.append(sum(params["x"] > 0.5 for params in batch.params))
    first, *learned, last = failed
    assert first > 5
    assert max(learned[:-1]) < 5
    assert last + learned[-1] > 20  # only such ones are left
    assert study.last_ask.choice == f"thompson: among a pool; {LEARNED}"


def test_local_models_are_asked_where_evaluations_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "measure_rates", lambda *_: Rates(1.0, 0.0, 0.0))
    study = Study(SPACE, maximize=True, seed=0, ask_seconds=1000.0, sampler=QUICK)
    X = points(800)
    succeeds = X[:, 0] <= 0.5
    study.add_data(X[succeeds], X[succeeds, 0] - X[succeeds, 1] ** 2)
    for x, y in X[~succeeds].tolist():
        study.enqueue({"x": x, "y": y})
    study.tell(study.ask(int((~succeeds).sum())), math.nan * X[~succeeds, 0])
    batch = study.ask(20)
    assert "values around each of" in study.last_ask.choice
    assert study.last_ask.choice.endswith(LEARNED)
    assert sum(params["x"] > 0.5 for params in batch.params) <= 10
    assert max(params["x"] for params in batch.params) > 0.45


def test_a_large_batch_leaves_a_failing_half_alone_and_does_not_all_go_to_one_edge() -> None:
    study = Study(SPACE, maximize=True, seed=0, sampler=QUICK)
    run(study, fails_beyond(0.5), rounds=1, batch=50)
    x = torch.tensor([params["x"] for params in study.ask(100).params])
    assert (x > 0.5).sum() <= 50
    assert x.aminmax().max - x.aminmax().min > 0.02
    assert x.amin() > 0.4


def test_failures_that_lie_in_no_place_keep_nothing_out() -> None:
    value = lambda p: -((p["x"] - 0.3) ** 2) - (p["y"] - 0.7) ** 2  # noqa: E731
    best = []
    for seed in range(3):
        study = Study(SPACE, maximize=True, seed=seed)
        numbers = iter(range(1000))
        run(study, lambda p, n=numbers: math.nan if next(n) % 6 == 0 else value(p), rounds=4)
        assert LEARNED in study.last_ask.choice
        best.append(study.best_value)
    assert statistics.median(best) > -1e-3


def test_what_was_taken_back_is_no_failure_of_its_place() -> None:
    study = Study(SPACE, maximize=True, seed=0, num_initial=4, sampler=QUICK)
    run(study, fails_beyond(2.0), rounds=2)
    study.withdraw([0, 1, 2], "the thermometer was broken")
    study.ask(1)
    assert LEARNED not in study.last_ask.choice
    study.tell(study.ask(2), [math.nan, math.nan])
    study.ask(1)
    assert LEARNED in study.last_ask.choice


def test_where_nothing_seems_to_succeed_points_are_asked_for_all_the_same() -> None:
    space = Space(k=Int(0, 5), kind=Categorical(["a", "b"]))
    study = Study(space, maximize=True, seed=0, num_initial=3, sampler=QUICK)
    seen = set()
    for _ in range(12):
        batch = study.ask(1)
        (params,) = batch.params
        seen.add(tuple(params.values()))
        study.tell(batch, [1.0 if len(seen) in (1, 3) else math.nan])
    assert len(seen) == 12
