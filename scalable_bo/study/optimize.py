"""The loop of ``Study.optimize``: ask, evaluate, tell, report, round after round."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from scalable_bo.evaluation.evaluator import Evaluator, FailureLimit, Interruption, call
from scalable_bo.evaluation.external import Command
from scalable_bo.experiments.records import peak_memory_bytes, reset_peak_memory
from scalable_bo.progress import RoundProgress
from scalable_bo.study.rounds import Batch, Round
from surrogates import checks

if TYPE_CHECKING:
    from scalable_bo.study.study import Study

CPU = torch.device("cpu")
# Without `max_failures`, a run stops when a whole batch, but no fewer than these, have failed
FEWEST_FAILURES_IN_A_ROW = 10


def run_rounds(
    study: Study,
    objective: Callable[..., Any] | Command,
    rounds: int,
    batch: int,
    *,
    executor: Executor | Callable[[], Executor] | None,
    timeout: float | None,
    max_failures: int | None,
    vectorized: bool,
    callbacks: Sequence[Callable[[Study, Round], None]],
    progress: bool,
) -> None:
    """Run ``rounds`` rounds of ``study``; arguments as in ``Study.optimize``."""
    checks.integer("rounds", rounds, 0)
    checks.positive_int("batch", batch)
    if timeout is not None:
        checks.positive_float("timeout", timeout)
    if max_failures is not None:
        checks.integer("max_failures", max_failures, 0)
    if not (executor is None or isinstance(executor, Executor) or callable(executor)):
        raise TypeError(
            "`executor` must be a concurrent.futures.Executor, a function that makes one, or None,"
            f" got {executor!r}."
        )
    if vectorized and (
        executor is not None or timeout is not None or isinstance(objective, Command)
    ):
        raise ValueError(
            "`vectorized` must be False with an `executor`, a `timeout` or a `Command`, which are"
            " for single points, got True. Leave one out."
        )
    interruption = Interruption()
    limit = FailureLimit(max_failures, max(batch, FEWEST_FAILURES_IN_A_ROW))
    evaluate = (
        partial(objective.evaluate, timeout)
        if isinstance(objective, Command)
        else partial(call, objective, timeout)
    )
    first = study.num_asks + 1
    last = first + rounds - 1
    evaluator = Evaluator(evaluate, executor, timeout, lambda: interruption.requested)
    with RoundProgress(rounds, enabled=progress) as bar, evaluator:

        def work(points: Batch, what: str) -> int:
            """Evaluate and tell points; return how many failed."""
            if vectorized:
                bar.status(f"{what}: evaluating {len(points.ids)} points")
                study.tell(points.ids, objective(points.X))  # type: ignore[operator]  # no Command
                reasons = study.reasons(points.ids)
                limit.check(reasons)
                return sum(reason is not None for reason in reasons)
            done = failed = 0
            # Without an executor Ctrl-C ends the evaluation itself, and the point stays pending.
            with nullcontext() if executor is None else interruption:
                bar.status(f"{what}: evaluating {len(points.ids)} points")
                for part in evaluator.run(dict(zip(points.ids, points.params, strict=True))):
                    if interruption.requested and not part:
                        bar.note(
                            "Interrupted: waiting for the evaluations that are running. Press"
                            " Ctrl-C again to stop at once."
                        )
                        continue
                    failures = {one.id: one.reason for one in part if one.reason is not None}
                    study.tell(
                        [one.id for one in part], [one.value for one in part], reasons=failures
                    )
                    done = done + len(part)
                    failed = failed + len(failures)
                    bar.status(
                        f"{what}: {done} of {len(points.ids)} points evaluated, {failed} failed"
                    )
                    limit.check([one.reason for one in part])
            if interruption.requested:
                raise KeyboardInterrupt
            return failed

        if (left := study.pending).ids:
            work(left, f"before round {first}")
        for number in range(first, last + 1):
            reset_peak_memory(CPU)
            before = study.best_value
            bar.status(f"round {number}: asking for {batch} points")
            points = study.ask(batch, callback=partial(_say, bar, f"round {number}"))
            start = time.perf_counter()
            failed = work(points, f"round {number}")
            seconds = time.perf_counter() - start
            best = study.best_value
            report = Round(
                number=number,
                num_observations=study.num_observations,
                best_value=best,
                gain=abs(best - before),
                num_failed=failed,
                ask=study.last_ask,
                seconds_objective=seconds,
                peak_bytes=peak_memory_bytes(CPU),
            )
            bar.finish_round(f"round {number}/{last}: {report}")
            for callback in callbacks:
                callback(study, report)


def _say(bar: RoundProgress, what: str, text: str) -> None:
    bar.status(f"{what}: {text}")
