"""L-BFGS on the exact likelihood of sets of data."""

import math

import pytest
import torch
from torch import Tensor

from surrogates import PathwiseGP
from surrogates.fitting.batched import BatchedGP
from surrogates.fitting.search import Search
from surrogates.rules.hyperparameters import log_prior, training_data
from tests import problems

N = 60
INDEX = torch.arange(N).unsqueeze(0)


def noisy_model() -> PathwiseGP:
    """Return a model with far too little noise."""
    X = problems.uniform(N, 3)
    model = PathwiseGP(X, torch.sin(6.0 * X[:, :1]) + problems.normal(N, 1, seed=1))
    model.likelihood.noise = 1e-3
    return model


def test_the_first_step_changes_no_hyperparameter_by_more_than_a_factor_e(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = noisy_model()
    seen: list[Tensor] = []
    evaluated = BatchedGP.negative_log_likelihood

    def watch(gp: BatchedGP, *data: Tensor) -> Tensor:
        seen.append(torch.stack([gp.likelihood.noise[0], gp.covar_module.lengthscale[0, 0]]))
        return evaluated(gp, *data)

    monkeypatch.setattr(BatchedGP, "negative_log_likelihood", watch)
    Search(*training_data(model), None).maximise(BatchedGP(model), INDEX)
    steps = (seen[1] / seen[0]).log().abs()
    assert 0.1 < steps.max().item() < 1.0 + 1e-6


def test_the_callback_is_told_the_log_posterior_of_all_data() -> None:
    model = noisy_model()
    X, y = training_data(model)
    told: list[float] = []
    search = Search(X, y, lambda _, value: told.append(value))
    best = search.maximise(BatchedGP(model), INDEX)
    with torch.no_grad():
        nll = best.negative_log_likelihood(X[INDEX], y[INDEX], INDEX)
    assert max(told) == pytest.approx((log_prior(best) - nll).item(), abs=1e-8)


def test_the_better_of_two_models_is_the_likelier() -> None:
    model = noisy_model()
    search = Search(*training_data(model), None)
    given = BatchedGP(model)
    best = search.maximise(given, INDEX)
    assert search.better(given, INDEX) is best
    worse = BatchedGP(model)
    worse.likelihood.noise = math.exp(-8.0)
    search.best = worse
    assert search.better(best, INDEX) is best
