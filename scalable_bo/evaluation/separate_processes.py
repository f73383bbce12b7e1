"""A pool of processes that have an executor each, so that one that dies or hangs costs its own
point alone.

An executor of several processes loses with one of them all points that are out: so do the standard
library's and loky's. Pebble's pool waits for ever for a process that ended with exit code 0.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures
from functools import partial
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any

from scalable_bo.evaluation import processes

Make = Callable[[], futures.ProcessPoolExecutor]


class ProcessLostError(Exception):
    """A process ended in the middle of a call, or gave no answer."""


class SeparateProcesses(futures.Executor):
    """Runs every call in a process that shares its executor with no other; what is lost is started
    anew for the next call.

    Args:
        size: number of processes.
        make: makes an executor, of whose processes one is used.
        patience: seconds, after which a call whose process gives no answer is lost.
    """

    def __init__(self, size: int, make: Make, patience: float | None) -> None:
        self._max_workers = size
        self._make = make
        self._patience = patience
        self._threads = futures.ThreadPoolExecutor(size)  # each waits for a process
        self._all: list[_Single] = []
        self._idle: SimpleQueue[_Single] = SimpleQueue()
        self._starting = threading.Lock()  # a fork would copy what another is starting with

    @property
    def _processes(self) -> dict[int, BaseProcess]:
        return {pid: process for one in self._all for pid, process in one.processes.items()}

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        if len(self._all) < self._max_workers:  # by the caller's thread, as executors fork
            self._all.append(_Single(self._make, self._starting))
            self._idle.put(self._all[-1])
        return self._threads.submit(self._run, partial(fn, *args, **kwargs))

    def _run(self, call: Callable[[], Any]) -> Any:
        one = self._idle.get()
        try:
            return one.run(call, self._patience)
        finally:
            self._idle.put(one)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        for one in self._all:
            one.pool.shutdown(wait)


class _Single:
    """An executor of one process."""

    def __init__(self, make: Make, starting: threading.Lock) -> None:
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

    def run(self, call: Callable[[], Any], patience: float | None) -> Any:
        futures.wait([self._ready])  # to start may take longer than a call
        if self.pool._broken:
            self._start()  # it ended in the call before, or between two
            futures.wait([self._ready])
        answer = self.pool.submit(call)
        is_late = not futures.wait([answer], patience).done
        lost = self.processes
        if is_late:
            processes.kill_all(lost)
        elif not isinstance(answer.exception(), futures.BrokenExecutor):
            return answer.result()
        self.pool.shutdown()
        if is_late:
            raise ProcessLostError(f"no answer within {patience:g} s")
        ends = [processes.how_ended(process.exitcode) for process in lost.values()]
        raise ProcessLostError(f"its process ended: {', '.join(ends)}")
