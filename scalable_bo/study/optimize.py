"""The loop of ``Study.optimize``: ask, evaluate, tell, report, round after round."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol

from scalable_bo.evaluation.evaluator import Evaluation, Evaluator, FailureLimit, Interruption, call
from scalable_bo.evaluation.external import Command
from scalable_bo.progress import RoundProgress, peak_of_process, reset_peak_of_process
from scalable_bo.storage.rounds import AskReport, Batch, Round
from scalable_bo.study.design import NotEnoughLeftError
from surrogates import checks

# Without `max_failures`, a run stops when a whole batch, but no fewer than these, have failed
FEWEST_FAILURES_IN_A_ROW = 10


class AskAndTell(Protocol):
    """What the loop needs of a study."""

    @property
    def num_asks(self) -> int: ...
    @property
    def num_observations(self) -> int: ...
    @property
    def best_value(self) -> float: ...
    @property
    def last_ask(self) -> AskReport: ...
    @property
    def pending(self) -> Batch: ...

    def ask(self, q: int, *, callback: Callable[[str], None] | None = None) -> Batch: ...
    def reasons(self, ids: Sequence[int]) -> list[str | None]: ...
    def tell(
        self,
        ids: Sequence[int],
        values: Any,
        noise: Any = None,
        reasons: Mapping[int, str] | None = None,
    ) -> None: ...


def run_rounds(
    study: AskAndTell,
    objective: Callable[..., Any] | Command,
    rounds: int,
    batch: int,
    *,
    executor: Executor | Callable[[], Executor] | None = None,
    timeout: float | None = None,
    max_failures: int | None = None,
    vectorized: bool = False,
    callbacks: Sequence[Callable[[Any, Round], None]] = (),
    progress: bool = True,
) -> None:
    """Run ``rounds`` rounds of ``study``; arguments as in ``Study.optimize``."""
    _check(rounds, batch, objective, executor, timeout, max_failures, vectorized)
    evaluate = objective.evaluate if isinstance(objective, Command) else partial(call, objective)
    interruption = Interruption()
    limit = FailureLimit(max_failures, max(batch, FEWEST_FAILURES_IN_A_ROW))
    evaluator = Evaluator(
        partial(evaluate, timeout), executor, timeout, lambda: interruption.requested
    )
    first = study.num_asks + 1
    work: Callable[[Batch, str], int]
    with RoundProgress(rounds, enabled=progress) as bar, evaluator:
        if vectorized and not isinstance(objective, Command):
            work = partial(_evaluate_together, study, objective, limit, bar)
        else:
            # Without an executor Ctrl-C ends the evaluation itself, and the point stays pending.
            waits = executor is not None
            work = partial(_evaluate, study, evaluator, interruption, limit, bar, waits)
        if (left := study.pending).ids:
            work(left, f"before round {first}")
        for number in range(first, first + rounds):
            reset_peak_of_process()
            before = study.best_value
            what = f"round {number}"
            say = partial(_say, bar, what)
            say(f"asking for {batch} points")
            try:
                points = study.ask(batch, callback=say)
            except NotEnoughLeftError as error:
                if not error.num_left:
                    bar.note(f"Ended before {what}: all points of the space have been asked for.")
                    return
                points = study.ask(error.num_left, callback=say)
            start = time.perf_counter()
            failed = work(points, what)
            report = Round(
                number=number,
                num_observations=study.num_observations,
                best_value=study.best_value,
                gain=abs(study.best_value - before),
                num_failed=failed,
                ask=study.last_ask,
                seconds_objective=time.perf_counter() - start,
                peak_bytes=peak_of_process(),
            )
            bar.finish_round(f"{what}/{first + rounds - 1}: {report}")
            for callback in callbacks:
                callback(study, report)


def _check(
    rounds: Any,
    batch: Any,
    objective: Any,
    executor: Any,
    timeout: Any,
    max_failures: Any,
    vectorized: bool,
) -> None:
    checks.integer("rounds", rounds, 0)
    checks.positive_int("batch", batch)
    if not callable(objective) and not isinstance(objective, Command):
        raise TypeError(f"`objective` must be a function or a `Command`, got {objective!r:.80}.")
    if timeout is not None:
        checks.positive_float("timeout", timeout)
    if max_failures is not None:
        checks.integer("max_failures", max_failures, 0)
    if not (executor is None or isinstance(executor, Executor) or callable(executor)):
        raise TypeError(
            "`executor` must be a concurrent.futures.Executor, a function that makes one, or None,"
            f" got {executor!r}."
        )
    single = executor is not None or timeout is not None or isinstance(objective, Command)
    if vectorized and single:
        raise ValueError(
            "`vectorized` must be False with an `executor`, a `timeout` or a `Command`, which are"
            " for single points, got True. Leave one out."
        )


def _evaluate_together(
    study: AskAndTell,
    objective: Callable[..., Any],
    limit: FailureLimit,
    bar: RoundProgress,
    points: Batch,
    what: str,
) -> int:
    """Evaluate points in one call, and tell their values; return how many failed."""
    bar.status(f"{what}: evaluating {len(points.ids)} points")
    study.tell(points.ids, objective(points.X))
    reasons = study.reasons(points.ids)
    pairs = zip(points.ids, reasons, strict=True)
    limit.check([Evaluation(id, math.nan, reason) for id, reason in pairs])
    return sum(reason is not None for reason in reasons)


def _evaluate(
    study: AskAndTell,
    evaluator: Evaluator,
    interruption: Interruption,
    limit: FailureLimit,
    bar: RoundProgress,
    can_wait: bool,
    points: Batch,
    what: str,
) -> int:
    """Evaluate points one by one, and tell their values as they arrive; return how many failed.

    Raises:
        KeyboardInterrupt: if that was asked for, once those that run have been told.
    """
    done = 0
    failed = 0
    with interruption if can_wait else nullcontext():
        bar.status(f"{what}: evaluating {len(points.ids)} points")
        for part in evaluator.run(dict(zip(points.ids, points.params, strict=True))):
            if interruption.requested and not part:
                bar.note(
                    "Interrupted: waiting for the evaluations that are running. Press Ctrl-C again"
                    " to stop at once."
                )
                continue
            failures = {one.id: one.reason for one in part if one.reason is not None}
            study.tell([one.id for one in part], [one.value for one in part], reasons=failures)
            done += len(part)
            failed += len(failures)
            bar.status(f"{what}: {done} of {len(points.ids)} points evaluated, {failed} failed")
            limit.check(part)
    if interruption.requested:
        raise KeyboardInterrupt
    return failed


def _say(bar: RoundProgress, what: str, text: str) -> None:
    bar.status(f"{what}: {text}")
