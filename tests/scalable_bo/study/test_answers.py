"""What a study says by its surrogate: what it recommends, predicts, and what matters."""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from acquisition import ParallelThompsonSampling
from acquisition.log_ei import NEGLIGIBLE_NOISE
from scalable_bo.modelling.belief import Belief, rough_bands
from scalable_bo.report import snapshot
from scalable_bo.report.page import render
from scalable_bo.space.constraints import LinearConstraint
from scalable_bo.space.space import Categorical, Float, Int, Space
from scalable_bo.study import answers
from scalable_bo.study.answers import read_snapshot
from scalable_bo.study.study import Study
from surrogates.models.data import data_sets
from surrogates.models.fresh import EXACT_UP_TO
from tests import problems

QUICK = partial(
    ParallelThompsonSampling, num_candidates=100, num_rounds=3, num_starts=3, num_steps=10
)
SPACE = Space(x=Float(-2.0, 2.0), idle=Float(1e-3, 1e3, log=True))
NOISE = 1.0


def bowl(X: Tensor) -> Tensor:
    return (X[:, 0] - 0.5).square()


def noisy(X: Tensor, scale: float = NOISE) -> Tensor:
    generator = problems.seeded(600 + len(X))
    return bowl(X) + scale * torch.randn(len(X), dtype=torch.float64, generator=generator)


def points(n: int) -> Tensor:
    U = problems.uniform(n, 2, seed=1)
    return SPACE.unnormalize(U)


def asked(objective: Callable[[Tensor], Tensor], n: int = 60, **options: Any) -> Study:
    """Return a study of n values after its first batch by a surrogate."""
    study = Study(SPACE, **({"maximize": False, "sampler": QUICK} | options))
    study.add_data(points(n), objective(points(n)))
    batch = study.ask(3)
    study.tell(batch.ids, objective(batch.X))
    return study


def of_values(X: Tensor, y: Tensor, noise: float | None = None, **options: Any) -> Study:
    """Return a study of these values after its first ask by a surrogate."""
    study = Study(SPACE, **({"maximize": False, "sampler": QUICK} | options))
    study.add_data(X, y, noise=noise)
    study.ask(1)
    return study


@pytest.fixture(scope="module")
def of_noise() -> Study:
    """A study of noisy values, to be looked at alone."""
    return asked(noisy)


@pytest.fixture(scope="module")
def without_noise() -> Study:
    """A study of values without noise, to be looked at alone."""
    return asked(bowl)


def test_the_predicted_standard_deviation_is_that_of_a_mean_of_replicates() -> None:
    spread = points(40)
    X = torch.cat([spread, torch.tensor([[0.7, 1.0]], dtype=torch.float64).expand(25, 2)])
    generator = problems.seeded(2)
    noise = NOISE * torch.randn(len(X), dtype=torch.float64, generator=generator)
    study = of_values(X, 30.0 * torch.sin(9.0 * X[:, 0]) + noise, NOISE**2)
    _, std = study.predict(X[-1:])
    assert std.item() == pytest.approx(NOISE / 5.0, rel=0.25)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_under_noise_the_best_band_is_recommended_beside_the_best_value(
    of_noise: Study, sign: float
) -> None:
    study = of_noise if sign > 0 else asked(lambda X: -noisy(X), maximize=True)
    result = study.result
    values = sign * result.values
    assert sign * result.best_observed_value == values.min() < -0.5
    assert result.best_observed_params == SPACE.to_dicts(result.X[[int(values.argmin())]])[0]
    mean, std = study.predict(result.X)
    best = int((sign * mean + 2.0 * std).argmin())
    assert result.best_params == study.best_params == SPACE.to_dicts(result.X[[best]])[0]
    assert result.best_value == result.values[best] != result.best_observed_value
    assert result.predicted_value == pytest.approx(mean[best].item())
    assert result.predicted_std == pytest.approx(std[best].item())
    assert abs(result.best_params["x"] - 0.5) < 0.5
    assert abs(sign * result.predicted_value) < 3 * result.predicted_std < 3 * NOISE


