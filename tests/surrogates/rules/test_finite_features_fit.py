"""SCGD and MINIMAX: their gradients against the dense marginal likelihood,
and what a fit guarantees.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from gpytorch.kernels import RBFKernel
from gpytorch.means import ZeroMean
from gpytorch.priors import GammaPrior
from torch import Tensor, nn

from surrogates import (
    SCGD,
    FiniteFeatureGP,
    FourierFeatures,
    Minimax,
    fit_exact,
    fit_finite_features,
    gaussian_likelihood,
)
from surrogates.rules.finite_objective import Batch, Objective, Saddle, Tracker
from tests import problems
from tests.refusals import assert_refused

N = 9
D = 2
F = 3
B = 3
X = problems.uniform(N, D)
Y = torch.sin(5 * X.sum(1, keepdim=True)) + 0.3 * problems.normal(N, 1, seed=2)
YVAR = 0.05 + 0.3 * problems.uniform(N, 1, seed=3)
BATCHES = [torch.tensor(rows) for rows in itertools.combinations(range(N), B)]
NOISES: dict[str, Callable[[], dict[str, Any]]] = {
    "one-noise": dict,
    "known-noise": lambda: {"train_Yvar": YVAR},
}


def gp(**changes: Any) -> FiniteFeatureGP:
    network = nn.Linear(D, F).double()
    with torch.no_grad():
        network.weight.copy_(problems.normal(F, D, seed=4))
        network.bias.copy_(problems.normal(F, seed=5))
    model = FiniteFeatureGP(X, Y, feature_map=nn.Sequential(network, nn.Tanh()), **changes)
    model.covar_module.outputscale = 1.7
    if "train_Yvar" not in changes:
        model.likelihood.noise = 0.3
    return model


def dense_loss(model: FiniteFeatureGP) -> Tensor:
    """Return −2 (log p(y) + log priors), differentiable, from the n × n matrix."""
    model.eval()
    inputs = model.train_inputs[0]
    targets = model.train_targets
    features = model.covar_module.base_kernel.feature_map(inputs)
    noise = model.likelihood.noise.expand(N)
    law = torch.distributions.MultivariateNormal(
        model.mean_module(inputs),
        model.covar_module.outputscale * features @ features.T + noise.diag(),
    )
    priors = [
        prior.log_prob(closure(part)).sum() for _, part, prior, closure, _ in model.named_priors()
    ]
    return -2.0 * (law.log_prob(targets) + sum(priors))


def gradients(model: FiniteFeatureGP, loss: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    found = torch.autograd.grad(loss, [*model.parameters(), *others], allow_unused=True)
    return tuple(torch.zeros(()).double() if gradient is None else gradient for gradient in found)


def mean_gradient(
    model: FiniteFeatureGP, loss: Callable[[Batch], Tensor], objective: Objective, *others: Tensor
) -> tuple[Tensor, ...]:
    """Return the average over every batch of size b that there is."""
    sums = [gradients(model, loss(objective.batch(rows)), *others) for rows in BATCHES]
    return tuple(torch.stack(parts).mean(0) for parts in zip(*sums, strict=True))


@pytest.mark.parametrize("noise", NOISES)
def test_with_the_tracker_at_its_limit_stochastic_gradients_average_to_the_full_one(
    noise: str,
) -> None:
    model = gp(**NOISES[noise]())
    expected = gradients(model, dense_loss(model))
    objective = Objective(model, model.num_features)
    _, law = objective.evaluate()  # w at its optimum, where its own gradient is zero

    def loss(batch: Batch) -> Tensor:
        tracker = Tracker(SCGD(tracking=1e-300), objective, law)  # held at F(θ)
        return tracker.loss(batch, 1)[0]

    *found, of_weights = mean_gradient(model, loss, objective, objective.unscaled_weights)
    torch.testing.assert_close(tuple(found), expected, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(of_weights, torch.zeros(F).double(), rtol=0, atol=1e-8)


def test_the_gradient_is_taken_with_the_tracker_of_this_batch() -> None:
    model = gp(train_Yvar=YVAR)
    objective = Objective(model, model.num_features)
    _, law = objective.evaluate()
    tracker = Tracker(SCGD(tracking=1.0), objective, law)
    tracker.tracked = 100.0 * torch.eye(F).double()
    loss, value = tracker.loss(objective.batch(slice(None)), 1)
    torch.testing.assert_close(
        gradients(model, loss), gradients(model, dense_loss(model)), rtol=1e-8, atol=1e-8
    )
    assert value == pytest.approx(-0.5 * dense_loss(model).item())


@pytest.mark.parametrize("noise", NOISES)
def test_the_tracker_averages_to_the_sum_over_all_data(noise: str) -> None:
    model = gp(**NOISES[noise]())
    objective = Objective(model, model.num_features)
    value, law = objective.evaluate()
    estimates = torch.stack([objective.inner(objective.batch(rows)).detach() for rows in BATCHES])
    torch.testing.assert_close(estimates.mean(0), objective.exact_inner(law))
    assert value == pytest.approx(-0.5 * dense_loss(model).item())
    tracker = Tracker(SCGD(tracking=0.5, tracking_decay=1.0), objective, law)
    start = tracker.tracked
    tracker.loss(objective.batch(BATCHES[7]), 4)
    torch.testing.assert_close(tracker.tracked, 0.875 * start + 0.125 * estimates[7])


def saddle(model: FiniteFeatureGP, penalty: float) -> tuple[Objective, Saddle]:
    objective = Objective(model, model.num_features)
    _, law = objective.evaluate()
    return objective, Saddle(Minimax(penalty=penalty, dual_step=0.3), objective, law, 10)


def test_minimax_gradients_average_to_those_of_the_penalised_objective() -> None:
    model = gp()
    mu = 7.0
    objective, inner = saddle(model, mu)
    objective.unscaled_weights.data += 0.1
    inner.whitened.data += 0.1 * torch.eye(F)
    symmetric = problems.normal(F, F, seed=9)
    inner.direction = (symmetric + symmetric.T) / 20
    batch = objective.batch(slice(None))
    A = inner.A
    noise = batch.noise
    full_F = batch.features.T @ batch.features + noise * torch.eye(F)
    squares = (batch.features @ objective.weights - batch.residuals).square().sum()
    priors = sum(
        prior.log_prob(closure(part)).sum() for _, part, prior, closure, _ in model.named_priors()
    )
    expected = (
        squares / noise + objective.weights.square().sum() + (N - F) * noise.log() - 2.0 * priors
    )
    expected = (
        expected
        + torch.logdet(A)
        + mu * (inner.direction * (A - full_F)).sum() / A.square().sum().sqrt()
    )
    others = (objective.unscaled_weights, inner.whitened)
    found = mean_gradient(model, lambda batch: inner.loss(batch, 1)[0], objective, *others)
    torch.testing.assert_close(found, gradients(model, expected, *others), rtol=1e-8, atol=1e-8)


def test_with_enough_penalty_the_saddle_has_the_gradient_of_the_marginal_likelihood() -> None:
    model = gp()
    objective, inner = saddle(model, 1.0)
    A = inner.A.detach()
    least = (A.norm() * A.inverse().norm()).item()
    objective, inner = saddle(model, 1.01 * least)
    inner.direction = -A.norm() * A.inverse() / (1.01 * least)
    assert inner.direction.norm() < 1.0
    loss, value = inner.loss(objective.batch(slice(None)), 1)
    *found, of_A = gradients(model, loss, inner.whitened)
    torch.testing.assert_close(
        tuple(found), gradients(model, dense_loss(model)), rtol=1e-8, atol=1e-8
    )
    torch.testing.assert_close(of_A, torch.zeros(F, F).double(), rtol=0, atol=1e-8)
    assert value == pytest.approx(-0.5 * dense_loss(model).item())


def test_the_ascent_follows_the_difference_and_both_matrices_stay_in_their_sets() -> None:
    model = gp()
    objective, inner = saddle(model, 5.0)
    shifted = inner.A.detach() + 10.0 * problems.normal(F, F, seed=1)
    shifted = 0.5 * (shifted + shifted.T)
    S = inner.whitener
    inner.whitened.data = torch.linalg.solve(S, torch.linalg.solve(S, shifted).T).T
    batch = objective.batch(BATCHES[3])
    for _ in range(50):
        before = inner.direction.clone()
        inner.after_step(iter([batch]), 1)
        A = inner.A.detach()
        assert torch.linalg.eigvalsh(A).min() >= batch.noise * (1 - 1e-8)
        moved = before + 0.3 * (A - objective.inner(batch)) / A.norm()
        torch.testing.assert_close(inner.direction, moved / max(1.0, moved.norm().item()))
    assert inner.direction.norm() == pytest.approx(1.0)
    values, vectors = torch.linalg.eigh(shifted)
    torch.testing.assert_close(A, vectors @ values.clamp_min(batch.noise.item()).diag() @ vectors.T)


def test_the_penalty_grows_from_stage_to_stage() -> None:
    model = gp()
    objective = Objective(model, model.num_features)
    inner = Saddle(
        Minimax(penalty=2.0, penalty_growth=10.0, num_stages=3),
        objective,
        objective.evaluate()[1],
        6,
    )
    assert [inner.penalty(step) for step in range(1, 7)] == [2.0, 2.0, 20.0, 20.0, 200.0, 200.0]


METHODS = {"scgd": SCGD(), "minimax": Minimax(penalty=10.0)}


@pytest.mark.parametrize(
    ("method", "optimizer"), [("scgd", "adam"), ("minimax", "adadelta"), ("scgd", "sgd")]
)
def test_the_result_is_the_best_of_the_checks_and_never_below_the_start(
    method: str, optimizer: str
) -> None:
    model = gp()
    values = {}
    start = -0.5 * dense_loss(model).item()
    fit_finite_features(
        model,
        METHODS[method],
        batch_size=B,
        num_steps=30,
        optimizer=optimizer,
        check_every=3,
        callback=values.__setitem__,
    )
    result = -0.5 * dense_loss(model).item()
    assert list(values) == list(range(1, 31))
    assert result == pytest.approx(
        max(start, *(value for step, value in values.items() if step % 3 == 0))
    )
    assert result > start


def test_without_checks_the_last_iterate_is_kept_and_the_seed_decides_it() -> None:
    results = []
    for seed in (0, 0, 1):
        model = gp()
        fit_finite_features(
            model,
            batch_size=B,
            num_steps=5,
            check_every=0,
            generator=torch.Generator().manual_seed(seed),
        )
        results.append(
            torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
        )
    assert torch.equal(results[0], results[1])
    assert not torch.allclose(results[0], results[2])


def test_batches_beyond_the_data_are_all_of_them_and_known_noise_stays() -> None:
    model = gp(train_Yvar=YVAR)
    noise = model.noise.clone()
    before = model.log_marginal_likelihood()
    fit_finite_features(model, batch_size=10 * N, num_steps=40)
    assert model.log_marginal_likelihood() > before + 0.5
    assert torch.equal(model.noise, noise)


def test_priors_and_frozen_parameters_are_respected() -> None:
    fitted = []
    for prior in (None, GammaPrior(1e4, 1e4)):  # the second within 1% of 1
        model = gp()
        model.covar_module.base_kernel.requires_grad_(False)
        network = model.covar_module.base_kernel.feature_map[0].weight.clone()
        if prior is not None:
            model.covar_module.register_prior("outputscale_prior", prior.double(), "outputscale")
        fit_finite_features(model, batch_size=N, num_steps=100, learning_rate=0.05)
        assert torch.equal(model.covar_module.base_kernel.feature_map[0].weight, network)
        fitted.append(model.covar_module.outputscale.item())
    assert abs(fitted[0] - 1) > 0.2 and abs(fitted[1] - 1) < 0.1


def test_ctrl_c_keeps_the_best_so_far() -> None:
    model = gp()
    values = []

    def interrupt(step: int, value: float) -> None:
        values.append(value)
        if step == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_finite_features(model, batch_size=B, num_steps=100, check_every=1, callback=interrupt)
    assert -0.5 * dense_loss(model).item() == pytest.approx(max(values))


def test_divergence_is_an_error_that_leaves_the_model_as_it_was() -> None:
    model = gp()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(
        FloatingPointError,
        match=(
            r"not finite after step .*; the model is as it was. Reduce `learning_rate` below 1e\+06"
        ),
    ):
        fit_finite_features(model, batch_size=B, optimizer="sgd", learning_rate=1e6)
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name


@pytest.mark.parametrize(("method", "dtype"), [("scgd", torch.float32), ("minimax", torch.float64)])
def test_constant_targets_and_duplicated_inputs_give_finite_hyperparameters(
    method: str, dtype: torch.dtype
) -> None:
    inputs = X[:3].repeat(5, 1).to(dtype)
    feature_map = FourierFeatures(problems.rbf(0.5), D, 8)
    model = FiniteFeatureGP(
        inputs, torch.ones(15, 1, dtype=dtype), feature_map=feature_map, outcome_transform=None
    )
    fit_finite_features(model, method, batch_size=5, num_steps=60, learning_rate=0.1)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert model.posterior(inputs).variance.isfinite().all()


class Cracking(nn.Module):
    """Features that are finite until the parameter has moved."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()).double())

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.where(self.scale == 1.0, inputs * self.scale, math.inf)


