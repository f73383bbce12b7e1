"""What a surrogate says of an outcome: predictions, the point that it recommends, and which
parameters matter.

Notation: n values, d parameters; X (k, d) points in the user's units.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from acquisition.log_ei import LIGHT_SAMPLER
from acquisition.multistart import FunctionOfPoints
from acquisition.outcomes import Demands, OutcomePaths, only_output
from scalable_bo.modelling.factory import SurrogateFactory
from scalable_bo.modelling.fitting import fit_surrogate
from scalable_bo.modelling.roughness import is_rough, rough_bands
from scalable_bo.modelling.training import TrainingData
from scalable_bo.space.space import Space
from surrogates import PathwiseGP
from surrogates.models.data import data_sets
from surrogates.models.fresh import EXACT_UP_TO
from surrogates.rules.data_set import DataSet


@dataclass(frozen=True, eq=False)
class Belief:
    """The surrogate's posterior of all values so far, in the user's units.

    Args:
        sign: 1 where the largest value is best, −1 where the smallest is.
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

        Where values are on a logarithmic scale, these are the median, and half the distance between
        the values one standard deviation above and below it.
        """
        mean, std = self._standardised(self.space.normalize(X))
        above = self.data.values_of(mean + std)
        spread = 0.5 * (above - self.data.values_of(mean - std))
        return self.sign * self.data.values_of(mean), spread

    @torch.no_grad()
    def curve(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean (k,), and what lies two standard deviations below and above it, without
        the noise; the mean itself where there are too many values to ask for it in passing.
        """
        if self.quick_mean is not None:
            mean = self.quick_mean(X)
            return mean, mean, mean
        mean, std = self._standardised(self.space.normalize(X))
        middle, *edges = (
            self.sign * self.data.values_of(mean + width * std) for width in (0.0, -2.0, 2.0)
        )
        return middle, torch.minimum(*edges), torch.maximum(*edges)

    def _standardised(self, U: Tensor) -> tuple[Tensor, Tensor]:
        """Return means (k,) and standard deviations (k,) at U (k, e), in the units of the model."""
        like = self.model.train_inputs[0]
        means = [torch.empty(0, dtype=torch.float64, device="cpu")]
        stds = list(means)
        for part in U.split(EXACT_UP_TO):
            posterior = self.model.posterior(part.to(like))
            means.append(posterior.mean[:, 0].to("cpu", torch.float64))
            stds.append(posterior.variance[:, 0].sqrt().to("cpu", torch.float64))
        return torch.cat(means), torch.cat(stds)

    def _cautious(self, U: Tensor) -> Tensor:
        """Return the worse ends (k,) of the bands at U (k, e), in the units of the model."""
        mean, std = self._standardised(U)
        return mean - 2.0 * std

    def _merits(self, U: Tensor) -> Tensor:
        """Return the worse ends (k,) of the bands at U (k, e): averaged over how much of a learned
        noise may be the function's, where there are few enough values to ask for that in passing.
        """
        if self.data.noise is not None or len(self.data.y) > EXACT_UP_TO:
            return self._cautious(U)
        return rough_bands(self._exact, self.model.transform_inputs(U.to(self._exact.X)))[0]

    @cached_property
    def _exact(self) -> DataSet:
        """What the posterior is of, in double precision."""
        (data,) = data_sets(deepcopy(self.model).double().eval())
        return data

    def mean(self, X: Tensor) -> Tensor:
        """Return the mean (k,), as of the last ask where there are many values."""
        return self.predict(X)[0] if self.quick_mean is None else self.quick_mean(X)

    def probability(self, X: Tensor) -> Tensor:
        """Return the mean (k,) of what is 1 or 0, between both."""
        return self.mean(X).clamp(0.0, 1.0)

    @torch.no_grad()
    def demands(self) -> Demands:
        """Return the demand to be as likely to succeed as the points that did are on average."""
        mean = self.model.paths(1, generator=torch.Generator().manual_seed(0)).mean
        told = self.data.U[self.data.signed > 0].to(self.model.train_inputs[0])
        usual = self.data.values_of(mean(told)).mean()
        return Demands(lambda U: self.data.values_of(mean(U)), usual.unsqueeze(0))

    def _is_noisy(self, X: Tensor, values: Tensor) -> bool:
        """Whether what is best among points X (n, d) with ``values`` (n,) must heed noise. Learned
        noise counts where the values around the best mean do not tell that it is the function's;
        known noise in bands and, among too many values for these, where the mean errs at values by
        as much as it, to an order of magnitude: by less if there is none, by more if it is wrong.
        """
        known = self.data.noise
        if known is None:
            X = X[self._ranked(values)]
            best = self.space.normalize(X[[int((self.sign * self.mean(X)).argmax())]])
            return not is_rough(self._exact, self.model.transform_inputs(best.to(self._exact.X)))
        if self.quick_mean is None:
            return True
        rows = values.argsort(stable=True)[:: math.ceil(len(values) / EXACT_UP_TO)]
        errors = (values[rows] - self.quick_mean(X[rows])).abs() / self.data.scale
        return 0.1 < float((errors / known[rows, 0].sqrt()).nanmedian()) < 10.0

    def _ranked(self, values: Tensor) -> Tensor:
        rows = values.isfinite().nonzero().flatten()
        return rows[(self.sign * values[rows]).argsort(descending=True, stable=True)[:EXACT_UP_TO]]

    @torch.no_grad()
    def recommend(self, X: Tensor, values: Tensor) -> int:
        """Return which of the evaluated points (n, d) with ``values`` (n,), NaN where one is not to
        be recommended, is best even at the worse end of its band; by the mean, where there are too
        many values to ask for a band in passing, and by its value where noise is negligible.

        The largest mean of many is one that is too large, among points of which little is known.

        References:
            Picheny et al. (2013), "Quantile-Based Optimization of Noisy Computer Experiments with
            Tunable Precision".
        """
        ranked = self._ranked(values)
        if not self._is_noisy(X, values):
            return int(ranked[0])
        if self.quick_mean is not None:
            return int(ranked[(self.sign * self.quick_mean(X[ranked])).argmax()])
        return int(ranked[self._merits(self.space.normalize(X[ranked])).argmax()])

    def best_of_space(self, X: Tensor, values: Tensor, success: Belief | None = None) -> Tensor:
        """Return the point (1, d) of the whole space that is best even at the worse end of its
        band; of those that :meth:`recommend` may return where noise is negligible. Others must be
        as likely as these on average to succeed, by the belief in ``success`` if there is one.
        """
        best = X[:0]
        if values.isfinite().any():
            best = X[[self.recommend(X, values)]]
            if not self._is_noisy(X, values):
                return best
        like = self.model.train_inputs[0]
        options = self.space.acquisition_options(like)
        cube = self.space.cube.to(like)
        search = LIGHT_SAMPLER(self.model, cube, seed=0, repeats=True, **options)
        function: Any = FunctionOfPoints(self._cautious)  # maximised as a path is
        demands = None if success is None else success.demands()
        if demands is not None:
            function = OutcomePaths((function,), only_output, demands=demands)
        found = search.generate(1, paths=(function,))
        with torch.no_grad():
            if demands is None or not len(best) or demands.success(found) >= demands.least:
                best = torch.cat([best, self.space.unnormalize(found.to("cpu", torch.float64))])
            return best[[int(self._merits(self.space.normalize(best)).argmax())]]

    @cached_property
    def importances(self) -> dict[str, float]:
        """The total Sobol' index of each parameter in the mean over the unit cube of the space,
        divided by the sum of all, the largest first; all alike where the mean is constant.

        The index is the share of the mean's variance that is left when all other parameters are
        known, interactions counted with each of their parameters.

        References:
            Jansen (1999), "Analysis of variance designs for model output": the estimator.
        """
        space = self.space
        engine = torch.quasirandom.SobolEngine(2 * space.encoded_dim, scramble=True, seed=0)
        first, second = engine.draw(1024, dtype=torch.float64).chunk(2, dim=1)
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


def believe(
    space: Space,
    data: TrainingData,
    factory: SurrogateFactory,
    generator: torch.Generator,
) -> Belief:
    """Return the posterior of plain data of which the largest is best, by a fit to few of them."""
    fitted = fit_surrogate(factory, data, generator, few=True)
    return Belief(space, 1.0, factory.build(data, fitted), data)
