"""The exact marginal likelihood, for small n."""

from copy import deepcopy
from typing import Any, TypeVar

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood

EXACT_FIT_UP_TO = 4096

M = TypeVar("M", bound=SingleTaskGP)


def fit_exact(model: M, **optimizer_kwargs: Any) -> M:
    """Maximise the exact log marginal likelihood of ``model`` (with its priors) over its hyperparameters; return it.

    Args:
        model: at most 4096 points: an evaluation factorises the n × n kernel matrix.
        optimizer_kwargs: passed to BoTorch's ``fit_gpytorch_mll``, such as ``optimizer_kwargs={"options": {"maxiter": 100}}``.

    Raises:
        ValueError: if the model has more points.
    """
    n = len(model.train_targets)
    if n > EXACT_FIT_UP_TO:
        raise ValueError(
            f"`model` must have at most {EXACT_FIT_UP_TO} points for the exact marginal likelihood, got {n}. "
            "Fit a model of a random subset and load its state: `model.load_state_dict(small.state_dict(), strict=False)`."
        )
    fitted = deepcopy(model).double()  # the line search finds float32 gradients too coarse
    with torch.random.fork_rng(devices=[]):  # a failed line search starts again from draws of the global generator
        torch.random.set_rng_state(torch.Generator().manual_seed(0).get_state())
        fit_gpytorch_mll(ExactMarginalLogLikelihood(fitted.likelihood, fitted), **optimizer_kwargs)
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), fitted.parameters(), strict=True):
            parameter.copy_(value)
    return model.eval()
