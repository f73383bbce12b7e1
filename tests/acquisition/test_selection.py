"""Known points are recognised; maximisers that are taken move by the least; choices go to the
functions in turn, without repetition.
"""

from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from acquisition.constraints import FeasibleSet
from acquisition.pools import best_choices
from acquisition.selection import (
    DUPLICATE_DISTANCE,
    KnownPoints,
    Moves,
    distinct_best,
    grid_neighbours,
)
from surrogates import memory
from tests import problems

UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


class Table:
    """Functions (s, c) of the choices 0 … c − 1, given by their values;
    remembers how many were asked for at once.
    """

    def __init__(self, values: Tensor):
        self.values = values
        self.num_samples = len(values)
        self.sizes: list[int] = []

    def __call__(self, X: Tensor) -> Tensor:
        self.sizes.append(len(X))
        return self.values[:, X[:, 0].long()]

    def each(self, X: Tensor) -> Tensor:
        raise AssertionError("choices are shared")


def choices(c: int) -> Tensor:
    return torch.arange(c, dtype=torch.float64).unsqueeze(1)


@given(
    data=st.data(),
    num_functions=st.integers(1, 5),
    spare=st.integers(0, 6),
    chunk=st.integers(1, 12),
    sign=st.sampled_from([1.0, -1.0]),
)
def test_each_function_takes_its_best_choice_that_is_left(
    data: st.DataObject, num_functions: int, spare: int, chunk: int, sign: float
) -> None:
    c = num_functions + spare
    table = torch.tensor(
        [data.draw(st.permutations(range(c))) for _ in range(num_functions)], dtype=torch.float64
    )
    left = set(range(c))
    expected = []
    for row in table:
        expected.append(max(left, key=lambda j: sign * row[j].item()))
        left.remove(expected[-1])
    functions = Table(table)
    with patch.object(memory, "part_size", return_value=chunk):
        chosen = best_choices(functions, choices(c), sign=sign)
    assert chosen.squeeze(1).tolist() == expected
    assert max(functions.sizes) <= chunk


def test_some_functions_may_choose_alone() -> None:
    table = torch.tensor([[9.0, 0.0, 1.0], [9.0, 1.0, 0.0], [9.0, 2.0, 3.0]])
    assert best_choices(Table(table), choices(3), rows=torch.tensor([1, 2])).squeeze(
        1
    ).tolist() == [0, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_known_points_are_recognised_within_the_distance_in_sides_of_the_box(
    dtype: torch.dtype,
) -> None:
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1000.0]], dtype=dtype)
    known = KnownPoints(torch.tensor([[0.5, 500.0], [0.25, 250.0]], dtype=dtype), bounds)
    steps = DUPLICATE_DISTANCE * torch.tensor(
        [[0.0, 0.0], [0.5, 0.0], [2.0, 0.0], [0.0, 500.0], [0.0, 2000.0]], dtype=dtype
    )
    near = known.near(torch.tensor([0.25, 250.0], dtype=dtype) + steps)
    assert near.tolist() == [True, True, False, True, False]
    assert known.near(torch.zeros(2, 3, 2, dtype=dtype)).shape == (2, 3)


def test_without_points_nothing_is_known() -> None:
    assert KnownPoints(UNIT[:0], UNIT).near(UNIT).tolist() == [False, False]


def test_a_known_point_is_passed_over_for_the_next_best() -> None:
    points = torch.tensor([[[0.1, 0.1], [0.2, 0.2], [0.3, 0.3]]], dtype=torch.float64)
    for p, expected in [(0, 0.1), (1, 0.2), (2, 0.3)]:
        chosen, found = distinct_best(points, UNIT, KnownPoints(points[0, :p], UNIT))
        assert (chosen[0, 0].item(), found.tolist()) == (expected, [True])
    chosen, found = distinct_best(points, UNIT, KnownPoints(points[0], UNIT))
    assert (chosen[0, 0].item(), found.tolist()) == (0.1, [False])


class Planes:
    """Functions x · slope."""

    def __init__(self, slopes: Tensor):
        self.slopes = slopes
        self.num_samples = len(slopes)

    def __call__(self, X: Tensor) -> Tensor:
        return self.slopes @ X.T

    def each(self, X: Tensor) -> Tensor:
        return (X * self.slopes.unsqueeze(1)).sum(-1)


def settle(
    corner: list[float],
    slopes: Tensor,
    *,
    bounds: Tensor = UNIT,
    others: Tensor | None = None,
    known: KnownPoints | None = None,
    sign: float = 1.0,
    **constraints: object,
) -> Tensor:
    """Return the points of functions that all have ``corner`` as their best."""
    x = torch.tensor([corner], dtype=bounds.dtype)
    ranked = (x if others is None else torch.cat([x, others])).repeat(len(slopes), 1, 1)
    feasible = FeasibleSet.of(bounds, **constraints)  # type: ignore[arg-type]
    chosen, found = distinct_best(ranked, bounds, known, Moves(Planes(slopes), feasible, sign))
    assert found.all()
    assert feasible.contains(chosen).all()
    assert torch.pdist(chosen / (bounds[1] - bounds[0])).min() > DUPLICATE_DISTANCE
    return chosen


