"""Which points are being evaluated, by whom, and until when that is taken for granted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

NOBODY = ""  # holds what was pending when the server started


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


class Leases:
    """Leases of points by id. One thread at a time.

    Args:
        seconds: of a lease.
        clock: seconds that never go back.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._held: dict[int, Lease] = {}

    def give(self, ids: Iterable[int], worker: str) -> None:
        """Lease points to a worker, in place of leases that there are."""
        now = self._clock()
        for id in ids:
            self._held[id] = Lease(worker, now, now + self.seconds)

    def renew(self, id: int, worker: str) -> bool:
        """Renew a lease; return whether the worker holds it then, or nobody did and it does now."""
        lease = self._held.get(id)
        if lease is None or lease.worker not in (worker, NOBODY):
            return False
        self._held[id] = Lease(worker, lease.since, self._clock() + self.seconds)
        return True

    def end(self, ids: Iterable[int]) -> None:
        """End leases, those that there are."""
        for id in ids:
            self._held.pop(id, None)

    def expired(self) -> list[int]:
        """End the leases that were not renewed in time, and return their points."""
        found = [id for id, lease in self._held.items() if lease.until <= self._clock()]
        self.end(found)
        return found

    def held(self) -> dict[int, Lease]:
        """Return a copy of all leases by id."""
        return dict(self._held)
