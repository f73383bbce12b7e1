"""The surrogates of several outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from scalable_bo.modelling.factory import SurrogateFactory
from scalable_bo.modelling.fitting import MOST_OF_FEW, fit_warped
from scalable_bo.modelling.training import TrainingData
from scalable_bo.study.known import Known
from surrogates import PathwiseGP


@dataclass(eq=False)
class OutcomeModels:
    """A model of each outcome, all of them refitted together whenever the values have grown. They
    are made again from the values after a restart.

    Attributes:
        factory: of models.
        randomness: returns that of an ask, by its number.
    """

    factory: SurrogateFactory
    randomness: Callable[[int], torch.Generator]
    _fitted: list[PathwiseGP] = field(default_factory=list)
    _fitted_to: list[TrainingData] = field(default_factory=list)

    def of(self, known: Known) -> tuple[list[PathwiseGP], list[TrainingData], bool]:
        """Return the models for an ask, their data, and whether they were refitted."""
        refits = [ask for ask in known.asks if ask.refitted]
        data = known.outcome_data(known.num_observed)
        few = max(len(part.U) for part in data) <= MOST_OF_FEW
        refit = not refits or known.has_grown(few)
        # The fit is of the values of the last refit as they stand now, so that a restart repeats it
        basis = data if refit else known.outcome_data(refits[-1].num_observed)
        if refit or not _are_alike(basis, self._fitted_to):
            generator = self.randomness(known.number if refit else refits[-1].number)
            few = max(len(part.U) for part in basis) <= MOST_OF_FEW
            fit = partial(fit_warped, self.factory, few=few, scales=["plain"])
            self._fitted = [fit(part, generator)[0] for part in basis]
            self._fitted_to = basis
        pairs = zip(data, self._fitted, strict=True)
        return [self.factory.build(part, fitted) for part, fitted in pairs], data, refit


def _are_alike(one: Sequence[TrainingData], other: Sequence[TrainingData]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(first.signed, second.signed) and torch.equal(first.U, second.U)
        for first, second in zip(one, other, strict=True)
    )
