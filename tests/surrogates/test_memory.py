"""What fits into memory: tiles by a device's free memory, smaller ones when it runs out."""

from collections.abc import Callable

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
    assert 16 * 4 * side**2 <= max(64, gibibytes * GIBIBYTE / 2)


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

    assert halving(compute, 100, "A tile", 1) == "done"
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
        halving(compute, 50, "A tile", 16)
    assert tried == [50, 25, 16]


def test_other_errors_pass() -> None:
    with pytest.raises(ZeroDivisionError):
        halving(lambda size: size // 0, 8, "A tile")
