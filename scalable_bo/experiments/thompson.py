"""Parallel Thompson sampling on a function drawn from the surrogate's own prior, with random search
beside.

Each round draws q posterior paths, maximises each, observes the target at the q maximisers and adds
them to the data; random search adds q uniform points to the same initial data. The hyperparameters
are fixed to the truth.

References:
    Lin et al. (2023), "Sampling from Gaussian Process Posteriors using Stochastic Gradient
    Descent", Section 4.2, A.3.
    Differs: the target's random features are not the surrogate's, unless ``share_features`` is set.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalable_bo.experiments.models import coordinate_kernel, matern_kernel
from scalable_bo.experiments.presets import ThompsonPreset
from scalable_bo.experiments.records import (
    describe_environment,
    peak_memory_bytes,
    reset_peak_memory,
)
from scalable_bo.experiments.resuming import RunState, load_state, require_same_settings, save_state
from scalable_bo.experiments.samplers import PathwiseSampler, Sampler, check_method
from scalable_bo.problems import GPPrior

# One independent random stream a purpose, so that every solver meets the same target, data and
# observation noise.
_STREAMS = (
    "target",
    "initial",
    "initial noise",
    "noise",
    "paths",
    "candidates",
    "random search",
    "random noise",
)


@dataclass(frozen=True)
class ThompsonRun:
    """One run: a preset with one solver (or ``svgp``), lengthscale and seed, on one device.

    Raises:
        ValueError: if the solver is unknown, or the lengthscale or the seed out of range.
    """

    preset: ThompsonPreset
    solver: str
    lengthscale: float
    seed: int
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_method(self.solver)
        if not (math.isfinite(self.lengthscale) and self.lengthscale > 0):
            raise ValueError(f"`lengthscale` must be positive and finite, got {self.lengthscale}.")
        if self.seed < 0:
            raise ValueError(f"`seed` must be at least 0, got {self.seed}.")

    @property
    def name(self) -> str:
        """A file name for the run's record, without its ending."""
        return f"thompson_{self.preset.name}_{self.solver}_l{self.lengthscale:g}_s{self.seed}"

    def settings(self) -> dict[str, Any]:
        """Return all that decides the result, as it stands in the record."""
        return {"preset": asdict(self.preset)} | {
            key: getattr(self, key) for key in ("solver", "lengthscale", "seed")
        }


def run_thompson(
    run: ThompsonRun,
    *,
    on_round: Callable[[dict[str, Any]], None] | None = None,
    on_status: Callable[[str], None] | None = None,
    sampler: Callable[..., Sampler] | None = None,
    state: Path | None = None,
) -> dict[str, Any]:
    """Run the benchmark once.

    With a file ``state``, an interrupted run goes on after its last finished round, with the same
    target, data and random numbers. On the same machine the results are those of an uninterrupted
    run, to the last bit for the iterative solvers and ``svgp``; a Cholesky factor is computed anew
    in place of being appended to, which changes the last digits.

    Args:
        run: what to run.
        on_round: called after each round with the record so far (``complete`` is false until the
            last).
        on_status: called with a few words on what is happening now.
        sampler: what proposes the batches, made like ``PathwiseSampler``, which is the default.
        state: file of the state after the last finished round, written before ``on_round`` is
            called and removed at the end; a damaged one is passed over with a warning. ``None``
            keeps none.
    Returns:
        The record: ``experiment``, ``complete``, ``settings``, ``environment``; ``initial``, the
            best of the initial
        data; ``rounds``, one dict a round; ``random_search``, likewise. Of each round:
        ``num_points`` after it, ``best_noiseless`` (the target's value) and ``best_observed`` so
        far, ``residual`` (the worst relative residual of the solve), ``epochs``, the solver's
        ``note``, ``seconds_solve`` (model, paths, their prior values and the solve),
        ``seconds_acquisition`` (their maximisation) and ``peak_memory_bytes``. ``residual`` and
        ``epochs`` are ``None`` for ``svgp``. A run
        that was interrupted also has ``resumed``: after which round, and in which ``environment``
            it went on.
    Raises:
        ValueError: if ``state`` is of a run with other settings.
    """
    preset = run.preset
    device = torch.device(run.device)
    dtype = getattr(torch, run.preset.dtype)
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
        return torch.rand(num_points, preset.dim, generator=generators[stream], dtype=dtype).to(
            device
        )

    thompson = _Data.start(
        target, uniform(preset.num_initial, "initial"), generators["initial noise"]
    )
    random_search = replace(thompson)
    rounds: list[dict[str, Any]] = []
    random_rounds: list[dict[str, Any]] = []
    record: dict[str, Any] = {
        "experiment": "thompson",
        "complete": False,
        "settings": run.settings(),
        "environment": describe_environment(device),
        "initial": thompson.best() | {"num_points": len(thompson.X)},
        "rounds": rounds,
        "random_search": {"rounds": random_rounds},
    }
    propose = (sampler or PathwiseSampler)(
        preset, run.solver, target, kernel, generators, on_status
    )
    if state is not None and (saved := load_state(state)) is not None:
        require_same_settings(run.name, saved.record, run.settings())
        rounds += saved.record["rounds"]
        random_rounds += saved.record["random_search"]["rounds"]
        resumed = {"after_round": len(rounds), "environment": record["environment"]}
        record |= {
            "environment": saved.record["environment"],
            "resumed": [*saved.record.get("resumed", []), resumed],
        }
        _restore(saved.tensors, thompson, random_search, propose, generators)
    for number in range(len(rounds) + 1, preset.num_rounds + 1):
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
        if state is not None and not record["complete"]:
            save_state(
                state,
                RunState(
                    record,
                    _carried(preset.num_initial, thompson, random_search, propose, generators),
                ),
            )
        if on_round is not None:
            on_round(record)
    if state is not None:
        state.unlink(missing_ok=True)
    return record


