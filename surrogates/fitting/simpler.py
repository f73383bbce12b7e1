"""Explanations of few data by fewer hyperparameters, or without an expectation of little noise.

Few data in many inputs can be told by many lengthscales, whatever they are: the likelihood of noise
rises with every input, and that of data left out, one at a time, too, since the hyperparameters
have seen them. Explanations therefore compete by

    log p(y | θ) − p log log n

with p hyperparameters and n data: the slowest growth of a penalty by which the right number of
parameters is found in the end. Noise about a mean competes, too: k hyperparameters of the kernel
must gain 1.5 k log log n on it, or, where lengthscales are in proportion, k / 2, which is what they
gain on noise on average. If the latter is a mistake little is lost, since so few hyperparameters
cannot follow the noise, and a weak signal, if there is one, is kept.

References:
    Hannan and Quinn (1979), "The Determination of the Order of an Autoregression".
"""

import math
from copy import deepcopy
from typing import NamedTuple

import torch
from botorch.models import SingleTaskGP
from botorch.models.utils.gpytorch_modules import get_gaussian_likelihood_with_lognormal_prior
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.priors import LogNormalPrior
from torch import Tensor

from surrogates.fitting.batched import BatchedGP
from surrogates.fitting.evidence import gain_over_noise, num_learned
from surrogates.fitting.search import Search, is_function_of_its_parts, smooth_start
from surrogates.rules.hyperparameters import StepCallback, training_data
from surrogates.rules.limits import lengthscale_limits

NEEDED_OF_SIGNAL = 1.5  # times log log n, for a hyperparameter of the kernel
NEEDED_OF_FEWEST = 0.5  # nats, for a hyperparameter where lengthscales are in proportion
NOISE_OF_ERRORS = 0.8  # of the squared errors of data left out: there is little else to explain
NEEDED_NATS = 2.0  # by which as many hyperparameters must be likelier, against the prior


class Simpler(NamedTuple):
    """Why an explanation was taken, empty if none was, and how many hyperparameters it saves."""

    note: str
    saved: int = 0


def simplify(model: SingleTaskGP, *, callback: StepCallback | None = None) -> Simpler | None:
    """Give ``model``, an optimum of the exact likelihood, better hyperparameters, if there are any;
    return what was done, or ``None`` if there was nothing to compete with: the noise is given, or
    explains nearly all of the errors of data left out that a signal leaves, or the model learns
    more than its mean, kernel and noise.

    Two more optima compete with the one that the model has, from a start that is half noise, with
    long lengthscales: one whose lengthscales keep the proportions of the inputs' ranges, and, from
    there, one whose lengthscales are free. Neither has the prior of the noise that BoTorch gives a
    model by default, which expects a fiftieth of the variance; a prior of the user's stays. What
    does not gain enough on noise about a mean gives way to lengthscales in proportion.

    Raises:
        FloatingPointError: if a likelihood is not finite; the model is then as it was.
    """
    if not is_function_of_its_parts(model):
        return None
    X, y = training_data(model)
    X = X.double()
    y = y.double()
    index = torch.arange(len(X), device=X.device).unsqueeze(0)

    def gain(gp: BatchedGP) -> float:
        return gain_over_noise(gp, X, y, index)

    present = BatchedGP(model)
    start = smooth_start(present, X, y.var(correction=0).item())
    if start is None:
        return None
    penalty = math.log(math.log(len(X)))
    needed = NEEDED_OF_SIGNAL * penalty * num_learned(present.covar_module)
    if gain(present) > needed and _is_settled(present, X, y, index):
        return None
    search = Search(X, y, callback)
    shared = search.maximise(_without_default_prior(start), index, in_proportion=True)
    saved = _num_proportions(present, X)
    best, note = present, ""
    if saved:
        free = search.maximise(shared, index)
        if gain(free) > gain(best) + NEEDED_NATS:
            best, note = free, "the data are likelier than where little noise is expected"
    allowance = saved * penalty if saved else -NEEDED_NATS
    if gain(shared) + allowance > gain(best) or gain(best) <= needed:
        best, note = shared, "lengthscales in proportion explain as much as their number can tell"
    if best is present:
        return Simpler("")
    best.write_to(model)
    return Simpler(note, saved if best is shared else 0)


def _is_settled(gp: BatchedGP, X: Tensor, y: Tensor, index: Tensor) -> bool:
    """Return whether the noise is nearly all of what data left out, one at a time, are off by."""
    errors, _ = gp.leave_one_out_errors(X[index], y[index], index)
    return gp.likelihood.noise.item() > NOISE_OF_ERRORS * errors.square().mean().item()


def _num_proportions(gp: BatchedGP, X: Tensor) -> int:
    """Return by how many the lengthscales that are learned exceed the parts that have them."""
    parts = [part.raw_lengthscale for part, _, _ in lengthscale_limits(gp.covar_module, X)]
    return sum(raw.numel() - 1 for raw in parts if raw.requires_grad)


def _without_default_prior(gp: BatchedGP) -> BatchedGP:
    """Return a copy without the prior of the noise, if that is BoTorch's default."""
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
