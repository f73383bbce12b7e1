"""Evaluations in CSV, Excel and Parquet files and in DataFrames, read part by part."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from scalable_bo._packages import require
from scalable_bo.evaluation.evaluator import storable
from scalable_bo.space.cell_texts import cell_texts, choice_reader, distinct, guarded, unguarded
from scalable_bo.space.plain_values import Choice
from scalable_bo.space.quoting import quote
from scalable_bo.space.space import Space
from scalable_bo.storage import sheets
from scalable_bo.storage.rows import Outcomes
from surrogates import memory

require("pandas", extra="tables", user="A table of evaluations")

import pandas as pd

SUFFIXES = (".parquet", ".csv", ".xlsx")


class Remarks:
    """What a table itself says of its rows: which failed and why, and which say nothing yet, since
    they are pending, or their outcomes are empty and nothing else says that they failed.
    """

    def __init__(self, columns: Sequence[str], names: Sequence[str] = ()) -> None:
        self.names = distinct((*names, "status", "reason"), columns)[-2:]
        self.first_row = 0  # in errors
        self._silent: set[int] = set()
        self._failed: set[int] = set()
        self._reasons: dict[int, str] = {}

    def note(self, frame: pd.DataFrame, first_row: int, empty: Collection[int] = ()) -> None:
        """Read the remarks on rows; a reason such as "-" counts where an outcome is ``empty``."""
        statuses, reasons = (
            {row: text for row, text in enumerate(column, first_row) if isinstance(text, str)}
            for column in (frame.get(name, ()) for name in self.names)
        )
        said = {row: text for row, text in reasons.items() if not sheets.is_empty(text)}
        self._reasons |= {row: reasons[row] for row in empty if reasons.get(row)} | said
        self._failed |= {row for row, text in statuses.items() if text == "failed"}
        self._silent |= {row for row, text in statuses.items() if text == "pending"}
        self._silent |= {*empty} - self._failed - said.keys()

    def applied(self, outcomes: Outcomes) -> tuple[Outcomes, list[int]]:
        """Return outcomes, the failed ones with their reasons, and the rows that say something."""
        failed = outcomes.reasons.keys()
        if valued := self._failed - failed:
            row = self.first_row + min(valued)
            raise ValueError(f"Row {row} must have no outcome, or not the status failed.")
        reasons = {row: why for row, why in self._reasons.items() if row in failed}
        silent = self._silent & failed
        outcomes = outcomes.explain(reasons)
        return outcomes, [row for row in range(len(outcomes.values)) if row not in silent]


def read_table(
    space: Space,
    data: str | os.PathLike[str] | pd.DataFrame,
    y: Any,
    target: str | None,
    noise: Any,
    names: Sequence[str],
    remarks: Remarks,
) -> tuple[Tensor, Any, Any, dict[int, str]]:
    """Return the points (n, d) of a table, and their values and noise as ``Study.add_data`` takes
    them: as they are given, or those in the columns that they name or, of several outcomes, that
    have their ``names``; and, by row, why a value is no number. Note its remarks.

    Raises:
        TypeError, ValueError, MemoryError, ImportError: as ``Study.add_data``.
    """
    parameters = [*space.names, *space.fixed]
    told = _columns_of_values(parameters, y, target, names)
    known = [noise] if isinstance(noise, str) and not names else []
    if not names and (clash := [column for column in (*told, *known) if column in parameters]):
        raise ValueError(f"`target` and `noise` must not name a parameter, got {', '.join(clash)}.")
    points = [torch.empty(0, space.dim, dtype=torch.float64, device="cpu")]
    table = [points[0].new_empty(0, len(told) + len(known))]
    wrong: list[tuple[int, str, str]] = []
    # In errors, rows count as in a spreadsheet, whose first one has the headings, where it opens it
    is_sheet = not isinstance(data, pd.DataFrame) and Path(data).suffix.lower() != ".parquet"
    first_row = remarks.first_row = 2 if is_sheet else 0
    row = 0
    for frame in table_frames(space, data, {*parameters, *told, *known}, remarks=remarks):
        columns = list(frame.columns)
        twice = [name for name in remarks.names if columns.count(name) > 1]
        if wanted := [name for name in (*told, *known) if columns.count(name) != 1] + twice:
            received = ", ".join(map(str, columns))
            raise ValueError(f"The data must have the column {wanted[0]!r} once, got {received}.")
        points.append(space.from_frame(frame, first_row + row, observed=True))
        found = [_numbers(frame[name]) for name in (*told, *known)]
        if found:
            table.append(torch.stack([numbers for numbers, _ in found], dim=1))
        failed = [
            (row + place, name, reason)
            for name, (_, reasons) in zip(told, found, strict=False)
            for place, reason in reasons.items()
        ]
        empty = (row + table[-1][:, : len(told)].isnan().all(1).nonzero()).flatten().tolist()
        remarks.note(frame, row, ({*empty} if told else set()) - {place for place, *_ in failed})
        wrong += failed
        row += len(frame)
    numbers = torch.cat(table)
    y = numbers[:, : len(told)] if told else y
    noise = numbers[:, -1] if known else noise
    if wrong and names:
        lines = [f"row {first_row + row}, column `{name}`: {reason}" for row, name, reason in wrong]
        shown = "\n  ".join([*lines[:20], "…"][: len(lines)])
        raise ValueError(
            f"Outcomes must be numbers, got\n  {shown}\nLeave a cell empty where there is none."
        )
    reasons = {row: reason for row, _, reason in wrong}
    if row and len(reasons) == row:
        raise TypeError(
            f"The column {target!r} must hold numbers, got {reasons[0]}. Name another `target`."
        )
    return torch.cat(points), y, noise, reasons


def _columns_of_values(
    parameters: Sequence[str], y: Any, target: str | None, names: Sequence[str]
) -> list[str]:
    """Return the columns of a table that hold values; none where they are given beside it."""
    if names and y is None:
        if target is not None:
            raise ValueError(
                "`target` must be None with several outcomes, whose columns are"
                f" {', '.join(names)}, got {quote(target)}."
            )
        return distinct(names, parameters)
    if (y is None) == (target is None):
        raise ValueError(
            "Either `y` or `target`, the name of the column with the values, must be given with a"
            " table."
        )
    if not isinstance(target, str | None):
        raise TypeError(f"`target` must be the name of a column, got {quote(target)}.")
    return [] if target is None else [target]


def table_frames(
    space: Space,
    data: str | os.PathLike[str] | pd.DataFrame,
    wanted: set[str],
    rows_at_once: int = 100_000,
    remarks: Remarks | None = None,
) -> Iterator[pd.DataFrame]:
    """Yield the table part by part, with the wanted columns if it is a file.

    Args:
        rows_at_once: rows of a part, which bound the memory beside the result; a sheet of Excel is
            one part.
        remarks: to be read beside the columns; memory for all rows is required then.

    Raises:
        ValueError: if the file is of another kind, or cannot be read.
    """
    if isinstance(data, pd.DataFrame):
        starts = range(0, len(data), rows_at_once)
        yield from (data.iloc[start : start + rows_at_once] for start in starts)
        return
    path = Path(data)
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise ValueError(
            f"The file must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, got {path.name}."
            " Read it into a DataFrame."
        )
    readers = {".parquet": _parquet_frames, ".csv": _csv_frames, ".xlsx": _excel_frames}
    notes = set() if remarks is None else {*remarks.names} - wanted
    whole = remarks is not None
    yield from readers[kind](_TableFile(path, space.choices, wanted, notes, whole, rows_at_once))


class _TableFile(NamedTuple):
    """A file, and what is wanted of it: columns, with notes beside them, part by part."""

    path: Path
    choices: Mapping[str, Sequence[Choice]]
    wanted: set[str]
    notes: set[str]
    whole: bool  # whether memory for all rows is required
    rows_at_once: int


def write_table(
    frame: pd.DataFrame, path: Path, suffix: str, space: Space, names: Sequence[str] = ()
) -> None:
    """Write the rows of a study, with ``names`` for several outcomes, as ``add_data`` reads them;
    ``suffix`` is one of ``SUFFIXES``, whatever the path ends in.
    """
    choices = _held_as_text(space.choices) if suffix == ".parquet" else space.choices
    for name, some in choices.items():
        texts = cell_texts(some)
        frame[name] = [texts.get(value) for value in frame[name]]
    if suffix == ".parquet":
        frame.to_parquet(path)
        return
    parameters = [*space.names, *space.fixed]
    for name in (*Remarks(parameters, names).names, *distinct(["note"], parameters)):
        if name in frame:
            frame[name] = _translated(frame[name], guarded)
    frame = frame.rename(columns=sheets.heading_of)
    if suffix == ".xlsx":
        from scalable_bo.storage.excel import write_excel  # which needs openpyxl

        write_excel(frame, path)
        return
    # RFC 4180 ends lines so; after "\n" alone, a carriage return within a text would end a row
    frame.to_csv(path, lineterminator="\r\n", errors="backslashreplace")


def _csv_frames(file: _TableFile) -> Iterator[pd.DataFrame]:
    if file.whole:
        # A character takes four bytes: a digit and a comma are a number, and there is a copy
        _require_memory(file.path, 4 * file.path.stat().st_size)
    columns = [*file.wanted, *file.notes]
    how: Any = {**sheets.dialect(file.path), "compression": None, "keep_default_na": False}
    comma = how["decimal"] == ","
    readers = dict.fromkeys(columns, choice_reader((), comma)) if comma else {}
    readers |= {name: choice_reader(some, comma) for name, some in file.choices.items()}
    readers |= dict.fromkeys(file.notes, unguarded)
    numbers = file.wanted - file.choices.keys()
    decimals: dict[str, Any] = {}
    try:
        # Two rows, and all columns below, or pandas accepts cells beyond the headings
        headings = pd.read_csv(file.path, header=None, nrows=2, dtype=str, **how).iloc[0].tolist()
        known = sheets.known_headings(headings, columns)
        as_text: Any = {heading: str for heading, name in known.items() if name in readers}
        how |= {"dtype": as_text, "index_col": False, "low_memory": False}
        with pd.read_csv(file.path, chunksize=file.rows_at_once, **how) as chunks:
            for chunk in chunks:
                found = chunk.set_axis(headings, axis=1)[list(known)].rename(columns=known)
                decimals = sheets.find_decimals(found, numbers) | decimals if comma else {}
                if len(decimals) == 2:
                    at, text, name = decimals["."]
                    raise ValueError(f"Row {at + 2}, column `{name}`: {text!r} {sheets.AMBIGUOUS}.")
                yield _read(found, readers)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise _unreadable(file.path, error) from error


def _excel_frames(file: _TableFile) -> Iterator[pd.DataFrame]:
    frame = sheets.read_sheet(file.path)
    readers = {name: choice_reader(some) for name, some in file.choices.items()}
    readers |= dict.fromkeys(file.notes, unguarded)
    known = sheets.known_headings(frame, [*file.wanted, *file.notes])
    yield _read(frame[list(known)].rename(columns=known), readers)


def _parquet_frames(file: _TableFile) -> Iterator[pd.DataFrame]:
    from scalable_bo.storage import parquet  # which needs pyarrow

    columns = file.wanted | file.notes
    readers = {name: choice_reader(some) for name, some in _held_as_text(file.choices).items()}
    try:
        if file.whole:
            _require_memory(file.path, parquet.num_bytes(file.path, columns))
        for frame in parquet.read_frames(file.path, columns, file.rows_at_once, file.notes):
            yield _read(frame, readers)
    except parquet.ArrowException as error:
        raise _unreadable(file.path, error) from error


def _held_as_text(choices: Mapping[str, Sequence[Choice]]) -> dict[str, Sequence[Choice]]:
    """Return those of the columns that a Parquet file must hold as text."""
    from scalable_bo.storage import parquet  # which needs pyarrow

    return {name: some for name, some in choices.items() if not parquet.holds(some)}


def _read(frame: pd.DataFrame, readers: Mapping[str, Callable[[Any], Any]]) -> pd.DataFrame:
    for column, name in enumerate(frame.columns):
        if name in readers:
            frame.isetitem(column, _translated(frame.iloc[:, column], readers[name]))
    return frame


def _translated(column: pd.Series, function: Callable[[Any], Any]) -> np.ndarray:
    """Return the function's values of a column's cells, each different one computed once."""
    places, cells = column.factorize(use_na_sentinel=False)
    found = np.empty(len(cells), dtype=object)
    found[:] = [function(cell) for cell in cells]
    return found[places]


def _unreadable(path: Path, error: Exception) -> ValueError:
    return ValueError(
        f"{path.name} could not be read: {error}. Is it a {path.suffix[1:].lower()} file?"
    )


def _require_memory(path: Path, num_bytes: int) -> None:
    memory.require(
        num_bytes, torch.device("cpu"), f"Reading {path.name}", "Split the file, or leave rows out."
    )


def _numbers(column: pd.Series) -> tuple[Tensor, dict[int, str]]:
    """Return a column as numbers, NaN for what is none, and what that was by position."""
    column = column.astype(str) if column.dtype.kind in "cmM" else column
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, True, np.nan)
    if column.dtype.kind in "iuf":
        return torch.from_numpy(numbers), {}
    wrong = np.flatnonzero(np.isnan(numbers) & ~column.map(sheets.is_empty).to_numpy(dtype=bool))
    return torch.from_numpy(numbers), {
        int(row): storable(f"not a number: {str(column.iloc[row])!r:.80}") for row in wrong
    }
