"""Preconditioned conjugate gradients, many columns side by side."""

from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from surrogates.solvers.run import IterativeSolver, Start
from surrogates.solvers.state import State
from surrogates.systems.preconditioners import (
    Computed,
    Identity,
    Nystrom,
    PivotedCholesky,
    Preconditioner,
)
from surrogates.systems.system import Apply, LinearSystem


@dataclass
class CGState(State):
    """Where the recursion stands; s columns are still running."""

    apply: Apply
    W: Tensor  # (n, s) iterates
    R: Tensor  # (n, s) residuals B − H W, by recursion
    P: Tensor  # (n, s) directions
    rho: Tensor  # (s,) ⟨R, P⁻¹R⟩


@dataclass(frozen=True)
class CG(IterativeSolver[LinearSystem, Apply, CGState]):
    """Solve (K + Σ) W = B by one preconditioned conjugate gradient recursion a column, sharing the
    products H P.

    Args:
        preconditioner: :class:`Nystrom` (default, of its default rank), :class:`PivotedCholesky`,
            or ``None`` for no preconditioner.

    References:
        Hestenes, Stiefel (1952); Saad (2003), "Iterative Methods for Sparse Linear Systems",
        Algorithm 9.1.
        Differs: (1) not block CG, whose s × s systems collapse in float32; (2) a column whose
            recursion breaks down stops at its last finite iterate; (3) the recursion's residual
            only decides when to stop, and the evaluated one restarts it if it was wrong.
    """

    preconditioner: Preconditioner | None = field(default_factory=Nystrom)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.preconditioner, Preconditioner | None):
            raise TypeError(
                "`preconditioner` must be a Preconditioner such as Nystrom(100), or None, got"
                f" {type(self.preconditioner).__name__} {self.preconditioner!r}."
            )

    @classmethod
    def paper(cls, **settings: Any) -> Self:
        """Return the published settings of Lin et al. (2023): a pivoted Cholesky factor of rank
        100, and columns that stop at a relative residual of 0.01.

        Those of Rathore et al. (2025) are ``CG(Nystrom(100, sketch="gaussian"))``.
        """
        return cls(**{"preconditioner": PivotedCholesky(100), "tolerance": 0.01, **settings})

    def kept(self, system: LinearSystem, num_columns: int, generator: torch.Generator) -> Self:
        if self.preconditioner is None:
            return self
        return replace(
            self, preconditioner=Computed(self.preconditioner(system, generator), system.dtype)
        )

    def prepare(self, system: LinearSystem, generator: torch.Generator) -> Apply:
        return (self.preconditioner or Identity())(system, generator)

    def init(self, system: LinearSystem, start: Start[Apply]) -> CGState:
        P = start.prepared(start.gap)
        return CGState(
            start.prepared,
            start.initial.clone(),
            start.gap.clone(),
            P,
            system.rows.dot(start.gap, P),
        )

    def step(
        self, system: LinearSystem, rhs: Tensor, state: CGState, generator: torch.Generator
    ) -> CGState:
        HP = system @ state.P
        curvature = system.rows.dot(state.P, HP)
        alpha = state.rho / curvature
        # Rounding can end a column's recursion: it stays, and its residual, set to 0, stops it
        sound = torch.isfinite(alpha) & (curvature > 0) & (state.rho > 0)
        alpha = torch.where(sound, alpha, torch.zeros_like(alpha))
        W = state.W.addcmul_(state.P, alpha)
        R = state.R.addcmul_(HP, -alpha)
        R.masked_fill_(~sound, 0.0)
        del HP
        Z = state.apply(R)
        rho = system.rows.dot(R, Z)
        beta = torch.where(sound, rho / state.rho, torch.zeros_like(rho))
        return CGState(state.apply, W, R, Z.addcmul_(state.P, beta), rho)

    def estimate(self, system: LinearSystem, state: CGState) -> Tensor:
        return state.W

    def residual_norm(self, system: LinearSystem, state: CGState) -> Tensor:
        return system.rows.norm(state.R)

    def recursion(self, state: CGState) -> Tensor:
        return state.R
