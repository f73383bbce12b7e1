"""Optuna with the strategies of a study: a sampler that fits a scalable surrogate once a batch.

Notation: n complete trials, U (n, d) their parameters on the unit cube, y (n,) standardised values
of which the largest is best; a trial is feasible if none of its constraints is above 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import torch
from botorch.settings import validate_input_scaling
from torch import Tensor

from acquisition import FeasibleSet, Request, Strategy
from acquisition.strategies import make_strategy
from acquisition.strategy import Sampler
from scalable_bo._packages import require
from scalable_bo.integrations.chooser import choose_batch, fitted_model, split_batches
from scalable_bo.modelling.factory import SurrogateFactory
from scalable_bo.modelling.fitting import MOST_OF_FEW
from scalable_bo.modelling.training import TrainingData
from scalable_bo.space.goal import Goal
from scalable_bo.space.parameters import Categorical, Float, Int, Parameter
from scalable_bo.space.space import Space
from scalable_bo.storage.rows import keys
from scalable_bo.study.asking import num_of_design
from scalable_bo.study.choices import checked_batch
from scalable_bo.study.design import (
    ENUMERATED_UP_TO,
    Design,
    NotEnoughLeftError,
    default_num_initial,
    remaining,
)
from scalable_bo.study.goals import acquisition_goal, goal_strategy
from scalable_bo.study.pace import learn_success
from surrogates import PathwiseGP, Solver, checks

require("optuna", extra="optuna", user="`scalable_bo.integrations.optuna`")

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, TPESampler
from optuna.samplers._base import _process_constraints_after_trial
from optuna.search_space import IntersectionSearchSpace
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

CHOICE = "thompson:choice"  # a system attribute of trials: what their point is by


class ThompsonSampler(BaseSampler):
    """An Optuna sampler by the strategies of a study, ``batch_size`` points at a time.

    When the last batch has been handed out, a Gaussian process is fitted to all complete trials and
    the next one is chosen; in between a trial costs nothing. Running trials are not proposed again,
    nor are those that failed, were pruned, or have an infinite value or a constraint of ∞: from the
    second of them on, the sampler learns where trials succeed, as a study does. Discrete parameters
    take their values while paths are maximised, and up to 20 000 points of a finite space are each
    proposed once. After that, ``independent_sampler`` samples them. It also samples parameters that
    not every complete trial has, or with ranges that change, and integers beyond 2⁴⁰; if it is
    given, those of the first trials, too. Constraints, by ``trial.set_constraint`` or
    ``constraints_func``, are modelled each by a surrogate of its own: an infeasible trial is not
    what is to be improved. So are several objectives, whose hypervolume a batch is to raise.
    Threads may share a sampler.

    Args:
        batch_size: points drawn at once; ``None`` for one where values have come in since the last
            draw (of 300 values or more, one for each 300), and twice as many as before where none
            have: whoever asks for a hundred trials at once waits for seven draws.
        n_startup_trials: complete trials, at least one, before the surrogate takes over, from a
            Sobol sequence of the parameters that the first one has had; ``None`` for the
            design of a study, at most 20, those that still run counted in once half are complete.
        seed: of everything random here; ``None`` for another one each time.
        independent_sampler: of parameters one by one; Optuna's ``TPESampler`` if ``None``.
        solver: of the surrogate's linear systems; ``None`` for the model's default.
        strategy: how a batch is chosen, as in ``Study``: ``"auto"``, ``"thompson"``, ``"turbo"``,
            ``"regions"``, ``"log-ei"`` or an ``acquisition.Strategy`` of your own.
        sampler: of a strategy given by name: makes the acquisition of a model, bounds and ``seed``,
            such as ``partial(ParallelThompsonSampling, num_starts=30)``; ``None`` for a study's.
        constraints_func: maps a complete trial to numbers of which none is above 0 if it is
            feasible, as in Optuna's samplers.
        ask_seconds: that a draw is to take, without constraints, as in ``Study``: by models of the
            values around the best trials where all values would take longer. Each trial's
            ``system_attrs["thompson:choice"]`` says which it was. ``None`` for as long as all
            values take.

    Raises:
        TypeError, ValueError: for arguments out of their range; ``ValueError`` for several
            objectives or constraints with ``ask_seconds``, and for several objectives with a
            strategy by name other than "auto", "thompson" and "log-ei".
    """

    def __init__(
        self,
        *,
        batch_size: int | None = None,
        n_startup_trials: int | None = None,
        seed: int | None = None,
        independent_sampler: BaseSampler | None = None,
        solver: Solver | None = None,
        strategy: str | Strategy = "auto",
        sampler: Sampler | None = None,
        constraints_func: Callable[[FrozenTrial], Sequence[float]] | None = None,
        ask_seconds: float | None = None,
    ) -> None:
        self._batch_size = checks.optional(checks.positive_int, "batch_size", batch_size)
        self._num_startup = checks.optional(checks.integer, "n_startup_trials", n_startup_trials, 0)
        self._seed = checks.optional(checks.integer, "seed", seed, 0)
        if solver is not None and not isinstance(solver, Solver):
            raise TypeError(f"`solver` must be a Solver, got {solver!r}. Try `CG()`.")
        if ask_seconds is not None:
            ask_seconds = checks.positive_float("ask_seconds", ask_seconds)
            if constraints_func is not None:
                raise _no_time_for_several(ask_seconds)
        self._ask_seconds = ask_seconds
        self._independent_sampler = independent_sampler
        self._solver = solver
        self._named = strategy, sampler
        self._strategy = make_strategy(strategy, sampler)
        self._constraints_func = constraints_func
        self._search_space = IntersectionSearchSpace()
        self._waiting: list[dict[str, Any]] = []
        self._waiting_space: dict[str, BaseDistribution] = {}
        self._choice = ""  # what the points that are waiting are by
        self._num_known = -1  # trials that were over at the last draw
        self._last_size = 0  # of its batch
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Return a copy's contents: no lock, nor points that wait, which only one may hand out."""
        return {**self.__dict__, "_lock": None, "_waiting": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock())

    def reseed_rng(self) -> None:
        """Let the independent sampler take another seed; Optuna calls this in every thread that it
        starts. Other draws differ from trial to trial, whoever makes them.
        """
        if self._independent_sampler is not None:
            self._independent_sampler.reseed_rng()

    def _seed_of(self, trial: FrozenTrial, what: str) -> int:
        """Return the seed of a draw for a trial: a study that goes on with the same seed makes
        those that it would have made.
        """
        entropy = None if self._seed is None else (self._seed, trial.number, *what.encode())
        return int(np.random.SeedSequence(entropy).generate_state(1)[0])

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the distributions that all complete trials share and a space can have: without
        those of one value.
        """
        with self._lock:
            space = self._search_space.calculate(study)
        return {name: of for name, of in space.items() if parameter_of(of) is not None}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the next point of the batch; nothing before there are enough complete trials,
        or when all points are known.
        """
        space = {name: of for name, of in search_space.items() if parameter_of(of) is not None}
        if not space:
            return {}
        with self._lock:
            known = _SortedTrials.of(study, space)
            if not self._waiting or self._waiting_space != space or self._is_stale(known):
                self._waiting = self._draw(study, space, known, trial)
                self._waiting_space = space
            if not self._waiting:
                return {}
            if self._choice:
                study._storage.set_trial_system_attr(trial._trial_id, CHOICE, self._choice)
            return self._waiting.pop(0)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return a value by the independent sampler or, without one, by Optuna's TPE."""
        sampler = self._independent_sampler or TPESampler(seed=self._seed_of(trial, param_name))
        return sampler.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        if self._independent_sampler is not None:
            self._independent_sampler.before_trial(study, trial)

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        if self._constraints_func is not None:
            _process_constraints_after_trial(self._constraints_func, study, trial, state)
        if self._independent_sampler is not None:
            self._independent_sampler.after_trial(study, trial, state, values)

    def _is_stale(self, known: _SortedTrials) -> bool:
        """Whether the points that are waiting would be chosen better now, at little cost."""
        is_ours = self._batch_size is None and known.num_over <= MOST_OF_FEW
        return is_ours and known.num_over != self._num_known

    def _size(self, num_known: int) -> int:
        if self._batch_size is not None:
            return self._batch_size
        if num_known == self._num_known:
            return 2 * self._last_size
        return max(1, num_known // MOST_OF_FEW)

    def _draw(
        self,
        study: Study,
        space: dict[str, BaseDistribution],
        known: _SortedTrials,
        trial: FrozenTrial,
    ) -> list[dict[str, Any]]:
        """Return a batch of parameters, at first one of the design; fewer where the space has no
        more, none where others are to sample.
        """
        trials = TrialSpace(space)
        searched = trials.space
        complete = known.complete
        taken = set(keys(trials.points([*complete, *known.without_value])))
        given = self._num_startup
        start = default_num_initial(searched.dim) if given is None else max(1, given)
        num_out = len(complete) + (len(known.running) if given is None else 0)
        if num_of_design(1, start, len(complete), num_out):
            return self._of_design(trials, taken, trial)
        q = self._size(known.num_over)
        self._num_known = known.num_over
        self._last_size = q
        left = None
        if searched.num_points <= ENUMERATED_UP_TO:
            left = searched.normalize(remaining(searched.enumerate(), taken))
            q = min(q, len(left))
        if not q:
            return []
        generator = torch.Generator().manual_seed(self._seed_of(trial, ""))
        U = searched.normalize(trials.points(complete))
        goal, Y = _outcomes(study, complete)
        data = TrainingData.of_each(U, Y, goal.signs)
        values = (goal.signs[0] * Y[:, 0]).where(goal.feasible(Y), math.nan)
        success = TrainingData.of_failures(U, searched.normalize(trials.points(known.failed)))
        factory = SurrogateFactory.default(U.shape[1], torch.float64, U.device, self._solver)
        constraints = searched.acquisition_options(searched.cube)

        def request_of(model: PathwiseGP | list[PathwiseGP], size: int) -> Request:
            return Request(
                model,
                size,
                searched.cube,
                generator,
                X_pending=searched.normalize(trials.points(known.without_value)),
                choices=left,
                constraints=constraints,
                batches=split_batches(values, start, q),
            )

        # BoTorch would warn of constant values, and of a subset's mean and deviation
        with validate_input_scaling(False):
            if len(goal.names) > 1:
                points = self._of_several(
                    factory, goal, data, (U, Y), q, generator, request_of, success
                )
            else:
                seconds = self._ask_seconds if left is None else None
                feasible = FeasibleSet.of(searched.cube, **constraints)
                choose = partial(choose_batch, factory, self._strategy, data[0], feasible, q)
                points, self._choice = choose(generator, request_of, seconds, success)
        return trials.params(points)

    def _of_design(
        self, trials: TrialSpace, taken: set[bytes], trial: FrozenTrial
    ) -> list[dict[str, Any]]:
        """Return a new point of a Sobol sequence; none where the user has a sampler for the first
        trials, and where all points are known.
        """
        if self._independent_sampler is not None:
            return []
        self._choice = ""
        design = Design(
            trials.space, self._seed_of(trial, "") if self._seed is None else self._seed
        )
        try:
            X, _ = design.draw(1, trial.number, taken)
        except NotEnoughLeftError:
            return []
        return trials.params(trials.space.normalize(X))

    def _of_several(
        self,
        factory: SurrogateFactory,
        goal: Goal,
        data: Sequence[TrainingData],
        table: tuple[Tensor, Tensor],
        q: int,
        generator: torch.Generator,
        request_of: Callable[[list[PathwiseGP], int], Request],
        success: TrainingData | None,
    ) -> Tensor:
        if self._ask_seconds is not None:
            raise _no_time_for_several(self._ask_seconds)
        strategy = goal_strategy(goal, *self._named)
        fitted = partial(fitted_model, factory, strategy, q=q, generator=generator)
        # A warp would change how objectives are weighed against one another
        models = [
            fitted(part, has_limit=column > 0 or goal.num_objectives > 1)[0]
            for column, part in enumerate(data)
        ]
        request = request_of(models, q)
        wanted = acquisition_goal(goal, models, data, table, request)
        learned = learn_success(factory, success, generator)
        request = replace(request, goal=wanted, success=learned)
        return checked_batch(strategy.generate(request), request, strategy)


def _no_time_for_several(ask_seconds: float) -> ValueError:
    return ValueError(
        "`ask_seconds` must be None with several objectives and with constraints, got"
        f" {ask_seconds}. Leave it out, and draw fewer points at a time."
    )


def _outcomes(study: Study, complete: Sequence[FrozenTrial]) -> tuple[Goal, Tensor]:
    """Return what is wanted of the objectives, and of the constraints that trials have, and the
    values (n, m) of all: NaN where a trial lacks one, for a constraint of −∞ the negative of the
    largest finite size that it has.
    """
    objectives = {f"objective {k}": of.name.lower() for k, of in enumerate(study.directions)}
    names = list(dict.fromkeys(name for trial in complete for name in trial.constraints))
    rows = [
        [*trial.values, *(trial.constraints.get(name, math.nan) for name in names)]
        for trial in complete
    ]
    Y = torch.tensor(rows, dtype=torch.float64, device="cpu")
    sizes = Y.abs().where(Y.isfinite(), 0.0).amax(0)
    Y = torch.where(Y.isneginf(), -sizes.where(sizes > 0, 1.0), Y)
    return Goal(objectives, {f"constraint {name}": (None, 0.0) for name in names}), Y


def _has_outcomes(trial: FrozenTrial) -> bool:
    """Whether all values of a complete trial are finite, and no constraint is ∞ or NaN."""
    broken = [value for value in trial.constraints.values() if not value < math.inf]
    return not broken and all(map(math.isfinite, trial.values))


@dataclass(frozen=True)
class _SortedTrials:
    """Trials with all parameters of a space: complete ones that have outcomes, those that are over
    without, and running ones.
    """

    complete: list[FrozenTrial]
    failed: list[FrozenTrial]
    running: list[FrozenTrial]

    @classmethod
    def of(cls, study: Study, space: dict[str, BaseDistribution]) -> _SortedTrials:
        known = cls([], [], [])
        for trial in study.get_trials(deepcopy=False):
            if not space.items() <= trial.distributions.items():
                continue
            if trial.state == TrialState.RUNNING:
                known.running.append(trial)
            elif trial.state == TrialState.COMPLETE and _has_outcomes(trial):
                known.complete.append(trial)
            elif trial.state.is_finished():
                known.failed.append(trial)
        return known

    @property
    def num_over(self) -> int:
        return len(self.complete) + len(self.failed)

    @property
    def without_value(self) -> list[FrozenTrial]:
        return [*self.failed, *self.running]


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
