"""Benchmarks in the processes that ``torchrun`` started: systems with shared rows, and one process
that speaks and writes.

Every process loads the data of a benchmark and solves with its own rows of them; started alone, a
program is the only process.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gpytorch.kernels import Kernel
from torch import Tensor

from scalable_bo.experiments.solvers import from_outside
from surrogates import Cholesky, IterativeSolver, KernelSystem, Solution, Solver, kernel_operator
from surrogates.atomic import write_atomically
from surrogates.solvers.registry import SOLVERS
from surrogates.systems.processes import bytes_of_first, own_rows, processes
from surrogates.systems.shared import DistributedKernelSystem


def num_processes() -> int:
    """Return how many processes take part, 1 before they have joined."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def check_methods(names: Sequence[str]) -> None:
    """Require methods that can share rows, if there are several processes; or raise ValueError."""
    if num_processes() == 1:
        return
    iterative = [name for name, make in SOLVERS.items() if not isinstance(make(), Cholesky)]
    own = [name for name in names if isinstance(from_outside(name), IterativeSolver)]
    if unfit := [name for name in names if name not in (*iterative, *own)]:
        raise ValueError(
            f"`solver` must be one whose rows several processes can share, got {unfit[0]!r}. Use"
            " auto, or start one process."
        )


@contextmanager
def one_voice() -> Iterator[dict[str, Any]]:
    """Join the other processes, and silence all but the first; give the options of a command that
    differ in this process.

    The options are the device and, in all but the first process, a folder for what they write,
    which is thrown away.
    """
    with ExitStack() as stack:
        device = stack.enter_context(processes())
        options: dict[str, Any] = {"device": str(device)}
        if dist.get_rank() > 0:
            nowhere = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(redirect_stdout(nowhere))
            stack.enter_context(redirect_stderr(nowhere))
            options["out"] = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        yield options


def of_first(record: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the first process's ``record``, to all."""
    message = bytes_of_first(json.dumps(record).encode())
    assert message is not None  # "null" for no record
    found: dict[str, Any] | None = json.loads(message)
    return found


def copy_of_first(path: Path) -> None:
    """Write the first process's file, if it has one, in all the others, whose folders differ."""
    found = bytes_of_first(path.read_bytes() if path.exists() else None)
    if found is not None and not path.exists():
        write_atomically(path, found)


def solve(
    kernel: Kernel,
    X: Tensor,
    y: Tensor,
    noise: float,
    solver: Solver,
    *,
    generator: torch.Generator,
) -> Solution:
    """Solve (K + σ² I) w = y, with the rows shared by all processes there are.

    Args:
        X: (n, d), the same in all processes.
        y: (n,), likewise.
        noise: σ².
        generator: in the same state in all processes.
    Returns:
        The solution, with all n rows in every process.
    """
    if num_processes() == 1:
        system: KernelSystem = KernelSystem(kernel_operator(kernel, X), noise)
        return solver.solve(system, y[:, None], generator=generator)
    rows = own_rows(len(X))
    system = DistributedKernelSystem(kernel, X[rows], noise)
    solution = solver.solve(system, y[rows, None], generator=generator)
    return replace(
        solution, value=torch.cat([part for (part,) in system.rows.chunks(solution.value)])
    )
