"""Checkpoints of a study's surrogate: its hyperparameters and the weights that the next solve
starts from.

A checkpoint is tensors by safetensors whose header carries JSON: which ask it belongs to, which
kernel, and a digest of it all. It is derived from the stored rows: losing every one costs time, no
data. It holds numbers and text; nothing in it is run or imported.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from scalable_bo.storage.log import note_in
from scalable_bo.storage.storage import Checkpoints
from surrogates.callers import warn
from surrogates.solvers.checkpoint import NUM_KEPT

FORMAT = 1


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


def save_checkpoint(kept: Checkpoints, checkpoint: Checkpoint) -> None:
    """Keep a checkpoint and the one before it; warn of one that cannot be written."""
    tensors = {
        name: tensor.detach().cpu().clone().contiguous()
        for name, tensor in checkpoint.tensors.items()
    }
    digest = _digest(checkpoint.ask, checkpoint.kernel, tensors)
    about = {"format": FORMAT, "ask": checkpoint.ask, "kernel": checkpoint.kernel, "digest": digest}
    try:
        kept.write(checkpoint.ask, save(tensors, metadata={"scalable_bo": json.dumps(about)}))
        for number in kept.numbers()[NUM_KEPT:]:
            kept.remove(number)
    except OSError as error:
        warn(
            f"The checkpoint {kept.describe(checkpoint.ask)} could not be kept ({error}). A study"
            " that is opened without it computes the surrogate again from the stored rows."
        )


def load_checkpoint(kept: Checkpoints, up_to: int) -> Checkpoint | None:
    """Return the newest whole checkpoint of an ask no later than ``up_to``; else ``None``.

    A broken one is passed over with a warning.
    """
    for number in kept.numbers():
        if number > up_to:  # written just before a crash; its ask was never committed
            continue
        try:
            return _read(kept.read(number), number)
        except FileNotFoundError:  # another process, which has a newer one, has removed it
            continue
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            warn(
                f"The checkpoint {kept.describe(number)} is damaged and was passed over ({error})."
                " The surrogate is computed again from the stored rows."
            )
    return None


def remove_checkpoints(kept: Checkpoints) -> None:
    """Remove all checkpoints."""
    for number in kept.numbers():
        kept.remove(number)


def _read(content: bytes, number: int) -> Checkpoint:
    about = json.loads(note_in(content, "scalable_bo"))
    tensors = load(content)
    checkpoint = Checkpoint(int(about["ask"]), str(about["kernel"]), tensors)
    if about["format"] != FORMAT:
        raise ValueError(f"format {about['format']!r}, not {FORMAT}")
    if about["digest"] != _digest(checkpoint.ask, checkpoint.kernel, tensors):
        raise ValueError("its digest is another")
    if checkpoint.ask != number:
        raise ValueError(f"it is of ask {checkpoint.ask}")
    return checkpoint


def _digest(ask: int, kernel: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps([ask, kernel]).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
