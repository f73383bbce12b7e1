"""Several objectives, and limits on outcomes: told, stored, modelled, and what is best by them."""

import math
import re
import shutil
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.utils.multi_objective.box_decompositions.dominated import DominatedPartitioning
from torch import Tensor

from acquisition import ParallelThompsonSampling, Request
from acquisition.outcomes import OutcomePaths, Scalarisations
from scalable_bo.modelling.training import TrainingData
from scalable_bo.report import views
from scalable_bo.report.page import render
from scalable_bo.space.constraints import LinearConstraint
from scalable_bo.space.goal import Goal
from scalable_bo.space.space import Float, Int, Space
from scalable_bo.storage.rounds import Result
from scalable_bo.study.answers import read_snapshot
from scalable_bo.study.goals import acquisition_goal
from scalable_bo.study.study import Study
from surrogates import PathwiseGP
from tests import problems
from tests.scalable_bo.frames import timeless

QUICK = partial(
    ParallelThompsonSampling, num_candidates=100, num_rounds=4, num_starts=4, num_steps=15
)
SPACE = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))
BOTH = {"cost": "minimize", "gain": "maximize"}
WORST = torch.tensor([-1.25, -0.25])  # of −cost and gain


def trade(params: dict[str, Any]) -> dict[str, float]:
    """Return a cost and a gain of which x is to be chosen, at y = 0.5."""
    off = (params["y"] - 0.5) ** 2
    return {"cost": params["x"] ** 2 + off, "gain": 1.0 - (1.0 - params["x"]) ** 2 - off}


def within(params: dict[str, Any]) -> bool:
    return params["x"] + params["y"] <= 1.0


def make_study(**options: Any) -> Study:
    given = {"space": SPACE, "objectives": BOTH, "sampler": QUICK, "num_initial": 6}
    return Study(**(given | options))


def limited(params: dict[str, Any]) -> tuple[float, float]:
    """Return a value, to be maximised, and a weight that limits it to x + y ≤ 1."""
    return params["x"] + 2.0 * params["y"], 5.0 * (params["x"] + params["y"])


def make_limited(**options: Any) -> Study:
    settings = {"maximize": True, "outcome_constraints": {"weight": (None, 5.0)}}
    return Study(**({"space": SPACE, "sampler": QUICK, "num_initial": 6} | settings | options))


