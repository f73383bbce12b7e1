"""Optuna's distributions as parameters of a space, and its trials as points of it."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial
from torch import Tensor

from scalable_bo.space.parameters import Categorical, Float, Int, Parameter
from scalable_bo.space.space import Space


def parameter_of(distribution: BaseDistribution) -> Parameter | None:
    """Return the parameter with the values of a distribution, a choice named by its position;
    ``None`` if there is none, such as for one value and for integers beyond 2⁴⁰.
    """
    try:
        match distribution:
            case CategoricalDistribution():
                return Categorical([str(place) for place in range(len(distribution.choices))])
            case IntDistribution(low=low, high=high, log=log, step=step):
                return Int(low, high, log=log, step=step)
            case FloatDistribution(low=low, high=high, log=log, step=step):
                return Float(low, high, log=log, step=step)
    except ValueError:
        return None
    return None


class TrialSpace:
    """The space of distributions for which there are parameters."""

    def __init__(self, distributions: Mapping[str, BaseDistribution]) -> None:
        self.distributions = distributions
        found = {name: parameter_of(of) for name, of in distributions.items()}
        self.space = Space(**{name: param for name, param in found.items() if param is not None})

    def points(self, trials: Sequence[FrozenTrial]) -> Tensor:
        """Return the points (n, d) of trials; values beyond a range count as its ends."""
        rows = [[of.to_internal_repr(t.params[name]) for name, of in self._items] for t in trials]
        X = torch.tensor(rows, dtype=torch.float64, device="cpu").reshape(-1, self.space.dim)
        low, high = self.space.bounds
        columns = zip(self.space.params.values(), X.clamp(low, high).unbind(1), strict=True)
        return torch.stack([param.placed(column) for param, column in columns], dim=1)

    def params(self, U: Tensor) -> list[dict[str, Any]]:
        """Return the parameters of points (q, e) of the unit cube."""
        X = self.space.unnormalize(U.detach().clamp(0.0, 1.0))
        return [
            {
                name: of.to_external_repr(number)
                for (name, of), number in zip(self._items, row, strict=True)
            }
            for row in X.tolist()
        ]

    @property
    def _items(self) -> list[tuple[str, BaseDistribution]]:
        return [(name, self.distributions[name]) for name in self.space.names]
