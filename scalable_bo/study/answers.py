"""What a study says of its outcomes by its surrogates, while it runs or from where it is kept."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from acquisition.strategies import make_strategy
from scalable_bo.modelling.belief import Belief, believe
from scalable_bo.modelling.factory import MEAN_WEIGHTS, SurrogateFactory
from scalable_bo.modelling.fitting import is_for_few, randomness
from scalable_bo.modelling.training import FEWEST_VALUES
from scalable_bo.report.snapshot import Snapshot, take_snapshot
from scalable_bo.space.space import Space
from scalable_bo.storage.checkpoints import load_checkpoint
from scalable_bo.storage.places import Place
from scalable_bo.storage.record import StudyRecord
from scalable_bo.storage.rounds import Result
from scalable_bo.study.ask_inputs import AskInputs
from scalable_bo.study.surrogate import KeptSurrogate, OutcomeModels
from surrogates import checks
from surrogates.models.fresh import EXACT_UP_TO


class Predicted(tuple[Tensor, Tensor]):
    """Means and standard deviations, as a pair.

    Attributes:
        success: the probabilities (k,) that an evaluation there succeeds, once two or more have
            failed; ``None`` before.
    """

    success: Tensor | None

    def __new__(cls, mean: Tensor, std: Tensor, success: Tensor | None = None) -> Self:
        self = super().__new__(cls, (mean, std))
        self.success = success
        return self


@dataclass(eq=False)
class Answers:
    """What a study says, for any thread. Its models of several outcomes are for nobody else, as the
    next fit depends on the last; ``asking`` is held while the surrogate changes.
    """

    space: Space
    record: StudyRecord
    surrogate: KeptSurrogate
    outcome_models: OutcomeModels
    asking: threading.Lock
    _success: Belief | None = None
    _kept: tuple[Any, Tensor, Belief] | None = None
    _best: tuple[Belief, int] | None = None

    @property
    def result(self) -> Result:
        """The recommended point, and all data; as ``Study.result``."""
        with self.record.lock:
            goal = self.record.goal
            result = Result.of(self.space, self.record.rows, self.record.maximize, goal)
        if goal is not None or not result.best_params:
            return result
        belief = self._belief(fits=False)
        if belief is None:
            return result
        if self._best is None or self._best[0] is not belief:
            allowed = result.values.masked_fill(~result.feasible, math.nan)
            self._best = belief, belief.recommend(result.X, allowed)
        best = self._best[1]
        point = result.X[best : best + 1]
        if belief.quick_mean is not None:
            predicted = float(belief.quick_mean(point)), math.nan
        else:
            mean, std = belief.predict(point)
            predicted = float(mean), float(std)
        return result.recommending(self.space, best, predicted)

    def recommend(self) -> dict[str, Any]:
        """Return the best point of the whole space; as ``Study.recommend``."""
        with self.record.lock:
            goal = self.record.goal
            if goal is not None:
                raise ValueError(
                    "A study must have one objective, and no limits on outcomes, for `recommend`,"
                    f" got the outcomes {', '.join(goal.names)}. Take `result`."
                )
            rows = self.record.rows
            X, values = rows.X, rows.allowed_outcomes(self.space, 1)[:, 0]
            X, values = X[rows.observed], values[rows.observed]
        best = self._required().best_of_space(X, values, self.success())
        return self.space.to_dicts(best)[0]

    def predict(self, params: Any) -> Predicted:
        """Return means and standard deviations; as ``Study.predict``."""
        single = isinstance(params, Mapping)
        X = self.space.read(params, observed=True)
        found = [belief.predict(X) for belief in self._required_of_each()]
        mean, std = (torch.stack(parts, dim=1) for parts in zip(*found, strict=True))
        if self.record.goal is None:
            mean, std = mean[:, 0], std[:, 0]
        belief = self.success()
        success = None if belief is None else belief.probability(X)
        if not single:
            return Predicted(mean, std, success)
        return Predicted(mean[0], std[0], None if success is None else success[0])

    def importances(self, outcome: str | None) -> dict[str, float]:
        """Return the parameters' shares; as ``Study.importances``."""
        names = self.record.wanted.names
        name = names[0] if outcome is None else checks.one_of("outcome", outcome, names)
        return dict(self._required_of_each()[names.index(name)].importances)

    def beliefs(self) -> list[Belief]:
        """Return the posterior of each outcome; none before there are enough values."""
        if len(self.record.rows.observed) < FEWEST_VALUES:
            return []
        return self._required_of_each()

    def success(self) -> Belief | None:
        """Return the posterior of whether an evaluation succeeds; ``None`` where too few failed."""
        known = AskInputs(self.space, self.record)
        data = known.success()
        if data is None:
            return None
        if self._success is None or not self._success.data.equals(data):
            models = self.outcome_models
            generator = models.randomness(known.number)
            self._success = believe(self.space, data, models.factory, generator)
        return self._success

    def _required_of_each(self) -> list[Belief]:
        goal = self.record.goal
        if goal is None:
            return [self._required()]
        known = AskInputs(self.space, self.record)
        self._require_values(known.num_modelled)
        models, data, _ = self.outcome_models.of(known)
        return [
            Belief(self.space, sign, model, part)
            for sign, model, part in zip(goal.signs, models, data, strict=True)
        ]

    def _required(self) -> Belief:
        self._require_values(len(self.record.rows.observed))
        belief = self._belief(fits=True)
        assert belief is not None  # by so many values
        return belief

    def _require_values(self, num_observed: int) -> None:
        if num_observed < FEWEST_VALUES:
            raise ValueError(
                f"There must be at least {FEWEST_VALUES} values for a surrogate, got"
                f" {num_observed}. Tell more, or add data."
            )

    def _belief(self, *, fits: bool) -> Belief | None:
        """Return the posterior of all values by the hyperparameters of the last ask; before one,
        by those of a fit to the same values or, if none has been made, ``None`` unless it ``fits``.
        """
        known = AskInputs(self.space, self.record)
        surrogate = self.surrogate
        few_enough = known.num_observed <= EXACT_UP_TO  # to ask for a posterior in passing
        if surrogate.model is None:
            with self.asking:
                surrogate.restore(known, solves=fits or few_enough)
        fitted = surrogate.fitted
        fits &= known.num_observed >= FEWEST_VALUES
        kept = self._kept
        if fitted is None and not (fits or kept and few_enough):
            return None
        data = known.data(known.num_observed)
        if kept is not None and kept[0] is fitted and torch.equal(kept[1], data.signed):
            return kept[2]
        if fitted is None and not fits:
            return None
        model, data = surrogate.of(data, fitted)
        (sign,) = self.record.wanted.signs
        mean = None if few_enough else surrogate.mean_of_last_ask(known)
        quick = None if mean is None else (lambda X: sign * mean(self.space.normalize(X)))
        belief = Belief(self.space, sign, model, data, quick)
        self._kept = fitted, data.signed, belief
        return belief