def test_among_many_noisy_values_the_mean_that_is_there_decides(of_noise: Study) -> None:
    belief = of_noise._answers._belief(fits=False)
    assert belief is not None
    result = of_noise.result
    many = replace(belief, quick_mean=lambda X: (X[:, 0] - 0.9).abs())
    best = many.recommend(result.X, result.values)
    assert best == int((result.X[:, 0] - 0.9).abs().argmin())


def test_bands_are_averaged_over_what_noise_may_be_up_to_2000_values(of_noise: Study) -> None:
    belief = of_noise._answers._belief(fits=False)
    U = problems.uniform(20, 2)
    many = replace(belief, data=replace(belief.data, y=torch.zeros(2001, 1)))
    assert torch.equal(many._merits(U), many._cautious(U))
    assert not torch.equal(belief._merits(U), belief._cautious(U))


def test_a_result_without_new_values_is_not_sought_again(
    of_noise: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = of_noise.result
    monkeypatch.setattr(Belief, "recommend", None)
    assert of_noise.result.best_params == first.best_params


def test_without_noise_the_best_value_is_recommended(without_noise: Study) -> None:
    for study in (without_noise, asked(partial(noisy, scale=1e-3))):
        result = study.result
        assert result.best_params == result.best_observed_params
        assert result.best_value == result.best_observed_value == result.values.min()
        assert result.predicted_value == pytest.approx(result.best_value, abs=0.05)


def test_under_noise_the_best_of_the_space_need_not_have_been_evaluated(of_noise: Study) -> None:
    study = of_noise
    found = study.recommend()
    X = torch.cat([points(4000), study.result.X])
    mean, std = study.predict(X)
    worst = mean + 2.0 * std
    mean_found, std_found = study.predict(found)
    assert mean_found + 2.0 * std_found <= worst.min() + 0.01 * worst.std()
    assert found != study.best_params
    assert study.recommend() == found


def test_the_best_of_a_space_of_counts_and_limits_lies_in_it() -> None:
    limit = LinearConstraint({"k": 1, "x": 1}, at_most=6)
    space = Space(limit, k=Int(0, 8), x=Float(0.0, 3.0))
    study = Study(space, maximize=True, strategy="log-ei", seed=1, num_initial=24)
    generator = problems.seeded()
    for _ in range(3):
        batch = study.ask(8)
        noise = torch.randn(8, dtype=torch.float64, generator=generator)
        study.tell(batch.ids, batch.X.sum(1) + NOISE * noise)
    found = study.recommend()
    assert found["k"] in range(9)
    assert found["k"] + found["x"] <= 6
    mean, std = study.predict([found, *space.to_dicts(study.result.X)])
    worst = mean - 2.0 * std
    assert worst[0] >= worst.max() - 1e-6


def predictions(high: float, path: Path | None = None) -> list[Tensor]:
    """Predict a function of what sums to 0.05, of parameters from 0 to ``high``."""
    names = ("a", "b", "c")
    mixture = LinearConstraint(dict.fromkeys(names, 1), at_least=0.05, at_most=0.05)
    space = Space(mixture, **dict.fromkeys(names, Float(0, high)))
    shares = torch.rand(12, 3, dtype=torch.float64, generator=problems.seeded()) + 0.1
    X = 0.05 * shares / shares.sum(1, keepdim=True)
    study = Study(space, maximize=True, seed=0, path=path)
    study.add_data(X, (200 * X[:, 0]).sin() - (100 * X[:, 1]).square())
    study.ask(1)
    return [*study.predict(X.flip(0).lerp(X, 0.3))]


def test_ranges_beyond_what_constraints_leave_change_no_prediction() -> None:
    for wide, narrow in zip(predictions(1.0), predictions(0.05), strict=True):
        torch.testing.assert_close(wide, narrow, rtol=1e-2, atol=1e-2)


def test_a_page_of_a_stored_study_knows_the_ranges_that_constraints_leave(
    tmp_path: Path,
) -> None:
    predictions(1.0, tmp_path / "study")
    (belief,) = read_snapshot(tmp_path / "study").beliefs
    assert belief.space.encoding


def test_without_noise_the_best_of_the_space_is_the_best_observed(without_noise: Study) -> None:
    assert without_noise.recommend() == without_noise.result.best_observed_params


def test_the_best_of_the_space_is_where_evaluations_succeed() -> None:
    space = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))
    X = problems.uniform(40, 2)
    noise = 0.1 * problems.normal(40, 1).squeeze(1)
    values = 3.0 * X[:, 0] - (X[:, 1] - 0.5).square() + noise
    study = Study(space, maximize=True)
    study.add_data(X, torch.where(X[:, 0] > 0.5, math.nan, values))
    found = study.recommend()
    assert found["x"] <= 0.5
    assert found != study.best_params
    usual = study.predict(study.result.X).success
    assert usual is not None
    assert study.predict(found).success >= usual.mean() - 1e-6


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_what_breaks_a_constraint_of_the_space_is_not_the_best(noise: float, sign: float) -> None:
    checked = []

    def fits(params: dict[str, Any]) -> bool:
        checked.append(params["x"])
        return params["x"] + params["y"] <= 1.0

    limit = LinearConstraint({"x": 1, "y": 2}, at_most=1.8)
    space = Space(limit, fits, x=Float(0.0, 1.0), y=Float(0.0, 1.0))
    study = Study(space, maximize=sign > 0, sampler=QUICK)
    X = problems.uniform(40, 2, seed=1)
    generator = problems.seeded(2)
    draws = torch.randn(40, dtype=torch.float64, generator=generator)
    values = sign * (X.sum(1) + noise * draws)
    study.add_data(X, values)
    allowed = space.feasible(X)
    best = (sign * values).where(allowed, -math.inf).argmax()
    assert study.best_value == values[best]
    study.tell(study.ask(1), [sign * 0.5])
    result = study.result
    assert torch.equal(result.feasible[:40], allowed)
    assert result.best_observed_value == study.best_value == values[best]
    row = study.snapshot().shown_row
    assert result.best_params == space.to_dicts(result.X[[row]])[0]
    for params in (result.best_params, result.best_observed_params, study.recommend()):
        assert space.feasible(space.from_dicts([params])).all()
    checked.clear()
    assert repr(study) and study.result.best_params == result.best_params and study.snapshot()
    assert checked == []


