"""The surrogate of a study, and batches by it, for those who keep none from one to the next."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from acquisition.constraints import FeasibleSet
from acquisition.strategy import Request, Strategy
from scalable_bo.modelling.factory import SurrogateFactory
from scalable_bo.modelling.fitting import fit_surrogate, fit_warped, is_for_few
from scalable_bo.modelling.training import TrainingData
from scalable_bo.study.choices import Part, checked_batch, choose_parts
from scalable_bo.study.pace import end_of_fit, learn_success, local_parts, plan_here
from surrogates import PathwiseGP
from surrogates.fitting.search import FitWatch


def choose_batch(
    factory: SurrogateFactory,
    strategy: Strategy,
    data: TrainingData,
    feasible: FeasibleSet,
    q: int,
    generator: torch.Generator,
    request_of: Callable[[PathwiseGP, int], Request],
    seconds: float | None,
    success: TrainingData | None = None,
) -> tuple[Tensor, str]:
    """Return a batch of one outcome on the unit cube as a study chooses it, and what it is by, in a
    line; nothing without a time.

    Args:
        feasible: the points that may be proposed.
        request_of: makes the request for some points by a model.
        seconds: that the batch is to take; ``None`` for as long as all values take.
        success: where evaluations succeeded and failed; ``None`` where too few failed.
    """
    deadline = None if seconds is None else end_of_fit(time.perf_counter(), seconds)
    watch = FitWatch(deadline=deadline)
    learned = partial(learn_success, factory, success, generator, deadline)
    reason = ""
    if seconds is not None:
        plan = plan_here(factory, strategy, data.U, len(data.U), q, seconds)
        reason = plan.reason
        if plan.num_rows is not None:
            parts = local_parts(
                factory, strategy, plan, data, feasible, q, generator, watch, learned
            )

            def request_of_part(part: Part) -> Request:
                return replace(request_of(part.models[0], part.q), success=part.success)

            chosen = choose_parts(parts, request_of_part, strategy, generator)
            return chosen.points, reason
    model, kept = fitted_model(factory, strategy, data, q, generator, watch=watch)
    request = replace(request_of(model, q), success=learned())
    if kept.kept is not None:  # values are left out, not their points
        request = request.beside(data.U[~kept.kept].to(request.bounds))
    return checked_batch(strategy.generate(request), request, strategy), reason


def fitted_model(
    factory: SurrogateFactory,
    strategy: Strategy,
    data: TrainingData,
    q: int,
    generator: torch.Generator,
    *,
    has_limit: bool = False,
    watch: FitWatch | None = None,
) -> tuple[PathwiseGP, TrainingData]:
    """Return the model that a study would choose q points by, the one for few values where the
    strategy asks for it, and the data as it has them; values that have a limit to keep stay on
    their scale.
    """
    if has_limit:
        return factory.build(data, fit_surrogate(factory, data, generator)), data
    few = is_for_few(strategy, q, len(data.U))
    fitted, data = fit_warped(factory, data, generator, few=few, watch=watch)
    return factory.build(data, fitted), data


def split_batches(values: Tensor, first: int, q: int) -> list[Tensor]:
    """Return values (n,) in order as batches: the ``first`` ones, then q at a time."""
    parts = (values[:first], *values[first:].split(q))
    return [part for part in parts if len(part)]
