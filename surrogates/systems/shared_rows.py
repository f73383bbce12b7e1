"""Rows of matrices that are shared over the processes of ``torch.distributed``; sums over them, and
the few ways in which they move.

Notation: process r of p holds n_r consecutive ones of n rows.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

from surrogates import memory
from surrogates.systems.processes import Send, contact, place, share
from surrogates.systems.system import Rows


class SharedRows(Rows):
    """n rows, of which every process holds consecutive ones.

    Args:
        num_rows: held by this process, n_r.
        device: of the matrices.
        group: the processes; ``None`` for all.

    Attributes:
        counts: the number of rows in each process.
        start: the first row of this one.
        bytes_moved: sent so far, and as many received, on average over the processes: (p − 1)/p of
            what goes from or to one process, twice that of a sum that all receive.
    """

    is_shared = True

    def __init__(self, num_rows: int, device: torch.device, group: dist.ProcessGroup | None = None):
        self.device = device
        self.group = group
        self.num_held = num_rows
        self.rank, self.size = place(group)
        self._moved = [0]  # bytes, by all that is split from these rows
        counts = torch.zeros(self.size, dtype=torch.long, device=device)
        counts[self.rank] = num_rows
        self.counts: list[int] = self.sum(counts).tolist()
        self.n = sum(self.counts)
        self.start = sum(self.counts[: self.rank])

    @property
    def bytes_moved(self) -> int:
        return self._moved[0]

    def split(self, number: int) -> Self:
        """Return ``number`` other rows, of which every process holds an equal share."""
        part = copy(self)
        part.n = number
        part.counts = self._widths(number)
        part.num_held = part.counts[self.rank]
        part.start = share(number, self.rank, self.size).start
        return part

    def _widths(self, number: int) -> list[int]:
        parts = (share(number, rank, self.size) for rank in range(self.size))
        return [own.stop - own.start for own in parts]

    def norm(self, R: Tensor) -> Tensor:
        squares = torch.linalg.vector_norm(R, dim=0, dtype=torch.float64).square()
        return self.sum(squares).sqrt().to(R.dtype)

    def dot(self, A: Tensor, B: Tensor) -> Tensor:
        return self.sum(torch.linalg.vecdot(A, B, dim=0))

    def all(self, mask: Tensor) -> Tensor:
        return self.max((~mask).any(0).to(torch.uint8)) == 0

    def sum(self, part: Tensor) -> Tensor:
        return self._reduce(part, dist.ReduceOp.SUM)

    def max(self, part: Tensor) -> Tensor:
        return self._reduce(part, dist.ReduceOp.MAX)

    def of(self, rank: int, value: Tensor) -> Tensor:
        if self.size > 1:
            with self._contact(value) as send:
                send(dist.broadcast, value, group_src=rank).wait()
        return value

    def product(self, A: Tensor, B: Tensor) -> Tensor:
        """Return Aᵀ B, (k, s), for this process's rows of A (n, k) and B (n, s)."""
        return self.sum(A.T @ B)

    def owned(self, index: Tensor) -> tuple[Tensor, Tensor]:
        own = index - self.start
        positions = ((own >= 0) & (own < self.num_held)).nonzero().squeeze(1)
        return positions, own[positions]

    def take(self, W: Tensor, index: Tensor) -> Tensor:
        rows = W.new_zeros(len(index), W.shape[1])
        positions, held = self.owned(index)
        rows[positions] = W[held]
        return self.sum(rows)

    def largest(self, values: Tensor, count: int) -> Tensor:
        own = values.topk(min(count, self.num_held), dim=1)
        found = values.new_zeros(2, len(values), self.size, count, dtype=torch.float64)
        found[0, :, self.rank] = -torch.inf  # where fewer are held here
        found[0, :, self.rank, : own.values.shape[1]] = own.values
        found[1, :, self.rank, : own.indices.shape[1]] = (own.indices + self.start).double()
        largest, columns = self.sum(found).flatten(2)
        return columns.gather(1, largest.topk(count, dim=1).indices).long()

    def gather(self, W: Tensor) -> Tensor:
        flat = W.reshape(len(W), -1)
        return torch.cat([part for (part,) in self.chunks(flat)]).reshape(self.n, *W.shape[1:])

    def to_columns(self, W: Tensor) -> Tensor:
        """Return the columns ``shares(name, s)`` of W (n, s), whose rows all processes give.

        All send each other their parts, chunk by chunk, n_r s (p − 1)/p numbers each.
        """
        widths = self._widths(W.shape[1])
        own = widths[self.rank]
        if self.size == 1:
            return W
        out = W.new_empty(self.n, own)
        firsts = [sum(self.counts[:rank]) for rank in range(self.size)]
        size = memory.part_size(W.shape[1], W.dtype)
        for done in range(0, max(self.counts), size):
            part = W[done : done + size]
            lengths = [len(range(done, min(done + size, count))) for count in self.counts]
            message = torch.cat([columns.flatten() for columns in part.split(widths, dim=1)])
            coming = W.new_empty(sum(lengths) * own)
            with self._contact(message) as send:
                received = [length * own for length in lengths]
                sent = [len(part) * width for width in widths]
                send(dist.all_to_all_single, coming, message, received, sent).wait()
            arrived = coming.view(sum(lengths), own).split(lengths)
            for first, length, rows in zip(firsts, lengths, arrived, strict=True):
                out[first + done : first + done + length] = rows
        return out

    def least(self, number: int) -> int:
        return -int(self.max(torch.tensor(-int(number), device=self.device)))

    def agree(self, decision: bool) -> bool:
        return bool(self.of(0, torch.tensor(int(decision), dtype=torch.uint8, device=self.device)))

    def agreed(self, generator: torch.Generator, num_columns: int) -> torch.Generator:
        state = [generator.get_state(), torch.tensor([num_columns], device="cpu").view(torch.uint8)]
        own = torch.cat(state).to(self.device)
        if not self.least(torch.equal(self.of(0, own.clone()), own)):
            raise ValueError(
                "`generator` must be in the same state in all processes, and `rhs` have as many"
                " columns, got others. Seed it alike."
            )
        return generator

    def chunks(self, *matrices: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Yield all n rows of the matrices to all processes in chunks, the next sent meanwhile."""
        widths = [matrix.shape[1] for matrix in matrices]
        size = memory.part_size(sum(widths), matrices[0].dtype)
        parts = [
            (rank, slice(start, min(start + size, count)))
            for rank, count in enumerate(self.counts)
            for start in range(0, count, size)
        ]

        def send(rank: int, part: slice) -> tuple[Tensor, dist.Work | None]:
            if rank == self.rank:
                chunk = torch.cat([matrix[part] for matrix in matrices], dim=1)
            else:
                chunk = matrices[0].new_empty(part.stop - part.start, sum(widths))
            if self.size == 1:
                return chunk, None
            with self._contact(chunk) as send:
                return chunk, send(dist.broadcast, chunk, group_src=rank)

        coming = send(*parts[0])
        for following in [*parts[1:], None]:
            chunk, work = coming
            if work is not None:
                with self._contact():
                    work.wait()
            if following is not None:
                coming = send(*following)
            yield chunk.split(widths, dim=1)

    def normal(
        self, num_columns: int, generator: torch.Generator, *, like: Tensor, together: int = 4096
    ) -> Tensor:
        """Return this process's rows of n standard normal ones, (n_r, num_columns), which are the
        same however the rows are shared: so many ``together`` have a stream of their own.
        """
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        out = like.new_empty(self.num_held, num_columns)
        device = memory.drawing_device(out.device, self.n * num_columns)
        shape = together, num_columns
        end = self.start + len(out)
        for stream in range(self.start // together, -(-end // together)):
            own = memory.seeded(device, seed + stream)
            rows = torch.randn(shape, generator=own, device=device, dtype=torch.float64)
            first = stream * together
            low = max(first, self.start)
            high = min(first + together, end)
            out[low - self.start : high - self.start] = rows[low - first : high - first]
        return out

    def _reduce(self, part: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        if self.size > 1:
            part = part.contiguous()
            with self._contact(part, passes=2) as send:
                send(dist.all_reduce, part, operation).wait()
        return part

    @contextmanager
    def _contact(self, message: Tensor | None = None, passes: int = 1) -> Iterator[Send]:
        """Count a message's bytes; give what sends it."""
        if message is not None:
            self._moved[0] += (
                passes * (self.size - 1) * message.numel() * message.element_size() // self.size
            )
        with contact(self.rank, self.size, self.group) as send:
            yield send
