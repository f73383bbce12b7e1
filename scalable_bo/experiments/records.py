"""One JSON file a run: what was run, where, and what came out."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from scalable_bo.evaluation.progress import peak_of_process, reset_peak_of_process
from scalable_bo.space.plain_values import json_values
from surrogates import memory
from surrogates.atomic import write_atomically

Record = dict[str, Any]
_PACKAGES = (
    *("scalable-bo", "torch", "gpytorch", "linear_operator", "botorch", "numpy", "scikit-learn"),
    *("optuna", "cma", "cmaes", "coco-experiment"),
)
_ROOT = Path(__file__).resolve().parents[2]
COMMIT = "SCALABLE_BO_COMMIT"  # environment variable: the commit of a copy of the source


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return what the numbers depend on: commit, versions, device, processor, date (UTC)."""
    return {
        "commit": os.environ.get(COMMIT) or _commit(),
        "versions": {"python": platform.python_version()} | {n: _version(n) for n in _PACKAGES},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "cpu": _cpu_name(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def write_record(path: Path, record: Record) -> None:
    """Write ``record`` as JSON in one atomic step; numbers that are not finite become null.

    The folder is made if it is not there. A reader finds the former file or the new one, never a
    part, and after a crash, too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(json_values(record), indent=1, allow_nan=False)
    write_atomically(path, f"{text}\n".encode())


def read_records(
    folder: Path, pattern: str, experiments: Collection[str], *, unfinished: bool = False
) -> dict[Path, Record]:
    """Return the records of these experiments in a folder by their files, in the order of these:
    the complete ones, or all. Files that are none are passed over.
    """
    found = {path: existing_record(path) for path in sorted(folder.glob(pattern))}
    return {
        path: record
        for path, record in found.items()
        if record is not None
        and record.get("experiment") in experiments
        and (unfinished or record.get("complete", True))
    }


def finished_record(path: Path, settings: dict[str, Any]) -> Record | None:
    """Return the record at ``path`` if it is complete and has these settings, else ``None``."""
    record = existing_record(path)
    if record is None or not record.get("complete", True):
        return None
    return record if record.get("settings") == json.loads(json.dumps(settings)) else None


def existing_record(path: Path) -> Record | None:
    """Return the record at ``path``, or ``None`` if nothing or something else is there."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def differences(found: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """Say how the settings of a record that was found differ from these, one phrase for each."""
    there = _flat(found)
    now = _flat(json.loads(json.dumps(settings)))
    keys = [key for key in there | now if there.get(key, "nothing") != now.get(key, "nothing")]
    return [
        f"{key} is {there.get(key, 'nothing')} there, {now.get(key, 'nothing')} now" for key in keys
    ]


@dataclass
class Stopwatch:
    """Measure wall-clock seconds, waiting for the device at both ends."""

    device: torch.device
    seconds: float = 0.0
    _start: float = field(default=0.0, init=False)

    def __enter__(self) -> Stopwatch:
        self._start = self._now()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = self._now() - self._start

    def _now(self) -> float:
        memory.wait_for(self.device)
        return time.perf_counter()


def reset_peak_memory(device: torch.device) -> None:
    """Begin a new measurement of ``peak_memory_bytes``, where the system allows it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    reset_peak_of_process()


def peak_memory_bytes(device: torch.device) -> int:
    """Return the peak since ``reset_peak_memory``: of the CUDA device's tensors, or of the
    process's resident memory.

    Where the system cannot reset it (not Linux), it is the process's peak so far.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return peak_of_process()


def _commit() -> str | None:
    """Return the commit of the source tree, marked if it has changes; ``None`` for a copy without
    its repository, or an installed package.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(_ROOT), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        # Installed inside somebody's own repository
        if Path(git("rev-parse", "--show-toplevel")) != _ROOT:
            return None
        return git("rev-parse", "HEAD") + (" with changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line for line in lines if line.startswith("model name"))
        return name.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat
