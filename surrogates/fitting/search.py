"""L-BFGS on the exact marginal likelihoods of sets of data, and a start that is all but noise.

Notation: X (n, d), y (n,); ``index`` (s, m): s sets of m data, whose log likelihoods are summed.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from botorch.models import SingleTaskGP
from gpytorch.constraints import Positive
from gpytorch.kernels import AdditiveKernel, InducingPointKernel, Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from scipy.optimize import OptimizeResult, minimize
from threadpoolctl import ThreadpoolController
from torch import Tensor
from torch.nn import Module

from surrogates import memory
from surrogates.fitting.batched import BatchedGP
from surrogates.rules.hyperparameters import Coordinates, StepCallback, learned_elsewhere, log_prior
from surrogates.rules.limits import INFERRED_NOISE, LONGEST, RESOLUTION, assign, lengthscale_limits

LITTLE_NOISE = 0.1  # a share that leaves nothing for a second start to explain
GAIN_ON_NOISE = 0.5  # nats that one hyperparameter gains there, on average: χ²_1 / 2
NOT_FINITE = (
    "The likelihood of a set of data is not finite; the model is as it was. Check the kernel and"
    " its priors."
)
# A step of SciPy's L-BFGS-B factorises matrices of 20 rows. Threads of the BLAS that comes with
# SciPy wait for one another far longer than that takes, so a search limits them to one.
SCIPYS_BLAS = ThreadpoolController().select(prefix="libscipy_openblas")
with_one_blas_thread = memory.SharedContext(partial(SCIPYS_BLAS.limit, limits=1))


class Search:
    """L-BFGS on the likelihoods of sets of data (with the model's priors).

    Args:
        callback: called after every evaluation with their number and the log likelihood of n data
            as the sets estimate it, with the priors, in nats.

    Attributes:
        best: the best model of the run under way, or of the last one; set by the caller before
            the first, where an interruption may come before it.
    """

    def __init__(self, callback: StepCallback | None):
        self._callback = callback or (lambda number, likelihood: None)
        self._evaluations = 0
        self._found: list[_Optimum] = []
        self.best: BatchedGP

    def maximise(
        self,
        start: BatchedGP,
        index: Tensor,
        *,
        in_proportion: bool = False,
        maxiter: int = 200,
        maxfun: int = 15_000,
        ftol: float = 1e-7,
    ) -> BatchedGP:
        """Return the optimum that L-BFGS reaches from ``start`` on the sets ``index`` (s, m).

        A search ends on the way to an optimum that a former one has found: about as likely, with no
        valley in between. From there it would only find that one again.

        Args:
            in_proportion: whether the lengthscales of a part of the kernel keep the ratios that
                they have in ``start``, so that they are one hyperparameter.
            maxiter, maxfun, ftol: options of SciPy's L-BFGS-B.

        Raises:
            FloatingPointError: if the likelihood is not finite at the start.
        """
        gp = deepcopy(start)
        coordinates = Coordinates(gp, gp.X, in_proportion=in_proportion)
        first = np.array(coordinates.value.tolist())
        best = _Optimum(index, first, math.inf)

        def evaluate(point: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal best
            coordinates.move_to(torch.from_numpy(point))
            with torch.enable_grad():
                prior = log_prior(gp)
                nll = gp.negative_log_likelihood(index).sum()
                loss = (nll - prior) / index.numel()
                loss.backward()
            if not math.isfinite(loss.item()):
                raise FloatingPointError(NOT_FINITE)
            if loss.item() < best.loss:
                best = _Optimum(index, point.copy(), loss.item())
            slope = np.array(coordinates.pull_gradient().tolist())
            self._evaluations += 1
            self._callback(self._evaluations, prior.item() - nll.item() * len(gp.X) / index.numel())
            return loss.item(), slope

        def end_where_others_did(intermediate_result: OptimizeResult) -> None:
            point, loss = intermediate_result.x, intermediate_result.fun
            for other in self._found:
                if other.is_near(index, point, loss):
                    coordinates.move_to(torch.from_numpy(0.5 * (point + other.point)))
                    if -self.log_posterior(gp, index) <= loss * index.numel():
                        raise StopIteration

        try:
            with with_one_blas_thread():
                minimize(
                    evaluate,
                    first,
                    jac=True,
                    method="L-BFGS-B",
                    bounds=_box(coordinates),
                    callback=None if in_proportion else end_where_others_did,
                    options={"maxiter": maxiter, "maxfun": maxfun, "ftol": ftol},
                )
        except FloatingPointError:  # a line search went too far
            if best.loss == math.inf:
                raise
        finally:
            coordinates.move_to(torch.from_numpy(best.point))
            self.best = gp
        if not in_proportion:
            self._found.append(best)
        return gp

    def likeliest(self, first: BatchedGP, others: Iterable[BatchedGP], index: Tensor) -> BatchedGP:
        """Return ``first``, or that of the ``others`` which is likeliest on the sets ``index``. The
        first steps from far away can lead downhill.
        """
        best = first
        highest = self.log_posterior(first, index)
        for gp in others:
            value = self.log_posterior(gp, index)
            if value > highest:
                best = gp
                highest = value
        return best

    @torch.no_grad()
    def log_posterior(self, gp: BatchedGP, index: Tensor) -> float:
        """Return the log likelihood of the sets ``index``, with the priors, in nats."""
        return (log_prior(gp) - gp.negative_log_likelihood(index).sum()).item()


class FitEndedError(KeyboardInterrupt):
    """The clock interrupts a fit, or others that have reached more do."""


@dataclass
class FitWatch:
    """What several fits tell on the way, and when they end."""

    callback: Callable[[int], None] | None = None  # called with the number of evaluations so far
    deadline: float | None = None  # of ``time.perf_counter``
    number: int = 0  # of evaluations so far
    # The largest log likelihood after each evaluation of the fit under way
    course: list[float] = field(default_factory=lambda: [-math.inf])
    least: float = -math.inf  # what that is to exceed

    def begin(self, least: float) -> None:
        """Watch another fit."""
        self.course = [-math.inf]
        self.least = least

    def __call__(self, _: int, likelihood: float) -> None:
        self.number += 1
        self.course.append(max(self.course[-1], likelihood))
        if self.callback is not None:
            self.callback(self.number)
        gained = self.course[-1] - self.course[len(self.course) // 2]  # in the latter half
        is_lost = self.course[-1] + 2.0 * gained <= self.least
        is_late = self.deadline is not None and time.perf_counter() > self.deadline
        if is_late or (is_lost and len(self.course) > 8):
            raise FitEndedError


def is_function_of_its_parts(model: SingleTaskGP) -> bool:
    """Return whether the likelihood of ``model`` is that of its mean, kernel and noise, for one
    data set, and nothing else is learned.
    """
    return (
        model.train_targets.ndim == 1
        and type(model).forward is SingleTaskGP.forward
        and type(model.likelihood) in (*INFERRED_NOISE, FixedNoiseGaussianLikelihood)
        and not any(isinstance(part, InducingPointKernel) for part in model.modules())
        and not learned_elsewhere(model)
    )


def noisy_start(gp: BatchedGP, variance: float, share: float = 0.5) -> BatchedGP | None:
    """Return a copy with a ``share`` of the ``variance`` as noise, ``None`` if not learned."""
    likelihood = gp.likelihood
    if not isinstance(likelihood, INFERRED_NOISE) or not likelihood.raw_noise.requires_grad:
        return None
    copied = deepcopy(gp)
    assign(copied.likelihood.noise_covar, "noise", share * variance)
    return copied


def copy_set_apart(gp: BatchedGP) -> BatchedGP:
    """Return a copy whose equal parts are :func:`set_apart`; ``gp`` itself if there are none."""
    copied = deepcopy(gp)
    return copied if set_apart(copied) else gp


@torch.no_grad()
def set_apart(model: Module, share: float = 0.1) -> bool:
    """Give equal parts of a sum of kernels lengthscales each a ``share`` of the one before, as far
    as their bounds allow; return whether there are any.

    Equal parts have equal slopes, so that a search from them would keep them equal for ever.
    """
    found = False
    for total in model.modules():
        if not isinstance(total, AdditiveKernel):
            continue
        before: list[Kernel] = []
        for part in total.kernels:
            num_equal = sum(_are_equal(part, other) for other in before)
            before.append(deepcopy(part))
            if num_equal:
                found = _shorten(part, share**num_equal) or found
    return found


def _are_equal(one: Kernel, other: Kernel) -> bool:
    kinds = [
        [(type(part), getattr(part, "nu", None)) for part in kernel.modules()]
        for kernel in (one, other)
    ]
    own = one.state_dict()
    others = other.state_dict()
    return (
        kinds[0] == kinds[1]
        and own.keys() == others.keys()
        and all(torch.equal(value, others[name]) for name, value in own.items())
    )


def _shorten(kernel: Kernel, share: float) -> bool:
    """Multiply learned lengthscales by ``share``, within bounds; return whether there are any."""
    shortened = False
    for part in kernel.modules():
        if not isinstance(part, Kernel) or not part.has_lengthscale:
            continue
        if not part.raw_lengthscale.requires_grad:
            continue
        bounds = part.raw_lengthscale_constraint
        value = share * part.lengthscale
        if bounds is None or bounds.check(value):
            part.lengthscale = value
            shortened = True
    return shortened


def smooth_start(gp: BatchedGP, variance: float) -> BatchedGP | None:
    """Return a copy with half of the ``variance`` as noise, and lengthscales by which random points
    are correlated, as far as their bounds allow; ``None`` if the noise is not learned.
    """
    noisy = noisy_start(gp, variance)
    if noisy is None:
        return None
    for part, _, longest in lengthscale_limits(noisy.covar_module, gp.X):
        if part.raw_lengthscale.requires_grad:
            # Random points are about √(d / 6) ranges apart
            assign(part, "lengthscale", 0.5 * math.sqrt(gp.X.shape[1]) * longest / LONGEST)
    return copy_set_apart(noisy)


def finer_starts(
    gp: BatchedGP, X: Tensor, variance: float, *, excluded: bool = False, ratio: float = 0.1**0.5
) -> Iterator[BatchedGP]:
    """Yield copies with a tenth of the ``variance`` as noise, whose lengthscales are ever smaller
    shares of the inputs' ranges, powers of ``ratio``, as long as a quarter of the points have a
    neighbour at that distance; none if the noise is not learned.

    Args:
        excluded: yield those that the bounds of the kernel exclude, without these bounds, and not
            those that they allow.
    """
    start = noisy_start(gp, variance, LITTLE_NOISE)
    if start is None:
        return
    parts = [
        (part, longest.to(X) / LONGEST)
        for part, _, longest in lengthscale_limits(start.covar_module, X)
        if part.raw_lengthscale.requires_grad
    ]
    bounds = [part.raw_lengthscale_constraint for part, _ in parts]
    if excluded:
        for part, _ in parts:
            part.register_constraint("raw_lengthscale", Positive())
    nearest = _distance_of_neighbours(X)
    share = ratio
    while parts and share > nearest:
        allowed = all(
            bound is None or bound.check(share * width)
            for bound, (_, width) in zip(bounds, parts, strict=True)
        )
        if allowed is not excluded:
            for part, width in parts:
                part.lengthscale = share * width
            yield copy_set_apart(deepcopy(start))
        share *= ratio


@torch.no_grad()
def _distance_of_neighbours(X: Tensor) -> float:
    """Return the lower quartile of distances to the nearest point, in ranges of the inputs."""
    width = X.amax(0) - X.amin(0)
    Z = X / torch.where(width > 0, width, 1.0)
    distance = torch.cdist(Z, Z, compute_mode="donot_use_mm_for_euclid_dist")
    distance.masked_fill_(distance <= RESOLUTION, math.inf)  # itself, and duplicates
    return distance.amin(1).quantile(0.25).item()


@dataclass(frozen=True)
class _Optimum:
    index: Tensor  # (s, m), the data of the search
    point: np.ndarray  # (p,), the coordinates of the optimum
    loss: float  # −log likelihood a datum there, with the priors

    def is_near(self, index: Tensor, point: np.ndarray, loss: float) -> bool:
        """Whether a point on the same data is as likely, less what p coordinates gain on noise."""
        nats = index.numel() * (loss - self.loss)
        return torch.equal(index, self.index) and nats < GAIN_ON_NOISE * len(point)


def _box(coordinates: Coordinates) -> np.ndarray:
    """Return the (p, 2) bounds of a search.

    Where a coordinate has no upper bound, the first step of L-BFGS-B has length 1 at most: a factor
    e. Between two bounds each it is the whole gradient, which leads far from a start that explains
    little.
    """
    # The logarithm may fall until the hyperparameter is lost beside where it started
    lowest = coordinates.value + math.log(torch.finfo(coordinates.value.dtype).eps)
    lowest = torch.maximum(lowest, coordinates.floors)
    lower = torch.where(coordinates.lower.isfinite(), coordinates.lower, lowest)
    return np.array(torch.stack([lower, coordinates.upper], dim=1).tolist())
