"""Hyperparameters from data, with a progress bar."""

from __future__ import annotations

from typing import Any

import torch

import surrogates
from scalable_bo.progress import RoundProgress
from surrogates.fitting.common import ModelT, StepCallback


def fit(
    model: ModelT,
    method: str | None = None,
    *,
    generator: torch.Generator | None = None,
    callback: StepCallback | None = None,
    progress: bool = True,
    **settings: Any,
) -> ModelT:
    """Learn the hyperparameters of ``model`` from its data by the method that suits it; return
    ``model``.

    Args:
        method: ``"exact"``, ``"subsets"``, ``"minibatch"``, ``"iterative"``, ``"finite_features"``
            or ``"variational"``, the function ``fit_<method>``; ``None`` for that of
            :func:`choose_fit`.
        generator: of what the method draws; seeded by the method if ``None``.
        callback: called after every step with the steps done and the method's own estimate of its
            objective, in nats.
        progress: say on stderr what was chosen and why, and show a bar if that is a terminal.
        settings: further arguments of the method.

    Raises:
        TypeError, ValueError: if the method does not exist, or does not take the model, its data or
            the settings.
        FloatingPointError: if a hyperparameter stops being finite; the model is then as it was.
        KeyboardInterrupt: passed on; the model has the best hyperparameters so far.
    """
    with RoundProgress(None, enabled=progress) as bar:

        def on_step(step: int, value: float) -> None:
            bar.status(f"objective {value:.6g} nats", completed=step)
            if callback is not None:
                callback(step, value)

        return surrogates.fit(model, method, generator=generator, callback=on_step, **settings)