def test_where_no_point_meets_the_constraints_of_the_space_none_is_the_best() -> None:
    limit = LinearConstraint({"x": 1}, at_most=0.0)
    space = Space(limit, x=Float(-2.0, 2.0))
    study = Study(space, maximize=True, sampler=QUICK)
    study.add_data([{"x": 1.0}, {"x": 2.0}, {"x": 0.5}], [1.0, 2.1, 0.6], noise=0.01)
    study.predict({"x": 0.0})
    result = study.result
    assert result.best_params == {} and math.isnan(study.best_value)
    assert result.least_violating is not None and result.least_violating.excess == {}
    with pytest.raises(ValueError, match="the nearest breaks a constraint of the space"):
        _ = study.best_params
    assert "breaks a constraint of the space" in render(study.snapshot())
    assert study.recommend()["x"] <= 0.0


def test_the_best_of_the_space_wants_values_of_one_objective() -> None:
    with pytest.raises(ValueError, match="at least 2 values"):
        Study(SPACE, maximize=True).recommend()
    several = Study(SPACE, objectives={"cost": "minimize", "gain": "maximize"})
    with pytest.raises(ValueError, match="one objective.*cost, gain.*`result`"):
        several.recommend()


def rippled(X: Tensor) -> Tensor:
    return bowl(X) + (1.0 - (60.0 * X[:, 0]).cos())


def test_ripples_that_look_like_noise_are_none() -> None:
    near = torch.linspace(0.3, 0.6, 40, dtype=torch.float64)
    X = torch.cat([points(60), torch.stack([near, torch.ones_like(near)], dim=1)])
    study = of_values(X, rippled(X), strategy="log-ei")
    result = study.result
    assert result.best_params == result.best_observed_params
    model = study._proposer.surrogate.model
    assert float(model.likelihood.noise.detach()) > NEGLIGIBLE_NOISE
    mean, _ = study.predict(result.X)
    assert result.values[mean.argmin()] > 0.5  # what the best mean would have cost


def assert_tells_ripples_from_noise(study: Study, *, ripples: bool) -> None:
    belief = study._answers._belief(fits=False)
    assert float(belief.model.likelihood.noise.detach()) > NEGLIGIBLE_NOISE
    result = study.result
    assert (result.best_params == result.best_observed_params) == ripples
    (data,) = data_sets(deepcopy(belief.model).double().eval())
    assert (rough_bands(data, data.X)[1] > 0.5) == ripples