@pytest.mark.parametrize("strategy", ["auto", "thompson"])
def test_a_study_without_a_sampler_of_its_own_chooses_by_its_surrogates(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = {"num_candidates": 50, "num_rounds": 10, "num_starts": 10, "num_steps": 80}
    monkeypatch.setattr(
        "acquisition.strategies.default_sampler",
        lambda q, *given, **settings: ParallelThompsonSampling(*given, **quick, **settings),
    )
    study = make_study(sampler=None, strategy=strategy)
    study.optimize(trade, rounds=2, batch=9)
    assert study.num_observations == 18
    assert len(study.result.front) > 4


def test_equal_points_are_on_the_front_together() -> None:
    study = make_study()
    study.tell(study.ask(5), [(1.0, 1.0), (1.0, 1.0), (0.5, 0.5), (2.0, 0.5), (2.0, 3.0)])
    assert [point.outcomes["cost"] for point in study.result.front] == [1.0, 1.0, 0.5, 2.0]
    wanted = Goal(BOTH, {}).reference_point(study.result.outcomes[[0, 2, 4]])
    assert [*study.result.reference_point.values()] == wanted.tolist()


def test_a_front_is_found_and_covered() -> None:
    ends = []
    for seed in range(2):
        study = make_study(seed=seed)
        result = study.optimize(trade, rounds=4, batch=8)
        front = result.front
        assert len(front) > 8
        for point in front:
            assert point.outcomes == trade(point.params)
        # The front is y = 0.5; random points lie .29 from it
        distances = torch.tensor([abs(point.params["y"] - 0.5) for point in front])
        assert distances.mean() < 0.1
        along = sorted(point.params["x"] for point in front)
        assert max(b - a for a, b in zip(along, along[1:], strict=False)) < 0.35
        ends.append((along[0], along[-1]))
    low, high = torch.tensor(ends).mean(0)
    assert low < 0.2
    assert high > 0.8
    assert result.best_params == {}
    assert math.isnan(result.best_value)
    assert math.isnan(study.best_value)
    assert study.last_ask.choice == "a model of each of 2 outcomes"


def test_few_points_are_chosen_by_expected_improvement_and_many_by_paths() -> None:
    study = Study(SPACE, objectives=BOTH, seed=0, num_initial=8)
    design = study.ask(8)
    study.tell(design.ids, [trade(params) for params in design.params])
    for q, way in (
        (3, "log-ei: 3 among 8"),
        (20, "4 by log-ei, 16 by thompson: 20"),
        (60, "thompson"),
    ):
        batch = study.ask(q)
        assert study.last_ask.choice.startswith(way)
        assert study.last_ask.choice.endswith("; a model of each of 2 outcomes")
        assert len(torch.unique(batch.X, dim=0)) == q


def test_no_point_of_a_front_is_worse_than_another_in_all_objectives() -> None:
    study = make_study()
    X = SPACE.unnormalize(torch.rand(60, 2, generator=problems.seeded()).double())
    study.add_data(X, [trade(params) for params in SPACE.to_dicts(X)])
    frame = study.to_dataframe()
    front = frame[frame["front"]]
    for _, row in frame.iterrows():
        better = (front["cost"] <= row["cost"]) & (front["gain"] >= row["gain"])
        assert better.any()
        strictly = better & ((front["cost"] < row["cost"]) | (front["gain"] > row["gain"]))
        assert row["front"] != strictly.any()


@pytest.mark.parametrize(
    ("strategy", "rounds"),
    [
        ("auto", 3),
        *(pytest.param(s, 5, marks=pytest.mark.slow) for s in ("thompson", "turbo", "log-ei")),
    ],
)
def test_the_best_point_keeps_the_limits(strategy: str, rounds: int) -> None:
    study = make_limited(strategy=strategy)
    result = study.optimize(limited, rounds, batch=4)
    # At x = 0, y = 1; without the limit it is 3. Five batches are few for a trust region
    assert (1.4 if strategy == "turbo" else 1.85) < result.best_value <= 2.0
    assert limited(result.best_params) == (result.best_value, pytest.approx(5.0, abs=0.5))
    assert limited(result.best_params)[1] <= 5.0
    assert study.best_value == result.best_value
    assert result.values.max() > result.best_value
    assert not result.feasible[result.values.argmax()]
    assert result.outcomes.shape == (4 * rounds, 2)


def test_without_a_feasible_point_nothing_is_best_and_the_nearest_is_named() -> None:
    study = make_limited(outcome_constraints={"weight": (None, -1.0)})
    batch = study.ask(4)
    study.tell(batch.ids, [limited(params) for params in batch.params])
    assert study.result.best_params == {}
    nearest = study.result.least_violating
    weights = [limited(params)[1] for params in batch.params]
    assert nearest.params == batch.params[weights.index(min(weights))]
    assert nearest.excess == {"weight": min(weights) + 1.0}
    with pytest.raises(ValueError, match="none does: the nearest breaks weight by"):
        _ = study.best_params
    assert "the nearest breaks weight by" in repr(study.result)
    assert "the nearest" in study.result._repr_html_()
    assert math.isnan(study.result.best_value)
    assert math.isnan(study.best_value)
    assert not study.to_dataframe()["feasible"].any()
    study.ask(2)  # which goes on


def test_the_nearest_point_is_found_in_units_in_which_limits_compare() -> None:
    goal = Goal({"value": "maximize"}, {"grams": (None, 0.0), "share": (0.9, 1.0)})
    Y = torch.tensor([[0.0, 900.0, 0.9], [0.0, 100.0, 0.6], [0.0, 200.0, 0.5]]).double()
    for factor in (1.0, 1e-6, 1e6):
        Z = Y * torch.tensor([1.0, factor, 1.0])
        assert goal.least_violating(Z) == 1
        assert goal.excess(Z)[1].tolist() == pytest.approx([0.0, 100.0 * factor, 0.3])
    assert not goal.feasible(Y).any()
    assert goal.feasible(torch.tensor([[9.0, -1.0, 1.0], [9.0, -1.0, math.nan]])).tolist() == [1, 0]


def test_a_front_has_a_hypervolume_beyond_its_worst_values_or_the_limits() -> None:
    told = [(1.0, 4.0), (2.0, 6.0), (3.0, 3.0)]  # the last is worse than the others
    study = make_study()
    study.tell(study.ask(3), told)
    assert study.result.reference_point == pytest.approx({"cost": 2.1, "gain": 3.8})
    assert study.result.hypervolume == pytest.approx(1.1 * 0.2 + 0.1 * 2.0)
    study = make_study(outcome_constraints={"cost": (None, 5.0)})
    study.tell(study.ask(3), told)
    assert study.result.reference_point == pytest.approx({"cost": 5.0, "gain": 3.8})
    assert study.result.hypervolume == pytest.approx(4.0 * 0.2 + 3.0 * 2.0)
    with pytest.raises(ValueError, match=r"got cost, gain\. Take `result.front`"):
        _ = study.best_params
    assert "hypervolume" in study.result._repr_html_()
    assert "minimize cost, maximize gain" in repr(study) and "nan" not in repr(study)
    alone = make_limited()
    assert "nan" not in repr(alone) and alone._record.goal is not None
    alone.tell(alone.ask(1), [(1.0, 1.0)])
    assert math.isnan(alone.result.hypervolume) and alone.result.reference_point == {}


@pytest.mark.parametrize(
    ("limits", "told", "corner", "volume"),
    [
        ({"cost": (None, 3.0)}, [(3.0, 5.0)], {"cost": 3.0, "gain": 4.5}, 0.0),
        ({"cost": (None, 3.0)}, [(3.0, 7.0), (2.0, 5.0)], {"cost": 3.0, "gain": 4.8}, 0.2),
        # Each point reaches the limit of one objective
        (
            {"cost": (None, 3.0), "gain": (1.0, None)},
            [(3.0, 7.0), (1.0, 1.0)],
            {"cost": 3.0, "gain": 1.0},
            0.0,
        ),
    ],
)
def test_a_hypervolume_is_measured_from_a_limit_that_no_point_beats(
    limits: dict[str, Any],
    told: list[tuple[float, float]],
    corner: dict[str, float],
    volume: float,
) -> None:
    study = make_study(outcome_constraints=limits)
    study.tell(study.ask(len(told)), told)
    assert study.result.reference_point == pytest.approx(corner)
    assert study.result.hypervolume == pytest.approx(volume)


@pytest.mark.parametrize("kind", ["linear", "function"])
def test_what_breaks_a_constraint_of_the_space_is_not_on_the_front(
    kind: str, tmp_path: Path
) -> None:
    limit = LinearConstraint({"x": 1.0, "y": 1.0}, at_most=1.0)
    space = Space(limit if kind == "linear" else within, x=Float(0.0, 1.0), y=Float(0.0, 1.0))
    study = make_study(space=space, path=tmp_path / "study")
    X = [{"x": 0.9, "y": 0.9}, {"x": 0.3, "y": 0.3}, {"x": 0.4, "y": 0.4}]
    study.add_data(X, [(1.0, 9.0), (2.0, 1.0), (3.0, 2.0)])
    alone = make_study()
    alone.add_data(X[1:], [(2.0, 1.0), (3.0, 2.0)])
    result = study.result
    assert result.front == alone.result.front
    assert result.hypervolume == alone.result.hypervolume
    assert result.reference_point == alone.result.reference_point
    frame = study.to_dataframe()
    assert frame["feasible"].tolist() == frame["front"].tolist() == [False, True, True]
    looks = [study.snapshot()]
    if kind == "linear":  # functions are not kept
        looks.append(read_snapshot(tmp_path / "study"))
    for snapshot in looks:
        assert sorted(snapshot.ranked[:2]) == [1, 2]
        assert f">{result.hypervolume:.4g}<" in render(snapshot)


def test_the_point_that_is_nearest_to_the_limits_meets_the_constraints_of_the_space() -> None:
    study = make_limited(space=Space(within, x=Float(0.0, 1.0), y=Float(0.0, 1.0)))
    study.add_data([{"x": 0.9, "y": 0.9}, {"x": 0.3, "y": 0.3}], [(1.0, 4.0), (1.0, 6.0)])
    least = study.result.least_violating
    assert least is not None and least.params == {"x": 0.3, "y": 0.3}
    assert study.snapshot().shown_row == 1
    assert math.isnan(study.best_value) and study.result.feasible.tolist() == [False, False]


def test_of_equal_values_the_first_is_the_best_everywhere() -> None:
    study = Study(SPACE, maximize=True, sampler=QUICK)
    X = SPACE.unnormalize(torch.rand(40, 2, generator=problems.seeded()).double())
    study.add_data(X, (X.sum(1) * 3).round().clamp_max(4.0))
    first = SPACE.to_dicts(X[[study.snapshot().best_row]])[0]
    assert study.result.best_observed_params == first
    study.ask(1)
    assert study.result.best_observed_params == first
    assert Result.of(SPACE, study.snapshot().rows, True).best_params == first


def test_values_are_told_by_name_or_in_their_order() -> None:
    for values in (
        [{"cost": 1.0, "gain": 2.0}, {"gain": 4.0, "cost": 3.0}],
        [(1.0, 2.0), (3.0, 4.0)],
        torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        [torch.tensor([1.0, 2.0]), [3, 4]],
        pd.DataFrame({"gain": [2.0, 4.0], "cost": [1.0, 3.0]}, index=[7, 7]),
        [pd.Series({"gain": 2.0, "cost": 1.0}), {"cost": Decimal(3), "gain": Fraction(4)}],
    ):
        study = make_study()
        ids = study.ask(2).ids
        study.tell(ids, values)
        study.tell(ids, values)  # the same again
        assert study.outcomes == ("cost", "gain")
        assert study.result.outcomes.tolist() == [[1.0, 2.0], [3.0, 4.0]]
        with pytest.raises(ValueError, match="must not have been told before with another value"):
            study.tell(ids[:1], [(1.0, 2.5)])


def test_a_point_fails_if_all_of_its_outcomes_do() -> None:
    failures = (
        ({}, "there is no value of cost, gain"),
        ({"gain": None}, "there is no value of cost"),
        ({"cost": math.inf, "gain": math.nan}, "cost: the value is inf"),
        (math.nan, "there must be values of cost, gain, got nan"),
        (None, "there must be values of cost, gain, got None"),
        ("broken", "there must be values of cost, gain, got 'broken'"),
        ((None, "x"), "cost: not a number: NoneType None"),
    )
    for value, reason in failures:
        study = make_study()
        ids = study.ask(2).ids
        study.tell(ids, [value, (1.0, 2.0)])
        assert study.reasons(ids) == [reason, None]
        assert (study.num_failed, study.num_observations) == (1, 1)
        evaluated = make_study()
        evaluated.optimize(
            lambda params, value=value: value if params["x"] > 0.5 else (1.0, 2.0),
            rounds=1,
            batch=4,
        )
        assert set(evaluated.reasons(range(4))) == {reason, None}


PARTS: list[Any] = [
    {"cost": 1.5},
    {"cost": 1.5, "gain": None},
    {"gain": math.nan, "cost": Decimal("1.5")},
    {"gain": pd.NA, "cost": np.float32(1.5)},
    (1.5, math.nan),
    (1.5, math.inf),
    [1.5, None],
    torch.tensor([1.5, math.nan]),
    np.array([1.5, None]),
    np.ma.array([1.5, 0.0], mask=[False, True]),
]
RESTS = [{"gain": 2.0}, (None, 2.0), {"cost": 1.5, "gain": 2}, (1.5, 2.0)]


def test_values_of_some_outcomes_are_kept_until_the_others_complete_them() -> None:
    for part, rest in (*zip(PARTS, cycle(RESTS), strict=False),):
        study = make_study()
        batch = study.ask(3)
        study.tell(batch.ids[:2], [part, (3.0, 4.0)])
        study.tell(batch.ids[:1], [part])  # the same again
        assert (study.num_observations, study.num_failed) == (1, 0)
        assert study.pending.ids == [0, 2]
        assert study.pending.outcomes == [{"cost": 1.5}, {}]
        assert study.unfinished().ids == [2]
        assert study.to_dataframe()["status"].tolist() == ["pending", "observed", "pending"]
        assert study.to_dataframe()["cost"].tolist()[:2] == [1.5, 3.0]
        assert study.result.outcomes.tolist() == [[3.0, 4.0]]
        study.tell([0], [rest])
        study.tell([0], [part])
        study.tell([0], [rest])
        assert study.result.outcomes.tolist() == [[3.0, 4.0], [1.5, 2.0]]
        assert study.pending.outcomes == [{}]


def test_points_that_are_completed_later_are_those_of_a_study_told_at_once(tmp_path: Path) -> None:
    def step(study: Study, at_once: bool) -> None:
        batch = study.ask(3)
        found = [trade(params) for params in batch.params]
        if not at_once:
            study.tell(batch.ids, [{"gain": one["gain"]} for one in found])
            study.tell(batch.ids[:1], [{"cost": found[0]["cost"]}])
            found[1] = {"cost": found[1]["cost"]}
        study.tell(batch.ids, found)

    apart, together = make_study(), make_study()
    for _ in range(3):  # the last by surrogates
        step(together, at_once=True)
        step(apart, at_once=False)
        with make_study(path=tmp_path) as stored:
            step(stored, at_once=False)
    assert timeless(apart).equals(timeless(together))
    with make_study(path=tmp_path) as stored:
        assert timeless(stored).equals(timeless(together))
        torch.testing.assert_close(stored.ask(3).X, together.ask(3).X, atol=0.0, rtol=0.0)


def test_what_was_told_of_a_point_outlives_a_kill_at_every_step(tmp_path: Path) -> None:
    options: dict[str, Any] = {"objectives": {**BOTH, "third": "maximize"}, "num_initial": 100}
    study = make_study(path=tmp_path / "0", **options)
    study.ask(4)
    steps: list[tuple[int, Any]] = [
        (1, {"third": 3.0}),
        (0, {"gain": -2.0, "cost": None}),
        (1, {"cost": 1.0}),
        (2, math.nan),
        (1, {"gain": 2.0}),
        (0, math.nan),
    ]
    for number, (id, value) in enumerate(steps, 1):
        study.tell([id], [value])
        # As a kill leaves it: the files as they are while the study is open
        shutil.copytree(tmp_path / str(number - 1), tmp_path / str(number))
        with make_study(path=tmp_path / str(number), **options) as killed:
            assert killed.to_dataframe().equals(study.to_dataframe())
            assert killed.pending.outcomes == study.pending.outcomes
        frame = study.to_dataframe()
        study.close()
        study = make_study(path=tmp_path / str(number), **options)
        assert study.to_dataframe().equals(frame)
    study.close()
    snapshot = read_snapshot(tmp_path / str(len(steps)))
    assert snapshot.rows.observed == [1]
    assert frame["status"].tolist() == ["failed", "observed", "failed", "pending"]


def test_values_that_cannot_be_told_are_refused_and_nothing_is_recorded() -> None:
    for values, message in (
        ([{"cost": 1.0, "gian": 2.0}], "outcomes cost, gain, got 'gian'; the nearest is 'gain'"),
        (
            [{"Cost": 1.0}],
            "point 1 must be of the outcomes cost, gain, got 'Cost'; .* 'cost'. Corr",
        ),
        ([{"cost": 1.0, "gain": 2.0, 0: 3.0}], "got 0; the nearest is"),
        (pd.DataFrame({"cost": [1.0], "gains": [2.0]}), "got 'gains'; the nearest is 'gain'"),
        ([{"cost": 5.0, "gain": 2.0}], "another value, got 1; cost of 1 was 1.5 and is 5.0 now"),
        (
            [(5.0, None)],
            "cost of 1 was 1.5 and is 5.0 now. Give a point another value by `correct`",
        ),
        ([(1.0,)], r"must be one number for each of cost, gain, got \(1.0,\). Give NaN where"),
        ([(1.0, 2.0, 3.0)], "must be one number for each of cost, gain"),
        ([3.0], "must be one number for each of cost, gain, got 3.0"),
        (
            [((1.0, 0.1), (2.0, 0.1))],
            r"point 1 for 'cost' must be one number, got \(1.0, 0.1\). Giv",
        ),
        ([{"gain": {"mean": 2.0}}], "point 1 for 'gain' must be one number"),
        ([{"gain": 10**400}], "point 1 for 'gain' must be at most 1.8e"),
    ):
        study = make_study()
        study.ask(3)
        study.tell([1], [{"cost": 1.5}])
        frame = study.to_dataframe()
        with pytest.raises(ValueError, match=message):
            study.tell([1], values)
        if isinstance(values, list):
            with pytest.raises(ValueError, match=message):
                study.tell([0, 1, 2], [(1.0, 2.0), *values, {"gain": 3.0}])
        assert study.to_dataframe().equals(frame)


def test_a_failure_that_is_told_of_a_point_with_some_outcomes_ends_it() -> None:
    study = make_study()
    ids = study.ask(2).ids
    study.tell(ids, [{"cost": 1.5}, {"gain": 2.0}])
    for part in ({"cost": 1.5}, {"gain": 2.0}):
        with pytest.raises(ValueError, match="`reasons` must be of failures, got 'broke' beside"):
            study.tell(ids[:1], [part], reasons={ids[0]: "broke"})
    study.tell(ids, [math.nan, (None, None)], reasons={ids[0]: "broke"})
    assert study.reasons(ids) == ["broke", "cost: not a number: NoneType None"]
    assert study.to_dataframe()["cost"].isna().all()
    with pytest.raises(ValueError, match="must not have been told before with another value"):
        study.tell(ids[:1], [{"cost": 1.5}])
    study.retry()
    study.tell(ids[:1], [{"cost": 2.5}])
    assert study.pending.outcomes == [{"cost": 2.5}, {}]


def test_a_correction_keeps_the_outcomes_that_it_does_not_name(tmp_path: Path) -> None:
    with make_study(path=tmp_path) as study:
        study.ask(3)
        study.tell([0, 1], [(1.0, 2.0), {"cost": 3.0}])
        study.correct(0, {"gain": 2.5})
        study.correct(1, {"cost": 3.5})
        with pytest.raises(ValueError, match="of points that were told, got 2"):
            study.correct(2, {"cost": 1.0})
        assert study.result.outcomes.tolist() == [[1.0, 2.5]]
        assert study.pending.outcomes == [{"cost": 3.5}, {}]
    with make_study(path=tmp_path) as study:
        assert study.pending.outcomes == [{"cost": 3.5}, {}]
        study.correct(1, {"gain": 4.0})
        assert study.result.outcomes.tolist() == [[1.0, 2.5], [3.5, 4.0]]
        assert [change.value for change in study.changes] == [1.0, 3.0, 3.5]
        before = [{"cost": 1.0, "gain": 2.0}, {"cost": 3.0}, {"cost": 3.5}]
        assert [change.outcomes for change in study.changes] == before
        study.tell([2], [{"gain": 1.0}])
        study.withdraw([2])
        assert study.reasons([2]) == ["withdrawn"]


def test_points_with_some_outcomes_are_not_asked_for_again() -> None:
    space = Space(x=Int(0, 3))
    study = Study(space, objectives=BOTH, num_initial=2, sampler=QUICK)
    study.tell(study.ask(3), [(0.0, 1.0), (1.0, 0.0), {"cost": 2.0}])
    assert study.ask(1).X.tolist() not in study.result.X.tolist() + study.pending.X[:1].tolist()
    assert study.predict({"x": 0})[0].isfinite().all()
    assert len(study.result.X) == 2


def with_gaps(num_points: int, dim: int = 2) -> tuple[torch.Tensor, list[dict[str, float]]]:
    """Points of which the even ones lack their gain and the odd ones their cost."""
    generator = problems.seeded()
    X = torch.rand(num_points, dim, generator=generator, dtype=torch.float64)
    names = ("cost", "gain")
    found = [trade(params) for params in SPACE.to_dicts(X)]
    return X, [{names[k % 2]: one[names[k % 2]]} for k, one in enumerate(found)]


@pytest.mark.parametrize("by", ["history", "tell"])
def test_each_surrogate_has_all_values_of_its_outcome(by: str) -> None:
    X, values = with_gaps(24)
    study = make_study()
    if by == "history":
        study.add_data(X, values)
    else:
        study.enqueue(X)
        study.tell(study.ask(24), values)
    assert (study.num_observations, study.num_failed) == (0, 0)
    assert len(study.pending.ids) == 24
    mean, _ = study.predict(X)
    for column, name in enumerate(study.outcomes):
        alone = Study(SPACE, maximize=name == "gain", seed=0)
        rows = [row for row, one in enumerate(values) if name in one]
        alone.add_data(X[rows], [values[row][name] for row in rows])
        told = torch.tensor([values[row][name] for row in rows], dtype=torch.float64)
        torch.testing.assert_close(mean[rows, column], told, atol=0.02, rtol=0.0)
        torch.testing.assert_close(mean[:, column], alone.predict(X)[0], atol=0.1, rtol=0.0)
    study.ask(2)
    assert "a model of each of 2 outcomes" in study.last_ask.choice
    with pytest.raises(ValueError, match="no point has a value of every outcome"):
        _ = study.result
    study.tell([0], [{"gain": 1.0}])
    assert study.result.outcomes.tolist() == [[values[0]["cost"], 1.0]]


def test_a_restart_finds_the_surrogates_of_points_that_were_completed_meanwhile(
    tmp_path: Path,
) -> None:
    X, values = with_gaps(50)
    whole = [trade(params) for params in SPACE.to_dicts(X)]

    def begun(path: Path | None = None) -> Study:
        study = make_study(path=path, strategy="thompson")
        study.add_data(X[:40], whole[:40])
        study.add_data(X[40:], values[40:], name="with gaps")
        study.ask(1)  # whose surrogates are kept until the values have grown
        study.tell([41, 42], [whole[41], {"gain": None} | values[42]])
        return study

    with begun(tmp_path) as study:
        assert study.last_ask.seconds_fit > 0
    with make_study(path=tmp_path, strategy="thompson") as study:
        torch.testing.assert_close(study.ask(2).X, begun().ask(2).X, atol=0.0, rtol=0.0)
        assert [ask.refitted for ask in study._record.asks] == [True, False]


@pytest.mark.slow
def test_the_hypervolume_is_kept_where_a_third_of_the_outcomes_is_missing() -> None:
    def hypervolume(missing: bool) -> float:
        study = make_study(num_initial=6)
        generator = problems.seeded(1)
        found = []
        for _ in range(12):
            batch = study.ask(5)
            told = [trade(params) for params in batch.params]
            found += [(-one["cost"], one["gain"]) for one in told]
            gaps = torch.rand(5, 2, generator=generator) < (1 / 3 if missing else 0.0)
            study.tell(
                batch.ids,
                [
                    {name: None if gap else one[name] for name, gap in zip(BOTH, row, strict=True)}
                    for one, row in zip(told, gaps.tolist(), strict=True)
                ],
            )
        return DominatedPartitioning(WORST, torch.tensor(found)).compute_hypervolume().item()

    assert hypervolume(missing=True) > 0.95 * hypervolume(missing=False)


def test_a_study_of_several_outcomes_that_is_opened_again_never_closed(tmp_path: Path) -> None:
    def step(study: Study) -> None:
        batch = study.ask(4)
        study.tell(batch.ids[:3], [trade(params) for params in batch.params[:3]])

    options: dict[str, Any] = {"outcome_constraints": {"gain": (0.2, None), "cost": (None, 1)}}
    never_closed = make_study(**options)
    for _ in range(3):
        step(never_closed)
        with make_study(path=tmp_path, **options) as study:
            step(study)
    with Study.open(tmp_path, sampler=QUICK, num_initial=6) as study:
        assert timeless(study).equals(timeless(never_closed))
        assert study.result.front == never_closed.result.front
        torch.testing.assert_close(
            study.predict({"x": 0.3, "y": 0.5}), never_closed.predict({"x": 0.3, "y": 0.5})
        )
    assert read_snapshot(tmp_path).goal == Goal(BOTH, options["outcome_constraints"])
    with pytest.raises(ValueError, match="other settings:\n  outcome `gain`: stored 0.2 ≤ gain"):
        make_study(path=tmp_path, outcome_constraints={"gain": (0.3, None), "cost": (None, 1)})
    with pytest.raises(ValueError, match="objective `cost`: stored minimize, given nothing"):
        make_limited(path=tmp_path)


def test_predictions_and_importances_are_of_each_outcome() -> None:
    study = make_study(strategy="thompson")
    X = SPACE.unnormalize(torch.rand(40, 2, generator=problems.seeded()).double())
    study.add_data(X, [trade(params) for params in SPACE.to_dicts(X)])
    study.ask(1)  # whose surrogates answer all that follows
    mean, std = study.predict(X[:5])
    expected = torch.tensor([list(trade(params).values()) for params in SPACE.to_dicts(X[:5])])
    torch.testing.assert_close(mean, expected.double(), atol=0.02, rtol=0.0)
    assert mean.shape == std.shape == (5, 2)
    assert study.predict({"x": 0.5, "y": 0.5})[0].shape == (2,)
    assert study.importances() == study.importances("cost")
    assert study.importances("gain")["x"] > 0.8
    with pytest.raises(ValueError, match="`outcome` must be"):
        study.importances("weight")


def test_tables_have_a_column_for_each_outcome(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [0.1, 0.2], "y": 0.5, "gain": [3.0, 4.0], "cost": [1.0, math.nan]})
    frame.to_csv(tmp_path / "past.csv")
    study = make_study()
    study.add_data(tmp_path / "past.csv")
    study.add_data(frame, name="past.csv")
    assert study.result.outcomes.tolist() == [[1.0, 3.0]]
    assert study.pending.outcomes == [{"gain": 4.0}]
    assert study.num_failed == 0
    study.to_dataframe().to_csv(tmp_path / "all.csv")
    again = make_study()
    again.add_data(tmp_path / "all.csv")
    assert again.pending.outcomes == [{"gain": 4.0}]
    beside = make_study()
    beside.add_data(frame[["x", "y"]], frame[["cost", "gain"]].to_numpy())
    assert beside.result.outcomes.tolist() == [[1.0, 3.0]]
    with pytest.raises(ValueError, match="must have the column 'gain'"):
        study.add_data(frame.drop(columns="gain"))
    with pytest.raises(ValueError, match="`target` must be None with several outcomes"):
        study.add_data(frame, target="cost")