def test_functions_with_one_maximiser_stay_beside_it() -> None:
    slopes = problems.uniform(300, 2)
    points = settle([1.0, 1.0], slopes)
    assert points[0].tolist() == [1.0, 1.0]
    # Two directions lead inside, in steps of twice the least distance
    assert points.min() >= 1.0 - 150 * 2.1 * DUPLICATE_DISTANCE


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_taken_maximiser_moves_where_its_own_function_loses_least(sign: float) -> None:
    slopes = sign * torch.tensor([[1.0, 2.0], [1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)
    points = settle([1.0, 1.0], slopes, sign=sign)
    assert points[1, 0] < 1.0
    assert points[1, 1] == 1.0
    assert points[2, 0] == 1.0
    assert points[2, 1] < 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moves_are_seen_in_the_points_own_arithmetic(dtype: torch.dtype) -> None:
    bounds = torch.tensor([[-5.0, 1000.0], [10.0, 1000.5]], dtype=dtype)
    points = settle([10.0, 1000.5], torch.ones(9, 2, dtype=dtype), bounds=bounds)
    assert ((bounds[1] - points) / (bounds[1] - bounds[0])).max() < 1e-2


def test_known_points_are_moved_away_from_as_well() -> None:
    known = KnownPoints(UNIT, UNIT)
    points = settle([1.0, 1.0], torch.ones(5, 2, dtype=torch.float64), known=known)
    assert not known.near(points).any()
    assert points.min() > 1.0 - 1e-5


SUM = (torch.tensor([0, 1]), torch.ones(2, dtype=torch.float64), 1.0)
NARROW = [  # a wedge of a few degrees with its tip at (1/2, 1/2)
    (torch.tensor([0, 1]), torch.tensor([-1.0, 0.9], dtype=torch.float64), -0.05),
    (torch.tensor([0, 1]), torch.tensor([0.9, -1.0], dtype=torch.float64), -0.05),
]


@pytest.mark.parametrize(
    ("corner", "constraints"),
    [
        ([1.0, 0.3], {"fixed_features": {0: 1.0}}),
        ([0.3, 0.7], {"equality_constraints": [SUM]}),
        ([0.0, 1.0], {"equality_constraints": [SUM]}),
        ([0.3, 0.7], {"inequality_constraints": [SUM]}),
        ([0.5, 0.5], {"inequality_constraints": NARROW}),
        ([0.6, 0.8], {"nonlinear_inequality_constraints": [lambda x: 1.0 + 1e-9 - (x**2).sum()]}),
        ([0.5, 0.5], {"accepts": lambda X: (X >= 0.5).all(1)}),
        ([0.5, 1.0], {"rounding": lambda X: torch.stack([X[..., 0], X[..., 1].round()], -1)}),
    ],
    ids=["fixed", "line", "end of a line", "edge", "wedge", "disc", "accepts", "mixed"],
)
def test_moves_stay_in_the_feasible_set(corner: list[float], constraints: dict) -> None:
    inside = torch.tensor([[0.2, 0.2]], dtype=torch.float64)
    others = None if constraints.keys() & {"fixed_features", "rounding"} else inside
    if "equality_constraints" in constraints:
        others = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    slopes = problems.uniform(30, 2)
    points = settle(corner, slopes, others=others, **constraints)
    assert (points - points[0]).abs().max() < 1e-3


def test_on_a_grid_nothing_is_moved_and_none_is_found() -> None:
    feasible = FeasibleSet.of(UNIT, rounding=torch.round)
    ranked = torch.tensor([[[1.0, 1.0], [0.0, 0.0]]], dtype=torch.float64).repeat(2, 1, 1)
    moves = Moves(Planes(torch.ones(2, 2, dtype=torch.float64)), feasible)
    chosen, found = distinct_best(ranked, UNIT, None, moves)
    assert chosen.tolist() == [[1.0, 1.0]] * 2
    assert found.tolist() == [True, False]


@pytest.mark.parametrize("levels", [2, 3, 6, 11, 101])
def test_neighbours_on_a_grid_are_the_next_along_each_coordinate(levels: int) -> None:
    def rounding(X: Tensor) -> Tensor:
        return ((levels - 1) * X).round() / (levels - 1)

    feasible = FeasibleSet.of(UNIT, rounding=rounding)
    X = rounding(torch.tensor([[0.5, 0.0]], dtype=torch.float64))
    neighbours = grid_neighbours(X, feasible)
    step = 1.0 / (levels - 1)
    for move in ([step, 0.0], [-step, 0.0], [0.0, step]):
        expected = (X + torch.tensor(move, dtype=torch.float64)).clamp(0.0, 1.0)
        assert torch.isclose(neighbours, expected).all(1).any()


def test_the_neighbours_of_a_choice_are_all_other_choices() -> None:
    def rounding(X: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(X.argmax(-1), 4).to(X)

    box = torch.tensor([[0.0], [1.0]], dtype=torch.float64).repeat(1, 4)
    feasible = FeasibleSet.of(box, rounding=rounding)
    choices = torch.eye(4, dtype=torch.float64)
    for choice in choices:
        found = grid_neighbours(choice[None], feasible)
        assert torch.equal(found, choices.unique(dim=0))
