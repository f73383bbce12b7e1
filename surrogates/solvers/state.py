"""The running columns of an iterative solve, and how they and what surrounds them are taken apart
into tensors and numbers, and put together again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

Number = int | float | str | None
Parts = dict[str, Tensor | Number]  # all that a file has to hold


@dataclass
class State:
    """The running columns of an iterative solve: every tensor field, also of a state inside, has
    them as its last dimension.

    A state owns its tensors: a step may update them in place, and the state it was given is not
    used again.
    """

    def names(self) -> list[str]:
        """Return the names of the fields."""
        return [entry.name for entry in fields(self)]


def parts(owner: object, names: Iterable[str], prefix: str) -> Parts:
    """Return the tensors and numbers that ``owner`` has by these names, and those of the states
    inside; tuples of index tensors lie end to end.
    """
    found: Parts = {}
    for name in names:
        value = getattr(owner, name)
        key = prefix + name
        if isinstance(value, State):
            found |= parts(value, value.names(), f"{key}.")
        elif isinstance(value, tuple):
            found[key] = (
                torch.cat(value) if value else torch.zeros(0, dtype=torch.long, device="cpu")
            )
            found[f"{key}.lengths"] = torch.tensor(
                [len(part) for part in value], dtype=torch.long, device="cpu"
            )
        elif isinstance(value, Tensor | int | float | str):
            found[key] = value
    return found


def restore(owner: object, names: Iterable[str], prefix: str, saved: Mapping[str, Any]) -> None:
    """Give ``owner`` what :func:`parts` took from it; it keeps what those lack."""
    for name in names:
        value = getattr(owner, name)
        key = prefix + name
        if isinstance(value, State):
            restore(value, value.names(), f"{key}.", saved)
        elif isinstance(value, Tensor):
            setattr(owner, name, saved[key].to(value.device))
        elif isinstance(value, tuple):
            setattr(owner, name, saved[key].split(saved[f"{key}.lengths"].tolist()))
        elif isinstance(value, int | float | str):
            setattr(owner, name, saved[key])
