"""A kernel of functions that are sums of functions of one input each."""

from typing import Any

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, MaternKernel, ScaleKernel
from torch import Tensor

ROOT_OF_5 = 5.0**0.5
# Of the arrays of all inputs: as few may be held at once, and take as few calls as one input's
FEW_ENTRIES = 2**16


class MainEffectsKernel(Kernel):
    """k(x, z) = (1/d) Σᵢ κ(|xᵢ − zᵢ| / ℓᵢ), with the one-dimensional Matérn-5/2 kernel κ.

    What is learned of one input holds whatever the others are: a sum of functions of one input each
    takes as many values as these, not as their product. Beside a kernel of all inputs in a sum it
    serves functions that are nearly separable.

    Args:
        ard_num_dims: d.

    References:
        Duvenaud et al. (2011), "Additive Gaussian Processes", of the first order alone.
    """

    has_lengthscale = True

    def __init__(self, ard_num_dims: int, **options: Any) -> None:
        super().__init__(ard_num_dims=ard_num_dims, **options)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        scale = ROOT_OF_5 / self.lengthscale.reshape(-1)
        first = x1 * scale
        second = x2 * scale
        if not diag:
            first = first.unsqueeze(-2)
            second = second.unsqueeze(-3)
        if x1.numel() * second.numel() <= FEW_ENTRIES * x1.shape[-1]:
            return matern52((first - second).abs()).mean(-1)
        # One input at a time: all of them at once would hold d arrays as large as the result
        pairs = zip(first.unbind(-1), second.unbind(-1), strict=True)
        total: Tensor = sum(matern52((x - z).abs()) for x, z in pairs)  # type: ignore[assignment]
        return total / x1.shape[-1]

    def summands(self) -> AdditiveKernel:
        """Return the same kernel as a sum of others, which share no parameters with it."""
        lengthscales = self.lengthscale.detach().reshape(-1)
        parts = []
        for i, lengthscale in enumerate(lengthscales):
            part = ScaleKernel(MaternKernel(2.5, active_dims=(i,))).to(lengthscale)
            part.base_kernel.lengthscale = lengthscale
            part.outputscale = torch.ones_like(lengthscale) / len(lengthscales)
            parts.append(part)
        return AdditiveKernel(*parts)


def matern52(r: Tensor) -> Tensor:
    """Return κ of distances r in units of ℓ / √5."""
    return (1.0 + r * (1.0 + r / 3.0)) * torch.exp(-r)
