"""The settings of the whole process that the package changes, and the switch that forbids it.

They are two, each changed for as long as a computation needs it: the C library's allocator, which
keeps the memory of freed tensors for the next ones, and on CUDA the precision of PyTorch's float32
products. With ``SCALABLE_BO_PROCESS_SETTINGS=keep`` in the environment both stay as they are (the
default is ``change``): large tensors then cost more, and where the process allows TF32, kernel
values lose up to 13 of their 24 bits.
"""

import ctypes
import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

SWITCH = "SCALABLE_BO_PROCESS_SETTINGS"
MAPPED_ANEW = 2**25  # bytes: the allocator maps larger tensors anew each time
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

_keepers = 0
_keepers_lock = threading.Lock()


def may_change() -> bool:
    """Whether settings of the whole process may be changed."""
    choice = os.environ.get(SWITCH, "change")
    if choice not in ("change", "keep"):
        raise ValueError(f"`{SWITCH}` must be 'change' or 'keep', got {choice!r}.")
    return choice == "change"


@contextmanager
def full_precision() -> Iterator[None]:
    """Multiply float32 matrices on CUDA in full precision inside the context, and as before after
    it.

    TF32 keeps 11 of float32's 24 bits, and PyTorch has one setting for the whole process. Kernel
    products and distances do not follow what the user chose for other work: ‖x‖² − 2xᵀz + ‖z‖²
    would lose all digits of a small distance.
    """
    if not may_change():
        yield
        return
    settings = torch.backends.cuda.matmul
    # PyTorch is replacing the one setting by the other, and refuses to read the old one once the
    # new one was set.
    name, value = ("fp32_precision", "ieee") if _has_precisions() else ("allow_tf32", False)
    before = getattr(settings, name)
    setattr(settings, name, value)
    try:
        yield
    finally:
        setattr(settings, name, before)


def _has_precisions() -> bool:
    return hasattr(torch.backends.cuda.matmul, "fp32_precision")


@contextmanager
def keeping_freed() -> Iterator[None]:
    """Keep the memory of tensors freed inside the context, or function, for the next ones, and give
    it back to the system at the end.

    Tensors above 32 MiB are otherwise mapped anew each time, and their first touch costs more than
    most arithmetic on them. On the CPU and with the GNU C library; elsewhere, and where an
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
                give_back()


def _set_allocator(settings: dict[int, int]) -> None:
    set_by_user = any(name in os.environ for name in ALLOCATOR_SETTINGS)
    if (libc := _glibc()) is not None and not set_by_user and may_change():
        for parameter, value in settings.items():
            libc.mallopt(parameter, value)


def give_back() -> None:
    """Give freed memory back to the system."""
    if (libc := _glibc()) is not None:
        libc.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
