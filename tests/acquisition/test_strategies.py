"""What every strategy promises, as one suite; a further strategy is a line in ``STRATEGY``. And
what is special about each.
"""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from gpytorch.kernels import MaternKernel, ScaleKernel
from torch import Tensor

from acquisition import (
    STRATEGIES,
    LogEIStrategy,
    ParallelThompsonSampling,
    Request,
    SeveralRegionsStrategy,
    Strategy,
    ThompsonStrategy,
    TrustRegion,
    TrustRegionStrategy,
)
from acquisition.candidates import original_inputs
from acquisition.selection import DUPLICATE_DISTANCE
from acquisition.strategies import AutoStrategy, default_sampler, make_strategy
from surrogates import PathwiseGP, gaussian_likelihood
from tests import problems
from tests.acquisition.random_points import RandomPoints

QUICK = partial(
    ParallelThompsonSampling, num_candidates=100, num_rounds=3, num_starts=2, num_steps=10
)
STRATEGY = [
    *(pytest.param(make_strategy(name, QUICK), id=name) for name in STRATEGIES),
    pytest.param(RandomPoints(), id="from outside"),
]
UNIT = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
WIDE = torch.tensor([[-5.0, 100.0, 0.0], [10.0, 300.0, 1e-3]], dtype=torch.float64)
ROW = torch.tensor([0, 1]), torch.tensor([1.0, 1.0], dtype=torch.float64)
GRID = torch.cartesian_prod(*[torch.linspace(0, 1, 5, dtype=torch.float64)] * 3)
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "equality": {"equality_constraints": [(*ROW, 0.7)]},
    "nonlinear": {"nonlinear_inequality_constraints": [lambda x: 0.3 - (x - 0.2).square().sum()]},
    "accepts": {"accepts": lambda X: X[:, 0] > X[:, 1]},
    "several": {
        "inequality_constraints": [(*ROW, 1.0)],
        "fixed_features": {2: 0.5},
        "rounding": lambda X: torch.cat([(4 * X[..., :1]).round() / 4, X[..., 1:]], dim=-1),
    },
}


def make_request(
    make_model: Any, bounds: Tensor = UNIT, *, seed: int = 0, **options: Any
) -> Request:
    """Return a request for 6 points, after 30 and a batch of which one evaluation failed."""
    settings = {"batches": (torch.arange(30.0), torch.tensor([31.0, torch.nan, 2.0])), **options}
    generator = problems.seeded(seed)
    return Request(make_model(bounds), 6, bounds, generator, **settings)


def best_of(request: Request) -> Tensor:
    return original_inputs(request.model)[request.model.train_targets.argmax()]


def distance(X: Tensor, others: Tensor, bounds: Tensor) -> Tensor:
    """Return the distances (p, r) between two sets of points, in units of the box's sides."""
    width = bounds[1] - bounds[0]
    return torch.cdist(X / width, others / width, compute_mode="donot_use_mm_for_euclid_dist")


