"""Ridge leverage scores: how much each of n data points X (n, d) matters to a kernel regression,
for choosing m of them.

Notation: K = k(X, X), λ the regularisation of K / n, S a sketch of p data points.
"""

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from surrogates import memory
from surrogates.operators.kernel_matrix import kernel_operator
from surrogates.operators.linalg import jittered_cholesky
from surrogates.operators.tiles import spans, tile_side


def approximate_leverage_scores(
    kernel: Kernel, X: Tensor, sketch: Tensor, regularization: float
) -> Tensor:
    """Return approximations (n,) of the ridge leverage scores diag(K (K + λ n I)⁻¹), from a uniform
    sketch of p data, in O(n p²):

        (k(x, x) − k(x, S) (K_SS + λ p I)⁻¹ k(S, x)) / (λ n),   at most 1; exact if p = n.

    A point that the sketch represents badly gets a high score, so that it is drawn.

    Args:
        X: (n, d).
        sketch: the indices S (p,), distinct.
        regularization: λ, above 0.

    References:
        Rudi, Calandriello, Carratino, Rosasco (2018), "On Fast Leverage Score Sampling and Optimal
        Learning", with uniform weights.
    """
    p = len(sketch)
    n = len(X)
    block = kernel_operator(kernel, X[sketch]).to_dense().clone()
    block.diagonal().add_(regularization * p)
    factor, _ = jittered_cholesky(block, overwrite=True)

    def missed(size: int) -> Tensor:
        parts = []
        for part in spans(n, size):
            half = torch.linalg.solve_triangular(
                factor, kernel_operator(kernel, X[sketch], X[part]).to_dense(), upper=False
            )
            parts.append(kernel(X[part], diag=True) - half.square().sum(0))
        return torch.cat(parts)

    scores = memory.halving(missed, tile_side(X.device), "A part") / (regularization * n)
    return scores.clamp(torch.finfo(X.dtype).eps, 1.0)
