"""A study that works in a process of its own, to be killed: at a random instant,
or by itself at a chosen one.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acquisition import ParallelThompsonSampling
from scalable_bo.evaluation.external import Command
from scalable_bo.space.space import Float, Int, Space
from scalable_bo.storage import sqlite
from scalable_bo.storage.lock import WriterLock
from scalable_bo.study import surrogate
from scalable_bo.study.study import Study
from surrogates import CG
from tests import problems
from tests.forked import CONTEXT
from tests.scalable_bo.objectives import with_a_child

SPACE = Space(x=Float(0.0, 1.0), n=Int(1, 50))
SAMPLER = partial(
    ParallelThompsonSampling, num_candidates=50, num_rounds=2, num_starts=2, num_steps=5
)
BATCH = 3
PROGRAM = """while read line; do
    id=${line#*: }; id=${id%%,*}
    setsid sleep 0.$RANDOM & echo "{\\"id\\": $id, \\"value\\": $id}"
done"""


def value(X: Tensor) -> Tensor:
    return -(X[:, 0] - 0.3).square() - (X[:, 1] / 50 - 0.6).square()


def history(num_rows: int) -> Tensor:
    return SPACE.unnormalize(problems.uniform(num_rows, 2, seed=7))


def open_study(path: Path | None) -> Study:
    # A loose tolerance: where a solve starts from shows in its result.
    return Study(
        SPACE,
        maximize=True,
        seed=3,
        path=path,
        num_initial=4,
        solver=CG(None, tolerance=1e-2),
        sampler=SAMPLER,
    )


def work(
    path: Path | None,
    num_points: int,
    num_rows: int,
    log: Callable[[str], None] = lambda line: None,
) -> Study:
    """Add data, then ask and tell one by one until there are so many points; after a crash,
    go on.
    """
    study = open_study(path)
    log("opened 0")
    X = history(num_rows)
    if num_rows:
        study.add_data(X, value(X), name="history")
        log(f"rows {num_rows}")
    while True:
        batch = study.pending
        for identity, x in zip(batch.ids, batch.X, strict=True):
            study.tell([identity], value(x[None]))
            log(f"told {identity}")
        if len(study.to_dataframe()) >= num_rows + num_points:
            return study
        log(f"asked {study.ask(BATCH).ids[-1]}")


def start(path: Path, num_points: int, num_rows: int, fault: str | None = None) -> BaseProcess:
    """Run ``work`` in a new process, which logs every call that has returned; with a ``fault``,
    it kills itself there.
    """
    process = CONTEXT.Process(target=_run, args=(path, num_points, num_rows, fault))
    process.start()
    return process


def tell_and_die(path: Path, fault: str) -> None:
    """Tell values one by one, and let the process die while the study is closed."""
    torch.set_num_threads(1)
    study = Study(SPACE, maximize=True, path=path, num_initial=1000)
    for id in study.ask(20).ids:
        study.tell([id], [id / 3])
    FAULTS_OF_CLOSING[fault]()
    study.close()


def hold_lock(path: Path, there: Connection) -> None:
    """Take the lock of a study's folder, say so, and wait to be killed."""
    lock = WriterLock(path)
    there.send("locked")
    signal.pause()
    lock.release()


def open_in(path: Path, kind: str) -> Study:
    """Open the study of runs of a kind, in a folder or in a database."""
    place: dict[str, Any] = {"path": path}
    if kind == "writers":
        place = {"storage": f"sqlite:///{path}.sqlite", "name": "study"}
    return Study(SPACE, maximize=True, num_initial=10_000, **place)


def run_until_killed(path: Path, kind: str) -> None:
    """Evaluate points, by two workers at a time, and log what has been told."""
    torch.set_num_threads(1)
    descriptor = os.open(path.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    study = open_in(path, kind)
    tell = study.tell

    def tell_and_log(ids: Any, values: Any, *args: Any, **options: Any) -> None:
        tell(ids, values, *args, **options)
        os.write(descriptor, "".join(f"{id}\n" for id in ids).encode())

    study.tell = tell_and_log  # type: ignore[method-assign]
    options: dict[str, Any] = {"rounds": 10_000, "batch": 4, "progress": False}
    if kind == "programs":
        study.optimize(Command(["bash", "-c", PROGRAM]), **options)
        return
    context = multiprocessing.get_context("fork")

    def workers() -> Executor:
        by_threads = kind == "threads"
        return ThreadPoolExecutor(2) if by_threads else ProcessPoolExecutor(2, mp_context=context)

    study.optimize(with_a_child, executor=workers, asynchronous=kind == "asynchronous", **options)


def _run(path: Path, num_points: int, num_rows: int, fault: str | None) -> None:
    torch.set_num_threads(1)
    if fault is not None:
        FAULTS[fault]()
    descriptor = os.open(path.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    work(
        path, num_points, num_rows, lambda line: os.write(descriptor, f"{line}\n".encode())
    ).close()


def _die(*args: Any, **kwargs: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill(owner: Any, name: str, when: str, call: int) -> None:
    """Let the process die before or after the given call of a function."""
    original = getattr(owner, name)
    calls = 0

    def replacement(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and when == "before":
            _die()
        result = original(*args, **kwargs)
        if calls == call:
            _die()
        return result

    setattr(owner, name, replacement)


FAULTS: dict[str, Callable[[], None]] = {
    "before the database gets its name": partial(_kill, sqlite.Path, "rename", "before", 1),
    "in the middle of the added data": partial(_kill, sqlite, "append", "after", 2),
    "before the data are recorded in memory": partial(
        _kill, sqlite.SQLiteStorage, "add_source", "after", 1
    ),
    "before a tell is stored": partial(_kill, sqlite.SQLiteStorage, "add_outcomes", "before", 11),
    "after a tell is stored": partial(_kill, sqlite.SQLiteStorage, "add_outcomes", "after", 11),
    "before a checkpoint is written": partial(_kill, surrogate, "save_checkpoint", "before", 2),
    "before a checkpoint gets its name": partial(_kill, os, "replace", "before", 2),
    "between a checkpoint and its ask": partial(_kill, surrogate, "save_checkpoint", "after", 2),
    "before an ask is returned": partial(_kill, sqlite.SQLiteStorage, "add_ask", "after", 4),
}
FAULTS_OF_CLOSING: dict[str, Callable[[], None]] = {
    "before the log is put together": partial(_kill, sqlite, "replay", "after", 1),
    "before that is committed": partial(_kill, sqlite, "append", "after", 1),
    "before it is backed up": partial(_kill, sqlite, "back_up", "before", 1),
    "before the backup gets its name": partial(_kill, os, "replace", "before", 1),
}
