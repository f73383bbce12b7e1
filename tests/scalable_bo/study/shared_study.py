"""A study whose batches several processes make together."""

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from acquisition import ParallelThompsonSampling
from acquisition.thompson import AcquisitionProgress
from scalable_bo.space.space import Categorical, Float, Space
from scalable_bo.study.study import Study
from surrogates import CG
from surrogates.systems.processes import of_all
from tests.surrogates.shared_rows import Results, as_bytes

Q = 5
ROUNDS = 3
SPACE = Space(x=Float(-2.0, 2.0), y=Float(0.0, 1.0), kind=Categorical(["a", "b"]))
SAMPLER = partial(
    ParallelThompsonSampling,
    num_candidates=60,
    num_rounds=3,
    num_starts=3,
    num_steps=8,
    learning_rate=0.005,
)


def score(params: dict[str, Any]) -> float:
    return -((params["x"] - 1.0) ** 2) - params["y"] + 0.1 * (params["kind"] == "b")


def make(path: Path | None = None, **options: Any) -> Study:
    settings: dict[str, Any] = {
        "maximize": True,
        "seed": 3,
        "path": path,
        "num_initial": 6,
        "strategy": "thompson",
        "sampler": SAMPLER,
        "solver": CG(None, tolerance=1e-9, max_epochs=1000.0),
        "shared": True,
    }
    return Study(SPACE, **settings | options)


def rounds(study: Study) -> Tensor:
    """Return the points of the study after its rounds."""
    while study.num_asks < ROUNDS:
        batch = study.pending if study.pending.ids else study.ask(Q if study.num_asks else 8)
        study.tell(batch.ids, [score(params) for params in batch.params])
    return study.result.X


def run(part: slice, folder: Path, dies: bool) -> Results:
    """Run the study, in the first process; with ``dies``, the second is killed in the second
    batch's ascent, and the first returns what it is told.
    """

    def die(progress: AcquisitionProgress) -> None:
        if dies and part.start > 0 and progress.stage == "ascent":
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        with make(folder / "study", sampler=partial(SAMPLER, callback=die)) as study:
            if study.assist():
                return {"rows": torch.tensor(len(study.to_dataframe()))}
            return {"X": rounds(study)}
    except ConnectionError as error:
        return {"message": as_bytes(str(error))}


def stand_still(part: slice, waits: bool) -> Results:
    """Stop the second process before a batch, where it ``waits`` for a job or before it does so;
    the others return what they are told and when.
    """
    study = make()
    pids = of_all([os.getpid()])
    if dist.get_rank() == 1 and not waits:
        os.kill(os.getpid(), signal.SIGSTOP)
    if dist.get_rank() > 0:
        return told_by(study.assist)
    batch = study.ask(8)
    study.tell(batch.ids, [score(params) for params in batch.params])
    if waits:
        time.sleep(0.5)
        os.kill(pids[1][0], signal.SIGSTOP)
    return told_by(partial(study.ask, Q))


def end_a_batch(part: slice) -> Results:
    """End a batch by an error in the first process's callback, while all search for it, and ask
    again; return what each process is told by its last call.
    """

    def fail(line: str) -> None:
        if line.startswith("screening"):
            raise ValueError("The callback failed.")

    study = make()
    if dist.get_rank() > 0:
        return told_by(study.assist)
    batch = study.ask(8)
    study.tell(batch.ids, [score(params) for params in batch.params])
    with pytest.raises(ValueError, match="The callback failed"):
        study.ask(Q, callback=fail)
    return told_by(partial(study.ask, Q))


def told_by(call: Callable[[], object]) -> Results:
    """Return the message of a lost connection, and after how long it came."""
    began = time.perf_counter()
    with pytest.raises(ConnectionError) as error:
        call()
    seconds = torch.tensor(time.perf_counter() - began)
    return {"message": as_bytes(str(error.value)), "seconds": seconds}
