"""Parallel Thompson sampling on a function drawn from the surrogate's own prior, with random search beside.

Each round draws q posterior paths, maximises each, observes the target at the q maximisers and adds them to the data;
random search adds q uniform points to the same initial data. The hyperparameters are fixed to the truth.

References:
    Lin et al. (2023), "Sampling from Gaussian Process Posteriors using Stochastic Gradient Descent", Section 4.2, A.3.
    Differs: the target's random features are not the surrogate's, unless ``share_features`` is set.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalable_bo.experiments.models import coordinate_kernel, matern_kernel
from scalable_bo.experiments.presets import ThompsonPreset
from scalable_bo.experiments.records import describe_environment, peak_memory_bytes, reset_peak_memory
from scalable_bo.experiments.samplers import PathwiseSampler, Sampler
from scalable_bo.experiments.solvers import check_solver
from scalable_bo.problems import GPPrior

# One independent random stream a purpose, so that every solver meets the same target, data and observation noise.
_STREAMS = ("target", "initial", "initial noise", "noise", "paths", "candidates", "random search", "random noise")


@dataclass(frozen=True)
class ThompsonRun:
    """One run: a preset with one solver, lengthscale and seed, on one device.

    Raises:
        ValueError: if the solver is unknown, or the lengthscale or the seed out of range.
    """

    preset: ThompsonPreset
    solver: str
    lengthscale: float
    seed: int
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_solver(self.solver)
        if not (math.isfinite(self.lengthscale) and self.lengthscale > 0):
            raise ValueError(f"`lengthscale` must be positive and finite, got {self.lengthscale}.")
        if self.seed < 0:
            raise ValueError(f"`seed` must be at least 0, got {self.seed}.")

    @property
    def name(self) -> str:
        """A file name for the run's record, without its ending."""
        return f"thompson_{self.preset.name}_{self.solver}_l{self.lengthscale:g}_s{self.seed}"


def run_thompson(
    run: ThompsonRun,
    *,
    on_round: Callable[[dict[str, Any]], None] | None = None,
    on_status: Callable[[str], None] | None = None,
    sampler: Callable[..., Sampler] | None = None,
) -> dict[str, Any]:
    """Run the benchmark once.

    Args:
        run: what to run.
        on_round: called after each round with the record so far (``complete`` is false until the last).
        on_status: called with a few words on what is happening now.
        sampler: what proposes the batches, made like ``PathwiseSampler``, which is the default.
    Returns:
        The record: ``experiment``, ``complete``, ``settings``, ``environment``; ``initial``, the best of the initial
        data; ``rounds``, one dict a round; ``random_search``, likewise. Of each round: ``num_points`` after it,
        ``best_noiseless`` (the target's value) and ``best_observed`` so far, ``residual`` (the worst relative residual
        of the solve), ``epochs``, the solver's ``note``, ``seconds_solve`` (paths, their prior values and the solve),
        ``seconds_acquisition`` (their maximisation) and ``peak_memory_bytes``.
    """
    preset, device, dtype = run.preset, torch.device(run.device), getattr(torch, run.preset.dtype)
    generators = _generators(run.seed)
    kernel = matern_kernel(run.lengthscale, preset.outputscale, preset.smoothness).to(device, dtype)
    target = GPPrior(
        coordinate_kernel(kernel, preset.dim) if preset.coordinate_features else kernel,
        preset.dim,
        noise=preset.noise,
        num_features=preset.target_features,
        generator=generators["target"],
        dtype=dtype,
        device=device,
    )

    def uniform(num_points: int, stream: str) -> Tensor:
        return torch.rand(num_points, preset.dim, generator=generators[stream], dtype=dtype).to(device)

    thompson = _Data.start(target, uniform(preset.num_initial, "initial"), generators["initial noise"])
    random_search = replace(thompson)
    rounds: list[dict[str, Any]] = []
    random_rounds: list[dict[str, Any]] = []
    record: dict[str, Any] = {
        "experiment": "thompson",
        "complete": False,
        "settings": {"preset": asdict(preset)} | {key: getattr(run, key) for key in ("solver", "lengthscale", "seed")},
        "environment": describe_environment(device),
        "initial": thompson.best() | {"num_points": len(thompson.X)},
        "rounds": rounds,
        "random_search": {"rounds": random_rounds},
    }
    propose = (sampler or PathwiseSampler)(preset, run.solver, target, kernel, generators, on_status)
    for number in range(1, preset.num_rounds + 1):
        reset_peak_memory(device)
        proposal = propose(thompson.X, thompson.y, number)
        thompson.add(target, proposal.X, generators["noise"])
        random_search.add(target, uniform(preset.q, "random search"), generators["random noise"])
        rounds.append(
            {
                "round": number,
                "num_points": len(thompson.X),
                **thompson.best(),
                "residual": proposal.residual,
                "epochs": proposal.epochs,
                "note": proposal.note,
                "seconds_solve": proposal.seconds_solve,
                "seconds_acquisition": proposal.seconds_acquisition,
                "peak_memory_bytes": peak_memory_bytes(device),
            }
        )
        random_rounds.append({"round": number, **random_search.best()})
        record["complete"] = number == preset.num_rounds
        if on_round is not None:
            on_round(record)
    return record