def headings(content: str) -> list[str]:
    return re.findall("<h2>(.*?)</h2>", content)


def test_a_report_shows_the_front_and_predicts_each_objective(tmp_path: Path) -> None:
    with make_study(path=tmp_path / "kept") as study:
        study.optimize(trade, rounds=2, batch=6)
        study.tell(study.ask(2).ids[:1], [{"cost": 0.125}])
        study.report(tmp_path / "front.html")
        result = study.result
    content = (tmp_path / "front.html").read_text(encoding="utf-8")
    assert "kept, minimize cost, maximize gain</h1>" in content
    assert headings(content) == [
        "What to evaluate next",
        "Pareto front",
        "Points of the front",
        "Hypervolume so far",
        "Prediction of cost, minimize",
        "Prediction of gain, maximize",
        "Importances",
        "Parallel coordinates",
        "Settings",
    ]
    assert '<td class="word">0.125, told</td>' in content
    assert f"<dt>on the front</dt><dd>{len(result.front)}</dd>" in content
    assert f"<dt>hypervolume</dt><dd>{result.hypervolume:.4g}</dd>" in content
    stored = render(read_snapshot(tmp_path / "kept"))
    assert stored.split("<h2>Settings")[0] == content.split("<h2>Settings")[0]


def test_a_report_of_limits_says_what_keeps_them_or_comes_nearest(tmp_path: Path) -> None:
    bounded = make_limited()
    bounded.optimize(limited, rounds=3, batch=6)
    content = render(bounded.snapshot())
    assert f"<dd>{bounded.best_value:.6g}</dd>" in content
    assert headings(content)[-3:] == ["Limits on outcomes", "Prediction of weight", "Settings"]
    num_kept = int(bounded.result.feasible.sum())
    assert f'{num_kept} of 18</td><td class="word">weight ≤ 5<' in content
    tight = make_limited(outcome_constraints={"weight": (None, -1.0)})
    tight.tell(tight.ask(2), [(1.0, 2.0), (2.0, 1.5)])
    content = render(tight.snapshot())
    assert "Least violating point" in headings(content)
    assert "No point is feasible. The nearest is row 1: it breaks weight by 2.5." in content
    assert "<dt>feasible</dt><dd>none</dd>" in content


