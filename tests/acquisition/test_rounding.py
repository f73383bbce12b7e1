"""Points that cannot be run as they are: paths are evaluated, and points compared,
where they will be.
"""

import pytest
import torch
from torch import Tensor

from acquisition import ParallelThompsonSampling
from acquisition.constraints import FeasibleSet
from acquisition.multistart import ascend
from surrogates import PathwiseGP
from tests import problems
from tests.acquisition.functions import Functions

SMALL = {"num_candidates": 200, "num_rounds": 4, "num_starts": 4, "num_steps": 40}
UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
GRID = torch.cartesian_prod(
    torch.linspace(0, 1, 6, dtype=torch.float64), torch.linspace(0, 1, 6, dtype=torch.float64)
)


def to_grid(X: Tensor) -> Tensor:
    return (5 * X).round() / 5


def make_bowl() -> PathwiseGP:
    X = problems.uniform(30, 2)
    return PathwiseGP(X, -(X - 0.42).square().sum(1, keepdim=True), num_features=512)


def test_all_points_of_a_grid_are_found_but_no_more() -> None:
    model = make_bowl()
    batch = ParallelThompsonSampling(
        model, UNIT, **SMALL | {"num_candidates": 500}, rounding=to_grid
    ).generate(36)
    assert torch.equal(batch.unique(dim=0), GRID)
    with pytest.raises(
        ValueError, match="`q` must be at most the number of distinct feasible points"
    ):
        ParallelThompsonSampling(
            model, UNIT, **SMALL | {"num_candidates": 500}, rounding=to_grid
        ).generate(37)


def test_small_steps_add_up_until_they_reach_the_next_value() -> None:
    slope = Functions(1, lambda X: X.sum(-1))
    start = torch.zeros(1, 1, 2, dtype=torch.float64)
    options = {"num_steps": 60, "learning_rate": 0.02}
    discrete = FeasibleSet.of(UNIT, rounding=to_grid)
    points, values = ascend(slope, start, UNIT, feasible_set=discrete, **options)
    assert torch.equal(points, torch.ones_like(points))
    assert values.tolist() == [[2.0]]


@pytest.mark.parametrize("rounding", [None, to_grid])
def test_what_is_not_accepted_is_not_proposed(rounding: object) -> None:
    def accepts(X: Tensor) -> Tensor:
        return (X[:, 0] - 0.4).abs() + (X[:, 1] - 0.4).abs() > 0.3

    constraint = (torch.tensor([0, 1]), torch.ones(2, dtype=torch.float64), 0.6)
    for options in ({}, {"inequality_constraints": [constraint]}):
        sampler = ParallelThompsonSampling(
            make_bowl(), UNIT, **SMALL, rounding=rounding, accepts=accepts, **options
        )  # type: ignore[arg-type]
        batch = sampler.generate(6)
        assert accepts(batch).all()
        assert not options or (batch.sum(1) >= 0.6).all()
        assert rounding is None or torch.equal(batch, to_grid(batch))
