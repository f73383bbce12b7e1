"""The exact marginal likelihood, for small n."""

from typing import Any, TypeVar

from botorch.fit import fit_gpytorch_mll
from botorch.models.gpytorch import GPyTorchModel
from gpytorch.mlls import ExactMarginalLogLikelihood

EXACT_FIT_UP_TO = 4096

M = TypeVar("M", bound=GPyTorchModel)


def fit_exact(model: M, **optimizer_kwargs: Any) -> M:
    """Maximise the exact log marginal likelihood of ``model`` (with its priors) over its hyperparameters; return it.

    Args:
        model: at most 4096 points: an evaluation factorises the n × n kernel matrix.
        optimizer_kwargs: passed to BoTorch's ``fit_gpytorch_mll``, such as ``optimizer_kwargs={"options": {"maxiter": 100}}``.

    Raises:
        ValueError: if the model has more points.
    """
    n = model.train_targets.shape[-1]
    if n > EXACT_FIT_UP_TO:
        raise ValueError(
            f"`model` must have at most {EXACT_FIT_UP_TO} points for the exact marginal likelihood, got {n}. "
            "Fit a model of a random subset and load its state: `model.load_state_dict(small.state_dict(), strict=False)`."
        )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), **optimizer_kwargs)
    return model.eval()
