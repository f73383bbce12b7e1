"""Records: whole or not at all, and plain JSON."""

import json
import math
import mmap
from pathlib import Path

import pytest
import torch

from scalable_bo.experiments import records
from scalable_bo.experiments.records import (
    describe_environment,
    existing_record,
    peak_memory_bytes,
    reset_peak_memory,
    write_record,
)

CPU = torch.device("cpu")


def test_what_is_written_is_read_back_and_numbers_that_are_not_finite_become_null(
    tmp_path: Path,
) -> None:
    path = tmp_path / "made" / "record.json"
    write_record(path, {"rounds": [{"residual": math.nan, "best": 1.5}], "q": (1, 2)})
    assert existing_record(path) == {"rounds": [{"residual": None, "best": 1.5}], "q": [1, 2]}
    assert [file.name for file in path.parent.iterdir()] == ["record.json"]


def test_the_environment_says_what_ran_where() -> None:
    environment = describe_environment(CPU)
    assert environment["versions"]["torch"] == torch.__version__
    assert environment["device"] == "cpu"
    assert environment["cpu_count"] >= 1
    assert environment["date"].endswith("+00:00")
    json.dumps(environment)


def test_the_commit_of_a_repository_around_an_installed_package_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(records, "_ROOT", Path(records.__file__).parent)
    assert describe_environment(CPU)["commit"] is None


def test_a_copy_is_told_its_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(records.COMMIT, "7328b0c")
    for place in (records._ROOT, Path(records.__file__).parent, tmp_path):
        monkeypatch.setattr(records, "_ROOT", place)
        assert describe_environment(CPU)["commit"] == "7328b0c"


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux resets the peak")
def test_peak_memory_is_that_since_the_reset() -> None:
    size = 2**27
    page = b"x" * mmap.PAGESIZE

    def peak_with_a_block() -> int:
        # The system takes such a block back at once; an allocator may keep what is freed
        with mmap.mmap(-1, size) as block:
            for _ in range(size // mmap.PAGESIZE):
                block.write(page)
            return peak_memory_bytes(CPU)

    reset_peak_memory(CPU)
    with_block = peak_with_a_block()
    reset_peak_memory(CPU)
    without_block = peak_memory_bytes(CPU)
    assert without_block < with_block - size // 2
    assert peak_with_a_block() > without_block + size // 2
