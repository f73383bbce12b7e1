"""What is expected of lengthscales before any data are seen.

For a part of the kernel that looks at d inputs, in units of these inputs' ranges,

    log ℓ ~ N(√2 + ½ log d, 3),

so that a function is not expected to vary faster in every input the more inputs there are. BoTorch
gives its default kernel this density as one of ℓ, which its factor 1 / ℓ makes shorter; as one of
log ℓ an input that does not matter costs nothing.

References:
    Hvarfner, Hellsten and Nardi (2024), "Vanilla Bayesian Optimization Performs Great in High
    Dimensions", section 4.
"""

import math
from copy import deepcopy

import torch
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from gpytorch.kernels import Kernel, PeriodicKernel
from gpytorch.priors import LogNormalPrior, NormalPrior
from torch import Tensor

from surrogates.fitting.batched import BatchedGP
from surrogates.rules.limits import parts_with_lengthscales

LOG_MEDIAN = math.sqrt(2.0)  # of one input
SPREAD = math.sqrt(3.0)  # the standard deviation of log ℓ


class Expectation:
    """The law of the lengthscales of ``gp`` that are learned and have no prior of the user's.

    Args:
        X: (n, d), as the kernel sees them.
    """

    def __init__(self, gp: BatchedGP, X: Tensor):
        width = X.amax(0) - X.amin(0)
        width = torch.where(width > 0, width, 1.0)
        names = {part: name for name, part in gp.covar_module.named_modules()}
        self._medians: dict[str, Tensor] = {}
        for part, columns in parts_with_lengthscales(gp.covar_module, X.shape[1]):
            d = len(columns)
            if isinstance(part, PeriodicKernel) or not part.raw_lengthscale.requires_grad:
                continue
            if _has_prior_of_the_users(part, d):
                continue
            own = width[columns.to(width.device)]
            if part.lengthscale.shape[-1] != d:
                own = own.amax(0, keepdim=True)
            self._medians[names[part]] = own.log() + LOG_MEDIAN + 0.5 * math.log(d)

    def given_to(self, gp: BatchedGP, *, in_proportion: bool = False) -> BatchedGP:
        """Return a copy of ``gp`` with this law as the lengthscales' prior.

        Args:
            in_proportion: whether the lengthscales of a part are one hyperparameter, of which this
                is then the law of the geometric mean.
        """
        copied = deepcopy(gp)
        for name, median in self._medians.items():

            def deviation(part: Kernel, median: Tensor = median) -> Tensor:
                value = part.lengthscale.log() - median
                return value.mean() if in_proportion else value

            law = NormalPrior(torch.zeros_like(median[0]), torch.full_like(median[0], SPREAD))
            part = copied.covar_module.get_submodule(name)
            part.register_prior("lengthscale_prior", law, deviation)
        return copied

    @torch.no_grad()
    def cost(self, gp: BatchedGP, *, in_proportion: bool = False) -> float:
        """Return the nats by which the lengthscales of ``gp`` that are shorter than the median are
        less likely than it.

        Args:
            in_proportion: as in :meth:`given_to`.
        """
        total = 0.0
        for name, median in self._medians.items():
            part = gp.covar_module.get_submodule(name)
            short = ((part.lengthscale.log() - median) / SPREAD).clamp_max(0.0)
            nats = 0.5 * short.square()
            total += (nats.mean() if in_proportion else nats.sum()).item()
        return total


def _has_prior_of_the_users(part: Kernel, d: int) -> bool:
    """Return whether ``part``, of d inputs, has another lengthscale prior than BoTorch's."""
    prior = getattr(part, "lengthscale_prior", None)
    if prior is None:
        return False
    default = get_covar_module_with_dim_scaled_prior(ard_num_dims=d).lengthscale_prior
    return not (
        isinstance(prior, LogNormalPrior)
        and torch.allclose(prior.loc.double(), default.loc.double())
        and torch.allclose(prior.scale.double(), default.scale.double())
    )
