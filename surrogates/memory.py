"""Predicted memory: what fits is taken, what cannot is refused with its number before anything is
allocated.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

import psutil
import torch

from surrogates import settings

GIBIBYTE = 2**30
DEFAULT_CPU_BUDGET = 2 * GIBIBYTE
# Of float32: d², values, slopes, weights and the temporaries between them, or half as many of
# float64
TILES_HELD = 16
SECONDS_BETWEEN_LOOKS = 1.0  # at a device's free memory: asking takes longer than a small product

CHUNK_ENTRIES = {"cpu": 2**20, "cuda": 2**28}  # of a matrix of features, evaluated at a time

Result = TypeVar("Result")

# When the free memory was asked for last, and what it was
_looks: dict[torch.device, tuple[float, int]] = {}


def default_budget(device: torch.device) -> int:
    """Return the bytes that a kept kernel matrix or one temporary may take: 2 GiB,
    or a quarter of a CUDA device's memory.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory // 4
    return DEFAULT_CPU_BUDGET


def available(device: torch.device) -> int:
    """Return the bytes free on ``device`` now."""
    if device.type == "cuda":
        kept_by_torch = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept_by_torch
    settings.give_back()  # what `settings.keeping_freed` holds is free
    return psutil.virtual_memory().available


def require(num_bytes: int, device: torch.device, what: str, remedy: str) -> None:
    """Raise ``MemoryError`` naming ``what``, the bytes it needs and the ``remedy`` if they are not
    free on ``device``.
    """
    free = available(device)
    if num_bytes > free:
        raise MemoryError(
            f"{what} needs {num_bytes / GIBIBYTE:.1f} GiB and {free / GIBIBYTE:.1f} GiB are free on"
            f" {device}. {remedy}"
        )


def side_that_fits(device: torch.device, largest: int) -> int:
    """Return the side of a square tile: ``largest``, halved until ``TILES_HELD`` tiles fit in half
    of the memory free on ``device``.
    """
    now = time.monotonic()
    last, free = _looks.get(device, (-SECONDS_BETWEEN_LOOKS, 0))
    if now - last >= SECONDS_BETWEEN_LOOKS:
        free = available(device)
        _looks[device] = now, free
    side = largest
    while side > 1 and TILES_HELD * torch.float32.itemsize * side**2 > free // 2:
        side //= 2
    return side


def halving(compute: Callable[[int], Result], size: int, smallest: int, what: str) -> Result:
    """Return ``compute(size)``, begun again as :func:`attempts` has it."""
    for attempt in attempts(size, smallest, what):
        with attempt:
            result = compute(attempt.size)
    return result


def attempts(size: int, smallest: int, what: str) -> Iterator["Attempt"]:
    """Yield attempts at a computation, each to be made inside ``with attempt``: the first at
    ``size``, and others at half of it whenever a CUDA device has run out of memory.

    Args:
        size: less of it takes less memory, and gives the same result.
        smallest: the size that is not halved any more.
        what: what has that many rows, for the message.

    Raises:
        MemoryError: if memory runs out at the smallest size.
    """
    attempt = Attempt(size, size <= smallest, what)
    yield attempt
    while attempt.has_failed:
        size = max(smallest, size // 2)
        attempt = Attempt(size, size <= smallest, what)
        yield attempt


@dataclass
class Attempt:
    """One of :func:`attempts`; ``is_last`` where no smaller one would be left."""

    size: int
    is_last: bool
    what: str
    has_failed: bool = False

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self.has_failed = isinstance(error, torch.cuda.OutOfMemoryError)
        if self.has_failed and self.is_last:
            raise MemoryError(
                f"{self.what} of {self.size} rows does not fit in the device's free memory beside"
                " what is held there. Evaluate fewer points or columns at once, or free memory that"
                " other work holds."
            ) from error
        return self.has_failed  # passed over, and with it the failed attempt's tensors