def test_a_network_that_breaks_while_learning_leaves_the_model_as_it_was() -> None:
    model = FiniteFeatureGP(X, Y, feature_map=Cracking())
    with pytest.raises(ValueError, match="`feature_map` must return finite features"):
        fit_finite_features(model, batch_size=B)
    assert model.covar_module.base_kernel.feature_map.scale == 1.0


def test_arguments_that_make_no_sense_are_refused() -> None:
    fit = partial(fit_finite_features, gp())
    assert_refused(TypeError, fit, method=[3])
    assert_refused(
        ValueError,
        fit,
        method=["bsgd"],
        optimizer=["lbfgs"],
        batch_size=[0],
        num_steps=[0],
        learning_rate=[-1.0],
        step_decay=[2.0],
        check_every=[-1],
    )
    assert_refused(ValueError, SCGD, tracking=[0.0], tracking_decay=[-1.0])
    assert_refused(
        ValueError,
        Minimax,
        penalty=[-1.0],
        penalty_growth=[0.5],
        num_stages=[0],
        dual_step=[0.0],
        pace=[0.0],
    )


def recovery(
    seed: int,
    start: tuple[float, float],
    n: int = 1024,
    num_features: int = 128,
    spread: float = 5.0,
) -> FiniteFeatureGP:
    """Return the published problem, (σ_f², σ²) = (4, 1) at lengthscale 0.5,
    with the variances ``start``.
    """
    generator = torch.Generator().manual_seed(seed)
    inputs = spread * torch.randn(n, 1, generator=generator, dtype=torch.float64)
    features = FourierFeatures(
        problems.with_lengthscale(RBFKernel(), 0.5), 1, num_features, generator=generator
    )
    features = features.double().requires_grad_(False)
    weights = 2.0 * torch.randn(num_features, 1, generator=generator, dtype=torch.float64)
    targets = features(inputs) @ weights + torch.randn(
        n, 1, generator=generator, dtype=torch.float64
    )
    likelihood = gaussian_likelihood(start[1])
    model = FiniteFeatureGP(
        inputs,
        targets,
        None,
        likelihood,
        feature_map=features,
        mean_module=ZeroMean(),
        outcome_transform=None,
    )
    model.covar_module.outputscale = start[0]
    return model