def test_three_objectives_are_shown_in_pairs_and_around_a_compromise() -> None:
    study = make_study(objectives={**BOTH, "third": "minimize"})
    told = [(0.0, 0.0, 2.0), (1.0, 2.0, 1.0), (2.0, 4.0, 0.0), (2.0, 1.0, 2.0)]
    study.tell(study.ask(4), told)
    panels = views.front(study.snapshot()).panels
    assert [(panel.x.title, panel.y.title) for panel in panels] == [
        ("cost, minimize", "gain, maximize"),
        ("cost, minimize", "third, minimize"),
        ("gain, maximize", "third, minimize"),
    ]
    assert study.snapshot().shown_row == 1  # neither end of the front
    volumes = views.history(study.snapshot()).panels[0].marks[0].y
    assert (np.diff(volumes) >= 0).all()
    assert volumes[-1] == pytest.approx(study.result.hypervolume)


def test_impossible_goals_are_refused() -> None:
    for options, error, message in (
        ({"objectives": None}, TypeError, "`maximize` must be True or False, got None"),
        ({"maximize": True}, ValueError, "`maximize` must be None with `objectives`"),
        ({"objectives": {"a": "up"}}, ValueError, "must be 'minimize' or 'maximize', got 'up'"),
        ({"objectives": ["a"]}, TypeError, "`objectives` must be a dict of directions by name"),
        ({"outcome_constraints": {"a": 3}}, TypeError, r"\['a'\]` must be a pair of limits, got 3"),
        ({"outcome_constraints": {"a": (2, 1)}}, ValueError, "limits reversed, got 2.0 and 1.0"),
        ({"outcome_constraints": {"a": (None, None)}}, ValueError, "must have a limit, got none"),
        ({"strategy": "turbo"}, ValueError, "`strategy` must be"),
    ):
        with pytest.raises(error, match=message):
            make_study(**options)


