"""Where workers get points of a study and bring back values: leases, points that are asked for
ahead, and the tells, without a network.

Notation: q points of an ask.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from typing import Any

from scalable_bo.evaluation.evaluator import LateError
from scalable_bo.evaluation.processes import SECONDS_TO_END
from scalable_bo.serving.client import FIRST_PAUSE, LONGEST_PAUSE
from scalable_bo.serving.tells import Teller, Told
from scalable_bo.study.asynchronous import AbandonedError, number_to_ask_for
from scalable_bo.study.design import NotEnoughLeftError
from scalable_bo.study.study import Study
from surrogates import checks

MOST_POINTS = 1000  # of an ask, and of a request
SECONDS_OF_IDLENESS = 2.0 * LONGEST_PAUSE  # after which a worker that asked in vain waits no more
NOBODY = ""  # holds what was pending when the server started

logger = logging.getLogger(__name__)


class UnavailableError(RuntimeError):
    """There are no points, and the next ask for some fails."""


@dataclass(frozen=True)
class Lease:
    """A point in the hands of a worker.

    Attributes:
        worker: its name; ``NOBODY`` for whoever had the point when the server started.
        since: the clock's seconds when the worker got it.
        until: when the point comes back unless the worker renews the lease or tells.
    """

    worker: str
    since: float
    until: float


@dataclass(frozen=True)
class Handout:
    """What a worker gets: points, or none and the seconds until it may ask again; or it has
    ``finished``, as all points have been evaluated and none will come.
    """

    points: list[tuple[int, dict[str, Any]]]
    retry_after: float = 0.0
    finished: bool = False


class LeasedStudy:
    """Gives the points of a study out and takes their values in, for any thread.

    A point is leased: unless the worker renews the lease or tells the point in time, the next
    worker gets it. What was pending at the start counts as leased by nobody: the workers of a
    server that was killed go on with their points and, of what none of them renews, the leases
    expire. A point of which some outcomes were told is given to nobody, and waits for the others.

    A thread asks the study ahead, by the rule of
    :func:`scalable_bo.study.asynchronous.number_to_ask_for`.

    Args:
        study: told and asked by this object alone in this process.
        lease: seconds.
        batch: the least that is asked for at once, unless fewer evaluations are left.
        evaluations: points of the study that are asked for in all, those before counted in;
            ``None`` for no limit.
        clock: of the leases, seconds that never go back.
        idle_asks: of all workers that wait, at most so many a second.
        memory: seconds over which the rate at which points are taken is averaged; the weights of
            earlier ones decay exponentially.
    Attributes:
        lease: seconds.
        trouble: what the last ask of the study has raised, if it has not succeeded since.
    Raises:
        TypeError, ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        study: Study,
        *,
        lease: float = 60.0,
        batch: int = 8,
        evaluations: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        idle_asks: float = 200.0,
        memory: float = 30.0,
    ) -> None:
        lease = checks.positive_float("lease", lease)
        self._batch = checks.positive_int("batch", batch)
        self._budget = math.inf
        if evaluations is not None:
            evaluations = checks.positive_int("evaluations", evaluations)
            self._budget = evaluations - int((study.snapshot().rows.asks > 0).sum())
        self.study = study
        self.lease = lease
        self.trouble: str | None = None
        pending = study.unfinished()
        self._params = dict(zip(pending.ids, pending.params, strict=True))  # of what is not told
        self._waiting: deque[int] = deque()
        self._leases: dict[int, Lease] = {}
        self._idle: dict[str, tuple[float, int]] = {}  # when they asked in vain, for how many
        self._clock = clock
        self._idle_asks = idle_asks
        self._memory = memory
        self._rate = 0.0  # of points that are taken in a second
        self._rated_at = time.monotonic()
        self._seconds_of_ask = 0.0
        self._is_over = False
        self._changed = threading.Condition()
        self._give(pending.ids, NOBODY)
        self.teller = Teller(self._tell_study)
        self._thread = threading.Thread(target=self._ask_ahead, name="pool", daemon=True)
        self._thread.start()

    def ask(self, q: int, worker: str) -> Handout:
        """Lease up to q points to a worker, at once; raise UnavailableError if there are none."""
        with self._changed:
            self._collect()
            ids = [self._waiting.popleft() for _ in range(min(q, len(self._waiting)))]
            self._give(ids, worker)
            points = [(id, self._params[id]) for id in ids]
            num_idle = self._note_idle(worker, q - len(ids))
            is_all = not points and self.is_exhausted and not self._params
            now = time.monotonic()
            self._rate *= math.exp((self._rated_at - now) / self._memory)
            self._rate += len(ids) / self._memory
            self._rated_at = now
            self._changed.notify()
        if not points and not is_all and (trouble := self.trouble):
            raise UnavailableError(f"The study cannot be asked: {trouble}")
        wait = min(max(FIRST_PAUSE, num_idle / self._idle_asks), LONGEST_PAUSE)
        return Handout(points, 0.0 if points or is_all else wait, is_all)

    def tell(self, told: Sequence[Told]) -> Future[None]:
        """Return what is done when all of it is on disk, or none of it because of an error."""
        return self.teller.tell(told)

    def renew(self, ids: Sequence[int], worker: str) -> list[int]:
        """Renew the leases of a worker, also of points that came back meanwhile and that nobody has
        got yet; return the ids that it does not hold any more.
        """
        with self._changed:
            self._collect()
            lost = []
            for id in ids:
                if id in self._waiting:
                    self._waiting.remove(id)
                    self._give([id], worker)
                elif not self._renew(id, worker):
                    lost.append(id)
        return lost

    def release(self, ids: Sequence[int], worker: str) -> None:
        """Give points of a worker back, to be evaluated by the next one."""
        with self._changed:
            mine = [id for id in dict.fromkeys(ids) if self._renew(id, worker)]
            self._end(mine)
            self._waiting.extendleft(reversed(mine))

    def held(self) -> dict[int, Lease]:
        """Return all leases by id, but for those of nobody."""
        with self._changed:
            self._collect()
            return {id: one for id, one in self._leases.items() if one.worker != NOBODY}

    def params_of(self, ids: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Return the parameters of points by id, of those that have not been told."""
        with self._changed:
            return {id: self._params[id] for id in ids if id in self._params}

    @property
    def is_exhausted(self) -> bool:
        """Whether no more points are to be asked for."""
        return self._budget <= 0

    @property
    def num_waiting(self) -> int:
        """The number of points that the next asks get at once."""
        return len(self._waiting)

    def close(self) -> bool:
        """Tell what waits, and end the threads; return whether they have ended, or an ask computes
        on for a while, whose points the study will refuse once it is closed.
        """
        self.teller.close()
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._thread.join(SECONDS_TO_END)
        return not self._thread.is_alive()

    def _collect(self) -> None:
        """Take back points whose leases have expired; they are the first to be given out."""
        expired = [id for id, lease in self._leases.items() if lease.until <= self._clock()]
        self._end(expired)
        self._waiting.extendleft(expired)

    def _give(self, ids: Sequence[int], worker: str) -> None:
        now = self._clock()
        self._leases |= dict.fromkeys(ids, Lease(worker, now, now + self.lease))

    def _renew(self, id: int, worker: str) -> bool:
        """Renew a lease; return whether the worker holds it then, or nobody did and it does now."""
        lease = self._leases.get(id)
        if lease is None or lease.worker not in (worker, NOBODY):
            return False
        self._leases[id] = Lease(worker, lease.since, self._clock() + self.lease)
        return True

    def _end(self, ids: Sequence[int]) -> None:
        for id in ids:
            self._leases.pop(id, None)

    def _wanted(self) -> int:
        used_up = self._seconds_of_ask * self._rate
        q = number_to_ask_for(len(self._waiting), self._num_idle(), used_up, self._batch)
        return int(min(q, MOST_POINTS, self._budget))

    def _ask_ahead(self) -> None:
        pause = FIRST_PAUSE
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_over or self._wanted() > 0)
                q = self._wanted()
            if self._is_over:
                return
            start = time.monotonic()
            try:
                batch = self.study.ask(q, callback=self._go_on)
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
                self._params.update(zip(batch.ids, batch.params, strict=True))
                self._waiting.extend(batch.ids)
                self._idle.clear()

    def _go_on(self, text: str) -> None:
        """Raise if nobody waits for the ask that runs any more."""
        if self._is_over:
            raise AbandonedError

    def _tell_study(self, ids: Sequence[int], *told: Any) -> None:
        """Tell the study. Of these points and the next to be given out, those that have been told,
        by whatever process, are given to nobody any more.
        """
        with self._changed:
            ids_next = list(islice(self._waiting, self._batch + len(ids)))
        refusal = None
        try:
            self.study.tell(ids, *told)
        except LateError as error:
            refusal = error
        points = self.study.points([*ids, *ids_next])
        known = [point.id for point in points if point.status != "pending" or point.outcomes]
        with self._changed:
            self._end(known)
            for id in known:
                if self._params.pop(id, None) is not None and id in self._waiting:
                    self._waiting.remove(id)
        if refusal is not None:
            raise refusal

    def _note_idle(self, worker: str, missing: int) -> int:
        """Note what a worker lacks, and return what all lack."""
        now = self._clock()
        self._idle.pop(worker, None)
        if missing:
            self._idle[worker] = now, missing
        for name, (asked, _) in list(self._idle.items()):
            if asked > now - SECONDS_OF_IDLENESS:
                break
            del self._idle[name]
        return self._num_idle()

    def _num_idle(self) -> int:
        return sum(number for _, number in self._idle.values())