@pytest.mark.parametrize("objective", [rippled, noisy])
def test_a_second_value_beside_the_best_tells_ripples_from_noise(objective: Any) -> None:
    study = Study(SPACE, maximize=False, strategy="log-ei", seed=0)
    X = points(60)
    study.add_data(X, objective(X))
    batch = study.ask(2)
    study.tell(batch.ids, objective(batch.X))
    assert_tells_ripples_from_noise(study, ripples=objective is rippled)


@pytest.mark.parametrize("objective", [rippled, noisy])
def test_on_a_grid_a_repeated_value_tells_ripples_from_noise(objective: Any) -> None:
    space = Space(k=Int(-100, 100), idle=Int(0, 5))
    X = space.unnormalize(problems.uniform(60, 2, seed=1))

    def values(X: Tensor) -> Tensor:
        return objective(X * torch.tensor([0.02, 1.0], dtype=torch.float64))

    study = Study(space, maximize=False, strategy="log-ei", seed=0)
    study.add_data(X, values(X))
    best = X[values(X).argmin()].unsqueeze(0)
    batch = study.ask(2)
    assert (best != batch.X).any(dim=1).all()
    study.enqueue(space.to_dicts(best))
    batch = study.ask(1)
    study.tell(batch.ids, values(best))
    assert_tells_ripples_from_noise(study, ripples=objective is rippled)


def test_before_a_surrogate_the_best_value_is_recommended_and_nothing_predicted() -> None:
    study = Study(SPACE, maximize=True)
    batch = study.ask(2)
    study.tell(batch.ids, [1.0, 2.0])
    assert study.result.best_params == batch.params[1]
    assert math.isnan(study.result.predicted_value)
    assert math.isnan(study.result.predicted_std)


def test_a_prediction_makes_a_surrogate_to_recommend_by_until_there_are_more_values() -> None:
    study = Study(SPACE, maximize=False)
    variances = torch.tensor([1e-4, 100.0]).repeat(15)
    noise = variances.sqrt() * problems.normal(30, 1, seed=1).squeeze(1)
    study.add_data(points(30), bowl(points(30)) + noise, noise=variances)
    lucky = study.result
    assert lucky.best_params == lucky.best_observed_params
    study.predict({"x": 0.0, "idle": 1.0})
    result = study.result
    assert bowl(SPACE.from_dicts([result.best_params])) < 0.2
    assert result.best_params != result.best_observed_params == lucky.best_params
    assert not math.isnan(result.predicted_value)
    row = study.snapshot().shown_row
    assert result.best_params == SPACE.to_dicts(points(30)[[row]])[0]
    study.add_data(points(31)[30:], [0.0], noise=[1.0])
    assert math.isnan(study.result.predicted_value)


def test_a_surrogate_of_many_values_is_not_asked_before_an_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study = Study(SPACE, maximize=False)
    study.add_data(points(20), bowl(points(20)))
    study.predict({"x": 0.0, "idle": 1.0})
    assert not math.isnan(study.result.predicted_value)
    for module in (answers, snapshot):
        monkeypatch.setattr(module, "EXACT_UP_TO", 19)
    monkeypatch.setattr(Belief, "recommend", None)
    assert math.isnan(study.result.predicted_value)
    assert study.snapshot().shown_row == int(bowl(points(20)).argmin())


def test_known_variances_decide_whether_noise_is_negligible() -> None:
    def recommended(variance: float) -> bool:
        study = of_values(points(60), noisy(points(60)), variance)
        return study.result.best_params != study.result.best_observed_params

    assert recommended(NOISE**2)
    assert not recommended(1e-9)


def test_known_noise_decides_near_an_optimum_however_small_beside_the_values() -> None:
    X = torch.cat([points(30), 0.4 + 0.05 * problems.normal(40, 2, seed=1)]).clamp(0.0, 1.0)
    scale = 0.08 * float(bowl(X).std())  # less than a hundredth of the variance
    lost = {"best_params": 0.0, "best_observed_params": 0.0}
    for seed in range(4):
        noise = scale * problems.normal(len(X), 1, seed=seed).squeeze(1)
        study = of_values(X, bowl(X) + noise, scale**2)
        for name in lost:
            best = SPACE.from_dicts([getattr(study.result, name)])
            lost[name] += float(bowl(best) - bowl(X).min()) / scale
    assert lost["best_params"] < 0.5 * lost["best_observed_params"]


