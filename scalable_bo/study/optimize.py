"""The loops of ``Study.optimize``: ask, evaluate, tell, report, in rounds or without waiting."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from scalable_bo.evaluation.evaluator import Evaluation, Evaluator, LateError, call, timed
from scalable_bo.evaluation.executors import by_threads, threads_beside
from scalable_bo.evaluation.external import Command
from scalable_bo.evaluation.failures import FailureLimit
from scalable_bo.evaluation.interruption import Interruption
from scalable_bo.evaluation.progress import RoundProgress, peak_of_process, reset_peak_of_process
from scalable_bo.space.quoting import quote
from scalable_bo.storage.points import EachPoint
from scalable_bo.storage.rounds import AskReport, Batch, Round
from scalable_bo.storage.rows import read_told
from scalable_bo.study.asynchronous import Feed
from scalable_bo.study.design import NotEnoughLeftError
from surrogates import checks

NO_ASK = "no ask in this round"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Run:
    """One call of ``Study.optimize``, whose arguments have the same names."""

    study: Any  # a ``Study``, whose module imports this one
    objective: Callable[..., Any] | Command
    rounds: int
    batch: int
    executor: Executor | Callable[[], Executor] | None = None
    timeout: float | None = None
    max_failures: int | None = None
    retry: str | None = None
    vectorized: bool = False
    callbacks: Sequence[Callable[[Any, Round], None] | EachPoint] = ()
    progress: bool = True
    asynchronous: bool | int = False
    seconds: float | None = None

    def __post_init__(self) -> None:
        _check(self)

    def __call__(self) -> None:
        """Run it; raise KeyboardInterrupt, if that was asked for, once what ran has been told."""
        with (
            self.study.optimizing(self.rounds * self.batch),
            RoundProgress(self.rounds, enabled=self.progress) as bar,
        ):
            loop = _Loop(self, bar)
            with loop.evaluator:
                if self.asynchronous:
                    loop.run_without_waiting()
                else:
                    loop.run_rounds()


class _Loop:
    def __init__(self, run: Run, bar: RoundProgress) -> None:
        self._run = run
        self._study = run.study
        self._bar = bar
        self._deadline = time.monotonic() + (math.inf if run.seconds is None else run.seconds)
        self._interruption = Interruption()
        self._limit = FailureLimit(run.max_failures, run.batch)
        evaluate: Callable[..., Evaluation]
        if isinstance(run.objective, Command):
            evaluate, stop = run.objective.evaluate, run.objective.stop
        else:
            evaluate, stop = partial(call, run.objective), None
        self.evaluator = Evaluator(
            partial(timed, evaluate, run.timeout, outcomes=run.study.outcomes),
            run.executor,
            run.timeout,
            self._is_over,
            stop,
        )
        self._first = self._study.num_asks + 1
        self._last = self._first + run.rounds - 1
        self._to_retry: set[int] = set()  # that have failed once
        self._failed = 0  # in this round
        self._begin_round()

    def run_rounds(self) -> None:
        run = self._run
        work = self._evaluate_together if run.vectorized else self._evaluate
        if (left := self._study.unfinished()).ids:
            work(left, f"before round {self._first}")
        for number in range(self._first, self._last + 1):
            if self._is_over():
                return
            self._begin_round()
            what = f"round {number}"
            q, points = run.batch, None
            while points is None:
                self._say(what, f"asking for a batch of {q}")
                try:
                    points = self._study.ask(q, callback=partial(self._say, what))
                except NotEnoughLeftError as error:
                    if not error.num_left:
                        self._bar.note(f"Ended before {what}: {error.end}.")
                        return
                    q = error.num_left
            self._start = time.perf_counter()
            work(points, what)
            self._evaluate_again(work, what)
            self._end_round(number)

    def run_without_waiting(self) -> None:
        """Give each worker that comes free a point at once; ``batch`` values are a round."""
        run = self._run
        pending = self._study.unfinished()
        num_workers = self._num_workers()
        threads = threads_beside(self.evaluator.executor, num_workers)
        if threads is not None:
            self._bar.note(f"{num_workers} workers evaluate; threads left for asks: {threads}.")

        def say(text: str) -> None:
            feed.go_on()
            self._say("meanwhile", text)

        def ask(q: int) -> Batch:
            with by_threads(threads):
                return self._study.ask(q, callback=say)

        before, in_round = divmod(self._study.num_evaluated, run.batch)
        number = before + 1
        values = len(pending.ids) + run.rounds * run.batch
        self._last = before + (in_round + values) // run.batch
        waiting = dict(zip(pending.ids, pending.params, strict=True))
        feed = Feed(ask, waiting, num_workers, run.batch, run.rounds * run.batch)
        with self._interruption, feed:
            for part in self.evaluator.run({}, feed.take):
                feed.count(len(part))
                self._tell(part)
                in_round += len(part)
                self._bar.status(
                    f"round {number}: {in_round} of {run.batch} values, {self._failed} failed"
                )
                if in_round >= run.batch:
                    self._end_round(number, feed.seconds_idle)
                    in_round -= run.batch
                    number += 1
        self._pass_interruption_on()
        self._evaluate_again(self._evaluate, "at the end")

    def _num_workers(self) -> int:
        if self._run.asynchronous is not True:
            return int(self._run.asynchronous)
        known = getattr(self.evaluator.executor, "_max_workers", None)
        if not isinstance(known, int):
            raise ValueError(
                "`asynchronous` must be the number of workers for an executor that does not tell"
                f" it, {type(self.evaluator.executor).__name__}, got True."
            )
        return known

    def _evaluate_together(self, points: Batch, what: str) -> None:
        self._bar.status(f"{what}: evaluating a batch of {len(points.ids)}")
        assert not isinstance(self._run.objective, Command)
        values = self._run.objective(points.X)
        ids, found = read_told(points.ids, values, names=self._study.outcomes)
        lacking = (~found.are_whole).nonzero().flatten().tolist()
        reasons = dict.fromkeys(lacking, "not every outcome has a value") | found.reasons
        rows = enumerate(found.table.tolist())
        self._tell([Evaluation(ids[k], y, reasons.get(k), None, tuple(ys)) for k, (y, *ys) in rows])

    def _evaluate(self, points: Batch, what: str) -> None:
        """Evaluate points one by one, and tell their values as they arrive."""
        done = 0
        # Without an executor Ctrl-C ends the evaluation itself, and the point stays pending.
        with self._interruption if self._run.executor is not None else nullcontext():
            self._bar.status(f"{what}: evaluating a batch of {len(points.ids)}")
            for part in self.evaluator.run(dict(zip(points.ids, points.params, strict=True))):
                self._tell(part)
                done += len(part)
                self._bar.status(
                    f"{what}: {done} of {len(points.ids)} points evaluated, {self._failed} failed"
                )
        self._pass_interruption_on()

    def _evaluate_again(self, work: Callable[[Batch, str], None], what: str) -> None:
        """Evaluate once more what has failed and nobody else has taken back, if the run is to."""
        failed = sorted(self._to_retry)
        if self._run.retry is None or not failed or self._is_over():
            return
        refusals = apply_together(self._study.retry, [[id] for id in failed])
        mine = {id for id, why in zip(failed, refusals, strict=True) if why is None}
        again = self._study.unfinished(mine)
        self._failed = max(0, self._failed - len(again.ids))
        if again.ids:
            work(again, f"{what}, once more")
        self._to_retry = set()

    def _tell(self, part: Sequence[Evaluation]) -> None:
        """Tell evaluations, but of points told meanwhile; none says that no more will be begun."""
        if not part:
            if self._interruption.requested:
                self._bar.note(
                    "Interrupted: waiting for the evaluations that are running. Press Ctrl-C again"
                    " to stop at once."
                )
            return
        found = apply_together(self._store, [[one] for one in part])
        refusals = {one.id: why for one, why in zip(part, found, strict=True) if why is not None}
        told = [one for one in part if one.id not in refusals]
        failed = [one.id for one in told if one.failure is not None]
        self._to_retry.update(failed)
        self._failed += len(failed)
        self._show_each([one.id for one in told])
        for id, why in refusals.items():
            if not isinstance(why, LateError):
                raise why
            logger.warning("Point %d was told another value meanwhile, which it keeps.", id)
        self._limit.check(told)

    def _store(self, part: Sequence[Evaluation]) -> None:
        failures = {one.id: one.failure for one in part if one.failure is not None}
        ids, values, seconds = zip(*((one.id, one.told, one.seconds) for one in part), strict=True)
        self._study.tell(ids, values, reasons=failures, seconds=seconds)

    def _is_over(self) -> bool:
        late = time.monotonic() >= self._deadline
        return late or self._study.stop_requested or self._interruption.requested

    def _pass_interruption_on(self) -> None:
        if self._interruption.requested:
            raise KeyboardInterrupt

    def _begin_round(self, seconds_idle: float = 0.0) -> None:
        reset_peak_of_process()
        self._idle_before = seconds_idle
        self._num_asks = self._study.num_asks
        self._before = self._study.best_value
        self._failed = 0
        self._start = time.perf_counter()

    def _end_round(self, number: int, seconds_idle: float = 0.0) -> None:
        study = self._study
        seconds = time.perf_counter() - self._start - (seconds_idle - self._idle_before)
        asked = study.num_asks > self._num_asks
        report = Round(
            number=number,
            num_observations=study.num_observations,
            best_value=study.best_value,
            gain=abs(study.best_value - self._before),
            num_failed=self._failed,
            ask=study.last_ask if asked else AskReport(choice=NO_ASK),
            seconds_objective=max(0.0, seconds),
            peak_bytes=peak_of_process(),
        )
        self._bar.finish_round(f"round {number}/{self._last}: {report}")
        self._begin_round(seconds_idle)
        for callback in self._run.callbacks:
            if not isinstance(callback, EachPoint):
                callback(study, report)

    def _show_each(self, ids: Sequence[int]) -> None:
        callbacks = [one for one in self._run.callbacks if isinstance(one, EachPoint)]
        for point in self._study.points(ids) if callbacks else ():
            for callback in callbacks:
                callback(self._study, point)

    def _say(self, what: str, text: str) -> None:
        self._bar.status(f"{what}: {text}")


def apply_together(
    change: Callable[[list[Any]], object], parts: Sequence[Sequence[Any]]
) -> list[Exception | None]:
    """Change what is in all parts in one call or, where that is refused by a TypeError or a
    ValueError, part by part; return why each part was refused, ``None`` where it was not.
    """
    try:
        change([item for part in parts for item in part])
    except (TypeError, ValueError) as error:
        if len(parts) == 1:
            return [error]
        half = len(parts) // 2
        return apply_together(change, parts[:half]) + apply_together(change, parts[half:])
    return [None] * len(parts)


def _check(run: Run) -> None:
    checks.fields(run, ["rounds", "max_failures"], checks.integer, 0)
    checks.fields(run, ["batch"], checks.positive_int)
    objective, callbacks = run.objective, run.callbacks
    if not callable(objective) and not isinstance(objective, Command):
        raise TypeError(f"`objective` must be a function or a `Command`, got {quote(objective)}.")
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise TypeError(f"`callbacks` must be a list of functions, got {quote(callbacks)}.")
    checks.fields(run, ["timeout", "seconds"], checks.positive_float)
    if run.retry not in (None, "once"):
        raise ValueError(f'`retry` must be "once" or None, got {quote(run.retry)}.')
    executor = run.executor
    if not (executor is None or isinstance(executor, Executor) or callable(executor)):
        raise TypeError(
            "`executor` must be a concurrent.futures.Executor, a function that makes one, or None,"
            f" got {quote(executor)}. Give one, such as `lambda: ThreadPoolExecutor(8)`."
        )
    if not isinstance(run.asynchronous, bool):
        checks.fields(run, ["asynchronous"], checks.positive_int)
    if run.asynchronous and executor is None:
        raise ValueError(
            "`asynchronous` needs an `executor`, whose workers it keeps busy, got None. Give one,"
            " such as `lambda: ThreadPoolExecutor(8)`."
        )
    single = executor is not None or run.timeout is not None or isinstance(run.objective, Command)
    if run.vectorized and single:
        raise ValueError(
            "`vectorized` must be False with an `executor`, a `timeout` or a `Command`, which are"
            " for single points, got True. Leave one out."
        )
