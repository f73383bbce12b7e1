"""The running columns of an iterative solve, taken apart into tensors and numbers,
and put together again.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

Number = int | float | str | None


class Parts(NamedTuple):
    """What a state is made of: all that a file has to hold."""

    tensors: dict[str, Tensor]
    numbers: dict[str, Number]


@dataclass(frozen=True)
class State:
    """The running columns of an iterative solve: every tensor field, also of a state inside, has
    them as its last dimension.

    A state owns its tensors: a step may update them in place, and the state it was given is not
    used again.
    """

    def select(self, keep: Tensor) -> Self:
        """Return the state of the columns ``keep``."""
        selected: dict[str, Any] = {}
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            if isinstance(value, Tensor):
                selected[name] = value[..., keep]
            elif isinstance(value, State):
                selected[name] = value.select(keep)
        return replace(self, **selected)

    def parts(self, prefix: str = "") -> Parts:
        """Return the tensors and numbers of the state and of the states inside, by name;
        tuples of index tensors lie end to end.
        """
        parts = Parts({}, {})
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            key = prefix + name
            if isinstance(value, Tensor):
                parts.tensors[key] = value
            elif isinstance(value, State):
                for own, inner in zip(parts, value.parts(f"{key}."), strict=True):
                    own.update(inner)  # type: ignore[attr-defined]
            elif isinstance(value, tuple):
                parts.tensors[key] = torch.cat(value) if value else torch.zeros(0, dtype=torch.long)
                parts.tensors[f"{key}.lengths"] = torch.tensor(
                    [len(part) for part in value], dtype=torch.long
                )
            elif isinstance(value, int | float | str):
                parts.numbers[key] = value
        return parts

    def with_parts(self, parts: Parts, prefix: str = "") -> Self:
        """Return the state of which ``parts`` are; what they lack, such as a preconditioner,
        is kept.
        """
        restored: dict[str, Any] = {}
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            key = prefix + name
            if isinstance(value, Tensor):
                restored[name] = parts.tensors[key].to(value.device)
            elif isinstance(value, State):
                restored[name] = value.with_parts(parts, f"{key}.")
            elif isinstance(value, tuple):
                restored[name] = parts.tensors[key].split(parts.tensors[f"{key}.lengths"].tolist())
            elif isinstance(value, int | float | str):
                restored[name] = parts.numbers[key]
        return replace(self, **restored)
