"""Files of molecular fingerprints, read part by part.

Notation: c fingerprints of a part, b bits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from scalable_bo._packages import require
from surrogates import checks, memory

require("pyarrow", extra="tables", user="A file of fingerprints")

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.lib import ArrowException

BINARY = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)


class FingerprintFile:
    """A pool of molecular fingerprints in a Parquet file, for ``ParallelThompsonSampling.choose``.

    Iterating reads the file part by part and gives pairs: bits (c, b) as uint8, and c labels.

    Args:
        path: of the file.
        column: of the fingerprints: binary of b/8 bytes, eight bits a byte, the highest first, as
            ``numpy.packbits`` makes them.
        label: the column with the labels, such as names or SMILES; ``None`` for none.
        num_bits: b, where the last byte is padded with zeros, as of 166 keys in 21 bytes; ``None``
            if all bits count.

    Attributes:
        num_bits: b.
        num_rows: of the file.

    Raises:
        OSError: if there is no such file.
        ValueError: if it is no Parquet file, lacks a column, or its fingerprints are of another
            length than ``num_bits`` tells; while it is read, if one is missing, is longer than
            another, or has bits set beyond ``num_bits``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        column: str,
        *,
        label: str | None = None,
        num_bits: int | None = None,
    ) -> None:
        num_bits = checks.optional(checks.positive_int, "num_bits", num_bits)
        self.path = checks.existing_file("path", path)
        self.column = column
        self.label = label
        with self._open() as file:
            names = file.schema_arrow.names
            for name in self._columns:
                if name not in names:
                    raise ValueError(
                        f"{self.path.name} must have the column {name!r}, got {', '.join(names)}."
                    )
            self.num_rows: int = file.metadata.num_rows
            kind = file.schema_arrow.field(column).type
            is_binary = any(test(kind) for test in BINARY)
            width = _first_width(file, column) if is_binary else 0
        if not width:
            received = "none in any row" if self.num_rows else "no rows"
            raise ValueError(
                f"The column {column!r} must hold fingerprints as binary of packed bits, got"
                f" {received if is_binary else kind}. Pack them with `numpy.packbits`."
            )
        self._width = width
        self.num_bits = 8 * width if num_bits is None else num_bits
        if not 8 * (width - 1) < self.num_bits <= 8 * width:
            raise ValueError(
                f"`num_bits` must be between {8 * width - 7} and {8 * width}, for the column"
                f" {column!r} holds fingerprints of {width} bytes, got {num_bits}. Leave it out if"
                " all bits count."
            )

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        first = 0
        with self._open() as file:
            rows_at_once = memory.part_size(self.num_bits)
            for batch in file.iter_batches(rows_at_once, columns=self._columns):
                packed = self._bytes(batch.column(self.column), first)
                labels = None
                if self.label is not None:
                    labels = _labels(batch.column(self.label))
                yield np.unpackbits(packed, axis=1, count=self.num_bits), labels
                first += len(packed)

    @property
    def _columns(self) -> list[str]:
        return [self.column] if self.label is None else [self.column, self.label]

    def _open(self) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(self.path)
        except ArrowException as error:
            raise ValueError(
                f"{self.path.name} could not be read: {error}. Is it a Parquet file?"
            ) from error

    def _bytes(self, column: pa.Array, first: int) -> np.ndarray:
        """Return the bytes (c, b/8) of fingerprints."""
        width = self._width
        lengths = pc.fill_null(pc.binary_length(column), -1).to_numpy()
        if (lengths != width).any():
            row = int(np.flatnonzero(lengths != width)[0])
            raise ValueError(
                f"The column {self.column!r} must hold fingerprints of {width} bytes, as its first"
                f" one, got {'none' if lengths[row] < 0 else lengths[row]} in row"
                f" {first + row}. Leave the row out."
            )
        together = column.cast(pa.binary(width))
        data = np.frombuffer(together.buffers()[1], dtype=np.uint8)
        packed = data[together.offset * width :][: len(column) * width].reshape(-1, width)
        padding = (1 << (8 * width - self.num_bits)) - 1  # the lowest bits of the last byte
        padded = packed[:, -1] & padding
        if padded.any():
            row = first + int(np.flatnonzero(padded)[0])
            raise ValueError(
                f"The column {self.column!r} must have no bits set beyond `num_bits` ="
                f" {self.num_bits}, got one in row {row}. Raise `num_bits`."
            )
        return packed


def _first_width(file: pq.ParquetFile, column: str) -> int:
    """Return the bytes of the first fingerprint, 0 if there is none."""
    for batch in file.iter_batches(columns=[column]):
        lengths = pc.fill_null(pc.binary_length(batch.column(0)), 0).to_numpy()
        if lengths.any():
            return int(lengths[lengths > 0][0])
    return 0


def _labels(column: pa.Array) -> np.ndarray:
    """Return labels (c,), among which ``None`` leaves the others as they are."""
    if not column.null_count:
        return column.to_numpy(zero_copy_only=False)
    # As numbers, integers beside NaN would be rounded to others
    return np.array(column.to_pylist(), dtype=object)
