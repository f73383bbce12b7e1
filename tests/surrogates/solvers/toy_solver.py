"""A solver from outside the packages: conjugate residuals, in one file."""

from dataclasses import dataclass

import torch
from torch import Tensor

from surrogates import IterativeSolver
from surrogates.solvers.run import Start
from surrogates.solvers.state import State
from surrogates.systems.system import LinearSystem


@dataclass
class Residuals(State):
    W: Tensor
    R: Tensor
    P: Tensor
    HR: Tensor
    HP: Tensor


@dataclass(frozen=True)
class ConjugateResiduals(IterativeSolver[LinearSystem, None, Residuals]):
    """Minimise ‖b − H w‖ over the Krylov space; one product a step.

    References:
        Saad (2003), "Iterative Methods for Sparse Linear Systems", Algorithm 6.20.
    """

    def accepts(self, system: LinearSystem) -> LinearSystem:
        return system

    def prepare(self, system: LinearSystem, generator: torch.Generator) -> None:
        return None

    def init(self, system: LinearSystem, start: Start[None]) -> Residuals:
        HR = system @ start.gap
        return Residuals(start.initial.clone(), start.gap.clone(), start.gap.clone(), HR, HR)

    def step(
        self, system: LinearSystem, rhs: Tensor, state: Residuals, generator: torch.Generator
    ) -> Residuals:
        dot = system.rows.dot
        tiny = torch.finfo(rhs.dtype).tiny
        before = dot(state.R, state.HR)
        alpha = before / dot(state.HP, state.HP).clamp_min(tiny)
        W = state.W + alpha * state.P
        R = state.R - alpha * state.HP
        HR = system @ R
        beta = dot(R, HR) / before.clamp_min(tiny)
        return Residuals(W, R, R + beta * state.P, HR, HR + beta * state.HP)

    def estimate(self, system: LinearSystem, state: Residuals) -> Tensor:
        return state.W

    def residual_norm(self, system: LinearSystem, state: Residuals) -> Tensor:
        return system.rows.norm(state.R)
