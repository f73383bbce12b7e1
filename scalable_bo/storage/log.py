"""A study as the log of what was written: how a write is kept as bytes, and what a log amounts to.

A write is a call of a method of ``Storage`` with its arguments, tensors by safetensors and the rest
as JSON. Whoever keeps it keeps a digest beside it, and reads no write whose digest is another.

A log whose length has doubled is put together: contents that a study adopts take the place of the
writes that led to them. So a study opens in a time proportional to its rows, however they were
told, and what is written for that is proportional to what was told.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from scalable_bo.storage.rounds import AskReport
from scalable_bo.storage.rows import Outcomes, Rows
from scalable_bo.storage.storage import Ask, Change, Contents, Source, Write

_TEXT = "write"  # the JSON among the tensors; the header, where it once was, holds 100 MB
_DATACLASSES = {kind.__name__: kind for kind in (Ask, AskReport, Change, Source)}


@dataclass
class Length:
    """The bytes of a log: of what it was when last put together, and of the writes since."""

    together: int = 0
    since: int = 0

    def count(self, name: str, content: bytes) -> None:
        """Take note of a write."""
        if name == "adopt":
            self.together, self.since = len(content), 0
        elif name != "save_settings":
            self.since += len(content)

    @property
    def has_doubled(self) -> bool:
        """Whether it is time to put the log together."""
        return self.since > self.together


def digest_of(before: str, content: bytes) -> str:
    """Return the digest of a write; ``before`` says where in which log it stands."""
    return hashlib.sha256(before.encode() + content).hexdigest()


def pack(write: Write) -> bytes:
    """Return a write as bytes."""
    tensors: dict[str, Tensor] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, Tensor):
            tensors[str(len(tensors))] = value.detach().cpu().contiguous().clone()
            return {"tensor": str(len(tensors) - 1)}
        if isinstance(value, Outcomes):
            reasons = list(value.reasons.items())
            parts = map(plain, (value.values, value.noise, value.further))
            return {"outcomes": [*parts, reasons, plain(value.times)]}
        if isinstance(value, Contents | Rows):
            public = {name: one for name, one in vars(value).items() if name[0] != "_"}
            return {type(value).__name__: plain(public)}
        if isinstance(value, Mapping):
            return {"mapping": [[key, plain(one)] for key, one in value.items()]}
        if type(value) in _DATACLASSES.values():
            return {type(value).__name__: asdict(value)}
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [plain(one) for one in value]
        return value

    text = json.dumps([write.name, [plain(argument) for argument in write.arguments]])
    tensors[_TEXT] = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    return save_tensors(tensors)


def unpack(content: bytes) -> Write:
    """Return a write of bytes whose digest is right."""
    try:
        tensors = load_tensors(content)
        packed = tensors.get(_TEXT)
        text = note_in(content, _TEXT) if packed is None else packed.numpy().tobytes()
    except (SafetensorError, ValueError, KeyError) as error:
        raise RuntimeError(f"A write of the study cannot be read: {error}.") from error

    def whole(value: Any) -> Any:
        if isinstance(value, list):
            return [whole(one) for one in value]
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind == "tensor":
            return tensors[content]
        if kind == "outcomes":
            values, noise, further, reasons, *times = (whole(part) for part in content)
            return Outcomes(values, noise, dict(reasons), further, *times)
        if kind == "mapping":
            return dict(whole(content))
        if kind == "Contents":
            return Contents(**whole(content))
        if kind == "Rows":
            rows = Rows(0)
            vars(rows).update(whole(content))
            if len(rows.times) < len(rows):  # of before they were kept
                rows.times = rows.X.new_full((len(rows), 3), math.nan)
            return rows
        return _DATACLASSES[kind](**content)

    name, arguments = json.loads(text)
    return Write(name, tuple(whole(argument) for argument in arguments))


def note_in(content: bytes, name: str) -> str:
    """Return a text in the bytes of tensors; raise KeyError, TypeError or ValueError without it."""
    length = int.from_bytes(content[:8], "little")
    return str(json.loads(content[8 : 8 + length])["__metadata__"][name])


def replay(writes: Iterable[Write], dim: int) -> Contents:
    """Return what writes lead to, of ``dim`` parameters."""
    contents = Contents.empty(dim)
    for write in writes:
        if write.name != "save_settings":
            write.apply(contents)
    return contents
