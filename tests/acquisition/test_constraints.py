"""Feasible sets: what they contain, where they move points,
and ascents among constraints against known optima.
"""

import math
from functools import partial
from itertools import repeat
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from acquisition import FeasibleSet, ascend
from tests import problems
from tests.acquisition.functions import Functions, linear
from tests.refusals import assert_refused

UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
WIDE = torch.tensor([[-5.0, 100.0], [10.0, 300.0]], dtype=torch.float64)


def box(d: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor([[0.0], [1.0]], dtype=dtype).repeat(1, d)


def in_disc(x: Tensor) -> Tensor:
    return 1.0 - x.square().sum(-1)


def at_most_one_in_total(d: int) -> tuple[Tensor, Tensor, float]:
    return linear(list(range(d)), [-1.0] * d, -1.0)


def test_containment_is_what_botorch_states() -> None:
    X = WIDE[0] + (WIDE[1] - WIDE[0]) * problems.uniform(2000, 2)
    feasible = FeasibleSet.of(
        WIDE,
        inequality_constraints=[linear([0], [2.0], 1.0), linear([1, 0], [-0.1, 1.0], -20.0)],
        nonlinear_inequality_constraints=[
            lambda x: 250.0 - x[..., 1],
            (lambda x: 40.0 - x[0].square(), True),
        ],
    )
    expected = (
        (2.0 * X[:, 0] >= 1.0)
        & (X[:, 0] - 0.1 * X[:, 1] >= -20.0)
        & (X[:, 1] <= 250.0)
        & (X[:, 0].square() <= 40.0)
    )
    assert 200 < expected.sum() < 1800
    assert torch.equal(feasible.contains(X), expected)
    assert torch.equal(feasible.contains(X.view(20, 100, 2)), expected.view(20, 100))
    assert not feasible.contains(
        torch.tensor([[11.0, 100.0], [1.0, 99.0]], dtype=torch.float64)
    ).any()


def test_repeated_indices_add_up() -> None:
    feasible = FeasibleSet.of(UNIT, inequality_constraints=[linear([0, 0], [1.0, 1.0], 1.0)])
    assert feasible.contains(
        torch.tensor([[0.4, 0.0], [0.6, 0.0]], dtype=torch.float64)
    ).tolist() == [False, True]


@given(st.floats(0.1, 1e6), st.floats(-1e6, 1e6))
def test_numbers_of_python_keep_all_their_digits(coefficient: float, rhs: float) -> None:
    given: list[Any] = [([0], [coefficient], rhs)]
    feasible = FeasibleSet.of(UNIT, inequality_constraints=given, equality_constraints=given)
    for rows, limits in (feasible.inequalities, feasible.equalities):
        assert rows.tolist() == [[coefficient, 0.0]]
        assert limits.tolist() == [rhs]


def test_a_single_constraint_moves_points_to_their_projection() -> None:
    feasible = FeasibleSet.of(UNIT, inequality_constraints=[linear([0, 1], [-1.0, -1.0], -1.0)])
    X = 0.5 + 0.2 * problems.uniform(50, 2)  # above the line, with projections inside the box
    expected = X - 0.5 * (X.sum(1, keepdim=True) - 1.0)
    torch.testing.assert_close(feasible.nearby(X), expected, atol=1e-7, rtol=0.0)


def test_distances_are_measured_in_sides_of_the_box() -> None:
    bounds = torch.tensor([[0.0, 0.0], [1.0, 10.0]], dtype=torch.float64)
    # U + v ≥ 1 on the unit square
    feasible = FeasibleSet.of(bounds, inequality_constraints=[linear([0, 1], [1.0, 0.1], 1.0)])
    moved = feasible.nearby(torch.tensor([[0.3, 3.0]], dtype=torch.float64))
    torch.testing.assert_close(
        moved, torch.tensor([[0.5, 5.0]], dtype=torch.float64), atol=1e-6, rtol=0.0
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    "limits",
    [
        {
            "inequality_constraints": [
                at_most_one_in_total(6),
                linear([0, 1], [1.0, -1.0], 0.0),
                linear([2], [1.0], 0.1),
            ]
        },
        {"equality_constraints": [linear(list(range(6)), [1.0] * 6, 1.0)]},
        {
            "equality_constraints": [
                linear([0, 1, 2], [1.0] * 3, 1.0),
                linear([2, 3], [1.0, -2.0], 0.0),
            ]
        },
        {"nonlinear_inequality_constraints": [lambda x: 0.09 - (x - 0.9).square().sum(-1)]},
        {
            "inequality_constraints": [at_most_one_in_total(6)],
            "nonlinear_inequality_constraints": [
                lambda x: (x[..., 0] + 0.1) * (x[..., 1] + 0.1) - 0.2
            ],
        },
        {
            "equality_constraints": [linear(list(range(6)), [1.0] * 6, 1.0)],
            "fixed_features": {0: 0.3, 5: 0.1},
        },
    ],
    ids=["inequalities", "simplex", "equalities", "ball", "mixed", "fixed"],
)
def test_all_points_of_a_box_are_moved_to_a_feasible_set(
    limits: dict[str, Any], dtype: torch.dtype
) -> None:
    feasible = FeasibleSet.of(box(6, dtype), **limits)
    moved = feasible.nearby(problems.uniform(500, 6, dtype=dtype))
    assert moved.dtype == dtype
    assert feasible.contains(moved).all()
    for index, value in limits.get("fixed_features", {}).items():
        assert (moved[:, index] == torch.tensor(value, dtype=dtype)).all()
    assert torch.equal(feasible.nearby(moved), moved)


def test_sliding_along_bounds_needs_no_more_sweeps_than_dimensions() -> None:
    feasible = FeasibleSet.of(
        box(10), equality_constraints=[linear(list(range(10)), [1.0] * 10, 1.0)]
    )
    X = problems.uniform(200, 10).pow(8.0)  # near corners, from where most coordinates end at 0
    assert feasible.contains(feasible.nearby(X, num_sweeps=10)).all()


def test_infeasible_bits_of_float32_are_not_returned() -> None:
    feasible = FeasibleSet.of(
        WIDE.float(), inequality_constraints=[linear([0, 1], [1.0, 1 / 3], 70.0)]
    )
    moved = feasible.nearby((WIDE[0] + (WIDE[1] - WIDE[0]) * problems.uniform(1000, 2)).float())
    assert (moved.double() @ torch.tensor([1.0, 1 / 3], dtype=torch.float64) >= 70.0).all()


@given(fraction=st.floats(0.05, 3.0), angle=st.floats(0.0, math.tau))
def test_an_advance_never_leaves_the_feasible_set(fraction: float, angle: float) -> None:
    # The complement of a disc: not convex, so that the linearisation alone may end inside.
    feasible = FeasibleSet.of(
        UNIT, nonlinear_inequality_constraints=[lambda x: (x - 0.5).square().sum(-1) - 0.1]
    )
    X = problems.uniform(200, 2)
    X = X[feasible.contains(X)]
    target = X + fraction * torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
    reached = feasible.advance(X, target)
    assert feasible.contains(reached).all()


def test_an_advance_inside_the_set_is_a_full_step() -> None:
    feasible = FeasibleSet.of(UNIT, inequality_constraints=[linear([0, 1], [-1.0, -1.0], -1.9)])
    X = 0.3 * problems.uniform(20, 2)
    target = 0.3 + 0.3 * problems.uniform(20, 2, seed=1)
    assert torch.equal(feasible.advance(X, target), target)


def test_an_advance_ends_at_the_last_feasible_of_its_points_if_the_target_cannot_be_moved() -> None:
    # No gradient
    feasible = FeasibleSet.of(
        UNIT, nonlinear_inequality_constraints=[lambda x: 0.1 - (x[0] - 0.55).sign()]
    )
    X = torch.tensor([[0.2, 0.2]], dtype=torch.float64)
    torch.testing.assert_close(feasible.advance(X, X + 0.6), X + 0.3)


def test_an_advance_without_a_feasible_point_on_the_way_stays() -> None:
    # X₀ = 0: no gradient
    feasible = FeasibleSet.of(
        UNIT, nonlinear_inequality_constraints=[lambda x: 0.5 - (x[..., 0] + 0.0).ceil()]
    )
    X = torch.tensor([[0.0, 0.2]], dtype=torch.float64)
    assert torch.equal(feasible.advance(X, X + 0.3), X)


SIMPLEX = {"equality_constraints": [linear([0, 1, 2], [1.0] * 3, 1.0)]}


@pytest.mark.parametrize(
    ("d", "limits", "slope", "optimum"),
    [
        (2, {"nonlinear_inequality_constraints": [in_disc]}, [3.0, 4.0], [0.6, 0.8]),
        (
            2,
            {
                "inequality_constraints": [
                    linear([0, 1], [-2.0, -1.0], -1.0),
                    linear([0], [-1.0], -0.3),
                ]
            },
            [3.0, 1.0],
            [0.3, 0.4],
        ),
        (3, SIMPLEX, [1.0, 2.0, 3.0], [0.0, 0.0, 1.0]),
        (3, SIMPLEX | {"fixed_features": {2: 0.4}}, [1.0, 2.0, 3.0], [0.0, 0.6, 0.4]),
    ],
    ids=["disc", "vertex", "simplex", "fixed feature"],
)
def test_an_ascent_finds_the_constrained_optimum(
    d: int, limits: dict[str, Any], slope: list[float], optimum: list[float]
) -> None:
    bounds = box(d)
    weights = torch.tensor(slope, dtype=torch.float64)
    feasible = FeasibleSet.of(bounds, **limits)
    starts = feasible.nearby(problems.uniform(4, 5, d))
    functions = Functions(4, lambda X: X @ weights)
    points, values = ascend(
        functions, starts, feasible.bounds, num_steps=200, learning_rate=0.02, feasible_set=feasible
    )
    torch.testing.assert_close(
        points, torch.tensor(optimum, dtype=torch.float64).expand_as(points), atol=5e-3, rtol=0.0
    )
    torch.testing.assert_close(values, points @ weights)
    assert feasible.contains(torch.stack(functions.visited)).all()


@pytest.mark.parametrize(
    ("limits", "optimum"),
    [
        # Projections of (0.5, 0.4)
        ({"inequality_constraints": [linear([0, 1], [-1.0, -2.0], -0.8)]}, [0.4, 0.2]),
        ({"inequality_constraints": [linear([0, 1], [-1.0, -2.0], -1.4)]}, [0.5, 0.4]),
    ],
    ids=["active", "inactive"],
)
def test_an_ascent_rests_where_the_constraint_holds_it(
    limits: dict[str, Any], optimum: list[float]
) -> None:
    # Adam's scaled steps, projected, would drift along the slanted constraint.
    feasible = FeasibleSet.of(UNIT, **limits)
    bowl = Functions(
        1, lambda X: -(X - torch.tensor([0.5, 0.4], dtype=torch.float64)).square().sum(-1)
    )
    points, _ = ascend(
        bowl,
        feasible.nearby(problems.uniform(1, 6, 2)),
        UNIT,
        num_steps=300,
        learning_rate=0.01,
        feasible_set=feasible,
    )
    torch.testing.assert_close(
        points, torch.tensor(optimum, dtype=torch.float64).expand_as(points), atol=2e-3, rtol=0.0
    )


def test_a_smaller_box_keeps_constraints_and_fixed_features() -> None:
    feasible = FeasibleSet.of(
        box(3), fixed_features={0: 0.9}, inequality_constraints=[linear([1], [1.0], 0.3)]
    )
    part = feasible.within(torch.tensor([[0.1] * 3, [0.5] * 3], dtype=torch.float64))
    assert part.bounds.tolist() == [[0.9, 0.1, 0.1], [0.9, 0.5, 0.5]]
    assert part.contains(
        torch.tensor([[0.9, 0.4, 0.4], [0.9, 0.2, 0.4], [0.9, 0.6, 0.4]], dtype=torch.float64)
    ).tolist() == [True, False, False]


def test_candidates_are_the_feasible_ones_of_as_many_draws_as_needed() -> None:
    feasible = FeasibleSet.of(UNIT, inequality_constraints=[linear([0], [-1.0], -0.5)])
    rounds = [problems.uniform(100, 2, seed=seed) for seed in range(20)]
    draws = iter(rounds)
    expected = torch.cat([X[X[:, 0] <= 0.5] for X in rounds])[:100]
    assert torch.equal(feasible.candidates(draws), expected)
    assert len(list(draws)) >= 16


def test_a_rare_set_is_reached_by_moving_candidates() -> None:
    feasible = FeasibleSet.of(
        UNIT, nonlinear_inequality_constraints=[lambda x: 1e-8 - (x - 0.3).square().sum(-1)]
    )
    candidates = feasible.candidates(repeat(problems.uniform(50, 2)))
    assert candidates.shape == (50, 2)
    assert ((candidates - 0.3).norm(dim=1) <= 1.0001e-4).all()


def test_an_empty_set_is_reported() -> None:
    feasible = FeasibleSet.of(UNIT, inequality_constraints=[linear([0, 1], [1.0, 1.0], 2.5)])
    with pytest.raises(
        ValueError,
        match="must leave a feasible point inside `bounds`, got none among 40000 candidates",
    ):
        feasible.candidates(repeat(problems.uniform(50, 2)))


WRONG: tuple[tuple[str, list[Any], type[Exception], str], ...] = (
    ("inequality_constraints", [([0], [1.0])], TypeError, r"`\w+\[0\]` must be a tuple"),
    (
        "inequality_constraints",
        [linear([0], [1.0], 0.0), linear([0, 1], [1.0], 0.0)],
        ValueError,
        r"`inequality_constraints\[1\]`",
    ),
    (
        "inequality_constraints",
        [(torch.tensor([[0, 0]]), torch.ones(1), 0.0)],
        ValueError,
        "Constraints between points",
    ),
    ("inequality_constraints", [linear([0], [math.nan], 0.0)], ValueError, "finite coefficients"),
    ("inequality_constraints", [linear([0], [1.0], math.inf)], ValueError, "one finite rhs"),
    ("equality_constraints", [linear([2], [1.0], 0.0)], ValueError, r"from 0 to 1, got \[2\]"),
    ("equality_constraints", [linear([-1], [1.0], 0.0)], ValueError, r"from 0 to 1, got \[-1\]"),
    ("equality_constraints", [linear([0], [0.0], 0.0)], ValueError, "coefficient that is not 0"),
    ("nonlinear_inequality_constraints", [3.0], TypeError, r"`\w+\[0\]` must be a callable"),
    (
        "nonlinear_inequality_constraints",
        [(in_disc, False)],
        ValueError,
        "must constrain one point",
    ),
    (
        "nonlinear_inequality_constraints",
        [lambda x: x],
        ValueError,
        r"one floating-point number, got torch.float64 of shape \(2,\)",
    ),
    ("nonlinear_inequality_constraints", [lambda x: x[0] > 0], ValueError, "got torch.bool"),
    ("nonlinear_inequality_constraints", [lambda x: x[:, 0]], ValueError, r"map a point \(2,\) to"),
)


@pytest.mark.parametrize(("name", "constraints", "error", "message"), WRONG)
def test_bad_constraints_are_named(
    name: str, constraints: list[Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        FeasibleSet.of(UNIT, **{name: constraints})


def test_bad_fixed_features_are_named() -> None:
    in_unit = partial(FeasibleSet.of, UNIT)
    assert_refused(TypeError, in_unit, fixed_features=[[{0: 0.5}], {"x": 0.0}])
    assert_refused(ValueError, in_unit, fixed_features=[{2: 0.0}, {0: 0.5, 1: 0.5}])
    for value, error in ((1.5, ValueError), ("a", TypeError)):
        with pytest.raises(error, match=r"`fixed_features\[0\]` must"):
            in_unit(fixed_features={0: value})
