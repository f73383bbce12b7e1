"""The covariance of any points with given ones, for many calls with few points each.

Notation: X (m, d) any points, Z (n, d) the given ones, t (m, n) squared distances in lengthscales.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ScaleKernel
from torch import Tensor

from surrogates.operators.main_effects import (
    ROOT_OF_5,
    MainEffectsKernel,
    matern52,
    mean_of_matern52,
)
from surrogates.operators.stationary import PROFILES, StationaryKernel, kind_of

Covariance = Callable[[Tensor], Tensor]  # from X (m, d) to (m, n)


@dataclass(frozen=True, eq=False)
class CrossCovariance:
    """k(X, Z) with Z and all hyperparameters constant, differentiable once in X.

    RBF, Matérn-3/2 and 5/2, main effects and sums of them are put together once: of few points a
    GPyTorch kernel takes longer for that at each call than for the numbers. Their gradients are in
    closed form, with no further exponential of main effects. Other kernels are evaluated by
    themselves.

    Attributes:
        kernel: without batch shape.
        Z: (n, d).
        parts: whose sum k(·, Z) is; none of a kernel that is evaluated by itself.
        variance: k(x, x) of every x, if there are parts.
    """

    kernel: Kernel
    Z: Tensor
    parts: tuple[Covariance, ...]
    variance: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, kernel: Kernel, Z: Tensor) -> "CrossCovariance":
        """Return the covariance with the points Z (n, d) by the present hyperparameters."""
        terms = _terms(kernel, Z)
        if terms is None:
            return cls(kernel, Z, (), Z.new_zeros(()))
        parts = tuple(part for part, _ in terms)
        return cls(kernel, Z, parts, torch.stack([scale.to(Z) for _, scale in terms]).sum())

    def __call__(self, X: Tensor) -> Tensor:
        """Return k(X, Z), (m, n)."""
        if not self.parts:
            return self.kernel(X, self.Z).to_dense()
        total = self.parts[0](X)
        for part in self.parts[1:]:
            total = total + part(X)
        return total

    def diagonal(self, X: Tensor) -> Tensor:
        """Return k(x, x) of every point of X, (m,)."""
        return self.variance.expand(len(X)) if self.parts else self.kernel(X, diag=True)


def _terms(kernel: Kernel, Z: Tensor) -> list[tuple[Covariance, Tensor]] | None:
    """Return the closed forms whose sum a kernel is, each with its variance; ``None`` if it is no
    such sum.
    """
    form = StationaryKernel.of(kernel)
    if form is not None:
        if PROFILES[form.profile].exact_distances:
            return None
        centre = form.scaled(Z).mean(0)  # of which distances do not depend
        return [(partial(_stationary, form, centre, form.scaled(Z) - centre), form.outputscale)]
    if kernel.active_dims is not None or kernel.batch_shape:
        return None
    if kind_of(kernel) is AdditiveKernel:
        summands = [_terms(part, Z) for part in kernel.kernels]
        known = [terms for terms in summands if terms is not None]
        return sum(known, []) if len(known) == len(summands) else None
    outputscale = Z.new_ones(())
    if kind_of(kernel) is ScaleKernel:
        outputscale = kernel.outputscale
        kernel = kernel.base_kernel
    if type(kernel) is not MainEffectsKernel or kernel.active_dims is not None:
        return None
    scale = ROOT_OF_5 / kernel.lengthscale.reshape(-1)
    return [(partial(_main_effects, scale, scale * Z, outputscale), outputscale)]


def _stationary(form: StationaryKernel, centre: Tensor, scaled_Z: Tensor, X: Tensor) -> Tensor:
    scaled_X = form.scaled(X) - centre
    value: Tensor = _Stationary.apply(scaled_X, scaled_Z, form.outputscale, form.profile)
    return value


def _main_effects(scale: Tensor, scaled_Z: Tensor, outputscale: Tensor, X: Tensor) -> Tensor:
    scaled_X = scale * X
    if scaled_X.requires_grad:
        mean: Tensor = _MainEffects.apply(scaled_X, scaled_Z)
    else:
        mean = mean_of_matern52(scaled_X.unsqueeze(-2), scaled_Z)
    return outputscale * mean


class _Stationary(torch.autograd.Function):
    """outputscale · κ(t), t = ‖x − z‖², and its gradient 2 κ'(t) (x − z) in x."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, Z: Tensor, outputscale: Tensor, profile: str) -> Tensor:
        squares = X.square().sum(-1, keepdim=True) + Z.square().sum(-1)
        t = torch.addmm(squares, X, Z.mT, alpha=-2.0)
        decay, level, slope = PROFILES[profile].terms(t)
        scaled = outputscale * decay
        ctx.save_for_backward(X, Z, slope * scaled)
        return level * scaled

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, None, None, None]:
        _refuse_second_derivatives()
        X, Z, slopes = ctx.saved_tensors
        V = slopes * G
        return 2.0 * (V.sum(-1, keepdim=True) * X - V @ Z), None, None, None


class _MainEffects(torch.autograd.Function):
    """(1/d) Σⱼ κ(|xⱼ − zⱼ|), and its gradient in x, of points in units of ℓ / √5."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, Z: Tensor) -> Tensor:
        differences = X.unsqueeze(-2) - Z
        values, falls = matern52(differences.abs())
        ctx.save_for_backward(differences.mul_(falls))
        return values.mean(-1)

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, None]:
        _refuse_second_derivatives()
        (slopes,) = ctx.saved_tensors
        gradient = (G.unsqueeze(-2) @ slopes).squeeze(-2)
        return gradient / -slopes.shape[-1], None


def _refuse_second_derivatives() -> None:
    if torch.is_grad_enabled():  # by `create_graph`
        raise NotImplementedError(
            "The covariance with given points has first derivatives only. Leave out"
            " `create_graph`, or differentiate `kernel_values`."
        )
