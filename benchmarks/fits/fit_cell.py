"""What the cells of fits share: a run in one step, and a name from what was chosen."""

from __future__ import annotations

import re
import time
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from benchmarks.fits.simulators import SIMULATORS
from scalable_bo.experiments.cells import ELSEWHERE, Cell, Status
from scalable_bo.experiments.records import Record
from scalable_bo.experiments.regression.data import existing_data_set
from surrogates import fit_exact

# What fits a model, and its settings in a cell; the exact fit alone draws nothing
FitMethod = tuple[Callable[..., Any], Callable[[Any], dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class FitCell(Cell[None]):
    """One cell of a benchmark of fits."""

    def learn(
        self, method: FitMethod, model: Any, generator: torch.Generator, on_status: Status
    ) -> tuple[Any, float]:
        """Fit a model to its data; return what was fitted, and the seconds that it took."""
        n = len(model.train_targets)

        def callback(step: int, value: float) -> None:
            on_status(f"{self.name}: step {step}, {value / n:.3f} nats a datum")

        fit, settings = method
        drawn = {} if fit is fit_exact else {"generator": generator}
        begin = time.perf_counter()
        fitted = fit(model, callback=callback, **drawn, **settings(self))
        return fitted, time.perf_counter() - begin

    @abstractmethod
    def measure(self, on_status: Status) -> Record:
        """Return what the record holds beside experiment, settings and environment."""

    def run(self, data: None, on_status: Status, state: Path) -> Iterator[Record]:
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

    @property
    def source(self) -> Hashable:
        return vars(self).get("data")

    def check_files(self) -> None:
        settings = vars(self)
        if "data_dir" in settings and settings["data"] not in SIMULATORS:
            existing_data_set(settings["data"], settings["data_dir"])
