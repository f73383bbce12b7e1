"""A cell of the league: an optimiser on a problem, for a number of evaluations in batches.

Regret is what a noiseless value lies above the optimum; where the optimum is not known, as in
tuning, it is the value itself. Of several objectives it is the hypervolume of the true front that
the points do not cover.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch

from benchmarks.league.registry import FOR_ONE, FRONT_OPTIMISERS, make_optimiser
from benchmarks.league.tasks import FRONTS, Task, make_task
from scalable_bo.experiments.cells import Cell, Status
from scalable_bo.experiments.formats import number
from scalable_bo.experiments.records import Record, peak_memory_bytes, reset_peak_memory
from surrogates import checks


@dataclass(frozen=True)
class OptimiserCell(Cell[Task]):
    """One cell: an optimiser, a problem, and a seed.

    Args:
        problem: the name of a task, see ``make_task``.
        q: points of a batch.
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
        known = FRONT_OPTIMISERS if self.problem in FRONTS else FOR_ONE
        checks.one_of("optimiser", self.optimiser, known)
        checks.fields(self, ["q", "budget"], checks.positive_int)
        checks.fields(self, ["seed"], checks.integer, 0)
        if not (math.isfinite(self.noise) and self.noise >= 0.0):
            raise ValueError(f"`noise` must be finite and at least 0, got {self.noise}.")
        if self.noise and self.problem.startswith(("front-", "tune-")):
            raise ValueError(f"`noise` must be 0 for {self.problem}, got {self.noise}.")

    @property
    def name(self) -> str:
        noise = f"_noise{self.noise:g}" if self.noise else ""
        sizes = f"q{self.q}_n{self.budget}{noise}_s{self.seed}"
        return f"optimisers_{self.problem}_{self.optimiser}_{sizes}"

    @property
    def source(self) -> Hashable:
        return self.problem, self.seed

    def load(self, on_status: Status) -> Task:
        return make_task(self.problem, self.seed)

    def check_files(self) -> None:
        make_task(self.problem, self.seed)

    def run(self, data: Task, on_status: Status, state: Path) -> Iterator[Record]:
        sample = data.sample()
        scale = 0.0
        if self.noise:
            assert sample is not None
            low, high = sample.quantile(torch.tensor([0.25, 0.75], dtype=sample.dtype)).tolist()
            scale = self.noise * (high - low)
        device = torch.device(self.device)
        reset_peak_memory(device)
        run = _Run()
        failure = None
        try:
            self._optimise(run, data, scale, on_status)
        except Exception as error:  # a league goes on without it
            failure = f"{type(error).__name__}: {error}"[:500]
        optimum = data.optimum
        yield {
            "complete": failure is None,
            "failure": failure,
            "optimum": optimum,
            "range": data.spread(sample),
            # (evaluations, regret of the best observed point) whenever that is another
            "trace": run.trace,
            "regret": run.trace[-1][1] if run.trace else None,
            "regret_recommended": run.recommended,
            # The numbers of the evaluations that failed, from 1
            "failed": run.failed,
            # Processor seconds of a batch's choice, and of taking its values
            "seconds_ask": round(statistics.median(run.seconds), 4) if run.seconds else None,
            "seconds_longest_ask": round(max(run.seconds, default=0.0), 4),
            "seconds_asking": round(sum(run.seconds), 4),
            "peak_memory_bytes": peak_memory_bytes(device),
        }

    def _optimise(self, run: _Run, task: Task, scale: float, on_status: Status) -> None:
        """Run the optimiser to its end, with noise of standard deviation ``scale``."""
        generator = torch.Generator().manual_seed(self.seed)
        optimiser = make_optimiser(
            self.optimiser, task.space, self.seed, self.q, task.num_objectives
        )
        zero = task.optimum or 0.0
        exact = optimiser.values
        best = math.inf
        while (done := len(optimiser.values)) < self.budget:
            start = time.process_time()
            X = optimiser.ask(min(self.q, self.budget - done))
            asked = time.process_time()
            values = task.evaluate(X)
            evaluated = time.process_time()
            noise = torch.randn(values.shape, generator=generator, dtype=values.dtype)
            observed = values + scale * noise
            optimiser.tell(X, observed)
            run.seconds.append(asked - start + time.process_time() - evaluated)
            run.failed += [done + row + 1 for row, bad in enumerate(values.isnan()) if bad.any()]
            exact = torch.cat([exact, values])
            if (loss := task.loss(optimiser.values)) < best:
                best = loss
                run.trace.append([done + len(X), task.loss(exact[optimiser.best]) - zero])
            on_status(f"{self.name}: {done + len(X)}/{self.budget}")
        run.recommended = task.loss(task.evaluate(optimiser.recommend())) - zero

    def describe(self, record: Record) -> str:
        text = f"{self.optimiser} on {self.problem}, q {self.q}, seed {self.seed}: "
        if record["failure"] is not None:
            return f"{text}failed, {record['failure']}"
        regret = "cost" if record["optimum"] is None else "regret"
        return (
            f"{text}{regret} {number(record['regret'], '.3g')} after {self.budget},"
            f" {record['seconds_asking']:.1f} s of asking"
        )


@dataclass
class _Run:
    """What a run has come to: also where its optimiser has failed."""

    trace: list[list[float]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    recommended: float = math.nan
