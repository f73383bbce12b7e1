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
# of the starts, from one stage of a pruned ascent to the next
KEPT = 1 / 3
FEWEST_KEPT = 4
LAST_RATE = 0.1  # of the learning rate, at the end of a pruned ascent


class Functions(Protocol):
    """What is maximised: s functions, such as :class:`surrogates.SamplePaths`."""

    @property
    def num_samples(self) -> int:
        """The number of functions s."""

    def __call__(self, X: Tensor) -> Tensor:
        """Return every function at X (c, d): (s, c)."""

    def each(self, X: Tensor) -> Tensor:
        """Return function i at its own points ``X[i]``, differentiably: (s, k), for X (s, k, d)."""


def screen(
    paths: Functions,
    rounds: Iterable[Tensor],
    *,
    sign: float = 1.0,
    after_round: Callable[[], None] | None = None,
) -> Tensor:
    """Return each path's best candidate of every round: (s, number of rounds, d).

    Args:
        rounds: tensors (c, d) of candidates, shared by all paths.
        sign: 1 to maximise, −1 to minimise.
    """
    best = []
    for candidates in rounds:
        chunk = max(1, SCREENED_AT_ONCE // paths.num_samples)
        values = []
        index = []
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
    learning_rate: float | Tensor = 1e-3,
    prune: bool = False,
    sign: float = 1.0,
    feasible_set: FeasibleSet | None = None,
    unit_gradients: bool = False,
    after_step: Callable[[], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Ascend every path from its starts by Adam, inside the box; return the best points visited (s,
    k, d) and their values (s, k).

    All gradients of a step come from one tiled computation. Coordinates are scaled to the unit cube
    for the steps. Among constraints, gradients are projected to the directions that stay feasible,
    and steps to the feasible set. Where points are rounded, the values and gradients are those of
    the rounded points, and the steps go on from the others: small ones add up until they reach the
    next value.

    Most starts lead to lesser maxima, and show it soon: with ``prune``, stage i of the ascent has a
    share ∝ i of the steps, each path leaves all but the best third of its starts behind after a
    stage, and the learning rate falls linearly to a tenth. The long first steps pass over small
    maxima, the short last ones settle.

    Args:
        starts: (s, k, d), feasible.
        bounds: (2, d); a feature whose two bounds are equal stays fixed.
        learning_rate: of Adam, in units of the box's sides, a number or (d,).
        prune: go on from fewer and fewer starts; with it, the points of a path are returned with
            its best at the stages' ends first.
        sign: 1 to maximise, −1 to minimise; the values returned are those of the paths.
        feasible_set: constraints beyond the bounds, within which every point returned lies, and how
            points are rounded; ``None`` for none of either.
        unit_gradients: scale each gradient to norm 1, for functions whose pieces have different
            units.

    References:
        Kingma, Ba (2015), "Adam: A Method for Stochastic Optimization".
    """
    lower, upper = bounds
    width = upper - lower
    side = torch.where(width > 0, width, 1.0)
    rate = torch.as_tensor(learning_rate, dtype=width.dtype, device=width.device)
    longest = float(rate.max())
    starts = starts.detach()
    X = starts
    points = (starts - lower) / side
    first = torch.zeros_like(points)
    second = torch.zeros_like(points)
    best_points = starts.clone()
    best_values = start_values = torch.full_like(starts[..., 0], -math.inf)
    for step, count in enumerate(
        _starts_kept(starts.shape[1], num_steps) if prune else [starts.shape[1]] * (num_steps + 1)
    ):
        if count < X.shape[1]:
            order = _ranking(best_points, best_values, start_values, X.shape[1], feasible_set)
            starts, start_values, best_points, best_values = _ordered(
                order, starts, start_values, best_points, best_values
            )
            X, points, first, second = _ordered(order[:, :count], X, points, first, second)
        with torch.enable_grad():
            evaluated = (
                (X if feasible_set is None else feasible_set.rounded(X))
                .detach()
                .requires_grad_(step < num_steps)
            )
            values = sign * paths.each(evaluated)
        better = values.detach() > best_values[:, :count]
        if (
            feasible_set is not None
            and feasible_set.rounding is not None
            and feasible_set.constrained
        ):
            # The others are feasible by the way they were reached
            better &= feasible_set.meets(evaluated.detach())
        best_values[:, :count] = torch.where(better, values.detach(), best_values[:, :count])
        best_points[:, :count] = torch.where(
            better.unsqueeze(-1), evaluated.detach(), best_points[:, :count]
        )
        if step == 0:
            start_values = best_values.clone()
        if step == num_steps:
            break
        (gradient,) = torch.autograd.grad(values.sum(), evaluated)
        gradient = width * gradient
        if unit_gradients:
            gradient = torch.nn.functional.normalize(
                gradient, dim=-1, eps=torch.finfo(gradient.dtype).tiny
            )
        share = 1.0 - (1.0 - LAST_RATE) * step / num_steps if prune else 1.0
        if feasible_set is not None and feasible_set.constrained:
            gradient = feasible_set.tangent(X.detach(), gradient, share * longest)
        first.lerp_(gradient, 1.0 - ADAM_DECAYS[0])
        second.lerp_(gradient.square(), 1.0 - ADAM_DECAYS[1])
        corrected = first / (1.0 - ADAM_DECAYS[0] ** (step + 1))
        scale = (second / (1.0 - ADAM_DECAYS[1] ** (step + 1))).sqrt() + ADAM_EPSILON
        points = (points + share * rate * corrected / scale).clamp(0.0, 1.0)
        # exact at both ends; lower + width · points may round past upper
        previous = X.detach()
        X = torch.lerp(lower, upper, points)
        if feasible_set is not None and feasible_set.constrained:
            X = feasible_set.advance(previous, X)
            points = (X - lower) / side
        if after_step is not None:
            after_step()
    if feasible_set is not None and feasible_set.accepts is not None:
        accepted = feasible_set.contains(best_points)
        best_points = torch.where(accepted.unsqueeze(-1), best_points, starts)
        best_values = torch.where(accepted, best_values, start_values)
    return best_points, sign * best_values


def _starts_kept(num_starts: int, num_steps: int) -> list[int]:
    """Return how many of its starts a path goes on from,
    for every step and the evaluation after the last.
    """
    stages = [num_starts]
    while stages[-1] > FEWEST_KEPT:
        stages.append(math.ceil(KEPT * stages[-1]))
    parts = len(stages) * (len(stages) + 1) / 2
    ends = [max(1, round(num_steps * i * (i + 1) / 2 / parts)) for i in range(1, len(stages))] + [
        num_steps + 1
    ]
    return [
        next(count for count, end in zip(stages, ends, strict=True) if step < end)
        for step in range(num_steps + 1)
    ]


def _ranking(
    points: Tensor,
    values: Tensor,
    start_values: Tensor,
    count: int,
    feasible_set: FeasibleSet | None,
) -> Tensor:
    """Return the order (s, k) of the starts by the values that they have led to,
    those beyond the first ``count`` last.
    """
    if feasible_set is not None and feasible_set.accepts is not None:
        values = torch.where(feasible_set.contains(points), values, start_values)
    behind = torch.arange(count, values.shape[1], device=values.device).expand(len(values), -1)
    return torch.cat([values[:, :count].argsort(dim=1, descending=True), behind], dim=1)


def _ordered(order: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return entries ``order`` (s, k) of tensors (s, K) or (s, K, d)."""
    return tuple(
        tensor.take_along_dim(order if tensor.ndim == 2 else order.unsqueeze(-1), dim=1)
        for tensor in tensors
    )
