"""Fits of a study's surrogate: the kernel and the scale of the values that they are likeliest by.

Notation: n values; ``U (n, e)`` on the unit cube.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from typing import Any

import numpy as np
import torch
from gpytorch import Module
from torch import Tensor

from acquisition.strategy import ChoosingStrategy, Strategy
from scalable_bo.modelling.factory import SurrogateFactory, model_of_rows
from scalable_bo.modelling.training import SCALES, TrainingData
from surrogates import PathwiseGP, fit_exact
from surrogates.fitting.search import GAIN_ON_NOISE, FitEndedError, FitWatch
from surrogates.operators.linalg import CHEAP_FACTOR_UP_TO
from surrogates.rules.hyperparameters import log_prior

# Hyperparameters are fitted to a random sample of more observations than `fit` takes whole; to so
# many of them first, from where few evaluations of the others' likelihood are left. A model of a
# region has no fewer.
FIRST_FIT_POINTS = 250
MOST_OF_FEW = 300  # observations that the hyperparameters of the surrogate for few are fitted to
MOST_EVALUATIONS = 40  # by a further kernel, or from where a fit to fewer values ended


def is_for_few(strategy: Strategy, q: int, num_values: int) -> bool:
    """Whether a strategy wants the surrogate for few points and values."""
    return isinstance(strategy, ChoosingStrategy) and strategy.is_for_few(q, num_values)


def randomness(seed: int, number: int) -> torch.Generator:
    """Return the randomness of a study's ask, by its number."""
    state = np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]))


def fit_surrogate(
    factory: SurrogateFactory,
    data: TrainingData,
    generator: torch.Generator,
    *,
    few: bool = False,
    watch: FitWatch | None = None,
) -> PathwiseGP:
    """Return a small model whose hyperparameters maximise the likelihood of a random subset; by the
    kernel of few where there are ``few``.
    """
    rows = _sample(data, CHEAP_FACTOR_UP_TO, generator)
    return _fit(data, factory.modules(few), rows, watch or FitWatch())


def fit_warped(
    factory: SurrogateFactory,
    data: TrainingData,
    generator: torch.Generator,
    *,
    few: bool,
    scales: Sequence[str] = tuple(SCALES),
    watch: FitWatch | None = None,
) -> tuple[PathwiseGP, TrainingData]:
    """Return a model and its data: on the one of ``scales`` where their likelihood is largest, the
    change of variables included.

    Few values are tried as the logarithm of their gaps, and their noise may be next to nothing:
    late in an optimisation few values decide about little. A few wild values are brought nearer or,
    where they are bad and say nothing of those around them, left out: each is then as likely as any
    there, on the scale that brings them nearer. Few values are tried by further kernels, too, from
    what the usual one has learned of them, but not as logarithms: that of a sum is no sum, and that
    of a parabola no parabola.

    Scales and kernels are compared by one rule, their evidence: the logarithm of the likelihood,
    without the kernel's priors, less half a nat for each hyperparameter, as one gains on noise, and
    at least a nat where they have no priors. What is tried after plain values by the usual kernel
    has to win by three nats: a scale is taken from the values themselves. Its fit ends once it is
    lost: after eight evaluations, when twice what it gained in the latter half of all would not
    take it past the best.

    Args:
        few: whether it is to be by the kernel of few.
        scales: of ``SCALES``, the plain one first; as the logarithm of gaps only where there are
            few.
        watch: what the fits tell, and when all of them end.
    """
    told = _sample(data, MOST_OF_FEW if few else CHEAP_FACTOR_UP_TO, generator)
    watch = watch or FitWatch()
    straight = [scale for scale in scales if scale != "gaps"]
    tried: list[tuple[str | None, str]] = [(None, scale) for scale in (scales if few else straight)]
    if few:
        tried += product(factory.further, straight)
    best: tuple[PathwiseGP, TrainingData] | None = None
    highest = -math.inf  # evidence
    usual: dict[str, PathwiseGP] = {}
    for kernel, name in tried:
        given = data.on(name)
        if name != "plain" and given is data:
            continue
        modules = factory.modules(few, kernel, usual.get(name))
        # On another scale lengthscales end as far from the mode of their prior as on the first
        like = modules["covar_module"] if kernel or best is None else best[0].covar_module
        prior = float(log_prior(like).detach())
        changes = given.log_jacobian(told) - _gain_on_noise(modules["covar_module"], len(told))
        most = None if kernel is None else MOST_EVALUATIONS
        model = _fit(given, modules, given.rows_of(told), watch, highest + prior - changes, most)
        usual.setdefault(name, model)
        prior = float(log_prior(model.covar_module).detach())
        evidence = watch.course[-1] - prior + changes
        if best is None or evidence > highest + 3.0:
            best, highest = (model, given), evidence
    assert best is not None  # there are data
    return best


def _gain_on_noise(kernel: Module, num_values: int) -> float:
    """Return the nats that the hyperparameters of a kernel gain on noise; where these have no
    priors, and follow the values, by the corrected criterion of Akaike.

    References:
        Hurvich, Tsai (1989), "Regression and Time Series Model Selection in Small Samples".
    """
    number = sum(one.numel() for one in kernel.parameters())
    if any(kernel.named_priors()):
        return GAIN_ON_NOISE * number
    return number * num_values / max(1, num_values - number - 1)


def _fit(
    data: TrainingData,
    modules: dict[str, Any],
    rows: Tensor,
    watch: FitWatch,
    least: float = -math.inf,
    max_evaluations: int | None = None,
) -> PathwiseGP:
    """Return a small model of ``modules``, fitted to some rows; by at most so many evaluations of
    their likelihood, which end once it will not exceed the ``least``.
    """
    if len(rows) > 2 * FIRST_FIT_POINTS:
        first = _fit(data, modules, rows[:FIRST_FIT_POINTS], watch)
        modules = {
            "covar_module": first.covar_module,
            "likelihood": first.likelihood,
            "mean_module": first.mean_module,
        }
        max_evaluations = MOST_EVALUATIONS
    watch.begin(least)
    # In float64 whatever the surrogate's dtype: the line search fails on float32 gradients
    model = model_of_rows(data, rows, modules)
    with suppress(FitEndedError):  # the model has the best hyperparameters so far
        fit_exact(model, callback=watch, max_evaluations=max_evaluations)
    return model.eval()


def _sample(data: TrainingData, size: int, generator: torch.Generator) -> Tensor:
    return torch.randperm(len(data.U), generator=generator, device="cpu")[:size]
