"""What a solve with rows shared over processes will take: memory of each, traffic and time of a
step, before it is started.

Notation: n points of d inputs, s right-hand sides, p processes (ranks) with n_r = ⌈n/p⌉ rows each,
batches or blocks of b rows, t bytes a number. Each process holds, in numbers,

    points              n_r d, the user's
    kernel factors      2 n_r (d + 2) of the closed form, for rows and columns of K; n_r (3 d + 4)
                        more while they are made, which a product with all of K does anew for each
                        chunk of X
    chunks              of X and W on their way, in such a product: four times 64 MiB at most
    right-hand sides    n_r s, the user's
    iterates            n_r s for each matrix that the solver holds, and the values so far
    in passing          n_r s for each that a step, the end of a column, or the evaluation of a
                        result needs beside them

what else the solver declares in its footprint, and what Python and the packages take. A product
with all of K passes X and one (n, s) matrix around, n (d + s) numbers, as does the evaluation of
the residual of what a method returns. Of what goes from or to one process each of p sends and
receives a share (p − 1)/p on average, twice that of a sum that all receive.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any

import psutil
import torch
import torch.distributed as dist

from surrogates import checks
from surrogates.operators.kernel_matrix import kernel_operator
from surrogates.solvers.base import Solver
from surrogates.solvers.footprint import WHEN_COLUMNS_END, Footprint, Size
from surrogates.solvers.registry import check_solver, make_solver
from surrogates.systems.preconditioners import Identity
from surrogates.systems.shared_rows import CHUNK_BYTES

BYTES_AN_INDEX = 8
# Iterates held while the residual of a result is evaluated: the value before, its residual, the
# result
EVALUATED = 3


@dataclass(frozen=True)
class Rates:
    """How fast a process is, and what lies between two.

    Attributes:
        entry_seconds: a kernel entry takes, without its products.
        gemm_flops: operations a second of a matrix product.
        memory_bytes: a second, of reading or writing large arrays.
        network_bytes: a second that a process can send, and receive at the same time.
        latency_seconds: of a sum over two processes.
    """

    entry_seconds: float
    gemm_flops: float
    memory_bytes: float
    network_bytes: float
    latency_seconds: float


@dataclass(frozen=True)
class Shape:
    """A solve: see the head of this file.

    Args:
        n: points.
        dim: d.
        columns: s, the mean and the samples.
        ranks: p.
        solver: one of ``SOLVERS`` that declares its footprint.
        block_size: b of a solver that has blocks or batches; ``None`` for the solver's own choice.
        rank: of the preconditioner, if there is one; ``None`` for the solver's own; 0 for none.
        itemsize: t.

    Raises:
        TypeError, ValueError: if a number is out of range, or the solver unknown.
    """

    n: int
    dim: int
    columns: int = 1
    ranks: int = 1
    solver: str = "asap"
    block_size: int | None = None
    rank: int | None = None
    itemsize: int = 4

    def __post_init__(self) -> None:
        for name in ("n", "dim", "columns", "ranks", "itemsize"):
            checks.positive_int(name, getattr(self, name))
        check_solver(self.solver)
        if self.ranks > self.n:
            raise ValueError(
                f"`ranks` must be at most n = {self.n}, got {self.ranks}. Every process needs a"
                " row."
            )
        if self.block_size is not None:
            checks.positive_int("block_size", self.block_size)
        if self.rank is not None:
            checks.integer("rank", self.rank, 0)

    @property
    def size(self) -> Size:
        """What the solver's needs depend on."""
        return Size(self.n, self.dim, self.columns, self.ranks)

    @property
    def footprint(self) -> Footprint:
        """What the solver declares.

        Raises:
            ValueError: if it declares nothing for so many processes.
        """
        found = self.make_solver().footprint(self.size)
        if found is None:
            raise ValueError(
                f"`solver` must declare what it needs in {self.ranks} processes, got"
                f" {self.solver!r}, which does not. Use asap."
            )
        return found

    def make_solver(self, **settings: Any) -> Solver:
        """Return the solver, with these settings beside those of the shape."""
        solver = make_solver(self.solver, **settings)
        names = {entry.name for entry in fields(solver)}  # type: ignore[arg-type]
        found: dict[str, Any] = {}
        for name in names & {"batch_size", "block_size"}:
            if self.block_size is not None:
                found[name] = self.block_size
        if self.rank is not None and "preconditioner" in names:
            low_rank = vars(solver)["preconditioner"]
            if self.rank == 0:
                found["preconditioner"] = Identity()
            elif hasattr(low_rank, "sketch"):
                found["preconditioner"] = replace(low_rank, rank=min(self.rank, self.n))
        return replace(solver, **found)  # type: ignore[type-var]


@dataclass(frozen=True)
class Costs:
    """What each process will need.

    Attributes:
        shape: of the solve.
        memory: bytes by what they are of, those of the largest moment of a solve.
        step_memory: bytes of the largest moment before a column ends.
        network_bytes: sent, and as many received, in a step.
        seconds: of a step, by what takes them.
        steps_per_epoch: n / b.
    """

    shape: Shape
    memory: dict[str, int]
    step_memory: int
    network_bytes: int
    seconds: dict[str, float]
    steps_per_epoch: int

    @property
    def total_memory(self) -> int:
        """Bytes of the largest moment of a solve."""
        return sum(self.memory.values())

    @property
    def seconds_per_step(self) -> float:
        """Seconds of a step."""
        return sum(self.seconds.values())

    @property
    def seconds_per_epoch(self) -> float:
        """Seconds of an epoch."""
        return self.steps_per_epoch * self.seconds_per_step


