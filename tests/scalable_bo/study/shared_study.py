"""A study whose batches several processes make together."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acquisition import ParallelThompsonSampling
from acquisition.thompson import AcquisitionProgress
from scalable_bo.space.space import Categorical, Float, Space
from scalable_bo.study.study import Study
from surrogates import CG
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