@pytest.mark.parametrize("strategy", STRATEGY)
class TestEveryStrategy:
    def test_a_batch_has_distinct_new_points_of_the_box(
        self, strategy: Strategy, make_model: Any
    ) -> None:
        assert isinstance(strategy, Strategy)
        for bounds in (UNIT, WIDE, UNIT.float()):
            request = make_request(make_model, bounds)
            batch = strategy.generate(request)
            assert batch.shape == (6, 3)
            assert batch.dtype == bounds.dtype
            assert not batch.requires_grad
            assert torch.equal(batch, batch.clamp(bounds[0], bounds[1]))
            assert distance(batch, batch, bounds).fill_diagonal_(1.0).min() > DUPLICATE_DISTANCE
            X = original_inputs(request.model)  # type: ignore[arg-type]
            assert distance(batch, X, bounds).min() > DUPLICATE_DISTANCE

    def test_the_generator_alone_decides_the_batch(
        self, strategy: Strategy, make_model: Any
    ) -> None:
        before = torch.get_rng_state()
        batch = strategy.generate(make_request(make_model, seed=1))
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(1)
        assert torch.equal(strategy.generate(make_request(make_model, seed=1)), batch)
        assert not torch.equal(strategy.generate(make_request(make_model, seed=2)), batch)

    def test_points_are_asked_for_where_evaluations_succeed(
        self, strategy: Strategy, make_model: Any
    ) -> None:
        if isinstance(strategy, RandomPoints):
            pytest.skip("Random points lie anywhere.")
        probability = lambda X: (40.0 * X[..., 0] - 14.0).sigmoid()  # noqa: E731
        for choices in (None, GRID):
            request = make_request(make_model, choices=choices)
            everywhere = strategy.generate(request)
            careful = strategy.generate(
                replace(make_request(make_model, choices=choices), success=probability)
            )
            assert (everywhere[:, 0] < 0.3).any()
            assert (careful[:, 0] > 0.3).all()

    def test_watching_changes_nothing(self, strategy: Strategy, make_model: Any) -> None:
        seen: list[Any] = []
        watched = strategy.generate(make_request(make_model, callback=seen.append))
        assert torch.equal(watched, strategy.generate(make_request(make_model)))
        assert all(0 < moment.done <= moment.total and moment.stage for moment in seen)

    def test_choices_are_what_is_chosen_from_without_those_that_are_pending(
        self, strategy: Strategy, make_model: Any
    ) -> None:
        request = make_request(make_model, choices=GRID)
        first = strategy.generate(request)
        second = strategy.generate(replace(request, X_pending=first))
        for batch in (first, second):
            assert len(torch.unique(batch, dim=0)) == 6
            assert (distance(batch, GRID, UNIT).amin(1) == 0).all()
        assert distance(first, second, UNIT).min() > 0.1

    def test_no_more_points_are_invented_than_there_are_to_choose_from(
        self, strategy: Strategy, make_model: Any
    ) -> None:
        request = make_request(make_model, choices=GRID[:6])
        assert torch.equal(strategy.generate(request).unique(dim=0), GRID[:6])
        seen = original_inputs(request.model)[:4]  # type: ignore[arg-type]
        for fewer in (
            replace(request, X_pending=GRID[5:7]),
            replace(request, choices=torch.cat([GRID[:5], seen])),
            replace(request, constraints={"fixed_features": {2: 0.0}}),
        ):
            with pytest.raises(ValueError, match="`choices` must|`q` must"):
                strategy.generate(fewer)

    def test_constraints_are_met(self, strategy: Strategy, make_model: Any) -> None:
        for name, constraints in CONSTRAINTS.items():
            request = make_request(make_model, constraints=constraints)
            batch = strategy.generate(request)
            assert request.feasible_set.contains(batch).all(), name
        assert torch.equal(request.feasible_set.rounded(batch), batch)
        assert len(torch.unique(batch, dim=0)) == 6

    def test_constraints_that_no_point_meets_are_an_error(
        self, strategy: Strategy, make_model: Any
    ) -> None:
        request = make_request(make_model, constraints={"inequality_constraints": [(*ROW, 3.0)]})
        with pytest.raises(ValueError, match="The constraints must leave a feasible point"):
            strategy.generate(request)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("maximize", [True, False])
def test_points_are_better_than_random_ones_in_either_direction(
    make_model: Any, name: str, maximize: bool
) -> None:
    request = make_request(make_model, goal={"maximize": maximize}, batches=())
    batch = make_strategy(name, QUICK).generate(request)
    at_random = RandomPoints().generate(replace(request, q=200))
    sign = 1.0 if maximize else -1.0
    values = sign * request.model.posterior(torch.cat([batch, at_random])).mean.squeeze(1)
    assert values[:6].mean() > values[6:].quantile(0.9)


def regions_of(make_model: Any, batches: list[list[float]], **goal: bool) -> TrustRegion:
    """Return the region in which the batch after ``batches`` is sought."""
    regions: list[TrustRegion] = []

    def sampler(*args: Any, trust_region: TrustRegion, **options: Any) -> ParallelThompsonSampling:
        regions.append(trust_region)
        return QUICK(*args, trust_region=trust_region, **options)

    values = [torch.tensor(values, dtype=torch.float64) for values in batches]
    request = make_request(make_model, batches=values, goal=goal)
    TrustRegionStrategy(sampler).generate(request)
    (region,) = regions
    return region