def predict(shape: Shape, rates: Rates, process_bytes: int | None = None) -> Costs:
    """Return what the solve will take in each process.

    Args:
        shape: of the solve.
        rates: of a process; see :func:`measure_rates`.
        process_bytes: of Python and the packages; ``None`` for what this process has.
    """
    need = shape.footprint
    rows = shape.size.rows
    t = shape.itemsize
    matrix = rows * shape.columns * t
    factors = 2 * rows * (shape.dim + 2) * t
    common = {
        "points": rows * shape.dim * t,
        "kernel factors": factors,
        "right-hand sides": matrix,
        "iterates": (1 + need.held) * matrix,
        **{name: numbers * t for name, numbers in need.kept.items()},
        "order": BYTES_AN_INDEX * need.order,
        "process": psutil.Process().memory_info().rss if process_bytes is None else process_bytes,
    }
    making = {"kernel factors": factors + rows * (3 * shape.dim + 4) * t}
    full_product = making | {
        "chunks": min(4 * CHUNK_BYTES, 4 * shape.n * (shape.dim + shape.columns) * t),
    }
    start = common | making | {"iterates": 0, "in passing": 0}
    step = common | {"in passing": need.passing * matrix}
    if need.whole_products:
        step |= full_product
    ending = common | {"iterates": need.held * matrix, "in passing": WHEN_COLUMNS_END * matrix}
    evaluation = common | full_product | {"iterates": EVALUATED * matrix, "in passing": 2 * matrix}
    return Costs(
        shape=shape,
        memory=max(start, step, ending, evaluation, key=_sum),
        step_memory=max(_sum(start), _sum(step)),
        network_bytes=_network(shape, need),
        seconds=_seconds(shape, need, rates),
        steps_per_epoch=math.ceil(shape.n / need.batch),
    )


def _sum(parts: dict[str, int]) -> int:
    return sum(parts.values())


def _network(shape: Shape, need: Footprint) -> int:
    numbers = need.summed + need.whole_products * shape.n * (shape.dim + shape.columns)
    return math.ceil((shape.ranks - 1) / shape.ranks * numbers * shape.itemsize)


def _seconds(shape: Shape, need: Footprint, rates: Rates) -> dict[str, float]:
    rows = shape.size.rows
    s = shape.columns
    t = shape.itemsize
    chunks = shape.ranks * math.ceil(rows * (shape.dim + s) * t / CHUNK_BYTES)
    messages = need.messages + need.whole_products * chunks
    latency = messages * rates.latency_seconds * math.log2(shape.ranks) if shape.ranks > 1 else 0.0
    return {
        "product": need.batch * rows * (rates.entry_seconds + 2.0 * s / rates.gemm_flops),
        "block": need.block_entries * rates.entry_seconds + need.flops / rates.gemm_flops,
        "iterates": need.sweeps * rows * s * t / rates.memory_bytes,
        "network": _network(shape, need) / rates.network_bytes + latency,
    }


def measure_rates(
    dim: int, columns: int, dtype: torch.dtype = torch.float32, seconds: float = 1.5
) -> Rates:
    """Measure this machine, with as many threads as torch has here, in about so many seconds
    (compiling comes on top).

    The kernel is Matérn-3/2, its products those of the solvers. What lies between two processes is
    measured between two threads, by gloo over the loopback device.
    """
    from scalable_bo.experiments.models import matern_kernel

    generator = torch.Generator().manual_seed(0)
    X = torch.rand(16_384, dim, generator=generator, dtype=dtype)
    kernel = matern_kernel(0.5, 1.0).to(X)
    W = torch.randn(len(X), max(2, columns), generator=generator, dtype=dtype)
    share = seconds / 5.0
    rows = 512

    def product(num_columns: int) -> float:
        part = W[:, :num_columns].contiguous()
        operator = kernel_operator(kernel, X[:rows], X, memory_budget=0)
        return _fastest(lambda: operator @ part, share)

    A = torch.rand(2048, 2048, generator=generator, dtype=dtype)
    gemm = 2.0 * len(A) ** 3 / _fastest(lambda: A @ A, share)
    entries = rows * len(X)
    alone = product(1) / entries
    together = product(columns) / entries
    # With many columns the elementwise part hides behind the product, or the product is slower than
    # a large one: the sum is right.
    gemm = (
        min(gemm, 2.0 * (columns - 1) / (together - alone))
        if columns > 1 and together > alone
        else gemm
    )
    array = torch.zeros(2**24, dtype=dtype)
    memory = 2 * array.numel() * array.element_size() / _fastest(lambda: array.add_(1.0), share)
    latency, network = _measure_gloo()
    return Rates(alone, gemm, memory, network, latency)


def _fastest(call: Callable[[], object], seconds: float) -> float:
    """Return the seconds of the fastest call, warmed up."""
    call()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < seconds and len(times) < 100):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def _measure_gloo() -> tuple[float, float]:
    """Return the seconds of a sum of one number over two members of a group,
    and the bytes a second of a sum of many.
    """
    gloo: Any = dist  # whose parts have no types
    store = gloo.HashStore()
    small = torch.ones(1)
    large = torch.ones(2**20)
    found: dict[str, float] = {}

    def member(rank: int) -> None:
        group = gloo.ProcessGroupGloo(
            gloo.PrefixStore("rates", store), rank, 2, timedelta(seconds=30)
        )
        for name, message in (("small", small.clone()), ("large", large.clone())):
            calls = 20 if name == "small" else 5
            group.allreduce([message]).wait()
            started = time.perf_counter()
            for _ in range(calls):
                group.allreduce([message]).wait()
            found[name] = (time.perf_counter() - started) / calls

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Of two members each sends, and receives, as many bytes as the message has.
    return found["small"], large.numel() * large.element_size() / max(
        found["large"] - found["small"], 1e-6
    )
