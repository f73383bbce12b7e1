"""The Optuna sampler: Optuna's own conformance suite, and what is special here: batches,
a queue, grids.
"""

import math
import statistics
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("optuna")

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    MultiObjectiveSamplerTestCase,
    RelativeSamplerTestCase,
)
from optuna.trial import TrialState

from acquisition import STRATEGIES, ParallelThompsonSampling, Request
from scalable_bo.integrations import chooser
from scalable_bo.integrations.optuna import ThompsonSampler, TrialSpace
from scalable_bo.modelling import fitting
from tests.acquisition.random_points import RandomPoints

QUICK = partial(
    ParallelThompsonSampling, num_candidates=100, num_rounds=2, num_starts=2, num_steps=20
)
BY_STRATEGY = [
    name if name == "thompson" else pytest.param(name, marks=pytest.mark.slow)
    for name in STRATEGIES
]
BOTH = ["minimize", "maximize"]
SPACE: dict[str, Any] = {
    "x": FloatDistribution(-2.0, 3.0),
    "rate": FloatDistribution(1e-4, 1.0, log=True),
    "share": FloatDistribution(0.0, 1.0, step=0.25),
    "layers": IntDistribution(1, 9, step=2),
    "width": IntDistribution(1, 1000, log=True),
    "kind": CategoricalDistribution(("a", None, 3)),
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(level)


@pytest.fixture
def sampler() -> Callable[[], ThompsonSampler]:
    return lambda: make_sampler(n_startup_trials=0, batch_size=10)


class Conformance:
    """Makes Optuna's suites take the sampler above."""

    @pytest.fixture
    def sampler(self, sampler: Callable[[], ThompsonSampler]) -> Callable[[], ThompsonSampler]:
        return sampler


class TestSeveralObjectives(Conformance, MultiObjectiveSamplerTestCase):
    pass


@pytest.mark.slow
class TestBasics(Conformance, BasicSamplerTestCase):
    pass


@pytest.mark.slow
class TestRelative(Conformance, RelativeSamplerTestCase):
    pass


def make_sampler(**options: Any) -> ThompsonSampler:
    settings = {"seed": 0, "strategy": "thompson", "sampler": QUICK, "batch_size": 1}
    return ThompsonSampler(**{**settings, **options})


def new_study(directions: list[str] | None = None, **options: Any) -> Any:
    return optuna.create_study(directions=directions, sampler=make_sampler(**options))


def make_study(n: int = 6, **options: Any) -> Any:
    """Return a study with n complete trials."""
    study = new_study(n_startup_trials=3, **options)
    study.optimize(bowl, n_trials=n)
    return study


def fits_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Return a list to which each fit will add how many values it is of, and whether they count as
    few.
    """
    fits: list[tuple[int, bool]] = []

    def noted(factory: Any, data: Any, generator: Any, *, few: bool, **options: Any) -> Any:
        fits.append((len(data.U), few))
        return fitting.fit_warped(factory, data, generator, few=few, **options)

    monkeypatch.setattr(chooser, "fit_warped", noted)
    return fits


def bowl(trial: Any) -> float:
    """Smallest, 0, at x = 1.5, rate = 0.01, kind = a."""
    x = trial.suggest_float("x", -2.0, 3.0)
    rate = trial.suggest_float("rate", 1e-4, 1.0, log=True)
    return (
        (x - 1.5) ** 2
        + (math.log10(rate) + 2.0) ** 2
        + {"a": 0.0, "b": 1.0}[trial.suggest_categorical("kind", ["a", "b"])]
    )


@pytest.mark.parametrize("strategy", BY_STRATEGY)
@pytest.mark.parametrize(
    "direction", ["minimize", pytest.param("maximize", marks=pytest.mark.slow)]
)
def test_the_optimum_is_found_much_closer_than_by_random_search(
    direction: str, strategy: str
) -> None:
    sign = 1.0 if direction == "minimize" else -1.0

    def best(sampler: Any) -> float:
        study = optuna.create_study(direction=direction, sampler=sampler)
        study.optimize(lambda trial: sign * bowl(trial), n_trials=22)  # two whole batches
        return sign * study.best_value

    # Two batches may end in a valley of the other choice
    seeds = range(3)
    found = [
        best(make_sampler(n_startup_trials=6, batch_size=8, strategy=strategy, seed=seed))
        for seed in seeds
    ]
    at_random = [best(optuna.samplers.RandomSampler(seed=seed)) for seed in seeds]
    assert statistics.median(found) < 0.1 * statistics.median(at_random)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_asks_by_a_surrogate_for_distinct_points(
    monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    fits = fits_of(monkeypatch)
    study = make_study(n=5, strategy=strategy, batch_size=2)
    assert len({tuple(trial.params.values()) for trial in study.trials}) == 5
    assert [n for n, _ in fits] == [3]


def test_every_trial_returns_from_the_space_as_it_was() -> None:
    trials = TrialSpace(SPACE)
    for seed in range(20):
        sampler = optuna.samplers.RandomSampler(seed=seed)
        trial = optuna.create_study(sampler=sampler).ask(SPACE)
        U = trials.space.normalize(trials.points([trial]))
        (params,) = trials.params(U)
        assert params == pytest.approx(trial.params)
        torch.testing.assert_close(trials.space.round(U), U)


def test_any_point_of_the_unit_cube_is_one_that_the_distributions_contain(
    generator: torch.Generator,
) -> None:
    trials = TrialSpace(SPACE)
    e = trials.space.encoded_dim
    U = torch.rand(50, e, generator=generator, dtype=torch.float64)
    for params in trials.params(torch.cat([U, torch.zeros(1, e), torch.ones(1, e)])):
        for name, distribution in SPACE.items():
            assert distribution._contains(distribution.to_internal_repr(params[name]))
            if isinstance(distribution, IntDistribution):
                assert type(params[name]) is int


def test_what_no_space_can_have_is_sampled_independently() -> None:
    study = new_study(n_startup_trials=2, batch_size=2)

    def objective(trial: Any) -> float:
        seed = trial.suggest_int("seed", 0, 2**60)
        one = trial.suggest_float("one", 1.0, 1.0)
        return bowl(trial) + one + math.log1p(seed)

    study.optimize(objective, n_trials=6)
    assert len({trial.params["seed"] for trial in study.trials}) == 6


def test_a_value_outside_its_range_counts_as_the_nearest_inside() -> None:
    study = make_study(n=3)
    with pytest.warns(UserWarning, match="out of range"):
        study.enqueue_trial({"x": 99.0, "rate": 0.5, "kind": "a"})
        study.optimize(bowl, n_trials=2)
    assert study.trials[3].params["x"] == 99.0
    assert -2.0 <= study.trials[4].params["x"] <= 3.0


@pytest.mark.parametrize("strategy", ["thompson", pytest.param("auto", marks=pytest.mark.slow)])
def test_no_point_of_a_finite_space_comes_twice_while_others_are_left(strategy: str) -> None:
    study = new_study(n_startup_trials=1, batch_size=None, strategy=strategy, sampler=None)

    def objective(trial: Any) -> float:
        kind = trial.suggest_categorical("kind", ["a", "b"])
        return trial.suggest_int("k", 1, 5, step=2) + (kind == "b")

    study.optimize(objective, n_trials=6)
    assert len({tuple(trial.params.values()) for trial in study.trials}) == 6
    study.optimize(objective, n_trials=2)  # at random
    assert len(study.trials) == 8


def test_trials_in_optunas_own_database_are_those_of_its_memory(tmp_path: Path) -> None:
    asked = []
    for storage in (optuna.storages.InMemoryStorage(), f"sqlite:///{tmp_path}/trials.db"):
        for seed in (0, 1):  # the second goes on with the trials, as another process would
            study = optuna.create_study(
                storage=storage,
                study_name="tuning",
                load_if_exists=True,
                sampler=make_sampler(seed=seed, n_startup_trials=4),
            )
            study.optimize(lambda trial: (trial.suggest_float("x", 0.0, 1.0) - 0.3) ** 2, 4)
        asked.append([trial.params["x"] for trial in study.trials])
    assert len(set(asked[0])) == 8
    assert asked[0] == asked[1]


def test_the_surrogate_is_fitted_once_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    study = make_study(batch_size=4, n=3)
    fits = fits_of(monkeypatch)
    study.optimize(bowl, n_trials=9)
    assert fits == [(3, False), (7, False), (11, False)]


def test_failed_pruned_and_infinite_trials_have_no_value_to_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study = make_study(n=5)
    for state, value in (
        (TrialState.FAIL, None),
        (TrialState.PRUNED, 1.0),
        (TrialState.COMPLETE, math.inf),
    ):
        first = study.trials[0]
        study.add_trial(
            optuna.create_trial(
                state=state, value=value, params=first.params, distributions=first.distributions
            )
        )
    fits = fits_of(monkeypatch)
    study.optimize(bowl, n_trials=1)
    assert fits == [(5, False)]


def test_no_point_of_a_finite_space_fails_twice() -> None:
    def fragile(trial: Any) -> float:
        place = trial.suggest_int("place", 0, 7)
        if place < 3:
            raise ValueError
        return float(place)

    study = new_study(n_startup_trials=3)
    study.optimize(fragile, n_trials=8, catch=ValueError)
    assert {trial.params["place"] for trial in study.trials} == set(range(8))


@pytest.mark.parametrize(
    ("directions", "reason"),
    [(["minimize"], ValueError), (["minimize", "minimize"], optuna.TrialPruned)],
)
def test_it_is_learned_where_trials_fail(directions: list[str], reason: type[Exception]) -> None:
    def fragile(trial: Any) -> list[float]:
        x, y = (trial.suggest_float(name, 0.0, 1.0) for name in "xy")
        if x < 0.3:
            raise reason
        return [x + y, x][: len(directions)]

    study = new_study(directions, n_startup_trials=6, batch_size=4, strategy="auto")
    study.optimize(fragile, n_trials=20, catch=ValueError)
    failed = [trial.state != TrialState.COMPLETE for trial in study.trials]
    assert 2 <= sum(failed) <= 10
    assert sum(failed[12:]) <= 5
    later = [trial.params["x"] for trial in study.trials[12:]]
    assert min(later) > 0.2 and statistics.median(later) < 0.5  # near the edge, where values rise


def test_it_is_learned_where_a_constraint_is_infinite() -> None:
    def bounds(trial: Any) -> list[float]:
        return [math.inf if trial.params[name] < 0.3 else -1.0 for name in "xy"]

    settings = {"n_startup_trials": 8, "batch_size": 4, "strategy": "auto"}
    study = new_study(**settings, constraints_func=bounds)
    study.optimize(lambda trial: sum(trial.suggest_float(name, 0.0, 1.0) for name in "xy"), 24)
    broken = [max(bounds(trial)) > 0.0 for trial in study.trials]
    assert sum(broken[16:]) <= 2


def test_trials_that_all_have_an_infinite_constraint_are_of_the_design() -> None:
    study = new_study(n_startup_trials=2, constraints_func=lambda trial: (math.inf,))
    study.optimize(lambda trial: trial.suggest_float("x", 0.0, 1.0), n_trials=6)
    assert len({trial.params["x"] for trial in study.trials}) == 6


@pytest.mark.parametrize("other", [-math.inf, -0.5, 4.0])
def test_a_constraint_of_minus_infinity_is_kept_by_a_finite_distance(other: float) -> None:
    own = RandomPoints()
    limits = lambda trial: (other if trial.number == 1 else -math.inf,)  # noqa: E731
    study = new_study(n_startup_trials=3, strategy=own, sampler=None, constraints_func=limits)
    study.optimize(lambda trial: trial.suggest_float("x", 0.0, 1.0), n_trials=4)
    (request,) = own.requests
    targets = request.model[1].train_targets  # type: ignore[index]
    assert targets.shape == (3,)
    assert (targets[[0, 2]] <= targets[1]).all()
    told = torch.cat(tuple(request.batches))
    assert told.isnan().tolist() == [False, other > 0.0, False]


@pytest.mark.parametrize("strategy", ["thompson", "auto"])
@pytest.mark.parametrize("startup", [0, 1])
def test_the_surrogate_waits_for_the_first_complete_trial(startup: int, strategy: str) -> None:
    study = new_study(n_startup_trials=startup, strategy=strategy)
    study.optimize(
        lambda trial: trial.suggest_float("x", 0.0, 1.0) + (math.inf if trial.number < 2 else 0.0),
        n_trials=5,
    )
    assert study.best_value < 1.0


def test_threads_share_the_queue_without_handing_a_point_out_twice() -> None:
    study = make_study(batch_size=12)
    study.optimize(bowl, n_trials=24, n_jobs=4)
    points = {tuple(trial.params.values()) for trial in study.trials}
    assert len(points) == len(study.trials) == 30


@pytest.mark.parametrize("startup", [3, 20])
def test_a_study_that_goes_on_with_the_same_seed_repeats_nothing(startup: int) -> None:
    own = partial(make_sampler, n_startup_trials=startup, seed=3)
    whole = optuna.create_study(sampler=own())
    whole.optimize(bowl, n_trials=5)
    cut = optuna.create_study(sampler=own())
    cut.optimize(bowl, n_trials=4)
    cut.sampler = own()  # as of a process that goes on with it
    cut.optimize(bowl, n_trials=1)
    asked = [tuple(trial.params.values()) for trial in cut.trials]
    assert len(set(asked)) == 5
    assert asked == [tuple(trial.params.values()) for trial in whole.trials]


def test_the_same_seed_gives_the_same_trials() -> None:
    first, second, third = (make_study(n=6, batch_size=3, seed=seed) for seed in (1, 1, 2))
    assert [trial.params for trial in first.trials] == [trial.params for trial in second.trials]
    assert [trial.params for trial in first.trials] != [trial.params for trial in third.trials]


def test_a_copy_works_and_leaves_the_waiting_points_to_the_original() -> None:
    study = make_study(batch_size=5, n=4)
    copied = deepcopy(study.sampler)
    assert study.sampler._waiting
    assert not copied._waiting
    study.sampler = copied
    study.optimize(bowl, n_trials=2)


def test_parameters_of_some_trials_only_are_sampled_independently() -> None:
    study = make_study(batch_size=2)
    study.optimize(lambda trial: bowl(trial) + trial.suggest_float("late", 0.0, 1.0), n_trials=4)
    assert all(0.0 <= trial.params["late"] <= 1.0 for trial in study.trials[6:])


def test_parameters_of_some_trials_only_are_sampled_near_good_values() -> None:
    def svm(trial: Any) -> float:
        cost = (trial.suggest_float("cost", 0.0, 1.0) - 0.7) ** 2
        if trial.suggest_categorical("kernel", ["rbf", "linear"]) == "linear":
            return cost + 0.5
        return cost + abs(trial.suggest_float("width", 0.0, 1.0) - 0.2)

    far = []
    for seed in range(3):
        study = new_study(n_startup_trials=6, seed=seed, batch_size=10)
        study.optimize(svm, n_trials=40)
        far += [abs(trial.params.get("width", 0.2) - 0.2) for trial in study.trials[20:]]
    assert statistics.mean(far) < 0.2  # uniform ones lie 0.34 away


@pytest.mark.parametrize("directions", [["minimize"], ["minimize", "maximize"]])
def test_a_strategy_that_returns_other_points_than_were_asked_for_is_named(
    directions: list[str],
) -> None:
    class Empty:
        def generate(self, request: Request) -> torch.Tensor:
            return request.bounds[:0]

    study = new_study(directions, n_startup_trials=2, strategy=Empty(), sampler=None)
    with pytest.raises(ValueError, match=r"`Empty` must return .* \(1, 2\).*got shape \(0, 2\)"):
        study.optimize(lambda trial: trade(trial)[: len(directions)], n_trials=3)


def trade(trial: optuna.Trial) -> tuple[float, float]:
    """Return a cost and a gain: x is to be chosen, at y = 0.5."""
    x, y = trial.suggest_float("x", 0.0, 1.0), trial.suggest_float("y", 0.0, 1.0)
    trial.set_constraint("late", x - 0.8)
    return x**2 + (y - 0.5) ** 2, 1.0 - (1.0 - x) ** 2 - (y - 0.5) ** 2


def test_several_objectives_spread_over_their_front_within_the_constraints() -> None:
    study = new_study(BOTH, n_startup_trials=None, batch_size=6, strategy="auto")
    study.optimize(trade, n_trials=18)
    asked = study.trials[6:]
    assert all(trial.params["x"] <= 0.85 for trial in asked)
    # The front is y = 0.5, of which random points lie .25 away
    assert np.median([abs(trial.params["y"] - 0.5) for trial in asked]) < 0.1
    along = sorted(trial.params["x"] for trial in study.best_trials)
    assert along[-1] - along[0] > 0.5


def test_several_objectives_need_a_strategy_that_takes_them() -> None:
    study = new_study(BOTH, n_startup_trials=2, strategy="turbo")
    with pytest.raises(ValueError, match="`strategy` must be one of auto, thompson, log-ei, got"):
        study.optimize(trade, n_trials=3)
    study = new_study(BOTH, n_startup_trials=2, strategy="auto", ask_seconds=1.0)
    with pytest.raises(ValueError, match="`ask_seconds` must be None with several objectives"):
        study.optimize(trade, n_trials=3)


@pytest.mark.parametrize(("num_params", "num_initial"), [(1, 4), (3, 8), (12, 20)])
def test_the_first_trials_are_as_many_as_the_design_of_a_study(
    num_params: int, num_initial: int
) -> None:
    class Counted:
        def generate(self, request: Request) -> torch.Tensor:
            sizes.append(len(request.model.train_targets))
            return torch.rand(1, num_params, dtype=torch.float64, generator=request.generator)

    sizes: list[int] = []
    sampler = ThompsonSampler(seed=0, strategy=Counted())
    study = optuna.create_study(sampler=sampler)
    names = [f"x{k}" for k in range(num_params)]
    study.optimize(
        lambda trial: sum(trial.suggest_float(n, 0.0, 1.0) ** 2 for n in names), num_initial + 1
    )
    assert sizes == [num_initial]
    first = np.array([[trial.params[n] for n in names] for trial in study.trials[1:num_initial]])
    halves = (first > 0.5).sum(0)  # a Sobol sequence fills both
    assert (halves >= 1).all() and (halves < num_initial - 1).all()


def test_trials_asked_together_begin_with_the_design_alone() -> None:
    study = new_study(n_startup_trials=None, batch_size=None)
    trials = [study.ask({"k": IntDistribution(0, 5)}) for _ in range(2)]
    study.tell(trials[0], 1.0)
    study.tell(trials[1], 2.0)
    # Half of four values are there, and two are out: the surrogate takes over
    out = [study.ask({"k": IntDistribution(0, 5)}) for _ in range(4)]
    values = [trial.params["k"] for trial in [trials[0], *out]]
    assert len(set(values)) == 5


def test_a_strategy_of_ones_own_is_told_the_trials_batch_by_batch() -> None:
    own = RandomPoints()
    study = make_study(n=6, strategy=own, sampler=None, batch_size=2)
    values = [-trial.value for trial in study.trials]
    sizes = [len(part) for part in own.requests[-1].batches]
    assert sizes == [3, 2]
    told = torch.cat(tuple(own.requests[-1].batches))
    assert told.argsort().tolist() == torch.tensor(values[:5]).argsort().tolist()


def constrained(trial: Any) -> float:
    """Smallest without its constraint, x ≤ 0.5, at x = 2; with it, 2.25, at x = 0.5."""
    x = trial.suggest_float("x", -2.0, 3.0)
    y = trial.suggest_float("y", 0.0, 1.0)
    trial.set_constraint("x", x - 0.5)
    return (x - 2.0) ** 2 + y


@pytest.mark.parametrize("strategy", BY_STRATEGY)
def test_constraints_that_trials_set_are_kept(strategy: str) -> None:
    best = []
    for seed in range(3):
        study = new_study(n_startup_trials=6, batch_size=3, strategy=strategy, seed=seed)
        study.optimize(constrained, n_trials=15)
        assert sum(trial.constraints["x"] <= 0.05 for trial in study.trials[9:]) >= 4
        best.append(study.best_value)
    assert 2.25 <= statistics.median(best) < 2.6  # the search is a short one


def test_a_function_of_constraints_is_asked_after_each_trial() -> None:
    limits = lambda trial: (trial.params["x"] - 0.5,)  # noqa: E731
    study = new_study(n_startup_trials=4, batch_size=4, constraints_func=limits)
    study.optimize(lambda trial: -trial.suggest_float("x", -2.0, 3.0), n_trials=12)
    assert all(trial.constraints == {"0": trial.params["x"] - 0.5} for trial in study.trials)
    assert -0.5 <= study.best_value < 0.0


def test_an_infeasible_trial_is_no_success() -> None:
    own = RandomPoints()
    study = new_study(n_startup_trials=2, strategy=own, sampler=None)
    study.optimize(constrained, n_trials=4)
    told = torch.cat(tuple(own.requests[-1].batches))
    infeasible = [trial.constraints["x"] > 0.0 for trial in study.trials[:3]]
    assert told.isnan().tolist() == infeasible
    assert len(own.requests[-1].goal["outcome_constraints"]) == 1


def test_the_sampler_chooses_the_size_of_batches_where_the_user_gave_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study = make_study(n=3, batch_size=None)
    sizes = []
    size = ThompsonSampler._size
    monkeypatch.setattr(
        ThompsonSampler, "_size", lambda *given: sizes.append(size(*given)) or sizes[-1]
    )
    space = study.trials[0].distributions
    trials = [study.ask(space) for _ in range(15)]
    assert sizes == [1, 2, 4, 8]
    assert len({tuple(trial.params.values()) for trial in trials}) == 15
    study.ask(space)
    for trial in trials:
        study.tell(trial, 1.0)
    study.ask(space)
    assert sizes == [1, 2, 4, 8, 16, 1]


def test_few_values_get_the_surrogate_that_a_study_would_give_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fits = fits_of(monkeypatch)
    make_study(n=4, strategy="auto")
    make_study(n=4, strategy="thompson")
    assert fits == [(3, True), (3, False)]


TIMED: dict[str, Any] = {"x": FloatDistribution(0.0, 1.0), "k": IntDistribution(0, 200)}


def make_timed_study(seconds: float, params: list[dict[str, Any]], space: dict[str, Any]) -> Any:
    """Return a study of trials that are best where x = 0.2 and k = 60."""
    study = new_study(batch_size=3, ask_seconds=seconds)
    study.add_trials(
        [
            optuna.trial.create_trial(
                params=point,
                distributions=space,
                value=(point.get("x", 0.2) - 0.2) ** 2 + (point["k"] / 200 - 0.3) ** 2,
            )
            for point in params
        ]
    )
    return study


@pytest.mark.parametrize("seconds", [1e-9, 1e9])
def test_without_the_time_for_all_values_those_around_the_best_trials_are_taken(
    seconds: float,
) -> None:
    n = 1000
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, generator=generator, dtype=torch.float64).tolist()
    k = torch.randint(201, (n,), generator=generator).tolist()
    given = [{"x": a, "k": b} for a, b in zip(x, k, strict=True)]
    study = make_timed_study(seconds, given if seconds < 1 else given[:300], TIMED)
    trials = [study.ask(TIMED) for _ in range(3)]
    choices = {study.trials[trial.number].system_attrs["thompson:choice"] for trial in trials}
    (choice,) = choices  # of one draw
    if seconds > 1:
        assert choice.startswith("all 300 values, predicted to take")
        return
    assert choice.startswith("the 250 values around each of up to 1 of the best points")
    assert "all 1000 values" in choice
    for trial in trials:
        assert abs(trial.params["x"] - 0.2) < 0.25
        assert abs(trial.params["k"] - 60) < 50
    assert len({tuple(trial.params.values()) for trial in trials}) == 3


def test_where_the_best_region_has_no_new_point_others_are_found() -> None:
    space = {"k": IntDistribution(0, 1000)}
    given = [{"k": k} for k in range(601)]
    study = make_timed_study(1e-9, given, space)
    found = {study.ask(space).params["k"] for _ in range(3)}
    assert len(found) == 3
    assert min(found) > 600


def test_constraints_have_no_time() -> None:
    message = "`ask_seconds` must be None with several objectives and with constraints, got 3.0"
    with pytest.raises(ValueError, match=message):
        ThompsonSampler(ask_seconds=3.0, constraints_func=lambda _: (0.0,))

    def objective(trial: Any) -> float:
        trial.set_constraint("c", 0.0)
        return bowl(trial)

    study = new_study(n_startup_trials=1, ask_seconds=3.0)
    with pytest.raises(ValueError, match=message):
        study.optimize(objective, n_trials=2)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "`batch_size` must be at least 1, got 0"),
        ({"n_startup_trials": -1}, ValueError, "`n_startup_trials` must be at least 0, got -1"),
        ({"seed": 0.5}, TypeError, "`seed` must be an int"),
        ({"ask_seconds": 0.0}, ValueError, "`ask_seconds` must be"),
        ({"ask_seconds": "1"}, TypeError, "`ask_seconds` must be"),
        ({"solver": "cg"}, TypeError, "`solver` must be a Solver, got 'cg'"),
        (
            {"strategy": "best"},
            ValueError,
            "`strategy` must be one of auto, thompson, turbo, regions, log-ei, got 'best'",
        ),
    ],
)
def test_bad_arguments_are_refused(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ThompsonSampler(**options)
