"""Hyperparameters by the exact marginal likelihood."""

import pytest
import torch
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood

from surrogates import PathwiseGP, fit_exact
from tests import problems

X = problems.uniform(50, 2)
Y = torch.sin(6 * X.sum(1, keepdim=True)) + 0.1 * problems.normal(50, 1, seed=1)


def likelihood_of(model: SingleTaskGP) -> float:
    model.train()
    with torch.no_grad():
        value = ExactMarginalLogLikelihood(model.likelihood, model)(
            model(*model.train_inputs), model.train_targets
        ).item()
    model.eval()
    return value


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_fitting_improves_the_likelihood_and_the_posterior_follows(dtype: torch.dtype) -> None:
    model = PathwiseGP(X.to(dtype), Y.to(dtype), num_paths=8)
    Z = problems.uniform(20, 2, seed=3, dtype=dtype)
    before = likelihood_of(model)
    mean_before = model.posterior(Z).mean
    assert fit_exact(model) is model and not model.training
    assert likelihood_of(model) > before + 0.1
    assert all(parameter.dtype == dtype for parameter in model.parameters())
    assert (model.posterior(Z).mean - mean_before).abs().max() > 1e-3
    fresh = PathwiseGP(X.to(dtype), Y.to(dtype), num_paths=8)
    fresh.load_state_dict(model.state_dict())
    torch.testing.assert_close(model.posterior(Z).mean, fresh.posterior(Z).mean)


def test_the_optimum_is_that_of_single_task_gp() -> None:
    ours = fit_exact(PathwiseGP(X, Y))
    exact = fit_exact(SingleTaskGP(X, Y))
    assert likelihood_of(ours) == pytest.approx(likelihood_of(exact), abs=1e-3)


def test_too_many_points_are_refused_with_the_remedy() -> None:
    with pytest.raises(
        ValueError,
        match="`model` must have at most 4096 points .*, got 4097. Fit a model of a random subset",
    ):
        fit_exact(PathwiseGP(problems.uniform(4097, 1), problems.normal(4097, 1)))


def test_the_remedy_works() -> None:
    small = fit_exact(PathwiseGP(X[:30], Y[:30]))
    large = PathwiseGP(X, Y)
    large.load_state_dict(small.state_dict(), strict=False)
    assert torch.equal(large.covar_module.lengthscale, small.covar_module.lengthscale)
    assert torch.equal(large.noise, small.noise)
