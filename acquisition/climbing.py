"""Maximise one function in a box, by gradients from the best of many candidates.

Notation: d inputs, X (..., d) points, bounds (2, d).
"""

import math
import warnings
from typing import Any

import torch
from botorch.generation.gen import gen_candidates_scipy
from torch import Tensor

from acquisition.constraints import FeasibleSet
from acquisition.multistart import Functions, screen
from acquisition.selection import best_first

NUM_UNIFORM = 1024  # candidates in the box
NUM_NEAR = 64  # around the best data points, at each of these distances, in units of its sides
DISTANCES = (0.1, 0.01, 0.001)
NUM_STARTS = 6
MOST_ITERATIONS = 60
# Of a line search. One that needs more has come to where values differ by rounding alone.
MOST_EVALUATIONS = 8


def climb(
    function: Functions, leaders: Tensor, feasible: FeasibleSet, generator: torch.Generator
) -> Tensor:
    """Return points of a box that a function was maximised to, the best first: (1, k, d).

    Candidates are uniform, and normal around the best data points at several distances: late in an
    optimisation an expected improvement is a peak as narrow as what is left to gain. The best of
    each part of them is a start of L-BFGS-B.

    Args:
        function: one function.
        leaders: (b, d) the best data points.
        feasible: a box.
    """
    candidates = _candidates(leaders, feasible, generator)
    starts = screen(function, candidates.chunk(NUM_STARTS)).squeeze(0)
    return best_first(*_ascended(function, starts, feasible))


def _candidates(leaders: Tensor, feasible: FeasibleSet, generator: torch.Generator) -> Tensor:
    """Return points of the box (c, d) in random order."""
    d = leaders.shape[1]
    like: dict[str, Any] = {"dtype": torch.float64, "generator": generator, "device": "cpu"}
    around = _to_cube(leaders, feasible).repeat(math.ceil(NUM_NEAR / len(leaders)), 1)
    near = [around + spread * torch.randn(around.shape, **like).to(around) for spread in DISTANCES]
    U = torch.cat([torch.rand(NUM_UNIFORM, d, **like).to(around), *near]).clamp(0.0, 1.0)
    U = U[torch.randperm(len(U), generator=generator, device=generator.device).to(U.device)]
    return _inside(_from_cube(U, feasible), feasible)


def _ascended(function: Functions, starts: Tensor, feasible: FeasibleSet) -> tuple[Tensor, Tensor]:
    """Return local maxima (1, k, d) from starts (k, d), and their values (1, k)."""

    def values_at(U: Tensor) -> Tensor:
        return function.each(_from_cube(U, feasible).transpose(0, 1)).squeeze(0)

    # BoTorch shows what a line search that ends early says whatever the filters are
    with warnings.catch_warnings(record=True):
        U, values = gen_candidates_scipy(
            _to_cube(starts, feasible).unsqueeze(1),
            values_at,  # type: ignore[arg-type]
            lower_bounds=0.0,
            upper_bounds=1.0,
            options={"maxiter": MOST_ITERATIONS, "maxls": MOST_EVALUATIONS},
        )
    points = _inside(_from_cube(U, feasible), feasible)
    return points.transpose(0, 1), values.unsqueeze(0)


def _to_cube(X: Tensor, feasible: FeasibleSet) -> Tensor:
    """Return points (..., d) on the unit cube, in float64; a fixed input is 0 there."""
    width = feasible.scale.double()
    return (X.double() - feasible.bounds[0].double()) / torch.where(width > 0, width, 1.0)


def _from_cube(U: Tensor, feasible: FeasibleSet) -> Tensor:
    return feasible.bounds[0].double() + feasible.scale.double() * U


def _inside(X: Tensor, feasible: FeasibleSet) -> Tensor:
    """Return points in the box's dtype, within its bounds whatever the rounding."""
    return torch.clamp(X.to(feasible.bounds), feasible.bounds[0], feasible.bounds[1])
