"""Kernels as expressions: their values, and their derivatives where points coincide."""

from functools import partial
from itertools import product

import pytest
import torch

from surrogates.operators.expressions import kernel_values, profile_derivative
from tests import problems
from tests.problems import DIM, KERNELS, by_differences

# Of a kernel of unit lengthscale in one dimension, at its centre
CURVATURE = {"rbf": -1.0, "matern32": -3.0, "matern52": -5.0 / 3.0, "rq": -1.0, "matern12": 0.0}


@pytest.mark.parametrize("profile", ["rbf", "matern12", "matern32", "matern52"])
def test_every_derivative_of_a_profile_is_the_slope_of_the_one_before(profile: str) -> None:
    t = problems.uniform(5) + 0.3
    for order in range(4):
        below = partial(profile_derivative, profile, order)
        torch.testing.assert_close(
            profile_derivative(profile, order + 1, t),
            by_differences(below, t, 1e-5).diagonal(),
            rtol=1e-6,
            atol=1e-8,
        )


@pytest.mark.parametrize("name", CURVATURE)
def test_curvature_at_a_centre_is_right_where_it_exists_and_zero_elsewhere(name: str) -> None:
    kernel = KERNELS[name]().double()
    kernel.lengthscale = 1.0
    X = torch.full((1, 1), 0.3, dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(
        lambda x: kernel_values(kernel, x, X.clone()).sum(), X
    )
    assert hessian.item() == pytest.approx(CURVATURE[name], abs=1e-12)


def test_curvature_of_main_effects_at_a_centre_is_that_of_each_input() -> None:
    kernel = KERNELS["main-effects"]().double()
    X = problems.uniform(1, DIM)
    hessian = torch.autograd.functional.hessian(
        lambda x: kernel_values(kernel, x, X.clone()).sum(), X
    )
    lengthscale = kernel.base_kernel.lengthscale.detach().reshape(-1)
    expected = kernel.outputscale.detach() / DIM * CURVATURE["matern52"] / lengthscale.square()
    torch.testing.assert_close(hessian.reshape(DIM, DIM), torch.diag(expected))


@pytest.mark.parametrize("name", KERNELS)
def test_derivatives_at_and_beside_centres_are_finite(name: str) -> None:
    for dtype, beside in product((torch.float32, torch.float64), (0.0, 1.0)):
        kernel = KERNELS[name]().to(dtype)
        Z = problems.uniform(4, DIM, dtype=dtype)
        X = Z + beside * torch.finfo(dtype).eps
        value = kernel_values(kernel, X.requires_grad_(), Z).sum()
        for order in range(1, 4):
            (gradient,) = torch.autograd.grad(value, X, create_graph=True)
            assert gradient.isfinite().all(), order
            value = (gradient * problems.normal(*X.shape, seed=order, dtype=dtype)).sum()
