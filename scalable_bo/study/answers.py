"""What a study says of its objective by its surrogate: predictions, the point that it recommends,
and which parameters matter.

Notation: n values, d parameters; X (k, d) points in the user's units.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from acquisition.log_ei import LIGHT_SAMPLER, NEGLIGIBLE_NOISE
from scalable_bo.modelling.roughness import evidence_of_roughness
from scalable_bo.modelling.training import TrainingData
from scalable_bo.space.space import Space
from scalable_bo.storage.record import StudyRecord
from scalable_bo.storage.rounds import Result
from scalable_bo.study.known import Known
from scalable_bo.study.outcomes import OutcomeModels
from scalable_bo.study.surrogate import FEWEST_VALUES, KeptSurrogate
from surrogates import PathwiseGP, SamplePaths, checks
from surrogates.models.data import data_sets

# In nats, of ripples in the place of noise: the best observed value is the one to recommend then
LEAST_EVIDENCE = 1.0
MOST_RECOMMENDABLE = 500  # of the best observed points, from which one is recommended
PREDICTED_AT_ONCE = 500
SOBOL_POINTS = 1024
SEED_OF_INDICES = 0
SEED_OF_SEARCH = 0
# Values of which a posterior is a direct solve, quick enough for a result to ask for it
QUICK_UP_TO = 2000


@dataclass(frozen=True, eq=False)
class Belief:
    """The surrogate's posterior of all values so far, in the user's units.

    Args:
        space: of the points.
        sign: 1 where the largest value is best, −1 where the smallest is.
        model: of the values.
        data: what it was made of.
        quick_mean: maps X (k, d) to the mean (k,) as of the last ask, where there are too many
            values to solve for the mean of all in passing; ``None`` where there are few.
    """

    space: Space
    sign: float
    model: PathwiseGP
    data: TrainingData
    quick_mean: Callable[[Tensor], Tensor] | None = None

    @torch.no_grad()
    def predict(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return means (k,) and standard deviations (k,) of the objective without its noise.

        Of values on a logarithmic scale: the median, and half the distance between the values one
        standard deviation above and below it.
        """
        middles = []
        spreads = []
        like = self.model.train_inputs[0]
        for part in self.space.normalize(X).split(PREDICTED_AT_ONCE):
            posterior = self.model.posterior(part.to(like))
            mean = posterior.mean[:, 0].to("cpu", torch.float64)
            std = posterior.variance[:, 0].sqrt().to("cpu", torch.float64)
            middles.append(self.data.values_of(mean))
            above = self.data.values_of(mean + std)
            spreads.append(0.5 * (above - self.data.values_of(mean - std)))
        empty = torch.empty(0, dtype=torch.float64, device="cpu")
        return self.sign * torch.cat([empty, *middles]), torch.cat([empty, *spreads])

    def mean(self, X: Tensor) -> Tensor:
        """Return the mean (k,), as of the last ask where there are many values."""
        return self.predict(X)[0] if self.quick_mean is None else self.quick_mean(X)

    @property
    def is_noisy(self) -> bool:
        """Whether there is noise: known, or more than the surrogate of a function without noise may
        find, and nothing that a rougher function explains better.
        """
        known = self.data.noise
        if known is not None:
            return float(known.max()) > NEGLIGIBLE_NOISE
        if float(self.model.likelihood.noise.detach().max()) <= NEGLIGIBLE_NOISE:
            return False
        (data,) = data_sets(deepcopy(self.model).double().eval())
        return evidence_of_roughness(data) < LEAST_EVIDENCE

    def recommend(self, X: Tensor, values: Tensor) -> int:
        """Return which of the evaluated points (n, d) with ``values`` (n,) has the best mean; where
        noise is negligible, which has the best value.
        """
        ranked = (self.sign * values).argsort(descending=True, stable=True)[:MOST_RECOMMENDABLE]
        best = ranked[:1]
        if self.is_noisy:
            best = ranked[(self.sign * self.mean(X[ranked])).argmax()]
        return int(best)

    def best_of_space(self, X: Tensor, values: Tensor) -> Tensor:
        """Return the point (1, d) of the whole space that has the best mean; where noise is
        negligible, the best of the evaluated points X (n, d) with ``values`` (n,).
        """
        recommended = X[[self.recommend(X, values)]]
        if not self.is_noisy:
            return recommended
        like = self.model.train_inputs[0]
        box = torch.tensor([[0.0], [1.0]], device="cpu").to(like).repeat(1, like.shape[1])
        options = self.space.acquisition_options(like)
        search = LIGHT_SAMPLER(self.model, box, seed=SEED_OF_SEARCH, repeats=True, **options)
        paths = self.model.paths(1, generator=torch.Generator().manual_seed(SEED_OF_SEARCH))
        assert isinstance(paths, SamplePaths)  # of one data set
        mean = replace(paths, prior=None, weights=paths.mean_weights)
        found = search.generate(1, paths=mean).to("cpu", torch.float64)
        points = torch.cat([recommended, self.space.unnormalize(found)])
        return points[[int((self.sign * self.predict(points)[0]).argmax())]]

    def importances(self) -> dict[str, float]:
        """Return the total Sobol' index of each parameter in the mean over the whole space, divided
        by the sum of all, the largest first; all alike where the mean is constant.

        The index is the share of the mean's variance that is left when all other parameters are
        known, interactions counted with each of their parameters.

        References:
            Jansen (1999), "Analysis of variance designs for model output": the estimator.
        """
        space = self.space
        engine = torch.quasirandom.SobolEngine(
            2 * space.encoded_dim, scramble=True, seed=SEED_OF_INDICES
        )
        first, second = engine.draw(SOBOL_POINTS, dtype=torch.float64).chunk(2, dim=1)
        values = self.mean(space.unnormalize(first))
        gaps = []
        stop = 0
        for param in space.params.values():
            columns = slice(stop, stop + param.num_columns)
            changed = first.clone()
            changed[:, columns] = second[:, columns]
            gaps.append(self.mean(space.unnormalize(changed)) - values)
            stop += param.num_columns
        # In units of the largest, whose squares are neither infinite nor lost
        largest = max(float(gap.abs().max()) for gap in gaps) or 1.0
        left = [float((gap / largest).square().mean()) for gap in gaps]
        total = sum(left)
        shares = [part / total if total > 0 else 1.0 / space.dim for part in left]
        found = dict(zip(space.names, shares, strict=True))
        return dict(sorted(found.items(), key=lambda item: -item[1]))


