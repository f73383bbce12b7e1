"""A box and the unit cube that it is mapped to.

Notation: X (..., d) points in the box, U (..., d) on the cube.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Each the inputs i, their coefficients c and r in Σ cᵢ xᵢ ≥ r or = r
LinearConstraints = list[tuple[Tensor, Tensor, float]]


@dataclass(frozen=True, eq=False)
class Box:
    """A box between ``lower`` and ``upper`` (d,), with its ``sides`` (d,): 1 for an input with one
    value, which is 0 on the cube.
    """

    lower: Tensor
    upper: Tensor
    sides: Tensor

    @classmethod
    def of(cls, bounds: Tensor) -> Box:
        """Return the box within bounds (2, d)."""
        sides = bounds[1] - bounds[0]
        return cls(bounds[0], bounds[1], torch.where(sides > 0, sides, 1.0))

    def to_cube(self, X: Tensor) -> Tensor:
        """Return points X (..., d) on the unit cube."""
        return (X - self.lower) / self.sides

    def from_cube(self, U: Tensor) -> Tensor:
        """Return the points U (..., d) of the unit cube in the box."""
        return torch.clamp(self.lower + self.sides * U, self.lower, self.upper)

    def constraints_on_cube(self, constraints: Mapping[str, Any]) -> dict[str, Any]:
        """Return linear constraints, fixed features and a rounding, if any, on the unit cube."""

        def moved(given: LinearConstraints | None) -> LinearConstraints | None:
            return given and [
                (i, c * self.sides[i], r - float(c @ self.lower[i])) for i, c, r in given
            ]

        fixed = constraints["fixed_features"]
        rounding = constraints.get("rounding")
        return {
            "rounding": rounding and (lambda U: self.to_cube(rounding(self.from_cube(U)))),
            "inequality_constraints": moved(constraints["inequality_constraints"]),
            "equality_constraints": moved(constraints["equality_constraints"]),
            "fixed_features": {
                i: float((value - self.lower[i]) / self.sides[i]) for i, value in fixed.items()
            },
        }
