"""L-BFGS on the exact marginal likelihoods of sets of data, and a start that is all but noise.

Notation: X (n, d), y (n,); ``index`` (s, m): s sets of m data, whose log likelihoods are summed.
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

from surrogates.fitting.batched import BatchedGP
from surrogates.rules.hyperparameters import Coordinates, StepCallback, log_prior
from surrogates.rules.limits import LONGEST, lengthscale_limits

SQUARES_HELD = 6  # copies of an (s, m, m) array that an evaluation holds at once
NOISE_SHARE = 0.5  # of the targets' variance, at the start that is all but noise
LITTLE_NOISE = 0.1  # a share that leaves nothing for a second start to explain
FARTHEST = 30.0  # a coordinate may fall so far, which is a factor e³⁰
LBFGS_OPTIONS = {"maxiter": 200, "ftol": 1e-7}


class Search:
    """L-BFGS on the likelihoods of sets of data (with the model's priors).

    Args:
        X, y: (n, d) and (n,) data, float64.
        callback: called after every evaluation with their number and the log likelihood of n data
            as the sets estimate it, with the priors, in nats.

    Attributes:
        best: the best model of the run under way, or of the last one.
    """

    def __init__(self, X: Tensor, y: Tensor, callback: StepCallback | None):
        self._X = X
        self._y = y
        self._callback = callback
        self._evaluations = 0
        self.best: BatchedGP

    def maximise(
        self, start: BatchedGP, index: Tensor, options: dict[str, Any] = LBFGS_OPTIONS
    ) -> BatchedGP:
        """Return the optimum that L-BFGS reaches from ``start`` on the sets ``index`` (s, m).

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
        self.best = deepcopy(start)

        def evaluate(point: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal least
            parts = torch.from_numpy(point).to(X.device).split(sizes)
            for value, part, shape in zip(coordinates.values, parts, shapes, strict=True):
                value.copy_(part.reshape(shape))
            coordinates.write()
            with torch.enable_grad():
                nll = gp.negative_log_likelihood(X, y, index).sum()
                prior = log_prior(gp)
                loss = (nll - prior) / index.numel()
                loss.backward()
            if not math.isfinite(loss.item()):
                raise FloatingPointError(
                    "The likelihood of a set of data is not finite; the model is as it was. Check"
                    " the kernel and its priors."
                )
            coordinates.pull_gradient()
            if loss.item() < least:
                least = loss.item()
                _copy_parameters(gp, self.best)
            self._evaluations += 1
            if self._callback is not None:
                scale = len(self._X) / index.numel()
                self._callback(self._evaluations, prior.item() - scale * nll.item())
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

    def better(self, before: BatchedGP, index: Tensor) -> BatchedGP:
        """Return the best model of the run under way, or ``before`` if that is likelier on the
        sets ``index``: the first steps from far away can lead downhill.
        """
        values = [self._log_posterior(gp, index) for gp in (before, self.best)]
        return self.best if values[1] > values[0] else before

    @torch.no_grad()
    def _log_posterior(self, gp: BatchedGP, index: Tensor) -> float:
        nll = gp.negative_log_likelihood(self._X[index], self._y[index], index).sum()
        return (log_prior(gp) - nll).item()


def noisy_start(gp: BatchedGP, variance: float) -> BatchedGP | None:
    """Return a copy with half of the ``variance`` as noise; ``None`` if that is not learned."""
    likelihood = gp.likelihood
    if not isinstance(likelihood, GaussianLikelihood) or not likelihood.raw_noise.requires_grad:
        return None
    copied = deepcopy(gp)
    bounds = likelihood.noise_covar.raw_noise_constraint
    copied.likelihood.noise = max(NOISE_SHARE * variance, 1.1 * float(bounds.lower_bound))
    return copied


def smooth_start(gp: BatchedGP, X: Tensor, variance: float) -> BatchedGP | None:
    """Return a copy with half of the ``variance`` as noise, and lengthscales by which random points
    are correlated; ``None`` if the noise is not learned.
    """
    noisy = noisy_start(gp, variance)
    if noisy is None:
        return None
    for part, _, longest in lengthscale_limits(noisy.covar_module, X):
        if part.raw_lengthscale.requires_grad:
            # Random points are about √(d / 6) ranges apart
            part.lengthscale = 0.5 * math.sqrt(X.shape[1]) * longest.to(X) / LONGEST
    return noisy


@torch.no_grad()
def _copy_parameters(source: BatchedGP, target: BatchedGP) -> None:
    for parameter, value in zip(target.parameters(), source.parameters(), strict=True):
        parameter.copy_(value)


def _flat(values: Sequence[Tensor | None]) -> np.ndarray:
    flat = torch.cat([value.detach().flatten() for value in values if value is not None])
    return flat.double().cpu().numpy().copy()


def _box(coordinates: Coordinates, first: np.ndarray) -> np.ndarray:
    """Return the (p, 2) bounds of a search that starts at ``first`` (p,).

    Where a coordinate has no upper bound, the first step of L-BFGS-B has length 1 at most: a factor
    e. Between two bounds each it is the whole gradient, which leads far from a start that explains
    little.
    """
    box = np.stack([first - FARTHEST, np.full_like(first, np.inf)], axis=1)
    place = 0
    for value, limits, floor in zip(
        coordinates.values, coordinates.limits, coordinates.floors, strict=True
    ):
        here = slice(place, place + value.numel())
        box[here, 0] = np.maximum(box[here, 0], floor)
        if limits is not None:
            box[here] = np.stack([end.expand_as(value).cpu().flatten() for end in limits], axis=1)
        place += value.numel()
    return box