@pytest.mark.parametrize(
    ("n", "is_known"), [(300, False), (EXACT_UP_TO + 50, False), (EXACT_UP_TO + 50, True)]
)
def test_noise_decides_however_small_beside_the_values_and_however_many(
    n: int, is_known: bool
) -> None:
    X = points(n)
    scale = 0.08 * float(bowl(X).std())  # less than a hundredth of the variance
    y = bowl(X) + scale * problems.normal(n, 1, seed=3).squeeze(1)
    study = of_values(X, y, scale**2 if is_known else None, strategy="thompson")
    result = study.result
    found = SPACE.from_dicts([result.best_params, result.best_observed_params, study.recommend()])
    best, luckiest, best_of_space = (bowl(found) / scale).tolist()
    assert max(best, best_of_space) < 0.2 * luckiest


def test_the_best_of_many_exact_values_is_recommended() -> None:
    X = points(EXACT_UP_TO + 50)
    X[:1000, 0] = 0.5 + 0.003 * problems.normal(1000, 1, seed=1).squeeze(1)  # almost as good
    study = of_values(X, bowl(X), 1e-9, strategy="thompson")
    belief = study._answers._belief(fits=False)
    assert belief is not None and belief.quick_mean is not None
    assert study.result.best_params == study.result.best_observed_params


def test_predictions_are_in_the_units_of_the_values_and_cover_them() -> None:
    study = Study(SPACE, maximize=True, strategy="thompson")
    study.add_data(points(50), 1e6 + 1e3 * bowl(points(50)))
    mean, std = study.predict({"x": 0.5, "idle": 1.0})
    assert mean.shape == std.shape == ()
    assert abs(mean - 1e6) < max(3 * std, 20.0)
    X = points(80)[50:]
    mean, std = study.predict(SPACE.to_dicts(X))
    assert torch.equal(mean, study.predict(X)[0])
    assert mean.shape == std.shape == (30,)
    error = (mean - 1e6 - 1e3 * bowl(X)).abs()
    assert (error < 4 * std + 20.0).all()


def test_predictions_of_values_of_any_size_are_in_their_units() -> None:
    found = []
    for unit in (1.0, 1e-200, 1e300):
        study = asked(lambda X, unit=unit: unit * bowl(X), n=20)
        mean, std = study.predict({"x": 0.4, "idle": 1.0})
        found.append([(mean / unit).item(), (std / unit).item()])
    for other in found[1:]:
        assert other == pytest.approx(found[0], abs=1e-3)


def test_a_prediction_follows_what_was_told_since_the_last_ask() -> None:
    study = asked(bowl, n=20)
    X = torch.tensor([[-2.0, 1.0]], dtype=torch.float64)
    before, _ = study.predict(X)
    study.add_data(X.repeat(5, 1), torch.full((5,), 30.0))
    after, _ = study.predict(X)
    assert after > before + 1.0


@pytest.mark.parametrize("n", [60, EXACT_UP_TO + 10])
def test_answers_are_the_same_after_opening_the_study_again(tmp_path: Path, n: int) -> None:
    study = asked(noisy, n, path=tmp_path)
    before = study.result
    predicted = study.predict(points(3))
    study.close()
    with Study.open(tmp_path, sampler=QUICK) as study:
        after = study.result
        assert before.best_params == after.best_params != after.best_observed_params
        assert after.predicted_value == pytest.approx(before.predicted_value)
        assert math.isnan(after.predicted_std) == (n > EXACT_UP_TO)
        torch.testing.assert_close(study.predict(points(3)), predicted)
        next_point = study.ask(2).X
    never_closed = asked(noisy, n)
    torch.testing.assert_close(never_closed.ask(2).X, next_point)


