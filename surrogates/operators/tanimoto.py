"""The Tanimoto kernel of molecular fingerprints.

For binary vectors it is the share of the bits set in either that are set in both (Jaccard's index).
For counts, and any real vectors, it is the form by scalar products, which stays positive definite.
"""

from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor


class TanimotoKernel(Kernel):
    """k(x, z) = ⟨x, z⟩ / (‖x‖² + ‖z‖² − ⟨x, z⟩), with k(0, 0) = 1; no hyperparameters.

    Put it into ``ScaleKernel`` for an outputscale, and multiply it with a kernel of other columns
    by ``active_dims``. The columns of a fingerprint must reach it unscaled: name the other ones in
    the ``indices`` of an input transform. It is differentiable in its points but at x = 0, where
    its gradient counts as zero.

    References:
        Ralaivola et al. (2005), "Graph Kernels for Chemical Informatics"; Tripp et al. (2023),
        "Tanimoto Random Features for Scalable Molecular Machine Learning" (real vectors).
    """

    has_lengthscale = False

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        first = x1.square().sum(-1)
        second = x2.square().sum(-1)
        if diag:
            return tanimoto((x1 * x2).sum(-1), first, second)
        return tanimoto(x1 @ x2.mT, first.unsqueeze(-1), second.unsqueeze(-2))


def tanimoto(products: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return the kernel from scalar products ⟨x, z⟩, ‖x‖² and ‖z‖², which broadcast with them."""
    union = first + second - products
    both_zero = union == 0.0  # otherwise at least half of ‖x‖² + ‖z‖²
    return torch.where(both_zero, 1.0, products / torch.where(both_zero, 1.0, union))


def squared_lengths(X: Tensor) -> Tensor:
    """Return ‖x‖² of the rows of X (m, d), (m,), in one pass."""
    return torch.einsum("md,md->m", X, X)
