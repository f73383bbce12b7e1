"""A cell of the league: an optimiser on a problem, for a number of evaluations in batches.

Regret is what a noiseless value lies above the optimum; where the optimum is not known, as in
tuning, it is the value itself.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from benchmarks.league.base import Optimiser
from benchmarks.league.registry import OPTIMISERS, make_optimiser
from benchmarks.league.tasks import Task, make_task
from scalable_bo.experiments.cells import Cell, Status
from scalable_bo.experiments.records import Record, peak_memory_bytes, reset_peak_memory
from surrogates import checks


@dataclass(frozen=True)
class OptimiserCell(Cell[Task]):
    """One cell: an optimiser, a problem, and a seed.

    Args:
        problem: the name of a task, see ``make_task``.
        optimiser: one of ``OPTIMISERS``.
        q: points of a batch.
        budget: evaluations.
        seed: of the optimiser, the noise and a COCO function's instance.
        noise: standard deviation of what is observed, in units of the interquartile range of the
            problem's values.
    Raises:
        TypeError, ValueError: if there is no such optimiser, or a number is out of range.
    """

    experiment: ClassVar[str] = "optimisers"
    problem: str
    optimiser: str
    q: int
    budget: int
    seed: int
    noise: float = 0.0

    def __post_init__(self) -> None:
        checks.one_of("optimiser", self.optimiser, OPTIMISERS)
        checks.positive_int("q", self.q)
        checks.positive_int("budget", self.budget)
        checks.integer("seed", self.seed, 0)
        if not (math.isfinite(self.noise) and self.noise >= 0.0):
            raise ValueError(f"`noise` must be finite and at least 0, got {self.noise}.")

    @property
    def name(self) -> str:
        noise = f"_noise{self.noise:g}" if self.noise else ""
        return (
            f"optimisers_{self.problem}_{self.optimiser}_q{self.q}_n{self.budget}{noise}"
            f"_s{self.seed}"
        )

    @property
    def source(self) -> Hashable:
        return self.problem, self.seed

    def load(self, on_status: Status) -> Task:
        return make_task(self.problem, self.seed)

    def check_files(self) -> None:
        make_task(self.problem, self.seed)

    def run(self, data: Task, on_status: Status, state: Path | None) -> Iterator[Record]:
        sample = data.sample()
        scale = 0.0
        if self.noise:
            if sample is None:
                raise ValueError(f"`noise` must be 0 for {self.problem}, got {self.noise}.")
            low, high = sample.quantile(torch.tensor([0.25, 0.75], dtype=sample.dtype)).tolist()
            scale = self.noise * (high - low)
        device = torch.device(self.device)
        reset_peak_memory(device)
        run = _Run(data, self.budget, scale, torch.Generator().manual_seed(self.seed))
        failure = run.failure_of(self, on_status)
        optimum = data.optimum
        yield {
            "complete": failure is None,
            "failure": failure,
            "optimum": optimum,
            "range": None if sample is None or optimum is None else float(sample.max()) - optimum,
            **run.account(),
            "peak_memory_bytes": peak_memory_bytes(device),
        }

    def describe(self, record: Record) -> str:
        text = f"{self.optimiser} on {self.problem}, q {self.q}, seed {self.seed}: "
        if record["failure"] is not None:
            return f"{text}failed, {record['failure']}"
        regret = "cost" if record["optimum"] is None else "regret"
        return (
            f"{text}{regret} {record['regret']:.3g} after {self.budget},"
            f" {record['seconds_asking']:.1f} s of asking"
        )


class _Run:
    """One run of an optimiser.

    Args:
        task: what is minimised.
        budget: evaluations.
        scale: the standard deviation of the noise.
        generator: of the noise.
    """

    def __init__(self, task: Task, budget: int, scale: float, generator: torch.Generator) -> None:
        self._task = task
        self._budget = budget
        self._scale = scale
        self._generator = generator
        self._num_evaluated = 0
        self._best_observed = math.inf
        self._trace: list[list[float]] = []
        self._seconds: list[float] = []
        self._recommended = math.nan

    def failure_of(self, cell: OptimiserCell, on_status: Status) -> str | None:
        """Run to the end, and return what the optimiser raised instead, if it did: a league goes on
        without it.
        """
        try:
            optimiser = make_optimiser(cell.optimiser, self._task.space, cell.seed, cell.q)
            while self._num_evaluated < self._budget:
                self._step(optimiser, min(cell.q, self._budget - self._num_evaluated))
                on_status(f"{cell.name}: {self._num_evaluated}/{self._budget}")
            X = optimiser.recommend()[None]
            self._recommended = float(self._regrets(self._task.evaluate(X)))
        except Exception as error:
            return f"{type(error).__name__}: {error}"[:500]
        return None

    def account(self) -> dict[str, Any]:
        """Return the part of the record that came out of the run."""
        return {
            # (evaluations, regret of the best observed point) whenever that is another
            "trace": self._trace,
            "regret": self._trace[-1][1] if self._trace else None,
            "regret_recommended": self._recommended,
            # Processor seconds of a batch's choice, and of taking its values
            "seconds_ask": round(statistics.median(self._seconds), 4) if self._seconds else None,
            "seconds_longest_ask": round(max(self._seconds, default=0.0), 4),
            "seconds_asking": round(sum(self._seconds), 4),
        }

    def _step(self, optimiser: Optimiser, q: int) -> None:
        start = time.process_time()
        X = optimiser.ask(q)
        asked = time.process_time()
        values = self._task.evaluate(X)
        evaluated = time.process_time()
        noise = torch.randn(len(values), generator=self._generator, dtype=values.dtype)
        observed = values + self._scale * noise
        optimiser.tell(X, observed)
        self._seconds.append(asked - start + time.process_time() - evaluated)
        self._num_evaluated += len(X)
        best = int(observed.argmin())
        if float(observed[best]) < self._best_observed:
            self._best_observed = float(observed[best])
            regret = float(self._regrets(values[best]))
            self._trace.append([self._num_evaluated, regret])

    def _regrets(self, values: Tensor) -> Tensor:
        optimum = self._task.optimum
        return values if optimum is None else values - optimum
