"""Optuna with large Thompson batches: a sampler that fits a scalable surrogate once a batch.

Notation: n complete trials, U (n, d) their parameters on the unit cube, y (n,) standardised values
of which the largest is best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np
import torch
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.settings import validate_input_scaling

from acquisition import Request, Strategy
from acquisition.strategies import make_strategy
from acquisition.strategy import Sampler
from scalable_bo.integrations.discrete import QUICK_SAMPLER, discrete_batch, split_batches
from scalable_bo.integrations.extras import require
from scalable_bo.storage.surrogate import SurrogateFactory, TrainingData
from surrogates import PathwiseGP, Solver, checks

require("optuna", extra="optuna")

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from scalable_bo.integrations.encoding import UnitCube

MAX_SEED = 2**62


class ThompsonSampler(BaseSampler):
    """An Optuna sampler by parallel Thompson sampling: ``batch_size`` functions of the posterior,
    and the maximiser of each.

    When the last batch has been handed out, a Gaussian process is fitted to all complete trials and
    the next one is drawn; in between a trial costs nothing. Running trials are not proposed again;
    failed and pruned ones, and infinite values, are ignored. Discrete parameters get values that
    are best on the grid, see :func:`discrete_batch`. Parameters that not every complete trial has,
    or with ranges that change, and those of the first trials are sampled by
    ``independent_sampler``. One objective; threads may share a sampler.

    Args:
        batch_size: points drawn at once; about the number of trials that run at the same time.
        n_startup_trials: complete trials before the surrogate takes over.
        seed: of everything random here; ``None`` for another one each time.
        independent_sampler: uniform if ``None``.
        solver: of the surrogate's linear systems; ``None`` for the model's default.
        strategy: how a batch is chosen: ``"thompson"``, ``"turbo"``, ``"log-ei"``, ``"auto"`` or an
            ``acquisition.Strategy`` of your own, as in ``Study``.
        sampler: of a strategy given by name: makes the acquisition of a model, bounds and ``seed``,
            such as ``partial(ParallelThompsonSampling, num_starts=30)``; ``None`` for quicker
            settings than its own.

    Raises:
        TypeError, ValueError: for arguments out of their range; ``ValueError`` for a study of
            several objectives.
    """

    def __init__(
        self,
        *,
        batch_size: int = 1,
        n_startup_trials: int = 10,
        seed: int | None = None,
        independent_sampler: BaseSampler | None = None,
        solver: Solver | None = None,
        strategy: str | Strategy = "thompson",
        sampler: Sampler | None = None,
    ) -> None:
        self._batch_size = checks.positive_int("batch_size", batch_size)
        self._n_startup_trials = checks.integer("n_startup_trials", n_startup_trials, 0)
        if seed is not None:
            checks.integer("seed", seed, 0)
        if solver is not None and not isinstance(solver, Solver):
            raise TypeError(f"`solver` must be a Solver, got {solver!r}. Try `CG()`.")
        self._rng = np.random.default_rng(seed)
        self._independent_sampler = independent_sampler or RandomSampler(seed=seed)
        self._solver = solver
        if sampler is None and isinstance(strategy, str):
            sampler = QUICK_SAMPLER
        self._strategy = make_strategy(strategy, sampler)
        self._search_space = IntersectionSearchSpace()
        self._waiting: list[dict[str, Any]] = []
        self._waiting_space: dict[str, BaseDistribution] = {}
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy is made of: not the lock, nor the points that are waiting,
        which only one of both may hand out.
        """
        return {**self.__dict__, "_lock": None, "_waiting": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock())

    def reseed_rng(self) -> None:
        """Take another seed; Optuna calls this in every thread that it starts."""
        with self._lock:
            self._rng = np.random.default_rng()
        self._independent_sampler.reseed_rng()

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the distributions that all complete trials share, without those of one value."""
        _check_single_objective(study)
        with self._lock:
            space = self._search_space.calculate(study)
        return {
            name: distribution for name, distribution in space.items() if not distribution.single()
        }

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the next point of the batch; nothing before there are enough complete trials,
        or when all points are known.
        """
        _check_single_objective(study)
        space = {
            name: distribution
            for name, distribution in search_space.items()
            if not distribution.single()
        }
        if not space:
            return {}
        with self._lock:
            if not self._waiting or self._waiting_space != space:
                self._waiting = self._draw(study, space)
                self._waiting_space = space
            fixed = {
                name: _only_value(search_space[name]) for name in search_space.keys() - space.keys()
            }
            return {**self._waiting.pop(0), **fixed} if self._waiting else {}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return a value by the independent sampler."""
        _check_single_objective(study)
        return self._independent_sampler.sample_independent(
            study, trial, param_name, param_distribution
        )

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._independent_sampler.before_trial(study, trial)

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        self._independent_sampler.after_trial(study, trial, state, values)

    def _draw(self, study: Study, space: dict[str, BaseDistribution]) -> list[dict[str, Any]]:
        """Return a batch of parameters; none where there are too few trials,
        fewer where the space has no more.
        """
        complete, running = _trials(study, space)
        if not complete or len(complete) < self._n_startup_trials:
            return []
        cube = UnitCube(space)
        U = torch.tensor([cube.encode(trial.params) for trial in complete], dtype=torch.float64)
        values = torch.tensor([trial.value for trial in complete], dtype=torch.float64)
        pending = torch.tensor(
            [cube.encode(trial.params) for trial in running], dtype=torch.float64
        ).reshape(-1, cube.dim)
        generator = torch.Generator().manual_seed(int(self._rng.integers(MAX_SEED)))
        data = TrainingData.of(U, values, None, maximize=study.direction == StudyDirection.MAXIMIZE)
        request = Request(
            self._model(data, generator),
            self._batch_size,
            torch.tensor([[0.0], [1.0]], dtype=torch.float64).repeat(1, cube.dim),
            generator,
            X_pending=pending,
            batches=split_batches(data.y.squeeze(1), self._n_startup_trials, self._batch_size),
        )
        points = discrete_batch(self._strategy, request, to_grid=cube.to_grid, steps=cube.steps)
        return [cube.decode(point) for point in points]

    def _model(self, data: TrainingData, generator: torch.Generator) -> PathwiseGP:
        kernel = get_covar_module_with_dim_scaled_prior(ard_num_dims=data.U.shape[1])
        factory = SurrogateFactory(kernel, self._solver, data.U.dtype, data.U.device)
        # BoTorch would warn of constant values, and of a subset's mean and deviation
        with validate_input_scaling(False):
            return factory.build(data, factory.fit(data, generator))


def _trials(
    study: Study, space: dict[str, BaseDistribution]
) -> tuple[list[FrozenTrial], list[FrozenTrial]]:
    """Return the complete trials with a finite value and the running ones,
    both with parameters in all of ``space``.
    """
    states = (TrialState.COMPLETE, TrialState.RUNNING)
    trials = [
        trial
        for trial in study.get_trials(deepcopy=False, states=states)
        if all(
            trial.distributions.get(name) == distribution for name, distribution in space.items()
        )
    ]
    running = [trial for trial in trials if trial.state == TrialState.RUNNING]
    complete = [
        trial
        for trial in trials
        if trial.state == TrialState.COMPLETE
        and trial.value is not None
        and math.isfinite(trial.value)
    ]
    return complete, running


def _only_value(distribution: BaseDistribution) -> Any:
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[0]
    return distribution.low  # type: ignore[attr-defined]


def _check_single_objective(study: Study) -> None:
    if len(study.directions) > 1:
        raise ValueError(
            f"`study` must have one objective for ThompsonSampler, got {len(study.directions)}. Use"
            " another sampler."
        )
