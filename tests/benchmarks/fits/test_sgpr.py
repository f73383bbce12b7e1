"""The baseline of sparse Gaussian process regression: Titsias' bound and prediction,
without a matrix of all data being factorised.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.fits.scores import rbf_kernel
from benchmarks.fits.sgpr import SGPR
from surrogates import gaussian_likelihood
from tests import problems

N = 80
M = 10
NOISE = 0.1


def make_model() -> SGPR:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(N, 2, generator=generator, dtype=torch.float64)
    y = torch.sin(6 * X[:, 0]) + NOISE**0.5 * torch.randn(
        N, generator=generator, dtype=torch.float64
    )
    return SGPR(X, y, rbf_kernel(2), gaussian_likelihood(NOISE).double(), M, generator)


@contextmanager
def sizes_factorised() -> Iterator[list[int]]:
    sizes = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if "cholesky_ex" in str(function):
                sizes.append(args[0].shape[-1])
            return function(*args, **(kwargs or {}))

    with Watch():
        yield sizes


def test_the_objective_is_titsias_bound() -> None:
    model = make_model()
    told = []
    X = model.train_inputs[0]
    y = model.train_targets
    Z = model.covar_module.inducing_points.detach().clone()
    kernel = rbf_kernel(2)
    K_XZ = kernel(X, Z).to_dense()
    K_ZZ = kernel(Z).to_dense()
    Q = K_XZ @ torch.linalg.solve(K_ZZ, K_XZ.T)
    density = torch.distributions.MultivariateNormal(
        torch.zeros(N).double(), Q + NOISE * torch.eye(N)
    ).log_prob(y)
    bound = density - (kernel(X).to_dense() - Q).diagonal().sum() / (2 * NOISE)
    model.fit(1, 0.1, lambda step, value: told.append(value))
    torch.testing.assert_close(
        torch.tensor(told).double(), bound.detach().reshape(1), rtol=1e-4, atol=1e-4
    )


def test_a_fit_raises_the_bound_and_factorises_small_matrices_only() -> None:
    model = make_model()
    told = []
    with sizes_factorised() as sizes:
        model.fit(20, 0.1, lambda step, value: told.append(value))
        model.predict(model.train_inputs[0] + 0.1)
    assert told[-1] > told[0] + 1.0
    assert set(sizes) == {M}


def test_predictions_are_those_of_the_approximate_posterior() -> None:
    model = make_model()
    X = model.train_inputs[0]
    y = model.train_targets
    Z = model.covar_module.inducing_points.detach()
    points = problems.uniform(5, 2, seed=1)
    kernel = rbf_kernel(2)
    K_XZ = kernel(X, Z).to_dense()
    K_ZZ = kernel(Z).to_dense()
    K_PZ = kernel(points, Z).to_dense()
    S = torch.linalg.inv(K_ZZ + K_XZ.T @ K_XZ / NOISE)
    mean, variance = model.predict(points)
    torch.testing.assert_close(mean, (K_PZ @ S @ K_XZ.T @ y / NOISE).detach(), rtol=1e-3, atol=1e-3)
    exact = (
        1.0 - (K_PZ * torch.linalg.solve(K_ZZ, K_PZ.T).T).sum(1) + (K_PZ @ S * K_PZ).sum(1) + NOISE
    )
    torch.testing.assert_close(variance, exact.detach(), rtol=1e-3, atol=1e-3)
