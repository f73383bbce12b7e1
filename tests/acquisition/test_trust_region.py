"""A trust region follows the rules of TuRBO: it grows with success, shrinks with failure,
and is stretched by the lengthscales.
"""

import math
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from acquisition import TrustRegion, propose
from tests.refusals import assert_refused

BETTER = torch.tensor([1e6, -1e6])
WORSE = torch.tensor([-1e6, -1e6])
UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


def region(**settings: Any) -> TrustRegion:
    return TrustRegion(**{"dim": 2, "batch_size": 4, "best_value": 0.0} | settings)


@pytest.mark.parametrize(
    ("d", "q", "expected"),
    [(10, 1, 10), (10, 5, 2), (10, 4, 3), (2, 1, 4), (2, 4, 1), (60, 1000, 1)],
)
def test_about_d_points_and_at_least_four_fail_before_the_region_shrinks(
    d: int, q: int, expected: int
) -> None:
    assert TrustRegion(d, q).failure_tolerance == expected


def test_numbers_of_numpy_are_kept_as_plain_ones() -> None:
    state = region(dim=np.int64(2), batch_size=np.int8(4), length=np.float32(0.5))
    assert state == region(length=0.5)
    assert [type(value) for value in (state.dim, state.batch_size, state.length)] == [
        int,
        int,
        float,
    ]
    assert replace(state, failure_tolerance=None) == state


def test_three_successes_in_a_row_double_the_length() -> None:
    state = region(length=0.4)
    lengths = []
    for value in range(1, 8):
        state = state.update(torch.tensor([float(value), -1.0]))
        lengths.append(state.length)
        assert state.best_value == value
    assert lengths == [0.4, 0.4, 0.8, 0.8, 0.8, 1.6, 1.6]
    for value in range(8, 11):
        state = state.update(torch.tensor([float(value)]))
    assert state.length == 1.6


