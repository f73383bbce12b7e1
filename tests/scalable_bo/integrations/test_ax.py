"""Ax with our surrogate and batches: directions, constraints, grids, queues and storage."""

import json
import logging
import math
import statistics
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
import torch

pytest.importorskip("ax")

from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from ax.api.protocols.metric import IMetric
from ax.core.arm import Arm
from ax.core.data import Data
from ax.core.search_space import SearchSpaceDigest
from ax.exceptions.core import SearchSpaceExhausted, UnsupportedError

from acquisition import STRATEGIES, ParallelThompsonSampling, TrustRegionStrategy
from acquisition.constraints import FeasibleSet
from acquisition.strategies import AutoStrategy
from scalable_bo.integrations.ax import (
    Box,
    ThompsonAcquisition,
    _Grid,
    pathwise_generation_strategy,
)
from surrogates import CG, Nystrom, PathwiseGP
from tests import problems

pytestmark = pytest.mark.filterwarnings(r"ignore::DeprecationWarning:ax\..*")  # of Ax to itself

QUICK = {"num_candidates": 100, "num_rounds": 2, "num_starts": 2, "num_steps": 20}
PLANE = [
    RangeParameterConfig(name=name, parameter_type="float", bounds=(0.0, 2.0))
    for name in ("x", "y")
]
COUNT = [RangeParameterConfig(name="k", parameter_type="int", bounds=(1, 12))]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def make_client(
    parameters: list[Any],
    objective: str = "value",
    *,
    constraints: tuple[list[str], list[str]] = ([], []),
    **options: Any,
) -> Client:
    """Return a client with parameter constraints and outcome constraints,
    and a strategy that starts with 6 Sobol points.
    """
    client = Client(random_seed=0)
    client.configure_experiment(parameters=parameters, parameter_constraints=constraints[0])
    client.configure_optimization(objective=objective, outcome_constraints=constraints[1])
    settings = {"num_initial": 6, "sampler_options": QUICK, **options}
    client.set_generation_strategy(pathwise_generation_strategy(**settings))
    return client


def bump(params: dict[str, float]) -> dict[str, float]:
    return {"value": -((params["x"] - 1.2) ** 2) - (params["y"] - 0.5) ** 2}


def run(client: Client, q: int, f: Any = bump, **options: Any) -> list[dict[str, Any]]:
    trials = client.get_next_trials(max_trials=q, **options)
    for index, params in trials.items():
        client.complete_trial(trial_index=index, raw_data=f(params))
    return list(trials.values())


@pytest.fixture
def draws(spy: Any) -> Any:
    return spy(ParallelThompsonSampling, "generate")


def sizes(draws: Any) -> list[int]:
    return [call.args[1] for call in draws.call_args_list]


# "auto" takes expected improvement for up to 8 points
@pytest.mark.parametrize(
    "strategy",
    [pytest.param(name, marks=[pytest.mark.slow] * (name == "log-ei")) for name in STRATEGIES],
)
@pytest.mark.parametrize("sign", [1, pytest.param(-1, marks=pytest.mark.slow)])
def test_batches_close_in_on_the_optimum_in_either_direction(sign: int, strategy: str) -> None:
    objective = "value" if sign == 1 else "-value"
    client = make_client(PLANE, objective, batch_size=6, strategy=strategy)
    for _ in range(3):
        batch = run(client, 6, lambda p: {"value": sign * bump(p)["value"]})
    assert min((p["x"] - 1.2) ** 2 + (p["y"] - 0.5) ** 2 for p in batch) < 0.01


def test_a_trial_that_failed_is_not_proposed_again() -> None:
    client = make_client(COUNT, "-value")
    tried = []
    for _ in range(12):
        ((index, params),) = client.get_next_trials(max_trials=1).items()
        tried.append(params["k"])
        if params["k"] < 4:
            client.mark_trial_failed(index)
        else:
            client.complete_trial(index, raw_data={"value": float(params["k"])})
    assert sorted(tried) == list(range(1, 13))


