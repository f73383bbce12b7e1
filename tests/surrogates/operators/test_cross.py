"""The covariance of any points with given ones: values and gradients are those of the kernel."""

import pytest
import torch

from surrogates.operators.cross import CrossCovariance
from surrogates.operators.expressions import kernel_values
from surrogates.operators.main_effects import FEW_ENTRIES
from tests import problems

EVALUATED_BY_THEMSELVES = {"matern12", "matern12-ard", "scale-scale-matern12-active"}
EVALUATED_BY_THEMSELVES |= {"rq", "product"}


@pytest.mark.parametrize("name", problems.KERNELS)
def test_values_and_gradients_are_those_of_the_kernel_also_at_the_given_points(name: str) -> None:
    kernel = problems.KERNELS[name]().double()
    Z = 5.0 + problems.uniform(30, problems.DIM)  # far from the origin
    X = torch.cat([5.0 + problems.uniform(4, problems.DIM, seed=1), Z[:2]]).requires_grad_()
    weights = problems.uniform(len(X), len(Z), seed=2)
    cross = CrossCovariance.of(kernel, Z)
    values = cross(X)
    expected = kernel_values(kernel, X, Z)
    torch.testing.assert_close(values, expected, rtol=1e-10, atol=1e-12)
    found = torch.autograd.grad(values, X, weights)
    torch.testing.assert_close(
        found, torch.autograd.grad(expected, X, weights), rtol=1e-9, atol=1e-9
    )
    with torch.no_grad():
        torch.testing.assert_close(cross(X), expected, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(cross.diagonal(X), kernel(X, diag=True))


@pytest.mark.parametrize("name", problems.KERNELS)
def test_kernels_with_a_closed_form_are_put_together_once(name: str) -> None:
    kernel = problems.KERNELS[name]().double()
    cross = CrossCovariance.of(kernel, problems.uniform(5, problems.DIM))
    assert bool(cross.parts) == (name not in EVALUATED_BY_THEMSELVES)


def test_many_points_of_main_effects_have_the_values_of_few() -> None:
    kernel = problems.KERNELS["main-effects"]().double()
    Z = problems.uniform(150, problems.DIM)
    X = problems.uniform(180, problems.DIM, seed=1)
    assert X.numel() * len(Z) > FEW_ENTRIES
    torch.testing.assert_close(CrossCovariance.of(kernel, Z)(X), kernel_values(kernel, X, Z))


def test_a_second_derivative_is_refused() -> None:
    Z = problems.uniform(5, problems.DIM)
    X = problems.uniform(2, problems.DIM, seed=1).requires_grad_()
    for name in ("matern52", "main-effects"):
        values = CrossCovariance.of(problems.KERNELS[name]().double(), Z)(X)
        with pytest.raises(NotImplementedError, match="Leave out `create_graph`"):
            torch.autograd.grad(values.sum(), X, create_graph=True)
