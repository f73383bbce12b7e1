"""Parquet files, read in parts, and what their columns can hold."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from scalable_bo._packages import require
from scalable_bo.space.cell_texts import position
from scalable_bo.space.plain_values import Choice

require("pyarrow", extra="tables", user="A Parquet file")

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.lib import ArrowException

__all__ = ["ArrowException", "holds", "num_bytes", "num_rows", "read_frames"]

LONGEST_TEXT = 1000  # bytes


def num_bytes(path: Path, wanted: set[str]) -> int:
    """Return what the wanted columns take in memory; raise ArrowException if it is no Parquet."""
    file = pq.read_metadata(path)
    groups = map(file.row_group, range(file.num_row_groups))
    chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    numbers_and_copy = 2 * np.dtype(np.float64).itemsize
    return numbers_and_copy * sum(
        chunk.num_values
        for chunk in chunks
        if chunk.path_in_schema in wanted or chunk.path_in_schema.split(".")[0] in wanted
    )


def num_rows(path: Path) -> int:
    """Return how many rows the file has; raise ArrowException if it is no Parquet file."""
    return int(pq.read_metadata(path).num_rows)


def holds(choices: Sequence[Choice]) -> bool:
    """Return whether a column of one kind can hold these choices as they are."""
    try:
        held = pa.array(choices).to_pylist()
    except (ArrowException, OverflowError, UnicodeError):
        return False
    return [position(value, choices) for value in held] == list(range(len(choices)))


def read_frames(
    path: Path, wanted: set[str], rows_at_once: int, unexpanded: Collection[str] = ()
) -> Iterator[pd.DataFrame]:
    """Yield the wanted columns part by part; texts stay unexpanded until they are known to be
    short, and those of the columns ``unexpanded`` for good.

    Raises:
        ArrowException: if it is no Parquet file, or a damaged one.
        ValueError: if a text is too long.
    """
    texts = [
        field.name
        for field in pq.read_schema(path)
        if field.name in wanted and _is_text(field.type)
    ]
    with pq.ParquetFile(path, read_dictionary=texts) as file:
        columns = [column for column in file.schema_arrow.names if column in wanted]
        for batch in file.iter_batches(rows_at_once, columns=columns):
            expanded = [
                column if name in unexpanded else _expanded(name, column)
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(expanded, names=batch.schema.names).to_pandas()


def _expanded(name: str, column: pa.Array) -> pa.Array:
    """Return a column with its repeated texts written out, which may exceed the memory."""
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
    of = pa.types
    tests = (of.is_string, of.is_large_string, of.is_binary, of.is_large_binary)
    return any(test(kind) for test in tests)
