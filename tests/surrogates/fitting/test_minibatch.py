"""sgGP, against autograd of the exact marginal likelihood and known hyperparameters."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from gpytorch.means import ZeroMean

from surrogates import PathwiseGP, fit_exact, gaussian_likelihood
from surrogates.fitting.minibatch import fit_minibatch
from tests import problems
from tests.problems import exact_likelihood, hyperparameters
from tests.refusals import assert_refused

X = problems.uniform(60, 2)
Y = torch.sin(6 * X.sum(1, keepdim=True)) + 0.1 * problems.normal(60, 1, seed=1)


@pytest.mark.parametrize("sampling", ["nearest", "uniform"])
def test_minibatches_of_all_data_reach_the_exact_optimum(sampling: Any) -> None:
    model = PathwiseGP(X, Y)
    best = exact_likelihood(fit_exact(PathwiseGP(X, Y))).item()
    fitted = fit_minibatch(
        model, batch_size=100, sampling=sampling, max_epochs=200, learning_rate=0.05
    )
    assert fitted is model and not model.training
    assert exact_likelihood(model).item() == pytest.approx(best, abs=2e-3)


def test_a_step_of_sgd_divides_the_gradient_by_the_published_scales() -> None:
    kernel = problems.scaled(problems.rbf(), 2.0) + problems.scaled(problems.matern(1.5), 0.5)
    model = PathwiseGP(X, Y, covar_module=kernel, likelihood=gaussian_likelihood(0.3)).double()
    (-exact_likelihood(model)).backward()
    values = {"signal": kernel.kernels[0], "rough": kernel.kernels[1]}
    before = {name: part.outputscale.item() for name, part in values.items()}
    slopes = {
        name: part.raw_outputscale.grad.item() / torch.sigmoid(part.raw_outputscale).item()
        for name, part in values.items()
    }
    rate = 1e-4
    m = 60
    fit_minibatch(
        model, batch_size=m, optimizer="sgd", learning_rate=rate, max_epochs=1, num_batches=1
    )
    for name, scale in (("signal", 3.0 * math.log(m)), ("rough", m)):
        # Steps are taken in logarithms
        step = math.log(values[name].outputscale.item() / before[name])
        assert step == pytest.approx(-rate * m / scale * slopes[name] * before[name], rel=1e-3)


def signal_in_noise(seed: int, outputscale: float, noise: float, n: int = 1024) -> PathwiseGP:
    """Return a model, with these hyperparameters, of a draw with signal variance 4,
    noise 1 and a known lengthscale.
    """
    generator = torch.Generator().manual_seed(seed)
    inputs = 5.0 * torch.randn(n, 1, generator=generator, dtype=torch.float64)
    kernel = problems.rbf(0.5).double().requires_grad_(False)
    root = torch.linalg.cholesky(
        4.0 * kernel(inputs).to_dense() + torch.eye(n, dtype=torch.float64)
    )
    targets = root @ torch.randn(n, 1, generator=generator, dtype=torch.float64)
    return PathwiseGP(
        inputs,
        targets,
        covar_module=problems.scaled(kernel, outputscale),
        likelihood=gaussian_likelihood(noise),
        mean_module=ZeroMean(),
        outcome_transform=None,
    )


def recovered(seeds: range, start: tuple[float, float], **settings: Any) -> tuple[float, float]:
    found = []
    for seed in seeds:
        model = fit_minibatch(
            signal_in_noise(seed, *start),
            batch_size=128,
            generator=torch.Generator().manual_seed(seed),
            optimizer="sgd",
            num_batches=1,
            tolerance=0,
            **settings,
        )
        # Known, and so left alone
        assert model.covar_module.base_kernel.lengthscale.item() == pytest.approx(0.5)
        found.append((model.covar_module.outputscale.item(), model.noise.item()))
    outputscale, noise = torch.tensor(found).mean(0).tolist()
    return outputscale, noise


def test_noise_and_signal_are_recovered_within_their_error() -> None:
    outputscale, noise = recovered(range(3), (5.0, 3.0), sampling="uniform", max_epochs=10)
    # Std over data sets, as measured: 0.065 and 0.9
    assert noise == pytest.approx(1.0, abs=3 * 0.065 / math.sqrt(3))
    assert outputscale == pytest.approx(4.0, abs=3 * 0.9 / math.sqrt(3))


@pytest.mark.slow
@pytest.mark.parametrize("start", [(5.0, 3.0), (1.0, 2.0), (7.0, 0.5)])
@pytest.mark.parametrize("sampling", ["uniform", "nearest"])
def test_recovery_as_published(sampling: Any, start: tuple[float, float]) -> None:
    outputscale, noise = recovered(range(10), start, sampling=sampling, max_epochs=25)
    assert noise == pytest.approx(1.0, rel=0.05)
    assert outputscale == pytest.approx(4.0, rel=0.25)


@pytest.mark.slow
def test_the_noise_of_levy_is_learned() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(6000, 4, generator=generator, dtype=torch.float64)
    W = 1 + (20 * inputs - 11) / 4  # inputs on [-10, 10]
    peaks = (W[:, :-1] - 1) ** 2 * (1 + 10 * torch.sin(math.pi * W[:, :-1] + 1) ** 2)
    f = (
        torch.sin(math.pi * W[:, 0]) ** 2
        + peaks.sum(1)
        + (W[:, -1] - 1) ** 2 * (1 + torch.sin(2 * math.pi * W[:, -1]) ** 2)
    )
    f = math.sqrt(1 - 0.174**2) * (f - f.mean()) / f.std()
    targets = f + 0.174 * torch.randn(6000, generator=generator, dtype=torch.float64)
    kernel = problems.scaled(problems.rbf(torch.full((1, 4), 0.3), ard_num_dims=4), 1.0)
    model = PathwiseGP(
        inputs,
        targets.unsqueeze(1),
        covar_module=kernel,
        likelihood=gaussian_likelihood(0.2),
        mean_module=ZeroMean(),
    )
    assert fit_minibatch(model).noise.sqrt().item() == pytest.approx(0.174, rel=0.15)


def test_a_fit_that_has_settled_stops_before_its_epochs_are_over() -> None:
    steps: list[int] = []
    fit_minibatch(
        PathwiseGP(X, Y),
        max_epochs=2000,
        num_batches=3,
        tolerance=0.1,
        callback=lambda step, _: steps.append(step),
    )
    assert steps == list(range(1, len(steps) + 1)) and len(steps) < 1250  # of 2500


@pytest.mark.parametrize("n", [60, 2], ids=["constant targets", "two points"])
def test_degenerate_data_give_finite_hyperparameters_by_plain_steps_on_uniform_batches(
    n: int,
) -> None:
    targets = torch.full_like(Y, 3.0) if n == 60 else Y[:n]
    kernel = problems.scaled(problems.rbf(torch.ones(1, 2), ard_num_dims=2), 1.0)
    likelihood = gaussian_likelihood(1e-4)
    model = PathwiseGP(X[:n], targets, None, likelihood, kernel, outcome_transform=None)
    fit_minibatch(
        model, batch_size=32, optimizer="sgd", sampling="uniform", max_epochs=50, num_batches=1
    )
    assert torch.isfinite(hyperparameters(model)).all()
    assert torch.isfinite(model.posterior(X).mean).all()


def test_bad_arguments_are_named() -> None:
    assert_refused(
        ValueError,
        partial(fit_minibatch, PathwiseGP(X, Y)),
        batch_size=[1],
        sampling=["near"],
        optimizer=["lbfgs"],
        max_epochs=[0],
        num_batches=[0],
        learning_rate=[0.0],
        tolerance=[-1.0],
    )