def test_looking_at_the_answers_does_not_change_what_is_asked(tmp_path: Path) -> None:
    looked_at = asked(noisy, n=20, path=tmp_path)
    looked_at.close()
    for checkpoint in (tmp_path / "checkpoints").iterdir():
        checkpoint.unlink()
    with Study.open(tmp_path, sampler=QUICK) as study:
        _ = study.result, study.predict(points(2)), study.importances()
        expected = asked(noisy, n=20).ask(2).X
        torch.testing.assert_close(study.ask(2).X, expected)


def test_importances_are_the_shares_of_the_variance() -> None:
    space = Space(a=Float(0, 1), b=Float(0, 1), idle=Float(0, 1), kind=Categorical(["p", "q"]))
    U = problems.uniform(60, space.encoded_dim)
    X = space.unnormalize(U)
    study = Study(space, maximize=True, strategy="thompson")
    study.add_data(X, 3.0 * X[:, 0] + X[:, 1] + X[:, 3])
    found = study.importances()
    assert list(found)[-1] == "idle"
    assert sum(found.values()) == pytest.approx(1.0)
    # Variances: 9/12, 1/12, 0 and 1/4, of a sum
    expected = {"a": 9 / 13, "b": 1 / 13, "idle": 0.0, "kind": 3 / 13}
    assert found == pytest.approx(expected, abs=0.03)


def test_too_few_values_and_wrong_points_are_named() -> None:
    study = Study(SPACE, maximize=True)
    with pytest.raises(ValueError, match="at least 2 values for a surrogate, got 0"):
        study.importances()
    study.add_data([{"x": 0.0, "idle": 1.0}, {"x": 1.0, "idle": 1.0}], [0.0, 1.0])
    with pytest.raises(ValueError, match="`x` must be between -2.0 and 2.0, got 3.0 in row 0"):
        study.predict({"x": 3.0, "idle": 1.0})


def test_a_space_with_conditions_and_steps_is_optimised_stored_and_explained(
    tmp_path: Path,
) -> None:
    space = Space(
        kind=Categorical(["tree", "net", None]),
        depth=Int(2, 10, step=4, active_if={"kind": "tree"}),
        rate=Float(0.0, 1.0, active_if={"kind": ["net", None]}),
        share=Float(0.1, 0.7, step=0.1),
    )

    def score(params: dict[str, Any]) -> float:
        assert ("depth" in params) is (params["kind"] == "tree") is ("rate" not in params)
        return params["share"] + (1.0 - params["rate"] if params["kind"] == "net" else 0.0)

    options: dict[str, Any] = {"maximize": True, "num_initial": 8, "sampler": QUICK}
    with Study(space, path=tmp_path, **options) as study:
        result = study.optimize(score, rounds=4, batch=8)
        frame = study.to_dataframe()
    assert result.best_observed_value > 1.5
    assert result.best_params["kind"] == "net"
    with Study.open(tmp_path, num_initial=8, sampler=QUICK) as study:
        assert study.space.to_dict() == space.to_dict()
        assert study.to_dataframe().equals(frame)
        assert study.result.best_params == result.best_params
        assert set(study.importances()) == set(space.names)
        batch = study.ask(5)
        assert study.space.to_dicts(batch.X) == batch.params
        study.report(tmp_path / "report.html")


@pytest.mark.parametrize("unit", [1e-300, 1e300])
def test_importances_do_not_depend_on_the_unit_of_values(unit: float) -> None:
    space = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))
    study = Study(space, maximize=True, strategy="thompson", seed=0)
    X = problems.uniform(12, 2)
    study.add_data(X, unit * (X[:, 0] + 0.1 * X[:, 1]))
    found = study.importances()
    assert sum(found.values()) == pytest.approx(1.0)
    assert found["x"] > 0.9


def test_measurements_that_say_little_do_not_blur_the_others() -> None:
    X = torch.linspace(0.0, 1.0, 9, dtype=torch.float64)[:, None]
    values = torch.sin(6.0 * X[:, 0])
    noise = torch.full((9,), 1e-6, dtype=torch.float64)
    values[4], noise[4] = 1e6, 1e12
    study = Study(Space(x=Float(0.0, 1.0)), maximize=True, seed=0)
    study.add_data(X, values, noise=noise)
    mean, std = study.predict(X[:3])
    assert torch.allclose(mean, values[:3], atol=5e-3)
    assert (std < 2e-3).all()
