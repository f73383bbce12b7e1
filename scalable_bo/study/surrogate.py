"""The surrogates of a study from one ask to the next, of one objective or of several outcomes: when
they are fitted again, and how they are found again after a restart.

Notation: n values known to an ask; ``U (k, e)`` points of the unit cube.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from scalable_bo.modelling.factory import SurrogateFactory, mean_of
from scalable_bo.modelling.fitting import MOST_OF_FEW, fit_warped
from scalable_bo.modelling.training import FEWEST_VALUES, TrainingData
from scalable_bo.storage.checkpoints import (
    Checkpoint,
    load_checkpoint,
    remove_checkpoints,
    save_checkpoint,
)
from scalable_bo.storage.storage import Checkpoints
from scalable_bo.study.ask_inputs import AskInputs
from scalable_bo.study.choices import Choice
from surrogates import PathwiseGP
from surrogates.fitting.search import FitWatch


@dataclass(eq=False)
class KeptSurrogate:
    """The surrogate of the last ask.

    Attributes:
        is_for_few: whether the model of an ask is the one for few points and values, by the numbers
            of both.
        checkpoints: where they are kept; ``None`` to keep none.
        model: behind the last ask, the first of several outcomes; ``None`` before.
        fitted: the model of one objective and its data; ``None`` before.
        checkpoint: of the last ask that made one.
    """

    factory: SurrogateFactory
    randomness: Callable[[int], torch.Generator]
    is_for_few: Callable[[int, int], bool]
    checkpoints: Checkpoints | None
    model: PathwiseGP | None = field(default=None, init=False)
    fitted: tuple[PathwiseGP, TrainingData] | None = field(default=None, init=False)
    checkpoint: Checkpoint | None = field(default=None, init=False)
    _of_few: bool = field(default=False, init=False)  # whether it is the one for few

    def is_to_be_fitted(self, known: AskInputs, few: bool) -> bool:
        """Whether hyperparameters are to be fitted again: to more values, to some that change the
        deviation of all, in whose units they are, or by the kernel of ``few`` or the other one.
        """
        if self.fitted is None or self._of_few != few or known.has_grown(few):
            return True
        before = self.fitted[1]
        scale = known.data(known.num_observed).on(before.scale_name).scale
        return not 0.5 * before.scale < scale < 2.0 * before.scale

    def make(
        self,
        data: TrainingData,
        refit: bool,
        few: bool,
        generator: torch.Generator,
        watch: FitWatch | None = None,
    ) -> tuple[PathwiseGP, TrainingData]:
        """Return the surrogate of an ask and its data as it has them: refitted, or with the last
        hyperparameters and weights to start from.
        """
        if refit or self.fitted is None:
            small, data = fit_warped(self.factory, data, generator, few=few, watch=watch)
            return self.factory.build(data, small), data
        last, before = self.fitted
        model, data = self.of(data, self.fitted)
        if not torch.equal(before.U, data.U[: len(before.U)]):  # others are left out
            return model, data
        scale = before.scale / data.scale  # 0 beside a far larger value
        if scale > 0.0 and last.has_weights:
            model.warm_start(last, scale=scale)
        return model, data

    def of(
        self, data: TrainingData, fitted: tuple[PathwiseGP, TrainingData] | None
    ) -> tuple[PathwiseGP, TrainingData]:
        """Return a surrogate of data and these as it has them: by the hyperparameters of one that
        was ``fitted``, or by a fit.
        """
        if fitted is None:
            return self.make(data, True, self.is_for_few(1, len(data.U)), self.randomness(0))
        model, before = fitted
        data = data.on(before.scale_name)
        return self.factory.build(data, model), data

    def keep(
        self, number: int, model: PathwiseGP, data: TrainingData, few: bool, choice: Choice
    ) -> None:
        """Keep the surrogate of an ask for the next one, whose solve starts from the mean weights
        of the ``choice`` by it, and its checkpoint where such are kept.
        """
        self.checkpoint = self.factory.checkpoint(
            number, model, choice.mean_weights, few=few, scale_name=data.scale_name
        )
        if self.checkpoints is not None:
            save_checkpoint(self.checkpoints, self.checkpoint)
        self.hold(model, data, few)

    def hold(self, model: PathwiseGP, data: TrainingData, few: bool) -> None:
        """Take a surrogate for that of the last ask."""
        self.model = model
        self.fitted = model, data
        self._of_few = few

    def restore(self, known: AskInputs, *, solves: bool = True) -> None:
        """Bring back the surrogate after the last ask: from its checkpoint or, from where there is
        none, by solving again; without ``solves``, only where a checkpoint is all that it takes.
        """
        made = [
            ask  # with values, of which some may have been withdrawn
            for ask in known.asks
            if ask.refitted is not None and ask.num_observed >= FEWEST_VALUES
        ]
        if self.model is not None or not made:
            return
        first = max((ask.number for ask in made if ask.refitted), default=made[0].number)
        checkpoint = self._last_checkpoint(known)
        if not solves and (checkpoint is None or checkpoint.ask < made[-1].number):
            return
        if checkpoint is not None and self.take(checkpoint, known):
            first = checkpoint.ask + 1
        elif not solves:
            return
        for ask in made:
            if ask.number >= first:
                generator = self.randomness(ask.number)
                few = self.is_for_few(ask.num_points, ask.num_observed)
                told = known.data(ask.num_observed)
                model, told = self.make(told, bool(ask.refitted), few, generator)
                model.paths(ask.num_points, generator=generator)
                self.hold(model, told, few)

    def take(self, checkpoint: Checkpoint, known: AskInputs) -> bool:
        """Take a checkpoint's surrogate; return whether its kernel is the factory's."""
        ask = known.asks[checkpoint.ask - 1]
        restored = self.factory.restore(known.data(ask.num_observed), checkpoint)
        if restored is None:
            return False
        self.hold(*restored, self.is_for_few(ask.num_points, ask.num_observed))
        return True

    def mean_of_last_ask(self, known: AskInputs) -> Callable[[Tensor], Tensor] | None:
        """Return the mean behind the last ask, from the unit cube (k, e) to values (k,) of which
        the largest is best, without a solve; ``None`` without a checkpoint.
        """
        checkpoint = self._last_checkpoint(known)
        if checkpoint is None or checkpoint.ask > len(known.asks):
            return None
        told = known.data(known.asks[checkpoint.ask - 1].num_observed)
        return mean_of(self.factory, told, checkpoint)

    def let_go(self) -> None:
        """Leave the surrogate of the last ask, which is restored from what is stored."""
        self.model = None
        self.fitted = None
        self.checkpoint = None

    def forget(self) -> None:
        """Leave the surrogate of the last ask, and its checkpoints: its values have changed, and it
        is made again from those that are left.
        """
        self.let_go()
        if self.checkpoints is not None:
            remove_checkpoints(self.checkpoints)

    def _last_checkpoint(self, known: AskInputs) -> Checkpoint | None:
        if self.checkpoint is not None or self.checkpoints is None or not known.asks:
            return self.checkpoint
        return load_checkpoint(self.checkpoints, known.asks[-1].number)


@dataclass(eq=False)
class OutcomeModels:
    """A model of each outcome, all of them refitted together whenever the values have grown. They
    are made again from the values after a restart.
    """

    factory: SurrogateFactory
    randomness: Callable[[int], torch.Generator]
    _fitted: list[PathwiseGP] = field(default_factory=list)
    _fitted_to: list[TrainingData] = field(default_factory=list)

    def of(self, known: AskInputs) -> tuple[list[PathwiseGP], list[TrainingData], bool]:
        """Return the models for an ask, their data, and whether they were refitted."""
        refits = [ask for ask in known.asks if ask.refitted]
        data = known.outcome_data(known.num_observed)
        few = max(len(part.U) for part in data) <= MOST_OF_FEW
        refit = not refits or known.has_grown(few)
        # The fit is of the values of the last refit as they stand now, so that a restart repeats it
        basis = data if refit else known.outcome_data(refits[-1].num_observed)
        is_known = len(basis) == len(self._fitted_to)
        is_known = is_known and all(map(TrainingData.equals, basis, self._fitted_to))
        if refit or not is_known:
            generator = self.randomness(known.number if refit else refits[-1].number)
            few = max(len(part.U) for part in basis) <= MOST_OF_FEW
            fit = partial(fit_warped, self.factory, few=few, scales=["plain"])
            self._fitted = [fit(part, generator)[0] for part in basis]
            self._fitted_to = basis
        pairs = zip(data, self._fitted, strict=True)
        return [self.factory.build(part, fitted) for part, fitted in pairs], data, refit
