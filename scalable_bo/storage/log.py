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
    """How long a log is, in bytes: what it amounted to when it was put together last, and the
    writes since then.
    """

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
            return {type(value).__name__: plain(vars(value))}
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
    """Return a text from the header of tensors as bytes.

    Raises:
        KeyError, TypeError, ValueError: if there is none.
    """
    length = int.from_bytes(content[:8], "little")
    return str(json.loads(content[8 : 8 + length])["__metadata__"][name])


def replay(writes: Iterable[Write], dim: int) -> Contents:
    """Return what writes lead to, of ``dim`` parameters: what applying one after the other would
    lead to, in a time proportional to their number.
    """
    replaying = _Replay(dim)
    for write in writes:
        write.apply(replaying)
    replaying.settle()
    return replaying.contents()


class _Replay(Contents):
    """Contents to which writes are applied, of which those that come after another are put together
    until they are settled.

    A write that adds points copies all points, so that n of them would take n² steps.
    """

    def __init__(self, dim: int) -> None:
        self.adopt(Contents.empty(dim))
        self._points: list[Tensor] = []
        self._asks: list[int] = []
        self._times: list[float] = []  # of the asks
        self._ids: list[int] = []
        self._outcomes: list[Outcomes] = []

    def contents(self) -> Contents:
        """Return these as contents alone."""
        return Contents(**{name: getattr(self, name) for name in vars(Contents.empty(0))})

    def save_settings(self, settings: str) -> None:
        """Do nothing: settings are not among the contents."""

    def add_ask(
        self, ask: Ask, cost: AskReport, first_id: int, X: Tensor, num_queued: int = 0
    ) -> None:
        """Do what ``Storage`` says, as all of these."""
        self._append(X, ask.number, cost.time)
        self.note_ask(ask, cost, num_queued)

    def add_source(self, source: Source, X: Tensor, outcomes: Outcomes, first_told: int) -> None:
        self._append(X, 0, math.nan)
        self.sources.append(source)
        self.add_outcomes(range(source.first_id, source.first_id + len(X)), outcomes, first_told)

    def add_outcomes(self, ids: Sequence[int], outcomes: Outcomes, first_told: int) -> None:
        self._ids.extend(ids)
        self._outcomes.append(outcomes)

    def remove_outcomes(self, ids: Sequence[int]) -> None:
        self.settle()
        super().remove_outcomes(ids)

    def replace_outcomes(self, *arguments: Any) -> None:
        self.settle()
        super().replace_outcomes(*arguments)

    def settle(self) -> None:
        """Bring the rows up to date."""
        rows = self.rows
        if self._points:
            sizes = torch.tensor([len(X) for X in self._points], device="cpu")
            asks = torch.tensor(self._asks, device="cpu").repeat_interleave(sizes)
            times = torch.tensor(self._times, dtype=torch.float64, device="cpu")
            rows.append(torch.cat(self._points), asks, times.repeat_interleave(sizes))
        if self._outcomes:
            # A point that is told one outcome after the other is told all that are known each time
            last = {id: position for position, id in enumerate(self._ids)}
            places = [position for position, id in enumerate(self._ids) if last[id] == position]
            outcomes = Outcomes.join(self._outcomes).select(places)
            rows.record([self._ids[position] for position in places], outcomes)
            rows.next_told += len(self._ids) - len(places)
        for part in (self._points, self._asks, self._times, self._ids, self._outcomes):
            part.clear()

    def _append(self, X: Tensor, ask: int, time: float) -> None:
        self._points.append(X)
        self._asks.append(ask)
        self._times.append(time)
