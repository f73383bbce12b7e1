"""What the benchmarks of fits share: a cell has settings and a measurement,
and is one JSON record.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import torch

from scalable_bo.experiments.records import describe_environment, finished_record, write_record

Status = Callable[[str], None]
# Where a cell finds its data and computes: no part of its settings
ELSEWHERE = ("data_dir", "device")


@dataclass(frozen=True, kw_only=True)
class FitCell(ABC):
    """One cell of a benchmark.

    Args:
        device: where to compute.
    """

    experiment: ClassVar[str]
    device: str = "cpu"

    @abstractmethod
    def measure(self, on_status: Status) -> dict[str, Any]:
        """Return what the record holds beside experiment, settings and environment."""

    @abstractmethod
    def describe(self, record: dict[str, Any]) -> str:
        """Return one line on the numbers of a record."""

    def settings(self) -> dict[str, Any]:
        """Return all that decides the result."""
        return {
            entry.name: getattr(self, entry.name)
            for entry in fields(self)
            if entry.name not in ELSEWHERE
        }

    @property
    def name(self) -> str:
        """A file name for the record, without its ending: the arguments that must be given,
        and others that are not the default.
        """
        words = [self.experiment]
        for entry in fields(self):
            value = getattr(self, entry.name)
            text = (
                ",".join(f"{part:g}" for part in value) if isinstance(value, tuple) else str(value)
            )
            if entry.default is MISSING:
                words.append(text)
            elif entry.name not in ELSEWHERE and value != entry.default:
                words.append(f"{entry.name}={text}")
        return re.sub(r"[^\w.,=-]", "-", "_".join(["fit", *words]))


def run_cells(
    cells: Sequence[FitCell],
    folder: Path,
    *,
    rerun: bool = False,
    on_status: Status = lambda text: None,
) -> Iterator[tuple[FitCell, dict[str, Any], bool]]:
    """Run the cells one after the other, each record written as it comes; yield cell, record, and
    whether it was kept.

    Args:
        cells: what to run.
        folder: of the records. A record there with the same settings is kept and its cell not run.
        rerun: run those cells, too.
        on_status: called with a few words on what is happening now.
    """
    for cell in cells:
        path = folder / f"{cell.name}.json"
        settings = cell.settings()
        record = None if rerun else finished_record(path, settings)
        kept = record is not None
        if record is None:
            environment = describe_environment(torch.device(cell.device))
            record = {
                "experiment": cell.experiment,
                "settings": settings,
                "environment": environment,
            } | cell.measure(on_status)
            write_record(path, record)
        yield cell, record, kept


def counting(on_status: Status, what: str, n: int) -> Callable[[int, float], None]:
    """Return a callback of a fit to n data that says how far it is."""

    def callback(step: int, value: float) -> None:
        on_status(f"{what}: step {step}, {value / n:.3f} nats a datum")

    return callback