@pytest.mark.parametrize(
    ("model_options", "limits"), [(None, []), (None, ["y <= 0.9"]), ({"solver": CG()}, [])]
)
def test_it_is_learned_where_trials_fail(model_options: Any, limits: list[str]) -> None:
    client = make_client(
        PLANE,
        "-value",
        constraints=([], limits),
        strategy="auto",
        model_options=model_options,
        num_initial=8,
        batch_size=4,
    )
    asked = []
    for q in (8, 4, 4, 4, 4):
        for index, params in client.get_next_trials(max_trials=q).items():
            asked.append(params["x"])
            if asked[-1] < 0.9:
                client.mark_trial_failed(index)
            else:
                client.complete_trial(index, raw_data={"value": params["x"], "y": params["y"]})
    later = asked[16:]
    assert sum(x < 0.9 for x in later) <= 5
    assert min(later) > 0.6 and statistics.median(later) < 1.3  # near the edge, where values rise


def test_trials_that_failed_are_where_they_were_whatever_the_number_of_metrics(spy: Any) -> None:
    acquisitions = spy(ThompsonAcquisition, "__init__")
    rate = RangeParameterConfig(
        name="rate", parameter_type="float", bounds=(1e2, 1e6), scaling="log"
    )
    kind = ChoiceParameterConfig(
        name="kind", parameter_type="str", values=["a", "b", "c"], is_ordered=True
    )
    client = make_client([rate, kind], constraints=([], ["cost <= 9"]))
    failed = []
    for _ in range(9):
        ((index, params),) = client.get_next_trials(max_trials=1).items()
        if index in (1, 4):
            failed.append([math.log10(params["rate"]), "abc".index(params["kind"])])
            client.mark_trial_failed(index)
        else:
            client.complete_trial(index, raw_data={"value": params["rate"], "cost": index % 3})
    seen = acquisitions.call_args.args[0]._failed
    torch.testing.assert_close(seen, torch.tensor(failed, dtype=seen.dtype))


@pytest.mark.parametrize("options", [{}, {"model_options": {"solver": CG()}}])
@pytest.mark.parametrize("limits", [[], ["y <= 0.9"]])
def test_a_strategy_that_returns_other_points_than_were_asked_for_is_named(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], limits: list[str]
) -> None:
    client = make_client(PLANE, constraints=([], limits), strategy="thompson", **options)
    run(client, 6, lambda p: {"value": p["x"], "y": p["y"]})
    monkeypatch.setattr(
        ParallelThompsonSampling, "generate", lambda self, q, **_: self.bounds[:0].repeat(q, 1)
    )
    with pytest.raises(ValueError, match=r"`ThompsonStrategy` must return .* got shape \(0, 2\)"):
        client.get_next_trials(max_trials=1)


def test_exact_values_are_taken_as_ax_has_them() -> None:
    client = make_client(PLANE, batch_size=2)
    for q in (6, 2, 2):
        batch = run(client, q, lambda p: {"value": (-((p["x"] - 1.2) ** 2) - p["y"], 0.0)})
    assert min(abs(p["x"] - 1.2) + p["y"] for p in batch) < 0.1


def test_trials_asked_together_come_of_one_draw_and_are_distinct(draws: Any) -> None:
    client = make_client(PLANE, batch_size=10, strategy="thompson")
    run(client, 6)
    first = run(client, 4)
    second = run(client, 7)
    assert sizes(draws) == [10, 10]
    assert len({(p["x"], p["y"]) for p in first + second}) == 11
    predictions = [
        trial.generator_runs[0].model_predictions
        for trial in list(client._experiment.trials.values())[6:]
    ]
    assert all(len(means["value"]) == 1 for means, _ in predictions)


@pytest.mark.parametrize("num_initial", [6, 8])
def test_no_point_is_left_of_a_batch_for_the_next_call(draws: Any, num_initial: int) -> None:
    client = make_client(PLANE, num_initial=num_initial, batch_size=4, strategy="thompson")
    for _ in range(4):
        run(client, 4)
    assert sizes(draws) == [4, 4]


@pytest.mark.parametrize(("batch_size", "num_calls"), [(3, 4), (10, 1), (12, 1)])
def test_whole_batches_of_sobol_points_come_first(
    draws: Any, batch_size: int, num_calls: int
) -> None:
    client = make_client(PLANE, batch_size=batch_size, num_initial=None, strategy="thompson")
    for _ in range(num_calls):
        assert len(run(client, batch_size)) == batch_size
    assert not draws.called
    run(client, batch_size)
    assert sizes(draws) == [batch_size]


