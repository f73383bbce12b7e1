"""The surrogates of several outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from scalable_bo.modelling.factory import SurrogateFactory
from scalable_bo.modelling.fitting import FITTED_ALWAYS_UP_TO, REFIT_GROWTH, fit_surrogate
from scalable_bo.modelling.training import TrainingData
from scalable_bo.storage.storage import Ask
from surrogates import PathwiseGP


@dataclass(eq=False)
class OutcomeModels:
    """A model of each outcome, all of them refitted together: at every ask while there are few
    values of all outcomes, and then whenever they have grown. They are made again from the values
    after a restart.

    Attributes:
        factory: of models.
        randomness: returns that of an ask, by its number.
    """

    factory: SurrogateFactory
    randomness: Callable[[int], torch.Generator]
    _fitted: list[PathwiseGP] = field(default_factory=list)
    _fitted_to: list[TrainingData] = field(default_factory=list)

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
        known = data(num_observed)
        refit = not refits or num_observed * len(known) <= FITTED_ALWAYS_UP_TO
        refit |= bool(refits) and num_observed >= REFIT_GROWTH * refits[-1].num_observed
        # The fit is of the values of the last refit as they stand now, so that a restart repeats it
        basis = known if refit else data(refits[-1].num_observed)
        if refit or not _are_alike(basis, self._fitted_to):
            generator = self.randomness(number if refit else refits[-1].number)
            few = max(len(part.U) for part in basis) <= FITTED_ALWAYS_UP_TO
            self._fitted = [fit_surrogate(self.factory, part, generator, few=few) for part in basis]
            self._fitted_to = basis
        pairs = zip(known, self._fitted, strict=True)
        return [self.factory.build(part, fitted) for part, fitted in pairs], known, refit


def _are_alike(one: Sequence[TrainingData], other: Sequence[TrainingData]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(first.signed, second.signed) and torch.equal(first.U, second.U)
        for first, second in zip(one, other, strict=True)
    )
