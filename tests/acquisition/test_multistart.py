"""Screening against brute force; ascent against PyTorch's Adam,
known maxima.
"""

from unittest.mock import patch

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from acquisition import FeasibleSet, ascend, screen
from surrogates import memory
from tests import problems
from tests.acquisition.functions import Functions, waves

UNIT_SQUARE = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


def bowls(centres: Tensor) -> Functions:
    """Return f_i(x) = −Σ_j j · (x_j − c_ij)², for centres (s, d)."""
    curvature = torch.arange(1, centres.shape[1] + 1, dtype=centres.dtype)
    return Functions(
        len(centres), lambda X: -(curvature * (X - centres.unsqueeze(1)).square()).sum(-1)
    )


@given(
    num_samples=st.integers(1, 5),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    chunk=st.integers(1, 50),
    sign=st.sampled_from([1.0, -1.0]),
)
def test_screening_keeps_each_functions_best_of_every_round(
    num_samples: int, sizes: list[int], chunk: int, sign: float
) -> None:
    functions = waves(num_samples, 2)
    rounds = [problems.uniform(size, 2, seed=i) for i, size in enumerate(sizes)]
    with patch.object(memory, "part_size", return_value=chunk):
        best = screen(functions, rounds, sign=sign)
    assert best.shape == (num_samples, len(rounds), 2)
    for r, candidates in enumerate(rounds):
        for i in range(num_samples):
            values = [
                sign * functions(candidates[c : c + 1])[i].item() for c in range(len(candidates))
            ]
            assert torch.equal(
                best[i, r], candidates[max(range(len(values)), key=values.__getitem__)]
            )


def test_screening_holds_no_more_values_than_stated() -> None:
    functions = waves(3, 2)
    shapes = []
    formula = functions.formula
    functions.formula = lambda X: (shapes.append(X.shape[1]), formula(X))[1]
    with patch.object(memory, "part_size", return_value=10):
        screen(functions, [problems.uniform(25, 2)])
    assert shapes == [10, 10, 5]


def test_screening_draws_what_it_evaluates_together_and_reports_each_round() -> None:
    events: list[str] = []

    def rounds():
        for _ in range(5):
            events.append("drawn")
            yield problems.uniform(4, 2)

    with patch.object(memory, "part_size", return_value=8):
        screen(waves(2, 2), rounds(), after_round=lambda: events.append("done"))
    two = ["drawn", "drawn", "done", "done"]
    assert events == ["drawn", *two, *two, "done"]


def test_ascent_ends_at_the_maximum_inside_the_box() -> None:
    bounds = torch.tensor([[-3.0, 10.0], [2.0, 30.0]], dtype=torch.float64)
    centres = torch.tensor(
        [[0.5, 20.0], [-1.0, 29.0], [9.0, 15.0], [-8.0, -8.0]], dtype=torch.float64
    )
    starts = bounds[0] + (bounds[1] - bounds[0]) * problems.uniform(4, 3, 2)
    functions = bowls(centres)
    points, values = ascend(functions, starts, bounds, num_steps=600, learning_rate=0.01)
    # Separable: the projection
    maximum = torch.clamp(centres, bounds[0], bounds[1]).unsqueeze(1).expand_as(points)
    torch.testing.assert_close(
        (points - maximum) / (bounds[1] - bounds[0]), torch.zeros_like(points), atol=2e-3, rtol=0.0
    )
    assert torch.equal(values, functions.formula(points))


@given(
    box=st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3))
    .map(sorted)
    .filter(lambda box: box[0] + 0.5 < box[1]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@example(box=[-1.7, -0.6], dtype=torch.float64)  # lower + (upper − lower) exceeds upper here
def test_ascent_stays_inside_the_box_to_the_last_bit(box: list[float], dtype: torch.dtype) -> None:
    bounds = torch.tensor(box, dtype=dtype).unsqueeze(1).expand(2, 2)
    uphill = Functions(2, lambda X: torch.tensor([1.0, -1.0], dtype=dtype).unsqueeze(1) * X.sum(-1))
    starts = torch.stack([bounds, bounds])  # every function from both corners
    points, _ = ascend(uphill, starts, bounds, num_steps=3, learning_rate=0.7)
    for X in [points, *uphill.visited]:
        assert torch.equal(X, X.clamp(bounds[0], bounds[1]))
    assert torch.equal(points, torch.stack([bounds[1], bounds[0]]).unsqueeze(1).expand_as(points))


@given(
    num_steps=st.integers(0, 8),
    learning_rate=st.floats(1e-4, 1.0),
    sign=st.sampled_from([1.0, -1.0]),
)
def test_the_best_point_visited_is_returned(
    num_steps: int, learning_rate: float, sign: float
) -> None:
    functions = waves(3, 2)
    starts = problems.uniform(3, 4, 2)
    points, values = ascend(
        functions, starts, UNIT_SQUARE, num_steps=num_steps, learning_rate=learning_rate, sign=sign
    )
    visited = torch.stack([sign * functions.formula(X) for X in functions.visited])
    assert torch.equal(sign * values, visited.amax(0))
    assert torch.equal(functions.formula(points), values)
    assert (sign * values >= sign * functions.formula(starts)).all()


@pytest.mark.parametrize("centre", [0.6, 0.95], ids=["interior", "overshooting a bound"])
def test_the_steps_are_those_of_adam_projected_to_the_box(centre: float) -> None:
    bounds = torch.tensor([[-2.0, 0.0], [5.0, 100.0]], dtype=torch.float64)
    lower = bounds[0]
    width = bounds[1] - bounds[0]
    functions = bowls(lower + width * (centre + 0.04 * problems.uniform(3, 2, seed=4)))
    starts = lower + width * (0.4 + 0.2 * problems.uniform(3, 5, 2))
    ascend(functions, starts, bounds, num_steps=30, learning_rate=0.05)

    unit = ((starts - lower) / width).requires_grad_()
    adam = torch.optim.Adam([unit], lr=0.05, maximize=True)
    for X in functions.visited:
        torch.testing.assert_close(X, lower + width * unit.detach(), rtol=1e-10, atol=1e-10)
        adam.zero_grad()
        functions.formula(lower + width * unit).sum().backward()
        adam.step()
        unit.data.clamp_(0.0, 1.0)


def test_an_ascent_that_ends_where_nothing_is_accepted_keeps_what_an_earlier_stage_has_found() -> (
    None
):
    limit = 0.5
    feasible = FeasibleSet.of(UNIT_SQUARE, accepts=lambda X: X[:, 0] <= limit)
    starts = 0.1 * problems.uniform(2, 10, 2)
    slope = Functions(2, lambda X: X[..., 0])
    points, values = ascend(
        slope,
        starts,
        UNIT_SQUARE,
        num_steps=100,
        learning_rate=0.012,
        prune=True,
        feasible_set=feasible,
    )
    assert slope.visited[-1][..., 0].amin() > limit
    assert (points[..., 0] <= limit).all()
    assert torch.equal(values, points[..., 0])
    assert (values > starts[..., 0].amax() + 0.2).all()
