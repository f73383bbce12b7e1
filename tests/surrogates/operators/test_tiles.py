"""How large tiles are: what fits on a device, fixed on a CPU."""

import pytest
import torch

from surrogates import memory
from surrogates.operators import tiles
from tests.simulated_device import NAME, simulated_device


def test_tiles_of_a_device_fit_in_its_memory_and_those_of_a_cpu_are_fixed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "DEVICE_TYPES", {NAME})
    monkeypatch.setattr(memory, "side_that_fits", lambda device, side: min(side, 4096))
    with simulated_device() as device:
        assert tiles.tile_side(device) == 4096
    assert tiles.tile_side(torch.device("cpu")) == 512