def test_one_call_makes_a_batch_trial_of_any_size(draws: Any) -> None:
    client = make_client(PLANE, strategy="thompson")
    run(client, 6)
    strategy = client._generation_strategy
    batch = strategy.gen(experiment=client._experiment, n=40)[0][0]
    assert sizes(draws) == [40]
    assert len({arm.signature for arm in batch.arms}) == 40


def test_other_fixed_parameters_make_another_batch() -> None:
    client = make_client(PLANE, batch_size=3)
    run(client, 6)
    run(client, 1)
    assert [p["x"] for p in run(client, 3, fixed_parameters={"x": 0.25})] == [0.25] * 3
    assert len({p["x"] for p in run(client, 3)}) == 3


def test_mixed_parameters_and_parameter_constraints_are_honoured() -> None:
    parameters = [
        RangeParameterConfig(name="x", parameter_type="float", bounds=(0.0, 5.0)),
        RangeParameterConfig(
            name="rate", parameter_type="float", bounds=(1e-3, 1.0), scaling="log"
        ),
        *COUNT,
        ChoiceParameterConfig(
            name="kind", parameter_type="str", values=["a", "b", "c"], is_ordered=False
        ),
        ChoiceParameterConfig(
            name="size", parameter_type="int", values=[1, 4, 16], is_ordered=True
        ),
    ]
    client = make_client(parameters, "-value", constraints=(["x + k <= 10"], []), batch_size=12)
    for _ in range(2):
        batch = run(
            client,
            6,
            lambda p: {
                "value": (p["x"] - 3) ** 2 + abs(p["k"] - 9) + (p["kind"] != "b") + p["size"] / 16
            },
        )
    assert all(p["x"] + p["k"] <= 10 + 1e-6 for p in batch)
    assert all(
        p["kind"] in "abc" and p["size"] in (1, 4, 16) and isinstance(p["k"], int) for p in batch
    )
    assert len({tuple(p.values()) for p in batch}) == 6


def test_outcome_constraints_hold_back_the_objective() -> None:
    client = make_client(PLANE, constraints=([], ["cost <= 1.0"]), batch_size=2)
    for q in (6, 2):
        batch = run(client, q, lambda p: {"value": p["x"], "cost": p["x"] + 0.1 * p["y"]})
    assert all(p["x"] + 0.1 * p["y"] <= 1.1 for p in batch)
    assert max(p["x"] for p in batch) > 0.8


def test_a_discrete_space_is_searched_to_its_end() -> None:
    client = make_client(COUNT, batch_size=4, num_initial=5)
    trials = [p for q in (5, 4, 3) for p in run(client, q, lambda p: {"value": -abs(p["k"] - 7)})]
    assert sorted(p["k"] for p in trials) == list(range(1, 13))
    with pytest.raises(SearchSpaceExhausted, match="evaluated or pending"):
        client.get_next_trials(max_trials=1)


@pytest.mark.parametrize("objective", ["value", "-value"])
def test_batches_are_chosen_by_the_surrogate_of_a_study_on_the_unit_cube(
    objective: str, spy: Any
) -> None:
    generate = spy(AutoStrategy, "generate")
    wide = RangeParameterConfig(name="x", parameter_type="float", bounds=(-1e3, 3e3))
    client = make_client([wide, *COUNT], objective, batch_size=2)
    sign = 1.0 if objective == "value" else -1.0
    values = []

    def f(p: dict[str, Any]) -> dict[str, float]:
        values.append(-abs(p["x"] - 500.0) - 100.0 * abs(p["k"] - 5))
        return {"value": sign * values[-1]}

    run(client, 6, f)
    run(client, 2, f)
    first = generate.call_args_list[0].args[1]
    assert first.bounds.tolist() == [[0.0, 0.0], [1.0, 1.0]]
    assert isinstance(first.model, PathwiseGP)
    (U,) = first.model.train_inputs
    assert U.min() >= 0.0
    assert U.max() <= 1.0
    assert U.max() - U.min() > 0.5
    (kernel,) = (part for part in first.model.covar_module.modules() if hasattr(part, "nu"))
    assert kernel.nu == 2.5
    order = first.model.train_targets.argsort().tolist()
    assert order == torch.tensor(values[:6]).argsort().tolist()
    assert torch.equal(torch.cat(list(first.batches)).argsort(), torch.tensor(order))


def test_outcomes_that_are_only_tracked_do_not_matter() -> None:
    client = make_client(PLANE, batch_size=2, strategy="turbo")
    client.configure_metrics([IMetric(name="beside")])
    for _ in range(2):
        batch = run(client, 6, lambda p: {"value": -p["x"], "beside": p["y"]})
    assert min(p["x"] for p in batch) < 0.5


