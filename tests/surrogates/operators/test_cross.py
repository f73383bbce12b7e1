"""The covariance of any points with given ones: values and gradients are those of the kernel."""

import pytest
import torch
from gpytorch.kernels import LinearKernel

from surrogates.operators.expressions import kernel_values
from surrogates.operators.tiles import CrossCovariance, KernelTiles
from tests import problems


@pytest.mark.parametrize("name", problems.KERNELS)
def test_values_and_gradients_are_those_of_the_kernel_also_at_the_given_points(name: str) -> None:
    kernel = problems.KERNELS[name]().double()
    Z = 5.0 + problems.uniform(30, problems.DIM)  # far from the origin
    X = torch.cat([5.0 + problems.uniform(4, problems.DIM, seed=1), Z[:2]]).requires_grad_()
    weights = problems.uniform(len(X), len(Z), seed=2)
    tiles = KernelTiles.of(kernel, Z, Z)
    values = CrossCovariance.apply(X, tiles)
    expected = kernel_values(kernel, X, Z)
    torch.testing.assert_close(values, expected, rtol=1e-10, atol=1e-12)
    found = torch.autograd.grad(values, X, weights)
    torch.testing.assert_close(
        found, torch.autograd.grad(expected, X, weights), rtol=1e-9, atol=1e-9
    )
    with torch.no_grad():
        torch.testing.assert_close(
            CrossCovariance.apply(X, tiles), expected, rtol=1e-10, atol=1e-12
        )
        if tiles.variance is not None:
            torch.testing.assert_close(tiles.variance.expand(len(X)), kernel(X, diag=True))


def test_a_variance_that_depends_on_the_place_is_none() -> None:
    X = problems.uniform(3, problems.DIM)
    for kernel in (problems.rbf() + LinearKernel(), problems.rbf() * LinearKernel()):
        assert KernelTiles.of(kernel.double(), X, X).variance is None


def test_a_second_derivative_is_refused() -> None:
    Z = problems.uniform(5, problems.DIM)
    X = problems.uniform(2, problems.DIM, seed=1).requires_grad_()
    for name in ("matern52", "main-effects"):
        tiles = KernelTiles.of(problems.KERNELS[name]().double(), Z, Z)
        values = CrossCovariance.apply(X, tiles)
        with pytest.raises(NotImplementedError, match="Leave out `create_graph`"):
            torch.autograd.grad(values.sum(), X, create_graph=True)
