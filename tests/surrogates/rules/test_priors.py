"""The prior of lengthscales for few values."""

import pytest
import torch
from gpytorch.kernels import MaternKernel

from surrogates import PathwiseGP, fit
from surrogates.rules.hyperparameters import ModerateLengthscalePrior


def test_it_has_its_mode_at_the_side_of_the_cube_and_excludes_short_lengthscales() -> None:
    prior = ModerateLengthscalePrior()
    lengths = torch.tensor([0.1, 0.5, 1.0, 2.0], dtype=torch.float64)
    found = prior.log_prob(lengths)
    assert found.tolist() == pytest.approx([-10.001, -0.425, -0.2, -0.425])


def test_few_values_of_a_rough_function_are_not_taken_for_noise() -> None:
    """Without it, the lengthscales of these values end below a tenth."""
    generator = torch.Generator().manual_seed(1)
    X = torch.rand(12, 5, dtype=torch.float64, generator=generator)
    Y = torch.randn(12, 1, dtype=torch.float64, generator=generator)
    plain = MaternKernel(nu=2.5, ard_num_dims=5).double()
    moderate = MaternKernel(
        nu=2.5, ard_num_dims=5, lengthscale_prior=ModerateLengthscalePrior()
    ).double()
    shortest = [
        fit(PathwiseGP(X, Y, covar_module=kernel)).covar_module.lengthscale.min().item()
        for kernel in (plain, moderate)
    ]
    assert shortest[0] < 0.2 < shortest[1]
