"""What a fit that fails leaves behind."""

import math

import pytest
import torch
from botorch.models.transforms import Normalize
from gpytorch.likelihoods import GaussianLikelihood

from surrogates import PathwiseGP
from surrogates.restoring import restoring
from tests import problems

X = problems.uniform(12, 2)
Y = problems.normal(12, 1, seed=1)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_restores_and_an_interruption_keeps(error: type[BaseException]) -> None:
    model = PathwiseGP(X, Y)
    before = model.covar_module.lengthscale.detach().clone()
    with pytest.raises(error), restoring(model):
        model.covar_module.lengthscale = 0.5
        raise error
    kept = model.covar_module.lengthscale
    assert torch.equal(kept, before) if error is RuntimeError else bool((kept == 0.5).all())


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_hyperparameters_that_are_not_finite_never_stay(error: type[BaseException] | None) -> None:
    model = PathwiseGP(X, Y)
    with pytest.raises(error or FloatingPointError), restoring(model):
        model.mean_module.raw_constant.data.fill_(math.nan)
        if error is not None:
            raise error
    assert model.mean_module.raw_constant.item() == 0.0


def test_a_failure_restores_mode_data_buffers_and_parts() -> None:
    model = PathwiseGP(X, Y, input_transform=Normalize(2))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    likelihood = model.likelihood
    with pytest.raises(RuntimeError), restoring(model):
        model.input_transform(5.0 * X)  # learns their range
        model.eval().likelihood = GaussianLikelihood()
        model.set_train_data(targets=Y.squeeze(1) + 1.0, strict=False)
        raise RuntimeError
    assert model.likelihood is likelihood and model.training and model.input_transform.training
    assert torch.equal(model.train_inputs[0], X)
    torch.testing.assert_close(model.state_dict(), state, rtol=0.0, atol=0.0)
    torch.testing.assert_close(
        model.posterior(X).mean, PathwiseGP(X, Y, input_transform=Normalize(2)).posterior(X).mean
    )
