"""A pool of processes that have an executor each, so that one that dies or hangs costs its own
point alone.

An executor of several processes loses with one of them all points that are out: so do the standard
library's and loky's. Pebble's pool waits for ever for a process that ended with exit code 0.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any

from scalable_bo.evaluation import processes


class ProcessLostError(Exception):
    """A process ended in the middle of a call, or gave no answer."""


class SeparateProcesses(Executor):
    """Runs every call in a process that shares its executor with no other; what is lost is started
    anew for the next call.

    Args:
        size: number of processes.
        make: makes an executor, of whose processes one is used.
        patience: seconds, after which a call whose process gives no answer is lost.
    """

    def __init__(
        self, size: int, make: Callable[[], ProcessPoolExecutor], patience: float | None
    ) -> None:
        self._max_workers = size
        self._make = make
        self._patience = patience
        self._threads = ThreadPoolExecutor(size)  # each waits for a process
        self._all: list[_Single] = []
        self._idle: SimpleQueue[_Single] = SimpleQueue()
        self._starting = threading.Lock()

    @property
    def _processes(self) -> dict[int, BaseProcess]:
        return {pid: process for one in self._all for pid, process in one.processes.items()}

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if len(self._all) < self._max_workers:  # by the caller's thread, as executors fork
            self._all.append(_Single(self._make, self._starting))
            self._idle.put(self._all[-1])
        return self._threads.submit(self._run, fn, *args, **kwargs)

    def _run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        one = self._idle.get()
        try:
            return one.run(self._patience, fn, *args, **kwargs)
        finally:
            self._idle.put(one)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        for one in self._all:
            one.pool.shutdown(wait)


class _Single:
    """An executor of one process; ``starting`` is held while that is started, or forked."""

    def __init__(self, make: Callable[[], ProcessPoolExecutor], starting: threading.Lock) -> None:
        self._make = make
        self._starting = starting
        self._start()

    def _start(self) -> None:
        self.pool = self._make()
        self.pool._max_workers = 1  # type: ignore[attr-defined]
        with self._starting, processes.adopting():
            self._ready = self.pool.submit(int)
        processes.watch(self.processes)

    @property
    def processes(self) -> dict[int, BaseProcess]:
        return dict(self.pool._processes or {})  # none after a shutdown

    def run(self, patience: float | None, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            call = self._submit(fn, *args, **kwargs)
        except BrokenExecutor:  # it ended in the call before, or between two
            self._start()
            call = self._submit(fn, *args, **kwargs)
        is_late = not wait([call], patience).done
        lost = self.processes
        if is_late:
            processes.kill_all(lost)
        elif not isinstance(call.exception(), BrokenExecutor):
            return call.result()
        self.pool.shutdown()
        if is_late:
            raise ProcessLostError(f"no answer within {patience:g} s")
        ends = [processes.how_ended(process.exitcode) for process in lost.values()]
        raise ProcessLostError(f"its process ended: {', '.join(ends)}")

    def _submit(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        wait([self._ready])  # to start may take longer than a call
        return self.pool.submit(fn, *args, **kwargs)
