"""A cell of a benchmark: settings that decide its result, a run in one or several steps, and one
JSON record.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch

from scalable_bo.experiments import torchrun
from scalable_bo.experiments.records import (
    Record,
    describe_environment,
    finished_record,
    write_record,
)
from surrogates import checks

Status = Callable[[str], None]
Data = TypeVar("Data")
# Where a cell finds its data and computes: no part of its settings
ELSEWHERE = ("data_dir", "device")


def silent(text: str) -> None:
    """Show nothing of what is happening now."""


@dataclass(frozen=True, kw_only=True)
class Cell(ABC, Generic[Data]):
    """One cell of a benchmark.

    Attributes:
        experiment: the benchmark's name in the record.
        steps: the record's list that has an entry for each step; ``None`` for a run in one step.
        told: the numbers of a record that a line tells: their keys, words and formats.
    """

    experiment: ClassVar[str]
    told: ClassVar[tuple[tuple[str, str, str], ...]] = ()
    steps: ClassVar[str | None] = None
    device: str = "cpu"

    @property
    @abstractmethod
    def name(self) -> str:
        """A file name for the record, without its ending."""

    @abstractmethod
    def run(self, data: Data, on_status: Status, state: Path) -> Iterator[Record]:
        """Yield, after each step, what the record has beside experiment, settings, environment.

        Args:
            on_status: called with a few words on what is happening now.
            state: a file for what the next steps go on from. A run in one step has no use for it.
        """

    @classmethod
    def last_step(cls, record: Record) -> Record:
        """Return the part of a record that came last."""
        last: Record = record if cls.steps is None else record[cls.steps][-1]
        return last

    def describe(self, record: Record) -> str:
        """Return one line on the last step of a record."""
        last = self.last_step(record)
        told = [(word, last.get(key), digits) for key, word, digits in self.told]
        words = [f"{word} {value:{digits}}" for word, value, digits in told if value is not None]
        return f"{self.name}: {', '.join(words)}"

    def settings(self) -> dict[str, Any]:
        """Return all that decides the result: a cell with the same settings need not run again."""
        return {name: value for name, value in vars(self).items() if name not in ELSEWHERE}

    @property
    def num_steps(self) -> int:
        """The number of steps of a whole run."""
        return 1

    @property
    def source(self) -> Hashable:
        """What tells data apart: cells of one source in a row share what ``load`` returns."""
        return None

    def load(self, on_status: Status) -> Data:
        """Return the data that the run is about."""
        return None  # type: ignore[return-value]  # a cell that makes its own has none to share

    def check_files(self) -> None:
        """Raise ValueError, naming what is missing and where it comes from, if the data are not
        there, without loading them.
        """


@dataclass(frozen=True)
class Grid:
    """Cells of one kind: one for every combination of values of some of their arguments.

    Args:
        axes: values of arguments, of which the first varies slowest.
        compared: the argument of ``axes`` that varies fastest, such as the method.
    """

    kind: type[Cell[Any]]
    axes: Mapping[str, Sequence[Any]]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    compared: str = "method"

    def cells(self, sample: int | None = None, **choices: Any) -> list[Any]:
        """Return the cells.

        Args:
            sample: so many random combinations of the values, the same every time, with all values
                of ``compared``; ``None`` for all of them.
            choices: arguments of the cells in place of those of the grid, whose names may be in the
                plural: a list is of several values, a cell for each. ``None`` leaves them alone.
        Raises:
            TypeError, ValueError: if there is no such argument, or a value is out of range.
        """
        defaults = {entry.name: entry.default for entry in fields(self.kind)}
        axes, fixed = dict(self.axes), dict(self.fixed)
        for option, value in choices.items():
            name = option if option in defaults else option.removesuffix("s")
            if value is None:
                continue
            if name not in defaults:
                raise ValueError(
                    f"`{option}` does not go with the benchmark {self.kind.experiment}, got"
                    f" {value!r}. Leave it out."
                )
            if isinstance(value, list) and not isinstance(defaults[name], tuple):
                axes[name] = value
            else:
                axes.pop(name, None)
                fixed[name] = tuple(value) if isinstance(value, list) else value
        compared = axes.pop(self.compared)
        combinations = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
        if sample is not None:
            sample = checks.positive_int("sample", sample)
            numbers = Random(0).sample(range(len(combinations)), min(sample, len(combinations)))
            combinations = [combinations[number] for number in sorted(numbers)]
        return [
            self.kind(**fixed | combination | {self.compared: value})
            for combination in combinations
            for value in compared
        ]


class Step(NamedTuple):
    """What a cell has come to: its record so far, and whether it was kept from an earlier run."""

    cell: Cell[Any]
    record: Record
    kept: bool


def run_cells(
    cells: Iterable[Cell[Any]], folder: Path, *, rerun: bool = False, on_status: Status = silent
) -> Iterator[Step]:
    """Run the cells one after the other; write each record, and yield it, after every step.

    A cell that failed or was interrupted has no complete record, and runs again the next time: from
    its last finished step if it keeps a state beside its record, else from the first.

    Args:
        cells: those whose data have one source next to each other share them.
        folder: of the records. A complete record there with the same settings is kept and its cell
            not run.
        on_status: called with a few words on what is happening now.
    """
    loaded: tuple[Any, Any] | None = None
    for cell in cells:
        path, state = files(cell, folder)
        found = torchrun.of_first(None if rerun else finished_record(path, cell.settings()))
        if rerun or found is not None:
            remove_state(state)
        if found is not None:
            yield Step(cell, found, kept=True)
            continue
        torchrun.copy_of_first(state)
        if loaded is None or loaded[0] != (type(cell), cell.source):
            loaded = ((type(cell), cell.source), cell.load(on_status))
        for record in step_records(cell, loaded[1], on_status, state):
            write_record(path, record)
            yield Step(cell, record, kept=False)


def run_cell(
    cell: Cell[Data],
    data: Data | None = None,
    *,
    on_step: Callable[[Record], None] | None = None,
    on_status: Status = silent,
) -> Record:
    """Run one cell and return its record, leaving nothing on disk.

    Args:
        data: what ``cell.load`` returned; ``None`` to load it.
        on_step: called with the record so far after each step.
        on_status: called with a few words on what is happening now.
    """
    if data is None:
        data = cell.load(on_status)
    with TemporaryDirectory() as folder:
        for record in step_records(cell, data, on_status, files(cell, Path(folder))[1]):
            if on_step is not None:
                on_step(record)
    return record


def step_records(cell: Cell[Data], data: Data, on_status: Status, state: Path) -> Iterator[Record]:
    """Run one cell, and yield its record so far after each step."""
    environment = describe_environment(torch.device(cell.device))
    head = {
        "experiment": cell.experiment,
        "settings": cell.settings(),
        "environment": environment | {"processes": torchrun.num_processes()},
    }
    for own in cell.run(data, on_status, state):
        yield head | own


def files(cell: Cell[Any], folder: Path) -> tuple[Path, Path]:
    """Return the files of the cell's record, and of its state between two steps."""
    return folder / f"{cell.name}.json", folder / f"{cell.name}.safetensors"


def solves_beside(state: Path) -> Path:
    """Return the folder for checkpoints of the solve that a step is in."""
    return state.with_suffix(".solve")


def remove_state(state: Path) -> None:
    """Remove the state between two steps, and what is left of the solve beside it."""
    state.unlink(missing_ok=True)
    shutil.rmtree(solves_beside(state), ignore_errors=True)