def test_a_scalarisation_rises_in_every_objective_and_ranks_its_own_path() -> None:
    ends = torch.zeros(2, dtype=torch.float64), torch.tensor([2.0, 1.0], dtype=torch.float64)
    found = Scalarisations.draw(5, *ends, problems.seeded())
    assert found.directions.shape == (5, 2)
    torch.testing.assert_close(found.directions.norm(dim=1), torch.ones(5, dtype=torch.float64))
    Y = problems.uniform(5, 7, 2, seed=1)
    assert (found(Y + 0.1) > found(Y)).all()
    for j in range(2):
        more = Y.clone()
        more[..., j] += 0.1
        assert (found(more) >= found(Y)).all()
    # Each path's best point among Y (n, m) is ranked first
    ranking = found.of_all(Y[0])
    for path in range(5):
        best = found(Y[:1].expand(5, 7, 2))[path].argmax()
        assert ranking[best] == 0.0


def objective_of(
    front: Tensor,
    num_paths: int = 4,
    constraints: dict[str, Any] | None = None,
    **limits: tuple[float | None, float | None],
) -> Scalarisations:
    """Return what is maximised where values (n, 2) at random points are known, both to be raised;
    the offsets and scales of surrogates are 0 and 1.
    """
    goal = Goal({"a": "maximize", "b": "maximize"}, limits)
    U = problems.uniform(len(front), 2)
    data = [TrainingData(U, column[:, None], None, 1.0, 0.0, signed=column) for column in front.T]
    models = [PathwiseGP(U, column.unsqueeze(1)) for column in front.T]
    box = torch.stack([torch.zeros(2), torch.ones(2)]).double()
    request = Request(models, num_paths, box, problems.seeded(), constraints=constraints or {})
    found = acquisition_goal(goal, models, data, (U, front), request)["objective"]
    return found


