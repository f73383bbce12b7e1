"""The n rows of a system's matrices: all in this process, or shared over the processes of
``torch.distributed``; sums over them, and the few ways in which they move.

Notation: X (n, d) points, W (n, s) weights; process r of p holds the consecutive rows X_r (n_r, d)
and W_r (n_r, s).
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from surrogates import checks

CHUNK_BYTES = 2**26  # of rows on their way to all processes; two chunks are held at a time
ROWS_PER_STREAM = 4096  # that have a stream of random numbers of their own
DEFAULT_TIMEOUT = 300.0
# Gloo's threads need the interpreter to free the last messages, and abort a process whose
# interpreter is ending
SECONDS_TO_LEAVE = 0.1


@contextmanager
def processes(timeout_seconds: float = DEFAULT_TIMEOUT) -> Iterator[torch.device]:
    """Join the processes that ``torchrun`` started, and leave them at the end; give the device of
    this one.

    With CUDA devices they communicate by NCCL, a device a process, otherwise by gloo. Started
    alone, without ``torchrun``, the program is the only process.

    Args:
        timeout_seconds: a process that is not heard of for so long ends the others, with an error.
            A killed one usually does so at once.
    """
    checks.positive_float("timeout_seconds", timeout_seconds)
    cuda = torch.cuda.is_available()
    device = (
        torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}") if cuda else torch.device("cpu")
    )
    if not dist.is_torchelastic_launched():
        yield device
        return
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(seconds=timeout_seconds))
    yield device
    dist.destroy_process_group()  # not after an error: others may be gone
    time.sleep(SECONDS_TO_LEAVE)


def own_rows(n: int, group: dist.ProcessGroup | None = None) -> slice:
    """Return the rows of n that are this process's, where all get equally many, or one more."""
    checks.positive_int("n", n)
    rank, size = _place(group)
    return slice(rank * n // size, (rank + 1) * n // size)


class Rows:
    """n rows, all of them in this process.

    Solvers ask it for every sum over rows and every choice of some: what they need of the other
    processes, if there are any, is here. Every method but ``owned`` and ``add`` is called by all
    processes, in the same order.

    Attributes:
        n: the number of rows.
        num_held: of them in this process.
        rank, size: the number of this process, and how many there are.
        is_shared: whether other processes may hold other rows.
    """

    is_shared: ClassVar[bool] = False

    def __init__(self, n: int):
        self.n = n
        self.num_held = n
        self.rank = 0
        self.size = 1

    def norm(self, R: Tensor) -> Tensor:
        """Return the Euclidean norm of each column of R (n, s), (s,)."""
        return torch.linalg.vector_norm(R, dim=0)

    def dot(self, A: Tensor, B: Tensor) -> Tensor:
        """Return the inner product of each pair of columns, (s,)."""
        return torch.linalg.vecdot(A, B, dim=0)

    def all(self, mask: Tensor) -> Tensor:
        """Return whether every row of each column of ``mask`` (n, s) is true, (s,)."""
        return mask.all(0)

    def sum(self, part: Tensor) -> Tensor:
        """Return the sum of the processes' parts, bit by bit the same in all; ``part`` may be
        overwritten.
        """
        return part

    def sum_for(self, rank: int, part: Tensor) -> Tensor:
        """Return that sum in process ``rank``, and nothing of use in the others."""
        return part

    def of(self, rank: int, value: Tensor) -> Tensor:
        """Return the ``value`` of process ``rank``; that of others, contiguous, is overwritten."""
        return value

    def owned(self, index: Tensor) -> tuple[slice | Tensor, Tensor]:
        """Return which of the rows ``index`` are held here, as positions in ``index``,
        and where they lie in the matrices held here.
        """
        return slice(None), index

    def take(self, W: Tensor, index: Tensor) -> Tensor:
        """Return the rows ``index`` of W (n, s), (b, s), to all processes."""
        return W[index]

    def add(self, W: Tensor, index: Tensor, D: Tensor, alpha: float = 1.0) -> Tensor:
        """Add ``alpha`` times D (b, s) to the distinct rows ``index`` of W (n, s), in place,
        and return it.
        """
        positions, held = self.owned(index)
        return W.index_add_(0, held, D[positions], alpha=alpha)

    def least(self, number: int) -> int:
        """Return the smallest of the processes' numbers, once all have given theirs."""
        return int(number)

    def agree(self, decision: bool) -> bool:
        """Return the decision of the first process, where clocks may lead to several."""
        return decision

    def agreed(self, generator: torch.Generator, num_columns: int) -> torch.Generator:
        """Return ``generator``, once it is known to be in the same state in all processes,
        and right-hand sides to have as many columns.
        """
        return generator

    def require_all(self, what: str, remedy: str) -> None:
        """Require that this process holds all rows."""
        if self.is_shared:
            raise TypeError(
                f"{what} needs all rows of the system in one process, got one whose rows are"
                f" shared. {remedy}"
            )


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
        self.rank, self.size = _place(group)
        self.bytes_moved = 0
        counts = torch.zeros(self.size, dtype=torch.long, device=device)
        counts[self.rank] = num_rows
        self.counts: list[int] = self.sum(counts).tolist()
        self.n = sum(self.counts)
        self.start = sum(self.counts[: self.rank])

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
        """Return the largest of the processes' entries; ``part`` is overwritten."""
        return self._reduce(part, dist.ReduceOp.MAX)

    def sum_for(self, rank: int, part: Tensor) -> Tensor:
        if self.size > 1:
            part = part.contiguous()
            with self._contact(part):
                dist.reduce(part, group=self.group, group_dst=rank)
        return part

    def of(self, rank: int, value: Tensor) -> Tensor:
        if self.size > 1:
            with self._contact(value):
                dist.broadcast(value, group=self.group, group_src=rank)
        return value

    def owned(self, index: Tensor) -> tuple[Tensor, Tensor]:
        own = index - self.start
        positions = ((own >= 0) & (own < self.num_held)).nonzero().squeeze(1)
        return positions, own[positions]

    def take(self, W: Tensor, index: Tensor) -> Tensor:
        rows = W.new_zeros(len(index), W.shape[1])
        positions, held = self.owned(index)
        rows[positions] = W[held]
        return self.sum(rows)

    def least(self, number: int) -> int:
        return -int(self.max(torch.tensor(-int(number), device=self.device)))

    def agree(self, decision: bool) -> bool:
        return bool(self.of(0, torch.tensor(int(decision), dtype=torch.uint8, device=self.device)))

    def agreed(self, generator: torch.Generator, num_columns: int) -> torch.Generator:
        state = [generator.get_state(), torch.tensor([num_columns]).view(torch.uint8)]
        own = torch.cat(state).to(self.device)
        if not self.least(torch.equal(self.of(0, own.clone()), own)):
            raise ValueError(
                "`generator` must be in the same state in all processes, and `rhs` have as many"
                " columns, got others. Seed it alike."
            )
        return generator

    def chunks(self, *matrices: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Yield all n rows of the matrices to all processes, chunk by chunk;
        the next is on its way while one is used.
        """
        widths = [matrix.shape[1] for matrix in matrices]
        row_bytes = sum(widths) * matrices[0].element_size()
        size = max(1, CHUNK_BYTES // row_bytes)
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
            with self._contact(chunk):
                return chunk, dist.broadcast(chunk, group=self.group, group_src=rank, async_op=True)

        coming = send(*parts[0])
        for following in [*parts[1:], None]:
            chunk, work = coming
            if work is not None:
                with self._contact():
                    work.wait()
            if following is not None:
                coming = send(*following)
            yield chunk.split(widths, dim=1)

    def normal(self, num_columns: int, generator: torch.Generator, *, like: Tensor) -> Tensor:
        """Return this process's rows of n standard normal ones, (n_r, num_columns),
        which are the same however the rows are shared.
        """
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        out = like.new_empty(self.num_held, num_columns)
        end = self.start + len(out)
        for stream in range(self.start // ROWS_PER_STREAM, -(-end // ROWS_PER_STREAM)):
            own = torch.Generator().manual_seed(seed + stream)
            rows = torch.randn(ROWS_PER_STREAM, num_columns, generator=own, dtype=like.dtype)
            first = stream * ROWS_PER_STREAM
            low = max(first, self.start)
            high = min(first + ROWS_PER_STREAM, end)
            out[low - self.start : high - self.start] = rows[low - first : high - first]
        return out

    def _reduce(self, part: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        if self.size > 1:
            part = part.contiguous()
            with self._contact(part, passes=2):
                dist.all_reduce(part, operation, group=self.group)
        return part

    @contextmanager
    def _contact(self, message: Tensor | None = None, passes: int = 1) -> Iterator[None]:
        if message is not None:
            self.bytes_moved += (
                passes * (self.size - 1) * message.numel() * message.element_size() // self.size
            )
        try:
            yield
        except RuntimeError as error:
            raise ConnectionError(
                f"Process {self.rank} of {self.size} lost contact with another, which ended or was"
                f" not heard of in time ({error}). Start all again; a solver with a `checkpoint`"
                " goes on from its last one."
            ) from error


def draw_without_replacement(weights: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return ``count`` distinct rows, drawn one after another in proportion to ``weights`` (n,)
    among those left.
    """
    clocks = torch.empty(weights.shape, dtype=torch.float64, device=generator.device).exponential_(
        generator=generator
    )
    # The first clocks to ring are such draws
    return (weights / clocks.to(weights.device)).topk(count).indices


def _place(group: dist.ProcessGroup | None) -> tuple[int, int]:
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError(
            "`group` must have this process in it, got one that does not. Pass a group only to its"
            " members."
        )
    return rank, dist.get_world_size(group)
