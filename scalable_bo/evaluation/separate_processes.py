"""A pool of processes that have an executor each, so that one that dies or hangs costs its own
point alone.

An executor of several processes loses with one of them all points that are out: so do the standard
library's and loky's. Pebble's pool waits for ever for a process that ended with exit code 0.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
from functools import partial
from queue import SimpleQueue
from typing import Any

from scalable_bo.evaluation import processes


class ProcessLostError(Exception):
    """A process ended in the middle of a call, or gave no answer."""


class SeparateProcesses(futures.Executor):
    """Runs every call in a process that shares its executor with no other; what is lost is started
    anew for the next call.

    Args:
        first: an executor that has started nothing: there are to be as many processes as it takes.
        make: makes the further executors, of whose processes one is used.
        patience: seconds, after which a call whose process gives no answer is lost.
    """

    def __init__(
        self,
        first: futures.ProcessPoolExecutor,
        make: Callable[[], futures.ProcessPoolExecutor],
        patience: float | None,
    ) -> None:
        self._max_workers = first._max_workers  # type: ignore[attr-defined]
        self._first: futures.ProcessPoolExecutor | None = first
        self._make = make
        self._patience = patience
        self._threads = futures.ThreadPoolExecutor(self._max_workers)  # each waits for a process
        self._all: list[_Slot] = []
        self._idle: SimpleQueue[_Slot] = SimpleQueue()
        self._is_shut = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        call = partial(fn, *args, **kwargs)
        if len(self._all) == self._max_workers:
            return self._threads.submit(self._run, call)
        slot = _Slot()
        self._all.append(slot)
        sent = self._send(slot, call)  # by the caller's thread, as executors fork: it holds no lock
        return self._threads.submit(self._run, call, slot, sent)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        for pool in filter(None, [slot.pool for slot in self._all]):
            pool.shutdown(wait)

    def kill(self) -> None:
        """Shut down at once, whatever the processes do."""
        with processes.adopting():  # while no thread starts another
            self._is_shut = True
            pids = [pid for slot in self._all for pid in slot.pids]
        self.shutdown(wait=False, cancel_futures=True)
        processes.kill_all(pids)

    def _run(self, call: partial[Any], slot: _Slot | None = None, sent: Any = None) -> Any:
        slot = slot or self._idle.get()
        try:
            return self._answer(slot, sent or self._send(slot, call))
        finally:
            self._idle.put(slot)

    def _send(self, slot: _Slot, call: partial[Any]) -> futures.Future[Any]:
        """Send a call to a process, which is started if there is none."""
        with processes.adopting():
            if self._is_shut:
                raise ProcessLostError("its process is not started: the pool was shut down")
            try:
                sent = (slot.pool or self._new(slot)).submit(call)
            except futures.BrokenExecutor:  # it ended between two calls
                sent = self._new(slot).submit(call)
        processes.watch(slot.pids)
        return sent

    def _new(self, slot: _Slot) -> futures.ProcessPoolExecutor:
        pool, self._first = self._first or self._make(), None
        if any(one.pool is pool for one in self._all):
            raise ValueError(
                "`executor` must make a new ProcessPoolExecutor in every call, got the one of the"
                " call before. Make it inside of the function."
            )
        pool._max_workers = 1  # type: ignore[attr-defined]
        slot.pool = pool
        return pool

    def _answer(self, slot: _Slot, sent: futures.Future[Any]) -> Any:
        futures.wait([sent], processes.SECONDS_BETWEEN_LOOKS)
        processes.watch(slot.pids)  # where it has replaced one that has run its share of calls
        is_late = not futures.wait([sent], self._patience).done
        if not is_late and not isinstance(sent.exception(), futures.BrokenExecutor):
            return sent.result()
        lost = list((slot.pool._processes or {}).values())  # none after a shutdown
        if is_late:
            processes.kill_all(slot.pids)
        slot.pool.shutdown()
        slot.pool = None
        if is_late:
            raise ProcessLostError(f"no answer within {self._patience:g} s")
        ends = [processes.how_ended(process.exitcode) for process in lost]
        raise ProcessLostError(f"its process ended: {', '.join(ends)}")


class _Slot:
    """The place of one process at a time, with its executor."""

    pool: Any = None

    @property
    def pids(self) -> list[int]:
        return list(getattr(self.pool, "_processes", None) or ())
