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
from scalable_bo.modelling.training import TrainingData
from scalable_bo.space.space import Space
from surrogates import PathwiseGP
from surrogates.models.data import data_sets
from surrogates.models.fresh import EXACT_UP_TO
from surrogates.operators.linalg import jittered_cholesky
from surrogates.rules.data_set import DataSet


@torch.no_grad()
def rough_bands(
    data: DataSet, X: Tensor, prior: float = 0.05, num_compared: int = 500
) -> tuple[Tensor, float]:
    """Return the lower ends (k,) of bands of the function at points X (k, d), two standard
    deviations below its mean, averaged over the share ρ of the noise, of variance σ², that is its
    own, and the probability that ρ is above 0. The covariance ρ σ² R + (1 − ρ) σ² I stands for σ²
    I, where ρ is 0, 0.5, 0.9, 0.99 or 1 − 1e-6.

    R has the correlations of the kernel at lengthscales that are 0.3 to 0.01 of its own. Values at
    points that are far closer together than that differ by noise alone: they tell how large ρ is.
    Without such points ρ remains as likely as before, so that, of points with almost the same
    mean, the one with the best value has the best band.

    Args:
        data: in float64, with one variance of the noise.
        prior: the probability that ρ is not 0, before the values are seen.
        num_compared: of the values, those at the points that are best if ρ is 0.
    """
    K = data.kernel(data.X).to_dense()
    residuals = data.y - data.mean_module(data.X)
    noise = data.noise * torch.eye(len(K), device="cpu").to(K)
    if len(K) > num_compared:
        _, lower = _explained(K + noise, K, K.diagonal(), residuals)
        best = (lower + data.mean_module(data.X)).topk(num_compared).indices
        return rough_bands(data._replace(X=data.X[best], y=data.y[best]), X, prior)
    cross, variances = data.kernel(data.X, X).to_dense(), data.kernel(X, diag=True)
    found = [_explained(K + noise, cross, variances, residuals)]
    for lengthscale in (0.3, 0.1, 0.03, 0.01):
        rough, rough_cross = (
            data.noise * _correlations(data, data.X / lengthscale, part / lengthscale)
            for part in (data.X, X)
        )
        for share in (0.5, 0.9, 0.99, 1.0 - 1e-6):  # not all, so that points may repeat
            covariance = K + share * rough + (1.0 - share) * noise
            total = variances + share * data.noise
            found.append(_explained(covariance, cross + share * rough_cross, total, residuals))
    fits, lowers = map(torch.stack, zip(*found, strict=True))
    priors = torch.full_like(fits, math.log(prior / (len(fits) - 1)))
    priors[0] = math.log(1.0 - prior)
    weights = torch.softmax(priors + fits, 0)
    lower = data.mean_module(X) + weights @ lowers
    return lower, float(weights[1:].sum())


def is_rough(data: DataSet, centre: Tensor, num_compared: int = 500) -> bool:
    """Return whether the function has a part of the noise, more likely than not.

    Args:
        data: as of :func:`rough_bands`.
        centre: (1, d), around which that is asked.
        num_compared: of the values, those at the points nearest to it, whatever they are.
    """
    distances = (data.X - centre).square().sum(1)
    near = distances.topk(min(num_compared, len(distances)), largest=False).indices
    return rough_bands(data._replace(X=data.X[near], y=data.y[near]), centre)[1] > 0.5


def _correlations(data: DataSet, first: Tensor, second: Tensor) -> Tensor:
    """Return the kernel's correlations (n, k) between points; 0 where a point has no variance."""
    least = torch.finfo(data.y.dtype).tiny
    rows, columns = (data.kernel(Z, diag=True).clamp_min(least).sqrt() for Z in (first, second))
    return data.kernel(first, second).to_dense() / rows.unsqueeze(1) / columns


def _explained(
    covariance: Tensor, cross: Tensor, variances: Tensor, residuals: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the log density of residuals by N(0, ``covariance``), less what all have in common,
    and the lower ends (k,) of the bands of residuals at points with covariances ``cross`` (n, k)
    with them.
    """
    root, _ = jittered_cholesky(covariance)
    both = torch.cat([residuals.unsqueeze(1), cross], dim=1)
    whitened = torch.linalg.solve_triangular(root, both, upper=False)
    values, projected = whitened[:, 0], whitened[:, 1:]
    fit = -0.5 * values.square().sum() - root.diagonal().log().sum()
    remaining = (variances - projected.square().sum(0)).clamp_min(0.0)
    return fit, values @ projected - 2.0 * remaining.sqrt()


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
