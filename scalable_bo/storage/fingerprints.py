"""Files of molecular fingerprints, read part by part.

Notation: c fingerprints of a part, b bits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from scalable_bo._packages import require
from surrogates import checks

require("pyarrow", extra="tables", user="A file of fingerprints")

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.lib import ArrowException

FINGERPRINTS_AT_ONCE = 2**14
BINARY = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)


class FingerprintFile:
    """A pool of molecular fingerprints in a Parquet file, for ``ParallelThompsonSampling.choose``.

    Iterating reads the file part by part and gives pairs: bits (c, b) as uint8, and c labels.

    Args:
        path: of the file.
        column: of the fingerprints: binary of b/8 bytes, eight bits a byte, the highest first, as
            ``numpy.packbits`` makes them.
        label: the column with the labels, such as names or SMILES; ``None`` for none.

    Attributes:
        num_bits: b.
        num_rows: of the file.

    Raises:
        OSError: if there is no such file.
        ValueError: if it is no Parquet file, or lacks a column; while it is read, if a fingerprint
            is missing or longer than another.
    """

    def __init__(
        self, path: str | os.PathLike[str], column: str, *, label: str | None = None
    ) -> None:
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
            first = next(file.iter_batches(1, columns=[column]), None)
        if first is None or not any(test(kind) for test in BINARY):
            raise ValueError(
                f"The column {column!r} must hold fingerprints as binary of packed bits, got"
                f" {'no rows' if first is None else kind}. Pack them with `numpy.packbits`."
            )
        self.num_bits = 8 * len(first.column(0)[0].as_py() or b"")

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        first = 0
        with self._open() as file:
            for batch in file.iter_batches(FINGERPRINTS_AT_ONCE, columns=self._columns):
                packed = self._bytes(batch.column(self.column), first)
                labels = None
                if self.label is not None:
                    labels = batch.column(self.label).to_numpy(zero_copy_only=False)
                yield np.unpackbits(packed, axis=1), labels
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
        width = self.num_bits // 8
        lengths = pc.fill_null(pc.binary_length(column), -1).to_numpy()
        if (lengths != width).any():
            row = int(np.flatnonzero(lengths != width)[0])
            raise ValueError(
                f"The column {self.column!r} must hold fingerprints of {width} bytes, as in its"
                f" first row, got {'none' if lengths[row] < 0 else lengths[row]} in row"
                f" {first + row}. Leave the row out."
            )
        together = column.cast(pa.binary(width))
        data = np.frombuffer(together.buffers()[1], dtype=np.uint8)
        return data[together.offset * width :][: len(column) * width].reshape(-1, width)
