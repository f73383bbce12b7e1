"""Fits in stages: what is taken for signal, what a stage must show, and what the account says."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

from surrogates import (
    FineStructureWarning,
    NoSignalWarning,
    PathwiseGP,
    fit,
    fit_iterative,
    fit_sample,
)
from surrogates.fitting import choice
from surrogates.fitting.choice import FitChoice
from surrogates.fitting.evidence import Evidence
from surrogates.rules.hyperparameters import StepCallback
from tests import problems
from tests.problems import hyperparameters

N = 400
SAMPLE = 250
X = problems.uniform(N, 3)
NOISE = problems.normal(N, 1, seed=1)
SIGNAL = math.sqrt(2.0) * torch.sin(6.0 * X[:, :1])
METHODS = "sample", "iterative"  # of thousands of data
QUIET = {"num_steps": 3, "first_step": 0.1}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let some hundred points be fitted as thousands are."""
    monkeypatch.setattr(choice, "choose_fit", as_many)
    monkeypatch.setitem(choice.METHODS, "sample", small_sample)
    monkeypatch.setitem(choice.METHODS, "iterative", few_steps)


def as_many(model: PathwiseGP) -> FitChoice:
    return FitChoice(("exact",) if len(model.train_targets) <= 200 else METHODS, "as many")


def few_steps(model: PathwiseGP, **settings: Any) -> PathwiseGP:
    return fit_iterative(model, **settings | QUIET)


def small_sample(model: PathwiseGP, **settings: Any) -> PathwiseGP:
    return fit_sample(model, **{"sample_size": SAMPLE} | settings)


@cache
def of_the_sample() -> Tensor:
    """Return the hyperparameters that the first stage alone finds for a signal in noise."""
    return hyperparameters(small_sample(PathwiseGP(X, SIGNAL + NOISE)))


@pytest.mark.usefixtures("quick")
def test_up_to_two_thousand_data_all_of_them_follow_the_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choice, "choose_fit", lambda _: FitChoice(("sample", "sample"), "as many"))
    model = fit(PathwiseGP(X, SIGNAL + NOISE))
    first, second = model.fit_account.stages
    assert (first.method, second.method, second.accepted) == ("sample", "sample", True)
    whole = fit_sample(PathwiseGP(X, SIGNAL + NOISE), sample_size=N)
    for ours, theirs in zip(model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05)


def spoiled(model: PathwiseGP, **settings: object) -> None:
    """Take noise for fine structure."""
    model.covar_module.lengthscale = 0.05
    model.likelihood.noise = 0.01


@pytest.mark.usefixtures("quick")
def test_noise_is_not_taken_for_signal() -> None:
    Y = SIGNAL + NOISE
    model = fit(PathwiseGP(X.float(), Y.float()))
    assert model.noise.item() * Y.var().item() == pytest.approx(NOISE.var().item(), rel=0.1)
    error = model.posterior(X.float()).mean - SIGNAL
    assert error.square().mean().sqrt() < 0.25
    assert model.fit_account.chosen in ("sample", "iterative")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("n", "scaled"), [(150, True), (N, False)], ids=["exact", "sample"])
def test_pure_noise_is_white(n: int, scaled: bool) -> None:
    kernel = MaternKernel(nu=1.5, ard_num_dims=3).to(X)
    kernel = ScaleKernel(kernel).to(X) if scaled else kernel
    with pytest.warns(NoSignalWarning, match=f"`fit` takes all {n} targets for noise") as caught:
        model = fit(PathwiseGP(X[:n], 3.0 + NOISE[:n], covar_module=kernel))
    assert caught[0].filename == __file__
    assert model.noise.item() == pytest.approx(1.0, rel=0.1)
    mean = model.posterior(problems.uniform(50, 3, seed=7)).mean
    assert (mean - (3.0 + NOISE[:n].mean())).abs().max() < 0.25


@pytest.mark.usefixtures("quick")
def test_a_stage_that_predicts_worse_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(choice.METHODS, "iterative", spoiled)
    model = fit(PathwiseGP(X, SIGNAL + NOISE))
    assert torch.equal(hyperparameters(model), of_the_sample())
    first, second = model.fit_account.stages
    assert (first.method, first.accepted) == ("sample", True)
    assert (second.method, second.accepted) == ("iterative", False)
    assert second.over_best.mean < -0.1 and first.over_noise.mean > 0.1
    assert "iterative: not taken" in str(model.fit_account)


