"""Models of float32 data beside those of the same data in float64."""

import math
import warnings
from copy import deepcopy

import pytest
import torch
from gpytorch.kernels import Kernel, RBFKernel
from torch import Tensor

from surrogates import (
    CG,
    Auto,
    Cholesky,
    PathwiseGP,
    SamplePaths,
    SketchAndProject,
    Solver,
    gaussian_likelihood,
)
from surrogates.functions.features import PriorPaths
from surrogates.operators.differentiable import KernelBasis, combine, combine_rowwise
from surrogates.rules.solved import prior_values
from tests import problems

N = 500
ASAP = SketchAndProject.asap(tolerance=3e-3)


def dense(dtype: torch.dtype, noise: float, solver: Solver | None) -> PathwiseGP:
    """Return a model of many points of a smooth function."""
    X = problems.uniform(N, 1, dtype=dtype)
    return PathwiseGP(
        X,
        torch.sin(3.0 * X),
        likelihood=gaussian_likelihood(noise),
        covar_module=problems.matern(1.5, 2.0),
        outcome_transform=None,
        solver=solver,
    )


def variances(paths: SamplePaths, Q: Tensor) -> Tensor:
    return (paths(Q) - paths.mean(Q)).double().square().mean(0)


@pytest.mark.parametrize(
    "noise, solver",
    [(1e-6, Cholesky()), (1e-6, Auto()), (1e-4, ASAP)],
    ids=["cholesky", "auto", "asap"],
)
def test_float32_paths_of_dense_data_have_the_exact_variance(noise: float, solver: Solver) -> None:
    model = dense(torch.float32, noise, solver)
    Q = problems.uniform(50, 1, seed=3, dtype=torch.float32)
    paths = model.paths(256)
    assert isinstance(paths, SamplePaths) and paths.weights.dtype == torch.float64
    values = paths(Q)
    assert values.dtype == paths.mean(Q).dtype == torch.float32
    data = model.train_inputs[0], model.train_targets
    exact = problems.exact_posterior(model.covar_module, *data, model.noise, Q)[1]
    ratio = variances(paths, Q) / exact.diagonal()
    assert 0.9 < ratio.mean() < 1.1
    (f, w), *_ = paths.prior.draws
    assert w.dtype == torch.float64 and f.frequencies.dtype == torch.float32


def test_auto_keeps_the_weights_of_a_direct_solve_in_float64() -> None:
    X = problems.uniform(1100, 2)
    models = [
        PathwiseGP(
            X.to(dtype),
            torch.sin(3.0 * X).sum(1, keepdim=True).to(dtype),
            torch.logspace(-8, 0, len(X), dtype=dtype).unsqueeze(1),
            covar_module=problems.matern(1.5, 2.0),
            outcome_transform=None,
            solver=Auto(tolerance=1e-2),
        )
        for dtype in (torch.float32, torch.float64)
    ]
    Q = problems.uniform(50, 2, seed=3).float()
    single, double = (model.paths(64) for model in models)
    for model in models:
        assert model.solution is not None and model.solution.note.startswith("Cholesky()")
    expected = variances(double, Q.double())
    torch.testing.assert_close(variances(single, Q), expected, rtol=0.1, atol=0.0)
    error = (single.mean(Q).double() - double.mean(Q.double())) / expected.sqrt()
    assert error.abs().max() < 0.1


def test_float32_paths_of_data_in_clusters_are_those_of_float64_beside_them() -> None:
    n = 1000
    places = problems.uniform(100, 8)
    X = places[torch.arange(n) % len(places)] + 0.02 * problems.normal(n, 8)
    Q = X[:50] + 0.003 * problems.normal(50, 8, seed=3)
    single, double = (
        PathwiseGP(
            X.to(dtype),
            X.sum(1, keepdim=True).sin().to(dtype),
            likelihood=gaussian_likelihood(1e-5),
            covar_module=problems.matern(2.5, 1.5),
            outcome_transform=None,
        ).paths(64)
        for dtype in (torch.float32, torch.float64)
    )
    expected = variances(double, Q)
    torch.testing.assert_close(variances(single, Q.float()), expected, rtol=0.03, atol=0.0)
    error = single.mean(Q.float()) - double.mean(Q)
    assert (error / expected.sqrt()).abs().max() < 0.03


@pytest.mark.parametrize("num_paths", [1, 2, 8])
def test_float32_sums_stay_where_they_lose_nothing(num_paths: int) -> None:
    paths = dense(torch.float32, 1.0, Cholesky()).paths(num_paths)
    assert paths.weights.dtype == paths.mean_weights.dtype == torch.float32


