"""Likelihoods of minibatches, against autograd through GPyTorch and a direct factorisation."""

from copy import deepcopy

import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from surrogates import PathwiseGP
from surrogates.fitting.batched import BatchedGP
from surrogates.operators.forms import covariance_of
from tests import problems

SETS = 3
SIZE = 7
# Far from 0, where distances by ‖x‖² + ‖z‖² − 2 xᵀz cancel
X = 100.0 + problems.uniform(40, problems.DIM)
X[:4] = X[0]
Y = problems.normal(40, 1, seed=1)
INDEX = torch.randperm(40, generator=torch.Generator().manual_seed(2))[: SETS * SIZE].reshape(
    SETS, SIZE
)
INDEX[0, :4] = torch.arange(4)  # duplicated inputs


def by_autograd(model: PathwiseGP, noise: Tensor) -> Tensor:
    """Return −log p of every set by GPyTorch's kernel, mean and Gaussian."""
    X = model.train_inputs[0]
    y = model.train_targets
    terms = []
    for index in INDEX:
        K = model.covar_module(X[index]).to_dense() + torch.diag_embed(noise.expand(len(X))[index])
        terms.append(-MultivariateNormal(model.mean_module(X[index]), K).log_prob(y[index]))
    return torch.stack(terms)


@pytest.mark.parametrize("name", problems.KERNELS)
def test_values_and_gradients_are_those_of_autograd(name: str) -> None:
    model = PathwiseGP(X, Y, covar_module=problems.KERNELS[name]())
    gp = BatchedGP(model)
    ours = gp.negative_log_likelihood(INDEX)
    weights = torch.tensor([1.0, 0.3, 2.0], dtype=torch.float64)
    (weights * ours).sum().backward()
    model.double()
    reference = by_autograd(model, model.likelihood.noise)
    (weights * reference).sum().backward()
    # GPyTorch's distance between equal points is the root of a rounding error
    rtol = 1e-4 if "matern12" in name else 1e-6
    torch.testing.assert_close(ours, reference, rtol=rtol, atol=rtol)
    gradients = {key: parameter.grad for key, parameter in gp.named_parameters()}
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[key], parameter.grad, rtol=rtol, atol=rtol)


def test_second_derivatives_are_refused_by_name() -> None:
    for name in ("matern32-ard", "rq"):  # in closed form, and by GPyTorch
        gp = BatchedGP(PathwiseGP(X, Y, covar_module=problems.KERNELS[name]()))
        nll = gp.negative_log_likelihood(INDEX).sum()
        with pytest.raises(NotImplementedError, match="first derivatives only"):
            torch.autograd.grad(nll, list(gp.parameters()), create_graph=True, allow_unused=True)


def test_the_covariance_has_a_gradient_in_the_points() -> None:
    kernel = problems.matern(1.5).double()
    points = X[INDEX].clone().requires_grad_()
    (ours,) = torch.autograd.grad(covariance_of(kernel)(kernel, points)[1, 0, 1], points)
    assert ours[1, :2].abs().min() > 0.0


def test_known_noise_is_that_of_the_chosen_data() -> None:
    variances = problems.vector_noise(40)
    model = PathwiseGP(
        X,
        Y,
        train_Yvar=variances.unsqueeze(1),
        covar_module=problems.matern(1.5),
        outcome_transform=None,
    )
    ours = BatchedGP(model).negative_log_likelihood(INDEX)
    model.double()
    torch.testing.assert_close(ours, by_autograd(model, variances))


def test_copies_have_hyperparameters_of_their_own_and_share_the_data() -> None:
    gp = BatchedGP(PathwiseGP(X, Y, covar_module=problems.matern(1.5)))
    copied = deepcopy(gp)
    copied.likelihood.noise = 0.3
    assert copied.X is gp.X and copied.y is gp.y and gp.likelihood.noise.item() != 0.3
    assert copied.negative_log_likelihood(INDEX)[0] != gp.negative_log_likelihood(INDEX)[0]
