"""The executors that a configuration names: threads, processes, and those of a Dask cluster."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import active_children, get_context
from typing import Any

import torch

from scalable_bo.evaluation import processes
from scalable_bo.evaluation.separate_processes import SeparateProcesses


def executor_maker(kind: str, workers: int, scheduler: str | None = None) -> Callable[[], Executor]:
    """Return a function that makes an executor: of ``threads``, ``processes`` or ``dask``, in the
    cluster at the address of the ``scheduler`` or, without one, in one that is started here.
    """
    if kind == "threads":
        return partial(ThreadPoolExecutor, workers)
    if kind == "processes":
        return partial(
            ProcessPoolExecutor,
            workers,
            mp_context=get_context("spawn"),
            initializer=signal.signal,  # Ctrl-C is the main process's
            initargs=(signal.SIGINT, signal.SIG_IGN),
        )
    return partial(_dask_executor, workers, scheduler)


def threads_beside(executor: Executor | None, num_workers: int) -> int | None:
    """Return how many of this process's threads the workers of a pool on this machine leave, at
    least one; ``None`` for an executor whose workers may be elsewhere.
    """
    if not isinstance(executor, ThreadPoolExecutor | ProcessPoolExecutor | SeparateProcesses):
        return None
    return max(1, torch.get_num_threads() - num_workers)


@contextmanager
def by_threads(number: int | None) -> Iterator[None]:
    """Compute in a block by so many threads; ``None`` for as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if number is None else number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _DaskExecutor(Executor):
    """The executor of a Dask client, closed with it and with a cluster that the client started."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._executor = client.get_executor(pure=False)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._executor.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._executor.shutdown(wait)
        self._client.close()


def _dask_executor(workers: int, scheduler: str | None) -> Executor:
    try:
        from distributed import Client
    except ImportError as error:
        raise ValueError(
            '`executor = "dask"` needs the package distributed. Install it, or use processes.'
        ) from error
    here = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
    client = Client(scheduler) if scheduler else Client(**here)
    processes.watch(child.pid for child in active_children() if child.pid is not None)
    return _DaskExecutor(client)
