"""How the Thompson benchmark finds a round's batch."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from acquisition import ParallelThompsonSampling
from acquisition.candidates import sampling_weights
from scalable_bo.evaluation.progress import describe_search, describe_solve
from scalable_bo.experiments.cells import Status, silent
from scalable_bo.experiments.models import coordinate_kernel, fixed_model
from scalable_bo.experiments.presets import ThompsonPreset
from scalable_bo.experiments.problems import GPPrior
from scalable_bo.experiments.records import Record
from scalable_bo.experiments.solvers import from_outside, solver_for
from scalable_bo.experiments.torchrun import num_processes
from surrogates import Checkpoint, PathwiseGP, PriorPaths, Solver, UnsolvedWarning, checks, memory
from surrogates.models.variational_gp import VariationalGP
from surrogates.solvers.registry import SOLVERS

SVGP = "svgp"


def check_thompson_method(solver: str | Solver) -> None:
    """Require a solver from outside, or the name of one, or ``svgp``.

    Raises:
        ValueError: if it is none; the message lists those there are.
    """
    if from_outside(solver) is None:
        checks.one_of("solver", solver, (*SOLVERS, SVGP))


@dataclass
class PathwiseSampler:
    """Propose the batch of a round from the data X (n, d), y (n,) so far: fresh paths by a solver
    of the registry or by ``svgp``, maximised by ``ParallelThompsonSampling``.

    The mean's weights are carried over, the paths are not.
    The method ``svgp`` places its inducing points anew each round and carries nothing over; it
    takes the variational posterior in closed form, the optimum for the fixed hyperparameters that
    the published 20 000 steps of Adam approach.
    """

    preset: ThompsonPreset
    solver: str | Solver
    target: GPPrior
    kernel: Kernel
    generators: dict[str, torch.Generator]
    on_status: Status = silent
    checkpoint: Checkpoint | None = None
    mean_weights: Tensor | None = None

    def __call__(self, X: Tensor, y: Tensor, number: int) -> tuple[Tensor, Record]:
        """Return the batch (q, d) of a round, and what it cost, as in the record of a run."""
        preset = self.preset
        together = num_processes() > 1
        with Stopwatch(X.device) as solve, warnings.catch_warnings():
            warnings.simplefilter("ignore", UnsolvedWarning)  # a budget may be spent on purpose
            model = self._model(X, y)
            paths = model.paths(
                preset.q,
                generator=self.generators["paths"],
                prior=self._prior(X),
                shared=together,
                callback=lambda p: self.on_status(f"round {number}: {describe_solve(p)}"),
            )
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
                prune=preset.prune_starts,
                proposal_std=preset.proposal_std,
                candidate_weights=(
                    published_weights
                    if preset.candidate_weights == "published"
                    else sampling_weights
                ),
                shared=together,
                seed=draw_seed(self.generators["candidates"]),
                callback=lambda p: self.on_status(f"round {number}: {describe_search(p)}"),
            ).generate(preset.q, paths=paths)
        account: Record = {
            "residual": None,
            "error": None,
            "epochs": None,
            "note": "",
            "seconds_solve": solve.seconds,
            "seconds_acquisition": acquisition.seconds,
        }
        if isinstance(model, VariationalGP):
            return batch, account | {
                "note": f"{len(model.inducing_points)} inducing points, closed-form optimum in"
                " place of steps of Adam"
            }
        self.mean_weights = paths.parts[0].mean_weights
        solution = model.solution
        assert solution is not None  # paths() has just made it
        return batch, account | {
            "residual": solution.residual.max().item(),
            "error": None if solution.error is None else solution.error.max().item(),
            "epochs": solution.epochs,
            "note": solution.note,
            # A solve that went on from a checkpoint counts what it had taken before
            "seconds_solve": max(solve.seconds, solution.seconds),
        }

    def _model(self, X: Tensor, y: Tensor) -> PathwiseGP:
        preset = self.preset
        given = (X, y, self.kernel, preset.noise)
        if self.solver == SVGP:
            seed = draw_seed(self.generators["paths"])
            return fixed_model(*given, None, preset.path_features, VariationalGP, seed=seed)
        solver = solver_for(self.solver, len(X), preset.cg, preset.sdd, self.checkpoint)
        model = fixed_model(*given, solver, preset.path_features)
        if self.mean_weights is not None:
            model.start_from(self.mean_weights)
        return model

    def _prior(self, like: Tensor) -> PriorPaths | None:
        """Return the prior paths of features that the model does not draw by itself."""
        preset = self.preset
        generator = self.generators["paths"]
        if preset.share_features:
            return self.target.share_features(preset.q, generator)
        if not preset.coordinate_features:
            return None
        kernel = coordinate_kernel(self.kernel, preset.dim)
        return PriorPaths.draw(
            kernel,
            preset.dim,
            num_paths=preset.q,
            num_features=preset.path_features,
            weighted=False,
            generator=generator,
            like=like,
        )


def published_weights(y: Tensor) -> Tensor:
    """Return probabilities (n,) ∝ ``y + min(y)``, as the published codes have it;
    what is then negative is 0.
    """
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
