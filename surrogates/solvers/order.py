"""Random orders of the rows, dealt out in equal parts."""

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from surrogates.solvers.state import State


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
