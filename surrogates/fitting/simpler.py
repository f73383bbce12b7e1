"""Explanations of few data by hyperparameters that are expected, in place of the likeliest ones.

Few data in many inputs can be told by many lengthscales, whatever they are: the likelihood of noise
rises with every input, and that of data left out, one at a time, too, since the hyperparameters
have seen them. What tells these explanations from a signal, in all inputs or in few, is that they
need short lengthscales in many inputs and no noise. Explanations therefore compete by

    log p(y | θ) − log p(y | noise about a mean) + log p(θ) − max_θ log p(θ)

with the law p of :class:`Expectation`: an input that does not matter costs nothing
there, one that varies quickly two or three nats. Noise about a mean scores 0. From the simplest to
the one with the most hyperparameters, each must exceed the best before: lengthscales in proportion
by half a nat, since so few hyperparameters cannot follow the noise, others by a nat.
"""

import math
from copy import deepcopy
from typing import NamedTuple

import torch
from botorch.models import SingleTaskGP
from botorch.models.utils.gpytorch_modules import (
    get_covar_module_with_dim_scaled_prior,
    get_gaussian_likelihood_with_lognormal_prior,
)
from gpytorch.kernels import Kernel, PeriodicKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.priors import LogNormalPrior, NormalPrior
from torch import Tensor

from surrogates.fitting.batched import BatchedGP
from surrogates.fitting.evidence import gain_over_noise, gained_by_chance, num_learned
from surrogates.fitting.search import GAIN_ON_NOISE, Search, is_function_of_its_parts, smooth_start
from surrogates.rules.hyperparameters import StepCallback
from surrogates.rules.limits import lengthscale_limits, parts_with_lengthscales

IN_PROPORTION = "lengthscales in proportion explain as much as their number can tell"
EXPECTED = "lengthscales and noise that are expected explain as much"
NEEDED_NATS = 2.0 * GAIN_ON_NOISE  # by which what can follow noise, such as free lengthscales, wins
LOG_MEDIAN = math.sqrt(2.0)  # of one input, of the lengthscales that are expected
SPREAD = math.sqrt(3.0)  # the standard deviation of log ℓ


class Simpler(NamedTuple):
    """Why an explanation was taken, empty if none was, and whether any was better than noise."""

    note: str
    has_signal: bool


def simplify(model: SingleTaskGP, *, callback: StepCallback | None = None) -> Simpler | None:
    """Give ``model``, an optimum of the exact likelihood, better hyperparameters, if there are any;
    return what was done, or ``None`` if there was nothing to compete with: the noise is given, or
    explains nearly all of the errors of data left out that a signal leaves, or the model learns
    more than its mean, kernel and noise.

    Two more optima compete with the one that the model has, from a start that is half noise, with
    long lengthscales: one whose lengthscales keep the proportions of the inputs' ranges, and one
    whose lengthscales are free, both with lengthscales as they are expected to be. Neither has the
    priors that BoTorch gives a model by default, of which that of the noise expects a fiftieth of
    the variance; a prior of the user's stays. Where none is better than noise about a mean, the
    model gets lengthscales in proportion.

    Raises:
        FloatingPointError: if a likelihood is not finite; the model is then as it was.
    """
    if not is_function_of_its_parts(model):
        return None
    present = BatchedGP(model)
    index = present.whole
    start = smooth_start(present, present.y.var(correction=0).item())
    if start is None:
        return None
    expectation = Expectation(present, present.X)

    def score(gp: BatchedGP, *, in_proportion: bool = False) -> float:
        cost = expectation.cost(gp, in_proportion=in_proportion)
        return gain_over_noise(gp, index) - cost

    of_present = score(present)
    if of_present > gained_by_chance(num_learned(present)) and _is_settled(present, index):
        return None
    search = Search(callback)
    start = _without_default_prior(start)
    shared_start = expectation.given_to(start, in_proportion=True)
    shared = search.maximise(shared_start, index, in_proportion=True)
    of_shared = score(shared, in_proportion=True)
    explanations = [(shared, of_shared, GAIN_ON_NOISE, IN_PROPORTION)]
    parts = lengthscale_limits(present.covar_module, present.X)
    learned = [raw for part, _, _ in parts if (raw := part.raw_lengthscale).requires_grad]
    if any(raw.numel() > 1 for raw in learned):
        free = search.maximise(expectation.given_to(start), index)
        explanations.append((free, score(free), NEEDED_NATS, EXPECTED))
    explanations.append((present, of_present, NEEDED_NATS, ""))
    best, note, highest = None, "", 0.0
    for gp, value, needed, reason in explanations:
        if value > highest + needed:
            best, note, highest = gp, reason, value
    if best is None:
        shared.write_to(model)
        return Simpler(IN_PROPORTION, has_signal=False)
    best.write_to(model)
    return Simpler(note, has_signal=True)


