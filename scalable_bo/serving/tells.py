"""The one thread that tells a study what workers have found."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any


@dataclass(frozen=True)
class Told:
    """What became of a point.

    Attributes:
        id: of the point.
        value: a number; of several outcomes a dict or a list, with NaN or ``None`` for those that
            are not known yet; NaN where the evaluation failed.
        noise: the known variance of the value, else ``None``.
        reason: why the evaluation failed, else ``None``.
        seconds: that the evaluation took, NaN where unknown.
    """

    id: int
    value: Any
    noise: float | None = None
    reason: str | None = None
    seconds: float = math.nan


@dataclass(frozen=True)
class _Job:
    told: Sequence[Told]
    done: Future[None]


class Teller:
    """Tells a study, in a thread of its own; what waits meanwhile is told together, in one
    transaction, or one by one where not all of it is right.

    Args:
        tell: as ``Study.tell``.
        after: called in the thread with the ids that have been told.
    """

    def __init__(self, tell: Callable[..., None], after: Callable[[list[int]], None]) -> None:
        self._tell_study = tell
        self._after = after
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._executor = ThreadPoolExecutor(1, "teller")

    def tell(self, told: Sequence[Told]) -> Future[None]:
        """Return what is done when all of it is on disk; it has the study's error where nothing of
        it was recorded.
        """
        job = _Job(told, Future())
        self._jobs.put(job)
        self._executor.submit(self._work)
        return job.done

    def close(self) -> None:
        """Tell what waits, and end."""
        self._executor.shutdown()

    def _work(self) -> None:
        jobs = [self._jobs.get() for _ in range(self._jobs.qsize())]
        for job in jobs:  # who waited may have gone; the values count all the same
            job.done.set_running_or_notify_cancel()
        self._do(jobs)

    def _do(self, jobs: Sequence[_Job]) -> None:
        told = [one for job in jobs for one in job.told]
        try:
            self._store(told)
        except Exception as error:
            if len(jobs) == 1:
                if not jobs[0].done.cancelled():
                    jobs[0].done.set_exception(error)
            else:
                for job in jobs:
                    self._do([job])
            return
        for job in jobs:
            if not job.done.cancelled():
                job.done.set_result(None)

    def _store(self, told: Sequence[Told]) -> None:
        if not told:
            return
        ids = [one.id for one in told]
        noise = [math.nan if one.noise is None else one.noise for one in told]
        reasons = {one.id: one.reason for one in told if one.reason is not None}
        is_known = any(one.noise is not None for one in told)
        variances = noise if is_known else None
        seconds = [one.seconds for one in told]
        self._tell_study(ids, [one.value for one in told], variances, reasons, seconds)
        self._after(ids)