@pytest.mark.usefixtures("quick")
def test_a_stage_that_predicts_worse_on_the_way_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = []

    def spoiling(model: PathwiseGP, *, callback: StepCallback, **settings: object) -> None:
        for step in range(1, 9):
            if step == 2:
                spoiled(model)
            steps.append(step)
            callback(step, 0.0)

    monkeypatch.setitem(choice.METHODS, "iterative", spoiling)
    model = fit(PathwiseGP(X, SIGNAL + NOISE))
    assert steps == [1, 2]
    assert torch.equal(hyperparameters(model), of_the_sample())
    second = model.fit_account.stages[1]
    assert not second.accepted and second.over_best.mean < -0.1
    assert "given up after 2 steps" in str(model.fit_account)


@pytest.mark.usefixtures("quick")
def test_a_stage_that_cannot_predict_on_the_way_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def recovering(model: PathwiseGP, *, callback: StepCallback, **settings: object) -> None:
        with monkeypatch.context() as broken:
            broken.setattr(Evidence, "log_densities", Mock(side_effect=FloatingPointError))
            callback(1, 0.0)

    monkeypatch.setitem(choice.METHODS, "iterative", recovering)
    second = fit(PathwiseGP(X, SIGNAL + NOISE)).fit_account.stages[1]
    assert second.note == "" and second.over_best.mean == 0.0  # judged at its end


def failing(model: PathwiseGP, **settings: object) -> None:
    spoiled(model)
    raise FloatingPointError("no longer finite")


@pytest.mark.usefixtures("quick")
def test_a_stage_that_fails_leaves_the_best_before_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(choice.METHODS, "iterative", failing)
    model = fit(PathwiseGP(X, SIGNAL + NOISE))
    assert torch.equal(hyperparameters(model), of_the_sample())
    assert model.fit_account.chosen == "sample"
    assert "no longer finite" in model.fit_account.stages[1].note
    assert any(record.levelname == "WARNING" for record in caplog.records)


@pytest.mark.usefixtures("quick")
def test_where_every_stage_fails_the_failure_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sample", "iterative"):
        monkeypatch.setitem(choice.METHODS, name, failing)
    model = PathwiseGP(X, SIGNAL + NOISE)
    before = hyperparameters(model)
    with pytest.raises(FloatingPointError, match="no longer finite"):
        fit(model)
    assert torch.equal(hyperparameters(model), before)


def interrupted(model: PathwiseGP, **settings: object) -> None:
    spoiled(model)
    raise KeyboardInterrupt


@pytest.mark.usefixtures("quick")
def test_an_interruption_keeps_the_best_stage_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(choice.METHODS, "iterative", interrupted)
    model = PathwiseGP(X, SIGNAL + NOISE)
    with pytest.raises(KeyboardInterrupt) as caught:
        fit(model)
    assert torch.equal(hyperparameters(model), of_the_sample())
    assert model.fit_account.interrupted and model.fit_account.chosen == "sample"
    assert caught.value.__notes__ == ["The model has the hyperparameters of 'sample'."]
    assert "interrupted" in str(model.fit_account)


@pytest.mark.usefixtures("quick")
def test_the_callback_counts_through_all_stages() -> None:
    seen: list[int] = []
    fit(PathwiseGP(X, SIGNAL + NOISE), callback=lambda step, value: seen.append(step))
    assert seen == list(range(1, len(seen) + 1)) and len(seen) > QUIET["num_steps"]


def known_noise() -> PathwiseGP:
    return PathwiseGP(X, SIGNAL + NOISE, torch.ones_like(NOISE))


def fixed_noise() -> PathwiseGP:
    model = PathwiseGP(X, SIGNAL + NOISE)
    model.likelihood.noise = 0.3
    model.likelihood.requires_grad_(False)
    return model


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("make", [known_noise, fixed_noise])
def test_noise_that_is_given_stays(make: Callable[[], PathwiseGP]) -> None:
    model = make()
    noise = model.noise.clone()
    fit(model)
    assert torch.equal(model.noise, noise)
    error = model.posterior(X).mean - SIGNAL
    assert error.square().mean().sqrt() < 0.3


