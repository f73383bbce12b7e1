"""Spaces: what goes to the unit cube comes back, and what does not belong is refused."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalable_bo.space import Float, Space

finite = st.floats(-1e6, 1e6)
SPACE = Space(lr=Float(1e-5, 1.0, log=True), momentum=Float(-1.0, 3.0))


@given(low=finite, width=st.floats(1e-3, 1e6), unit=st.floats(0, 1))
def test_values_stay_within_bounds_and_come_back(low: float, width: float, unit: float) -> None:
    param = Float(low, low + width)
    value = param.unnormalize(torch.tensor(unit, dtype=torch.float64))
    assert param.low <= value <= param.high
    assert param.normalize(value).item() == pytest.approx(unit, abs=1e-6)


@given(low=st.floats(1e-8, 1e3), factor=st.floats(1.01, 1e9), unit=st.floats(0, 1))
def test_log_values_stay_within_bounds_and_come_back(low: float, factor: float, unit: float) -> None:
    param = Float(low, low * factor, log=True)
    value = param.unnormalize(torch.tensor(unit, dtype=torch.float64))
    assert param.low <= value <= param.high
    assert param.normalize(value).item() == pytest.approx(unit, abs=1e-6)


def test_log_spreads_the_cube_evenly_over_orders_of_magnitude() -> None:
    U = torch.tensor([[0.0, 0.0], [0.4, 0.5], [1.0, 1.0]], dtype=torch.float64)
    expected = [[1e-5, -1.0], [1e-3, 1.0], [1.0, 3.0]]
    for values, row in zip(SPACE.decode(U), expected, strict=True):
        assert [values["lr"], values["momentum"]] == pytest.approx(row)


def test_dicts_come_back_whatever_the_order_of_their_keys() -> None:
    params = [{"momentum": 0.5, "lr": 0.02}, {"lr": 1.0, "momentum": -1.0}]
    U = SPACE.encode(params)
    assert U.shape == (2, 2)
    for back, given_values in zip(SPACE.decode(U), params, strict=True):
        assert back == pytest.approx(given_values)


def test_bounds_name_the_parameters_and_are_kept() -> None:
    bounds = torch.tensor([[-5.0, 0.0], [10.0, 15.0]], dtype=torch.float64)
    space = Space.from_bounds(bounds)
    assert space.names == ("x0", "x1")
    torch.testing.assert_close(space.bounds, bounds)
    X = torch.tensor([[-5.0, 15.0], [2.5, 3.0]], dtype=torch.float64)
    torch.testing.assert_close(space.normalize(X), torch.tensor([[0.0, 1.0], [0.5, 0.2]], dtype=torch.float64))
    torch.testing.assert_close(space.unnormalize(space.normalize(X)), X)


@pytest.mark.parametrize(
    ("low", "high", "log", "error", "message"),
    [
        (1.0, 0.0, False, ValueError, "`low` must be below `high`, got low = 1.0 and high = 0.0"),
        (1.0, 1.0, False, ValueError, "below"),
        (0.0, 1.0, True, ValueError, "`low` must be positive.*got 0.0"),
        (0.0, math.inf, False, ValueError, "`high` must be finite, got inf"),
        (math.nan, 1.0, False, ValueError, "`low` must be finite, got nan"),
        ("0", 1.0, False, TypeError, "`low` must be a number, got '0'"),
    ],
)
def test_bad_bounds_are_named(low: float, high: float, log: bool, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Float(low, high, log)


def test_a_space_needs_parameters_of_a_known_kind() -> None:
    with pytest.raises(ValueError, match="at least one parameter"):
        Space()
    with pytest.raises(TypeError, match="`width` must be a `Float`"):
        Space(width=(0, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize("bounds", [[[0.0, 1.0]], [0.0, 1.0], [[0.0, 2.0], [1.0, 1.0]], [[0.0], [math.inf]], torch.zeros(2, 0)])
def test_impossible_bounds_are_refused(bounds: object) -> None:
    with pytest.raises(ValueError, match="`bounds` must"):
        Space.from_bounds(bounds)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([[0.1, 0.0, 0.0]], r"shape \(n, 2\).*got \(1, 3\)"),
        ([[0.1, 4.0]], "`momentum` must be between -1.0 and 3.0, got 4.0 in row 0"),
        ([[0.1, 0.0], [math.nan, 0.0]], "`lr` must be between.*got nan in row 1"),
    ],
)
def test_points_outside_are_named_with_their_row(X: list[list[float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SPACE.normalize(X)


def test_dicts_with_other_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="exactly the parameters lr, momentum, got lr in row 1"):
        SPACE.encode([{"lr": 0.1, "momentum": 0.0}, {"lr": 0.1}])


def test_points_outside_the_cube_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`U` must lie in \[0, 1\]"):
        SPACE.decode(torch.tensor([[0.5, 1.1]]))
