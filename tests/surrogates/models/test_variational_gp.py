"""VariationalGP against the exact posterior where Z = X, and against GPyTorch's SVGP elsewhere."""

from collections.abc import Callable
from copy import deepcopy
from functools import cache, partial
from operator import methodcaller
from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood, VariationalELBO
from gpytorch.models import ApproximateGP
from gpytorch.priors import GammaPrior
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
from torch import Tensor

from surrogates import VariationalGP, fit_variational, gaussian_likelihood, memory
from tests import problems
from tests.refusals import assert_refused
from tests.surrogates.models.toy_model import YVAR, D, N, X, Y, kernel, settings

M = 12
Z = problems.uniform(M, D, seed=4)
Q = problems.uniform(9, D, seed=1)


def known_noise() -> dict[str, Any]:
    return {"covar_module": kernel(), "train_Yvar": YVAR}


def variational(**changes: Any) -> VariationalGP:
    return VariationalGP(
        X,
        Y,
        **{**settings(), "inducing_points": Z, "num_paths": 64, "num_features": 128, **changes},
    )


def exact_log_likelihood(**settings: Any) -> float:
    model = SingleTaskGP(X, Y, **settings)
    with torch.no_grad():
        return (
            N
            * ExactMarginalLogLikelihood(model.likelihood, model)(
                model(*model.train_inputs), model.train_targets
            ).item()
        )


class GPyTorchSVGP(ApproximateGP):
    """The stock model at the parameters of ours."""

    def __init__(self, model: VariationalGP):
        _, mean, root = model.whitened_posterior()
        distribution = CholeskyVariationalDistribution(len(mean)).double()
        super().__init__(
            VariationalStrategy(self, model.inducing_points, distribution, jitter_val=1e-13)
        )
        self.variational_strategy.variational_params_initialized.fill_(1)
        distribution.variational_mean.data = mean.clone()
        distribution.chol_variational_covar.data = torch.linalg.cholesky(root @ root.T)
        self.mean_module = deepcopy(model.mean_module)
        self.covar_module = deepcopy(model.covar_module)

    def forward(self, inputs: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(inputs), self.covar_module(inputs))


def stock_bound(model: VariationalGP, stock: GPyTorchSVGP) -> Tensor:
    """Return GPyTorch's evidence lower bound over all the data of ``model``."""
    model.eval()
    likelihood = model.likelihood
    known = (
        {"noise": likelihood.noise} if isinstance(likelihood, FixedNoiseGaussianLikelihood) else {}
    )
    objective = VariationalELBO(likelihood, stock, num_data=N)
    return N * objective(stock.train()(model.train_inputs[0]), model.train_targets, **known)


@pytest.mark.parametrize("settings", [settings, known_noise])
def test_the_closed_form_is_a_stationary_point_of_gpytorchs_bound(
    settings: Callable[[], dict[str, Any]],
) -> None:
    model = variational(**{"likelihood": None, **settings()})
    stock = GPyTorchSVGP(model)
    bound = stock_bound(model, stock)
    assert model.elbo() == pytest.approx(bound.item(), rel=1e-6)
    distribution = stock.variational_strategy._variational_distribution
    parameters = (distribution.variational_mean, distribution.chol_variational_covar)
    with torch.no_grad():
        moved = GPyTorchSVGP(model)
        moved.variational_strategy._variational_distribution.variational_mean.mul_(1.01)
        assert stock_bound(model, moved) < bound
    for_mean, for_root = torch.autograd.grad(bound, parameters)
    assert max(for_mean.abs().max(), for_root.tril().abs().max()) < 1e-5


def test_more_inducing_points_raise_the_bound_up_to_the_evidence() -> None:
    bounds = [variational(inducing_points=X[:m]).elbo() for m in (5, 20, 40, N)]
    assert bounds == sorted(bounds) and bounds[0] < bounds[-1] - 1.0
    assert bounds[-1] <= exact_log_likelihood(**settings()) + 1e-6