def test_failures_in_a_row_halve_the_length_until_the_search_is_over() -> None:
    state = region(failure_tolerance=2)
    lengths = []
    while not state.restart:
        state = state.update(WORSE)
        lengths.append(state.length)
    assert lengths == [0.8 * 0.5 ** (i // 2) for i in range(1, len(lengths) + 1)]
    assert len(lengths) == 14  # 0.8 / 2⁷ < 2⁻⁷
    assert state.best_value == 0.0


def test_a_success_forgets_failures_and_a_failure_successes() -> None:
    state = region(failure_tolerance=3)
    better = iter(range(1, 10))
    for outcome in "ssffssffs":
        state = state.update(torch.tensor([float(next(better)) if outcome == "s" else -1.0]))
        assert state.length == 0.8
    assert (state.num_successes, state.num_failures) == (1, 0)


def test_an_equal_value_is_no_success() -> None:
    assert region(failure_tolerance=2).update(torch.tensor([0.0])).num_failures == 1


def test_the_first_values_are_neither_success_nor_failure() -> None:
    state = region(best_value=None).update(torch.tensor([[3.0], [-2.0]]))
    assert state == region(best_value=3.0)


def test_smaller_is_better_on_request() -> None:
    state = region(maximize=False).update(torch.tensor([-1.0, 5.0]))
    assert (state.best_value, state.num_successes) == (-1.0, 1)


def test_failed_evaluations_are_passed_over() -> None:
    assert region().update(torch.tensor([math.nan, 1.0])).num_successes == 1
    assert region(failure_tolerance=2).update(torch.tensor([math.nan, math.nan])).num_failures == 1
    assert region(best_value=None).update(torch.tensor([math.nan])).best_value is None


def test_a_region_is_not_changed_in_place() -> None:
    state = region()
    before = replace(state)
    assert state.update(BETTER) != state
    assert state == before
    with pytest.raises(FrozenInstanceError):
        state.length = 0.1  # type: ignore[misc]


@given(
    length=st.floats(0.01, 1.0),
    lengthscale=st.lists(st.floats(0.1, 10.0), min_size=3, max_size=3),
    widths=st.lists(st.floats(0.1, 1e3), min_size=3, max_size=3),
)
def test_sides_follow_the_lengthscales_at_a_constant_volume(
    length: float, lengthscale: list[float], widths: list[float]
) -> None:
    width = torch.tensor(widths, dtype=torch.float64)
    scale = torch.tensor(lengthscale, dtype=torch.float64)
    box = torch.stack([-1e6 * width, 1e6 * width])  # far away: nothing is cut off
    sides = TrustRegion(3, 1, length=length).bounds(
        torch.zeros(3, dtype=torch.float64), box, scale
    ).diff(dim=0).squeeze(0) / (2e6 * width)
    whole = torch.minimum(sides, torch.ones(3))
    expected = length * (scale / width) / (scale / width).prod() ** (1 / 3)
    torch.testing.assert_close(whole, expected.clamp_max(1.0))
    torch.testing.assert_close(expected.prod(), torch.tensor(length**3, dtype=torch.float64))


def test_the_region_is_cut_off_at_the_box() -> None:
    box = torch.tensor([[0.0, 10.0], [1.0, 20.0]], dtype=torch.float64)
    corners = region(length=0.4).bounds(torch.tensor([0.1, 15.0], dtype=torch.float64), box)
    torch.testing.assert_close(
        corners, torch.tensor([[0.0, 13.0], [0.3, 17.0]], dtype=torch.float64)
    )


def proposed(d: int, num: int, uniform_fraction: float, center: Tensor | None) -> Tensor:
    box = torch.tensor([[0.0], [1.0]], dtype=torch.float64).repeat(1, d)
    X = torch.full((1, d), 0.25, dtype=torch.float64)
    std = torch.full((d,), 0.01, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    return propose(
        X,
        torch.ones(1),
        box,
        num,
        uniform_fraction=uniform_fraction,
        proposal_std=std,
        center=center,
        generator=generator,
    )


@pytest.mark.parametrize(("uniform_fraction", "base"), [(1.0, 0.5), (0.0, 0.25)])
def test_candidates_of_a_region_change_about_twenty_coordinates_and_at_least_one(
    uniform_fraction: float, base: float
) -> None:
    d = 200
    changed = (
        proposed(d, 2000, uniform_fraction, torch.full((d,), 0.5, dtype=torch.float64)) != base
    )
    counts = changed.sum(1)
    assert counts.min() >= 1
    expected = d * (1.0 - (1.0 - 20 / d) * (1.0 - 1 / d))
    assert counts.double().mean().item() == pytest.approx(expected, abs=4 * math.sqrt(20 / 2000))
    assert changed.any(0).all()


def test_up_to_twenty_dimensions_candidates_change_everywhere() -> None:
    center = torch.full((20,), 0.5, dtype=torch.float64)
    assert torch.equal(proposed(20, 50, 0.5, center), proposed(20, 50, 0.5, None))


def test_bad_settings_are_named() -> None:
    assert_refused(TypeError, region, batch_size=[2.0])
    assert_refused(
        ValueError,
        region,
        dim=[0],
        length=[2.0, -1.0],
        success_tolerance=[0],
        failure_tolerance=[0],
        num_failures=[-1],
        best_value=[math.nan],
    )


@pytest.mark.parametrize("values", [torch.zeros(0), torch.zeros(2, 2), torch.zeros(2, 1, 1)])
def test_values_must_be_a_column(values: Tensor) -> None:
    with pytest.raises(ValueError, match=r"`Y_new` must have shape \(q,\) or \(q, 1\)"):
        region().update(values)


def test_values_must_be_a_tensor() -> None:
    with pytest.raises(TypeError, match="`Y_new` must be a torch.Tensor, got list"):
        region().update([1.0])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.5 * UNIT[1], UNIT), "`center` must lie in `box`, got .1.5, 1.5."),
        (
            (torch.zeros(3).double(), UNIT),
            r"`box` and `center` must have shapes \(2, 2\) and \(2,\), got \(2, 2\) and \(3,\)",
        ),
        ((UNIT[0], UNIT, torch.tensor([1.0, 0.0])), "`lengthscale` must be finite and above 0"),
    ],
)
def test_a_region_needs_a_center_in_the_box(arguments: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        region().bounds(*arguments)
