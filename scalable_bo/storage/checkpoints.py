"""Checkpoints of a study's surrogate: its hyperparameters and the weights that the next solve
starts from.

A checkpoint is one safetensors file whose header carries JSON: which ask it belongs to, which
kernel, and a digest of it all. It is derived from the stored rows: losing every one costs time, no
data. The files hold numbers and text; nothing in them is run or imported.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from surrogates.atomic import require_own, write_atomically
from surrogates.callers import warn

NUM_KEPT = 2
FORMAT = 1
_NAME = re.compile(r"ask-(\d{8,})\.safetensors")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A surrogate after an ask.

    Attributes:
        ask: the number of the ask.
        kernel: what the hyperparameters belong to, as text.
        tensors: by name.
    """

    ask: int
    kernel: str
    tensors: dict[str, Tensor]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, complete or not at all, and remove all but the last two."""
    require_own(folder, folder=True)
    folder.mkdir(exist_ok=True, mode=0o700)
    tensors = {
        name: tensor.detach().cpu().clone().contiguous()
        for name, tensor in checkpoint.tensors.items()
    }
    digest = _digest(checkpoint.ask, checkpoint.kernel, tensors)
    about = {"format": FORMAT, "ask": checkpoint.ask, "kernel": checkpoint.kernel, "digest": digest}
    write_atomically(
        folder / f"ask-{checkpoint.ask:08d}.safetensors",
        save(tensors, metadata={"scalable_bo": json.dumps(about)}),
        mode=0o600,
    )
    # A study has one writer: they are of processes that ended in the middle
    killed = folder.glob("ask-*.tmp")
    for path in (*(path for _, path in _files(folder)[NUM_KEPT:]), *killed):
        path.unlink(missing_ok=True)


def load_checkpoint(folder: Path, up_to: int) -> Checkpoint | None:
    """Return the newest whole checkpoint of an ask no later than ``up_to``; ``None`` if there is
    none.

    A broken one is passed over with a warning.
    """
    for number, path in _files(folder):
        if number > up_to:  # written just before a crash; its ask was never committed
            continue
        try:
            return _read(path, number)
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            warn(
                f"The checkpoint {path} is damaged and was passed over ({error}). The surrogate is"
                " computed again from the stored rows.",
            )
    return None


def remove_checkpoints(folder: Path) -> None:
    """Remove all checkpoints."""
    for _, path in _files(folder):
        path.unlink(missing_ok=True)


def _read(path: Path, number: int) -> Checkpoint:
    require_own(path)
    with safe_open(path, framework="pt") as file:
        about = json.loads((file.metadata() or {})["scalable_bo"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dict
    checkpoint = Checkpoint(int(about["ask"]), str(about["kernel"]), tensors)
    if about["format"] != FORMAT:
        raise ValueError(f"format {about['format']!r}, not {FORMAT}")
    if about["digest"] != _digest(checkpoint.ask, checkpoint.kernel, tensors):
        raise ValueError("its digest is another")
    if checkpoint.ask != number:
        raise ValueError(f"it is of ask {checkpoint.ask}")
    return checkpoint


def _files(folder: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints in ``folder`` with their asks, newest first."""
    require_own(folder, folder=True)
    found = [
        (int(match[1]), path)
        for path in folder.glob("ask-*.safetensors")
        if (match := _NAME.fullmatch(path.name))
    ]
    return sorted(found, reverse=True)


def _digest(ask: int, kernel: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps([ask, kernel]).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
