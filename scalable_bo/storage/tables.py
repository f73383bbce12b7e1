"""Evaluations in tables, read by the names of their columns: DataFrames, and in parts CSV and
Parquet files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalable_bo._packages import require
from scalable_bo.evaluation.evaluator import storable
from scalable_bo.space.space import Categorical, Space
from scalable_bo.storage.rows import Outcomes
from surrogates import memory

require("pandas", extra="tables", user="A table of evaluations")

import pandas as pd

ROWS_AT_ONCE = 100_000
BYTES_PER_CHARACTER = 4  # in memory: one digit and a comma are a number, and there is a copy
SUFFIXES = (".parquet", ".csv")


def read_outcomes(
    space: Space,
    data: str | os.PathLike[str] | pd.DataFrame,
    target: str | None,
    noise: Any,
    names: Sequence[str],
) -> tuple[Tensor, Outcomes]:
    """Read several outcomes from the columns of a table that have their names."""
    if target is not None:
        raise ValueError(
            f"`target` must be None with several outcomes, whose columns are {', '.join(names)},"
            f" got {target!r}."
        )
    points = [torch.empty(0, space.dim, dtype=torch.float64, device="cpu")]
    values = [torch.empty(0, len(names), dtype=torch.float64, device="cpu")]
    row = 0
    for frame in table_frames(space, data, {*space.names, *space.fixed, *names}, whole=True):
        if missing := [name for name in names if name not in frame.columns]:
            raise ValueError(
                f"The data must have the column {missing[0]!r}, got"
                f" {', '.join(map(str, frame.columns))}."
            )
        points.append(space.from_frame(frame, row))
        values.append(torch.stack([_numbers(frame[name])[0] for name in names], dim=1))
        row += len(frame)
    return torch.cat(points), Outcomes.several(torch.cat(values), noise, names, whole=True)


def read_table(
    space: Space,
    data: str | os.PathLike[str] | pd.DataFrame,
    y: Any,
    target: str | None,
    noise: Any,
) -> tuple[Tensor, Outcomes]:
    """Return the points (n, d) and outcomes of a table, as ``Study.add_data`` takes it.

    Raises:
        TypeError, ValueError, MemoryError, ImportError: as ``Study.add_data``.
    """
    if (y is None) == (target is None):
        raise ValueError(
            "Either `y` or `target`, the name of the column with the values, must be given with a"
            " table."
        )
    columns = [*space.names, *space.fixed]
    asked = [column for column in (target, noise) if isinstance(column, str)]
    if clash := [column for column in asked if column in columns]:
        raise ValueError(f"`target` and `noise` must not name a parameter, got {', '.join(clash)}.")
    points = [torch.empty(0, space.dim, dtype=torch.float64, device="cpu")]
    values = []
    variances = []
    reasons: dict[int, str] = {}
    row = 0
    for frame in table_frames(space, data, {*columns, *asked}, whole=True):
        if missing := [column for column in asked if column not in frame.columns]:
            raise ValueError(
                f"The data must have the column {missing[0]!r}, got"
                f" {', '.join(map(str, frame.columns))}."
            )
        points.append(space.from_frame(frame, row))
        if target is not None:
            numbers, wrong = _numbers(frame[target])
            values.append(numbers)
            reasons |= {row + position: reason for position, reason in wrong.items()}
        if isinstance(noise, str):
            variances.append(_numbers(frame[noise])[0])
        row += len(frame)
    if target is None:
        return torch.cat(points), Outcomes.of(y, torch.cat(variances) if variances else noise, "y")
    if row and len(reasons) == row:
        raise TypeError(
            f"The column {target!r} must hold numbers, got {reasons[0]}. Name another `target`."
        )
    outcomes = Outcomes.of(
        torch.cat(values) if values else [], torch.cat(variances) if variances else noise, "y"
    )
    return torch.cat(points), Outcomes(outcomes.values, outcomes.noise, outcomes.reasons | reasons)


def table_frames(
    space: Space, data: str | os.PathLike[str] | pd.DataFrame, wanted: set[str], *, whole: bool
) -> Iterator[pd.DataFrame]:
    """Yield the table part by part, with the wanted columns if it is a file.

    Args:
        whole: require memory for all of it.

    Raises:
        ValueError: if the file is of another kind, or cannot be read.
    """
    if isinstance(data, pd.DataFrame):
        yield from (
            data.iloc[start : start + ROWS_AT_ONCE] for start in range(0, len(data), ROWS_AT_ONCE)
        )
        return
    path = Path(data)
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise ValueError(
            f"The file must end in {' or '.join(SUFFIXES)}, got {path.name}. Read it into a"
            " DataFrame."
        )
    frames = _parquet_frames if kind == ".parquet" else _csv_frames
    yield from frames(space, path, wanted, whole)


def _csv_frames(space: Space, path: Path, wanted: set[str], whole: bool) -> Iterator[pd.DataFrame]:
    if whole:
        _require_memory(path, BYTES_PER_CHARACTER * path.stat().st_size)
    text = {
        n: str
        for n, p in space.params.items()
        if isinstance(p, Categorical) and all(isinstance(c, str | None) for c in p.choices)
    }
    text |= {name: str for name, value in space.fixed.items() if isinstance(value, str)}
    try:
        with pd.read_csv(
            path,
            usecols=lambda column: column in wanted,
            dtype=text,
            chunksize=ROWS_AT_ONCE,
            compression=None,
            keep_default_na=False,
        ) as chunks:
            yield from chunks
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error


def _parquet_frames(_: Space, path: Path, wanted: set[str], whole: bool) -> Iterator[pd.DataFrame]:
    from scalable_bo.storage import parquet  # which needs pyarrow

    try:
        if whole:
            _require_memory(path, parquet.num_bytes(path, wanted))
        yield from parquet.frames(path, wanted, ROWS_AT_ONCE)
    except parquet.ArrowException as error:
        raise _unreadable(path, error) from error


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
    if column.dtype.kind in "iuf":
        return torch.from_numpy(column.to_numpy(dtype=np.float64, na_value=np.nan).copy()), {}
    numbers = (
        pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan).copy()
    )
    empty = column.isna() | column.astype(str).str.strip().str.lower().isin(["", "nan"])
    wrong = np.flatnonzero(np.isnan(numbers) & ~empty.to_numpy(dtype=bool))
    return torch.from_numpy(numbers), {
        int(row): storable(f"not a number: {str(column.iloc[row])!r:.80}") for row in wrong
    }
