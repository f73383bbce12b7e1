"""The one thread that tells a study what workers have found."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from scalable_bo.study.optimize import apply_together


@dataclass(frozen=True)
class Told:
    """What became of a point.

    Attributes:
        value: a number; of several outcomes a dict or a list, with NaN or ``None`` for those that
            are not known yet; NaN where the evaluation failed.
        seconds: that the evaluation took, NaN where unknown.
    """

    id: int
    value: Any
    noise: float | None = None
    reason: str | None = None
    seconds: float = math.nan


class Teller:
    """Tells a study, in a thread of its own; what waits meanwhile is told together, in one
    transaction, or one by one where not all of it is right.
    """

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell_study = tell
        self._jobs: SimpleQueue[tuple[Sequence[Told], Future[None]]] = SimpleQueue()
        self._executor = ThreadPoolExecutor(1, "teller")

    def tell(self, told: Sequence[Told]) -> Future[None]:
        """Return what is done when all of it is on disk; it has the study's error where nothing of
        it was recorded.
        """
        done: Future[None] = Future()
        self._jobs.put((told, done))
        self._executor.submit(self._work)
        return done

    def close(self) -> None:
        """Tell what waits, and end."""
        self._executor.shutdown()

    def _work(self) -> None:
        jobs = [self._jobs.get() for _ in range(self._jobs.qsize())]
        for _, done in jobs:  # who waited may have gone; the values count all the same
            done.set_running_or_notify_cancel()
        try:
            errors = apply_together(self._store, [told for told, _ in jobs])
        except Exception as error:  # such as that of a full disk
            errors = [error] * len(jobs)
        for (_, done), why in zip(jobs, errors, strict=True):
            if done.cancelled():
                continue
            if why is None:
                done.set_result(None)
            else:
                done.set_exception(why)

    def _store(self, told: Sequence[Told]) -> None:
        if not told:
            return
        ids = [one.id for one in told]
        noise = [math.nan if one.noise is None else one.noise for one in told]
        reasons = {one.id: one.reason for one in told if one.reason is not None}
        variances = None if all(map(math.isnan, noise)) else noise
        seconds = [one.seconds for one in told]
        self._tell_study(ids, [one.value for one in told], variances, reasons, seconds)