def read_snapshot(path: str | os.PathLike[str], name: str | None = None) -> Snapshot:
    """Return what is stored of a study, which other processes may use; nothing is run or imported.

    Args:
        path: the folder that it is kept in, or the URL of a database.
        name: of the study in a database.
    Raises:
        ValueError: if there is no study, or its parameters cannot be read.
        OSError: if the database cannot be reached.
        RuntimeError: if the database is damaged or of a newer version.
    """
    with closing(Place(path, name).look()) as storage:
        settings = storage.load_settings()
        assert settings is not None  # a database is made with them
        given = [one for one in settings["space"]["constraints"] if "coefficients" in one]
        space = Space.from_dict({**settings["space"], "constraints": given})
        record = StudyRecord(storage, settings, space)
        asks = record.asks
        checkpoint = load_checkpoint(storage.checkpoints, asks[-1].number) if asks else None
        record.close()
    dtype = torch.float64 if checkpoint is None else checkpoint.tensors[MEAN_WEIGHTS].dtype
    factory = SurrogateFactory.default(space.encoded_dim, dtype, torch.device("cpu"))
    factory = replace(factory, encoding=space.encoding)
    strategy = make_strategy(settings.get("strategy", "thompson"))
    random = partial(randomness, settings["seed"])
    kept = KeptSurrogate(factory, random, partial(is_for_few, strategy), None)
    kept.checkpoint = checkpoint
    models = OutcomeModels(factory, random)
    answers = Answers(space, record, kept, models, threading.Lock())

    def beliefs() -> list[Belief]:
        if record.goal is None and any(ask.refitted is not None for ask in asks):
            # The kernel may be the user's own, which is not kept
            known = AskInputs(space, record)
            if checkpoint is None or not kept.take(checkpoint, known):
                return []
        return answers.beliefs()

    about = name or Path(path).absolute().name
    return take_snapshot(space, record, beliefs, answers.success, about, {})
