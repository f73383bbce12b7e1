"""What a Thompson round by several processes will take: the solve, the messages between, and the
search for the maximisers of the paths.

Notation: n points of d inputs, q paths, p processes with n_r = ⌈n/p⌉ rows and q_r = ⌈q/p⌉ paths
each, t bytes a number. Beside Python, its packages and all points with their targets, n (d + 1),
each process holds, in numbers, at the largest of these moments,

    drawing    6 n_r (q + 1): prior values, noise and right-hand sides
    solving    what :func:`predict` says of it
    turning    n_r (q + 1) of the solution and 2 n q_r of what becomes of it, chunks on their way
    looking    in float32, whether sums want float64: a few paths in it, and kernel factors
    searching  n_r (q + 1) of the solution, n q_r weights, and 2 n (d + 2) kernel factors,
               n (3 d + 4) more while they are made

Each process turns its rows of the weights into columns, n_r q numbers of which a share (p − 1)/p is
sent. It screens with the kernel between all candidates and all points, which every process
evaluates, and ascends its own paths; nothing is predicted of sums in float64, which take longer.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import psutil
import torch

from acquisition.multistart import starts_kept
from acquisition.strategies import NUM_CANDIDATES, NUM_STEPS, default_num_starts
from scalable_bo.cli.costs import Rates, Shape, predict
from scalable_bo.experiments.models import matern_kernel
from surrogates.operators.differentiable import KernelBasis
from surrogates.rules.solved import NUM_LOOKS
from surrogates.systems.shared_rows import CHUNK_BYTES

NUM_FEATURES = 2048  # as in PathwiseGP


@dataclass(frozen=True)
class RoundCosts:
    """What each process will need.

    Attributes:
        shape: of the solve, with q + 1 columns.
        memory: bytes of the largest moment, by the moments there are.
        network_bytes: sent between solve and search, and as many received.
        seconds: of the search, by what takes them; of the solve in ``solve_seconds``.
        solve_seconds: of so many epochs of the solve as were asked for.
        solve_bytes: sent in them.
    """

    shape: Shape
    memory: dict[str, int]
    network_bytes: int
    seconds: dict[str, float]
    solve_seconds: float
    solve_bytes: int

    @property
    def total_memory(self) -> int:
        """Bytes of the largest moment of a round."""
        return max(self.memory.values())

    @property
    def total_seconds(self) -> float:
        """Seconds of the solve and of the search."""
        return self.solve_seconds + sum(self.seconds.values())


def predict_round(
    shape: Shape,
    rates: Rates,
    slope_seconds: float,
    epochs: float,
    *,
    num_starts: int | None = None,
    process_bytes: int | None = None,
) -> RoundCosts:
    """Return what a round will take in each process.

    Args:
        shape: of the solve of the mean and q paths.
        rates: of a process.
        slope_seconds: of a kernel entry with its gradient, see :func:`measure_slopes`.
        epochs: of the solve.
        num_starts: ascents a path; ``None`` for those of a study.
        process_bytes: of Python and the packages; ``None`` for what this process has.
    """
    solve = predict(shape, rates, process_bytes)
    n, d, t, p = shape.n, shape.dim, shape.itemsize, shape.ranks
    q = shape.columns - 1
    own = math.ceil(q / p)
    rows = shape.size.rows
    starts = default_num_starts(q, n) if num_starts is None else num_starts
    base = psutil.Process().memory_info().rss if process_bytes is None else process_bytes
    points = base + n * (d + 1) * t
    matrix = rows * (q + 1) * t
    factors = n * (5 * d + 8)
    chunks = min(3 * CHUNK_BYTES, 3 * matrix)
    memory = {
        "drawing": points + 6 * matrix,
        "solving": solve.total_memory + n * (d + 1) * t,
        "turning": points + matrix + 2 * n * own * t + chunks,
        "searching": points + matrix + n * own * t + factors * t,
    }
    if t < torch.float64.itemsize:
        few = 1 + min(NUM_LOOKS, own)
        looking = n * (few + d) * 8 + n * few * t + factors * 8
        memory["looking"] = points + matrix + n * own * t + looking
    ascended = sum(starts_kept(starts, NUM_STEPS)) * own
    turned = math.ceil((p - 1) / p * rows * q * t)
    meetings = starts + NUM_STEPS
    latency = meetings * rates.latency_seconds * math.log2(p) if p > 1 else 0.0
    seconds = {
        "screening": NUM_CANDIDATES * n * (rates.entry_seconds + 2.0 * own / rates.gemm_flops),
        "ascent": ascended * (n + NUM_FEATURES) * slope_seconds,
        "network": turned / rates.network_bytes + latency,
    }
    steps = epochs * solve.steps_per_epoch
    return RoundCosts(
        shape=shape,
        memory=memory,
        network_bytes=turned,
        seconds=seconds,
        solve_seconds=steps * solve.seconds_per_step,
        solve_bytes=math.ceil(steps * solve.network_bytes),
    )


def measure_slopes(dim: int, dtype: torch.dtype = torch.float32, seconds: float = 0.5) -> float:
    """Return the seconds that a kernel entry takes here with its gradient, where each path is
    evaluated at points of its own, in about so many seconds.
    """
    generator = torch.Generator().manual_seed(0)
    Z = torch.rand(16_384, dim, generator=generator, dtype=dtype)
    X = torch.rand(16, 8, dim, generator=generator, dtype=dtype)
    W = torch.randn(len(Z), len(X), generator=generator, dtype=dtype)
    basis = KernelBasis(matern_kernel(0.5, 1.0).to(Z), Z)
    basis.rowwise(X, W)
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        started = time.perf_counter()
        basis.rowwise(X, W)
        times.append(time.perf_counter() - started)
    return min(times) / (X.shape[0] * X.shape[1] * len(Z))
