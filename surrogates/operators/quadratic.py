"""Quadratic forms of a kernel matrix and their gradients in its hyperparameters, in O(n) memory.

Notation: X (n, d), U (n, s), weights ω (s,), and the form q = Σ_c ω_c u_cᵀ k(X, X) u_c = Σ_ij A_ij
k(x_i, x_j) with A = U diag(ω) Uᵀ.
"""

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from surrogates import memory
from surrogates.operators.tiles import spans, tile_side


def backward_quadratic_form(kernel: Kernel, X: Tensor, U: Tensor, weights: Tensor) -> float:
    """Return q, and add ∂q/∂θ to the gradients of those parameters of ``kernel`` that have
    ``requires_grad``, as ``backward`` does, a tile and its transpose at a time.

    Args:
        kernel: a GPyTorch kernel without a batch shape.
    """
    V = weights.unsqueeze(1) * U.T
    parameters = [parameter for parameter in kernel.parameters() if parameter.requires_grad]

    def sums(side: int) -> tuple[float, list[Tensor]]:
        q = 0.0
        gradients = [torch.zeros_like(parameter) for parameter in parameters]
        for i in spans(len(X), side):
            for j in spans(i.stop, side):
                twice = 1.0 if j.start == i.start else 2.0
                with torch.enable_grad():
                    part = twice * (kernel(X[i], X[j]).to_dense() * (U[i] @ V[:, j])).sum()
                q += part.item()
                if part.requires_grad:
                    found = torch.autograd.grad(
                        part, parameters, allow_unused=True, materialize_grads=True
                    )
                    for gradient, more in zip(gradients, found, strict=True):
                        gradient += more
        return q, gradients

    q, gradients = memory.halving(sums, tile_side(X.device), "A tile")
    if parameters:
        torch.autograd.backward(parameters, gradients)
    return q
