"""How the Thompson benchmark finds a round's batch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from acquisition import ParallelThompsonSampling
from scalable_bo.experiments.models import fixed_model
from scalable_bo.experiments.presets import ThompsonPreset
from scalable_bo.experiments.solvers import make_solver
from scalable_bo.problems import GPPrior
from scalable_bo.progress import describe_search, describe_solve
from surrogates import PathwiseGP

Status = Callable[[str], None]


@dataclass(frozen=True)
class Proposal:
    """A batch X (q, d), and what it cost.

    Attributes:
        residual: worst relative residual of the solve.
        seconds_solve: paths, their prior values and the solve.
        seconds_acquisition: the maximisation of the paths.
    """

    X: Tensor
    residual: float
    epochs: float
    note: str
    seconds_solve: float
    seconds_acquisition: float


class Sampler(Protocol):
    """Proposes the batch of round ``number`` from the data X (n, d), y (n,) so far."""

    def __call__(self, X: Tensor, y: Tensor, number: int) -> Proposal: ...


@dataclass
class PathwiseSampler:
    """Our own: paths by a solver of :data:`SOLVERS`, the mean's weights carried over, maximised by ``ParallelThompsonSampling``."""

    preset: ThompsonPreset
    solver: str
    target: GPPrior
    kernel: Kernel
    generators: dict[str, torch.Generator]
    on_status: Status | None = None
    _previous: PathwiseGP | None = field(default=None, init=False)

    def __call__(self, X: Tensor, y: Tensor, number: int) -> Proposal:
        preset = self.preset
        solver = make_solver(self.solver, len(X), preset.cg, preset.sdd)
        model = fixed_model(X, y, self.kernel, preset.noise, solver, preset.path_features)
        if self._previous is not None:
            model.warm_start(self._previous)
        self._previous = model
        prior = self.target.share_features(preset.q, self.generators["paths"]) if preset.share_features else None
        with Stopwatch(X.device) as solve:
            paths = model.paths(preset.q, generator=self.generators["paths"], prior=prior, callback=self._solver_status(number))
        with Stopwatch(X.device) as acquisition:
            batch = ParallelThompsonSampling(
                model,
                self.target.bounds,
                num_candidates=preset.num_candidates,
                num_rounds=preset.num_screenings,
                uniform_fraction=preset.uniform_fraction,
                num_starts=preset.num_starts,
                num_steps=preset.num_ascent_steps,
                learning_rate=preset.learning_rate,
                proposal_std=preset.proposal_std,
                seed=draw_seed(self.generators["candidates"]),
                callback=self._sampler_status(number),
            ).generate(preset.q, paths=paths)
        solution = model.solution
        assert solution is not None  # paths() has just made it
        return Proposal(batch, solution.residual.max().item(), solution.epochs, solution.note, solve.seconds, acquisition.seconds)

    def _solver_status(self, number: int) -> Callable[[Any], None] | None:
        if (report := self.on_status) is None:
            return None
        return lambda progress: report(f"round {number}: {describe_solve(progress)}")

    def _sampler_status(self, number: int) -> Callable[[Any], None] | None:
        if (report := self.on_status) is None:
            return None
        return lambda progress: report(f"round {number}: {describe_search(progress)}")


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
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()