def test_gradients_of_paths_summed_in_float64_are_those_of_float64() -> None:
    paths = dense(torch.float32, 1e-6, Cholesky()).paths(3)
    assert isinstance(paths, SamplePaths) and isinstance(paths.data, KernelBasis)
    X = problems.uniform(20, 1, seed=4, dtype=torch.float32).requires_grad_()
    exact = X.detach().double().requires_grad_()
    doubled = paths.data.doubled
    (found,) = torch.autograd.grad(combine(paths.data, X, paths.weights).sum(), X)
    (expected,) = torch.autograd.grad(combine(doubled, exact, paths.weights).sum(), exact)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    own = X.detach().expand(3, 20, 1).clone().requires_grad_()
    (found,) = torch.autograd.grad(combine_rowwise(paths.data, own, paths.weights).sum(), own)
    torch.testing.assert_close(found.double().sum(0), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", [problems.rbf(0.5), problems.matern(1.5, 1.0)])
def test_a_seed_draws_the_same_functions_in_both_dtypes(kernel: Kernel) -> None:
    values = []
    for dtype in (torch.float32, torch.float64):
        X = problems.uniform(60, 3).float().to(dtype)
        model = PathwiseGP(
            X,
            X.sin().sum(1, keepdim=True),
            likelihood=gaussian_likelihood(1e-2),
            covar_module=deepcopy(kernel),
            solver=CG(None, tolerance=1e-4),
            num_paths=16,
        )
        Q = problems.uniform(20, 3, seed=3).float().to(dtype)
        values.append(torch.cat([model.paths(8)(Q), model.posterior(Q).variance.T]).double())
    torch.testing.assert_close(*values, rtol=0.01, atol=0.01)


def test_the_next_mean_starts_from_float64_weights() -> None:
    model = dense(torch.float32, 1e-5, Auto())
    model.paths(2)
    again = model.condition_on_observations(torch.full((1, 1), 0.5), torch.full((1, 1), 1.0))
    assert again.paths(2).mean_weights.isfinite().all()


# n, d, kernel, noise, scale of the inputs
SETS = {
    "smooth-2d": (2500, 2, problems.matern(1.5, 2.0), 1e-4, 1.0),
    "quiet-2d": (2500, 2, problems.matern(1.5, 2.0), 1e-6, 1.0),
    "rbf-2d": (1500, 2, problems.rbf(0.5), 1e-4, 1.0),
    "rbf-quiet-1d": (1000, 1, problems.rbf(0.2), 1e-6, 1.0),
    "rough-1d": (2500, 1, problems.matern(0.5, 0.3), 1e-3, 1.0),
    "benchmark-8d": (3000, 8, problems.matern(1.5, 0.5), 1e-3, 1.0),
    "long-8d": (3000, 8, problems.matern(1.5, 3.0), 1e-6, 1.0),
    "noisy-4d": (4000, 4, problems.matern(2.5, 1.0), 1.0, 1.0),
    "large-inputs": (2500, 3, problems.matern(2.5, 1e5), 1e-3, 1e5),
    "scaled-6d": (1000, 6, problems.scaled(problems.rbf(1.0), 100.0), 1e-2, 1.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_float32_predicts_as_float64_does(name: str) -> None:
    n, d, kernel, noise, scale = SETS[name]
    X = scale * problems.uniform(n + 500, d)
    K = problems.own_evaluation(kernel, X, X)
    K.diagonal().add_(1e-10 * K[0, 0])
    f = torch.linalg.cholesky(K) @ problems.normal(n + 500, 1, seed=1)
    del K
    y = f + noise**0.5 * problems.normal(n + 500, 1, seed=2)
    scores = []
    warned = []
    for dtype in (torch.float32, torch.float64):
        model = PathwiseGP(
            X[:n].to(dtype),
            y[:n].to(dtype),
            likelihood=gaussian_likelihood(noise),
            covar_module=deepcopy(kernel),
            outcome_transform=None,
        )
        with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            posterior = model.posterior(X[n:].to(dtype))
            gap = y[n:] - posterior.mean.double()
            variance = posterior.variance.double() + noise
        nll = 0.5 * (gap.square() / variance + (2.0 * math.pi * variance).log()).mean()
        warned.extend(caught)
        scores.append((gap.square().mean().sqrt().item(), nll.item()))
    (rmse, nll), (exact_rmse, exact_nll) = scores
    if not warned:
        assert rmse == pytest.approx(exact_rmse, rel=0.01)
        assert nll == pytest.approx(exact_nll, rel=0.01, abs=0.01)


def test_prior_values_of_float32_points_many_lengthscales_apart_are_summed_in_float64() -> None:
    kernel = RBFKernel()
    kernel.lengthscale = 1e-4
    X = problems.uniform(64, 2).float()
    prior = PriorPaths.draw(
        kernel, 2, 4, num_features=256, num_draws=4, generator=problems.seeded(), like=X, points=X
    )
    exact = prior.to(torch.float64)(X.double())
    assert (prior_values(prior, X) - exact).abs().max() < 1e-6
    assert (prior(X) - exact).abs().max() > 1e-4
