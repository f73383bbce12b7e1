"""Predicted memory: what fits is taken, what cannot is refused with its number before anything is
allocated; and what is freed, reused.
"""

import ctypes
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import psutil
import torch

GIBIBYTE = 2**30
DEFAULT_CPU_BUDGET = 2 * GIBIBYTE
# Of float32: d², values, slopes, weights and the temporaries between them, or half as many of
# float64
TILES_HELD = 16
# of glibc's mallopt
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
KEEPING = {M_MMAP_THRESHOLD: 2**27, M_TRIM_THRESHOLD: 2**31 - 1}  # bytes
# What glibc comes to by itself once such blocks were freed
USUAL = {M_MMAP_THRESHOLD: 2**25, M_TRIM_THRESHOLD: 2**26}
ALLOCATOR_SETTINGS = (
    "GLIBC_TUNABLES",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_TOP_PAD_",
)
SECONDS_BETWEEN_LOOKS = 1.0  # at a device's free memory: asking takes longer than a small product

Result = TypeVar("Result")

_keepers = 0
_keepers_lock = threading.Lock()
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
    _give_back()  # what `keeping_freed` holds is free
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


@contextmanager
def keeping_freed() -> Iterator[None]:
    """Keep the memory of tensors freed inside the context, or function, for the next ones, and give
    it back to the system at the end.

    Tensors above 32 MiB are otherwise mapped anew each time, and their first touch costs up to 1.6
    µs for every 4 KiB, more than most arithmetic on them: with it, SDD for 500 columns takes 0.6 of
    the time, and acquisition 0.8. On the CPU and with the GNU C library; elsewhere, and where an
    environment variable sets the allocator, nothing changes. For all threads, until the last
    context ends.
    """
    global _keepers
    with _keepers_lock:
        _keepers += 1
        if _keepers == 1:
            _set_allocator(KEEPING)
    try:
        yield
    finally:
        with _keepers_lock:
            _keepers -= 1
            if _keepers == 0:
                _set_allocator(USUAL)
                _give_back()


def _set_allocator(settings: dict[int, int]) -> None:
    if (libc := _glibc()) is not None and not any(
        name in os.environ for name in ALLOCATOR_SETTINGS
    ):
        for parameter, value in settings.items():
            libc.mallopt(parameter, value)


def _give_back() -> None:
    if (libc := _glibc()) is not None:
        libc.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None


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
    """Return ``compute(size)``, begun again with half the size whenever a CUDA device runs out of
    memory.

    Args:
        compute: needs less memory for a smaller size, and gives the same result.
        smallest: the size that is not halved any more.
        what: what has that many rows, for the message.

    Raises:
        MemoryError: if memory runs out at the smallest size.
    """
    while True:
        try:
            return compute(size)
        except torch.cuda.OutOfMemoryError as error:
            if size <= smallest:
                raise MemoryError(
                    f"{what} of {size} rows does not fit in the device's free memory beside what is"
                    " held there. Evaluate fewer points or columns at once, or free memory that"
                    " other work holds."
                ) from error
        # Outside the handler, where the error would keep the failed attempt's tensors
        size = max(smallest, size // 2)
