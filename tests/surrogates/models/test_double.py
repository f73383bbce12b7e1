"""Exact posteriors of float32 data: those of float64 arithmetic on the same numbers."""

import pickle
from copy import deepcopy
from typing import Any

import botorch
import pytest
import torch
from botorch.acquisition import qLogNoisyExpectedImprovement
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.models.transforms.input import Normalize
from botorch.models.transforms.outcome import ChainedOutcomeTransform, Log, Standardize
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import Kernel
from torch import Tensor

from surrogates import CG, Cholesky, PathwiseGP, gaussian_likelihood
from surrogates.models.data import data_sets
from tests import problems
from tests.pairs import each_pair

NOISE = 4e-7
KERNELS = {
    "rbf": lambda: problems.rbf(0.5),
    "matern": lambda: problems.matern(2.5, 1.0),
    "sum": lambda: problems.scaled(problems.rbf(0.7), 30.0) + problems.matern(1.5, 2.0),
}


def model(
    dtype: torch.dtype,
    *,
    n: int = 20,
    num_outputs: int = 1,
    scale: float = 1.0,
    noise: float = NOISE,
    kernel: Kernel | None = None,
    **options: Any,
) -> PathwiseGP:
    """Return a model of the same float32 numbers in either dtype."""
    X = problems.uniform(n, 2).float().to(dtype)
    waves = problems.normal(2, num_outputs, seed=1).to(dtype)
    return PathwiseGP(
        X,
        (scale * torch.sin(3.0 * X @ waves).float()).to(dtype),
        likelihood=gaussian_likelihood(noise),
        covar_module=deepcopy(kernel or problems.rbf(0.5)),
        **options,
    )


