"""The exact marginal likelihood of random samples of the data, maximised from starts that do not
take noise for signal.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from gpytorch.likelihoods import GaussianLikelihood
from scipy.optimize import minimize
from torch import Tensor

from surrogates import checks, memory
from surrogates.fitting.batched import BatchedGP, log_normal
from surrogates.fitting.evidence import paired_difference
from surrogates.rules.hyperparameters import (
    Coordinates,
    ModelT,
    StepCallback,
    log_prior,
    restoring,
    training_data,
)
from surrogates.rules.limits import LONGEST, lengthscale_limits

SQUARES_HELD = 6  # copies of an (s, m, m) array that an evaluation holds at once
NOISE_SHARE = 0.5  # of the targets' variance, at the start that is all but noise
LITTLE_NOISE = 0.1  # a share that leaves nothing for a second start to explain
FEWEST_OTHERS = 200  # data outside of the sample that can judge between starts
NEEDED = 2.0  # standard errors by which the second start must be better, judged by the sample
NEEDED_NATS = 2.0  # and judged by others
FARTHEST = 30.0  # a coordinate may move so far, which is a factor e³⁰
LBFGS_OPTIONS = {"maxiter": 100, "ftol": 1e-7}
PRESENT_OPTIONS = {"maxiter": 30, "ftol": 1e-5}  # from hyperparameters that are nearly right


def fit_sample(
    model: ModelT,
    *,
    sample_size: int = 1000,
    num_samples: int = 1,
    restart: bool = True,
    generator: torch.Generator | None = None,
    callback: StepCallback | None = None,
) -> ModelT:
    """Maximise the exact marginal likelihood of random data (with the model's priors); return
    ``model``.

    Random data are far apart, where a model that takes noise for fine structure predicts nothing,
    and L-BFGS starts with half of the variance as noise and lengthscales of half the inputs' ranges
    times √d, from where it meets the smooth explanation first. If more than a tenth stays noise, or
    left-out data are not predicted, it starts again from the present hyperparameters, whose optimum
    must predict up to 1000 other data, jointly, better by two nats: the likelihood of the sample,
    with its priors, may prefer little noise. Where there are fewer than 200 others, the sample
    itself judges, each datum given the rest, by two standard errors. In float64, whatever the
    model. Lengthscales stay between a tenth of the median gap between neighbouring values of their
    input, and a thousand times its range.

    Args:
        sample_size: m, at least 2; at most n are used. An evaluation costs O(s m³).
        num_samples: s, disjoint samples, at most n / m. After the starts, which see the first, the
            sum of the likelihoods of all is maximised.
        restart: ``False`` goes on from the present hyperparameters alone, at most 30 iterations.
        generator: of the samples; one seeded with 0 if ``None``.
        callback: called after every evaluation with their number and the log likelihood of n data
            as the sample estimates it, in nats.

    Raises:
        TypeError, ValueError: if an argument is not as above, or the data are not finite.
        MemoryError: if the matrices do not fit in free memory.
        FloatingPointError: if the likelihood is not finite; the model is then as it was.
        KeyboardInterrupt: passed on; the model has the best hyperparameters so far.
    """
    checks.integer("sample_size", sample_size, 2, "One point cannot tell noise from signal.")
    checks.positive_int("num_samples", num_samples)
    X, y = training_data(model)
    X = X.double()
    y = y.double()
    n = len(X)
    m = min(sample_size, n)
    s = min(num_samples, n // m)
    memory.require(
        SQUARES_HELD * s * m * m * X.element_size(),
        X.device,
        f"Fitting {s} samples of {m} points",
        "Reduce `sample_size` or `num_samples`.",
    )
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    order = torch.randperm(n, generator=generator, device=generator.device)
    index = order[: s * m].reshape(s, m).to(X.device)
    search = _Search(X, y, callback)
    with restoring(model):
        best = BatchedGP(model)
        try:
            if not restart:
                best = search.maximise(best, index, PRESENT_OPTIONS)
            else:
                best = search.from_starts(best, index[:1], order[m : 2 * m].to(X.device))
                if s > 1:
                    best = search.maximise(best, index)
        except KeyboardInterrupt:
            best = search.better(best, index[:1])
            raise
        finally:
            best.write_to(model)
    return model


class _Search:
    """L-BFGS on the likelihoods of samples, and the best model of the run under way."""

    def __init__(self, X: Tensor, y: Tensor, callback: StepCallback | None):
        self._X = X
        self._y = y
        self._callback = callback
        self._evaluations = 0
        self.best: BatchedGP

    def from_starts(self, given: BatchedGP, index: Tensor, others: Tensor) -> BatchedGP:
        """Return the model of the data ``index`` (1, m) that better predicts ``others`` (r,)."""
        self.best = given
        variance = self._y[index].var().item()
        noisy = _smooth_start(given, self._X, NOISE_SHARE * variance)
        if noisy is None or not variance > 0:
            return self.maximise(given, index)
        first = self.maximise(noisy, index)
        judges = others if len(others) >= FEWEST_OTHERS else index.flatten()
        predicted = self._predict(first, index, judges)
        white = log_normal(self._y[judges], self._y[index].mean(), self._y[index].var())
        gain, error = paired_difference(predicted, white)
        if first.likelihood.noise.item() < LITTLE_NOISE * variance and gain > NEEDED * error:
            return first
        try:
            second = self.maximise(given, index)
        except FloatingPointError:  # no likelihood at these hyperparameters
            return first
        finally:
            self.best = first
        if judges is others:
            gain = self._joint(second, index, others) - self._joint(first, index, others)
            return second if gain > NEEDED_NATS else first
        gain, error = paired_difference(self._predict(second, index, judges), predicted)
        return second if gain > NEEDED * error else first

    @torch.no_grad()
    def _joint(self, gp: BatchedGP, index: Tensor, others: Tensor) -> float:
        """Return the joint log density of the data ``others`` (r,) given the sample ``index``
        (1, m), in nats: the errors of smooth explanations are correlated, which that of every datum
        alone does not see.
        """
        both = torch.cat([index, others.unsqueeze(0)], 1)
        nll = [
            gp.negative_log_likelihood(self._X[data], self._y[data], data).item()
            for data in (index, both)
        ]
        return nll[0] - nll[1]

    @torch.no_grad()
    def _predict(self, gp: BatchedGP, index: Tensor, judges: Tensor) -> Tensor:
        """Return the log densities (r,) of the data ``judges``: given the sample ``index`` (1, m),
        or each given the others if they are the sample.
        """
        X = self._X[index]
        y = self._y[index]
        if torch.equal(judges, index.flatten()):
            return gp.leave_one_out(X, y, index).flatten()
        mean, variance = gp.predict_from_all(self._X[judges], X, y, index)
        variance = variance + gp.noise(judges.unsqueeze(0)).squeeze(0)
        return log_normal(self._y[judges], mean, variance)

    def better(self, before: BatchedGP, index: Tensor) -> BatchedGP:
        """Return the best model of the run under way, or ``before`` if that is likelier on the
        samples ``index``: the first steps from far away can lead downhill.
        """
        values = [self._log_posterior(gp, index).item() for gp in (before, self.best)]
        return self.best if values[1] > values[0] else before

    def _log_posterior(self, gp: BatchedGP, index: Tensor) -> Tensor:
        nll = gp.negative_log_likelihood(self._X[index], self._y[index], index).sum()
        return log_prior(gp) - nll

    def maximise(
        self, start: BatchedGP, index: Tensor, options: dict[str, Any] = LBFGS_OPTIONS
    ) -> BatchedGP:
        """Return the optimum that L-BFGS reaches from ``start`` on the samples ``index`` (s, m).

        Raises:
            FloatingPointError: if the likelihood is not finite at the start.
        """
        gp = deepcopy(start)
        coordinates = Coordinates(gp, self._X)
        sizes = [value.numel() for value in coordinates.values]
        shapes = [value.shape for value in coordinates.values]
        X = self._X[index]
        y = self._y[index]
        least = math.inf
        self.best = start

        def evaluate(point: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal least
            parts = torch.from_numpy(point).to(X.device).split(sizes)
            for value, part, shape in zip(coordinates.values, parts, shapes, strict=True):
                value.copy_(part.reshape(shape))
            coordinates.write()
            with torch.enable_grad():
                nll = gp.negative_log_likelihood(X, y, index).sum()
                loss = (nll - log_prior(gp)) / index.numel()
                loss.backward()
            if not math.isfinite(loss.item()):
                raise FloatingPointError(
                    "The likelihood of a sample is not finite; the model is as it was. Check the"
                    " kernel and its priors."
                )
            coordinates.pull_gradient()
            if loss.item() < least:
                least = loss.item()
                self.best = deepcopy(gp)
            self._evaluations += 1
            if self._callback is not None:
                scale = len(self._X) / index.numel()
                self._callback(self._evaluations, -scale * nll.item())
            return loss.item(), _flat([value.grad for value in coordinates.values])

        first = _flat(coordinates.values)
        try:
            minimize(
                evaluate,
                first,
                jac=True,
                method="L-BFGS-B",
                bounds=_box(coordinates, first),
                options=options,
            )
        except FloatingPointError:  # a line search went too far
            if least == math.inf:
                raise
        return self.best


def _smooth_start(gp: BatchedGP, X: Tensor, noise: float) -> BatchedGP | None:
    """Return a copy with this noise variance, and lengthscales by which random points are
    correlated; ``None`` if the noise is not learned.
    """
    likelihood = gp.likelihood
    if not isinstance(likelihood, GaussianLikelihood) or not likelihood.raw_noise.requires_grad:
        return None
    copied = deepcopy(gp)
    bounds = likelihood.noise_covar.raw_noise_constraint
    copied.likelihood.noise = max(noise, 1.1 * float(bounds.lower_bound))
    for part, _, longest in lengthscale_limits(copied.covar_module, X):
        if part.raw_lengthscale.requires_grad:
            # Random points are about √(d / 6) ranges apart
            part.lengthscale = 0.5 * math.sqrt(X.shape[1]) * longest.to(X) / LONGEST
    return copied


def _flat(values: Sequence[Tensor | None]) -> np.ndarray:
    flat = torch.cat([value.detach().flatten() for value in values if value is not None])
    return flat.double().cpu().numpy().copy()


def _box(coordinates: Coordinates, first: np.ndarray) -> np.ndarray:
    """Return the (p, 2) bounds of a search that starts at ``first`` (p,)."""
    box = np.stack([first - FARTHEST, first + FARTHEST], axis=1)
    place = 0
    for value, limits in zip(coordinates.values, coordinates.limits, strict=True):
        here = slice(place, place + value.numel())
        if limits is not None:
            box[here] = np.stack([end.expand_as(value).cpu().flatten() for end in limits], axis=1)
        place += value.numel()
    return box
