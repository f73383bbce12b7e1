"""Points for workers that do not wait for one another: asked for ahead, one for each that comes
free.

Notation: q points of an ask.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from itertools import islice
from typing import Any

from scalable_bo.storage.rounds import Batch
from scalable_bo.study.design import NotEnoughLeftError

# Of what is evaluated during an ask: so much is asked for at once, since no ask takes just as long
# as the one before
RESERVE = 1.5


def number_to_ask_for(num_waiting: int, num_idle: int, used_up: float, batch: int) -> int:
    """Return how many points the next ask is for; 0 if none is to begin.

    An ask begins when no point waits any more, or fewer than the workers use up during an ask; it
    is for a batch or, if that is more, for the workers that are idle and one and a half times what
    is used up meanwhile. So no worker waits unless an ask takes much longer than the one before,
    and a point is chosen by all values but those that came in since about a batch, or two asks,
    before.

    Args:
        num_waiting: points that wait for a worker.
        num_idle: workers that wait for a point.
        used_up: points that are evaluated during an ask.
        batch: the least that is asked for.
    """
    if num_waiting >= max(1.0, used_up):
        return 0
    return max(batch, num_idle, math.ceil(num_idle + RESERVE * used_up))


class AbandonedError(Exception):
    """Nobody waits for the points any more."""


class AskAhead:
    """The ask for points that others will evaluate, which runs in a thread and begins by the rule
    of :func:`number_to_ask_for`. One thread at a time may call its methods.

    Args:
        ask: for q points, as ``Study.ask``; it may call :meth:`go_on` now and then.
        batch: the least that is asked for, unless the budget is less.
        budget: points that may be asked for.
        begin: starts an ask; in a thread if ``None``.
    """

    def __init__(
        self,
        ask: Callable[[int], Batch],
        batch: int,
        budget: float,
        begin: Callable[[Callable[[], Batch]], Future[Batch]] | None = None,
    ) -> None:
        self._ask = ask
        self._batch = batch
        self._budget = budget
        self._begin = begin or _in_thread
        self._running: Future[Batch] | None = None
        self._num_done = 0  # since the last ask began
        self._used_up = 0  # of that, until it ended
        self._is_over = False

    @property
    def is_exhausted(self) -> bool:
        """Whether no more points will come."""
        return self._running is None and self._budget <= 0

    def count(self, num_done: int) -> None:
        """Take note of points that were used up."""
        self._num_done += num_done

    def begin(self, num_waiting: int, num_idle: int) -> None:
        """Begin an ask if none runs and it is time to, while so many points wait for a worker and
        so many workers for a point.
        """
        q = number_to_ask_for(num_waiting, num_idle, self._used_up, self._batch)
        q = int(min(q, self._budget))
        if self._running is None and q > 0:
            self._num_done = 0
            self._running = self._begin(lambda: self._ask(q))

    def collect(self) -> Batch | None:
        """Return the points of an ask that has ended; ``None`` where there are none.

        Raises:
            Exception: what the ask has raised.
        """
        running = self._running
        if running is None or not running.done():
            return None
        self._running = None
        self._used_up = self._num_done
        try:
            points = running.result()
        except NotEnoughLeftError as error:
            self._budget = error.num_left
            return None
        self._budget -= len(points.ids)
        return points

    def go_on(self, text: str = "") -> None:
        """Raise if nobody waits for the ask that runs any more."""
        if self._is_over:
            raise AbandonedError

    def close(self, seconds: float | None = None) -> bool:
        """Abandon the ask that runs; return whether it has ended, within so many seconds."""
        self._is_over = True
        return self._running is None or not wait([self._running], seconds).not_done


def _in_thread(ask: Callable[[], Batch]) -> Future[Batch]:
    """Begin an ask in a thread, for which the end of the process does not wait."""
    future: Future[Batch] = Future()

    def work() -> None:
        try:
            future.set_result(ask())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="ask", daemon=True).start()
    return future


class Feed:
    """Points that wait for one of some workers.

    Args:
        ahead: asks for more of them.
        pending: points that wait from the beginning.
        num_workers: evaluations at the same time.
        clock: seconds.
    Attributes:
        seconds_idle: in which nothing was evaluated.
    """

    def __init__(
        self,
        ahead: AskAhead,
        pending: Mapping[int, dict[str, Any]],
        num_workers: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds_idle = 0.0
        self._ahead = ahead
        self._waiting = dict(pending)
        self._num_workers = num_workers
        self._clock = clock
        self._idle_since: float | None = None

    def take(self, num_out: int) -> Mapping[int, dict[str, Any]] | None:
        """Return points for the workers that are free while so many evaluations are out; ``None``
        when no more will come.

        Raises:
            Exception: what an ask has raised.
        """
        if (points := self._ahead.collect()) is not None:
            self._waiting.update(zip(points.ids, points.params, strict=True))
        now = self._clock()
        if self._idle_since is not None:
            self.seconds_idle += now - self._idle_since
        free = max(self._num_workers - num_out, 0)
        taken = dict(islice(self._waiting.items(), free))
        for number in taken:
            del self._waiting[number]
        self._ahead.begin(len(self._waiting), free - len(taken))
        self._idle_since = None if num_out or taken else now
        is_over = not taken and not self._waiting and self._ahead.is_exhausted
        return None if is_over else taken