def describe_round(record: dict[str, Any]) -> str:
    """Say in one line how the last round of a record went."""
    settings = record["settings"]
    last = record["rounds"][-1]
    before = record["rounds"][-2] if len(record["rounds"]) > 1 else record["initial"]
    residual = "" if last["residual"] is None else f" to residual {last['residual']:.1e}"
    epochs = "" if last["epochs"] is None else f" in {last['epochs']:.1f} epochs"
    resumed = any(entry["after_round"] == last["round"] - 1 for entry in record.get("resumed", ()))
    return (
        f"{settings['solver']} lengthscale {settings['lengthscale']:g} seed {settings['seed']}"
        f" round {last['round']}/{settings['preset']['num_rounds']}: n {last['num_points']}, best"
        f" {last['best_noiseless']:.4f} (gain"
        f" {last['best_noiseless'] - before['best_noiseless']:.4f}, random search"
        f" {record['random_search']['rounds'][-1]['best_noiseless']:.4f}), solve"
        f" {last['seconds_solve']:.1f} s{residual}{epochs}, acquisition"
        f" {last['seconds_acquisition']:.1f} s{' (resumed)' if resumed else ''}"
    )


@dataclass(frozen=True)
class Summary:
    """The last round of the runs of one solver at one lengthscale: (mean, standard error) over
    seeds.

    ``improvement`` is (best − best of random search) / |best of random search|, in per cent; the
    errors are NaN for one seed. ``worst_residual`` is ``None`` where no round has one.
    """

    solver: str
    lengthscale: float
    num_seeds: int
    best_noiseless: tuple[float, float]
    random_search: tuple[float, float]
    improvement: tuple[float, float]
    worst_residual: float | None
    seconds_solve: float
    seconds_acquisition: float


def summarise(records: Sequence[dict[str, Any]]) -> list[Summary]:
    """Summarise complete runs, in the order of their first appearance;
    seconds are means over rounds and seeds.
    """
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
        improvement=mean_and_error(
            [100 * (b - r) / abs(r) for b, r in zip(best, random_best, strict=True)]
        ),
        worst_residual=max(
            (entry["residual"] for entry in rounds if entry["residual"] is not None), default=None
        ),
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
        self.extend(vars(_Data.start(target, X, generator)))

    def extend(self, new: dict[str, Tensor]) -> None:
        """Append rows by the name of their attribute."""
        for name, rows in new.items():
            setattr(self, name, torch.cat([getattr(self, name), rows.to(self.X)]))

    def best(self) -> dict[str, float]:
        return {"best_noiseless": float(self.values.max()), "best_observed": float(self.y.max())}


def _generators(seed: int) -> dict[str, torch.Generator]:
    children = np.random.SeedSequence(seed).spawn(len(_STREAMS))
    seeds = [int(child.generate_state(1, np.uint64)[0] >> np.uint64(1)) for child in children]
    return {
        name: torch.Generator().manual_seed(state)
        for name, state in zip(_STREAMS, seeds, strict=True)
    }


def _carried(
    num_initial: int,
    thompson: _Data,
    random_search: _Data,
    sampler: Sampler,
    generators: dict[str, torch.Generator],
) -> dict[str, Tensor]:
    """Return what a round takes over from the one before, but for what the seed decides:
    target and initial data.
    """
    tensors = {f"generator {name}": generator.get_state() for name, generator in generators.items()}
    for owner, data in (("thompson", thompson), ("random search", random_search)):
        tensors |= {f"{owner} {name}": rows[num_initial:] for name, rows in vars(data).items()}
    return (
        tensors
        if sampler.mean_weights is None
        else tensors | {"mean weights": sampler.mean_weights}
    )


def _restore(
    tensors: dict[str, Tensor],
    thompson: _Data,
    random_search: _Data,
    sampler: Sampler,
    generators: dict[str, torch.Generator],
) -> None:
    """Undo ``_carried``."""
    for name, generator in generators.items():
        generator.set_state(tensors[f"generator {name}"])
    for owner, data in (("thompson", thompson), ("random search", random_search)):
        data.extend({name: tensors[f"{owner} {name}"] for name in vars(data)})
    if "mean weights" in tensors:
        sampler.mean_weights = tensors["mean weights"].to(thompson.X)
