"""Nesterov's acceleration of block steps: three sequences in place of one.

For exact blocks μ = c/ν, where an epoch of ν steps is to contract the squared error by exp(−√c).
"""

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from surrogates.solvers.state import State
from surrogates.systems.system import Rows

FASTEST = 0.5  # c of an exact block's scheme, to begin with and at most
SLOWEST = 0.2
# Of the c at which the residual would fall as it does: a smaller one has it fall faster
BELOW_PACE = 0.4


@dataclass
class Momentum(State):
    """Nesterov's two further sequences, and the parameters of each column:
    none of this exists without acceleration.
    """

    V: Tensor  # (n, s)
    Z: Tensor  # (n, s), where the gradient is taken
    mu: Tensor  # (s,) assumed strong convexity
    residual: Tensor  # (s,) residual norm over the last epoch; infinite before

    @classmethod
    def start(cls, initial: Tensor, mu: float) -> Self:
        """Return the momentum of a run from ``initial`` (n, s), which has none."""
        mus = initial.new_full(initial.shape[1:], mu)
        return cls(initial.clone(), initial.clone(), mus, torch.full_like(mus, math.inf))

    def restarted(self, columns: Tensor, W: Tensor, mu: Tensor | float) -> Self:
        """Return the momentum in which the marked ``columns`` (s,) begin again, at W and with
        another μ.
        """
        return replace(
            self,
            V=torch.where(columns, W, self.V, out=self.V),
            Z=torch.where(columns, W, self.Z, out=self.Z),
            mu=torch.where(columns, mu, self.mu),
        )

    def paced(self, residual: Tensor, nu: float) -> Self:
        """Return the momentum of exact blocks for the next epoch, given the residual norm (s,) over
        the last.

        A scheme forgets within 1/√c epochs. Where the residual falls slowly, that is too soon;
        where it falls fast, a longer memory holds it up.
        """
        fell = residual / self.residual
        c = (BELOW_PACE * (2.0 * fell.log()).square()).clamp(SLOWEST, FASTEST)
        # Neither before two epochs are known, nor of what goes on without acceleration
        is_paced = (fell > 0.0) & (fell < 1.0) & (self.mu < 1.0 / nu)
        return replace(self, mu=torch.where(is_paced, c / nu, self.mu), residual=residual)


def accelerate(
    rows: Rows, W: Tensor, momentum: Momentum, index: Tensor, D: Tensor, nu: float
) -> tuple[Tensor, Momentum]:
    """Return the new W, V and Z of Nesterov's scheme, in place of the old,
    for the block step D (b, s) on the rows ``index``.
    """
    V = momentum.V
    Z = momentum.Z
    mu = momentum.mu
    beta = 1.0 - (mu / nu).sqrt()
    gamma = 1.0 / (mu * nu).sqrt()
    alpha = 1.0 / (1.0 + gamma * nu)
    V = rows.add(V.mul_(beta).addcmul_(Z, 1.0 - beta), index, D * gamma, alpha=-1.0)
    W = rows.add(W.copy_(Z), index, D, alpha=-1.0)
    return W, replace(momentum, V=V, Z=torch.lerp(W, V, alpha, out=Z))
