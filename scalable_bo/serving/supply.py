"""Points that are asked for ahead, while workers evaluate others.

Notation: q points of an ask.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from scalable_bo.evaluation.processes import SECONDS_TO_END
from scalable_bo.serving.client import FIRST_PAUSE, LONGEST_PAUSE
from scalable_bo.storage.rounds import Batch
from scalable_bo.study.asynchronous import AbandonedError, number_to_ask_for
from scalable_bo.study.design import NotEnoughLeftError

MOST_POINTS = 1000  # of an ask, and of a request

logger = logging.getLogger(__name__)


class Supply:
    """Asks a study for points in a thread, by the rule of
    :func:`scalable_bo.study.asynchronous.number_to_ask_for`.

    Args:
        ask: as ``Study.ask``.
        take_over: receives the points of each ask.
        batch: the least that is asked for at once, unless the budget is less.
        budget: points that may be asked for.
        memory: seconds that the rate of asks is a mean of, those long ago counting for less.
    Attributes:
        trouble: what the last ask has raised, if it has not been repeated with success.
    """

    def __init__(
        self,
        ask: Callable[..., Batch],
        take_over: Callable[[Batch], None],
        batch: int,
        budget: float,
        memory: float = 30.0,
    ) -> None:
        self.trouble: str | None = None
        self._ask = ask
        self._take_over = take_over
        self._batch = batch
        self._budget = budget
        self._memory = memory
        self._num_waiting = 0
        self._num_idle = 0
        self._rate = 0.0
        self._rated_at = time.monotonic()
        self._seconds_of_ask = 0.0
        self._is_over = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="pool", daemon=True)
        self._thread.start()

    @property
    def is_exhausted(self) -> bool:
        """Whether no more points are to be asked for."""
        return self._budget <= 0

    def note(self, num_taken: int, num_waiting: int, num_idle: int) -> None:
        """Take note that so many points were taken, so many wait, and so many are wanted beyond
        them.
        """
        with self._changed:
            now = time.monotonic()
            self._rate *= math.exp((self._rated_at - now) / self._memory)
            self._rate += num_taken / self._memory
            self._rated_at = now
            self._num_waiting = num_waiting
            self._num_idle = num_idle
            if self._wanted():
                self._changed.notify()

    def close(self) -> bool:
        """End the thread; return whether it has ended, or computes on for a while."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._thread.join(SECONDS_TO_END)
        return not self._thread.is_alive()

    def _wanted(self) -> int:
        used_up = self._seconds_of_ask * self._rate
        q = number_to_ask_for(self._num_waiting, self._num_idle, used_up, self._batch)
        return int(min(q, MOST_POINTS, self._budget))

    def _work(self) -> None:
        pause = FIRST_PAUSE
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_over or self._wanted() > 0)
                q = self._wanted()
            if self._is_over:
                return
            start = time.monotonic()
            try:
                batch = self._ask(q, callback=self._go_on)
            except AbandonedError:
                return
            except NotEnoughLeftError as error:
                self._budget = error.num_left
                continue
            except Exception as error:
                if self._is_over:  # the study has been closed meanwhile
                    return
                logger.exception("An ask for %d points failed.", q)
                self.trouble = f"{type(error).__name__}: {error}"
                with self._changed:
                    self._changed.wait_for(lambda: self._is_over, pause)
                pause = min(2.0 * pause, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            self.trouble = None
            with self._changed:
                self._seconds_of_ask = time.monotonic() - start
                self._budget -= len(batch.ids)
                self._num_waiting += len(batch.ids)
                self._num_idle = 0
            self._take_over(batch)

    def _go_on(self, text: str) -> None:
        """Raise if nobody waits for the ask that runs any more."""
        if self._is_over:
            raise AbandonedError