@pytest.mark.parametrize(
    ("batches", "length"),
    [
        ([], 0.8),
        ([[0.0, 1.0]], 0.8),
        ([[0.0], [1.0], [2.0], [3.0]], 1.6),
        ([[0.0], [-1.0]], 0.8),
        ([[0.0], [-1.0], [torch.nan], [-1.0]], 0.4),
        ([[0.0], *[[-1.0]] * 3, [1.0], [2.0], *[[0.0]] * 3, [3.0]], 0.2),
        ([[0.0], *[[-1.0]] * 18], 0.8 / 64),
        ([[0.0], *[[-1.0]] * 21], 0.8),  # too small: from the start
    ],
)
def test_the_region_grows_and_shrinks_by_the_batches_so_far(
    make_model: Any, batches: list[list[float]], length: float
) -> None:
    assert regions_of(make_model, batches).length == pytest.approx(length)
    mirrored = [[-value for value in values] for values in batches]
    down = regions_of(make_model, mirrored, maximize=False)
    assert (down.length, down.maximize) == (pytest.approx(length), False)


def test_the_batch_lies_in_the_region_unless_that_has_too_few_points(make_model: Any) -> None:
    batches = [torch.tensor([5.0]), *[torch.tensor([1.0])] * 12]  # length 0.05
    strategy = TrustRegionStrategy(QUICK)
    request = make_request(make_model, batches=batches)
    best = best_of(request)
    assert (strategy.generate(request) - best).abs().max() <= 0.025 + 1e-12
    on_grid = replace(request, constraints={"rounding": lambda X: (4 * X).round() / 4})
    assert len(strategy.generate(on_grid).unique(dim=0)) == 6


def test_several_regions_share_a_batch_around_the_best_point(make_model: Any) -> None:
    request = make_request(make_model)
    best = best_of(request)
    batch = SeveralRegionsStrategy(QUICK, (0.4, 0.02)).generate(replace(request, q=8))
    # The first three points of the whole box, three of the larger region, two of the smaller one
    distances = (batch - best).abs().amax(1)
    assert (distances[3:6] <= 0.2 + 1e-9).all()
    assert (distances[6:] <= 0.01 + 1e-9).all()
    whole = ThompsonStrategy(QUICK).generate(replace(make_request(make_model), q=3))
    assert torch.equal(batch[:3], whole)


@pytest.mark.parametrize(
    ("strategy", "q", "numbers"),
    [
        (SeveralRegionsStrategy(QUICK), 6, [[0, 1], [2, 3], [4], [5]]),
        (AutoStrategy(QUICK), 12, [[4, 5, 6, 7, 8, 9, 10, 11]]),
    ],
)
@pytest.mark.parametrize("of_several", [False, True])
def test_parts_of_a_batch_are_by_their_own_of_the_paths_that_are_given(
    make_model: Any,
    spy: Any,
    strategy: Strategy,
    q: int,
    numbers: list[list[int]],
    of_several: bool,
) -> None:
    generate = spy(ThompsonStrategy, "generate")
    request = make_request(make_model)
    paths = request.model.paths(q, generator=problems.seeded(4))
    both: Any = [paths] if of_several else paths
    assert len(strategy.generate(replace(request, q=q, paths=both)).unique(dim=0)) == q
    for call, own in zip(generate.call_args_list, numbers, strict=True):
        part = call.args[1].paths
        weights = part[0].weights if of_several else part.weights
        torch.testing.assert_close(weights, paths.weights[:, own])


def test_thompson_takes_the_paths_that_it_is_given(make_model: Any) -> None:
    request = make_request(make_model)
    paths = request.model.paths(6, generator=problems.seeded(4))
    batch = ThompsonStrategy(QUICK).generate(replace(request, paths=paths))
    seed = int(torch.randint(2**62, (), generator=problems.seeded()))
    expected = QUICK(request.model, UNIT, seed=seed).generate(6, paths=paths)
    assert torch.equal(batch, expected)