class Answers:
    """What a study says, for any thread.

    Args:
        space: of the study.
        maximize: its direction.
        record: what it knows.
        surrogate: of the last ask.
        outcome_models: of several outcomes, for nobody else: the next fit depends on the last.
        asking: held while the surrogate changes.
    """

    def __init__(
        self,
        space: Space,
        maximize: bool,
        record: StudyRecord,
        surrogate: KeptSurrogate,
        outcome_models: OutcomeModels,
        asking: threading.Lock,
    ) -> None:
        self._space = space
        self._maximize = maximize
        self._record = record
        self._surrogate = surrogate
        self._outcome_models = outcome_models
        self._asking = asking
        self._kept: tuple[Any, Tensor, Belief] | None = None

    @property
    def result(self) -> Result:
        """The recommended point, and all data; as ``Study.result``."""
        with self._record.lock:
            goal = self._record.goal
            result = Result.of(self._space, self._record.rows, self._maximize, goal)
        if goal is not None:
            return result
        belief = self._belief(fits=False)
        if belief is None:
            return result
        best = belief.recommend(result.X, result.values)
        point = result.X[best : best + 1]
        if belief.quick_mean is not None:
            predicted = float(belief.quick_mean(point)), math.nan
        else:
            mean, std = belief.predict(point)
            predicted = float(mean), float(std)
        return result.recommending(self._space, best, predicted)

    def recommend(self) -> dict[str, Any]:
        """Return the best point of the whole space; as ``Study.recommend``."""
        with self._record.lock:
            goal = self._record.goal
            if goal is not None:
                raise ValueError(
                    "A study must have one objective, and no limits on outcomes, for `recommend`,"
                    f" got the outcomes {', '.join(goal.names)}. Take `result`."
                )
            rows = self._record.rows
            X, values = rows.X[rows.observed], rows.values[rows.observed]
        best = self._required().best_of_space(X, values)
        return self._space.to_dicts(best)[0]

    def predict(self, params: Any) -> tuple[Tensor, Tensor]:
        """Return means and standard deviations; as ``Study.predict``."""
        single = isinstance(params, Mapping)
        X = self._space.read(params, observed=True)
        if self._record.goal is not None:
            found = [belief.predict(X) for belief in self._of_outcomes()]
            mean, std = (torch.stack(parts, dim=1) for parts in zip(*found, strict=True))
        else:
            mean, std = self._required().predict(X)
        return (mean[0], std[0]) if single else (mean, std)

    def importances(self, outcome: str | None) -> dict[str, float]:
        """Return the parameters' shares; as ``Study.importances``."""
        goal = self._record.goal
        names = ("value",) if goal is None else goal.names
        name = names[0] if outcome is None else checks.one_of("outcome", outcome, names)
        if goal is None:
            return self._required().importances()
        return self._of_outcomes()[names.index(name)].importances()

    def _of_outcomes(self) -> list[Belief]:
        """Return the posterior of each of several outcomes."""
        known = Known.of(self._space, self._record, self._maximize)
        goal = self._record.goal
        assert goal is not None
        self._require_values(known.num_modelled)
        number = len(known.asks) + 1
        models, data, _ = self._outcome_models.of(
            number, known.num_observed, known.asks, known.outcome_data
        )
        return [
            Belief(self._space, sign, model, part)
            for sign, model, part in zip(goal.signs, models, data, strict=True)
        ]

    def _required(self) -> Belief:
        self._require_values(len(self._record.rows.observed))
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
        ``None`` or, if it ``fits``, by those of a fit.
        """
        known = Known.of(self._space, self._record, self._maximize)
        surrogate = self._surrogate
        few_enough = known.num_observed <= QUICK_UP_TO
        if surrogate.model is None:
            with self._asking:
                surrogate.restore(known.asks, known.data, solves=fits or few_enough)
        fitted = surrogate.fitted
        if fitted is None and not (fits and known.num_observed >= FEWEST_VALUES):
            return None
        data = known.data(known.num_observed)
        kept = self._kept
        if kept is not None and kept[0] is fitted and torch.equal(kept[1], data.signed):
            return kept[2]
        model, data = surrogate.of(data, fitted)
        sign = 1.0 if self._maximize else -1.0
        mean = None if few_enough else surrogate.mean_of_last_ask(known.asks, known.data)
        quick = None if mean is None else (lambda X: sign * mean(self._space.normalize(X)))
        belief = Belief(self._space, sign, model, data, quick)
        self._kept = fitted, data.signed, belief
        return belief
