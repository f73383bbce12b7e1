"""Thompson batches under constraints, with features fixed, points pending, given choices,
and in a trust region.
"""

import math
from functools import partial
from itertools import cycle
from typing import Any

import pytest
import torch
from botorch.models.transforms.input import Normalize
from torch import Tensor

from acquisition import ParallelThompsonSampling, TrustRegion
from acquisition.candidates import Search, original_inputs
from acquisition.selection import DUPLICATE_DISTANCE
from surrogates import PathwiseGP
from tests import problems
from tests.acquisition.functions import linear
from tests.refusals import assert_refused

SMALL = {
    "num_candidates": 200,
    "num_rounds": 4,
    "num_starts": 4,
    "num_steps": 20,
    "learning_rate": 0.02,
}
UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
WIDE = torch.tensor([[-5.0, 100.0], [10.0, 300.0]], dtype=torch.float64)


def grid(bounds: Tensor, side: int = 60) -> Tensor:
    axes = [
        torch.linspace(*bounds[:, j].tolist(), side, dtype=bounds.dtype)
        for j in range(bounds.shape[1])
    ]
    return torch.cartesian_prod(*axes)


def closest(batch: Tensor, others: Tensor, bounds: Tensor) -> float:
    width = bounds[1] - bounds[0]
    return (
        torch.cdist(batch / width, others / width, compute_mode="donot_use_mm_for_euclid_dist")
        .min()
        .item()
    )


CONSTRAINTS: list[Any] = [
    {"inequality_constraints": [linear([0, 1], [-0.05, -0.004], -0.9)]},
    {"equality_constraints": [linear([0, 1], [0.1, 0.01], 2.0)]},
    {
        "nonlinear_inequality_constraints": [
            lambda x: 1.0 - ((x[0] - 2.0) / 4.0).square() - ((x[1] - 200.0) / 50.0).square()
        ]
    },
    {"fixed_features": {0: 3.3}},
    {"fixed_features": {0: 3.3}, "inequality_constraints": [linear([0, 1], [1.0, -1.0], -180.0)]},
]


def satisfied(
    X: Tensor,
    inequality_constraints=(),
    equality_constraints=(),
    nonlinear_inequality_constraints=(),
    fixed_features=(),
) -> Tensor:
    """Return which of X (..., d) meet BoTorch's constraints, written as BoTorch documents them."""
    ok = torch.ones(X.shape[:-1], dtype=torch.bool)
    for indices, coefficients, rhs in inequality_constraints:
        ok &= (X[..., indices] * coefficients).sum(-1) >= rhs
    for indices, coefficients, rhs in equality_constraints:
        ok &= ((X[..., indices] * coefficients).sum(-1) - rhs).abs() <= 1e-6
    for g in nonlinear_inequality_constraints:
        ok &= torch.stack([g(x) for x in X.reshape(-1, X.shape[-1])]).reshape(X.shape[:-1]) >= 0
    for index, value in dict(fixed_features).items():
        ok &= X[..., index] == value
    return ok


@pytest.mark.parametrize(
    ("constraints", "maximize"),
    [*zip(CONSTRAINTS, cycle([True, False]), strict=False)],
    ids=["linear", "equality", "ellipse", "fixed", "fixed and linear"],
)
def test_a_constrained_batch_is_feasible_repeatable_and_high_on_its_paths(
    make_model, constraints: dict[str, Any], maximize: bool
) -> None:
    model = make_model(WIDE, input_transform=Normalize(2, bounds=WIDE))
    paths = model.paths(6)
    sampler = ParallelThompsonSampling(model, WIDE, **SMALL, maximize=maximize, **constraints)
    batch = sampler.generate(6, paths=paths)
    assert satisfied(batch, **constraints).all()
    assert torch.equal(batch, batch.clamp(WIDE[0], WIDE[1]))
    assert torch.pdist((batch - WIDE[0]) / (WIDE[1] - WIDE[0])).min() > DUPLICATE_DISTANCE
    assert torch.equal(batch, sampler.generate(6, paths=paths))
    rivals = sampler.feasible_set.nearby(grid(WIDE))
    rivals = rivals[satisfied(rivals, **constraints)]
    values = (paths(rivals) if maximize else -paths(rivals)).amax(1)
    reached = (1.0 if maximize else -1.0) * paths.each(batch.unsqueeze(1)).squeeze(1)
    # Outcomes have a standard deviation of 5; paths that agree on a point get different ones
    assert (reached > values - 1.0).all()
    assert (reached > values - 0.02).double().mean() >= 0.5


def test_an_impossible_constraint_is_reported_before_paths_are_drawn(
    monkeypatch, model: PathwiseGP
) -> None:
    sampler = ParallelThompsonSampling(
        model, UNIT, **SMALL, inequality_constraints=[linear([0, 1], [1.0, 1.0], 2.5)]
    )
    monkeypatch.setattr(model, "paths", lambda *args, **kwargs: pytest.fail("drawn"))
    with pytest.raises(
        ValueError, match="The constraints must leave a feasible point inside `bounds`"
    ):
        sampler.generate(2)


