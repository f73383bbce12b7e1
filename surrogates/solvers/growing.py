"""Where a solve may start whose system has grown by new points.

Notation: H (n, n) the system's matrix, of which the first k rows are those of an earlier system; B
(n, s) right-hand sides; of several processes, each holds n_r of the rows.
"""

import torch
from torch import Tensor

from surrogates.solvers.cholesky import Cholesky
from surrogates.systems.system import LinearSystem, require_blocks


def extended(system: LinearSystem, B: Tensor, W: Tensor) -> Tensor:
    """Return W, and at the new points what solves their own rows of H W = B beside it: a step of
    block coordinate descent, at the cost of (n − k) n kernel entries.

    New rows that start at zero hold all that is wrong, in a residual that is small beside the norm
    of B: a solver may stop before it has seen them.

    Args:
        B: (n_r, s); of no account without new points.
        W: (k, s), the solution of the earlier system, in every process.
    Returns:
        (n_r, s), in the system's dtype.
    """
    rows = system.rows
    start = system.noise.new_zeros(rows.num_held, W.shape[1])
    held = W[rows.own]
    start[: len(held)] = held
    if len(W) < system.n:
        blocks = require_blocks(system)
        new = torch.arange(len(W), system.n, device=B.device)
        gap = blocks.rows_matmul(new, start, minus=B).neg_()
        own_block = blocks.restrict(new)
        rows.add(start, new, Cholesky().solve(own_block, gap).value)
    return start
