"""Random orders of the rows, dealt out in equal parts: held in memory, or computed where they are
needed if there are too many.

The second kind is a Feistel network: with an even number of bits for the n rows, split in halves
(l, r), rounds (l, r) ← (r, l ⊕ f(r)) with f keyed at random are a permutation whatever f is;
numbers that fall beyond n are sent through again until they do not.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from surrogates.solvers.state import State

LARGEST_HELD = 2**24  # rows whose order is held: 128 MiB
NUM_ROUNDS = 6


@dataclass
class Order(State):
    """The rest of a random partition of ``range(num_rows)`` into ``num_parts`` parts that differ by
    one row at most.

    Attributes:
        content: the rows in their order, or the keys by which it is computed; none for an order
            that has come to its end.
        position: the number of the next part.
    """

    num_rows: int
    num_parts: int = 0
    position: int = 0
    content: tuple[Tensor, ...] = ()

    def shuffled(self, part_size: int, generator: torch.Generator, device: torch.device) -> Self:
        """Return a new order, in parts of at most ``part_size``."""
        if self.num_rows <= LARGEST_HELD:
            content = torch.randperm(self.num_rows, generator=generator, device=generator.device)
        else:
            content = random_keys(generator)
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
        return (
            content[start:stop]
            if self.num_rows <= LARGEST_HELD
            else permuted(start, stop, self.num_rows, content)
        )

    def next(self) -> tuple[Tensor, Self]:
        """Return the rows of the next part, and what is left."""
        rest = replace(self, position=self.position + 1)
        return self.part(self.position), replace(rest, content=()) if rest.is_at_end else rest


def random_keys(generator: torch.Generator) -> Tensor:
    """Return what a random permutation is computed from."""
    return torch.randint(2**31, (NUM_ROUNDS,), generator=generator, device=generator.device)


def permuted(start: int, stop: int, n: int, keys: Tensor) -> Tensor:
    """Return the numbers from ``start`` to ``stop`` of the permutation of ``range(n)`` that the
    ``keys`` stand for.
    """
    half = math.ceil(math.log2(n) / 2) if n > 1 else 1
    mask = 2**half - 1
    numbers = torch.arange(start, stop, device=keys.device)
    outside = torch.ones_like(numbers, dtype=torch.bool)
    while bool(outside.any()):
        moving = numbers[outside]
        left = moving >> half
        right = moving & mask
        for key in keys:
            left, right = right, left ^ (_mixed(right + key) & mask)
        numbers[outside] = (left << half) | right
        outside = numbers >= n
    return numbers


def _mixed(x: Tensor) -> Tensor:
    """Return 31-bit numbers, every bit of which depends on all of those of ``x``, at most 2^32."""
    for multiplier in (0x45D9F3B, 0x2C1B3C6D):
        x = ((x ^ (x >> 16)) * multiplier) & 0x7FFFFFFF
    return x ^ (x >> 15)
