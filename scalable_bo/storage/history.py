"""Past evaluations: arrays, dicts, DataFrames, CSV and Parquet files, all read to points and
outcomes.

Tables are read by the names of their columns, and files in chunks.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from pyarrow.lib import ArrowException
from torch import Tensor

from scalable_bo.evaluation.evaluator import storable
from scalable_bo.space.space import Categorical, Space
from scalable_bo.storage.rows import Outcomes, Rows
from scalable_bo.storage.storage import Source
from surrogates import memory

ROWS_AT_ONCE = 100_000
BYTES_PER_VALUE = 16  # the numbers, and a copy
BYTES_PER_CHARACTER = 4  # likewise: one digit and a comma are a number
LONGEST_TEXT = 1000  # bytes
SUFFIXES = (".parquet", ".csv")


@dataclass(frozen=True, eq=False)
class History:
    """Points that were evaluated elsewhere.

    Attributes:
        name: of the file, or of the content if there is none.
        digest: of the content.
        X: (n, d) in the user's units.
        outcomes: n of them.
    """

    name: str
    digest: str
    X: Tensor
    outcomes: Outcomes

    def was_added(self, sources: Sequence[Source], rows: Rows, names: Sequence[str]) -> bool:
        """Return whether these data are one of ``sources``, whose rows are among ``rows`` of the
        parameters ``names``.

        Raises:
            ValueError: if one has this name and other content; the message says where they differ.
        """
        for source in sources:
            if source.digest == self.digest:
                return True
            if source.name == self.name:
                raise ValueError(
                    f"The data {source.name!r} were added before with other"
                    f" content:\n{self._changes(source, rows, names)}\nUse the data as they were,"
                    " or give these another `name` to add them, too."
                )
        return False

    def _changes(self, source: Source, rows: Rows, names: Sequence[str]) -> str:
        """Say in a line or two how the data differ from those of ``source``."""
        lines = (
            []
            if len(self.X) == source.num_rows
            else [f"  rows: stored {source.num_rows}, given {len(self.X)}"]
        )
        count = min(len(self.X), source.num_rows)
        part = slice(source.first_id, source.first_id + count)
        stored = torch.cat([rows.X[part], rows.values[part, None], rows.noise[part, None]], dim=1)
        given = torch.cat(
            [self.X, self.outcomes.values[:, None], self.outcomes.noise[:, None]], dim=1
        )[:count]
        different = (stored != given) & ~(stored.isnan() & given.isnan())
        if different.any():
            row, column = different.nonzero()[0].tolist()
            name = [*names, "value", "noise"][column]
            number = int(different.any(1).sum())
            lines.append(
                f"  {name} in row {row}: stored {stored[row, column]:g}, given"
                f" {given[row, column]:g} ({number} rows differ)"
            )
        return "\n".join(lines or ["  the reasons of failures"])


def read_history(
    space: Space,
    data: Any,
    y: Any,
    *,
    target: str | None,
    noise: Any,
    name: str | None,
    names: Sequence[str] = (),
) -> History:
    """Read evaluations of points of ``space``, of several outcomes if they have ``names``; other
    arguments as in ``Study.add_data``.
    """
    is_table = isinstance(data, str | os.PathLike | pd.DataFrame)
    if is_table and names and y is None:
        X, outcomes = _read_outcomes(space, data, target, noise, names)
    elif is_table:
        X, outcomes = _read_table(space, data, y, target, noise)
    else:
        if y is None:
            raise ValueError("`y` must be given with an array of points, got None.")
        X = space.read(data)
        outcomes = Outcomes.several(y, noise, names) if names else Outcomes.of(y, noise, "y")
    if len(X) != len(outcomes.values):
        raise ValueError(
            f"`X` and `y` must have the same length, got {len(X)} and {len(outcomes.values)}."
        )
    digest = hashlib.sha256()
    for part in (X, outcomes.values, outcomes.noise, outcomes.further):
        digest.update(part.contiguous().numpy().tobytes())
    digest.update(repr(sorted(outcomes.reasons.items())).encode())
    content = digest.hexdigest()
    file_name = Path(data).name if isinstance(data, str | os.PathLike) else f"data {content[:12]}"
    return History(storable(name or file_name), content, X, outcomes)


def _read_outcomes(
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
    points = [torch.empty(0, space.dim, dtype=torch.float64)]
    values = [torch.empty(0, len(names), dtype=torch.float64)]
    row = 0
    for frame in _frames(space, data, {*space.names, *space.fixed, *names}):
        if missing := [name for name in names if name not in frame.columns]:
            raise ValueError(
                f"The data must have the column {missing[0]!r}, got"
                f" {', '.join(map(str, frame.columns))}."
            )
        points.append(space.from_frame(frame, row))
        values.append(torch.stack([_numbers(frame[name])[0] for name in names], dim=1))
        row += len(frame)
    return torch.cat(points), Outcomes.several(torch.cat(values), noise, names)


def _read_table(
    space: Space,
    data: str | os.PathLike[str] | pd.DataFrame,
    y: Any,
    target: str | None,
    noise: Any,
) -> tuple[Tensor, Outcomes]:
    if (y is None) == (target is None):
        raise ValueError(
            "Either `y` or `target`, the name of the column with the values, must be given with a"
            " table."
        )
    columns = [*space.names, *space.fixed]
    asked = [column for column in (target, noise) if isinstance(column, str)]
    if clash := [column for column in asked if column in columns]:
        raise ValueError(f"`target` and `noise` must not name a parameter, got {', '.join(clash)}.")
    points = [torch.empty(0, space.dim, dtype=torch.float64)]
    values = []
    variances = []
    reasons: dict[int, str] = {}
    row = 0
    for frame in _frames(space, data, {*columns, *asked}):
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


def _frames(
    space: Space, data: str | os.PathLike[str] | pd.DataFrame, wanted: set[str]
) -> Iterator[pd.DataFrame]:
    """Yield the table part by part, with the wanted columns if it is a file."""
    if isinstance(data, pd.DataFrame):
        yield from (
            data.iloc[start : start + ROWS_AT_ONCE] for start in range(0, len(data), ROWS_AT_ONCE)
        )
        return
    path = Path(data)
    if path.suffix not in SUFFIXES:
        raise ValueError(
            f"The file must end in {' or '.join(SUFFIXES)}, got {path.name}. Read it into a"
            " DataFrame."
        )
    try:
        if path.suffix == ".parquet":
            yield from _parquet_frames(path, wanted)
        else:
            _require_memory(path, BYTES_PER_CHARACTER * path.stat().st_size)
            text = {
                n: str
                for n, p in space.params.items()
                if isinstance(p, Categorical) and all(isinstance(c, str | None) for c in p.choices)
            }
            text |= {name: str for name, value in space.fixed.items() if isinstance(value, str)}
            with pd.read_csv(
                path,
                usecols=lambda column: column in wanted,
                dtype=text,
                chunksize=ROWS_AT_ONCE,
                compression=None,
                keep_default_na=False,
            ) as chunks:
                yield from chunks
    except (
        ArrowException,
        pd.errors.ParserError,
        pd.errors.EmptyDataError,
        UnicodeDecodeError,
    ) as error:
        raise ValueError(
            f"{path.name} could not be read: {error}. Is it a {path.suffix[1:]} file?"
        ) from error


def _parquet_frames(path: Path, wanted: set[str]) -> Iterator[pd.DataFrame]:
    """Yield a Parquet file part by part; its texts stay unexpanded until they are known to be
    short.
    """
    texts = [
        field.name
        for field in pq.read_schema(path)
        if field.name in wanted and _is_text(field.type)
    ]
    with pq.ParquetFile(path, read_dictionary=texts) as file:
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
        inside = [
            chunk
            for chunk in chunks
            if chunk.path_in_schema in wanted or chunk.path_in_schema.split(".")[0] in wanted
        ]
        _require_memory(path, BYTES_PER_VALUE * sum(chunk.num_values for chunk in inside))
        columns = [column for column in file.schema_arrow.names if column in wanted]
        for batch in file.iter_batches(ROWS_AT_ONCE, columns=columns):
            expanded = [
                _expanded(name, column)
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(expanded, names=batch.schema.names).to_pandas()


def _expanded(name: str, column: pa.Array) -> pa.Array:
    """Return a column with its repeated texts written out. A short file may repeat a long text so
    often that no memory holds it.

    Raises:
        ValueError: if a text is too long.
    """
    if not pa.types.is_dictionary(column.type):
        return column
    if _is_text(column.type.value_type):
        longest = pc.max(pc.binary_length(column.dictionary)).as_py() or 0
        if longest > LONGEST_TEXT:
            raise ValueError(
                f"The column {name!r} must hold texts of at most {LONGEST_TEXT} bytes, got one of"
                f" {longest}. Shorten it."
            )
    return column.cast(column.type.value_type)


def _is_text(kind: pa.DataType) -> bool:
    return any(
        test(kind)
        for test in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_binary,
            pa.types.is_large_binary,
        )
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
