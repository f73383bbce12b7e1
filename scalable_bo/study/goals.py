"""What a batch is to be good at by the surrogates of several outcomes.

Notation: n values, m outcomes of which the first k are objectives; Y (..., m) standardised values,
of objectives the larger the better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from botorch.utils.multi_objective.pareto import is_non_dominated
from torch import Tensor

from acquisition.candidates import may_be_proposed
from acquisition.outcomes import Scalarisations
from acquisition.strategies import make_strategy
from acquisition.strategy import Request, Sampler, Strategy
from scalable_bo.modelling.training import TrainingData
from scalable_bo.space.goal import Goal
from surrogates import PathwiseGP, checks


@dataclass(frozen=True)
class _Limit:
    """At most 0 where an outcome keeps a limit: Y (..., m) to (...). The ``sign`` is 1 of an upper
    limit, −1 of a lower one.
    """

    column: int
    sign: float
    bound: float

    def __call__(self, Y: Tensor) -> Tensor:
        return self.sign * (Y[..., self.column] - self.bound)


def acquisition_goal(
    goal: Goal,
    models: Sequence[PathwiseGP],
    data: Sequence[TrainingData],
    table: tuple[Tensor, Tensor],
    request: Request,
) -> dict[str, Any]:
    """Return what a ``Request`` without a goal lacks: the objective, of several a random
    scalarisation for each path, and the limits.

    Args:
        table: the points U (n, e) and all values (n, m), NaN where one is not known: its model's
            mean takes its place in the front, which is of points that may be proposed.
    """
    limits: list[_Limit] = []
    for name, (low, high) in goal.constraints.items():
        column = goal.names.index(name)
        flip = goal.signs[column]
        for side, limit in ((-1.0, low), (1.0, high)):
            if limit is not None:
                bound = (flip * limit - data[column].offset) / data[column].scale
                limits.append(_Limit(column, flip * side, bound))
    k = goal.num_objectives
    if k == 1:
        return {"objective": itemgetter((..., 0)), "outcome_constraints": limits}
    allowed = may_be_proposed(table[0], request.feasible_set).cpu()
    Y = _completed(models, data, *table)[allowed if allowed.any() else ...]
    feasible = torch.ones(len(Y), dtype=torch.bool, device="cpu")
    for excess in limits:
        feasible &= excess(Y) <= 0
    Y = Y[feasible, :k] if feasible.any() else Y[:, :k]
    reference, best = _ends(Y.to(models[0].train_targets), request.q, request.generator)
    for end in limits:
        if end.column < k and end.sign < 0:
            reference[:, end.column].clamp_(min=end.bound)
    return {
        "objective": Scalarisations.draw(request.q, reference, best, request.generator),
        "outcome_constraints": limits,
    }


def _ends(
    Y: Tensor, num_draws: int, generator: torch.Generator, nearest: float = 0.1, ratio: float = 30.0
) -> tuple[Tensor, Tensor]:
    """Return random reference points (s, k), from where the hypervolume is to grow, and the best
    values (k,) among Y (n, k).

    From near the front its inner parts count for more, from far away what lies beyond its ends,
    which it may not have reached. Nobody knows how far these are: each coordinate of a point is the
    ``nearest`` share of the front's width beyond its worst value or up to ``ratio`` times as far,
    evenly by logarithms.
    """
    front = Y[is_non_dominated(Y)]
    best, worst = front.amax(0), front.amin(0)
    width = best - worst
    narrowest = math.sqrt(torch.finfo(Y.dtype).eps)  # differences below may be rounding
    width = torch.where(width > narrowest, width, 1.0)
    shape = (num_draws, len(best))
    steps = torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu")
    return worst - nearest * ratio ** steps.to(width) * width, best


@torch.no_grad()
def _completed(
    models: Sequence[PathwiseGP], data: Sequence[TrainingData], U: Tensor, Y: Tensor
) -> Tensor:
    """Return standardised values Y (n, m) at U (n, e), posterior means where they are unknown."""
    columns = []
    for model, part, values in zip(models, data, Y.T, strict=True):
        unknown = values.isnan()
        standardised = torch.empty_like(values)
        standardised[~unknown] = part.y[:, 0]
        if unknown.any():
            mean = model.posterior(U[unknown].to(model.train_targets)).mean[:, 0]
            standardised[unknown] = mean.to(standardised)
        columns.append(standardised)
    return torch.stack(columns, dim=1)


def goal_strategy(goal: Goal, strategy: str | Strategy, sampler: Sampler | None) -> Strategy:
    """Return the strategy of a study; of several objectives, raise ValueError for the name of one
    that follows the values of one.
    """
    if goal.num_objectives > 1 and isinstance(strategy, str):
        checks.one_of("strategy", strategy, ("auto", "thompson", "log-ei"))
    return make_strategy(strategy, sampler)
