"""One call that learns hyperparameters from data of any size,
by the method that suits the model.
"""

import logging
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import torch
from botorch.models import SingleTaskGP

from surrogates import checks, settings
from surrogates.fitting.exact import fit_exact
from surrogates.fitting.iterative import fit_iterative
from surrogates.fitting.minibatch import fit_minibatch
from surrogates.fitting.subsets import fit_subsets
from surrogates.rules.finite_features_fit import fit_finite_features
from surrogates.rules.hyperparameters import ModelT, StepCallback, restoring
from surrogates.rules.variational_fit import fit_variational

logger = logging.getLogger(__name__)

FIT_EXACT_UP_TO = 1000
REFINE_UP_TO = 10_000
# From hyperparameters that are nearly right
REFINEMENT: dict[str, Any] = {"num_steps": 8, "first_step": 0.1}

METHODS: dict[str, Callable[..., Any]] = {
    "exact": fit_exact,
    "subsets": fit_subsets,
    "minibatch": fit_minibatch,
    "iterative": fit_iterative,
    "finite_features": fit_finite_features,
    "variational": fit_variational,
}


class FitChoice(NamedTuple):
    """Names of functions ``fit_<method>``, each of which goes on from the one before,
    and in one line why they were chosen.
    """

    methods: tuple[str, ...]
    reason: str


@settings.keeping_freed()
def fit(
    model: ModelT,
    method: str | None = None,
    *,
    generator: torch.Generator | None = None,
    callback: StepCallback | None = None,
    **settings: Any,
) -> ModelT:
    """Learn the hyperparameters of ``model`` from its data; return it.

    What was chosen, and why, goes to the logger of this module at level INFO; :func:`choose_fit`
    tells it beforehand, and has the rule. The same model and generator give the same
    hyperparameters.

    Args:
        method: ``"exact"``, ``"subsets"``, ``"minibatch"``, ``"iterative"``, ``"finite_features"``
            or ``"variational"``, the function ``fit_<method>``; ``None`` for those of
            :func:`choose_fit`.
        generator: of what the method draws; seeded by the method if ``None``. The exact fit draws
            nothing.
        callback: called after every step with the steps done and the method's own estimate of its
            objective, in nats.
        settings: further arguments of ``method``.

    Raises:
        TypeError, ValueError: if the method does not exist, or does not take the model, its data or
            the settings, or there are settings without a method.
        FloatingPointError: if a hyperparameter stops being finite; the model is then as it was.
        KeyboardInterrupt: passed on; the model has the best hyperparameters so far.
    """
    if method is not None:
        checks.one_of("method", method, METHODS)
    choice = choose_fit(model)  # which also checks the model
    if method is not None:
        choice = FitChoice((method,), "as asked for")
    elif settings:
        remedy = f"Choose one, such as `method={choice.methods[0]!r}`."
        raise ValueError(
            f"`settings` must belong to a `method`, got {', '.join(settings)} without one. {remedy}"
        )
    logger.info("%s: %s", " and ".join(f"fit_{name}" for name in choice.methods), choice.reason)
    steps = count(1)
    told = None if callback is None else lambda _, value: callback(next(steps), value)
    with restoring(model):
        for i, name in enumerate(choice.methods):
            drawn = {} if name == "exact" else {"generator": generator}
            METHODS[name](model, callback=told, **drawn, **(REFINEMENT if i else settings))
    return model


def choose_fit(model: SingleTaskGP) -> FitChoice:
    """Return the methods that ``fit`` takes for ``model``, and the reason.

    Up to 1000 points :func:`fit_exact`; up to 10 000 :func:`fit_minibatch`, whose result eight
    steps of :func:`fit_iterative` improve on all data; beyond, :func:`fit_minibatch` alone. Models
    of several outputs or data sets are fitted by :func:`fit_exact` or not at all, and models with a
    method of their own by that one.

    What that rests on is in ``docs/measured.md``, "Which fit suits how many points".

    Raises:
        TypeError: if the model is not of the kinds that can be fitted.
        ValueError: if its data are not finite.
    """
    if not isinstance(model, SingleTaskGP):
        raise TypeError(
            f"`model` must be a PathwiseGP or another SingleTaskGP, got {type(model).__name__}. Fit"
            " each of several models."
        )
    checks.floating_tensor("model.train_inputs", model.train_inputs[0])
    checks.floating_tensor("model.train_targets", model.train_targets)
    n = model.train_targets.shape[-1]
    rule = getattr(model, "rule", None)  # of ours
    if rule is not None and (own := rule.own_fit(n)) is not None:
        method, reason = own
        return FitChoice((method,), reason)
    if n <= FIT_EXACT_UP_TO:
        return FitChoice(
            ("exact",), f"{n} points, up to {FIT_EXACT_UP_TO} by the exact marginal likelihood"
        )
    if model.train_targets.ndim > 1:
        return FitChoice(
            ("exact",),
            f"{n} points of several outputs or data sets, which only the exact marginal likelihood"
            " takes",
        )
    if n <= REFINE_UP_TO:
        return FitChoice(
            ("minibatch", "iterative"),
            f"{n} points, up to {REFINE_UP_TO} by nearest neighbours, refined on all data",
        )
    return FitChoice(
        ("minibatch",), f"{n} points, beyond {REFINE_UP_TO} by minibatches of nearest neighbours"
    )
