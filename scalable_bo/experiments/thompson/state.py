"""What an interrupted Thompson run goes on from: a file beside its record, with the state after the
last finished round.

It is one safetensors file, whose header carries the record so far as JSON and a digest of it all.
Each round replaces it as a whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from scalable_bo.experiments.records import Record, differences
from surrogates.atomic import write_atomically
from surrogates.callers import warn

FORMAT = 1


def save_state(path: Path, record: Record, tensors: Mapping[str, Tensor]) -> None:
    """Replace ``path`` by the state of a run after a round, its record and tensors by name: after a
    crash at any moment there is the former one or this, whole.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record)
    tensors = {n: tensor.detach().cpu().clone().contiguous() for n, tensor in tensors.items()}
    about = {"format": str(FORMAT), "record": text, "digest": _digest(text, tensors)}
    write_atomically(path, save(tensors, metadata=about))


def load_state(path: Path) -> tuple[Record, dict[str, Tensor]] | None:
    """Return the record and tensors at ``path``; ``None`` if absent or, with a warning, damaged."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dict
        if about["format"] != str(FORMAT):
            raise ValueError(f"format {about['format']}, not {FORMAT}")
        if about["digest"] != _digest(about["record"], tensors):
            raise ValueError("its digest is another")
        return json.loads(about["record"]), tensors
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        warn(f"The state {path} is damaged and was passed over ({error}). The run starts again.")
        return None


def require_settings_of_run(name: str, found: dict[str, Any], settings: dict[str, Any]) -> None:
    """Require that the record ``found`` of the run ``name`` has these settings; else ValueError."""
    if changes := differences(found.get("settings", {}), settings):
        raise ValueError(
            f"`out` has a record of {name} with other settings: {', '.join(changes)}. It is neither"
            " resumed nor replaced unasked. Choose another folder, or add --rerun to begin again."
        )


def _digest(text: str, tensors: dict[str, Tensor]) -> str:
    return hashlib.sha256(text.encode() + save(tensors)).hexdigest()
