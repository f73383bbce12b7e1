"""How large tiles are: tried once on a device, fixed on a CPU."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from surrogates import memory
from surrogates.operators import tiles
from tests.simulated_device import NAME, simulated_device

CPU = torch.device("cpu")


@pytest.fixture
def device() -> Iterator[torch.device]:
    with simulated_device() as there:
        yield there


def test_of_tiles_that_are_as_fast_the_smallest_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {8: 2.0, 16: 1.02, 32: 1.0, 64: 1.5}  # seconds an entry

    def clock(call: Callable[[], Tensor], device: torch.device) -> float:
        side = len(call())
        return taken[side] * side**2

    monkeypatch.setattr(tiles.memory, "seconds", clock)
    assert tiles.fastest_side(CPU, (8, 16, 32, 64), 3) == 16
    assert tiles.fastest_side(CPU, (8,), 3) == 8


def test_the_tiles_of_a_device_are_tried_once_and_those_of_a_cpu_are_fixed(
    monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    tried = []

    def noted(device: torch.device, sides: list[int], num_columns: int) -> int:
        tried.append(sides)
        return 128

    monkeypatch.setattr(memory, "MEASURED_TYPES", {NAME})
    monkeypatch.setattr(tiles.memory, "side_that_fits", lambda device, side: min(side, 4096))
    monkeypatch.setattr(tiles, "fastest_side", noted)
    tiles._fastest_side.cache_clear()
    try:
        assert [tiles.tile_side(device) for _ in range(2)] == [128, 128]
        assert tried == [[2048, 4096]]  # those for which there is memory
        assert tiles.tile_side(CPU) == 512
    finally:
        tiles._fastest_side.cache_clear()


def test_tiles_are_tried_on_the_device(device: torch.device) -> None:
    assert tiles.fastest_side(device, (8, 16), 3) in (8, 16)