def test_few_data_are_left_to_the_priors() -> None:
    few = choice.JUDGE_FROM - 1
    model = fit(PathwiseGP(X[:few], NOISE[:few]))
    (stage,) = model.fit_account.stages
    assert stage.method == "exact" and stage.over_noise is None and math.isnan(stage.log_density)


@pytest.mark.slow
def test_fifteen_hundred_noisy_points_are_fitted_as_their_noise_allows() -> None:
    inputs = problems.uniform(1500, 3)
    signal = math.sqrt(2.0) * torch.sin(6.0 * inputs[:, :1])
    noise = problems.normal(1500, 1, seed=1)
    model = fit(PathwiseGP(inputs, signal + noise))
    variance = (signal + noise).var().item()
    assert model.noise.item() * variance == pytest.approx(noise.var().item(), rel=0.1)
    assert (model.posterior(inputs).mean - signal).square().mean().sqrt() < 0.1


def partly_fine(n: int) -> tuple[Tensor, Tensor]:
    """Return n uniform points with a smooth function, and as many in four clusters of width 1e-3
    with an oscillation beside it.
    """
    even = problems.uniform(n, 2, seed=1)
    centres = problems.uniform(4, 2, seed=2).repeat(n // 4, 1)
    within = problems.uniform(n, 2, seed=3)
    points = torch.cat([even, centres + 1e-3 * within])
    f = torch.sin(4.0 * points[:, :1]) + torch.cos(3.0 * points[:, 1:])
    fine = torch.sin(2.0 * math.pi * within[:, :1]) * torch.cos(math.pi * within[:, 1:])
    f[n:] += math.sqrt(2.0) * fine
    return points, f


def scaled(lengthscale: float) -> ScaleKernel:
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2))
    kernel.base_kernel.lengthscale = lengthscale
    return kernel


@pytest.mark.slow
@pytest.mark.parametrize(("n", "lengthscale", "noise"), [(2000, 0.015, 0.1), (4000, 0.01, 0.02)])
def test_a_series_too_fine_for_the_bounds_of_the_kernel_is_reported_and_the_remedy_finds_it(
    n: int, lengthscale: float, noise: float
) -> None:
    points, places = problems.uniform(n, 1), problems.uniform(500, 1, seed=3)
    Y = problems.series(points, lengthscale) + noise * problems.normal(n, 1, seed=2)
    with pytest.warns(FineStructureWarning, match=r"of \d00 groups .* lower bound: use `ScaleK"):
        fit(PathwiseGP(points, Y))
    kernel = ScaleKernel(RBFKernel(ard_num_dims=1)).to(points)
    model = fit(PathwiseGP(points, Y, covar_module=kernel))  # without a warning
    posterior = model.posterior(places)
    error = (posterior.mean - problems.series(places, lengthscale)).abs()
    assert (error < 2.0 * posterior.variance.sqrt()).double().mean() > 0.85
    assert error.square().mean().sqrt() < noise


def test_known_noise_that_is_too_small_is_named_as_a_cause() -> None:
    points = problems.uniform(200, 1)
    Y = torch.sin(6.0 * points) + 0.3 * problems.normal(200, 1, seed=1)
    with pytest.warns(FineStructureWarning, match=r"Or give larger noise variances"):
        fit(PathwiseGP(points, Y, torch.full_like(Y, 1e-4)))


def test_structure_that_is_taken_for_noise_is_reported_and_the_remedy_finds_it() -> None:
    points, f = partly_fine(120)
    Y = f + 0.05 * problems.normal(240, 1, seed=4)
    with pytest.warns(FineStructureWarning, match=r"of 240 points .* Use a sum of kernels"):
        model = fit(PathwiseGP(points, Y, covar_module=scaled(0.5).to(points)))
    assert model.noise.item() * Y.var().item() > 30.0 * 0.05**2
    kernel = (scaled(0.5) + scaled(3e-4)).to(points)
    model = fit(PathwiseGP(points, Y, covar_module=kernel))  # without a warning
    assert model.noise.item() * Y.var().item() < 3.0 * 0.05**2
