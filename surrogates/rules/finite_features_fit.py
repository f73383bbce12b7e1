"""Hyperparameters of kernels with finitely many features, by stochastic descent that is unbiased,
whatever the size of the batches.

Notation: n data, batches of b, F features, w their weights; F(θ) and the objective as in
``surrogates.rules.finite_objective``.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from surrogates import checks
from surrogates.restoring import restored_on_failure
from surrogates.rules.finite_objective import SCGD, Batch, Minimax, Objective, Saddle, Tracker
from surrogates.rules.hyperparameters import Coordinates, ModelT, StepCallback, batches, rule_of
from surrogates.rules.weight_space import WeightPosterior

OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], float]] = {
    "adam": (torch.optim.Adam, 1e-2),
    "adadelta": (torch.optim.Adadelta, 1.0),
    "sgd": (torch.optim.SGD, 1e-3),
}
TECHNIQUES: dict[str, type[SCGD] | type[Minimax]] = {"scgd": SCGD, "minimax": Minimax}


@restored_on_failure
def fit_finite_features(
    model: ModelT,
    method: str | SCGD | Minimax = "scgd",
    *,
    batch_size: int = 256,
    num_steps: int = 2000,
    optimizer: str = "adam",
    learning_rate: float | None = None,
    step_decay: float = 0.0,
    check_every: int | None = None,
    generator: torch.Generator | None = None,
    callback: StepCallback | None = None,
) -> ModelT:
    """Maximise the log marginal likelihood of ``model`` with its priors on minibatches; return it.

    A step costs O(b F² + F³), beside the feature map on b points, forwards and backwards; its
    memory does not depend on n. A check, in O(n F² + F³), evaluates the exact log marginal
    likelihood; it gives w and the tracker of F their exact values. The model gets the
    hyperparameters of the best check, of which the start is one: it never ends below it.

    Args:
        model: a :class:`FiniteFeatureGP`.
        method: ``"scgd"``, ``"minimax"``, or one of their dataclasses with other settings.
        batch_size: b, at most n of which are used; batches of an epoch are disjoint.
        num_steps: T.
        optimizer: ``"adam"``, ``"adadelta"`` or ``"sgd"``, of the weights and hyperparameters.
        learning_rate: a; 0.01 for Adam, 1 for AdaDelta and 0.001 for SGD if ``None``.
        step_decay: a_t = a t^(−step_decay).
        check_every: steps between checks; an epoch if ``None``. 0 for none: the last iterate is
            kept, as published.
        generator: of the batches; one seeded with the model's ``seed`` if ``None``.
        callback: called after every step with the steps done and an estimate of the log marginal
            likelihood with priors, in nats.

    Raises:
        TypeError, ValueError: if an argument is not as above, the feature map does not return
            finite features, or the data are not finite.
        FloatingPointError: if the objective or a parameter stops being finite; the model is then as
            it was.
        KeyboardInterrupt: on Ctrl-C, when the model has got the best hyperparameters so far.
    """
    rule = rule_of(model, "finite_features", "FiniteFeatureGP")
    technique = _technique(method)
    checks.one_of("optimizer", optimizer, OPTIMIZERS)
    batch_size = checks.positive_int("batch_size", batch_size)
    num_steps = checks.positive_int("num_steps", num_steps)
    kind, rate = OPTIMIZERS[optimizer]
    if learning_rate is not None:
        rate = checks.positive_float("learning_rate", learning_rate)
    step_decay = checks.fraction("step_decay", step_decay)
    generator = torch.Generator().manual_seed(rule.seed) if generator is None else generator

    objective = Objective(model, rule.num_features)
    n = len(objective.X)
    batch_size = min(batch_size, n)
    if check_every is None:
        check_every = math.ceil(n / batch_size)
    check_every = checks.integer("check_every", check_every, 0)
    coordinates = Coordinates(model)
    best_value, law = objective.evaluate()
    best = coordinates.value.clone()
    inner = _inner(technique, objective, law, num_steps)
    rows = batches(n, batch_size, generator, objective.X.device)
    drawn = (objective.batch(index) for index in rows)
    outer = [coordinates.value, objective.unscaled_weights]
    groups: list[dict[str, Any]] = [{"params": outer}, {"params": [*inner.parameters]}]
    steps = kind(groups, lr=rate)  # type: ignore[call-arg]
    values = [*outer, *inner.parameters, *model.parameters()]
    try:
        for step in range(1, num_steps + 1):
            value = _step(step, inner, coordinates, steps, values, drawn, rate, step_decay)
            if not check_every:
                best = coordinates.value.clone()
            elif step % check_every == 0 or step == num_steps:
                value, law = objective.evaluate()
                inner.restart(law)
                if value > best_value:
                    best_value = value
                    best = coordinates.value.clone()
            if callback is not None:
                callback(step, value)
    finally:
        coordinates.move_to(best)
    return model


def _inner(
    technique: SCGD | Minimax, objective: Objective, law: WeightPosterior, num_steps: int
) -> Tracker | Saddle:
    if isinstance(technique, SCGD):
        return Tracker(technique, objective, law)
    return Saddle(technique, objective, law, num_steps)


def _step(
    step: int,
    inner: Tracker | Saddle,
    coordinates: Coordinates,
    optimizer: torch.optim.Optimizer,
    values: list[Tensor],
    drawn: Iterator[Batch],
    rate: float,
    decay: float,
) -> float:
    """Take a step, and return the estimate of the log marginal likelihood before it.

    Raises:
        FloatingPointError: if the objective or one of the ``values`` is not finite any more.
    """
    for group, pace in zip(optimizer.param_groups, (1.0, inner.pace), strict=True):
        group["lr"] = pace * rate * step**-decay
    optimizer.zero_grad()
    with torch.enable_grad():
        loss, value = inner.loss(next(drawn), step)
        loss.backward()
    coordinates.pull_gradient()
    optimizer.step()
    coordinates.write()
    if not all(bool(torch.isfinite(part).all()) for part in (loss, *values)):
        raise FloatingPointError(
            f"The marginal likelihood or a parameter is not finite after step {step}; the model"
            f" is as it was. Reduce `learning_rate` below {rate:g}, or use float64."
        )
    inner.after_step(drawn, step)
    return value


def _technique(method: Any) -> SCGD | Minimax:
    if isinstance(method, str):
        method = TECHNIQUES[checks.one_of("method", method, TECHNIQUES)]()
    if not isinstance(method, SCGD | Minimax):
        raise TypeError(
            "`method` must be 'scgd', 'minimax' or one of their dataclasses, got"
            f" {type(method).__name__} {method!r}."
        )
    return method
