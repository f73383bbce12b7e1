"""Closed forms of the stationary kernels that have a fast path: RBF and Matérn-1/2, 3/2, 5/2.

Each is ``k(x, z) = outputscale · κ(d²)`` with ``d² = ‖(x − z) / lengthscale‖²`` (isotropic or ARD).
``κ`` and its slope ``dκ/d(d²)`` are all that values and gradients need.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

from surrogates.operators.fusion import Fused, InPlace


def _rbf(d2: Tensor) -> tuple[Tensor, Tensor]:
    value = torch.exp(-0.5 * d2.clamp_min(0.0))
    return value, -0.5 * value


def _matern12(d2: Tensor) -> tuple[Tensor, Tensor]:
    r = d2.clamp_min(torch.finfo(d2.dtype).tiny).sqrt()
    value = torch.exp(-r)
    return value, -0.5 * value / r


def _matern32(d2: Tensor) -> tuple[Tensor, Tensor]:
    r = (3.0 * d2.clamp_min(0.0)).sqrt()
    decay = torch.exp(-r)
    return (1.0 + r) * decay, -1.5 * decay


def _matern52(d2: Tensor) -> tuple[Tensor, Tensor]:
    r = (5.0 * d2.clamp_min(0.0)).sqrt()
    decay = torch.exp(-r)
    return (1.0 + r + r * r / 3.0) * decay, -(5.0 / 6.0) * (1.0 + r) * decay


@dataclass(frozen=True)
class Profile:
    """The fused elementwise functions of one kernel family.

    Attributes:
        value: ``(d2, outputscale) -> outputscale · κ(d2)``.
        value_: the same in the place of d2 (N,).
        contract: ``(d2 (g, r, c), weights (g, 1 or r, c)) -> (Σ_c κ w (g, r), κ' w (g, r, c))``.
        exact_distances: whether d² must be free of cancellation: κ has infinite slope at 0
            (Matérn-1/2).
    """

    value: Callable[[Tensor, Tensor], Tensor]
    value_: Callable[[Tensor, Tensor], Tensor]
    contract: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    exact_distances: bool = False


def _profile(
    formula: Callable[[Tensor], tuple[Tensor, Tensor]], exact_distances: bool = False
) -> Profile:
    def value(d2: Tensor, outputscale: Tensor) -> Tensor:
        return formula(d2)[0] * outputscale

    def contract(d2: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        kernel, slope = formula(d2)
        return (kernel * weights).sum(-1), slope * weights

    return Profile(Fused(value), InPlace(value), Fused(contract), exact_distances)


PROFILES = {
    "rbf": _profile(_rbf),
    "matern12": _profile(_matern12, exact_distances=True),
    "matern32": _profile(_matern32),
    "matern52": _profile(_matern52),
}


@dataclass(frozen=True)
class StationaryKernel:
    """A GPyTorch kernel reduced to its closed form.

    Attributes:
        profile: key of :data:`PROFILES`.
        lengthscale: (d,) or (1,), in the units of the inputs.
        outputscale: scalar tensor, the prior variance.
        active_dims: the input columns the kernel looks at; ``None`` for all.
    """

    profile: str
    lengthscale: Tensor
    outputscale: Tensor
    active_dims: Tensor | None

    @classmethod
    def of(cls, kernel: Kernel) -> "StationaryKernel | None":
        """Return the closed form of ``kernel``, or ``None`` where it has none (the kernel's own
        evaluation is used then).
        """
        outputscale = torch.ones(())
        # ScaleKernel takes over those of its base kernel, whose own are not applied again
        active_dims = kernel.active_dims
        while type(kernel) is ScaleKernel:
            if kernel.outputscale.ndim:
                return None
            outputscale = outputscale.to(kernel.outputscale) * kernel.outputscale.detach()
            kernel = kernel.base_kernel
        if kernel.batch_shape:
            return None
        if type(kernel) is RBFKernel:
            profile = "rbf"
        elif type(kernel) is MaternKernel:
            profile = f"matern{int(2 * kernel.nu)}2"
        else:
            return None
        lengthscale = kernel.lengthscale.detach().reshape(-1)
        return cls(profile, lengthscale, outputscale.to(lengthscale), active_dims)

    def scaled(self, X: Tensor) -> Tensor:
        """Return the active columns of ``X`` in units of the lengthscale."""
        return (X if self.active_dims is None else X[:, self.active_dims]) / self.lengthscale.to(X)

    def unscaled_gradient(self, gradient: Tensor, dim: int) -> Tensor:
        """Map a gradient with respect to :meth:`scaled` inputs (m, active) back to all ``dim``
        input columns.
        """
        gradient = gradient / self.lengthscale.to(gradient)
        if self.active_dims is None:
            return gradient
        return gradient.new_zeros(len(gradient), dim).index_add_(
            1, self.active_dims.to(gradient.device), gradient
        )
