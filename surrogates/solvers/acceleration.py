"""Nesterov's acceleration of block steps: three sequences in place of one."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from surrogates.solvers.state import State
from surrogates.systems.system import Rows


@dataclass
class Momentum(State):
    """Nesterov's two further sequences, and the parameters of each column, if accelerated."""

    V: Tensor  # (n, s)
    Z: Tensor  # (n, s), where the gradient is taken
    mu: Tensor  # (s,) assumed strong convexity

    @classmethod
    def start(cls, initial: Tensor, mu: float) -> Self:
        """Return the momentum of a run from ``initial`` (n, s), which has none."""
        return cls(initial.clone(), initial.clone(), initial.new_full(initial.shape[1:], mu))

    def restarted(self, columns: Tensor, W: Tensor, mu: float) -> Self:
        """Return the momentum whose marked ``columns`` (s,) begin again at W, with another μ."""
        return replace(
            self,
            V=torch.where(columns, W, self.V, out=self.V),
            Z=torch.where(columns, W, self.Z, out=self.Z),
            mu=torch.where(columns, mu, self.mu),
        )


def accelerate(
    rows: Rows, W: Tensor, momentum: Momentum, index: Tensor, D: Tensor, nu: float
) -> tuple[Tensor, Momentum]:
    """Return Nesterov's new W, V and Z for the block step D (b, s) on the rows ``index``."""
    V = momentum.V
    Z = momentum.Z
    mu = momentum.mu
    beta = 1.0 - (mu / nu).sqrt()
    gamma = 1.0 / (mu * nu).sqrt()
    alpha = 1.0 / (1.0 + gamma * nu)
    V = rows.add(V.mul_(beta).addcmul_(Z, 1.0 - beta), index, D * gamma, alpha=-1.0)
    W = rows.add(W.copy_(Z), index, D, alpha=-1.0)
    return W, replace(momentum, V=V, Z=torch.lerp(W, V, alpha, out=Z))
