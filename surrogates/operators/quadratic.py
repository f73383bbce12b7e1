"""Quadratic forms of a kernel matrix and their gradients in the kernel's hyperparameters, in O(n)
memory.

Notation: X (n, d), U (n, s), weights ω (s,), and the form q = Σ_c ω_c u_cᵀ k(X, X) u_c = Σ_ij A_ij
k(x_i, x_j) with A = U diag(ω) Uᵀ.
"""

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ScaleKernel
from torch import Tensor

from surrogates import memory
from surrogates.operators.forms import PROFILES, StationaryKernel, kind_of
from surrogates.operators.tiles import SMALLEST_SIDE, StationaryTiles, spans, tile_side


def backward_quadratic_form(kernel: Kernel, X: Tensor, U: Tensor, weights: Tensor) -> float:
    """Return q, and add ∂q/∂θ to the gradients of those parameters of ``kernel`` that have
    ``requires_grad``, as ``backward`` does.

    RBF and Matérn-3/2, 5/2, alone, in ``ScaleKernel`` and in sums, have a closed form, with κ' the
    slope of the kernel in d²:

        ∂q / ∂ log ℓ_a  =  −2 Σ_ij A_ij κ'(d²_ij) (x_ia − x_ja)² / ℓ_a².

    Every other kernel is differentiated by autograd, one tile and its transpose at a time.

    Args:
        kernel: a GPyTorch kernel without a batch shape.
    """
    if kind_of(kernel) is AdditiveKernel and kernel.active_dims is None:
        return sum(backward_quadratic_form(part, X, U, weights) for part in kernel.kernels)
    stationary = StationaryKernel.of(kernel)
    # Whose slope is infinite on the diagonal
    if stationary is None or PROFILES[stationary.profile].exact_distances:
        return _backward_by_autograd(kernel, X, U, weights)
    return _backward_in_closed_form(kernel, stationary, X, U, weights)


def _backward_in_closed_form(
    kernel: Kernel, stationary: StationaryKernel, X: Tensor, U: Tensor, weights: Tensor
) -> float:
    tiles = StationaryTiles(stationary, X, X)
    V = weights.unsqueeze(1) * U.T
    scaled = tiles.left.X

    def sums(side: int) -> tuple[float, Tensor]:
        q = 0.0
        slope = torch.zeros_like(scaled[0], dtype=torch.float64)
        for i in spans(len(X), side):
            for j in spans(i.stop, side):
                share = tiles.outputscale * (1.0 if j.start == i.start else 2.0)
                values, slopes = tiles.contract_distances(i, j, (U[i] @ V[:, j]).unsqueeze(0))
                rows = scaled[i]
                columns = scaled[j]
                # Σ_ij G_ij (x_ia − x_ja)² for all a, with three products.
                spread = (
                    slopes.sum(1) @ rows.square()
                    + slopes.sum(0) @ columns.square()
                    - 2.0 * (rows * (slopes @ columns)).sum(0)
                )
                q += (share * values.sum()).item()
                slope -= 2.0 * share * spread
        return q, slope

    q, slope = memory.halving(sums, tile_side(X.device), SMALLEST_SIDE, "A tile")
    with torch.enable_grad():
        surrogate = X.new_zeros(())
        while isinstance(kernel, ScaleKernel):
            surrogate = surrogate + q * kernel.outputscale.log()
            kernel = kernel.base_kernel
        surrogate = surrogate + (slope.to(X) * kernel.lengthscale.log().reshape(-1)).sum()
        if surrogate.requires_grad:
            surrogate.backward()
    return q


def _backward_by_autograd(kernel: Kernel, X: Tensor, U: Tensor, weights: Tensor) -> float:
    V = weights.unsqueeze(1) * U.T
    parameters = [parameter for parameter in kernel.parameters() if parameter.requires_grad]

    def sums(side: int) -> tuple[float, dict[Tensor, Tensor]]:
        q = 0.0
        gradients = dict[Tensor, Tensor]()
        for i in spans(len(X), side):
            for j in spans(i.stop, side):
                with torch.enable_grad():
                    part = (1.0 if j.start == i.start else 2.0) * (
                        kernel(X[i], X[j]).to_dense() * (U[i] @ V[:, j])
                    ).sum()
                if parameters and part.requires_grad:
                    for parameter, gradient in zip(
                        parameters,
                        torch.autograd.grad(part, parameters, allow_unused=True),
                        strict=True,
                    ):
                        if gradient is not None:
                            gradients[parameter] = (
                                gradients[parameter] + gradient
                                if parameter in gradients
                                else gradient
                            )
                q += part.item()
        return q, gradients

    q, gradients = memory.halving(sums, tile_side(X.device), SMALLEST_SIDE, "A tile")
    for parameter, gradient in gradients.items():
        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
    return q
