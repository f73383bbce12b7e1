"""Fits in stages, each of which must earn its place on random data predicted from the others."""

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.models import SingleTaskGP
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor

from surrogates.fitting.account import FitAccount, Stage
from surrogates.fitting.evidence import (
    NEEDED,
    Evidence,
    gained_by_chance,
    num_learned,
    paired_difference,
)
from surrogates.fitting.simpler import Simpler
from surrogates.rules.hyperparameters import StepCallback

logger = logging.getLogger(__name__)

FAILURES = (
    FloatingPointError,
    MemoryError,
    ModelFittingError,
    NanError,
    NotPSDError,
    torch.linalg.LinAlgError,  # type: ignore[attr-defined]
)
WHITE_NOISE = "white noise"  # the name of the last stage
# A stage that raises the likelihood of all data stays unless it predicts clearly worse
NEEDED_OF_ALL_DATA = -NEEDED
NEEDED_OF_SIMPLER = -math.inf  # left-out data prefer more hyperparameters, which have seen them


class StageLostError(Exception):
    """A stage is given up: on the way it predicts left-out data worse than the best before it."""

    def __init__(self, density: Tensor, steps: int):
        super().__init__(f"given up after {steps} steps")
        self.density = density


class Stages:
    """Runs methods on ``model``, which has the best hyperparameters so far after each.

    Args:
        evidence: what judges; without, every stage is taken.
        reason: of the account.

    Attributes:
        account: of the stages so far.
    """

    def __init__(self, model: SingleTaskGP, evidence: Evidence | None, reason: str):
        self.account = FitAccount(reason=reason)
        self.failure: Exception | None = None
        self._model = model
        self._evidence = evidence
        self._given = _state(model)
        self._best: dict[str, Tensor] | None = None
        self._density: Tensor | None = None
        self._was_simplified = False  # then hyperparameters have seen all data, left out or not
        self._found_signal: bool | None = None  # by the comparison with simpler explanations

    def run(
        self,
        name: str,
        method: Callable[[], object],
        *,
        anew: bool = False,
        of_all_data: bool = False,
    ) -> None:
        """Run ``method`` and take its result if that is better; a failure leaves the best before.

        Args:
            anew: start from the hyperparameters that the model had at first.
            of_all_data: whether the method raises the likelihood of all data, not of some.

        Raises:
            KeyboardInterrupt: passed on, with a note of what the model has.
        """
        if anew:
            _restore(self._model, self._given)
        with self._watching(name) as clock:
            method()
            needed = NEEDED_OF_ALL_DATA if of_all_data else NEEDED
            self._judge(name, clock(), needed)

    def observe(self, told: StepCallback | None, steps: int, value: float) -> None:
        """Tell of a step, and give the stage up if it would not be taken after one, two or four.

        Raises:
            StageLostError: if it is given up.
        """
        if told is not None:
            told(steps, value)
        if self._evidence is None or self._density is None or steps not in (1, 2, 4):
            return
        try:
            density = self._evidence.log_densities(self._model)
        except FAILURES:  # hyperparameters on the way need not predict
            return
        over_best = paired_difference(density, self._density)
        if over_best.mean < NEEDED_OF_ALL_DATA * over_best.error:
            raise StageLostError(density, steps)

    def simplify(self, method: Callable[[], Simpler | None]) -> None:
        """Run ``method``, which itself compares its results with the best before, and gives the
        model what is better.

        Raises:
            KeyboardInterrupt: passed on, with a note of what the model has.
        """
        with self._watching("simpler") as clock:
            self._was_simplified = True
            result = method()
            if result is None:
                return
            self._found_signal = result.has_signal
            if result.note:
                self._judge("simpler", clock(), NEEDED_OF_SIMPLER, result.note)
            else:
                note = "it does not explain the data as well"
                self._note(Stage("simpler", clock(), accepted=False, note=note))

    @property
    def has_signal(self) -> bool:
        """Whether the best hyperparameters explain the data better than noise about their mean."""
        if self._evidence is None or self._density is None:
            return True
        if self._found_signal is not None:
            return self._found_signal
        if not self._was_simplified:
            over_noise = paired_difference(self._density, self._evidence.white)
            if over_noise.mean > NEEDED * over_noise.error:
                return True
        return self._evidence.gain(self._model) > gained_by_chance(num_learned(self._model))

    def compare_with_noise(self, tolerated: float = 0.02) -> None:
        """Make all of the data noise if the best hyperparameters do not explain them better.

        Args:
            tolerated: nats a point that white noise may lose as a model of the kernel's, to which
                the other data of a block have to tell the mean.
        """
        if self._evidence is None or self._density is None or self.has_signal:
            return
        start = time.perf_counter()
        if not self._evidence.silence(self._model):
            return
        density = self._evidence.log_densities(self._model)
        accepted = paired_difference(density, self._evidence.white).mean > -tolerated
        note = "no stage explained the data better than noise about their mean"
        self._settle(WHITE_NOISE, time.perf_counter() - start, density, accepted, note)

    @contextmanager
    def _watching(self, name: str) -> Iterator[Callable[[], float]]:
        """Yield the seconds since the start. If the block fails, is interrupted or gives the stage
        up, the model goes back to the best before it, and the stage is noted.
        """
        start = time.perf_counter()

        def clock() -> float:
            return time.perf_counter() - start

        try:
            yield clock
        except KeyboardInterrupt as error:
            if self._best is None:
                stage = Stage(name, clock(), note="interrupted; its best so far")
            else:
                self._back()
                stage = Stage(name, clock(), accepted=False, note="interrupted")
            self.account = self.account.with_stage(stage, interrupted=True)
            error.add_note(f"The model has the hyperparameters of {self.account.chosen!r}.")
            raise
        except StageLostError as lost:
            self._settle(name, clock(), lost.density, False, str(lost))
        except FAILURES as error:
            self.failure = error
            self._back()
            self._note(Stage(name, clock(), accepted=False, note=f"it failed: {error}"))

    def _judge(self, name: str, seconds: float, needed: float, note: str = "") -> None:
        if self._evidence is None:
            self._best = _state(self._model)
            self._note(Stage(name, seconds, note=note))
            return
        try:
            density = self._evidence.log_densities(self._model)
        except FAILURES as error:
            self.failure = error
            self._back()
            failed = f"its predictions failed: {error}"
            self._note(Stage(name, seconds, accepted=False, note=failed))
            return
        accepted = True
        if self._density is not None:
            over_best = paired_difference(density, self._density)
            accepted = over_best.mean > needed * over_best.error
        self._settle(name, seconds, density, accepted, note)

    def _settle(
        self, name: str, seconds: float, density: Tensor, accepted: bool, note: str
    ) -> None:
        assert self._evidence is not None
        over_noise = paired_difference(density, self._evidence.white)
        over_best = None if self._density is None else paired_difference(density, self._density)
        mean = density.mean().item()
        self._note(Stage(name, seconds, mean, over_noise, over_best, accepted, note))
        if accepted:
            self._best = _state(self._model)
            self._density = density
        else:
            self._back()

    def _back(self) -> None:
        _restore(self._model, self._given if self._best is None else self._best)

    def _note(self, stage: Stage) -> None:
        self.account = self.account.with_stage(stage)
        logger.log(logging.WARNING if "failed" in stage.note else logging.INFO, "%s", stage)


def _state(model: SingleTaskGP) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@torch.no_grad()
def _restore(model: SingleTaskGP, state: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(state[name])