def test_a_few_steps_bring_the_outputscale_to_the_optimum_from_far_away() -> None:
    problem = {"n": 256, "num_features": 32, "spread": 2.0}
    best = fit_exact(recovery(0, (2.5, 0.7), **problem))
    model = recovery(0, (12.0, 0.7), **problem)
    fit_finite_features(model, batch_size=64, num_steps=80, learning_rate=0.1, step_decay=0.3)
    assert model.covar_module.outputscale.item() == pytest.approx(
        best.covar_module.outputscale.item(), rel=0.03
    )
    assert model.likelihood.noise.item() == pytest.approx(best.likelihood.noise.item(), rel=0.03)


@pytest.mark.slow
def test_minimax_approaches_the_optimum_of_all_data_as_the_penalty_grows() -> None:
    gaps = torch.zeros(3)
    for seed in range(3):
        best = fit_exact(recovery(seed, (3.0, 2.0))).log_marginal_likelihood()
        for number, penalty in enumerate((1.0, 10.0, 1000.0)):
            model = recovery(seed, (3.0, 2.0))
            fit_finite_features(
                model,
                Minimax(penalty=penalty),
                batch_size=128,
                num_steps=600,
                learning_rate=0.02,
                step_decay=0.3,
                check_every=0,
            )
            gaps[number] += (best - model.log_marginal_likelihood()) / 3.0
    assert 1.5 * gaps[2] < gaps[1] < 0.7 * gaps[0]  # 3.6, 7.7 and 15.6 nats


def test_the_optimum_is_that_of_the_exact_marginal_likelihood() -> None:
    fitted, exact = (recovery(0, (2.5, 0.7), n=64, num_features=6, spread=1.0) for _ in range(2))
    fit_finite_features(fitted, batch_size=32, num_steps=150, learning_rate=0.05)
    fit_exact(exact)
    assert fitted.log_marginal_likelihood() == pytest.approx(
        exact.log_marginal_likelihood(), abs=0.1
    )
    assert fitted.likelihood.noise.item() == pytest.approx(exact.likelihood.noise.item(), rel=0.05)
