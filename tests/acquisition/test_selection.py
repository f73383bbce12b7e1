"""Known points are recognised; choices go to the functions in turn, without repetition."""

from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from acquisition import selection
from acquisition.selection import DUPLICATE_DISTANCE, KnownPoints, best_choices, distinct_best

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
    with patch.object(selection, "SCREENED_AT_ONCE", chunk * num_functions):
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
    values = torch.tensor([[3.0, 2.0, 1.0]], dtype=torch.float64)
    for p, expected in [(0, 0.1), (1, 0.2), (2, 0.3)]:
        chosen, found = distinct_best(points, values, UNIT, KnownPoints(points[0, :p], UNIT))
        assert (chosen[0, 0].item(), found.tolist()) == (expected, [True])
    chosen, found = distinct_best(points, values, UNIT, KnownPoints(points[0], UNIT))
    assert (chosen[0, 0].item(), found.tolist()) == (0.1, [False])
