"""The covariance of any points with given ones, for many calls with few points each.

Notation: X (m, d) any points, Z (n, d) the given ones.
"""

from typing import Any

import torch
from torch import Tensor

from surrogates.operators.tiles import ALL, KernelTiles


class CrossCovariance(torch.autograd.Function):
    """k(X, Z), (m, n), from X and the tiles of k(·, Z), differentiable once in X; Z and all
    hyperparameters are constants.
    """

    @staticmethod
    def forward(ctx: Any, X: Tensor, tiles: KernelTiles) -> Tensor:
        ctx.tiles = tiles.between(X)
        return ctx.tiles.tile(ALL, ALL)

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, None]:
        if torch.is_grad_enabled():  # by `create_graph`
            raise NotImplementedError(
                "The covariance with given points has first derivatives only. Leave out"
                " `create_graph`, or differentiate `kernel_values`."
            )
        return ctx.tiles.contract(ALL, ALL, G.contiguous().unsqueeze(0))[1], None
