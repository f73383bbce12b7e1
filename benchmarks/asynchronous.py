"""What workers gain that do not wait for one another, and what their points lose, by a clock of the
simulation.

    python benchmarks/asynchronous.py --out benchmarks/results/asynchronous.json

64 workers evaluate a function; evaluations take 1 to 10 s, uniformly by the logarithm. `rounds`
asks for as many points as there are workers, and waits for the last of them. `asynchronous` gives a
worker that comes free a point at once, by the rule of ``optimize(asynchronous=True)``. An ask takes
``--ask`` seconds of the clock in both. For each seed: the seconds until all values are there, the
regret by them, and how many values an asynchronous run has in the time of the rounds, which is
counted with points of the design, since values do not change it.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from botorch.test_functions.synthetic import Hartmann, Levy, SyntheticTestFunction

from scalable_bo.experiments.scripts import print_rows, script_parser, write_benchmark
from scalable_bo.space.space import Float, Space
from scalable_bo.storage.rounds import Batch
from scalable_bo.study.asynchronous import Feed
from scalable_bo.study.study import Study

PROBLEMS: dict[str, Callable[[], SyntheticTestFunction]] = {
    "hartmann-6": lambda: Hartmann(dim=6),
    "levy-8": lambda: Levy(dim=8),
}


WAYS = ("rounds", "asynchronous")


@dataclass(frozen=True)
class Run:
    """What came of a run.

    Attributes:
        seconds: of the clock, at which each value was told, in order.
        regret: of the best value.
    """

    seconds: list[float]
    regret: float


class Clock:
    """Events in the order of their time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Let something happen then."""
        self._number += 1
        heapq.heappush(self._events, (self.now + seconds, self._number, event))

    def go_on(self) -> bool:
        """Let the next event happen; return whether there was one."""
        if not self._events:
            return False
        self.now, _, event = heapq.heappop(self._events)
        event()
        return True


class Simulation:
    """A study whose points are evaluated by the clock.

    Args:
        problem: to minimise.
        seed: of the study and of the durations.
        num_workers: evaluations at the same time.
        seconds_of_ask: by the clock.
        num_initial: points of the design; the study's own choice if ``None``.
        device: of the study's surrogate.
    """

    def __init__(
        self,
        problem: SyntheticTestFunction,
        seed: int,
        num_workers: int,
        seconds_of_ask: float,
        num_initial: int | None = None,
        device: str = "cpu",
    ) -> None:
        self._problem = problem
        self._num_workers = num_workers
        self._seconds_of_ask = seconds_of_ask
        self._clock = Clock()
        self._random = random.Random(seed)
        self._num_out = 0
        self._told: list[float] = []
        bounds = torch.as_tensor(problem.bounds).T.tolist()
        space = Space(**{f"x{k}": Float(low, high) for k, (low, high) in enumerate(bounds)})
        self._study = Study(
            space, maximize=False, seed=seed, num_initial=num_initial, device=device
        )

    def in_rounds(self, budget: int) -> Run:
        """Evaluate so many points, as many at a time as there are workers."""
        for _ in range(budget // self._num_workers):
            batch = self._study.ask(self._num_workers)
            self._clock.now += self._seconds_of_ask
            for id, params in zip(batch.ids, batch.params, strict=True):
                self._evaluate(id, params)
            while self._clock.go_on():
                pass
        return self._found()

    def asynchronously(self, budget: int, batch: int) -> Run:
        """Evaluate so many points, a new one on each worker that comes free; asks are for a batch
        at least.
        """
        feed = Feed(
            self._study.ask,
            {},
            self._num_workers,
            batch,
            budget,
            begin=self._begin_ask,
            clock=lambda: self._clock.now,
        )
        while (points := feed.take(self._num_out)) is not None:
            for id, params in points.items():
                self._evaluate(id, params)
            num_told = len(self._told)
            if not self._clock.go_on() and not points:
                break
            feed.count(len(self._told) - num_told)
        while self._clock.go_on():
            pass
        return self._found()

    def _begin_ask(self, ask: Callable[[], Batch]) -> Future[Batch]:
        future: Future[Batch] = Future()
        self._clock.after(self._seconds_of_ask, partial(future.set_result, ask()))
        return future

    def _evaluate(self, id: int, params: dict[str, Any]) -> None:
        self._num_out += 1
        x = torch.tensor([list(params.values())], dtype=torch.float64)
        value = self._problem.evaluate_true(x).item()
        self._clock.after(10.0 ** self._random.random(), partial(self._end, id, value))

    def _end(self, id: int, value: float) -> None:
        self._num_out -= 1
        self._study.tell([id], [value])
        self._told.append(self._clock.now)

    def _found(self) -> Run:
        return Run(self._told, self._study.best_value - self._problem.optimal_value)


def compare(name: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what came of both ways by one seed."""
    problem = PROBLEMS[name]().to(torch.float64)
    budget = arguments.evaluations
    settings = problem, seed, arguments.workers, arguments.ask
    device = arguments.device
    rounds = Simulation(*settings, device=device).in_rounds(budget)
    asynchronous = Simulation(*settings, device=device).asynchronously(budget, arguments.batch)
    plenty = Simulation(*settings, num_initial=10**9).asynchronously(5 * budget, arguments.batch)
    end = rounds.seconds[-1]
    found = {
        "problem": name,
        "seed": seed,
        "seconds": {"rounds": end, "asynchronous": asynchronous.seconds[-1]},
        "values_in_the_time_of_rounds": sum(seconds <= end for seconds in plenty.seconds),
        "regret": {"rounds": rounds.regret, "asynchronous": asynchronous.regret},
    }
    print(found, file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Compare both ways, print a table and write a record, after each seed."""
    parser = script_parser(__doc__)
    parser.add_argument("--problems", default=",".join(PROBLEMS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--evaluations", type=int, default=384, help="a multiple of the workers")
    parser.add_argument("--batch", type=int, default=32, help="the least of an asynchronous ask")
    parser.add_argument("--ask", type=float, default=0.1, help="seconds of an ask, by the clock")
    parser.add_argument(
        "--device",
        default="cpu",
        help="of the surrogates; seconds are the simulation's, and do not depend on it",
    )
    arguments = parser.parse_args()
    settings = {name: value for name, value in vars(arguments).items() if name != "out"}
    runs: list[dict[str, Any]] = []
    names = arguments.problems.split(",")
    for name in names:
        for seed in range(arguments.seeds):
            runs.append(compare(name, seed, arguments))
            write_benchmark(
                arguments.out, "asynchronous", device=arguments.device, settings=settings, runs=runs
            )
    print_rows(
        f"{arguments.workers} workers, {arguments.evaluations} values, {arguments.seeds} seeds",
        ("problem", "values in the same time", *(f"regret, {way}" for way in WAYS)),
        [_summary(name, [run for run in runs if run["problem"] == name]) for name in names],
    )


def _summary(name: str, runs: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return a line of the table: means over seeds and their standard errors."""
    counts = [run["values_in_the_time_of_rounds"] for run in runs]
    return name, _mean(counts), *(_mean([run["regret"][way] for run in runs]) for way in WAYS)


def _mean(values: list[float]) -> str:
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{statistics.mean(values):.3g} ± {error:.2g}"


if __name__ == "__main__":
    main()