def test_a_request_that_no_strategy_can_answer_is_refused(make_model: Any) -> None:
    right = make_request(make_model)
    nan, inf = (torch.full((1, 3), value, dtype=torch.float64) for value in (math.nan, math.inf))
    narrow = torch.stack([UNIT[0], torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)])
    infinite = torch.cat([UNIT[:1], inf])
    bounds = [UNIT.flip(0), infinite, narrow, UNIT[:, :2], [[0, 1]] * 3]
    for name, values in {
        "q": [0, -1, 2.0, True],
        "bounds": [*bounds, UNIT.float()],
        "X_pending": [UNIT[:, :2], nan, UNIT[0], [[0.5] * 3]],
        "choices": [UNIT[:, :2], inf],
    }.items():
        for value in values:
            with pytest.raises((TypeError, ValueError), match=f"`{name}` must"):
                replace(right, **{name: value})


@pytest.mark.parametrize("name", ["auto", "thompson"])
def test_choices_of_booleans_are_taken_as_numbers(make_model: Any, name: str) -> None:
    corners = torch.cartesian_prod(*[torch.tensor([False, True])] * 3)
    found = make_strategy(name, QUICK).generate(make_request(make_model, choices=corners))
    numbers = make_request(make_model, choices=corners.double())
    assert torch.equal(found, make_strategy(name, QUICK).generate(numbers))


@pytest.mark.parametrize(
    ("q", "num_values", "reason"),
    [
        (8, 1000, "log-ei: 8 among 1000, at most 8 points and 1000 values"),
        (9, 30, "4 by log-ei, 5 by thompson: 9 among 30, at most 50 points and 1000 values"),
        (51, 30, "tempered thompson: 51 among 30, more than 50 points"),
        (1, 1001, "thompson: 1 among 1001, more than 1000 values"),
    ],
)
def test_auto_says_how_it_chooses(q: int, num_values: int, reason: str) -> None:
    X = torch.rand(num_values, 3, dtype=torch.float64)
    Y = X.sum(1, keepdim=True)
    model = PathwiseGP(X, Y, torch.full_like(Y, 1e-4))
    assert AutoStrategy().reason(Request(model, q, UNIT, torch.Generator())) == reason
    assert AutoStrategy.is_for_few(q, num_values) == (num_values <= 1000)


def test_auto_says_that_paths_of_several_outcomes_are_not_tempered(make_model: Any) -> None:
    request = replace(make_request(make_model), q=51)
    several = replace(request, model=[request.model, request.model])
    assert AutoStrategy().reason(several) == "thompson: 51 among 30, more than 50 points"


@pytest.mark.parametrize("given", ["paths", "a list of paths", "none"])
def test_a_large_batch_is_by_tempered_paths(make_model: Any, given: str) -> None:
    request = replace(make_request(make_model), q=60)
    generator = problems.seeded()  # as that of the request
    paths = request.model.paths(60, generator=generator)
    if given != "none":
        asked: Any = [paths] if given == "a list of paths" else paths
        request = replace(request, paths=asked)
        generator = problems.seeded()
    shares = [min(i / 30, 1.0) for i in range(1, 61)]
    tempered = paths.tempered(torch.tensor(shares, dtype=torch.float64))
    seed = int(torch.randint(2**62, (), generator=generator))
    expected = QUICK(request.model, UNIT, seed=seed).generate(60, paths=tempered)
    assert torch.equal(AutoStrategy(QUICK).generate(request), expected)


def test_a_large_batch_finds_the_bottom_of_a_rippled_bowl_in_many_dimensions() -> None:
    """Maximisers of paths lie anywhere in the box: no better than those of any other points."""
    generator = problems.seeded()
    X = torch.rand(200, 20, generator=generator, dtype=torch.float64)

    def rippled(X: Tensor) -> Tensor:
        x = 10.24 * (X - 0.5)
        return -(x.square() - 10.0 * torch.cos(math.tau * x)).sum(-1, keepdim=True)

    kernel = ScaleKernel(MaternKernel(nu=2.5))
    kernel.base_kernel.lengthscale = 1.0
    kernel.outputscale = 1.0
    y = rippled(X)
    model = PathwiseGP(
        X, y, likelihood=gaussian_likelihood(3e-3), covar_module=kernel, num_features=512
    )
    sampler = partial(
        ParallelThompsonSampling, num_candidates=200, num_rounds=8, num_starts=8, num_steps=40
    )
    box = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, 20)
    batches = {
        name: rippled(make_strategy(name, sampler).generate(Request(model, 60, box, generator)))
        for name in ("auto", "thompson")
    }
    assert batches["thompson"].max() < y.max()
    assert batches["auto"].max() > y.max() + 0.5 * y.std()
    # A quarter of them deviates from the mean by less than half of what their paths do
    assert batches["auto"][:15].median() > batches["thompson"].quantile(0.9)