def test_pending_points_are_never_proposed_again(model: PathwiseGP) -> None:
    sampler = ParallelThompsonSampling(model, UNIT, **SMALL)
    pending = UNIT[:0]
    paths = model.paths(5)
    for _ in range(6):  # the same paths each time: all that they can offer is soon pending
        batch = sampler.generate(5, paths=paths, X_pending=pending)
        if len(pending):
            assert closest(batch, pending, UNIT) > DUPLICATE_DISTANCE
        assert torch.pdist(batch).min() > DUPLICATE_DISTANCE
        # Outcomes have a standard deviation of 5
        reached = paths.each(batch.unsqueeze(1)).squeeze(1)
        assert (paths(grid(UNIT)).amax(1) - reached).max() < 1.0
        pending = torch.cat([pending, batch])


def test_training_data_are_not_proposed_again(model: PathwiseGP) -> None:
    best = original_inputs(model)[model.train_targets.argmax()]
    sampler = ParallelThompsonSampling(
        model,
        UNIT,
        **SMALL | {"num_candidates": 1, "num_steps": 0},
        uniform_fraction=0.0,
        proposal_std=1e-12,
    )
    sampler.feasible_set = sampler.feasible_set.within(torch.stack([best - 1e-3, best + 1e-3]))
    sampler.proposal_std = torch.full((2,), 1e-4, dtype=torch.float64)
    batch = sampler.generate(2)
    assert closest(batch, original_inputs(model), UNIT) > DUPLICATE_DISTANCE


def test_paths_that_agree_on_a_corner_get_different_points(make_model) -> None:
    X = problems.uniform(40, 2)
    model = PathwiseGP(X, X.sum(1, keepdim=True), num_features=512)
    model.covar_module.lengthscale = 3.0
    model.likelihood.noise = 1e-4
    batch = ParallelThompsonSampling(model, UNIT, **SMALL | {"num_steps": 200}).generate(12)
    assert torch.pdist(batch).min() > DUPLICATE_DISTANCE
    assert (batch == 1.0).all(1).sum() == 1
    assert (batch.sum(1) > 1.7).all()


def test_choices_that_are_known_repeated_or_infeasible_are_passed_over(
    monkeypatch, model: PathwiseGP
) -> None:
    X = torch.cat([problems.uniform(6, 2, seed=3), torch.tensor([[2.0, 0.5]], dtype=torch.float64)])
    X = torch.cat([X, X, original_inputs(model)])
    sampler = ParallelThompsonSampling(model, UNIT, **SMALL)
    batch = sampler.generate(4, choices=X, X_pending=X[:2])
    assert sorted(batch.tolist()) == sorted(X[2:6].tolist())
    monkeypatch.setattr(model, "paths", lambda *args, **kwargs: pytest.fail("drawn"))
    with pytest.raises(
        ValueError, match=r"`choices` must hold q = 5 distinct points .* got 4 of 44"
    ):
        sampler.generate(5, choices=X, X_pending=X[:2])


def test_choices_outside_the_trust_region_are_passed_over(model: PathwiseGP) -> None:
    sampler = ParallelThompsonSampling(
        model, UNIT, **SMALL, trust_region=TrustRegion(2, 3, length=0.4)
    )
    batch = sampler.generate(3, choices=problems.uniform(400, 2, seed=3))
    best = original_inputs(model)[model.train_targets.argmax()]
    assert ((batch - best).abs() <= 0.2 + 1e-12).all()


def test_a_trust_region_holds_the_batch_around_the_best_point(make_model) -> None:
    model = make_model(WIDE)
    model.covar_module.base_kernel.lengthscale = torch.tensor([3.0, 160.0])
    region = TrustRegion(2, 8, length=0.1)
    sampler = ParallelThompsonSampling(model, WIDE, **SMALL, trust_region=region)
    batch = sampler.generate(8)
    best = original_inputs(model)[model.train_targets.argmax()]
    corners = region.bounds(
        best, WIDE, model.covar_module.base_kernel.lengthscale.detach().squeeze(0)
    )
    torch.testing.assert_close(sampler._search(model.paths(1)).feasible.bounds, corners)
    torch.testing.assert_close(batch, batch.clamp(corners[0], corners[1]), rtol=1e-12, atol=0.0)
    lowest = original_inputs(model)[model.train_targets.argmin()]
    down = ParallelThompsonSampling(
        model,
        WIDE,
        **SMALL,
        maximize=False,
        trust_region=TrustRegion(2, 8, length=0.1, maximize=False),
    ).generate(8)
    assert ((down - lowest).abs() <= 0.101 * (WIDE[1] - WIDE[0])).all()


def test_data_outside_the_trust_region_attract_no_candidates(model: PathwiseGP) -> None:
    search: Search = ParallelThompsonSampling(
        model, UNIT, **SMALL, trust_region=TrustRegion(2, 8, length=0.4)
    )._search(model.paths(1))
    X = original_inputs(model)
    inside = search.feasible.contains(X)
    assert 1 < inside.sum() < len(X)
    assert torch.equal(search.X, X[inside])
    assert torch.equal(search.y, model.train_targets[inside])


