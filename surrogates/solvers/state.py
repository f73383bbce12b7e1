"""The running columns of an iterative solve, and how they and what surrounds them are taken apart
into tensors and numbers, and put together again; and random orders of the rows.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

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


@dataclass
class Order(State):
    """The rest of a random partition of ``range(num_rows)`` into ``num_parts`` parts that differ by
    one row at most.

    Attributes:
        content: the rows in their order; none of an order that has come to its end.
        position: the number of the next part.
    """

    num_rows: int
    num_parts: int = 0
    position: int = 0
    content: tuple[Tensor, ...] = ()

    def shuffled(self, part_size: int, generator: torch.Generator, device: torch.device) -> Self:
        """Return a new order, in parts of at most ``part_size``."""
        content = torch.randperm(self.num_rows, generator=generator, device=generator.device)
        return replace(
            self,
            num_parts=math.ceil(self.num_rows / part_size),
            position=0,
            content=(content.to(device),),
        )

    @property
    def is_at_end(self) -> bool:
        return self.position == self.num_parts

    def part(self, number: int) -> Tensor:
        """Return the rows of part ``number``."""
        size, larger = divmod(self.num_rows, self.num_parts)
        start = number * size + min(number, larger)
        stop = start + size + (number < larger)
        (content,) = self.content
        return content[start:stop]

    def next(self) -> tuple[Tensor, Self]:
        """Return the rows of the next part, and what is left."""
        rest = replace(self, position=self.position + 1)
        return self.part(self.position), replace(rest, content=()) if rest.is_at_end else rest
