"""One call that learns hyperparameters from data of any size, by the method that suits the model."""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from botorch.models import SingleTaskGP

from surrogates import checks
from surrogates.finite_features import FiniteFeatureGP
from surrogates.fitting.common import ModelT, StepCallback, restoring
from surrogates.fitting.exact import fit_exact
from surrogates.fitting.finite_features import fit_finite_features
from surrogates.fitting.iterative import fit_iterative
from surrogates.fitting.minibatch import fit_minibatch
from surrogates.fitting.subsets import fit_subsets
from surrogates.fitting.variational import fit_variational
from surrogates.variational import VariationalGP

logger = logging.getLogger(__name__)

FIT_EXACT_UP_TO = 2000  # beyond, an evaluation takes seconds, and a fit needs dozens
LARGE = "subsets"  # the method for more points: cheapest of those that find noise and lengthscales about as well as all data do

METHODS: dict[str, Callable[..., Any]] = {
    "exact": fit_exact,
    "subsets": fit_subsets,
    "minibatch": fit_minibatch,
    "iterative": fit_iterative,
    "finite_features": fit_finite_features,
    "variational": fit_variational,
}


class FitChoice(NamedTuple):
    """The name of a method, ``fit_<method>``, and why it was chosen, in one line."""

    method: str
    reason: str


def fit(
    model: ModelT,
    method: str | None = None,
    *,
    generator: torch.Generator | None = None,
    callback: StepCallback | None = None,
    **settings: Any,
) -> ModelT:
    """Learn the hyperparameters of ``model`` from its data; return it.

    What was chosen, and why, goes to the logger of this module at level INFO; :func:`choose_fit` tells it beforehand. The same model and
    generator give the same hyperparameters.

    Args:
        method: ``"exact"``, ``"subsets"``, ``"minibatch"``, ``"iterative"``, ``"finite_features"`` or ``"variational"``, the function
            ``fit_<method>``; ``None`` for that of :func:`choose_fit`.
        generator: of what the method draws; seeded by the method if ``None``. The exact fit draws nothing.
        callback: called after every step with the steps done and the method's own estimate of its objective, in nats.
        settings: further arguments of the method.

    Raises:
        TypeError, ValueError: if the method does not exist, or does not take the model, its data or the settings.
        FloatingPointError: if a hyperparameter stops being finite; the model is then as it was.
        KeyboardInterrupt: passed on; the model has the best hyperparameters so far.
    """
    if method is not None and method not in METHODS:
        raise ValueError(f"`method` must be one of {', '.join(map(repr, METHODS))}, or None, got {method!r}.")
    choice = choose_fit(model)  # which also checks the model
    if method is not None:
        choice = FitChoice(method, "as asked for")
    if choice.method != "exact":
        settings["generator"] = generator
    logger.info("fit_%s: %s", choice.method, choice.reason)
    with restoring(model):
        METHODS[choice.method](model, callback=callback, **settings)
    return model


def choose_fit(model: SingleTaskGP) -> FitChoice:
    """Return the method that ``fit`` takes for ``model``, and the reason.

    Raises:
        TypeError: if the model is not of the kinds that can be fitted.
        ValueError: if its data are not finite.
    """
    if not isinstance(model, SingleTaskGP):
        raise TypeError(f"`model` must be a PathwiseGP or another SingleTaskGP, got {type(model).__name__}. Fit each of several models.")
    checks.floating_tensor("model.train_inputs", model.train_inputs[0])
    checks.floating_tensor("model.train_targets", model.train_targets)
    n = model.train_targets.shape[-1]
    if isinstance(model, FiniteFeatureGP):
        return FitChoice("finite_features", f"the kernel of {n} points has finitely many features")
    if isinstance(model, VariationalGP):
        return FitChoice("variational", f"the posterior of {n} points is variational")
    if n <= FIT_EXACT_UP_TO:
        return FitChoice("exact", f"{n} points, up to {FIT_EXACT_UP_TO} by the exact marginal likelihood")
    return FitChoice(LARGE, f"{n} points, beyond {FIT_EXACT_UP_TO} by neighbourhoods of the data")
