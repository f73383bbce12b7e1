"""Exact block steps by processes that share the rows: they factorise the next blocks side by side,
one each, and step in turns.

Notation: process r of p; a block of b rows, its residual G (b, s), and its step D = H_bb⁻¹ G.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from surrogates.solvers.order import Order
from surrogates.systems.system import Apply, BlockSystem


@dataclass(frozen=True, eq=False)
class Turns:
    """The next p blocks of an order, each factorised by the process whose turn it is.

    A block costs two messages: the parts of G are summed for that process alone, and D comes back,
    with sums of squares of G. That is about as many bytes as a sum that all processes receive,
    after which each of them would factorise every block.

    Attributes:
        system: of the processes.
        first: number in the order of the first block.
        blocks: the rows of each, at most p.
        invert: G → H_bb⁻¹ G of this process's own block; ``None`` where there were fewer blocks
            than processes.
    """

    system: BlockSystem
    first: int
    blocks: tuple[Tensor, ...]
    invert: Apply | None

    @classmethod
    def of(
        cls,
        system: BlockSystem,
        order: Order,
        before: Self | None,
        factorise: Callable[[BlockSystem], Apply],
    ) -> Self:
        """Return the turns among which the order's next block is, those ``before`` where it is one
        of them.

        Raises:
            ValueError, MemoryError: in all processes, if one cannot factorise its block; in that
                one, what it ran into.
        """
        size = system.rows.size
        if before is not None and 0 < order.position < before.first + len(before.blocks):
            return before
        # After a restart, the turns are those of a run that was not cut
        first = order.position - order.position % size
        blocks = tuple(
            order.part(number) for number in range(first, min(first + size, order.num_parts))
        )
        invert = None
        failure: Exception | None = None
        try:
            own = system.restrict_own(blocks)  # which evaluates this process's block
            invert = None if own is None else factorise(own)
        except (ValueError, MemoryError, torch.OutOfMemoryError) as error:
            failure = error
        if not system.rows.least(failure is None):
            raise failure or ValueError(
                "`kernel` must be finite and positive semi-definite, got a block in another process"
                " that is not, or does not fit in its memory. Its message says which."
            )
        return cls(system, first, blocks, invert)

    def step(
        self, number: int, Z: Tensor, rhs: Tensor, squares: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return D (b, s) of the order's block ``number``, for G = (H Z − B)_b, and the two
        ``squares`` (2, s) of G.
        """
        turn = number - self.first
        gap = self.system.rows_matmul_for(turn, self.blocks[turn], Z, minus=rhs)
        if turn == self.system.rows.rank and self.invert is not None:
            message = torch.cat([self.invert(gap), squares(gap)])
        else:
            message = gap.new_empty(len(gap) + 2, gap.shape[1])
        message = self.system.rows.of(turn, message)
        return message[:-2], message[-2:]
