"""A box and the unit cube: points, constraints and fixed inputs on both."""

from typing import Any

import torch

from acquisition.constraints import FeasibleSet
from scalable_bo.integrations.box import Box

BOUNDS = torch.tensor([[-3.0, 0.1, 7.0], [5.0, 0.7, 7.0]], dtype=torch.float64)


def test_points_go_to_the_cube_and_back() -> None:
    box = Box.of(BOUNDS)
    assert torch.equal(box.to_cube(BOUNDS), torch.tensor([[0.0, 0, 0], [1, 1, 0]]).double())
    assert torch.equal(box.from_cube(box.to_cube(BOUNDS)), BOUNDS)
    X = torch.lerp(*BOUNDS, torch.rand(100, 3, dtype=torch.float64))
    assert torch.allclose(box.from_cube(box.to_cube(X)), X)
    given: dict[str, Any] = dict.fromkeys(("inequality_constraints", "equality_constraints"))
    given |= {"fixed_features": {}, "rounding": torch.round}
    rounding = box.constraints_on_cube(given)["rounding"]
    assert torch.equal(rounding(box.to_cube(X)), box.to_cube(X.round()))


def test_constraints_hold_for_the_same_points_on_the_cube() -> None:
    box = Box.of(BOUNDS)
    rows = torch.tensor([0, 1])
    constraints = {
        "inequality_constraints": [(rows, torch.tensor([1.0, -4.0]).double(), -2.5)],
        "equality_constraints": None,
        "fixed_features": {},
    }
    X = torch.lerp(*BOUNDS, torch.rand(100, 3, dtype=torch.float64))
    outside = FeasibleSet.of(BOUNDS, **constraints).contains(X)
    cube = box.to_cube(BOUNDS)
    inside = FeasibleSet.of(cube, **box.constraints_on_cube(constraints)).contains(box.to_cube(X))
    assert torch.equal(outside, inside)
    assert 0 < int(inside.sum()) < 100
    fixed = box.constraints_on_cube(constraints | {"fixed_features": {0: 1.0}})["fixed_features"]
    assert fixed == {0: 0.5}