def test_the_chunk_size_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = variational().elbo()
    monkeypatch.setattr(memory, "chunk_entries", lambda device: 7 * M)
    assert variational().elbo() == pytest.approx(whole)


def test_fitting_with_fixed_hyperparameters_approaches_the_closed_form() -> None:
    closed, model = (variational(**{"likelihood": None, **known_noise()}) for _ in range(2))
    before = deepcopy(model.state_dict())
    prior_bound = deepcopy(fit(model, num_steps=1, learning_rate=1e-9)).elbo()
    fit(model, num_steps=300, learning_rate=0.05)
    assert closed.elbo() - 0.02 * (closed.elbo() - prior_bound) < model.elbo() < closed.elbo()
    means = [each.posterior(Q).mean / Y.std() for each in (model, closed)]
    torch.testing.assert_close(*means, rtol=0, atol=0.05)
    after = model.state_dict()
    assert all(
        torch.equal(after[name], value)
        for name, value in before.items()
        if not name.startswith("whitened")
    )


def fit(model: VariationalGP, **settings: Any) -> VariationalGP:
    return fit_variational(
        model,
        **{
            "batch_size": 30,
            "learn_hyperparameters": False,
            "learn_inducing_points": False,
            **settings,
        },
    )


def test_learning_raises_the_bound() -> None:
    closed = variational()
    model = variational()
    assert fit_variational(model, num_steps=250, batch_size=30, learning_rate=0.03) is model
    assert model.elbo() > closed.elbo() + 10.0
    assert (model.inducing_points - closed.inducing_points).abs().max() > 0.05
    assert model.noise != closed.noise
    assert model.covar_module.base_kernel.lengthscale != closed.covar_module.base_kernel.lengthscale
    assert model.mean_module.constant != closed.mean_module.constant


def test_noise_that_is_pulled_down_stays_above_its_bound() -> None:
    model = VariationalGP(X, Y, inducing_points=Z)
    noise = model.likelihood.noise_covar
    noise.register_prior("noise_prior", GammaPrior(1.0, 1e8).double(), "noise")
    fit_variational(model, num_steps=60, batch_size=N, learning_rate=0.2)
    assert noise.raw_noise_constraint.lower_bound < model.noise < 1e-3


def test_an_interrupted_fit_keeps_what_it_has_learned() -> None:
    def interrupt(step: int, bound: float) -> None:
        if step == 60:
            raise KeyboardInterrupt

    model = variational()
    start = fit_variational(variational(), num_steps=1)
    with pytest.raises(KeyboardInterrupt):
        fit_variational(model, batch_size=N, learning_rate=0.05, callback=interrupt)
    assert model.whitened_mean.any() and model.elbo() > start.elbo() + 10.0


def test_what_is_not_to_be_learnt_stays() -> None:
    model = variational()
    model.likelihood.requires_grad_(False)
    fit_variational(model, num_steps=5, batch_size=30, learn_inducing_points=False)
    assert torch.equal(model.inducing_points, Z) and model.noise.item() == pytest.approx(0.02)
    assert model.covar_module.outputscale != 1.3


def test_the_bound_that_was_maximised_is_the_models() -> None:
    # With inducing points this close, the factor of K_ZZ depends on its jitter: both must use the
    # same.
    first, second = (
        variational(covar_module=problems.scaled(problems.rbf(1.5), 1.3), inducing_points=0.2 * Z)
        for _ in range(2)
    )
    seen: list[float] = []
    model = fit_variational(first, num_steps=20, batch_size=N, learning_rate=0.05)
    fit_variational(
        second,
        num_steps=21,
        batch_size=N,
        learning_rate=0.05,
        callback=lambda step, bound: seen.append(bound),
    )
    assert len(seen) == 21
    # GPyTorch adds it to the variances, too
    jitter_of_the_data = 0.5 * N * 1e-6 / model.noise.item()
    assert model.elbo() == pytest.approx(seen[-1] + jitter_of_the_data, rel=1e-6)


