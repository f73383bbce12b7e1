"""A small model with fixed hyperparameters, on any box and of any dtype."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel, ScaleKernel
from torch import Tensor

from surrogates import PathwiseGP, gaussian_likelihood
from tests import problems

Make = Callable[..., PathwiseGP]


@pytest.fixture
def make_model() -> Make:
    def make(
        bounds: Tensor, *, n: int = 30, kernel: Kernel | None = None, **kwargs: Any
    ) -> PathwiseGP:
        """Return a model of a wavy function at ``n`` points of the box,
        by default with lengthscales of a third of its sides.
        """
        U = torch.rand(n, bounds.shape[1], generator=problems.seeded(1), dtype=bounds.dtype)
        if kernel is None:
            kernel = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=bounds.shape[1])).to(bounds)
            kernel.base_kernel.lengthscale = (
                torch.ones(2) / 3 if "input_transform" in kwargs else (bounds[1] - bounds[0]) / 3
            )
            kernel.outputscale = 1.0
        return PathwiseGP(
            bounds[0] + (bounds[1] - bounds[0]) * U,
            20.0 + 5.0 * torch.sin(math.tau * U).sum(1, keepdim=True),
            likelihood=gaussian_likelihood(1e-4),
            covar_module=kernel,
            num_features=256,
            **kwargs,
        )

    return make


@pytest.fixture
def model(make_model: Make) -> PathwiseGP:
    return make_model(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64))