def test_the_volume_grows_from_within_three_widths_of_the_front_or_from_a_limit() -> None:
    front = torch.tensor([[0.0, 4.0], [1.0, 3.0], [2.0, 0.0], [-9.0, -0.5]], dtype=torch.float64)
    found = objective_of(front, num_paths=4_000)
    assert found.best.tolist() == [2.0, 4.0]
    # The front is 2 and 4 wide, its worst values are both 0
    beyond = -found.reference / torch.tensor([2.0, 4.0])
    assert beyond.min() >= 0.1 and beyond.max() <= 3.0 + 1e-12
    shares = (beyond / 0.1).log() / math.log(30.0)
    deviation = math.sqrt(1.0 / 12.0 / 4_000)
    assert ((shares.mean(0) - 0.5).abs() < 5.0 * deviation).all()
    assert abs(float(torch.corrcoef(shares.T)[0, 1])) < 5.0 / math.sqrt(4_000)
    limited = objective_of(front, a=(-0.1, None), b=(None, 9.0)).reference
    assert (limited[:, 0] == -0.1).all() and limited[:, 1].unique().numel() == 4
    # Nothing is known so far beyond the front
    loose = objective_of(front, a=(-1e9, None))
    torch.testing.assert_close(loose.reference, objective_of(front).reference)
    alone = objective_of(front[:1]).reference  # a front of one point counts as one deviation wide
    assert ((front[0] - alone >= 0.1) & (front[0] - alone <= 3.0 + 1e-12)).all()


