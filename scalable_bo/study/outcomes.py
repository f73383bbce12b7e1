"""The surrogates of several outcomes, and what a batch is to be good at by them.

Notation: n values, m outcomes of which the first k are objectives; Y (..., m) standardised values,
of objectives the larger the better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from botorch.utils.multi_objective.pareto import is_non_dominated
from torch import Tensor

from acquisition.outcomes import Outcome, Scalarisations
from acquisition.strategies import ThompsonStrategy, make_strategy
from acquisition.strategy import Sampler, Strategy
from scalable_bo.modelling.factory import SurrogateFactory
from scalable_bo.modelling.fitting import fit
from scalable_bo.modelling.training import TrainingData
from scalable_bo.space.goal import Goal
from scalable_bo.storage.storage import Ask
from scalable_bo.study.surrogate import REFIT_GROWTH
from surrogates import PathwiseGP, checks

REFITTED_UP_TO = 100  # values: a fit at every ask
FEW_VALUES = 300  # by the kernel of few


@dataclass(eq=False)
class OutcomeModels:
    """A model of each outcome, all of them refitted together: at every ask of few values, and then
    whenever the values have grown. They are made again from the values after a restart.

    Attributes:
        factory: of models.
        randomness: returns that of an ask, by its number.
    """

    factory: SurrogateFactory
    randomness: Callable[[int], torch.Generator]
    _fitted: list[PathwiseGP] = field(default_factory=list)

    def of(
        self,
        number: int,
        num_observed: int,
        asks: Sequence[Ask],
        data: Callable[[int], list[TrainingData]],
    ) -> tuple[list[PathwiseGP], list[TrainingData], bool]:
        """Return the models for an ask, their data, and whether they were refitted.

        Args:
            number: of the ask.
            num_observed: n.
            asks: those before.
            data: returns the first values of each outcome.
        """
        refits = [ask for ask in asks if ask.refitted]
        refit = not refits or num_observed <= REFITTED_UP_TO
        refit |= bool(refits) and num_observed >= REFIT_GROWTH * refits[-1].num_observed
        known = data(num_observed)
        if refit:
            self._fitted = self._fit(number, known)
        elif not self._fitted:
            self._fitted = self._fit(refits[-1].number, data(refits[-1].num_observed))
        pairs = zip(known, self._fitted, strict=True)
        return [self.factory.build(part, fitted) for part, fitted in pairs], known, refit

    def _fit(self, number: int, data: list[TrainingData]) -> list[PathwiseGP]:
        generator = self.randomness(number)
        few = len(data[0].U) <= FEW_VALUES
        return [fit(self.factory, part, generator, few=few) for part in data]


@dataclass(frozen=True)
class _Limit:
    """At most 0 where an outcome keeps a limit: Y (..., m) to (...).

    Attributes:
        column: of the outcome.
        sign: 1 if the limit is an upper one, −1 if it is a lower one.
        bound: the limit, standardised.
    """

    column: int
    sign: float
    bound: float

    def __call__(self, Y: Tensor) -> Tensor:
        return self.sign * (Y[..., self.column] - self.bound)


def first_output(Y: Tensor) -> Tensor:
    """Return the values (...) of the one objective."""
    return Y[..., 0]


def acquisition_goal(
    goal: Goal, data: Sequence[TrainingData], q: int, generator: torch.Generator, like: Tensor
) -> dict[str, Any]:
    """Return what a ``Request`` for q points has for its goal: the objective, of several a random
    scalarisation for each path, and the limits.
    """
    limits: list[Outcome] = []
    for name, (low, high) in goal.constraints.items():
        column = goal.names.index(name)
        flip = goal.signs[column]
        for side, limit in ((-1.0, low), (1.0, high)):
            if limit is not None:
                bound = (flip * limit - data[column].offset) / data[column].scale
                limits.append(_Limit(column, flip * side, bound))
    k = goal.num_objectives
    if k == 1:
        return {"objective": first_output, "outcome_constraints": limits}
    Y = torch.cat([part.y for part in data], dim=1)
    feasible = torch.ones(len(Y), dtype=torch.bool, device="cpu")
    for excess in limits:
        feasible &= excess(Y) <= 0
    Y = Y[feasible, :k] if feasible.any() else Y[:, :k]
    front = Y[is_non_dominated(Y)].to(like)
    return {
        "objective": Scalarisations.draw(q, front, generator),
        "outcome_constraints": limits,
    }


def goal_strategy(goal: Goal) -> Callable[[str | Strategy, Sampler | None], Strategy]:
    """Return what makes the strategy of a study with this goal."""
    return make_strategy if goal.num_objectives == 1 else _strategy_of_several


def _strategy_of_several(strategy: str | Strategy, sampler: Sampler | None) -> Strategy:
    """Return the strategy of a study of several objectives: Thompson sampling, unless the user has
    made one.

    Raises:
        ValueError: for the name of one that takes one objective.
    """
    if not isinstance(strategy, str):
        return strategy
    checks.one_of("strategy", strategy, ("auto", "thompson"))
    return ThompsonStrategy(sampler)
