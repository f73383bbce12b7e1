"""The system H W = B with its rows shared over the processes of ``torch.distributed``; sums over
them, and the few ways in which they move.

Notation: process r of p holds the consecutive points X_r (n_r, d), their noise, and W_r, B_r (n_r,
s) of all n rows; b is the size of a block.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from datetime import timedelta
from itertools import pairwise
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from gpytorch.kernels import Kernel
from torch import Tensor

from surrogates import checks, memory
from surrogates.operators import generators
from surrogates.operators.kernel_matrix import Dense, KernelOperator, Tiled, kernel_operator
from surrogates.operators.tiles import FUNCTIONS_TOGETHER, KernelTiles
from surrogates.systems.base import ORDERED_SIZES, Rows
from surrogates.systems.kernel import KernelSystem

# Parts of all rows, within which and over which sums are taken in one order, however the rows are
# shared: one process, two, four, eight and sixteen get the same to the last bit
NUM_PARTS = 16
CHUNK_BYTES = 2**26  # of rows on their way to all processes; two chunks are held at a time
ROWS_PER_STREAM = 4096  # that have a stream of random numbers of their own
DEFAULT_TIMEOUT = 300.0
# Gloo's threads need the interpreter to free the last messages, and abort a process whose
# interpreter is ending
SECONDS_TO_LEAVE = 0.1
# By default NCCL ends a process whose message has failed before Python hears of it. These make the
# process wait for its messages, and raise
NCCL_SETTINGS = {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}

Send = Callable[..., dist.Work]  # a collective function and its arguments, but for the group


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
            what goes from or to one process, twice that of a sum that all receive; of a sum in a
            fixed order for one process (p + 1)/p times as much.
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
        if self.size not in ORDERED_SIZES:
            return self._reduce(part, dist.ReduceOp.SUM)
        return self._ordered_sum(part, range(self.size))

    def max(self, part: Tensor) -> Tensor:
        """Return the largest of the processes' entries; ``part`` is overwritten."""
        return self._reduce(part, dist.ReduceOp.MAX)

    def sum_for(self, rank: int, part: Tensor) -> Tensor:
        if self.size in ORDERED_SIZES:
            return self._ordered_sum(part, (rank,))
        if self.size > 1:
            part = part.contiguous()
            with self._contact(part) as send:
                send(dist.reduce, part, group_dst=rank).wait()
        return part

    def of(self, rank: int, value: Tensor) -> Tensor:
        if self.size > 1:
            with self._contact(value) as send:
                send(dist.broadcast, value, group_src=rank).wait()
        return value

    def parts(self) -> list[slice]:
        """Return this process's rows in the parts of all n rows, at most ``NUM_PARTS``."""
        ends = {number * self.n // NUM_PARTS for number in range(NUM_PARTS + 1)}
        stop = self.start + self.num_held
        own = sorted({self.start, stop} | {end for end in ends if self.start < end < stop})
        return [slice(a - self.start, b - self.start) for a, b in pairwise(own)]

    def product(self, A: Tensor, B: Tensor) -> Tensor:
        """Return Aᵀ B, (k, s), for this process's rows of A (n, k) and B (n, s)."""
        return self.sum(summed(A[part].T @ B[part] for part in self.parts()))

    def owned(self, index: Tensor) -> tuple[Tensor, Tensor]:
        own = index - self.start
        positions = ((own >= 0) & (own < self.num_held)).nonzero().squeeze(1)
        return positions, own[positions]

    def take(self, W: Tensor, index: Tensor) -> Tensor:
        rows = W.new_zeros(len(index), W.shape[1])
        positions, held = self.owned(index)
        rows[positions] = W[held]
        return self.sum(rows)

    def gather(self, W: Tensor) -> Tensor:
        flat = W.reshape(len(W), -1)
        return torch.cat([part for (part,) in self.chunks(flat)]).reshape(self.n, *W.shape[1:])

    def to_columns(self, W: Tensor) -> Tensor:
        """Return the columns ``shares(name, s)`` of W (n, s), of which every process gives its
        rows.

        All send each other their parts, chunk by chunk, n_r s (p − 1)/p numbers each.
        """
        widths = [
            own.stop - own.start
            for own in (_share(W.shape[1], rank, self.size) for rank in range(self.size))
        ]
        own = widths[self.rank]
        if self.size == 1:
            return W
        out = W.new_empty(self.n, own)
        firsts = [sum(self.counts[:rank]) for rank in range(self.size)]
        size = max(1, CHUNK_BYTES // max(1, W.shape[1] * W.element_size()))
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

    def meet(self) -> None:
        self.least(0)

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

    def normal(self, num_columns: int, generator: torch.Generator, *, like: Tensor) -> Tensor:
        """Return this process's rows of n standard normal ones, (n_r, num_columns),
        which are the same however the rows are shared.
        """
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        out = like.new_empty(self.num_held, num_columns)
        device = generators.drawing_device(out.device, self.n * num_columns)
        shape = ROWS_PER_STREAM, num_columns
        end = self.start + len(out)
        for stream in range(self.start // ROWS_PER_STREAM, -(-end // ROWS_PER_STREAM)):
            own = generators.seeded(device, seed + stream)
            rows = torch.randn(shape, generator=own, device=device, dtype=torch.float64)
            first = stream * ROWS_PER_STREAM
            low = max(first, self.start)
            high = min(first + ROWS_PER_STREAM, end)
            out[low - self.start : high - self.start] = rows[low - first : high - first]
        return out

    def _ordered_sum(self, part: Tensor, ranks: Sequence[int]) -> Tensor:
        """Return the sum of the processes' parts to those of ``ranks``: in pairs of processes, of
        their sums in pairs, and so on. Each sums a slice of the numbers, and sends it on.
        """
        length = -(-part.numel() // self.size)
        message = torch.nn.functional.pad(part.flatten(), (0, self.size * length - part.numel()))
        coming = torch.empty_like(message)
        with self._contact(message) as send:
            send(dist.all_to_all_single, coming, message).wait()
        own = summed(coming.view(self.size, length))
        sent = [length if rank in ranks else 0 for rank in range(self.size)]
        received = [length if self.rank in ranks else 0] * self.size
        message = own.repeat(len(ranks))
        whole = own.new_empty(sum(received))
        with self._contact(message) as send:
            send(dist.all_to_all_single, whole, message, received, sent).wait()
        return whole[: part.numel()].view_as(part) if len(whole) else part

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
            self.bytes_moved += (
                passes * (self.size - 1) * message.numel() * message.element_size() // self.size
            )
        with _contact(self.rank, self.size, self.group) as send:
            yield send


class DistributedKernelSystem(KernelSystem):
    """The system H W = B with H = k(X, X) + Σ, of which every process holds some rows: memory O(n
    (d + s) / p) each.

    Every process runs the same program on its own rows. Right-hand sides, warm starts and solutions
    are then the process's rows, while residuals, steps and epochs are those of the whole system,
    the same in all processes, bit by bit. A step on a block gathers the block's points (b · d
    numbers), each process multiplies k(X_b, X_r) with its weights, and one sum over the processes
    (b · s numbers) makes the block's residual; SGD needs two, and one of features. Exact blocks are
    factorised side by side, one by each process, which gets the block's residual and sends the step
    that it makes of it. A product with H, of which conjugate gradients take one a step and every
    method one at the end, passes X and W around in chunks. All processes need the same software,
    solver and generator state. Any number of them takes the same steps, but for rounding, which
    conjugate gradients amplify: solutions then agree to within the error that their residuals
    leave.

    Args:
        kernel: a GPyTorch kernel without a batch shape, the same in all processes. Its
            hyperparameters are read now.
        X: (n_r, d) the points of this process, at least one; the first process has the first rows.
        noise: σ², a number or scalar tensor, the same in all processes, or (n_r,) variances of this
            process's points, all above 0.
        group: the processes; ``None`` for all. Without ``torch.distributed``, this process alone.

    Attributes:
        rows: who holds which rows; draws random ones, and counts the bytes moved.

    Raises:
        TypeError, ValueError: if the points are not finite, or differ in kind between the
            processes, or the noise is not positive.
        ConnectionError: here and in solves, if another process ended, or was not heard of within
            the group's timeout.
    """

    rows: SharedRows

    def __init__(
        self,
        kernel: Kernel,
        X: Tensor,
        noise: Tensor | float,
        *,
        group: dist.ProcessGroup | None = None,
    ):
        checks.floating_tensor("X", X)
        if X.ndim != 2 or 0 in X.shape:
            raise ValueError(
                f"`X` must have shape (n_r, d) with n_r, d ≥ 1, got {tuple(X.shape)}. Use as many"
                " processes as have rows."
            )
        self.rows = SharedRows(len(X), X.device, group)
        super().__init__(kernel_operator(kernel, X, memory_budget=0), noise, self.rows)
        self.gpytorch_kernel = kernel
        kinds = [X.shape[1], X.element_size(), self.noise.ndim]
        if [self.rows.least(kind) for kind in kinds] != [-self.rows.least(-kind) for kind in kinds]:
            raise ValueError(
                "`X` must have the same columns and dtype in all processes, and `noise` be a scalar"
                " in all or in none."
            )
        with torch.no_grad():
            self._diagonal = kernel(X, diag=True)
        variances = self.noise.expand(len(X)).double()
        extremes = self.rows.max(torch.stack([self._diagonal.max().double(), -variances.min()]))
        self._largest_entry = extremes[0].to(X)
        self._smallest_noise = -extremes[1].to(X)
        self._mean_noise = (self.rows.sum(variances.sum()) / self.n).to(X)
        # What moves together of a point: its inputs and, if it has its own, its noise
        self._held = torch.cat([X, self.noise.unsqueeze(1)], 1) if self.noise.ndim else X
        # Rows asked for last, their points and noise
        self._gathered: list[tuple[Tensor, Tensor, Tensor]] = []

    @property
    def bytes_moved(self) -> int:
        """What this process has sent so far, and as much received,
        on average over the processes.
        """
        return self.rows.bytes_moved

    @property
    def diagonal(self) -> Tensor:
        return self._diagonal

    @property
    def largest_entry(self) -> Tensor:
        return self._largest_entry

    @property
    def smallest_noise(self) -> Tensor:
        return self._smallest_noise

    @property
    def mean_noise(self) -> Tensor:
        return self._mean_noise

    def __matmul__(self, W: Tensor) -> Tensor:
        return self.kernel_matmul(W).addcmul_(self._noise_column(), W)

    def kernel_matmul(self, W: Tensor) -> Tensor:
        """Return this process's rows of K W."""
        self.entries += self.n**2
        X = self.kernel.tiles.X1
        out = torch.zeros_like(W)
        for X_part, W_part in self.rows.chunks(X, W):
            out += (
                kernel_operator(self.gpytorch_kernel, X, X_part, memory_budget=0)
                @ W_part.contiguous()
            )
        return out

    def columns(self, index: Tensor) -> Tensor:
        """Return this process's rows of K[:, index], (n_r, b), without the noise."""
        points, _ = self._gather(index)
        self.entries += self.n * len(points)
        return kernel_operator(
            self.gpytorch_kernel, self.kernel.tiles.X1, points, memory_budget=0
        ).to_dense()

    def block(self, index: Tensor) -> Tensor:
        return self.restrict(index).to_dense()

    def restrict(self, index: Tensor) -> KernelSystem:
        self.entries += len(index) ** 2
        return self._of_points(*self._gather(index))

    def restrict_own(self, blocks: Sequence[Tensor]) -> KernelSystem | None:
        # The points of all blocks are gathered in one message
        points, noise = self._gather(torch.cat(list(blocks)))
        sizes = [len(block) for block in blocks]
        noises = noise.split(sizes) if noise.ndim else [noise] * len(blocks)
        self._gathered = list(zip(blocks, points.split(sizes), noises, strict=True))
        if self.rows.rank >= len(blocks):
            return None
        return self._of_points(*self._gathered[self.rows.rank][1:])

    def _part_of_rows_matmul(self, index: Tensor, W: Tensor, minus: Tensor | None) -> Tensor:
        self.entries += len(index) * self.n
        points, _ = self._gather(index)
        return summed(self._of_part(part, index, points, W, minus) for part in self.rows.parts())

    def _of_part(
        self, part: slice, index: Tensor, points: Tensor, W: Tensor, minus: Tensor | None
    ) -> Tensor:
        """Return what the rows ``part`` of this process contribute to (H W − minus)[index]."""
        X = self.kernel.tiles.X1[part]
        product = Tiled(KernelTiles.of(self.gpytorch_kernel, points, X), False) @ W[part]
        positions, rows = self.rows.owned(index)
        inside = (rows >= part.start) & (rows < part.stop)
        positions = positions[inside]
        rows = rows[inside]
        noise = self._noise_column()
        own = product[positions].addcmul_(noise[rows] if noise.ndim == 2 else noise, W[rows])
        product[positions] = own if minus is None else own.sub_(minus[rows])
        return product

    def _of_points(self, points: Tensor, noise: Tensor) -> KernelSystem:
        return KernelSystem(
            Dense(KernelTiles.of(self.gpytorch_kernel, points, points), True), noise
        )

    def to(self, dtype: torch.dtype) -> "DistributedKernelSystem":
        kernel = deepcopy(self.gpytorch_kernel).to(dtype)
        return DistributedKernelSystem(
            kernel, self.kernel.tiles.X1.to(dtype), self.noise.to(dtype), group=self.rows.group
        )

    def to_dense(self) -> NoReturn:
        raise TypeError(
            "`system` whose rows are shared is never held whole. Use an iterative solver such as"
            " SketchAndProject.asap()."
        )

    def whitened(self) -> NoReturn:
        self.to_dense()

    def _rows(self, index: Tensor) -> KernelOperator:
        return Tiled(self.kernel.tiles.between(self._gather(index)[0]), False)

    def _gather(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the points ``index`` and their noise; those asked for last are kept,
        as steps need them twice.
        """
        for rows, points, noise in self._gathered:
            if rows is index:
                return points, noise
        found = self.rows.take(self._held, index)
        d = self.kernel.tiles.X1.shape[1]
        points = found[:, :d].contiguous()
        noise = found[:, -1] if self.noise.ndim else self.noise
        self._gathered = [(index, points, noise)]
        return points, noise


@contextmanager
def processes(
    timeout_seconds: float = DEFAULT_TIMEOUT, *, backend: str | None = None
) -> Iterator[torch.device]:
    """Join the processes that ``torchrun`` started, and leave them at the end; give the device of
    this one.

    Started alone, without ``torchrun``, the program is the only process.

    Args:
        timeout_seconds: a process that is not heard of for so long ends the others, with an error.
            A killed one usually does so at once.
        backend: of ``torch.distributed``: ``"nccl"``, a CUDA device for each process, or one of
            CPUs such as ``"gloo"``; ``None`` for ``"nccl"`` where there are CUDA devices and
            ``"gloo"`` where there are none.

    Raises:
        ValueError: if PyTorch has no such backend, or this machine fewer CUDA devices than
            processes.
    """
    checks.positive_float("timeout_seconds", timeout_seconds)
    if backend is None:
        backend = "nccl" if torch.cuda.is_available() else "gloo"
    device = _own_device(backend)
    if not dist.is_torchelastic_launched():
        yield device
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
        for name, value in NCCL_SETTINGS.items():
            os.environ.setdefault(name, value)
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
    yield device
    dist.destroy_process_group()  # not after an error: others may be gone
    time.sleep(SECONDS_TO_LEAVE)


def _own_device(backend: str) -> torch.device:
    """Return where this process computes if messages go by ``backend``."""
    if not dist.is_backend_available(backend):
        raise ValueError(
            f"`backend` must be one that this build of PyTorch has, got {backend!r}. Try 'gloo', by"
            " which processes compute on CPUs."
        )
    if backend != "nccl":
        return torch.device("cpu")
    num_processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    num_devices = torch.cuda.device_count()
    if num_processes > num_devices:
        raise ValueError(
            f"`backend` 'nccl' needs a CUDA device for each process, got {num_processes} processes"
            f" on a machine with {num_devices}. Start one a device, or pass 'gloo', by which"
            " processes compute on CPUs."
        )
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def own_rows(n: int, group: dist.ProcessGroup | None = None) -> slice:
    """Return the rows of n that are this process's, where all get equally many, or one more."""
    checks.positive_int("n", n)
    rank, size = _place(group)
    return slice(rank * n // size, (rank + 1) * n // size)


def summed(parts: Iterable[Tensor]) -> Tensor:
    """Return the sum of the parts in pairs, of their sums in pairs, and so on: of half of 2ᵏ parts,
    what the whole sum has of it.
    """
    sums: list[tuple[int, Tensor]] = []  # of 2ᵏ parts each, and k, of which no two are equal
    for part in parts:
        level = 0
        while sums and sums[-1][0] == level:
            part = sums.pop()[1].add_(part)
            level += 1
        sums.append((level, part))
    total = sums.pop()[1]
    while sums:
        total = sums.pop()[1].add_(total)
    return total


def shares(name: str, number: int) -> slice:
    """Return this process's share of ``number`` paths, of which every one is to have some: about
    equally many, and a multiple of ``FUNCTIONS_TOGETHER`` where that is a third of a share or less,
    since products of matrices of other widths may round differently.

    Raises:
        ValueError: if there are fewer than processes; ``name`` says of what.
    """
    rank, size = _place(None)
    if number < size:
        raise ValueError(
            f"`{name}` must be at least {size}, the number of processes that share them, got"
            f" {number}. Take more, or start fewer processes."
        )
    return _share(number, rank, size)


def _share(number: int, rank: int, size: int) -> slice:
    groups = -(-number // FUNCTIONS_TOGETHER)
    if groups < 3 * size:
        return slice(rank * number // size, (rank + 1) * number // size)
    first = rank * groups // size * FUNCTIONS_TOGETHER
    return slice(first, min(number, (rank + 1) * groups // size * FUNCTIONS_TOGETHER))


def bytes_of_first(message: bytes | None, group: dist.ProcessGroup | None = None) -> bytes | None:
    """Return the first process's message, or ``None``, to all.

    Raises:
        ConnectionError: if another process ended, or was not heard of in time.
    """
    rank, size = _place(group)
    if size == 1:
        return message
    device = torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")
    with _contact(rank, size, group) as send:
        length = torch.tensor(0 if message is None else len(message), device=device)
        send(dist.broadcast, length, group_src=0).wait()
        if not length:
            return None
        data = torch.empty(int(length), dtype=torch.uint8, device=device)
        if rank == 0:
            assert message is not None  # its length is sent
            data.copy_(torch.frombuffer(bytearray(message), dtype=torch.uint8))
        send(dist.broadcast, data, group_src=0).wait()
    return data.cpu().numpy().tobytes()


@contextmanager
def _contact(rank: int, size: int, group: dist.ProcessGroup | None) -> Iterator[Send]:
    """Give what sends a message to the ``group``; what fails on the way is a lost process."""

    def send(call: Callable[..., dist.Work], message: Tensor, *others: Any, **named: int) -> Any:
        # What the device has still to do would count as silence of the others
        memory.wait_for(message.device)
        # A call that waits by itself does so on the device alone, where no error is raised
        return call(message, *others, group=group, async_op=True, **named)

    try:
        yield send
    except RuntimeError as error:
        raise ConnectionError(
            f"Process {rank} of {size} lost contact with another, which ended or was not heard of"
            f" in time ({error}). Start all again; a solver with a `checkpoint` goes on from its"
            " last one."
        ) from error


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
