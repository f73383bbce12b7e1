"""What a study was made with, told apart from what it is opened with."""

from typing import Any

import pytest

from scalable_bo.space.space import Float, LinearConstraint, Space
from scalable_bo.storage.record import make_settings, require_same_settings

SPACE = Space(x=Float(0.0, 9.0), y=Float(0.0, 9.0))
SETTINGS = make_settings(SPACE.to_dict(), True, 0)


def test_other_settings_are_refused_with_every_difference() -> None:
    other = make_settings(SPACE.to_dict(), False, 1)
    with pytest.raises(
        ValueError,
        match=(
            "It was made with other settings:\n  direction: stored maximize, given minimize\n"
            "  seed: stored 0, given 1\nUse"
        ),
    ):
        require_same_settings("It", SETTINGS, other)
    require_same_settings("It", SETTINGS, SETTINGS)


def test_coefficients_that_look_the_same_in_print_are_told_apart() -> None:
    def settings(coefficient: float) -> dict[str, Any]:
        constraint = LinearConstraint({"x": coefficient, "y": 1}, at_most=1)
        return make_settings(Space(constraint, **SPACE.params).to_dict(), True, 0)

    with pytest.raises(ValueError, match="  constraint 1: stored .*0.33333333.*given .*0.33333334"):
        require_same_settings("It", settings(1 / 3), settings(0.33333334))
