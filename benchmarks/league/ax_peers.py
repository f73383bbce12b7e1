"""Ax in the league: with the strategy that it chooses itself, and with ours."""

from __future__ import annotations

import logging
import warnings
from typing import Any

from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from torch import Tensor

from benchmarks.league.base import Optimiser
from scalable_bo.integrations.ax import pathwise_generation_strategy
from scalable_bo.space.parameters import Parameter
from scalable_bo.space.space import Space

OUTCOME = "value"


class AxSearch(Optimiser):
    """Ax' ``Client``, whose trials are asked q at a time and completed before the next are.

    Args:
        strategy: of ours by which Ax chooses, with the defaults of ``pathwise_generation_strategy``
            but for its ``batch_size``; ``None`` for what Ax chooses by itself.
    """

    def __init__(self, space: Space, seed: int, q: int, strategy: str | None = None) -> None:
        super().__init__(space, seed, q)
        # Ax' loggers have levels of their own, and would write a line for each trial
        for name in list(logging.root.manager.loggerDict):
            if name == "ax" or name.startswith("ax."):
                logging.getLogger(name).setLevel(logging.ERROR)
        self._client = Client(random_seed=seed)
        self._client.configure_experiment(
            parameters=[_config(name, param) for name, param in space.params.items()]
        )
        self._client.configure_optimization(objective=f"-{OUTCOME}")
        if strategy is not None:
            own = pathwise_generation_strategy(batch_size=q, seed=seed, strategy=strategy)
            self._client.set_generation_strategy(own)
        self._trials: list[int] = []

    def ask(self, q: int) -> Tensor:
        trials: dict[int, Any] = {}
        with warnings.catch_warnings(action="ignore"):
            while len(trials) < q:  # it may give fewer: those of one of its stages
                more = self._client.get_next_trials(max_trials=q - len(trials))
                if not more:
                    raise RuntimeError(f"Ax must give {q} trials, got {len(trials)} and no more.")
                trials |= more
        self._trials = list(trials)
        return self.space.from_dicts(list(trials.values()))

    def tell(self, X: Tensor, values: Tensor) -> None:
        super().tell(X, values)
        for trial, value in zip(self._trials, values.tolist(), strict=True):
            self._client.complete_trial(trial_index=trial, raw_data={OUTCOME: value})


def _config(name: str, param: Parameter) -> RangeParameterConfig | ChoiceParameterConfig:
    given = param.to_dict()
    if "choices" in given:
        return ChoiceParameterConfig(
            name=name,
            parameter_type="str",
            values=given["choices"],
            is_ordered=given.get("ordered", False),
        )
    return RangeParameterConfig(
        name=name,
        parameter_type=given["type"],
        bounds=(given["low"], given["high"]),
        scaling="log" if given["log"] else "linear",
    )
