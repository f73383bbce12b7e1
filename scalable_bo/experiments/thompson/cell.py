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

import hashlib
import json
import math
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from acquisition import ParallelThompsonSampling
from acquisition.candidates import sampling_weights
from scalable_bo.evaluation.progress import describe_search, describe_solve
from scalable_bo.experiments.cells import Cell, Status, files, remove_state, solves_beside
from scalable_bo.experiments.formats import exact
from scalable_bo.experiments.models import coordinate_kernel, fixed_model, matern_kernel
from scalable_bo.experiments.presets import ThompsonPreset
from scalable_bo.experiments.problems import GPPrior
from scalable_bo.experiments.records import (
    Record,
    Stopwatch,
    describe_environment,
    differences,
    existing_record,
    peak_memory_bytes,
    reset_peak_memory,
)
from scalable_bo.experiments.solvers import from_outside, name_of, solver_for
from scalable_bo.experiments.torchrun import num_processes
from surrogates import Checkpoint, PathwiseGP, PriorPaths, Solver, UnsolvedWarning, checks
from surrogates.atomic import write_atomically
from surrogates.callers import warn
from surrogates.models.variational_gp import VariationalGP
from surrogates.solvers.registry import SOLVERS

SVGP = "svgp"
STATE_FORMAT = 1
# One independent random stream a purpose, so that every solver meets the same target, data and
# observation noise.
_STREAMS = (
    *("target", "initial", "initial noise", "noise", "paths", "candidates"),
    *("random search", "random noise"),
)


@dataclass(frozen=True)
class ThompsonCell(Cell[None]):
    """One run: a preset with one solver (or ``svgp``), lengthscale and seed.

    An interrupted run goes on after its last finished round, with the same target, data and random
    numbers, and within a round's solve from its last checkpoint, of which there is one in ten
    minutes, or from its end. On the same machine the results are those of an uninterrupted run, to
    the last bit.

    Args:
        solver: of the registry, or ``svgp``; or one from outside, an object or "module:Class", with
            its own budget in place of the preset's.
        lengthscale: of target and surrogate.
    Raises:
        ValueError: if the solver is unknown, or the lengthscale or the seed out of range.
    """

    experiment: ClassVar[str] = "thompson"
    steps: ClassVar[str | None] = "rounds"
    preset: ThompsonPreset
    solver: str | Solver
    lengthscale: float
    seed: int

    def __post_init__(self) -> None:
        if from_outside(self.solver) is None:
            checks.one_of("solver", self.solver, (*SOLVERS, SVGP))
        if not (math.isfinite(self.lengthscale) and self.lengthscale > 0):
            raise ValueError(f"`lengthscale` must be positive and finite, got {self.lengthscale}.")
        checks.fields(self, ["seed"], checks.integer, 0)

    @property
    def name(self) -> str:
        solver = name_of(self.solver).replace(":", ".")
        return f"thompson_{self.preset.name}_{solver}_l{exact(self.lengthscale)}_s{self.seed}"

    @property
    def num_steps(self) -> int:
        return self.preset.num_rounds

    def settings(self) -> dict[str, Any]:
        return {"preset": asdict(self.preset)} | {
            "solver": name_of(self.solver),
            "lengthscale": self.lengthscale,
            "seed": self.seed,
        }

    def run(self, data: None, on_status: Status, state: Path) -> Iterator[Record]:
        """Yield the record after each round.

        It has ``complete``; ``initial``, the best of the initial data; ``rounds``, one dict a
        round; ``random_search``, likewise. Of each round: ``num_points`` after it,
        ``best_noiseless`` (the target's value) and ``best_observed`` so far, ``residual`` (the
        worst relative residual of the solve), ``error`` (the worst one of the mean and of a path,
        in posterior standard deviations), ``epochs``, the solver's ``note``, ``seconds_solve``
        (model, paths, their prior values and the solve), ``seconds_acquisition`` (their
        maximisation) and ``peak_memory_bytes``. ``residual`` and ``epochs`` are ``None`` for
        ``svgp``. A run that was interrupted also has ``resumed``: after which round, and in which
        ``environment`` it went on.

        Args:
            on_status: called with a few words on what is happening now.
            state: file of the state after the last finished round, with a folder of the round's
                solve beside it, both removed at the end; a damaged one is ignored with a warning.
        Raises:
            ValueError: if ``state`` is of a run with other settings.
        """
        checkpoint = Checkpoint(solves_beside(state), keep_solution=True)
        rounds = ThompsonRounds(self, on_status, checkpoint)
        record: Record = {
            "complete": False,
            "environment": describe_environment(rounds.device) | {"processes": num_processes()},
            "initial": rounds.thompson.best() | {"num_points": self.preset.num_initial},
            "rounds": [],
            "random_search": {"rounds": []},
        }
        if (saved := load_state(state)) is not None:
            found, tensors = saved
            require_settings_of_run(self.name, found, self.settings())
            resumed = {"after_round": len(found["rounds"]), "environment": record["environment"]}
            record = found | {"resumed": [*found.get("resumed", []), resumed]}
            rounds.restore(tensors)
        for number in range(len(record["rounds"]) + 1, self.preset.num_rounds + 1):
            own, random_search = rounds.next(number)
            record["rounds"].append(own)
            record["random_search"]["rounds"].append(random_search)
            record["complete"] = number == self.preset.num_rounds
            if not record["complete"]:
                about = {"settings": self.settings()}
                save_state(state, about | record, rounds.carried())
                shutil.rmtree(solves_beside(state), ignore_errors=True)
            yield record
        remove_state(state)

    def describe(self, record: Record) -> str:
        settings = record["settings"]
        last = record["rounds"][-1]
        before = record["rounds"][-2] if len(record["rounds"]) > 1 else record["initial"]
        residual = "" if last["residual"] is None else f" to residual {last['residual']:.1e}"
        epochs = "" if last["epochs"] is None else f" in {last['epochs']:.1f} epochs"
        resumed = any(
            entry["after_round"] == last["round"] - 1 for entry in record.get("resumed", ())
        )
        return (
            f"{settings['solver']} lengthscale {exact(settings['lengthscale'])}"
            f" seed {settings['seed']} round {last['round']}/{settings['preset']['num_rounds']}:"
            f" n {last['num_points']}, best {last['best_noiseless']:.4f} (gain"
            f" {last['best_noiseless'] - before['best_noiseless']:.4f}, random search"
            f" {record['random_search']['rounds'][-1]['best_noiseless']:.4f}), solve"
            f" {last['seconds_solve']:.1f} s{residual}{epochs}, acquisition"
            f" {last['seconds_acquisition']:.1f} s{' (resumed)' if resumed else ''}"
        )