@pytest.mark.filterwarnings(
    "ignore:Encountered a `MultiObjective` without", "ignore:To copy construct from a tensor"
)
def test_several_objectives_are_refused() -> None:
    client = make_client(PLANE, "value, other")
    run(client, 6, lambda p: {"value": p["x"], "other": -p["x"]})
    with pytest.raises(UnsupportedError, match="`objective` must be a single one, got 2"):
        client.get_next_trials(max_trials=1)


def test_a_saved_client_goes_on_with_the_same_settings(spy: Any) -> None:
    solver = CG(Nystrom(rank=4), tolerance=1e-4)
    options = {"solver": solver, "num_paths": 64}
    client = make_client(PLANE, batch_size=3, strategy="turbo", model_options=options)
    run(client, 6)
    run(client, 3)
    generate = spy(TrustRegionStrategy, "generate")
    loaded = Client._from_json_snapshot(json.loads(json.dumps(client._to_json_snapshot())))
    node = loaded._generation_strategy.nodes_by_name["Thompson"]
    assert node.batch_size == 3
    assert len(run(loaded, 2)) == 2
    ((_, request),) = (call.args for call in generate.call_args_list)
    assert [len(values) for values in request.batches] == [3, 3, 3]
    model = node.generator_spec.fitted_adapter.generator.surrogate.model
    assert (model.solver, model.num_paths, len(model.train_targets)) == (solver, 64, 9)


def test_grids_round_ordered_values_and_one_hot_groups() -> None:
    digest = SearchSpaceDigest(
        feature_names=["x", "kind_OH_PARAM_0", "kind_OH_PARAM_1", "size", "k"],
        bounds=[(0.0, 1.0), (0.0, 1.0), (0.0, 1.0), (0.0, 4.0), (1.0, 3.0)],
        discrete_choices={3: [0.0, 1.0, 4.0], 4: [1, 2, 3]},
    )
    bounds = torch.tensor(digest.bounds, dtype=torch.float64).T
    grid = _Grid(digest, {4: 2.0}, bounds)
    assert grid.is_discrete
    X = torch.tensor([[0.3, 0.2, 0.1, 2.6, 2.2]], dtype=torch.float64)
    assert grid.round(X).tolist() == [[0.3, 1.0, 0.0, 4.0, 2.0]]
    assert grid.left(FeasibleSet.of(bounds), X) is None


