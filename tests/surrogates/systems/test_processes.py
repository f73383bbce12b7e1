"""How processes join, where each computes, what is whose, and that messages on a CUDA device are
waited for: by stand-ins for the devices and for what sends.
"""

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from surrogates import memory
from surrogates.systems import shared_rows
from surrogates.systems.processes import NCCL_SETTINGS, own_rows, processes, shares
from surrogates.systems.shared_rows import SharedRows
from tests.simulated_device import NAME, simulated_device


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """Let two of the processes that ``torchrun`` starts on a machine with two devices join; return
    how.
    """
    groups: list[tuple[str, float]] = []
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for name in NCCL_SETTINGS:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(dist, "is_torchelastic_launched", lambda: True)
    monkeypatch.setattr(dist, "is_backend_available", lambda name: name in ("nccl", "gloo"))
    monkeypatch.setattr(
        dist,
        "init_process_group",
        lambda backend, timeout: groups.append((backend, timeout.total_seconds())),
    )
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    return groups


def test_processes_have_a_cuda_device_each_and_wait_for_their_messages(
    joined: list[tuple[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")  # what the user says stays
    with processes(timeout_seconds=7.0) as device:
        assert device == torch.device("cuda", 1)
        assert os.environ["TORCH_NCCL_BLOCKING_WAIT"] == "1"
        assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"
    assert joined == [("nccl", 7.0)]


def test_another_backend_has_processes_compute_on_cpus(joined: list[tuple[str, float]]) -> None:
    with processes(backend="gloo") as device:
        assert device == torch.device("cpu")
    assert joined == [("gloo", 300.0)]
    assert "TORCH_NCCL_BLOCKING_WAIT" not in os.environ


def test_more_processes_than_devices_are_refused_before_they_join(
    joined: list[tuple[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with (
        pytest.raises(
            ValueError,
            match="needs a CUDA device for each process, got 4 processes on a machine with 2. Start"
            " one a device, or pass 'gloo'",
        ),
        processes(),
    ):
        pass
    with processes(backend="gloo"):
        pass
    assert [name for name, _ in joined] == ["gloo"]


def test_a_backend_that_is_not_there_is_refused(joined: list[tuple[str, float]]) -> None:
    with (
        pytest.raises(ValueError, match="`backend` must be .* got 'mpi'"),
        processes(backend="mpi"),
    ):
        pass
    assert not joined


@pytest.mark.parametrize(("n", "size"), [(1, 1), (10, 3), (7, 7), (1_000_003, 16)])
def test_rows_and_paths_are_shared_evenly(
    monkeypatch: pytest.MonkeyPatch, n: int, size: int
) -> None:
    parts = []
    for rank in range(size):
        monkeypatch.setattr(
            "surrogates.systems.processes.place", lambda group, rank=rank: (rank, size)
        )
        parts.append(own_rows(n))
        assert shares("q", n) == parts[-1]
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == n
    assert {part.stop - part.start for part in parts} <= {n // size, -(-n // size)}


class Messages:
    """Stands in for two processes on devices: notes in which order the process waits and sends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.events: list[str] = []
        for name in ("all_reduce", "broadcast", "all_to_all_single"):
            monkeypatch.setattr(dist, name, self.sender(name))
        monkeypatch.setattr(memory, "wait_for", self.wait_for)
        monkeypatch.setattr(shared_rows, "place", lambda group: (0, 2))

    def wait_for(self, device: torch.device) -> None:
        assert device.type == NAME
        self.events.append("device")

    def sender(self, name: str) -> Any:
        def send(*_: object, group: object, async_op: bool, **__: object) -> Any:
            assert async_op  # others wait on the device alone
            self.events.append(name)
            return SimpleNamespace(wait=lambda: self.events.append("arrived"))

        return send


def test_every_message_waits_for_the_device_before_and_for_its_arrival(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    messages = Messages(monkeypatch)
    with simulated_device() as device:
        rows = SharedRows(6, device)
        W = torch.ones(6, 4, device=device)
        rows.counts = [6, 6]
        rows.n = 12
        calls = {
            "all_reduce": lambda: rows.sum(W.clone()),
            "broadcast": lambda: rows.of(1, W.clone()),
            "all_to_all_single": lambda: rows.to_columns(W),
        }
        for name, call in calls.items():
            messages.events.clear()
            call()
            assert messages.events == ["device", name, "arrived"]


def test_a_chunk_is_on_its_way_while_another_is_used_and_none_is_queued_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    messages = Messages(monkeypatch)
    width = memory.part_size(2, torch.float32)  # of which two rows are a chunk
    with simulated_device() as device:
        rows = SharedRows(4, device)
        rows.counts = [4, 0]
        messages.events.clear()
        for (part,) in rows.chunks(torch.ones(4, width, device=device)):
            assert len(part) == 2
            messages.events.append("used")
    sent = ["device", "broadcast"]
    assert messages.events == [*sent, "arrived", *sent, "used", "arrived", "used"]
