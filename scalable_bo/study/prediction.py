"""What a run will take: memory by the sizes of its largest arrays,
time by a rehearsal among few rows.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from scalable_bo.modelling.fitting import FIRST_FIT_POINTS
from scalable_bo.space.space import Space
from scalable_bo.study.asking import columns_bytes
from scalable_bo.study.study import Study
from surrogates import memory
from surrogates.operators.linalg import DIRECT_SOLVE_UP_TO
from surrogates.solvers.auto import preconditioner_bytes

REHEARSED_ROWS = 2 * FIRST_FIT_POINTS  # as many as are fitted at once


@dataclass(frozen=True)
class Prediction:
    """What a run will take.

    Attributes:
        num_rows: at the last ask.
        peak_bytes: of the process, at the last ask.
        free_bytes: of the machine now, and what the process has already.
        seconds_asks: of all asks, without the objective.
    """

    num_rows: int
    peak_bytes: int
    free_bytes: int
    seconds_last_ask: float
    seconds_asks: float

    @property
    def fits(self) -> bool:
        """Whether the memory is there."""
        return self.peak_bytes <= self.free_bytes


def predict(
    space: Space, num_rows: int, rounds: int, batch: int, dtype: torch.dtype, num_initial: int
) -> Prediction:
    """Predict ``rounds`` rounds of ``batch`` points after ``num_rows`` rows, with the default
    solver on a CPU.

    The time is that of a rehearsed ask for 10 points among 500 rows, the solve growing like n² q
    and the search like n q: right to a small factor, on a machine that is as busy as now.
    """
    resident = psutil.Process().memory_info().rss
    free = psutil.virtual_memory().available
    sizes = [num_rows + number * batch for number in range(rounds)]
    fit, solve, search = _rehearse(space, dtype)
    growths = [max(1.0, n / REHEARSED_ROWS) for n in sizes]
    seconds = [
        fit + solve * batch * growth**2 + search * batch * growth if n >= num_initial else 0.0
        for n, growth in zip(sizes, growths, strict=True)
    ]
    last = sizes[-1] if sizes else num_rows
    rows_bytes = 8 * last * (space.dim + space.encoded_dim)
    return Prediction(
        num_rows=last,
        peak_bytes=resident + rows_bytes + predicted_bytes(last, batch, dtype, free - rows_bytes),
        free_bytes=free + resident,
        seconds_last_ask=seconds[-1] if seconds else 0.0,
        seconds_asks=sum(seconds),
    )


def predicted_bytes(n: int, q: int, dtype: torch.dtype, free: int, workspace: int = 2**28) -> int:
    """Return about how much memory an ask for q points among n rows takes with the default solver,
    beyond the study's own.

    Right-hand sides and solutions; tiles and candidates, in a ``workspace``; the kernel matrix,
    where it is kept, with its factor or its copy in float32, in which solves begin; and a
    preconditioner of n/20 columns, if ``free`` bytes hold it beside the rest: the solver can do
    without.
    """
    size = torch.finfo(dtype).bits // 8
    needed = columns_bytes(n, q, dtype) + workspace
    if n <= DIRECT_SOLVE_UP_TO:
        return needed + memory.squares_bytes(n * n, dtype)
    if n * n * size <= memory.default_budget(torch.device("cpu")):
        needed += n * n * (size if dtype == torch.float32 else size + 4)
    preconditioner = preconditioner_bytes(n, n // 20, torch.float32)
    return needed + preconditioner if needed + preconditioner <= free else needed


def _rehearse(space: Space, dtype: torch.dtype, q: int = 10) -> tuple[float, float, float]:
    """Return the seconds of a fit, and the seconds a point of a solve and of a search, in the
    parameters of ``space``, constraints and limits of their number aside.
    """
    generator = torch.Generator().manual_seed(0)
    drawn: Any = {"dtype": torch.float64, "generator": generator, "device": "cpu"}
    X = torch.rand(REHEARSED_ROWS, space.encoded_dim, **drawn)
    study = Study(space.cube, maximize=True, dtype=dtype)
    noise = 0.01 * torch.randn(REHEARSED_ROWS, **drawn)
    study.add_data(X, (X - 0.4).square().sum(1) + noise)
    start = time.perf_counter()
    study.ask(q)
    report = study.last_ask
    other = time.perf_counter() - start - report.seconds_fit - report.seconds_solve
    return report.seconds_fit, report.seconds_solve / q, other / q
