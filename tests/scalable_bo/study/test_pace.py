"""An ask that keeps to a time: what it is by, and where it searches."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from acquisition import FeasibleSet
from acquisition.log_ei import LogEIStrategy, _Posterior
from acquisition.strategies import AutoStrategy
from scalable_bo.modelling import fitting
from scalable_bo.modelling.factory import SurrogateFactory
from scalable_bo.modelling.fitting import FIRST_FIT_POINTS, fit_warped
from scalable_bo.modelling.training import TrainingData
from scalable_bo.space.space import Float, LinearConstraint, Space
from scalable_bo.study import pace
from scalable_bo.study.pace import Rates, find_regions, measure_rates, plan_ask, predicted_seconds
from scalable_bo.study.study import Study
from surrogates.fitting.search import FitWatch
from surrogates.functions import paths
from surrogates.operators.differentiable import KernelBasis
from tests import problems
from tests.quick import QUICK

SPACE = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))
ALL = FeasibleSet.of(SPACE.cube)
RATES = Rates(product=1e-9, gradient=1e-8, factor=1e-11)
TOP = torch.tensor([0.2, 0.7], dtype=torch.float64)


def points(n: int) -> Tensor:
    return problems.uniform(n, 2)


def value(X: Tensor) -> Tensor:
    return -(X - TOP).square().sum(1)


def noisy(n: int) -> Tensor:
    return value(points(n)) + 0.01 * problems.normal(n, seed=1)


def make_study(
    monkeypatch: pytest.MonkeyPatch, product: float, values: Tensor, **options: Any
) -> Study:
    """Return a study of these values on a machine of this speed."""
    monkeypatch.setattr(pace, "measure_rates", lambda *_: Rates(product, 0.0, 0.0))
    study = Study(SPACE, maximize=True, ask_seconds=1000.0, sampler=QUICK, **options)
    study.add_data(points(len(values)), values)
    return study


def test_all_values_are_taken_where_their_time_is_affordable() -> None:
    whole = predicted_seconds(20_000, 200, RATES)
    assert plan_ask(20_000, 200, whole / pace.SHARE, RATES).num_rows is None
    plan = plan_ask(20_000, 200, whole, RATES)
    assert plan.num_rows is not None
    assert plan.num_regions == 4


def test_models_are_as_large_as_the_time_allows() -> None:
    for n, q, seconds in (*itertools.product((20_000, 1_000_000), (1, 200, 1000), (3.0, 30.0)),):
        plan = plan_ask(n, q, seconds, RATES)
        m = plan.num_rows
        if m is None:
            return
        share = math.ceil(q / plan.num_regions)
        taken = plan.num_regions * predicted_seconds(m, share, RATES)
        more = plan.num_regions * predicted_seconds(2 * m, share, RATES)
        assert taken <= pace.SHARE * seconds or m == FIRST_FIT_POINTS
        assert more > pace.SHARE * seconds or 2 * m > n


def test_few_values_are_all_taken_whatever_the_time() -> None:
    assert plan_ask(FIRST_FIT_POINTS, 200, 1e-9, RATES).num_rows is None


def test_rates_are_of_this_machine() -> None:
    kernel = Study(SPACE, maximize=True)._factory.kernel
    rates = measure_rates(kernel, points(300), 3)
    assert rates.product > 0
    assert rates.gradient > 0
    assert rates.factor > 0


def test_regions_lie_around_points_that_are_good_among_their_neighbours() -> None:
    U = points(2000)
    values = value(U)
    lucky = int((U - torch.tensor([0.9, 0.1])).square().sum(1).argmin())
    values[lucky] = 0.3
    first, *others = find_regions(U, values, ALL, 200, 3)
    assert (first.centre - TOP).abs().max() < 0.1
    (other,) = others  # all other leaders lie in the first
    assert torch.equal(other.centre, U[lucky])
    for region in (first, *others):
        inside = ((region.box[0] <= U) & (region.box[1] >= U)).all(1)
        known = region.nearest(U)
        assert len(known.unique()) == 200
        assert set(inside.nonzero()[:, 0].tolist()) <= set(known.tolist())
        assert 100 <= inside.sum() <= 101


@pytest.mark.parametrize("repeated", [60, 150])
def test_a_region_is_a_box_where_points_repeat(repeated: int) -> None:
    U = points(200)
    U[:repeated] = TOP
    (region,) = find_regions(U, value(U), ALL, 100, 1)
    assert len(region.nearest(U)) == 100
    assert (region.box[1] - region.box[0] > 0.01).all()


def test_regions_lie_around_points_that_may_be_proposed() -> None:
    U = points(2000)
    near_limit = FeasibleSet.of(SPACE.cube, accepts=lambda X: X[:, 0] >= 0.6)
    (region,) = find_regions(U, value(U), near_limit, 200, 1)
    assert region.centre[0] >= 0.6
    assert (region.centre - torch.tensor([0.6, 0.7])).abs().max() < 0.1
    assert len(region.nearest(U)) == 200  # of all data


def test_where_no_point_may_be_proposed_regions_lie_where_points_can_be_moved() -> None:
    fixed = FeasibleSet.of(SPACE.cube, fixed_features={0: 0.9})
    (region,) = find_regions(points(2000), value(points(2000)), fixed, 200, 1)
    assert region.centre[0] == 0.9
    nowhere = FeasibleSet.of(SPACE.cube, accepts=lambda X: X[:, 0] > 2.0)
    (region,) = find_regions(points(2000), value(points(2000)), nowhere, 200, 1)
    assert (region.centre - TOP).abs().max() < 0.1


@pytest.mark.parametrize("n", [2100, 4100], ids=["by the paths", "by few terms"])
def test_the_work_that_is_predicted_is_that_of_an_ask(
    monkeypatch: pytest.MonkeyPatch, spy: Any, n: int
) -> None:
    q = 2
    monkeypatch.setattr(fitting, "fit_exact", lambda model, **options: model)
    seen = {name: spy(paths, name) for name in ("combine", "combine_rowwise")}
    study = Study(SPACE, maximize=True, dtype=torch.float32)
    study.add_data(points(n), value(points(n)))
    study.ask(q)
    work = dict.fromkeys(seen, 0)
    for name in seen:
        for basis, X, *_ in (call.args for call in seen[name].call_args_list):
            if isinstance(basis, KernelBasis):
                work[name] += X[..., 0].numel() * len(basis.Z)
    products = work["combine"] + study.model.solution.epochs * n**2
    assert 0.5 < predicted_seconds(n, q, Rates(1.0, 0.0, 0.0)) / products < 2.0
    assert 0.5 < predicted_seconds(n, q, Rates(0.0, 1.0, 0.0)) / work["combine_rowwise"] < 2.0


@pytest.mark.parametrize("strategy", ["log-ei", "auto"])
def test_the_work_that_is_predicted_of_expected_improvement_is_its_own(
    monkeypatch: pytest.MonkeyPatch, spy: Any, strategy: str
) -> None:
    study = make_study(monkeypatch, 0.0, noisy(600), strategy=strategy)
    monkeypatch.setattr(pace, "measure_rates", lambda *_: Rates(0.0, 0.0, 1e-6))
    seen = spy(_Posterior, "moments")
    study.ask(3)
    assert "the 250 values around each" in study.last_ask.choice
    by_paths = make_study(monkeypatch, 0.0, noisy(600), strategy="thompson")
    monkeypatch.setattr(pace, "measure_rates", lambda *_: Rates(0.0, 0.0, 1e-6))
    by_paths.ask(3)
    assert "all 600 values" in by_paths.last_ask.choice
    num_chosen = 3 - ("the first beside" in study.last_ask.choice)
    num_evaluated = sum(len(call.args[1]) for call in seen.call_args_list) / num_chosen
    more, fewer = (predicted_seconds(600, q, Rates(0, 0, 1), LogEIStrategy()) for q in (2, 1))
    assert 0.5 < (more - fewer) / 600**2 / num_evaluated < 2.0


@pytest.mark.parametrize(
    ("q", "n", "improving"),
    [(8, 1000, 8), (9, 1000, 4), (50, 1000, 4), (51, 1000, 0), (8, 1001, 0)],
)
def test_expected_improvement_is_predicted_of_those_points_that_it_chooses(
    q: int, n: int, improving: int
) -> None:
    rates = Rates(0.0, 0.0, 1.0)
    predicted = predicted_seconds(n, q, rates, AutoStrategy())
    if improving:
        assert predicted == predicted_seconds(n, improving, rates, LogEIStrategy())
    else:
        assert predicted == predicted_seconds(n, q, rates)


def test_a_fit_ends_soon_after_its_deadline_with_what_it_has() -> None:
    U = points(60)
    data = TrainingData.of(U, torch.sin(6.0 * U).sum(1), None, True)
    factory = SurrogateFactory.default(2, torch.float64, torch.device("cpu"))
    given: dict[str, Any] = {"few": True}
    numbers: list[int] = []
    model, _ = fit_warped(
        factory, data, problems.seeded(), watch=FitWatch(numbers.append, -math.inf), **given
    )
    assert numbers == [1, 2, 3, 4]  # one of each scale, and one by each further kernel
    assert not model.training
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize(
    "strategy",
    [
        "auto",
        "thompson",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("turbo", "regions", "log-ei")),
    ],
)
def test_without_the_time_for_all_values_those_around_the_best_points_are_taken(
    monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    study = make_study(monkeypatch, 1.0, noisy(600), strategy=strategy)
    lines: list[str] = []
    batch = study.ask(4, callback=lines.append)
    assert "the 250 values around each of up to 1 of the best points" in study.last_ask.choice
    assert len(batch.X.unique(dim=0)) == 4
    (region,) = find_regions(points(600), noisy(600), ALL, 250, 1)
    assert (region.box[0] - 1e-5 <= batch.X).all()
    assert (region.box[1] + 1e-5 >= batch.X).all()
    assert lines[0].startswith("fitting, ")
    assert any(line.startswith("region 1/1: ") for line in lines)
    assert study.last_ask.residual is not None
    study.tell(batch.ids, value(batch.X))
    assert study.result.best_value >= float(noisy(600).max())


def test_several_regions_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    waves = torch.cos(12.0 * points(3000)).sum(1)
    study = make_study(monkeypatch, 1.0, waves, strategy="thompson")
    batch = study.ask(101)
    regions = find_regions(points(3000), waves, ALL, 250, 3)
    for region, part in zip(regions, batch.X.split((34, 34, 33)), strict=True):
        assert ((part >= region.box[0] - 1e-5) & (part <= region.box[1] + 1e-5)).all()


def test_values_of_points_that_break_a_constraint_lead_no_batch_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = LinearConstraint({"x": 1.0}, at_least=0.6)
    monkeypatch.setattr(pace, "measure_rates", lambda *_: Rates(1.0, 0.0, 0.0))
    space = Space(limit, x=Float(0.0, 1.0), y=Float(0.0, 1.0))
    study = Study(space, maximize=True, ask_seconds=1000.0, sampler=QUICK, strategy="thompson")
    study.add_data(points(2000), value(points(2000)))
    batch = study.ask(4)
    assert study.last_ask.choice.startswith("the 250 values around each")
    assert value(batch.X).amin() > -(0.5**2)


def test_a_study_goes_on_from_an_ask_by_some_values_as_if_it_had_not_been_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:

    def proceed(path: Path | None, reopened: bool) -> list[Tensor]:
        study = make_study(monkeypatch, 1.0, noisy(300), path=path)
        found = []
        for product in (1.0, 0.0, 1.0):  # by some values, by all, by some
            monkeypatch.setattr(pace, "measure_rates", lambda *_, p=product: Rates(p, 0.0, 0.0))
            batch = study.ask(2)
            study.tell(batch.ids, value(batch.X))
            found.append(batch.X)
            if reopened:
                study.close()
                study = Study.open(path, ask_seconds=1000.0, sampler=QUICK)
        return found

    for one, two in zip(proceed(None, False), proceed(tmp_path, True), strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize(("given", "error"), [(0.0, ValueError), ("1", TypeError)])
def test_a_time_is_a_number_above_zero(given: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="`ask_seconds` must be"):
        Study(SPACE, maximize=True, ask_seconds=given)


def test_several_outcomes_have_no_time() -> None:
    with pytest.raises(ValueError, match="`ask_seconds` must be None with several outcomes"):
        Study(SPACE, objectives={"a": "minimize", "b": "maximize"}, ask_seconds=3.0)
