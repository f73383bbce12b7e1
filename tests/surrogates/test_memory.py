"""What fits into memory: tiles by a device's free memory, smaller ones when it runs out,
and freed memory used again.
"""

import os
import subprocess
import sys
from collections.abc import Callable

import psutil
import pytest
import torch

from surrogates import memory
from surrogates.memory import GIBIBYTE, halving, side_that_fits

DEVICE = torch.device("cuda")


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that sets the bytes free on every device."""
    monkeypatch.setattr(memory, "_looks", {})
    return lambda num_bytes: monkeypatch.setattr(memory, "available", lambda device: num_bytes)


@pytest.mark.parametrize(
    ("gibibytes", "side"), [(70, 8192), (8, 8192), (7, 4096), (1.9, 2048), (0.1, 512), (0, 1)]
)
def test_tiles_take_at_most_half_of_the_free_memory(
    free: Callable[[int], None], gibibytes: float, side: int
) -> None:
    free(int(gibibytes * GIBIBYTE))
    assert side_that_fits(DEVICE, 8192) == side
    assert memory.TILES_HELD * 4 * side**2 <= max(64, gibibytes * GIBIBYTE / 2)


def test_free_memory_is_looked_at_once_a_second(
    free: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(memory.time, "monotonic", lambda: clock[0])
    free(70 * GIBIBYTE)
    assert side_that_fits(DEVICE, 8192) == 8192
    free(2 * GIBIBYTE)
    clock[0] += 0.9
    assert side_that_fits(DEVICE, 8192) == 8192
    clock[0] += 0.2
    assert side_that_fits(DEVICE, 8192) == 4096


def test_what_torch_keeps_for_itself_counts_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 9000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 700)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 300)
    assert memory.available(DEVICE) == 1400


def test_running_out_of_memory_halves_the_size_until_it_fits() -> None:
    tried: list[int] = []

    def compute(size: int) -> str:
        tried.append(size)
        if size > 12:
            raise torch.cuda.OutOfMemoryError("no")
        return "done"

    assert halving(compute, 100, 1, "A tile") == "done"
    assert tried == [100, 50, 25, 12]


def test_memory_that_lacks_for_the_smallest_size_is_an_error() -> None:
    tried: list[int] = []

    def compute(size: int) -> None:
        tried.append(size)
        raise torch.cuda.OutOfMemoryError("no")

    with pytest.raises(
        MemoryError,
        match="A tile of 16 rows does not fit in the device's free memory .* Evaluate fewer points",
    ):
        halving(compute, 50, 16, "A tile")
    assert tried == [50, 25, 16]


def test_other_errors_pass() -> None:
    with pytest.raises(ZeroDivisionError):
        halving(lambda size: size // 0, 8, 1, "A tile")


FREED_TWICE = """
import resource, torch
from surrogates import memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        torch.ones(2**24)  # 64 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = faults()
with memory.keeping_freed():
    with memory.keeping_freed():
        kept = min(faults() for _ in range(10))  # the first ones make room
print(first, kept, faults())
"""


@pytest.mark.skipif(
    memory._glibc() is None, reason="the allocator of the GNU C library alone can be told"
)
@pytest.mark.parametrize(
    ("environment", "keeps"), [({}, True), ({"MALLOC_TRIM_THRESHOLD_": "131072"}, False)]
)
def test_freed_memory_is_kept_inside_the_context_alone(
    environment: dict[str, str], keeps: bool
) -> None:
    inherited = {
        name: value for name, value in os.environ.items() if name not in memory.ALLOCATOR_SETTINGS
    }
    command = [sys.executable, "-c", FREED_TWICE]
    done = subprocess.run(
        command,
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    before, inside, after = map(int, done.stdout.split())
    pages = 4 * 2**26 // os.sysconf("SC_PAGE_SIZE")
    assert before > 0.9 * pages, "four tensors of 64 MiB are mapped four times"
    assert after > 0.4 * pages, "given back, and mapped again"
    assert (inside < 0.1 * pages) == keeps


@pytest.mark.skipif(
    memory._glibc() is None, reason="the allocator of the GNU C library alone can be told"
)
def test_memory_that_is_kept_is_given_back_before_free_memory_is_asked_for() -> None:
    process = psutil.Process()
    with memory.keeping_freed():
        block = torch.ones(2**25)  # 128 MiB
        before = process.memory_info().rss
        del block
        memory.available(torch.device("cpu"))
        assert process.memory_info().rss < before - 2**26


def test_nested_contexts_set_the_allocator_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[int, int]] = []
    monkeypatch.setattr(memory, "_set_allocator", made.append)
    with pytest.raises(ZeroDivisionError), memory.keeping_freed():
        with memory.keeping_freed():
            assert made == [memory.KEEPING]
        assert made == [memory.KEEPING]
        1 / 0  # noqa: B018
    assert made == [memory.KEEPING, memory.USUAL]