def test_auto_begins_a_batch_of_some_points_by_improvement_and_ends_it_by_paths(
    make_model: Any,
) -> None:
    batch = AutoStrategy(QUICK).generate(replace(make_request(make_model), q=9))
    request = make_request(make_model)
    first = LogEIStrategy().generate(replace(request, q=4))
    assert torch.equal(batch[:4], first)
    rest = ThompsonStrategy(QUICK).generate(replace(request, q=5, X_pending=first))
    assert torch.equal(batch[4:], rest)


@pytest.mark.parametrize(
    ("q", "n", "num_models", "num_starts"),
    [
        (20, 100, 1, 120),
        (500, 5000, 1, 120),
        (500, 20_000, 1, 50),
        (500, 10_000, 2, 50),  # the rows of all models count
        (500, 100_000, 1, 10),
        (4, 100_000, 1, 120),
    ],
)
def test_many_paths_among_many_rows_ascend_from_fewer_starts(
    q: int, n: int, num_models: int, num_starts: int
) -> None:
    X = problems.uniform(n, 2, dtype=torch.float32)
    model = PathwiseGP(X, (X[:, :1] - X[:, :1].mean()) / X[:, :1].std(), outcome_transform=None)
    several = {} if num_models == 1 else {"objective": lambda Y: Y[..., 0]}
    models = model if num_models == 1 else [model] * num_models
    sampler = default_sampler(q, models, UNIT[:, :2].float(), seed=3, **several)
    assert (sampler.num_starts, sampler.num_rounds, sampler.seed) == (num_starts, num_starts, 3)
    assert 29_000 < sampler.num_rounds * sampler.num_candidates <= 30_000
    assert sampler.prune


def test_a_strategy_is_made_by_its_name_or_taken_as_it_is() -> None:
    assert make_strategy("thompson") == ThompsonStrategy()
    assert make_strategy("turbo", QUICK) == TrustRegionStrategy(QUICK)
    own = RandomPoints()
    assert make_strategy(own) is own


@pytest.mark.parametrize(
    ("strategy", "sampler", "error", "message"),
    [
        (
            "thomson",
            None,
            ValueError,
            "one of auto, thompson, turbo, regions, log-ei, got 'thomson'. Did you mean",
        ),
        (RandomPoints, None, TypeError, "with a method `generate.*, got <class .*RandomPoints"),
        (None, None, TypeError, "Names are auto, thompson, turbo, regions, log-ei"),
        ("auto", "x", TypeError, "`sampler` must be a function .*, got 'x'. Try `partial"),
        (RandomPoints(), QUICK, ValueError, "`sampler` must be None with a strategy that is made"),
    ],
)
def test_what_is_no_strategy_is_refused(
    strategy: Any, sampler: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_strategy(strategy, sampler)


@pytest.mark.parametrize(
    ("kind", "name", "value", "message"),
    [
        (AutoStrategy, "few_points", 3, "`num_improving` must be at most `few_points`, got 4"),
        (AutoStrategy, "some_points", 0, "`some_points` must be at least 1, got 0"),
        (TrustRegionStrategy, "least_tolerance", 0, "`least_tolerance` must be at least 1"),
        (LogEIStrategy, "num_leaders", 0, "`num_leaders` must be at least 1, got 0"),
        (LogEIStrategy, "most_pending", -1, "`most_pending` must be at least 1, got -1"),
    ],
)
def test_sizes_of_strategies_are_checked_when_they_are_made(
    kind: Any, name: str, value: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**{name: value})
