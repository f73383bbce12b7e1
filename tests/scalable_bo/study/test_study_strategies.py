"""A study with any strategy: what it is told; opened again, it goes on alike."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from acquisition import STRATEGIES
from scalable_bo.space.space import Categorical, Float, Int, LinearConstraint, Space
from scalable_bo.study import pace
from scalable_bo.study.answers import read_snapshot
from scalable_bo.study.ask_inputs import AskInputs
from scalable_bo.study.study import Study
from tests import problems
from tests.acquisition.random_points import RandomPoints
from tests.quick import QUICK

PLANE = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))
MIXED = Space(rate=Float(1e-3, 1.0, log=True), layers=Int(1, 4), kind=Categorical(["a", "b"]))
FINITE = Space(layers=Int(1, 6), kind=Categorical(["a", "b", "c"]))
BY_STRATEGY = [
    *(pytest.param({"strategy": name, "sampler": QUICK}, id=name) for name in STRATEGIES),
    pytest.param({"strategy": RandomPoints()}, id="from outside"),
]


def loss(params: dict[str, Any]) -> float:
    """Return a value, or NaN for one kind."""
    if params["kind"] == "b" and params["layers"] == 2:
        return math.nan
    return float(params["layers"]) - params.get("rate", 0.0)


@pytest.mark.parametrize(
    "space", [MIXED, pytest.param(FINITE, marks=pytest.mark.slow)], ids=["mixed", "finite"]
)
@pytest.mark.parametrize(
    "options",
    [
        # "auto" takes expected improvement for 3 points
        pytest.param(
            *given.values, id=given.id, marks=[pytest.mark.slow] * (given.id in ("turbo", "log-ei"))
        )
        for given in BY_STRATEGY
    ],
)
def test_a_study_resumes_to_the_same_design_with_every_strategy(
    tmp_path: Path, options: dict[str, Any], space: Space
) -> None:
    def make(path: Path) -> Study:
        return Study(space, maximize=False, seed=2, path=path, num_initial=2, **options)

    def go_on(study: Study) -> Tensor:
        batch = study.ask(3)
        study.tell(batch.ids[1:], [loss(params) for params in batch.params[1:]])
        return batch.X

    with make(tmp_path / "whole") as study:
        whole = torch.cat([go_on(study) for _ in range(3)])
    parts = []
    for _ in range(3):
        with make(tmp_path / "in parts") as study:
            parts.append(go_on(study))
    assert torch.equal(torch.cat(parts), whole)
    assert len(torch.unique(whole, dim=0)) == 9


def test_a_strategy_is_told_what_a_study_knows() -> None:
    strategy = RandomPoints()
    requests = strategy.requests
    study = Study(PLANE, maximize=False, num_initial=3, strategy=strategy)
    study.add_data([[0.1, 0.2]], [10.0])
    first = study.ask(2)  # of the design
    study.tell(first.ids, [9.0, 8.0])
    second = study.ask(3)
    study.tell(second.ids[1:], [math.nan, 7.0])
    study.add_data([[0.3, 0.4]], [6.0])
    study.ask(1)
    assert [request.q for request in requests] == [3, 1]
    assert requests[0].X_pending is None
    assert torch.equal(requests[1].X_pending, second.X[:2])  # type: ignore[arg-type]
    assert [request.model for request in requests][-1] is study.model
    batches = [[values.tolist() for values in request.batches] for request in requests]
    assert batches[0] == [[-10.0, -9.0, -8.0]]
    assert math.isnan(batches[1][1].pop(0))
    assert batches[1] == [[-10.0, -9.0, -8.0], [-7.0, -6.0]]


def test_an_ask_by_some_values_each_is_a_batch_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pace, "measure_rates", lambda *_: pace.Rates(1.0, 0.0, 0.0))
    strategy = RandomPoints()
    given: dict[str, Any] = {"strategy": strategy, "ask_seconds": 1.0}
    X = problems.uniform(300, 2)
    with Study(PLANE, maximize=True, path=tmp_path, **given) as study:
        study.add_data(X, X.sum(1))
        for _ in range(2):
            study.tell(study.ask(3).ids, [0.0] * 3)
    with Study.open(tmp_path, **given) as study:
        study.ask(1)
    sizes = [[len(values) for values in request.batches] for request in strategy.requests]
    assert sizes == [[300], [300, 3], [300, 3, 3]]


def test_values_of_points_that_break_a_constraint_are_no_success_of_a_batch() -> None:
    strategy = RandomPoints()
    space = Space(LinearConstraint({"x": 1.0}, at_most=0.6), x=Float(0, 1), y=Float(0, 1))
    study = Study(space, maximize=True, num_initial=3, strategy=strategy)
    study.add_data([[0.1, 0.2], [0.9, 0.2], [0.6, 0.1]], [1.0, 9.0, 2.0])
    study.ask(1)
    (values,) = strategy.requests[0].batches
    assert values[[0, 2]].tolist() == [1.0, 2.0] and math.isnan(values[1])


def test_every_ask_has_randomness_of_its_own_which_depends_on_the_seed_alone() -> None:
    states: list[list[bytes]] = []
    for seed in (0, 0, 1):
        strategy = RandomPoints()
        study = Study(PLANE, maximize=False, num_initial=3, strategy=strategy, seed=seed)
        study.add_data([[0.1, 0.2], [0.5, 0.1], [0.3, 0.9]], [10.0, 9.0, 8.0])
        for _ in range(3):
            study.ask(1)
        generators = [request.generator for request in strategy.requests]
        states.append([bytes(generator.get_state().tolist()) for generator in generators])
    first, same, other = states
    assert same == first
    assert len({*first, *other}) == 6


def test_a_strategy_is_checked_before_the_folder_is_made(tmp_path: Path) -> None:
    path = tmp_path / "study"
    with pytest.raises(
        ValueError,
        match="`strategy` must be one of auto, thompson, turbo, regions, log-ei, got 'best'",
    ):
        Study(PLANE, maximize=True, path=path, strategy="best")
    assert not path.exists()


@pytest.mark.parametrize(
    ("given", "later", "names"),
    [
        ({}, {}, ["auto", "auto"]),
        ({"sampler": QUICK}, {"sampler": QUICK}, ["thompson", "thompson"]),
        ({"strategy": "log-ei"}, {}, ["log-ei", "log-ei"]),
        ({}, {"strategy": "turbo"}, ["auto", "turbo"]),
        ({"strategy": RandomPoints()}, {"strategy": RandomPoints()}, [None, None]),
    ],
)
def test_a_study_goes_on_with_its_strategy_unless_another_is_given(
    tmp_path: Path, given: dict[str, Any], later: dict[str, Any], names: list[str | None]
) -> None:
    kept = []
    for options in (given, later):
        with Study(PLANE, maximize=True, path=tmp_path / "study", **options) as study:
            kept.append(study._record.settings.get("strategy"))
    assert kept == names


def test_auto_says_what_it_chose_and_predicts_in_the_units_of_the_values(tmp_path: Path) -> None:
    study = Study(PLANE, maximize=False, num_initial=12, path=tmp_path / "study")
    batch = study.ask(12)
    values = torch.exp(20.0 * (batch.X - 0.3).square().sum(1))
    study.tell(batch.ids, values)
    study.ask(1)
    assert study.last_ask.choice.startswith("log-ei: 1 among 12, at most 8 points and 1000 values")
    assert study.last_ask.choice.endswith("values as the logarithm of their gaps")
    (belief,) = study.snapshot().beliefs
    mean = belief.mean(batch.X)
    assert ((mean / values).log().abs() < 0.3).all()
    study.close()
    stored = read_snapshot(tmp_path / "study")
    torch.testing.assert_close(stored.beliefs[0].mean(batch.X), mean)
    assert [cost.choice for cost in stored.costs.values()] == ["", study.last_ask.choice]


def test_a_study_of_inputs_that_act_apart_says_so_and_goes_on_as_if_never_closed(
    tmp_path: Path,
) -> None:
    bounds = [[-5.0] * 3, [5.0] * 3]

    def value(X: torch.Tensor) -> torch.Tensor:
        return (X**4 - 16.0 * X**2 + 5.0 * X).sum(1)

    batches = []
    for part in range(2):
        path = tmp_path / str(part)
        study = Study(bounds, maximize=False, seed=0, num_initial=40, path=path)
        batch = study.ask(40)
        study.tell(batch.ids, value(batch.X))
        for _ in range(2):
            batch = study.ask(2)
            study.tell(batch.ids, value(batch.X))
            assert study.last_ask.choice.endswith("inputs that act apart")
            if part:
                study.close()
                study = Study.open(path)
        batches.append(batch.X)
        study.close()
    assert torch.equal(*batches)


def test_a_surrogate_of_few_values_is_fitted_again_when_they_have_grown_by_a_tenth() -> None:
    study = Study(PLANE, maximize=False, num_initial=20, strategy="turbo", sampler=QUICK)
    fitted = []
    kernels = []
    for number in (20, 1, 1, 1, 1):  # after 0, 20, 21, 22 and 23 values
        batch = study.ask(number)
        study.tell(batch.ids, torch.exp(20.0 * (batch.X - 0.3).square().sum(1)))
        fitted.append(study._record.asks[-1].refitted)
        if study.model is not None:
            kernels.append(study.model.covar_module)
            assert study._proposer.surrogate.fitted[1].warp is not None
    assert fitted == [None, True, False, True, False]
    assert [one is other for one, other in pairwise(kernels)] == [True, False, True]


def test_hyperparameters_are_fitted_to_a_tenth_more_of_few_values_and_to_half_more_of_many() -> (
    None
):
    study = Study(PLANE, maximize=False, strategy="thompson", sampler=QUICK)
    study.add_data(problems.uniform(300, 2), problems.uniform(300, 1)[:, 0])
    study.ask(1)
    known = AskInputs(PLANE, study._record, False)
    for few, grown in ((True, 330), (False, 450)):
        for n in (300, grown - 1, grown):
            known.num_observed = n
            assert known.has_grown(few) == (n == grown)


def test_a_wild_value_is_moved_towards_the_others_by_the_next_ask() -> None:
    study = Study(PLANE, maximize=True, seed=0)
    X = problems.uniform(40, 2)
    study.add_data(X, -(X - 0.5).square().sum(1))
    for value in (0.0, 1e6):
        batch = study.ask(1)
        study.tell(batch.ids, [value])
    study.ask(1)
    assert study._record.asks[-1].refitted
    surrogate = study._proposer.surrogate
    assert surrogate.fitted[1].scale_name in ("near", "aside")


def with_wild_values() -> tuple[Study, Tensor]:
    """Return a study of 40 values, of which three are wild, and the points of these."""
    X = problems.uniform(40, 2)
    values = torch.sin(3.0 * X).sum(1)
    wild = [3, 17, 31]
    values[wild] = -1e6
    study = Study(PLANE, maximize=True, strategy="thompson", sampler=QUICK)
    study.add_data(X, values)
    return study, X[wild]


def test_a_study_goes_on_when_values_left_out_are_no_longer_few() -> None:
    study, wild = with_wild_values()
    study.ask(1)
    assert len(study.model.train_inputs[0]) == 37
    study.add_data(wild + 0.001, torch.full((3,), -1e6))
    study.ask(1)
    assert len(study.model.train_inputs[0]) == 43


def test_points_whose_values_are_left_out_are_not_chosen_from_a_pool_again() -> None:
    study, wild = with_wild_values()
    new = torch.tensor([[0.5, 0.25], [0.125, 0.75]], dtype=torch.float64)
    with pytest.raises(ValueError, match="got 2 among 5 rows"):
        study.ask(3, pool=torch.cat([wild, new]))


def test_an_ask_speaks_of_its_fit() -> None:
    study, _ = with_wild_values()
    lines: list[str] = []
    study.ask(1, callback=lines.append)
    assert lines[0] == "fitting, 1 evaluation"