def test_a_small_grid_has_the_points_left_that_meet_the_constraints_and_are_not_known() -> None:
    digest = SearchSpaceDigest(
        feature_names=["kind_OH_PARAM_0", "k", "kind_OH_PARAM_1", "one_OH_PARAM_0"],
        bounds=[(0.0, 1.0), (1.0, 3.0), (0.0, 1.0), (0.0, 1.0)],
        discrete_choices={1: [1, 2, 3]},
    )
    bounds = torch.tensor(digest.bounds, dtype=torch.float64).T
    at_most_two = (torch.tensor([1]), torch.tensor([-1.0], dtype=torch.float64), -2.0)
    feasible = FeasibleSet.of(bounds, inequality_constraints=[at_most_two])
    known = torch.tensor([[1.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    left = _Grid(digest, {}, bounds).left(feasible, known, None)
    expected = [[a, k, 1 - a, b] for a in (0, 1) for k in (1, 2) for b in (0, 1)]
    assert sorted(left.tolist()) == sorted(p for p in expected if p != known[0].tolist())
    fixed = _Grid(digest, {1: 2.0, 3: 1.0}, bounds).left(feasible, known, left[:0])
    assert sorted(fixed.tolist()) == [[0.0, 2.0, 1.0, 1.0], [1.0, 2.0, 0.0, 1.0]]


def tell_many(client: Client, n: int) -> None:
    """Give a client n random trials, the best around x = 1.2 and y = 0.5."""
    experiment = client._experiment
    X = 2.0 * problems.uniform(n, 2)
    arms = [Arm(name=f"0_{i}", parameters={"x": x, "y": y}) for i, (x, y) in enumerate(X.tolist())]
    trial = experiment.new_batch_trial().add_arms_and_weights(arms)
    trial.mark_running(no_runner_required=True)
    values = -(X - torch.tensor([1.2, 0.5])).square().sum(1)
    table = {
        "arm_name": [arm.name for arm in arms],
        "metric_name": "value",
        "metric_signature": "value",
        "mean": values.tolist(),
        "sem": math.nan,
        "trial_index": 0,
    }
    experiment.attach_data(Data(df=pd.DataFrame(table)))
    trial.mark_completed()
    run(client, 6)  # by Sobol


def test_without_the_time_for_all_values_those_around_the_best_trials_are_taken() -> None:
    client = make_client(PLANE, batch_size=3, strategy="thompson", ask_seconds=1e-9)
    tell_many(client, 400)
    trials = client.get_next_trials(max_trials=3)
    for index, params in trials.items():
        assert abs(params["x"] - 1.2) < 0.5
        assert abs(params["y"] - 0.5) < 0.5
        (run_of_one,) = client._experiment.trials[index].generator_runs
        (choices,) = run_of_one.gen_metadata["models_used"]
        assert choices["value"].startswith("the 250 values around each of up to 1 of the best")
    assert len({tuple(params.values()) for params in trials.values()}) == 3
    (fixed,) = client.get_next_trials(max_trials=1, fixed_parameters={"x": 0.25}).values()
    assert fixed["x"] == 0.25


def test_a_time_is_a_number_above_zero_and_of_one_outcome_by_the_surrogate_of_a_study() -> None:
    for given in (0.0, "1"):
        with pytest.raises((TypeError, ValueError), match="`ask_seconds` must be"):
            pathwise_generation_strategy(ask_seconds=given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`ask_seconds` must be None with `model_options`, got 3"):
        pathwise_generation_strategy(ask_seconds=3.0, model_options={"num_paths": 64})
    client = make_client(PLANE, constraints=([], ["cost <= 1.0"]), ask_seconds=3.0)
    run(client, 6, lambda p: {"value": p["x"], "cost": p["y"]})
    message = "`ask_seconds` must be None with outcome constraints, got 3.0"
    with pytest.raises(UnsupportedError, match=message):
        client.get_next_trials(max_trials=1)


@pytest.mark.parametrize("name", ["batch_size", "num_initial"])
def test_bad_arguments_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}` must be at least 1, got 0"):
        pathwise_generation_strategy(**{name: 0})
    with pytest.raises(
        ValueError,
        match="`strategy` must be one of auto, thompson, turbo, regions, log-ei, got 'best'",
    ):
        pathwise_generation_strategy(strategy="best")


BOUNDS = torch.tensor([[-3.0, 0.1, 7.0], [5.0, 0.7, 7.0]], dtype=torch.float64)


def test_points_go_to_the_cube_and_back() -> None:
    box = Box.of(BOUNDS)
    assert torch.equal(box.to_cube(BOUNDS), torch.tensor([[0.0, 0, 0], [1, 1, 0]]).double())
    assert torch.equal(box.from_cube(box.to_cube(BOUNDS)), BOUNDS)
    X = torch.lerp(*BOUNDS, torch.rand(100, 3, dtype=torch.float64))
    assert torch.allclose(box.from_cube(box.to_cube(X)), X)
    given: dict[str, Any] = dict.fromkeys(("inequality_constraints", "equality_constraints"))
    given |= {"fixed_features": {}, "rounding": torch.round}
    rounding = box.constraints_on_cube(given)["rounding"]
    assert torch.equal(rounding(box.to_cube(X)), box.to_cube(X.round()))


def test_constraints_hold_for_the_same_points_on_the_cube() -> None:
    box = Box.of(BOUNDS)
    rows = torch.tensor([0, 1])
    constraints = {
        "inequality_constraints": [(rows, torch.tensor([1.0, -4.0]).double(), -2.5)],
        "equality_constraints": None,
        "fixed_features": {},
    }
    X = torch.lerp(*BOUNDS, torch.rand(100, 3, dtype=torch.float64))
    outside = FeasibleSet.of(BOUNDS, **constraints).contains(X)
    cube = box.to_cube(BOUNDS)
    inside = FeasibleSet.of(cube, **box.constraints_on_cube(constraints)).contains(box.to_cube(X))
    assert torch.equal(outside, inside)
    assert 0 < int(inside.sum()) < 100
    fixed = box.constraints_on_cube(constraints | {"fixed_features": {0: 1.0}})["fixed_features"]
    assert fixed == {0: 0.5}