def test_fitting_is_repeatable_and_leaves_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    first, second = (fit(variational(), num_steps=5) for _ in range(2))
    other = fit(variational(), num_steps=5, generator=torch.Generator().manual_seed(9))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.whitened_mean, second.whitened_mean)
    assert not torch.equal(first.whitened_mean, other.whitened_mean)


def test_the_posterior_follows_what_was_fitted() -> None:
    model = variational()
    before = model.posterior(Q).mean
    after = fit(model, num_steps=5).posterior(Q).mean
    assert (after - before).abs().max() > 0.1
    torch.testing.assert_close(after.squeeze(-1), model.paths(2).mean(Q))
    model.inducing_points.add_(0.3)
    assert (model.posterior(Q).mean - after).abs().max() > 0.01


def closed_form(model: VariationalGP, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return Titsias' mean and covariance k** − Q** + k*Z A⁻¹ kZ*, in standardised units, by dense
    algebra.
    """
    model.eval()
    with torch.no_grad():
        k = model.covar_module
        X = model.train_inputs[0]
        K_ZZ = k(model.inducing_points).to_dense()
        K_ZX = k(model.inducing_points, X).to_dense()
        K_ZQ = k(model.inducing_points, inputs).to_dense()
        weighted = K_ZX / model.noise.expand(len(X))
        A = K_ZZ + weighted @ K_ZX.T
        mean = K_ZQ.T @ torch.linalg.solve(
            A, weighted @ (model.train_targets - model.mean_module(X))
        )
        covariance = (
            k(inputs).to_dense()
            - K_ZQ.T @ torch.linalg.solve(K_ZZ, K_ZQ)
            + K_ZQ.T @ torch.linalg.solve(A, K_ZQ)
        )
        return model.mean_module(inputs) + mean, covariance


def small_noise(**changes: Any) -> VariationalGP:
    return variational(likelihood=gaussian_likelihood(1.3e-4), **changes)


@pytest.mark.parametrize(
    "settings", [known_noise(), {"likelihood": gaussian_likelihood(1.3e-4)}], ids=["known", "small"]
)
def test_the_posterior_is_the_closed_form(settings: dict[str, Any]) -> None:
    model = variational(**{"likelihood": None, **settings}, num_paths=2)
    mean, covariance = closed_form(model, Q)
    units = Y.std()
    with torch.no_grad():
        posterior = model.posterior(Q)
        noisy = model.posterior(Q, observation_noise=True)
    torch.testing.assert_close(posterior.mean.squeeze(1), Y.mean() + units * mean)
    torch.testing.assert_close(
        posterior.distribution.covariance_matrix, units**2 * covariance, rtol=1e-6, atol=1e-9
    )
    torch.testing.assert_close(
        noisy.variance, posterior.variance + units**2 * model.noise.mean(), rtol=1e-6, atol=1e-9
    )


def test_the_posterior_is_differentiable() -> None:
    model = small_noise(covar_module=problems.scaled(problems.matern(2.5, 0.4), 1.3))
    points = Q[:3].clone().requires_grad_()

    def covariance(inputs: Tensor) -> Tensor:
        return model.posterior(inputs).distribution.covariance_matrix

    assert torch.autograd.gradcheck(covariance, (points,))
    assert torch.autograd.gradcheck(lambda inputs: model.posterior(inputs).mean, (points,))


def test_variances_at_many_points_take_no_matrix_of_them() -> None:
    model = small_noise()
    points = problems.uniform(3000, D, seed=6)
    few = model.posterior(points[:1000])
    many = model.posterior(points)
    torch.testing.assert_close(many.variance[:1000], few.variance)
    torch.testing.assert_close(
        many.distribution.covariance_matrix[:1000, :1000], few.distribution.covariance_matrix
    )
    inputs = problems.uniform(100_000, D, seed=5)  # whose covariance would take 80 GB
    for noise in (False, True):
        variance = model.posterior(inputs, observation_noise=noise).variance
        torch.testing.assert_close(
            variance[:5], model.posterior(inputs[:5], observation_noise=noise).variance
        )


def test_float32_laws_of_close_inducing_points_are_those_of_float64() -> None:
    inputs = problems.uniform(150, 2, dtype=torch.float32)
    wave = torch.sin(5 * inputs[:, :1]) + 0.01 * problems.normal(150, 1, seed=2).float()
    points = problems.uniform(60, 2, seed=1, dtype=torch.float32)

    def model(dtype: torch.dtype) -> VariationalGP:
        return VariationalGP(
            inputs.to(dtype),
            wave.to(dtype),
            covar_module=problems.scaled(problems.matern(2.5, 1.0), 2.0),
            likelihood=gaussian_likelihood(1e-4),
            inducing_points=inputs.to(dtype),
            outcome_transform=None,
        )

    single, double = model(torch.float32), model(torch.float64)
    law, expected = single.posterior(points), double.posterior(points.double())
    std = expected.variance.sqrt()
    assert law.mean.dtype == law.variance.dtype == torch.float32
    assert ((law.mean - expected.mean) / std).abs().max() < 0.01
    torch.testing.assert_close(law.variance.double(), expected.variance, rtol=0.05, atol=0.0)
    assert single.elbo() == pytest.approx(double.elbo(), abs=1.0)
    values, mean = single.paths(256)(points), single.paths(256).mean(points)
    assert values.dtype == torch.float32
    assert ((mean - expected.mean.squeeze(1)) / std.squeeze(1)).abs().max() < 0.01
    ratio = (values - mean).double().square().mean(0) / expected.variance.squeeze(1)
    assert 0.9 < ratio.mean() < 1.1


@pytest.mark.parametrize("nu", [0.5, 2.5])
@pytest.mark.parametrize(("dim", "lengthscale"), [(1, 0.2), (3, 0.4), (6, 1.0)])
def test_paths_have_the_variance_of_the_closed_form(
    dim: int, lengthscale: float, nu: float
) -> None:
    inputs = problems.uniform(400, dim)
    wave = torch.sin(5 * inputs.sum(1, keepdim=True))
    model = VariationalGP(
        inputs,
        wave + 0.01 * problems.normal(400, 1, seed=2),
        covar_module=problems.scaled(problems.matern(nu, lengthscale), 1.0),
        likelihood=gaussian_likelihood(1e-4),
        inducing_points=100,
        outcome_transform=None,
    )
    points = problems.uniform(100, dim, seed=1)
    expected = closed_form(model, points)[1].diagonal()
    ratios = []
    for seed in range(4):
        paths = model.paths(128, generator=torch.Generator().manual_seed(seed))
        variance = (paths(points) - paths.mean(points)).square().mean(0)
        ratios.append((variance / expected).mean().item())
    assert all(0.85 < ratio < 1.15 for ratio in ratios), ratios
    assert 0.95 < sum(ratios) / len(ratios) < 1.05, ratios


SHIFTED = 0.8 * problems.uniform(50, D, seed=6) + 0.4
SHIFTED_Y = 10 + 4 * torch.sin(5 * SHIFTED.sum(1, keepdim=True)) + 2.0


def with_data_set(model: VariationalGP) -> VariationalGP:
    targets = torch.cat([Y, SHIFTED_Y]).squeeze(1)
    model.set_train_data(torch.cat([X, SHIFTED]), (targets - Y.mean()) / Y.std(), strict=False)
    return model


@cache
def fitted_before() -> VariationalGP:
    bounds = torch.tensor([[0.0, 0.0], [1.5, 1.5]]).double()
    model = variational(input_transform=Normalize(D, bounds=bounds))
    return fit_variational(model, num_steps=150, batch_size=30, learning_rate=0.03)


@pytest.mark.parametrize(
    "observe", [methodcaller("condition_on_observations", SHIFTED, SHIFTED_Y), with_data_set]
)
def test_data_seen_after_a_fit_count_in_closed_form(
    observe: Callable[[VariationalGP], VariationalGP],
) -> None:
    model = deepcopy(fitted_before())
    before = model.posterior(Q).mean
    outputscale = model.covar_module.outputscale.item()
    inducing_points = model.inducing_points.clone()
    after = observe(model)
    assert after.covar_module.outputscale.item() == outputscale
    assert torch.equal(after.inducing_points, inducing_points)
    mean, covariance = closed_form(after, after.transform_inputs(Q))
    posterior = after.posterior(Q)
    assert (posterior.mean - before).abs().max() > 0.3 * Y.std()
    torch.testing.assert_close(
        posterior.mean.squeeze(1), Y.mean() + Y.std() * mean, rtol=1e-5, atol=1e-5
    )
    torch.testing.assert_close(
        posterior.variance.squeeze(1), Y.var() * covariance.diagonal(), rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(after.paths(2).mean(Q), posterior.mean.squeeze(1))


def test_a_warm_start_changes_nothing() -> None:
    model = variational()
    model.posterior(Q)
    torch.testing.assert_close(
        variational().warm_start(model).posterior(Q).mean, model.posterior(Q).mean
    )


@pytest.mark.parametrize("fitted", [False, True], ids=["closed-form", "fitted"])
def test_transforms_are_respected(fitted: bool) -> None:
    lower = torch.tensor([-3.0, 5.0]).double()
    width = torch.tensor([2.0, 0.1]).double()
    plain = variational(covar_module=kernel())
    transform = Normalize(D, bounds=torch.stack([lower, lower + width]))
    moved = VariationalGP(
        lower + width * X,
        7 - 3 * Y,
        **settings(),
        inducing_points=lower + width * Z,
        input_transform=transform,
        num_paths=8,
    )
    if fitted:
        fit_variational(plain, num_steps=20), fit_variational(moved, num_steps=20)
    torch.testing.assert_close(
        moved.posterior(lower + width * Q).mean, 7 - 3 * plain.posterior(Q).mean
    )
    torch.testing.assert_close(
        moved.paths(2).mean(lower + width * Q).unsqueeze(1), 7 - 3 * plain.posterior(Q).mean
    )
    torch.testing.assert_close(moved.inducing_points, plain.inducing_points)


def test_a_copy_and_a_loaded_state_have_the_posterior_that_was_fitted() -> None:
    model = fit_variational(variational(input_transform=Normalize(D)), num_steps=20)
    expected = model.posterior(Q)
    loaded = variational(
        inducing_points=5,
        covar_module=problems.scaled(problems.matern(1.5, 0.9), 0.5),
        input_transform=Normalize(D),
    )
    fit(loaded, num_steps=2)
    loaded.load_state_dict(model.state_dict())
    for other in (deepcopy(model), loaded, deepcopy(model).train().eval()):
        torch.testing.assert_close(other.posterior(Q).mean, expected.mean)
        torch.testing.assert_close(other.posterior(Q).variance, expected.variance)
    assert model.float().posterior(Q.float()).mean.dtype == torch.float32


@pytest.mark.parametrize(
    ("num_steps", "learning_rate"), [(20, 1e200), (1, 1e308)], ids=["bound", "parameters"]
)
def test_a_fit_that_diverges_leaves_the_model_as_it_was(
    num_steps: int, learning_rate: float
) -> None:
    model = variational()
    before = deepcopy(model.state_dict())
    with pytest.raises(
        FloatingPointError,
        match=r"not finite after step \d+; the model is as it was. Reduce `learning_rate`",
    ):
        fit_variational(model, num_steps=num_steps, learning_rate=learning_rate)
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_a_bad_fit_is_refused_by_name() -> None:
    fit = partial(fit_variational, variational())
    assert_refused(ValueError, fit, num_steps=[0], batch_size=[0], learning_rate=[-0.1])
