"""Where evaluations fail is learned, and points are asked for elsewhere."""

import math
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from acquisition import ParallelThompsonSampling
from scalable_bo.space.space import Categorical, Float, Int, Space
from scalable_bo.study.study import Study

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
        *((name, 1) for name in STRATEGIES),
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
    assert LEARNED in study.last_ask.choice or strategy == "thompson"


def test_a_failing_half_is_left_alone_by_several_objectives() -> None:
    study = Study(SPACE, objectives={"a": "maximize", "b": "minimize"}, seed=0, sampler=QUICK)
    outcomes = lambda p: (p["x"] - p["y"] ** 2, (p["x"] - 0.2) ** 2)  # noqa: E731
    failed = run(study, lambda p: math.nan if p["x"] > 0.5 else outcomes(p), rounds=4)
    assert failed <= 5  # of 10
    assert study.last_ask.choice.endswith(LEARNED)


def test_failures_that_lie_in_no_place_keep_nothing_out() -> None:
    study = Study(SPACE, maximize=True, seed=0)
    numbers = iter(range(1000))
    value = lambda p: -((p["x"] - 0.3) ** 2) - (p["y"] - 0.7) ** 2  # noqa: E731
    run(study, lambda params: math.nan if next(numbers) % 6 == 0 else value(params))
    assert study.best_value > -1e-3


def test_what_was_taken_back_is_no_failure_of_its_place() -> None:
    study = Study(SPACE, maximize=True, seed=0, num_initial=4)
    run(study, fails_beyond(2.0), rounds=2)
    study.withdraw([0, 1, 2], "the thermometer was broken")
    study.ask(1)
    assert LEARNED not in study.last_ask.choice
    study.tell(study.ask(2), [math.nan, math.nan])
    study.ask(1)
    assert LEARNED in study.last_ask.choice


def test_where_nothing_seems_to_succeed_points_are_asked_for_all_the_same() -> None:
    space = Space(k=Int(0, 5), kind=Categorical(["a", "b"]))
    study = Study(space, maximize=True, seed=0, num_initial=3)
    seen = set()
    for _ in range(12):
        batch = study.ask(1)
        (params,) = batch.params
        seen.add(tuple(params.values()))
        study.tell(batch, [1.0 if len(seen) in (1, 3) else math.nan])
    assert len(seen) == 12


def test_a_study_that_is_opened_again_asks_for_the_same(tmp_path: Path) -> None:
    open_study = partial(Study, SPACE, maximize=True, seed=0, sampler=QUICK)
    whole = open_study()
    run(whole, fails_beyond(0.5))
    for _ in range(2):
        with open_study(path=tmp_path / "study") as again:
            run(again, fails_beyond(0.5), rounds=3)
            frame = again.to_dataframe()
    assert frame[["x", "y"]].equals(whole.to_dataframe()[["x", "y"]])
