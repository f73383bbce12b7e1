"""The exact marginal likelihood of random samples of the data, maximised from starts that do not
take noise for signal.
"""

from copy import deepcopy
from typing import Any

import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor

from surrogates import checks, memory
from surrogates.fitting.batched import BatchedGP, log_normal
from surrogates.fitting.evidence import NEEDED, paired_difference
from surrogates.fitting.exact import copy_parameters, fit_exact
from surrogates.fitting.search import (
    LITTLE_NOISE,
    Search,
    copy_set_apart,
    finer_starts,
    is_function_of_its_parts,
    smooth_start,
)
from surrogates.restoring import restored_on_failure
from surrogates.rules.hyperparameters import ModelT, StepCallback, training_data


@restored_on_failure
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
    left-out data are not predicted, it starts again from the present hyperparameters, and from
    shorter lengthscales where the sample is likelier with these, as in clusters of points. Either
    optimum must predict up to 1000 other data, jointly, better by two nats: the likelihood of the
    sample, with its priors, may prefer little noise. Where there are fewer than 200 others, the
    sample itself judges, each datum given the rest, by two standard errors. Parts of a sum that are
    equal start with lengthscales each a tenth of the one before: equal slopes would keep them
    equal. In float64, whatever the model. Lengthscales stay between a tenth of the median gap
    between neighbouring values of their input, and a thousand times its range.

    BoTorch fits models with learned transforms of inputs or likelihoods of other kinds to one
    sample, from the present hyperparameters.

    Args:
        sample_size: m, at least 2; at most n are used. An evaluation costs O(s m³).
        num_samples: s, disjoint samples, at most n / m. After the starts, which see the first, the
            sum of the likelihoods of all is maximised.
        restart: ``False`` goes on from the present hyperparameters alone, at most 30 iterations.
        generator: of the samples; one seeded with 0 if ``None``.
        callback: called after every evaluation with their number and the log likelihood of n data
            as the sample estimates it, with the priors, in nats.

    Raises:
        TypeError, ValueError: if an argument is not as above, or the data are not finite.
        MemoryError: if the matrices do not fit in free memory.
        FloatingPointError: if the likelihood is not finite; the model is then as it was.
        KeyboardInterrupt: passed on; the model has the best hyperparameters so far.
    """
    checks.integer("sample_size", sample_size, 2, "One point cannot tell noise from signal.")
    num_samples = checks.positive_int("num_samples", num_samples)
    X, _ = training_data(model)
    n = len(X)
    m = min(int(sample_size), n)
    s = min(num_samples, n // m)
    memory.require(
        memory.squares_bytes(s * m * m),
        X.device,
        f"Fitting {s} samples of {m} points",
        "Reduce `sample_size` or `num_samples`.",
    )
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    order = torch.randperm(n, generator=generator, device=generator.device)
    index = order[: s * m].reshape(s, m).to(X.device)
    if not is_function_of_its_parts(model):
        return _fit_by_botorch(model, index[0], callback)
    search = Search(callback)
    search.best = best = BatchedGP(model)
    try:
        if not restart:
            best = search.maximise(best, index, maxiter=30, ftol=1e-5)
        else:
            best = _best_of(search, copy_set_apart(best), index[:1], order[m : 2 * m].to(X.device))
            if s > 1:
                best = search.maximise(best, index)
    except KeyboardInterrupt:
        best = search.likeliest(best, [search.best], index[:1])
        raise
    finally:
        best.write_to(model)
    return model


def _fit_by_botorch(model: ModelT, rows: Tensor, callback: StepCallback | None) -> ModelT:
    model.train()  # `eval()` then transforms the inputs by what was learned
    small: Any = deepcopy(model)
    small.set_train_data(model.train_inputs[0][rows], model.train_targets[rows], strict=False)
    if isinstance(small.likelihood, FixedNoiseGaussianLikelihood):
        small.likelihood.noise_covar.noise = model.likelihood.noise[rows]
    try:
        fit_exact(small, callback=callback)
    finally:
        copy_parameters(small, model)
    return model.eval()


def _best_of(
    search: Search, given: BatchedGP, index: Tensor, others: Tensor, fewest_others: int = 200
) -> BatchedGP:
    """Return the optimum of the data ``index`` (1, m), of those that a search reaches from its
    starts, that best predicts ``others`` (r,), or the sample itself where these are too few.
    """
    variance = given.y[index].var().item()
    noisy = smooth_start(given, variance)
    if noisy is None or not variance > 0:
        return search.maximise(given, index)
    best = search.maximise(noisy, index)
    judges = others if len(others) >= fewest_others else index.flatten()
    if not _explains(best, index, judges):
        best = _better(search, given, best, index, judges)
    finer = search.likeliest(best, finer_starts(given, given.X[index[0]], variance), index)
    return best if finer is best else _better(search, finer, best, index, judges)


def _explains(gp: BatchedGP, index: Tensor, judges: Tensor) -> bool:
    white = log_normal(gp.y[judges], gp.y[index].mean(), gp.y[index].var())
    gain, error = paired_difference(_predicted(gp, index, judges), white)
    little = LITTLE_NOISE * gp.y[index].var().item()
    return gp.likelihood.noise.mean() < little and gain > NEEDED * error


def _better(
    search: Search,
    start: BatchedGP,
    best: BatchedGP,
    index: Tensor,
    judges: Tensor,
    needed: float = 2.0,  # nats, of other data jointly
) -> BatchedGP:
    """Return the optimum from ``start`` if it predicts the ``judges`` better, or ``best``."""
    try:
        other = search.maximise(start, index)
    except FloatingPointError:  # no likelihood at these hyperparameters
        return best
    finally:
        search.best = best
    if not torch.equal(judges, index.flatten()):
        joint = [_joint(gp, index, judges) for gp in (other, best)]
        return other if joint[0] - joint[1] > needed else best
    predicted = _predicted(best, index, judges)
    gain, error = paired_difference(_predicted(other, index, judges), predicted)
    return other if gain > NEEDED * error else best


@torch.no_grad()
def _joint(gp: BatchedGP, index: Tensor, others: Tensor) -> float:
    """Return the joint log density, in nats, of the data ``others`` (r,) given the sample ``index``
    (1, m). Only the joint one sees that the errors of smooth explanations are correlated.
    """
    both = torch.cat([index, others.unsqueeze(0)], 1)
    nll = [gp.negative_log_likelihood(data).item() for data in (index, both)]
    return nll[0] - nll[1]


@torch.no_grad()
def _predicted(gp: BatchedGP, index: Tensor, judges: Tensor) -> Tensor:
    """Return the log densities (r,) of the data ``judges``: given the sample ``index`` (1, m), or
    each given the others if they are the sample.
    """
    if torch.equal(judges, index.flatten()):
        return gp.leave_one_out(index).flatten()
    judges = judges.unsqueeze(0)
    mean, variance = gp.predict(gp.X[judges], index)
    return log_normal(gp.y[judges], mean, variance + gp.noise(judges)).squeeze(0)