def _is_settled(gp: BatchedGP, index: Tensor, share: float = 0.8) -> bool:
    """Return whether noise explains more than a ``share`` of the squared leave-one-out errors."""
    errors, _ = gp.leave_one_out_errors(index)
    return bool(gp.likelihood.noise.mean() > share * errors.square().mean())


def _without_default_prior(gp: BatchedGP) -> BatchedGP:
    copied = deepcopy(gp)
    likelihood = copied.likelihood
    default = get_gaussian_likelihood_with_lognormal_prior().noise_covar.noise_prior
    prior = getattr(likelihood.noise_covar, "noise_prior", None)
    if (
        type(likelihood) is GaussianLikelihood
        and isinstance(prior, LogNormalPrior)
        and (float(prior.loc), float(prior.scale)) == (float(default.loc), float(default.scale))
    ):
        constraint = likelihood.noise_covar.raw_noise_constraint
        copied.likelihood = GaussianLikelihood(noise_constraint=constraint).to(likelihood.raw_noise)
        copied.likelihood.noise = likelihood.noise.detach()
    return copied


class Expectation:
    """The law that is expected of the lengthscales of ``gp`` that are learned and have no prior of
    the user's: for a part of the kernel that looks at d inputs, in units of these inputs' ranges,

        log ℓ ~ N(√2 + ½ log d, 3),

    so that a function is not expected to vary faster in every input the more inputs there are.
    BoTorch gives its default kernel this density as one of ℓ, which its factor 1 / ℓ makes shorter;
    as one of log ℓ an input that does not matter costs nothing.

    Args:
        X: (n, d), as the kernel sees them.
    References:
        Hvarfner, Hellsten and Nardi (2024), "Vanilla Bayesian Optimization Performs Great in High
        Dimensions", section 4.
    """

    def __init__(self, gp: BatchedGP, X: Tensor):
        width = X.amax(0) - X.amin(0)
        width = torch.where(width > 0, width, 1.0)
        names = {part: name for name, part in gp.covar_module.named_modules()}
        self._medians: dict[str, Tensor] = {}
        for part, columns in parts_with_lengthscales(gp.covar_module, X.shape[1]):
            d = len(columns)
            if isinstance(part, PeriodicKernel) or not part.raw_lengthscale.requires_grad:
                continue
            if _has_prior_of_the_users(part, d):
                continue
            own = width[columns.to(width.device)]
            if part.lengthscale.shape[-1] != d:
                own = own.amax(0, keepdim=True)
            self._medians[names[part]] = own.log() + LOG_MEDIAN + 0.5 * math.log(d)

    def given_to(self, gp: BatchedGP, *, in_proportion: bool = False) -> BatchedGP:
        """Return a copy of ``gp`` with this law as the lengthscales' prior.

        Args:
            in_proportion: whether the lengthscales of a part are one hyperparameter, of which this
                is then the law of the geometric mean.
        """
        copied = deepcopy(gp)
        for name, median in self._medians.items():

            def deviation(part: Kernel, median: Tensor = median) -> Tensor:
                value = part.lengthscale.log() - median
                return value.mean() if in_proportion else value

            law = NormalPrior(torch.zeros_like(median[0]), torch.full_like(median[0], SPREAD))
            part = copied.covar_module.get_submodule(name)
            part.register_prior("lengthscale_prior", law, deviation)
        return copied

    @torch.no_grad()
    def cost(self, gp: BatchedGP, *, in_proportion: bool = False) -> float:
        """Return the nats by which the lengthscales of ``gp`` that are shorter than the median are
        less likely than it.

        Args:
            in_proportion: as in :meth:`given_to`.
        """
        total = 0.0
        for name, median in self._medians.items():
            part = gp.covar_module.get_submodule(name)
            short = ((part.lengthscale.log() - median) / SPREAD).clamp_max(0.0)
            nats = 0.5 * short.square()
            total += (nats.mean() if in_proportion else nats.sum()).item()
        return total


def _has_prior_of_the_users(part: Kernel, d: int) -> bool:
    """Return whether ``part``, of d inputs, has another lengthscale prior than BoTorch's."""
    prior = getattr(part, "lengthscale_prior", None)
    if prior is None:
        return False
    default = get_covar_module_with_dim_scaled_prior(ard_num_dims=d).lengthscale_prior
    return not (
        isinstance(prior, LogNormalPrior)
        and torch.allclose(prior.loc.double(), default.loc.double())
        and torch.allclose(prior.scale.double(), default.scale.double())
    )
