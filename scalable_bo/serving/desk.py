"""Where workers get points of a study and bring back values: leases, the pool of points, and the
tells, without a network.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from scalable_bo.serving.client import FIRST_PAUSE, LONGEST_PAUSE
from scalable_bo.serving.supply import Supply
from scalable_bo.serving.tells import Teller, Told
from scalable_bo.storage.rounds import Batch
from scalable_bo.study.study import Study
from surrogates import checks

SECONDS_OF_IDLENESS = 2.0 * LONGEST_PAUSE  # after which a worker that asked in vain waits no more
NOBODY = ""  # holds what was pending when the server started


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
    """What a worker gets.

    Attributes:
        points: ids and parameters.
        retry_after: seconds until the worker may ask again, where there are no points yet.
        finished: whether all points have been evaluated and none will come.
    """

    points: list[tuple[int, dict[str, Any]]]
    retry_after: float = 0.0
    finished: bool = False


class Desk:
    """Gives the points of a study out and takes their values in, for any thread.

    A point is leased: unless the worker renews the lease or tells the point in time, the next
    worker gets it. What was pending at the start counts as leased by nobody: the workers of a
    server that was killed go on with their points and, of what none of them renews, the leases
    expire. A point of which some outcomes were told is given to nobody, and waits for the others.

    Args:
        study: told and asked by this desk alone from now on.
        lease: seconds.
        batch: the least that is asked for at once.
        evaluations: points of the study that are asked for in all, those before counted in;
            ``None`` for no limit.
        clock: of the leases, seconds that never go back.
        idle_asks: of all workers that wait, at most so many a second.
    Attributes:
        lease: seconds.
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
    ) -> None:
        checks.positive_float("lease", lease)
        checks.positive_int("batch", batch)
        budget = math.inf
        rows = study.snapshot().rows
        if evaluations is not None:
            checks.positive_int("evaluations", evaluations)
            budget = evaluations - int((rows.asks > 0).sum())
        self.study = study
        self.lease = lease
        pending = study.unfinished()
        self._params = dict(zip(pending.ids, pending.params, strict=True))  # of what is not told
        self._num_rows = len(rows)
        self._waiting: deque[int] = deque()
        self._leases: dict[int, Lease] = {}
        self._idle: dict[str, tuple[float, int]] = {}  # when they asked in vain, for how many
        self._clock = clock
        self._idle_asks = idle_asks
        self._lock = threading.Lock()
        self._give(pending.ids, NOBODY)
        self.teller = Teller(study.tell, self._forget)
        self.pool = Supply(study.ask, self._take_over, batch, budget)
        self.pool.note(0, 0, 0)

    def ask(self, q: int, worker: str) -> Handout:
        """Lease up to q points to a worker, at once.

        Raises:
            UnavailableError: if there are none because the study cannot be asked.
        """
        with self._lock:
            self._collect()
            ids = [self._waiting.popleft() for _ in range(min(q, len(self._waiting)))]
            self._give(ids, worker)
            points = [(id, self._params[id]) for id in ids]
            num_idle = self._note_idle(worker, q - len(ids))
            is_all = not points and self.pool.is_exhausted and not self._params
            num_waiting = len(self._waiting)
        self.pool.note(len(ids), num_waiting, num_idle)
        if not points and not is_all and (trouble := self.pool.trouble):
            raise UnavailableError(f"The study cannot be asked: {trouble}")
        wait = min(max(FIRST_PAUSE, num_idle / self._idle_asks), LONGEST_PAUSE)
        return Handout(points, 0.0 if points or is_all else wait, is_all)

    def tell(self, told: Sequence[Told]) -> Future[None]:
        """Return what is done when all of it is on disk, or none of it because of an error."""
        return self.teller.tell(told)

    def were_told(self, ids: Sequence[int]) -> bool:
        """Return whether all of these points are the study's, and some have been told."""
        with self._lock:
            known = all(id < self._num_rows for id in ids)
            return known and any(id not in self._params for id in ids)

    def renew(self, ids: Sequence[int], worker: str) -> list[int]:
        """Renew the leases of a worker, also of points that came back meanwhile and that nobody has
        got yet; return the ids that it does not hold any more.
        """
        with self._lock:
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
        with self._lock:
            mine = [id for id in dict.fromkeys(ids) if self._renew(id, worker)]
            self._end(mine)
            self._waiting.extendleft(reversed(mine))

    def held(self) -> dict[int, Lease]:
        """Return all leases by id, but for those of nobody."""
        with self._lock:
            self._collect()
            return {id: one for id, one in self._leases.items() if one.worker != NOBODY}

    def params_of(self, ids: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Return the parameters of points by id, of those that have not been told."""
        with self._lock:
            return {id: self._params[id] for id in ids if id in self._params}

    @property
    def num_waiting(self) -> int:
        """The number of points that the next asks get at once."""
        return len(self._waiting)

    def close(self) -> bool:
        """Tell what waits, and end the threads; return whether they have ended, or an ask computes
        on for a while, whose points the study will refuse once it is closed.
        """
        self.teller.close()
        return self.pool.close()

    def _collect(self) -> None:
        """Take back points whose leases have expired; they are the first to be given out."""
        expired = [id for id, lease in self._leases.items() if lease.until <= self._clock()]
        self._end(expired)
        self._waiting.extendleft(expired)

    def _give(self, ids: Sequence[int], worker: str) -> None:
        """Lease points to a worker, in place of leases that there are."""
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
        """End leases, those that there are."""
        for id in ids:
            self._leases.pop(id, None)

    def _take_over(self, batch: Batch) -> None:
        with self._lock:
            self._params.update(zip(batch.ids, batch.params, strict=True))
            self._num_rows = batch.ids[-1] + 1
            self._waiting.extend(batch.ids)
            self._idle.clear()

    def _forget(self, ids: Sequence[int]) -> None:
        """Give points that were told to nobody any more."""
        with self._lock:
            self._end(ids)
            for id in ids:
                if self._params.pop(id, None) is not None and id in self._waiting:
                    self._waiting.remove(id)

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
        return sum(number for _, number in self._idle.values())
