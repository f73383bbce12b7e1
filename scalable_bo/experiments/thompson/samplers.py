"""Methods, weights and clocks of the Thompson benchmark's rounds."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from scalable_bo.experiments.solvers import from_outside
from surrogates import Solver, checks, memory
from surrogates.solvers.registry import SOLVERS

SVGP = "svgp"


def check_thompson_method(solver: str | Solver) -> None:
    """Require a solver from outside, or the name of one, or ``svgp``.

    Raises:
        ValueError: if it is none; the message lists those there are.
    """
    if from_outside(solver) is None:
        checks.one_of("solver", solver, (*SOLVERS, SVGP))


def published_weights(y: Tensor) -> Tensor:
    """Return probabilities (n,) ∝ ``y + min(y)``, as published; what is then negative is 0."""
    weights = y + y.min()
    weights = (weights / weights.sum()).clamp_min(0.0)
    return weights / weights.sum()


def draw_seed(generator: torch.Generator) -> int:
    """Draw a seed for a component that makes its own generator."""
    return int(torch.randint(2**62, (), generator=generator))


@dataclass
class Stopwatch:
    """Measure wall-clock seconds, waiting for the device at both ends."""

    device: torch.device
    seconds: float = 0.0
    _start: float = field(default=0.0, init=False)

    def __enter__(self) -> Stopwatch:
        self._start = self._now()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = self._now() - self._start

    def _now(self) -> float:
        memory.wait_for(self.device)
        return time.perf_counter()
