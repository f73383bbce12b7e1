"""Maximise one function in a box, by gradients from the best of many candidates.

Notation: d inputs, X (..., d) points, bounds (2, d).
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from botorch.generation.gen import gen_candidates_scipy
from torch import Tensor

from acquisition.constraints import FeasibleSet
from acquisition.multistart import FunctionOfPoints, screen
from acquisition.selection import best_first
from surrogates.fitting.search import with_one_blas_thread


def climb(
    function: FunctionOfPoints,
    leaders: Tensor,
    feasible: FeasibleSet,
    generator: torch.Generator,
    *,
    num_uniform: int = 1024,
    num_near: int = 64,
    distances: Sequence[float] = (0.1, 0.01, 0.001),
    num_starts: int = 6,
    max_iterations: int = 60,
    max_evaluations: int = 8,
) -> Tensor:
    """Return points of a box that ``function`` was maximised to, the best first: (1, k, d).

    Candidates are uniform, and normal around the best data points at several distances: late in an
    optimisation an expected improvement is a peak as narrow as what is left to gain. The best of
    each part of them is a start of L-BFGS-B.

    Args:
        leaders: (b, d) the best data points.
        feasible: a box.
        num_uniform: candidates in the box.
        num_near: about so many around the best data points, at each of the ``distances``.
        distances: in units of the box's sides.
        num_starts: k.
        max_iterations: of L-BFGS-B.
        max_evaluations: of a line search. One that needs more has come to where values differ by
            rounding alone.
    """
    d = leaders.shape[1]
    like: dict[str, Any] = {"dtype": torch.float64, "generator": generator, "device": "cpu"}
    around = _to_cube(leaders, feasible).repeat(math.ceil(num_near / len(leaders)), 1)
    near = [around + spread * torch.randn(around.shape, **like).to(around) for spread in distances]
    U = torch.cat([torch.rand(num_uniform, d, **like).to(around), *near]).clamp(0.0, 1.0)
    U = U[torch.randperm(len(U), generator=generator, device=generator.device).to(U.device)]
    candidates = _inside(_from_cube(U, feasible), feasible)
    starts = screen(function, candidates.chunk(num_starts)).transpose(0, 1)

    def values_at(U: Tensor) -> Tensor:
        return function.of_points(_from_cube(U, feasible).squeeze(1))

    # BoTorch shows what a line search that ends early says whatever the filters are
    with warnings.catch_warnings(record=True), with_one_blas_thread():
        U, values = gen_candidates_scipy(
            _to_cube(starts, feasible),
            values_at,  # type: ignore[arg-type]
            lower_bounds=0.0,
            upper_bounds=1.0,
            options={"maxiter": max_iterations, "maxls": max_evaluations},
        )
    points = _inside(_from_cube(U, feasible), feasible)
    return best_first(points.transpose(0, 1), values.unsqueeze(0))


def _to_cube(X: Tensor, feasible: FeasibleSet) -> Tensor:
    """Return points (..., d) on the unit cube, in float64; a fixed input is 0 there."""
    width = feasible.scale.double()
    return (X.double() - feasible.bounds[0].double()) / torch.where(width > 0, width, 1.0)


def _from_cube(U: Tensor, feasible: FeasibleSet) -> Tensor:
    return feasible.bounds[0].double() + feasible.scale.double() * U


def _inside(X: Tensor, feasible: FeasibleSet) -> Tensor:
    """Return points in the box's dtype, within its bounds whatever the rounding."""
    return torch.clamp(X.to(feasible.bounds), feasible.bounds[0], feasible.bounds[1])