def test_a_trust_region_is_searched_within_the_constraints(model: PathwiseGP) -> None:
    region = TrustRegion(2, 6, length=0.3)
    X = original_inputs(model)
    highest = X[model.train_targets.argmax()]
    side = 1.0 if highest[0] < highest[1] else -1.0
    constraint = linear([0, 1], [side, -side], 0.0)  # the best data point violates it
    settings = {"inequality_constraints": [constraint], "trust_region": region}
    sampler = ParallelThompsonSampling(model, UNIT, **SMALL, **settings)
    batch = sampler.generate(6)
    allowed = satisfied(X, inequality_constraints=[constraint])
    assert not satisfied(highest, inequality_constraints=[constraint])
    best = X[allowed][model.train_targets[allowed].argmax()]
    assert torch.equal(sampler._search(model.paths(1)).center, best)
    assert satisfied(batch, inequality_constraints=[constraint]).all()
    assert ((batch - best).abs() <= 0.15 + 1e-12).all()


def test_a_trust_region_lies_around_the_best_point_of_the_fixed_task() -> None:
    X = torch.cat([problems.uniform(20, 1), torch.arange(20.0).remainder(2.0)[:, None]], dim=1)
    own = X[:, 1] == 1.0
    y = torch.where(own, -(X[:, 0] - 0.1).square(), 5.0 - (X[:, 0] - 0.9).square())
    model = PathwiseGP(X, y[:, None])
    region = TrustRegion(2, 4, length=0.2)
    settings = {"fixed_features": {1: 1.0}, "trust_region": region}
    search = ParallelThompsonSampling(model, UNIT, **SMALL, **settings)._search(model.paths(1))
    assert torch.equal(search.center, X[own][y[own].argmax()])
    assert (search.X[:, 1] == 1.0).all() and len(search.X) == len(search.y)


def test_fixed_features_leave_the_trust_region_where_they_are(model: PathwiseGP) -> None:
    batch = ParallelThompsonSampling(
        model, UNIT, **SMALL, fixed_features={0: 0.05}, trust_region=TrustRegion(2, 6, length=0.1)
    ).generate(6)
    best = original_inputs(model)[model.train_targets.argmax()]
    assert (batch[:, 0] == 0.05).all()
    assert ((batch[:, 1] - best[1]).abs() <= 0.05 + 1e-12).all()


def test_rounds_of_candidates_stay_in_the_region_and_change_few_coordinates(make_model) -> None:
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64).repeat(1, 60)
    model = make_model(bounds)
    sampler = ParallelThompsonSampling(
        model, bounds, **SMALL, uniform_fraction=1.0, trust_region=TrustRegion(60, 4)
    )
    search: Search = sampler._search(model.paths(1))
    candidates = next(search.rounds(torch.Generator().manual_seed(0)))
    assert search.feasible.contains(candidates).all()
    changed = (candidates != search.center).sum(1)
    assert 15 < changed.double().mean() < 25


def test_bad_options_are_refused_at_once(make_model) -> None:
    sampler = partial(ParallelThompsonSampling, make_model(UNIT), UNIT)
    assert_refused(TypeError, sampler, trust_region=[0.8])
    regions = [TrustRegion(3, 1), TrustRegion(2, 1, maximize=False)]
    assert_refused(ValueError, sampler, trust_region=regions, fixed_features=[{5: 0.1}])


def test_a_list_of_pending_points_is_refused(make_model) -> None:
    sampler = ParallelThompsonSampling(make_model(UNIT), UNIT, **SMALL)
    with pytest.raises(TypeError, match="`X_pending` must be a torch.Tensor, got list"):
        sampler.generate(2, X_pending=[[0.1, 0.1]])


@pytest.mark.parametrize("name", ["X_pending", "choices"])
@pytest.mark.parametrize(
    ("points", "error", "message"),
    [
        (
            torch.zeros(3, 3, dtype=torch.float64),
            ValueError,
            r"must have shape \(number of points, 2\), got \(3, 3\)",
        ),
        (torch.zeros(3, 2), TypeError, "must have the dtype of `bounds`"),
        (torch.full((1, 2), math.nan, dtype=torch.float64), ValueError, "must be finite, got nan"),
    ],
)
def test_bad_points_are_refused_before_paths_are_drawn(
    monkeypatch, name, points, error, message: str, model: PathwiseGP
) -> None:
    monkeypatch.setattr(model, "paths", lambda *args, **kwargs: pytest.fail("drawn"))
    with pytest.raises(error, match=f"`{name}` {message}"):
        ParallelThompsonSampling(model, UNIT, **SMALL).generate(2, **{name: points})


def test_a_spread_that_is_set_later_is_the_spread(model: PathwiseGP) -> None:
    settings = {**SMALL, "seed": 0}
    given = ParallelThompsonSampling(model, UNIT, **settings, proposal_std=0.3)
    later = ParallelThompsonSampling(model, UNIT, **settings)
    later.proposal_std = 0.3
    assert torch.equal(given.generate(2), later.generate(2))
    assert given.outcome_constraints == ()
