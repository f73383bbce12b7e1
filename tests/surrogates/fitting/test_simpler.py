"""Few data in many inputs: fewer hyperparameters, and noise that the prior does not expect."""

import math

import pytest
import torch
from gpytorch.kernels import RBFKernel, RQKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.priors import LogNormalPrior
from torch import Tensor

from surrogates import NoSignalWarning, PathwiseGP, fit, fit_exact
from surrogates.fitting.simpler import simplify
from tests import problems
from tests.problems import hyperparameters

N = 100
D = 10
X = problems.uniform(N, D)
NOISE = problems.normal(N, 1, seed=1)


def draw(lengthscale: float) -> Tensor:
    """Return a draw of variance 1 whose inputs matter alike."""
    kernel = problems.rbf().to(X)
    kernel.lengthscale = lengthscale
    with torch.no_grad():
        K = kernel(X).to_dense() + 1e-8 * torch.eye(N, dtype=X.dtype)
    f = torch.linalg.cholesky(K) @ problems.normal(N, 1, seed=5)
    return (f - f.mean()) / f.std()


ALIKE = draw(1.5)
ONE_INPUT = math.sqrt(2.0) * torch.sin(6.0 * X[:, :1])


def make(Y: Tensor) -> PathwiseGP:
    return PathwiseGP(X.to(Y), Y, covar_module=problems.matern(2.5, ard_num_dims=D).to(Y))


def in_two_of_nine(n: int, seed: int) -> tuple[Tensor, Tensor]:
    points = problems.uniform(n, 9, seed=seed)
    return points, torch.sin(5.0 * points[:, :1]) + 2.0 * (points[:, 1:2] - 0.3).square()


def cost(model: PathwiseGP) -> Tensor:
    """Return the nats by which short lengthscales are less likely than what is expected."""
    share = model.covar_module.lengthscale.detach() / (X.amax(0) - X.amin(0))
    expected = math.sqrt(2.0) + 0.5 * math.log(D)
    return (share.log() - expected).clamp_max(0.0).square() / 6.0


@torch.no_grad()
def log_likelihood(model: PathwiseGP) -> float:
    """Return log p(y), without priors."""
    X = model.train_inputs[0]
    H = model.covar_module(X).to_dense() + model.noise * torch.eye(len(X), dtype=X.dtype)
    law = torch.distributions.MultivariateNormal(model.mean_module(X), H)
    return law.log_prob(model.train_targets).item()


def test_many_lengthscales_do_not_explain_noise() -> None:
    misled = fit_exact(make(NOISE.float()))
    assert misled.noise.item() < 0.02  # of 1, by an optimum that seems likelier than noise
    with pytest.warns(
        NoSignalWarning, match=r"`fit` takes all 100 targets .* `fit\(model, 'exact'\)`"
    ):
        model = fit(make(NOISE.float()))
    assert model.noise.item() == pytest.approx(1.0, rel=0.1)
    assert str(model.fit_account).startswith("Hyperparameters of white noise")


def test_inputs_that_matter_alike_have_lengthscales_in_proportion() -> None:
    misled = fit_exact(make(ALIKE + NOISE))
    model = fit(make(ALIKE + NOISE))
    assert model.noise > 10.0 * misled.noise  # and less than the truth, which is half
    errors = [(m.posterior(X).mean - ALIKE).square().mean().sqrt() for m in (model, misled)]
    assert errors[0] < 0.85 * errors[1]
    lengthscale = model.covar_module.lengthscale / (X.amax(0) - X.amin(0))
    torch.testing.assert_close(lengthscale, lengthscale.mean().expand_as(lengthscale))
    assert model.fit_account.chosen == "simpler"
    assert "in proportion" in str(model.fit_account)
    # By hand: the exact fit is likelier, but its lengthscales are shorter than one expects
    gain = log_likelihood(misled) - log_likelihood(model)
    assert 0.0 < gain < cost(misled).sum() - cost(model).mean()


