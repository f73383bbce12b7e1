"""Points for workers that do not wait for one another: asked for ahead, one for each that comes
free.

Notation: q points of an ask.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, Self

from scalable_bo.storage.rounds import Batch
from scalable_bo.study.design import NotEnoughLeftError


def number_to_ask_for(
    num_waiting: int, num_idle: int, used_up: float, batch: int, reserve: float = 1.5
) -> int:
    """Return how many points the next ask is for; 0 if none is to begin.

    An ask begins when no point waits any more, or fewer than the workers use up during an ask; it
    is for a batch or, if that is more, for the workers that are idle and ``reserve`` times what is
    used up meanwhile. So no worker waits unless an ask takes much longer than the one before, and a
    point is chosen by all values but those that came in since about a batch, or two asks, before.

    Args:
        num_waiting: points that wait for a worker.
        num_idle: workers that wait for a point.
        used_up: points that are evaluated during an ask.
        batch: the least that is asked for.
        reserve: a factor, since no ask takes just as long as the one before.
    """
    if num_waiting >= max(1.0, used_up):
        return 0
    return max(batch, num_idle, math.ceil(num_idle + reserve * used_up))


class AbandonedError(Exception):
    """Nobody waits for the points any more."""


class Feed:
    """Points that wait for a worker, and the ask for more of them, which runs in a thread and
    begins by the rule of :func:`number_to_ask_for`.

    Args:
        ask: for q points, as ``Study.ask``; it may call :meth:`go_on` now and then.
        pending: points that wait from the beginning.
        budget: points that may be asked for.
        begin: starts an ask; in a thread if ``None``.
    """

    def __init__(
        self,
        ask: Callable[[int], Batch],
        pending: Mapping[int, dict[str, Any]],
        num_workers: int,
        batch: int,
        budget: int,
        *,
        begin: Callable[[Callable[[], Batch]], Future[Batch]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._waiting = dict(pending)
        self._num_workers = num_workers
        self._batch = batch
        self._budget = budget
        self._thread = ThreadPoolExecutor(1, "ask") if begin is None else None
        self._begin = begin or self._thread.submit  # type: ignore[union-attr]
        self._clock = clock
        self._started = clock()
        self._num_done = 0
        self._asked_at = 0.0
        self._seconds_of_ask = 0.0
        self._running: Future[Batch] | None = None
        self._is_over = False
        self._idle_since: float | None = None
        self.seconds_idle = 0.0  # in which nothing was evaluated

    def count(self, num_done: int) -> None:
        """Take note of evaluations that have ended."""
        self._num_done += num_done

    def take(self, num_out: int) -> Mapping[int, dict[str, Any]] | None:
        """Return points for the workers that are free while so many evaluations are out; ``None``
        when no more will come. Raise what an ask has raised.
        """
        self._collect()
        now = self._clock()
        if self._idle_since is not None:
            self.seconds_idle += now - self._idle_since
        free = max(self._num_workers - num_out, 0)
        taken = dict(islice(self._waiting.items(), free))
        for number in taken:
            del self._waiting[number]
        used_up = self._seconds_of_ask * self._rate
        idle = free - len(taken)
        q = number_to_ask_for(len(self._waiting), idle, used_up, self._batch)
        if self._running is None and self._budget and q:
            self._begin_ask(q)
        self._idle_since = None if num_out or taken else now
        if taken or self._waiting or self._running is not None or self._budget:
            return taken
        return None

    def go_on(self) -> None:
        """Raise if nobody waits for the ask that runs any more."""
        if self._is_over:
            raise AbandonedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over = True
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    @property
    def _rate(self) -> float:
        """Evaluations a second."""
        elapsed = self._clock() - self._started
        return self._num_done / elapsed if elapsed > 0 else 0.0

    def _begin_ask(self, q: int) -> None:
        q = min(q, self._budget)
        self._budget -= q
        self._asked_at = self._clock()
        self._running = self._begin(lambda: self._ask(q))

    def _collect(self) -> None:
        """Take over the points of an ask that has ended."""
        if self._running is None or not self._running.done():
            return
        running = self._running
        self._running = None
        self._seconds_of_ask = self._clock() - self._asked_at
        try:
            points = running.result()
        except NotEnoughLeftError as error:
            self._budget = error.num_left
            if error.num_left:
                self._begin_ask(error.num_left)
            return
        self._waiting.update(zip(points.ids, points.params, strict=True))
