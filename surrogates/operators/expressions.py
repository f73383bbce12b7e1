"""Kernels as expressions that autograd differentiates in the points any number of times.

The tiles give values and gradients; what is asked beyond them comes from here. GPyTorch's own
evaluation clamps distances, so that a Matérn or rational quadratic kernel loses its curvature at
coinciding points: kernels with a closed form, and sums and products of them, keep it.

Notation: X (m, d), Z (n, d), t = d² (m, n) squared distances in lengthscales, κ(t) the kernel
without its outputscale.
"""

import math
from functools import reduce
from typing import Any

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel, RQKernel, ScaleKernel
from torch import Tensor

from surrogates.operators.forms import PROFILES, StationaryKernel, composed, kind_of


def kernel_values(kernel: Kernel, X: Tensor, Z: Tensor) -> Tensor:
    """Return k(X, Z), (..., m, n), differentiable in X and Z any number of times.

    Where a point coincides with one of Z and a derivative does not exist, it counts as zero: every
    derivative of Matérn-1/2, those of Matérn-3/2 from the third and of Matérn-5/2 from the fifth.
    The Hessian of Matérn-3/2 exists there, and is right.

    Hyperparameters of the kernels with a closed form are constants here.

    Args:
        X: (..., m, d).
        Z: (..., n, d).
    """
    stationary = StationaryKernel.of(kernel)
    if stationary is not None:
        values = _Profile.apply(_distances(stationary, X, Z), stationary.profile, 0)
        return stationary.outputscale.to(values) * values
    kind = kind_of(kernel)
    whole = kernel.active_dims is None and not kernel.batch_shape
    if whole and kind in (AdditiveKernel, ProductKernel):
        parts = [kernel_values(part, X, Z) for part in kernel.kernels]
        return reduce(torch.add if kind is AdditiveKernel else torch.mul, parts)
    if whole and kind is ScaleKernel:
        return kernel.outputscale.detach() * kernel_values(kernel.base_kernel, X, Z)
    if whole and (written := composed(kernel, X.shape[-1])) is not kernel:
        return kernel_values(written, X, Z)
    if kind is RQKernel and not kernel.batch_shape:
        lengthscale = kernel.lengthscale.detach().reshape(-1)
        one = torch.ones_like(lengthscale[0])
        form = StationaryKernel("rbf", lengthscale, one, kernel.active_dims)
        alpha = kernel.alpha.detach().reshape(())
        return (1.0 + _distances(form, X, Z) / (2.0 * alpha)).pow(-alpha)
    return kernel(X, Z).to_dense()


def _distances(kernel: StationaryKernel, X: Tensor, Z: Tensor) -> Tensor:
    scaled = kernel.scaled(Z)
    centre = scaled.detach().flatten(0, -2).mean(0)  # of which distances do not depend
    exact = PROFILES[kernel.profile].nu < 2.0  # where the second derivative is singular in t
    return _SquaredDistances.apply(kernel.scaled(X) - centre, scaled - centre, exact)


def profile_derivative(profile: str, order: int, t: Tensor) -> Tensor:
    """Return the derivative of κ of that order at t ≥ 0; zero where it is infinite, at t = 0.

    A Matérn kernel is g_ν(√(2ν t)) / g_ν(0). With g_μ(r) = r^μ K_μ(r) up to a constant, dg_μ /
    d(r²) = −½ g_{μ−1}; and g_{μ+1} = 2μ g_μ + r² g_{μ−1}, g_{−μ} = r^{−2μ} g_μ, g_½ = exp(−r).
    """
    t = t.clamp_min(0.0)
    nu = PROFILES[profile].nu
    if nu == math.inf:
        return (-0.5) ** order * torch.exp(-0.5 * t)
    square = 2.0 * nu * t
    r = square.sqrt()
    mu = nu - order
    high = torch.exp(-r)  # g_½
    low = r * high  # r² g_−½
    for below in range(1, round(abs(mu) + 0.5)):
        low, high = square * high, (2.0 * below - 1.0) * high + low
    if mu < 0:
        # Below the root of the smallest number the powers of r overflow; there points coincide
        apart = square > math.sqrt(torch.finfo(t.dtype).tiny)
        high = torch.where(apart, high * torch.where(apart, r, 1.0).pow(2.0 * mu), 0.0)
    at_zero = math.prod(range(1, round(2.0 * nu) - 1, 2))
    return (-nu) ** order / at_zero * high


class _SquaredDistances(torch.autograd.Function):
    """‖x − z‖² of all pairs, whose derivatives are exact whatever the way it is computed."""

    @staticmethod
    def forward(X: Tensor, Z: Tensor, exact: bool) -> Tensor:
        if exact:
            return torch.cdist(X, Z, compute_mode="donot_use_mm_for_euclid_dist").square()
        squares = X.square().sum(-1, keepdim=True) + Z.square().sum(-1).unsqueeze(-2)
        return (squares - 2.0 * X @ Z.mT).clamp_min(0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, Tensor | None, None]:
        X, Z = ctx.saved_tensors
        of_X = 2.0 * (cotangent.sum(-1, keepdim=True) * X - cotangent @ Z)
        if not ctx.needs_input_grad[1]:
            return of_X, None, None
        of_Z = 2.0 * (cotangent.sum(-2).unsqueeze(-1) * Z - cotangent.mT @ X)
        return of_X, of_Z, None


class _Profile(torch.autograd.Function):
    """κ or a derivative of it, whose own derivative is the next one."""

    @staticmethod
    def forward(t: Tensor, profile: str, order: int) -> Tensor:
        return profile_derivative(profile, order, t)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.profile = inputs[1]
        ctx.order = inputs[2]
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None]:
        (t,) = ctx.saved_tensors
        return cotangent * _Profile.apply(t, ctx.profile, ctx.order + 1), None, None