def test_the_front_is_of_points_that_may_be_proposed() -> None:
    front = torch.tensor([[0.0, 4.0], [1.0, 3.0], [2.0, 0.0], [9.0, 9.0]], dtype=torch.float64)
    last = problems.uniform(len(front), 2)[-1]
    found = objective_of(front, constraints={"accepts": lambda X: (last != X).any(-1)})
    assert found.best.tolist() == [2.0, 4.0]
    nothing = objective_of(front, constraints={"accepts": lambda X: X[:, 0] > 1.0})
    assert nothing.best.tolist() == [9.0, 9.0]


def test_the_choice_of_a_batch_does_not_depend_on_the_units_of_the_objectives() -> None:
    X = problems.uniform(12, 2)
    Y = torch.stack([X.sum(1).sin(), (3.0 * X[:, 0]).cos() - X[:, 1]], dim=1)
    batches = []
    for scale, offset in ((1.0, 0.0), (1e6, -3e6), (1e-6, 5.0)):
        study = make_study(seed=0, num_initial=12)
        study.tell(study.ask(12).ids, (Y * torch.tensor([scale, 1.0]) + offset).tolist())
        batches.append(study.ask(4).X)
    torch.testing.assert_close(batches[1], batches[0], atol=0.05, rtol=0)
    torch.testing.assert_close(batches[2], batches[0], atol=0.05, rtol=0)


def test_paths_of_several_outputs_are_scalarised_path_by_path() -> None:
    X = problems.uniform(12, 2)
    models = [PathwiseGP(X, X[:, [j]].sin()) for j in range(2)]
    paths = tuple(model.paths(3) for model in models)
    directions = torch.tensor([[1.0, 1e-9], [1e-9, 1.0], [0.6, 0.8]], dtype=torch.float64)
    ends = torch.full((3, 2), -9.0, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    ends[0][1, 1] = -4.0  # a reference point of the path's own
    functions = OutcomePaths(paths, Scalarisations(directions, *ends))
    values: Tensor = functions(X)
    first, second = ((part(X) + 9.0) / 10.0 for part in paths)
    torch.testing.assert_close(values[0], first[0])
    torch.testing.assert_close(values[1], (10.0 * second[1] - 5.0) / 5.0)
    torch.testing.assert_close(values[2], torch.minimum(first[2] / 0.6, second[2] / 0.8))
    torch.testing.assert_close(functions.each(X.expand(3, 12, 2)), values)
    assert functions.standing(X)[1].shape == (12,)
