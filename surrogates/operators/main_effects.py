"""A kernel of functions that are sums of functions of one input each."""

import math
from typing import Any

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, MaternKernel, ScaleKernel
from torch import Tensor


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
        scale = math.sqrt(5.0) / self.lengthscale.reshape(-1)
        first = x1 * scale
        second = x2 * scale
        if not diag:
            first = first.unsqueeze(-2)
            second = second.unsqueeze(-3)
        # One input at a time: all of them at once would hold d arrays as large as the result
        pairs = zip(first.unbind(-1), second.unbind(-1), strict=True)
        total: Tensor = sum(matern52((x - z).abs())[0] for x, z in pairs)  # type: ignore[assignment]
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


def matern52(r: Tensor) -> tuple[Tensor, Tensor]:
    """Return κ = (1 + r + r²/3) exp(−r) and −κ' / r = (1 + r) exp(−r) / 3, r in units of ℓ/√5."""
    decay = torch.exp(-r)
    linear = torch.addcmul(decay, decay, r)
    return torch.addcmul(linear, decay, r * r, value=1.0 / 3.0), linear / 3.0