def check_settings(cells: Sequence[Cell[Any]], folder: Path) -> None:
    """Require that what the folder has of these runs, complete or not, has the same settings; a
    ValueError names the first that has others, and what differs.
    """
    for cell in cells:
        path, state = files(cell, folder)
        saved = load_state(state)
        for found in (existing_record(path), None if saved is None else saved[0]):
            if found is not None:
                require_settings_of_run(cell.name, found, cell.settings())


class ThompsonRounds:
    """The rounds of a run: its target, its data and those of random search, and its streams.

    The mean's weights are carried over, the paths are not. The method ``svgp`` places its inducing
    points anew each round and carries nothing over; it takes the variational posterior in closed
    form, the optimum for the fixed hyperparameters that the published 20 000 Adam steps approach.
    """

    def __init__(self, cell: ThompsonCell, on_status: Status, checkpoint: Checkpoint) -> None:
        preset = cell.preset
        self.preset = preset
        self.device = torch.device(cell.device)
        self.dtype = getattr(torch, preset.dtype)
        children = np.random.SeedSequence(cell.seed).spawn(len(_STREAMS))
        seeds = [int(child.generate_state(1, np.uint64)[0] >> np.uint64(1)) for child in children]
        self.generators = {
            name: torch.Generator().manual_seed(seed)
            for name, seed in zip(_STREAMS, seeds, strict=True)
        }
        kernel = matern_kernel(cell.lengthscale, preset.outputscale, preset.smoothness)
        self.kernel = kernel = kernel.to(self.device, self.dtype)
        self.solver = cell.solver
        self.on_status = on_status
        self.checkpoint = checkpoint
        self.mean_weights: Tensor | None = None
        self.target = GPPrior(
            coordinate_kernel(kernel, preset.dim) if preset.coordinate_features else kernel,
            preset.dim,
            noise=preset.noise,
            num_features=preset.target_features,
            generator=self.generators["target"],
            dtype=self.dtype,
            device=self.device,
        )
        X = self._uniform(preset.num_initial, "initial")
        self.thompson = _Observed.at(X, self.target, self.generators["initial noise"])
        self.random_search = replace(self.thompson)

    def next(self, number: int) -> tuple[Record, Record]:
        """Return what Thompson sampling and random search came to in their next round."""
        reset_peak_memory(self.device)
        batch, account = self.propose(self.thompson.X, self.thompson.y, number)
        uniform = self._uniform(self.preset.q, "random search")
        self.thompson.extend(vars(_Observed.at(batch, self.target, self.generators["noise"])))
        other = _Observed.at(uniform, self.target, self.generators["random noise"])
        self.random_search.extend(vars(other))
        own = {
            "round": number,
            "num_points": len(self.thompson.X),
            **self.thompson.best(),
            **account,
            "peak_memory_bytes": peak_memory_bytes(self.device),
        }
        return own, {"round": number, **self.random_search.best()}

    def propose(self, X: Tensor, y: Tensor, number: int) -> tuple[Tensor, Record]:
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
        account: Record = dict.fromkeys(("residual", "error", "epochs"))
        seconds = solve.seconds
        if isinstance(model, VariationalGP):
            chosen = f"{len(model.inducing_points)} inducing points"
            account["note"] = f"{chosen}, closed-form optimum in place of steps of Adam"
        else:
            self.mean_weights = paths.parts[0].mean_weights
            solution = model.solution
            assert solution is not None  # paths() has just made it
            account["residual"] = solution.residual.max().item()
            account["error"] = None if solution.error is None else solution.error.max().item()
            account |= {"epochs": solution.epochs, "note": solution.note}
            # A solve that went on from a checkpoint counts what it had taken before
            seconds = max(seconds, solution.seconds)
        times = {"seconds_solve": seconds, "seconds_acquisition": acquisition.seconds}
        return batch, account | times

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

    def carried(self) -> dict[str, Tensor]:
        """Return what a round takes over, but for what the seed decides: target and first data."""
        tensors = {f"generator {name}": one.get_state() for name, one in self.generators.items()}
        for owner, data in self._data():
            new = {name: rows[self.preset.num_initial :] for name, rows in vars(data).items()}
            tensors |= {f"{owner} {name}": rows for name, rows in new.items()}
        if self.mean_weights is not None:
            tensors["mean weights"] = self.mean_weights
        return tensors

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Undo ``carried``."""
        for name, generator in self.generators.items():
            generator.set_state(tensors[f"generator {name}"])
        for owner, data in self._data():
            data.extend({name: tensors[f"{owner} {name}"] for name in vars(data)})
        if "mean weights" in tensors:
            self.mean_weights = tensors["mean weights"].to(self.thompson.X)

    def _data(self) -> tuple[tuple[str, _Observed], ...]:
        return ("thompson", self.thompson), ("random search", self.random_search)

    def _uniform(self, num_points: int, stream: str) -> Tensor:
        shape = (num_points, self.preset.dim)
        return torch.rand(shape, generator=self.generators[stream], dtype=self.dtype).to(
            self.device
        )


@dataclass
class _Observed:
    """Points with their noiseless and observed values, growing by a batch a round."""

    X: Tensor
    values: Tensor
    y: Tensor

    @classmethod
    def at(cls, X: Tensor, target: GPPrior, generator: torch.Generator) -> _Observed:
        values = target(X)
        return cls(X, values, target.add_noise(values, generator))

    def extend(self, new: dict[str, Tensor]) -> None:
        for name, rows in new.items():
            setattr(self, name, torch.cat([getattr(self, name), rows.to(self.X)]))

    def best(self) -> dict[str, float]:
        return {"best_noiseless": float(self.values.max()), "best_observed": float(self.y.max())}


def published_weights(y: Tensor) -> Tensor:
    """Return probabilities (n,) ∝ ``y + min(y)``, as published; what is then negative is 0."""
    weights = y + y.min()
    weights = (weights / weights.sum()).clamp_min(0.0)
    return weights / weights.sum()


def draw_seed(generator: torch.Generator) -> int:
    """Draw a seed for a component that makes its own generator."""
    return int(torch.randint(2**62, (), generator=generator))


def save_state(path: Path, record: Record, tensors: Mapping[str, Tensor]) -> None:
    """Replace ``path`` by the state of a run after a round, its record and tensors by name: after a
    crash at any moment there is the former one or this, whole. The header of the safetensors file
    carries the record as JSON and a digest of it all.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record)
    tensors = {n: tensor.detach().cpu().clone().contiguous() for n, tensor in tensors.items()}
    about = {"format": str(STATE_FORMAT), "record": text, "digest": _digest(text, tensors)}
    write_atomically(path, save(tensors, metadata=about))


def load_state(path: Path) -> tuple[Record, dict[str, Tensor]] | None:
    """Return the record and tensors at ``path``; ``None`` if absent or, with a warning, damaged."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dict
        if about["format"] != str(STATE_FORMAT):
            raise ValueError(f"format {about['format']}, not {STATE_FORMAT}")
        if about["digest"] != _digest(about["record"], tensors):
            raise ValueError("its digest is another")
        return json.loads(about["record"]), tensors
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        warn(f"The state {path} is damaged and was passed over ({error}). The run starts again.")
        return None


def require_settings_of_run(name: str, found: dict[str, Any], settings: dict[str, Any]) -> None:
    """Require that the record ``found`` of the run ``name`` has these settings; else ValueError."""
    if changes := differences(found.get("settings", {}), settings):
        raise ValueError(
            f"`out` has a record of {name} with other settings: {', '.join(changes)}. It is neither"
            " resumed nor replaced unasked. Choose another folder, or add --rerun to begin again."
        )


def _digest(text: str, tensors: dict[str, Tensor]) -> str:
    return hashlib.sha256(text.encode() + save(tensors)).hexdigest()
