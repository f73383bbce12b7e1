"""What a computation takes of the machine, and changes of the process.

Memory is predicted: what fits is taken, what cannot is refused with its number before anything is
allocated. One setting of the process is changed, for as long as a computation needs it: on CUDA the
precision of PyTorch's float32 products. With ``SCALABLE_BO_PROCESS_SETTINGS=keep`` in the
environment it stays as it is (the default is ``change``): where the process allows TF32, kernel
values then lose up to 13 of their 24 bits.

Few random numbers are drawn by the generator that was given, so that a seed means the same on every
device; many on the device that uses them, since a CPU takes longer to draw and send them than the
device to compute with them.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TypeVar

import psutil
import torch

GIBIBYTE = 2**30
# Devices with generators of their own, for which what suits them is tried; a CPU has constants
DEVICE_TYPES = {"cuda"}
MANY = 2**18  # numbers, which a CPU draws in about two milliseconds

SWITCH = "SCALABLE_BO_PROCESS_SETTINGS"

Result = TypeVar("Result")
Place = torch.device | str | torch.dtype  # as what holds tensors is moved to

# When the free memory was asked for last, and what it was
_looks: dict[torch.device, tuple[float, int]] = {}


def default_budget(device: torch.device) -> int:
    """Return the most bytes of a kept matrix or a temporary: 2 GiB, or a quarter of a GPU's."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory // 4
    return 2 * GIBIBYTE


def chunk_entries(device: torch.device) -> int:
    """Return how many entries of a matrix of features are evaluated at a time: few enough for the
    caches of a CPU, many for a device.
    """
    return 2**20 if device.type == "cpu" else 2**28


def chunks(X: torch.Tensor, num_entries: int) -> list[slice]:
    """Return consecutive rows of X, such that a chunk has about as many entries of a matrix of
    features as are evaluated at a time; no rows are a chunk, too.

    Args:
        num_entries: of each row.
    """
    size = max(1, chunk_entries(X.device) // num_entries)
    return [slice(start, min(start + size, len(X))) for start in range(0, max(1, len(X)), size)]


def part_size(num_entries: int, dtype: torch.dtype = torch.float64, num_bytes: int = 2**25) -> int:
    """Return how many rows are computed at a time where each takes ``num_entries`` numbers and all
    may take ``num_bytes``, one at least.
    """
    return max(1, num_bytes // (max(1, num_entries) * dtype.itemsize))


def squares_bytes(num_entries: int, dtype: torch.dtype = torch.float64, num_held: int = 6) -> int:
    """Return the bytes that dense linear algebra takes with a matrix, or a batch of them, of
    ``num_entries`` numbers: it holds ``num_held`` of the same size at once, at most.
    """
    return num_held * num_entries * dtype.itemsize


def available(device: torch.device) -> int:
    """Return the bytes free on ``device`` now."""
    if device.type == "cuda":
        kept_by_torch = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept_by_torch
    return psutil.virtual_memory().available


def require(num_bytes: int, device: torch.device, what: str, remedy: str) -> None:
    """Raise ``MemoryError`` with ``what`` and the ``remedy`` if ``device`` lacks the bytes."""
    free = available(device)
    if num_bytes > free:
        raise MemoryError(
            f"{what} needs {num_bytes / GIBIBYTE:.1f} GiB and {free / GIBIBYTE:.1f} GiB are free on"
            f" {device}. {remedy}"
        )


def side_that_fits(
    device: torch.device, largest: int, seconds: float = 1.0, num_held: int = 16
) -> int:
    """Return the side of a square tile: ``largest``, halved until ``num_held`` tiles fit in half of
    the memory free on ``device``, as it was so many seconds ago at most: asking takes longer than a
    small product.

    Args:
        num_held: float32 tiles that are held at once, or twice the float64 ones: d², values,
            slopes, weights and the temporaries between them.
    """
    now = time.monotonic()
    last, free = _looks.get(device, (-seconds, 0))
    if now - last >= seconds:
        free = available(device)
        _looks[device] = now, free
    side = largest
    while side > 1 and num_held * torch.float32.itemsize * side**2 > free // 2:
        side //= 2
    return side


def halving(compute: Callable[[int], Result], size: int, what: str, smallest: int = 64) -> Result:
    """Return ``compute(size)``; of half the size whenever a CUDA device runs out of memory.

    Args:
        compute: takes less memory for a smaller size, and gives the same result.
        what: what has that many rows, for the message.
        smallest: the size that is not halved any more; where memory for 64 rows is not there,
            nothing else is either.

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
        # Here the error is gone, and with it the tensors of the failed attempt
        size = max(smallest, size // 2)


def may_change() -> bool:
    """Whether settings of the whole process may be changed."""
    choice = os.environ.get(SWITCH, "change")
    if choice not in ("change", "keep"):
        raise ValueError(f"`{SWITCH}` must be 'change' or 'keep', got {choice!r}.")
    return choice == "change"


@contextmanager
def full_precision() -> Iterator[None]:
    """Multiply float32 matrices on CUDA in full precision inside the context, then as before.

    TF32 keeps 11 of float32's 24 bits, and PyTorch has one setting for the whole process. Kernel
    products and distances do not follow what the user chose for other work: ‖x‖² − 2xᵀz + ‖z‖²
    would lose all digits of a small distance.
    """
    if not may_change():
        yield
        return
    settings = torch.backends.cuda.matmul
    # PyTorch replaces one setting by the other, and refuses to read the old one after the new
    setting, value = ("fp32_precision", "ieee") if _has_precisions() else ("allow_tf32", False)
    before = getattr(settings, setting)
    setattr(settings, setting, value)
    try:
        yield
    finally:
        setattr(settings, setting, before)


def full_precision_on(device: torch.device) -> AbstractContextManager[None]:
    """Return the context of :func:`full_precision` for a CUDA device, and none for another."""
    return full_precision() if device.type == "cuda" else nullcontext()


def _has_precisions() -> bool:
    return hasattr(torch.backends.cuda.matmul, "fp32_precision")


def wait_for(device: torch.device) -> None:
    """Wait until ``device`` has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(call: Callable[[], object], device: torch.device, num_calls: int = 3) -> float:
    """Return the least seconds of a few calls: the first of them warms up."""
    times = []
    for _ in range(num_calls):
        wait_for(device)
        started = time.perf_counter()
        call()
        wait_for(device)
        times.append(time.perf_counter() - started)
    return min(times)


class SharedContext:
    """A context for the whole process: the first thread to enter applies the context, and the last
    to leave undoes it.

    Args:
        make: makes the context.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[object]]) -> None:
        self._make = make
        self._entered = ExitStack()
        self._num_inside = 0
        self._lock = threading.Lock()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if self._num_inside == 0:
                self._entered.enter_context(self._make())
            self._num_inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_inside -= 1
                if self._num_inside == 0:
                    self._entered.close()


def drawing_device(device: torch.device, count: int) -> torch.device:
    """Return where ``count`` numbers for ``device`` are drawn by a generator that a seed makes."""
    there = device.type in DEVICE_TYPES and count >= MANY
    return device if there else torch.device("cpu")


def generator_for(generator: torch.Generator, device: torch.device, count: int) -> torch.Generator:
    """Return what draws ``count`` numbers for ``device``: ``generator``, or one it seeds there."""
    where = drawing_device(device, count)
    if where.type in ("cpu", generator.device.type):
        return generator
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    return seeded(where, seed)


def seeded(device: torch.device, seed: int) -> torch.Generator:
    """Return a generator of that device with this seed."""
    return torch.Generator(device).manual_seed(seed)
