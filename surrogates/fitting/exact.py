"""The exact marginal likelihood, for small n."""

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, TypeVar

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim.closures import get_loss_closure_with_grads
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from surrogates import checks, memory
from surrogates.fitting.batched import BatchedGP
from surrogates.fitting.search import (
    LITTLE_NOISE,
    Search,
    copy_set_apart,
    finer_starts,
    is_function_of_its_parts,
    noisy_start,
)
from surrogates.operators.linalg import DIRECT_SOLVE_UP_TO
from surrogates.restoring import restored_on_failure
from surrogates.rules.hyperparameters import StepCallback
from surrogates.rules.limits import clamp_lengthscales

M = TypeVar("M", bound=SingleTaskGP)


@restored_on_failure
def fit_exact(
    model: M,
    *,
    callback: StepCallback | None = None,
    max_evaluations: int | None = None,
    **optimizer_kwargs: Any,
) -> M:
    """Maximise the exact log marginal likelihood of ``model`` (with its priors) over its
    hyperparameters; return it.

    L-BFGS starts from the present hyperparameters, but half of the variance as noise, if that is
    learned: with less, it meets explanations without noise first. If less than a tenth stays noise,
    it starts from the present noise, too, and from ever shorter lengthscales where some are
    likelier than that, as in clusters of points. The likelier optimum is taken. Parts of a sum that
    are equal start with lengthscales each a tenth of the one before: equal slopes would keep them
    equal. In float64, whatever the model. Lengthscales end between a tenth of the median gap
    between neighbouring values of their input, and a thousand times its range.

    BoTorch fits, from the present hyperparameters, several outputs or data sets, models with
    learned transforms of inputs or likelihoods of other kinds, and whatever comes with
    ``optimizer_kwargs``.

    Args:
        model: at most 4096 points: an evaluation factorises the n × n kernel matrix.
        callback: called after every evaluation with their number and the log marginal likelihood
            with priors, in nats; of one output only.
        max_evaluations: of the likelihood, from the present hyperparameters alone; a last line
            search may go a few beyond. ``None`` for all starts, to the end of each. Not where
            BoTorch fits.
        optimizer_kwargs: passed to BoTorch's ``fit_gpytorch_mll``, such as
            ``optimizer_kwargs={"options": {"maxiter": 100}}``.

    Raises:
        ValueError: if the model has more points, its data are not finite, or BoTorch fits and
            ``max_evaluations`` is given.
        MemoryError: if the matrices do not fit in free memory.
        FloatingPointError: if the likelihood is not finite; the model is then as it was.
        KeyboardInterrupt: passed on; the model has the best hyperparameters so far, if it has one
            output.
    """
    n = model.train_targets.shape[-1]
    if n > DIRECT_SOLVE_UP_TO:
        raise ValueError(
            f"`model` must have at most {DIRECT_SOLVE_UP_TO} points for the exact marginal"
            f" likelihood, got {n}. Fit a model of a random subset and load its state,"
            " `model.load_state_dict(small.state_dict(), strict=False)`, or use `fit(model)`."
        )
    checks.floating_tensor("model.train_inputs", model.train_inputs[0])
    checks.floating_tensor("model.train_targets", model.train_targets)
    is_searched = not optimizer_kwargs and is_function_of_its_parts(model)
    if max_evaluations is not None:
        max_evaluations = checks.positive_int("max_evaluations", max_evaluations)
        if not is_searched:
            raise ValueError(
                f"`max_evaluations` must be None where BoTorch fits, got {max_evaluations}. Use"
                ' `optimizer_kwargs={"options": {"maxfun": …}}` there.'
            )
    if is_searched:
        _search(model, callback, max_evaluations)
    else:
        _fit_by_botorch(model, callback, optimizer_kwargs)
    return model.eval()


def _search(
    model: SingleTaskGP, callback: StepCallback | None, max_evaluations: int | None
) -> None:
    """Write the likelier of the optima to ``model``, or the best before an interruption."""
    n = len(model.train_targets)
    memory.require(
        memory.squares_bytes(n * n),
        model.train_targets.device,
        f"An exact fit of {n} points",
        "Fit a model of a random subset, or use `fit_sample`.",
    )
    search = Search(callback)
    search.best = given = BatchedGP(model)
    index = given.whole
    variance = given.y.var(correction=0).item()
    if max_evaluations is not None:
        try:
            search.maximise(given, index, maxfun=max_evaluations)
        finally:
            search.best.write_to(model)
        return
    best = given = copy_set_apart(given)
    try:
        noisy = noisy_start(given, variance)
        if noisy is not None:
            best = search.likeliest(best, [search.maximise(noisy, index)], index)
        if noisy is None or best.likelihood.noise.mean() < LITTLE_NOISE * variance:
            best = search.likeliest(best, [search.maximise(given, index)], index)
        finer = search.likeliest(best, finer_starts(given, given.X, variance), index)
        if finer is not best:
            best = search.likeliest(best, [search.maximise(finer, index)], index)
    except KeyboardInterrupt:
        best = search.likeliest(best, [search.best], index)
        raise
    finally:
        best.write_to(model)


def _fit_by_botorch(
    model: SingleTaskGP, callback: StepCallback | None, optimizer_kwargs: dict[str, Any]
) -> None:
    model.train()  # `eval()` then transforms the inputs by what was learned
    fitted = deepcopy(model).double()  # the line search finds float32 gradients too coarse
    n = model.train_targets.shape[-1]
    mll = ExactMarginalLogLikelihood(fitted.likelihood, fitted)
    evaluate = get_loss_closure_with_grads(
        mll, {name: p for name, p in mll.named_parameters() if p.requires_grad}
    )
    losses: list[float] = []

    def closure() -> tuple[Tensor, Sequence[Tensor | None]]:
        evaluated: tuple[Tensor, Sequence[Tensor | None]] = evaluate()
        loss = evaluated[0].item()
        if loss < min(losses, default=math.inf):
            copy_parameters(fitted, model)
        losses.append(loss)
        if callback is not None:
            callback(len(losses), -n * loss)
        return evaluated

    # A failed line search starts again from draws of the global generator
    with torch.random.fork_rng(devices=[]):
        torch.random.set_rng_state(torch.Generator().manual_seed(0).get_state())
        # BoTorch fits several outputs side by side, each by itself, if it is given no closure.
        fit_gpytorch_mll(
            mll, closure=closure if fitted.train_targets.ndim == 1 else None, **optimizer_kwargs
        )
    clamp_lengthscales(fitted.covar_module, fitted.eval().train_inputs[0])
    copy_parameters(fitted, model)


@torch.no_grad()
def copy_parameters(source: SingleTaskGP, target: SingleTaskGP) -> None:
    """Give ``target`` the parameters of ``source``, a copy of it."""
    for parameter, value in zip(target.parameters(), source.parameters(), strict=True):
        parameter.copy_(value)