def queries(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return problems.uniform(*shape, 2, seed=5).float().to(dtype)


def by_hand(model: PathwiseGP, Q: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance at Q by a float64 factor of what the model was given."""
    (data,) = data_sets(model.eval())
    mean, covariance = problems.exact_posterior(data.kernel, data.X, data.y, data.noise, Q)
    scale = model._units.scale.double()
    return model._units.offset.double() + scale * mean, scale**2 * covariance.diagonal()


def assert_of_a_float64_factor(
    single: PathwiseGP, num_points: int, of_mean: dict[str, float], of_variance: dict[str, float]
) -> None:
    """Require the posterior of a factor in float64 within tolerances."""
    Q = queries(num_points)
    with torch.no_grad():
        posterior = single.posterior(Q)
    mean, variance = by_hand(single, Q)
    assert posterior.mean.dtype == posterior.variance.dtype == torch.float32
    torch.testing.assert_close(posterior.mean.double().squeeze(1), mean, **of_mean)
    torch.testing.assert_close(posterior.variance.double().squeeze(1), variance, **of_variance)


@each_pair(
    size=[(5, 1.0), (300, 1e-6), (60, 1e6), (600, 1.0)], noise=[1e-7, 1e-4, 1.0], kernel=KERNELS
)
def test_it_is_that_of_a_float64_factor(size: tuple[int, float], noise: float, kernel: str) -> None:
    n, scale = size
    single = model(torch.float32, n=n, scale=scale, noise=noise, kernel=KERNELS[kernel]())
    of_variance = {"rtol": 1e-3, "atol": 2e-10 * scale**2}
    assert_of_a_float64_factor(single, 30, {"rtol": 1e-5, "atol": 1e-5 * scale}, of_variance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("solver", [None, CG(None, tolerance=1e-3)], ids=["exact", "paths"])
def test_variances_of_small_outputs_are_not_rounded_up(dtype: torch.dtype, solver: Any) -> None:
    Q = queries(10, dtype=dtype)
    options: dict[str, Any] = {"noise": 1e-3, "solver": solver, "num_paths": 16}
    small = model(dtype, scale=1e-6, **options).posterior(Q)
    usual = model(dtype, scale=1.0, **options).posterior(Q)
    torch.testing.assert_close(1e12 * small.variance, usual.variance, rtol=0.05, atol=0.0)
    total = ScalarizedPosteriorTransform(torch.ones(1, dtype=dtype))
    weighted = model(dtype, scale=1e-6, **options).posterior(Q, posterior_transform=total)
    torch.testing.assert_close(weighted.variance, small.variance, rtol=1e-3, atol=0.0)


def test_variances_before_a_nonlinear_transform_are_not_rounded_up() -> None:
    variances = []
    for dtype in (torch.float32, torch.float64):
        transform = ChainedOutcomeTransform(log=Log(), standardize=Standardize(m=1))
        X = queries(20, dtype=dtype)
        given = PathwiseGP(
            X,
            (1.0 + 1e-4 * torch.sin(3.0 * X.double()[:, :1])).float().to(dtype),
            likelihood=gaussian_likelihood(1e-2),
            covar_module=problems.rbf(0.5),
            outcome_transform=transform,
        )
        variances.append(given.posterior(0.5 * X).variance.double())
    torch.testing.assert_close(*variances, rtol=0.05, atol=0.0)


@pytest.mark.parametrize("scale", [1e-6, 1.0])
def test_samples_at_close_points_have_the_small_variance_that_is_left(scale: float) -> None:
    law = model(torch.float32, scale=scale).posterior(queries(40)).distribution
    root = law.lazy_covariance_matrix.root_decomposition().root.to_dense().double()
    _, variance = by_hand(model(torch.float32, scale=scale), queries(40))
    torch.testing.assert_close(root.square().sum(1), variance, rtol=0.5, atol=2e-8 * scale**2)
    assert law.rsample(torch.Size([3])).dtype == torch.float32


def gradients(dtype: torch.dtype, observation_noise: bool) -> list[Tensor]:
    kernel = problems.scaled(problems.rbf(0.5), 2.0)
    # Neither so little noise that a float32 mean constant is felt, nor a constant gradient
    given = model(dtype, noise=1e-3, kernel=kernel)
    Q = queries(4, dtype=dtype).requires_grad_()
    with botorch.settings.propagate_grads(True):
        posterior = given.posterior(Q, observation_noise=observation_noise)
        (posterior.mean.sin().sum() + posterior.variance.log().sum()).backward()
    assert Q.grad is not None
    parts = [Q.grad, *(p.grad for p in given.parameters() if p.grad is not None)]
    return [part.double() for part in parts]


@pytest.mark.parametrize("observation_noise", [False, True])
def test_gradients_in_points_and_hyperparameters_are_those_of_float64(
    observation_noise: bool,
) -> None:
    single = gradients(torch.float32, observation_noise)
    double = gradients(torch.float64, observation_noise)
    assert len(single) == len(double) == 5
    for own, expected in zip(single, double, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-3, atol=1e-3)


def test_gradients_flow_after_a_first_call_without_them() -> None:
    given = model(torch.float32)
    Q = queries(4)
    with torch.no_grad():
        given.posterior(Q)
    given.posterior(Q.requires_grad_()).mean.sum().backward()
    assert Q.grad is not None and Q.grad.abs().sum() > 0
    with torch.no_grad():
        given.posterior(Q)
    with botorch.settings.propagate_grads(True):
        given.posterior(Q).mean.sum().backward()
    assert given.covar_module.raw_lengthscale.grad is not None


@pytest.mark.filterwarnings("ignore:Non-strict enforcement")  # more values than points
@pytest.mark.parametrize("num_outputs", [1, 2])
def test_what_is_imagined_is_that_of_float64(num_outputs: int) -> None:
    Q = queries(3, 2)
    values = problems.normal(4, 3, 2, num_outputs, seed=7).float()
    means = []
    variances = []
    for dtype in (torch.float32, torch.float64):
        given = model(dtype, num_outputs=num_outputs, noise=1e-5)
        given.posterior(queries(1, dtype=dtype))
        imagined = given.condition_on_observations(Q.to(dtype), values.to(dtype))
        assert {t.dtype for t in (*imagined.train_inputs, imagined.train_targets)} == {dtype}
        posterior = imagined.posterior(queries(5, dtype=dtype))
        means.append(posterior.mean.double())
        variances.append(posterior.variance.double())
    assert means[0].shape == (4, 3, 5, num_outputs)
    torch.testing.assert_close(*means, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(*variances, rtol=1e-2, atol=1e-7)


def test_fantasies_of_known_noise_are_differentiable_in_their_points() -> None:
    X = queries(12)
    noisy = PathwiseGP(X, X.sin().sum(1, keepdim=True), torch.full((12, 1), 1e-5))
    Q = queries(3, 2).requires_grad_()
    imagined = noisy.fantasize(
        Q, SobolQMCNormalSampler(torch.Size([4]), seed=0), observation_noise=torch.ones(3, 2, 1)
    )
    imagined.posterior(queries(5)).mean.sum().backward()
    assert Q.grad is not None and Q.grad.isfinite().all() and (Q.grad != 0).any()
    assert imagined.likelihood.noise.shape == (3, 14)  # the same for all four draws
    assert (imagined.likelihood.noise[:, 12:] == 1.0).all()


def test_batches_and_transforms_of_inputs() -> None:
    X = 1e3 + queries(2, 15)
    Y = (X - 1e3).sum(-1, keepdim=True).sin()
    results = []
    for dtype in (torch.float32, torch.float64):
        given = PathwiseGP(
            X.to(dtype),
            Y.to(dtype),
            likelihood=gaussian_likelihood(1e-5),
            covar_module=problems.matern(2.5, 1.0),
            input_transform=Normalize(2, batch_shape=torch.Size([2])),
            outcome_transform=Standardize(m=1, batch_shape=torch.Size([2])),
        )
        posterior = given.posterior(1e3 + queries(2, 6, dtype=dtype))
        results.append(torch.cat([posterior.mean, posterior.variance.sqrt()]).double())
    torch.testing.assert_close(*results, rtol=1e-2, atol=1e-3)  # of inputs rounded to 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batches_that_do_not_broadcast_are_refused_as_by_botorch(dtype: torch.dtype) -> None:
    X = queries(2, 8, dtype=dtype)
    given = PathwiseGP(X, torch.cat([X.sin(), X.cos()], -1)[..., :2])
    with pytest.raises(RuntimeError, match="trailing batch dimensions of X"):
        given.posterior(queries(3, 4, dtype=dtype))


def test_it_follows_the_model_and_is_not_copied() -> None:
    given = model(torch.float32)
    Q = queries(4)
    first = given.posterior(Q).mean
    for copy in (deepcopy(given), pickle.loads(pickle.dumps(given))):
        assert copy.prediction_strategy is None
        torch.testing.assert_close(copy.posterior(Q).mean, first)
    given.covar_module.lengthscale = 0.2
    other = given.posterior(Q).mean
    assert not torch.allclose(other, first, atol=1e-4)
    expected, _ = by_hand(given, Q)
    torch.testing.assert_close(other.double().squeeze(1), expected, rtol=1e-4, atol=1e-5)


def test_acquisition_functions_extend_its_roots() -> None:
    values = []
    for dtype in (torch.float32, torch.float64):
        given = model(dtype, num_outputs=1, noise=1e-4)
        acquisition = qLogNoisyExpectedImprovement(
            given,
            1.0 - 0.5 * queries(6, dtype=dtype),
            SobolQMCNormalSampler(torch.Size([64]), seed=0),
            prune_baseline=False,
        )
        value = acquisition(queries(3, 2, dtype=dtype))
        assert value.dtype == dtype
        values.append(value.double())
    torch.testing.assert_close(*values, rtol=0.05, atol=0.05)


@pytest.mark.slow
def test_it_is_that_of_a_float64_factor_of_many() -> None:
    single = model(torch.float32, n=2500, noise=1e-7, scale=1e-6, solver=Cholesky())
    of_variance = {"rtol": 1e-2, "atol": 2e-22}
    assert_of_a_float64_factor(single, 600, {"rtol": 1e-4, "atol": 1e-11}, of_variance)
