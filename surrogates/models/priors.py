"""A prior of hyperparameters that GPyTorch does not have."""

from typing import Any

import torch
from gpytorch.priors import Prior
from torch import Tensor
from torch.distributions import constraints


class ModerateLengthscalePrior(Prior):
    """Lengthscales ℓ near 1, the side of the unit cube: log p = −w (ℓ² + ℓ⁻²) + constant.

    Unlike a log-normal prior it all but excludes what is far shorter than the points of a small
    sample are apart, where the likelihood of few values takes any function for noise.

    Args:
        weight: w.

    References:
        The form that Optuna's ``GPSampler`` takes for inverse squared lengthscales.
    """

    arg_constraints: dict[str, Any] = {"weight": constraints.positive}
    support = constraints.positive
    weight: Tensor

    def __init__(self, weight: float = 0.1) -> None:
        super().__init__(validate_args=False)
        self.register_buffer("weight", torch.as_tensor(weight, device="cpu"))

    def log_prob(self, value: Tensor) -> Tensor:
        return -self.weight * (value.square() + value.square().reciprocal())

    def expand(self, batch_shape: Any, _instance: Any = None) -> "ModerateLengthscalePrior":
        """Return itself: it is the same for every lengthscale."""
        return self

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return the mode, 1, from which a fit may be started again."""
        return torch.ones(sample_shape, device="cpu").to(self.weight)
