"""Maximise many functions at once: screen many points, ascend from the best few.

Notation: s functions, k starts for each, points (s, k, d).
"""

import math
from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor

from acquisition.constraints import FeasibleSet

ADAM_DECAYS = (0.9, 0.999)
ADAM_EPSILON = 1e-8
SCREENED_AT_ONCE = 2**23  # values of paths × candidates held at a time


class Functions(Protocol):
    """What is maximised: s functions, such as :class:`surrogates.SamplePaths`."""

    @property
    def num_samples(self) -> int:
        """The number of functions s."""

    def __call__(self, X: Tensor) -> Tensor:
        """Return every function at X (c, d): (s, c)."""

    def each(self, X: Tensor) -> Tensor:
        """Return function i at its own points ``X[i]``, differentiably: (s, k), for X (s, k, d)."""


def screen(paths: Functions, rounds: Iterable[Tensor], *, sign: float = 1.0, after_round: Callable[[], None] | None = None) -> Tensor:
    """Return each path's best candidate of every round: (s, number of rounds, d).

    Args:
        rounds: tensors (c, d) of candidates, shared by all paths.
        sign: 1 to maximise, −1 to minimise.
    """
    best = []
    for candidates in rounds:
        chunk = max(1, SCREENED_AT_ONCE // paths.num_samples)
        values, index = [], []
        for start in range(0, len(candidates), chunk):
            value, position = (sign * paths(candidates[start : start + chunk])).max(dim=1)
            values.append(value)
            index.append(position + start)
        winner = torch.stack(values).argmax(0, keepdim=True)
        best.append(candidates[torch.stack(index).gather(0, winner).squeeze(0)])
        if after_round is not None:
            after_round()
    return torch.stack(best, dim=1)


def ascend(
    paths: Functions,
    starts: Tensor,
    bounds: Tensor,
    *,
    num_steps: int = 100,
    learning_rate: float = 1e-3,
    sign: float = 1.0,
    feasible_set: FeasibleSet | None = None,
    unit_gradients: bool = False,
    after_step: Callable[[], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Ascend every path from its starts by Adam, inside the box; return the best points visited (s, k, d) and their values (s, k).

    All gradients of a step come from one tiled computation. Coordinates are scaled to the unit cube for the steps. Among constraints,
    gradients are projected to the directions that stay feasible, and steps to the feasible set. Where points are rounded, the values
    and gradients are those of the rounded points, and the steps go on from the others: small ones add up until they reach the next value.

    Args:
        starts: (s, k, d), feasible.
        bounds: (2, d); a feature whose two bounds are equal stays fixed.
        learning_rate: of Adam, in units of the box's sides.
        sign: 1 to maximise, −1 to minimise; the values returned are those of the paths.
        feasible_set: constraints beyond the bounds, within which every point returned lies, and how points are rounded; ``None`` for
            none of either.
        unit_gradients: scale each gradient to norm 1, for functions whose pieces have different units.

    References:
        Kingma, Ba (2015), "Adam: A Method for Stochastic Optimization".
    """
    lower, upper = bounds
    width = upper - lower
    side = torch.where(width > 0, width, 1.0)
    X = best_points = starts.detach()
    best_values = torch.full(starts.shape[:2], -math.inf, dtype=starts.dtype, device=starts.device)
    points = (starts - lower) / side
    first, second = torch.zeros_like(points), torch.zeros_like(points)
    for step in range(num_steps + 1):
        with torch.enable_grad():
            evaluated = (X if feasible_set is None else feasible_set.rounded(X)).detach().requires_grad_(step < num_steps)
            values = sign * paths.each(evaluated)
        better = values.detach() > best_values
        if feasible_set is not None and feasible_set.rounding is not None and feasible_set.constrained:
            better &= feasible_set.meets(evaluated.detach())  # the others are feasible by the way they were reached
        best_values = torch.where(better, values.detach(), best_values)
        best_points = torch.where(better.unsqueeze(-1), evaluated.detach(), best_points)
        if step == 0:
            start_values = best_values
        if step == num_steps:
            break
        (gradient,) = torch.autograd.grad(values.sum(), evaluated)
        gradient = width * gradient
        if unit_gradients:
            gradient = torch.nn.functional.normalize(gradient, dim=-1, eps=torch.finfo(gradient.dtype).tiny)
        if feasible_set is not None and feasible_set.constrained:
            gradient = feasible_set.tangent(X.detach(), gradient, learning_rate)
        first.lerp_(gradient, 1.0 - ADAM_DECAYS[0])
        second.lerp_(gradient.square(), 1.0 - ADAM_DECAYS[1])
        corrected = first / (1.0 - ADAM_DECAYS[0] ** (step + 1))
        scale = (second / (1.0 - ADAM_DECAYS[1] ** (step + 1))).sqrt() + ADAM_EPSILON
        points = (points + learning_rate * corrected / scale).clamp(0.0, 1.0)
        previous, X = X.detach(), torch.lerp(lower, upper, points)  # exact at both ends; lower + width · points may round past upper
        if feasible_set is not None and feasible_set.constrained:
            X = feasible_set.advance(previous, X)
            points = (X - lower) / side
        if after_step is not None:
            after_step()
    if feasible_set is not None and feasible_set.accepts is not None:
        accepted = feasible_set.contains(best_points)
        best_points = torch.where(accepted.unsqueeze(-1), best_points, starts.detach())
        best_values = torch.where(accepted, best_values, start_values)
    return best_points, sign * best_values