@pytest.mark.parametrize(
    "seed", [11, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (12, 13))]
)
def test_two_inputs_of_nine_are_found_in_noise(seed: int) -> None:
    points, f = in_two_of_nine(200, seed)
    noise = 2.0 * f.std() * problems.normal(200, 1, seed=seed + 100)
    kernel = ScaleKernel(RBFKernel(ard_num_dims=9))
    model = fit(PathwiseGP(points, f + noise, covar_module=kernel))
    assert model.noise.item() * (f + noise).var().item() == pytest.approx(noise.var(), rel=0.25)
    lengthscale = model.covar_module.base_kernel.lengthscale[0]
    assert (lengthscale[2:] > 4.0 * lengthscale[:2].min()).sum() >= 5
    Z, truth = in_two_of_nine(400, seed + 200)
    assert (model.posterior(Z).mean - truth).square().mean().sqrt() < 0.6 * truth.std()


@pytest.mark.parametrize("seed", [5, 9])
def test_a_weak_signal_is_kept_in_proportion(seed: int) -> None:
    points = problems.uniform(60, 4)
    signal = torch.sin(3.0 * points[:, :1]) + points[:, 1:2] * points[:, 2:3]
    signal = (signal - signal.mean()) / signal.std()
    Y = 1e6 + 1e4 * (signal + 1.4 * problems.normal(60, 1, seed=seed))
    kernel = RQKernel(ard_num_dims=4)
    model = fit(PathwiseGP(points.float(), Y.float(), covar_module=kernel))
    assert model.fit_account.chosen == "simpler"
    mean = (model.posterior(points.float()).mean.double() - 1e6) / 1e4
    assert (mean - signal).square().mean().sqrt() < 0.8


@pytest.mark.parametrize("seed", [1, 5])
def test_left_out_data_that_hyperparameters_have_seen_are_no_evidence(seed: int) -> None:
    """Of noise, many lengthscales predict them better than chance would by two standard errors."""
    points = problems.uniform(80, 6, seed=seed)
    noise = problems.normal(80, 1, seed=seed + 10)
    with pytest.warns(NoSignalWarning):
        model = fit(PathwiseGP(points, noise))
    first, *_ = model.fit_account.stages
    assert first.over_noise.mean > 2.0 * first.over_noise.error
    assert model.noise.item() == pytest.approx(1.0, rel=0.05)


def test_an_input_that_matters_alone_keeps_its_lengthscale() -> None:
    Y = ONE_INPUT + 0.3 * NOISE
    model = fit(make(Y))
    lengthscale = model.covar_module.lengthscale[0]
    assert (lengthscale[1:] > 10.0 * lengthscale[0]).all()
    assert model.noise.item() * Y.var().item() == pytest.approx(0.09, rel=0.3)


def test_what_has_noise_for_its_errors_is_left_as_it_is() -> None:
    points = problems.uniform(N, 1)
    model = fit_exact(PathwiseGP(points, torch.sin(6.0 * points) + 0.5 * NOISE))
    before = hyperparameters(model)
    told: list[float] = []
    assert simplify(model, callback=lambda _, value: told.append(value)) is None
    assert torch.equal(hyperparameters(model), before) and not told


def test_noise_that_is_known_has_no_competitor() -> None:
    known = fit_exact(PathwiseGP(X, NOISE, torch.full_like(NOISE, 0.1)))
    assert simplify(known) is None


def test_a_prior_of_the_users_stays() -> None:
    likelihood = GaussianLikelihood(noise_prior=LogNormalPrior(math.log(1e-3), 0.01)).to(X)
    likelihood.noise = 1e-3
    points = X[:, :1]
    model = PathwiseGP(
        points, ONE_INPUT + NOISE, likelihood=likelihood, covar_module=RBFKernel().to(X)
    )
    simplify(fit_exact(model))
    assert model.noise.item() == pytest.approx(1e-3, rel=0.2)


def test_the_default_prior_is_left_aside() -> None:
    points = X[:, :2]
    signal = torch.sin(6.0 * points.sum(1, keepdim=True))
    Y = signal / signal.std() + NOISE
    model = PathwiseGP(points, Y, covar_module=problems.matern(1.5, ard_num_dims=2).to(X))
    assert fit_exact(model).noise.item() * Y.var().item() < 0.5 * NOISE.var().item()
    assert fit(model).noise.item() * Y.var().item() == pytest.approx(NOISE.var().item(), rel=0.1)


def test_a_model_that_learns_more_is_left_to_its_exact_fit() -> None:
    two = fit_exact(PathwiseGP(X[:60, :2], NOISE[:60].expand(-1, 2)))
    assert simplify(two) is None
