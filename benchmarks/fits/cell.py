"""What the cells of the benchmarks of fits share: a run in one step, and a name from what was
chosen.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

from benchmarks.fits.simulators import SIMULATORS
from scalable_bo.experiments.cells import ELSEWHERE, Cell, Status
from scalable_bo.experiments.records import Record
from scalable_bo.experiments.regression.data import existing_data_set

FitCallback = Callable[[int, float], None]


@dataclass(frozen=True, kw_only=True)
class FitCell(Cell[None]):
    """One cell of a benchmark of fits."""

    @abstractmethod
    def measure(self, on_status: Status) -> Record:
        """Return what the record holds beside experiment, settings and environment."""

    def run(self, data: None, on_status: Status, state: Path | None) -> Iterator[Record]:
        yield self.measure(on_status)

    @property
    def name(self) -> str:
        """The arguments that must be given, and others that are not the default."""
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

    def check_files(self) -> None:
        settings = vars(self)
        if settings.get("data", "levy") not in SIMULATORS:
            existing_data_set(settings["data"], settings["data_dir"])


def counting(on_status: Status, what: str, n: int) -> FitCallback:
    """Return a callback of a fit to n data that says how far it is."""

    def callback(step: int, value: float) -> None:
        on_status(f"{what}: step {step}, {value / n:.3f} nats a datum")

    return callback