def describe_round(record: dict[str, Any]) -> str:
    """Say in one line how the last round of a record went."""
    settings, last = record["settings"], record["rounds"][-1]
    before = record["rounds"][-2] if len(record["rounds"]) > 1 else record["initial"]
    return (
        f"{settings['solver']} lengthscale {settings['lengthscale']:g} seed {settings['seed']} "
        f"round {last['round']}/{settings['preset']['num_rounds']}: n {last['num_points']}, "
        f"best {last['best_noiseless']:.4f} (gain {last['best_noiseless'] - before['best_noiseless']:.4f}, "
        f"random search {record['random_search']['rounds'][-1]['best_noiseless']:.4f}), "
        f"solve {last['seconds_solve']:.1f} s to residual {last['residual']:.1e} in {last['epochs']:.1f} epochs, "
        f"acquisition {last['seconds_acquisition']:.1f} s"
    )


@dataclass(frozen=True)
class Summary:
    """The last round of the runs of one solver at one lengthscale: (mean, standard error) over seeds.

    ``improvement`` is (best − best of random search) / |best of random search|, in per cent; the errors are NaN for
    one seed.
    """

    solver: str
    lengthscale: float
    num_seeds: int
    best_noiseless: tuple[float, float]
    random_search: tuple[float, float]
    improvement: tuple[float, float]
    worst_residual: float
    seconds_solve: float
    seconds_acquisition: float


def summarise(records: Sequence[dict[str, Any]]) -> list[Summary]:
    """Summarise complete runs, in the order of their first appearance; seconds are means over rounds and seeds."""
    groups: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for record in records:
        if record["complete"]:
            settings = record["settings"]
            groups.setdefault((settings["solver"], settings["lengthscale"]), []).append(record)
    return [_summary(solver, lengthscale, group) for (solver, lengthscale), group in groups.items()]


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error, NaN for fewer than two values."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.fmean(values), error


def _summary(solver: str, lengthscale: float, records: list[dict[str, Any]]) -> Summary:
    best = [record["rounds"][-1]["best_noiseless"] for record in records]
    random_best = [record["random_search"]["rounds"][-1]["best_noiseless"] for record in records]
    rounds = [entry for record in records for entry in record["rounds"]]
    return Summary(
        solver=solver,
        lengthscale=lengthscale,
        num_seeds=len(records),
        best_noiseless=mean_and_error(best),
        random_search=mean_and_error(random_best),
        improvement=mean_and_error([100 * (b - r) / abs(r) for b, r in zip(best, random_best, strict=True)]),
        worst_residual=max(entry["residual"] for entry in rounds),
        seconds_solve=statistics.fmean(entry["seconds_solve"] for entry in rounds),
        seconds_acquisition=statistics.fmean(entry["seconds_acquisition"] for entry in rounds),
    )


@dataclass
class _Data:
    """Points with their noiseless and observed values, growing by a batch a round."""

    X: Tensor
    values: Tensor
    y: Tensor

    @classmethod
    def start(cls, target: GPPrior, X: Tensor, generator: torch.Generator) -> _Data:
        values = target(X)
        return cls(X, values, target.add_noise(values, generator))

    def add(self, target: GPPrior, X: Tensor, generator: torch.Generator) -> None:
        new = _Data.start(target, X, generator)
        self.X = torch.cat([self.X, new.X])
        self.values = torch.cat([self.values, new.values])
        self.y = torch.cat([self.y, new.y])

    def best(self) -> dict[str, float]:
        return {"best_noiseless": float(self.values.max()), "best_observed": float(self.y.max())}


def _generators(seed: int) -> dict[str, torch.Generator]:
    children = np.random.SeedSequence(seed).spawn(len(_STREAMS))
    seeds = [int(child.generate_state(1, np.uint64)[0] >> np.uint64(1)) for child in children]
    return {name: torch.Generator().manual_seed(state) for name, state in zip(_STREAMS, seeds, strict=True)}
