"""Optuna's samplers in the league, and ours in Optuna, with their defaults."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import optuna
from optuna.distributions import json_to_distribution
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, NSGAIISampler, TPESampler
from optuna.study import StudyDirection
from optuna.trial import TrialState
from torch import Tensor

from benchmarks.league.base import Optimiser
from scalable_bo.integrations.optuna import ThompsonSampler
from scalable_bo.space.space import Space

SAMPLERS: dict[str, Callable[..., BaseSampler]] = {
    "tpe": TPESampler,
    "gp": GPSampler,
    "cmaes": CmaEsSampler,
    "nsga2": NSGAIISampler,
    "auto": ThompsonSampler,
}


class OptunaSearch(Optimiser):
    """An Optuna study: all trials of a batch are asked before the first of their values is told."""

    def __init__(
        self, space: Space, seed: int, q: int, sampler: str, num_objectives: int = 1
    ) -> None:
        super().__init__(space, seed, q, num_objectives)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study = optuna.create_study(
            sampler=SAMPLERS[sampler](seed=seed),
            directions=[StudyDirection.MINIMIZE] * num_objectives,
        )
        self._distributions = {
            name: json_to_distribution(json.dumps(param.to_dict()))
            for name, param in space.params.items()
        }
        self._trials: list[Any] = []

    def ask(self, q: int) -> Tensor:
        with warnings.catch_warnings(action="ignore"):
            self._trials = [self._study.ask(self._distributions) for _ in range(q)]
        return self.space.from_dicts([trial.params for trial in self._trials])

    def tell(self, X: Tensor, values: Tensor) -> None:
        super().tell(X, values)
        for trial, value in zip(self._trials, values.tolist(), strict=True):
            failed = value != value  # NaN
            self._study.tell(trial, None if failed else value, TrialState.FAIL if failed else None)
