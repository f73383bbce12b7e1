"""A Thompson run that several processes make together."""

import os
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from scalable_bo.experiments.cells import run_cells
from scalable_bo.experiments.presets import find_preset
from scalable_bo.experiments.thompson.cell import ThompsonCell
from tests.surrogates.shared_rows import Results, as_bytes

CELL = ThompsonCell(
    replace(find_preset("smoke"), num_rounds=3, dtype="float64"), "asap", lengthscale=0.5, seed=0
)


def run_rounds(part: slice, folder: Path, dies_in: int | None) -> Results:
    """Make the rounds, the first process's record in ``folder``, and those of the others elsewhere;
    with ``dies_in``, kill the last process in the search of that round.
    """
    first = not dist.is_initialized() or dist.get_rank() == 0
    own = folder if first else Path(tempfile.mkdtemp())
    rounds = []

    def die(text: str) -> None:
        if not first and text.startswith(f"round {dies_in}: ascent"):
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        for _, record, _ in run_cells([CELL], own, on_status=die):
            rounds.append(record["rounds"][-1])
    except ConnectionError as error:
        return {"message": as_bytes(str(error)), "rounds": torch.tensor(len(rounds))}
    best = [entry["best_noiseless"] for entry in record["rounds"]]
    return {"best": torch.tensor(best).double(), "rounds": torch.tensor(len(rounds))}
