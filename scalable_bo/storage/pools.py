"""Pools of candidates for a study, read part by part.

Notation: c candidates of a part, d parameters, e columns on the unit cube.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalable_bo.space.space import Space
from scalable_bo.storage.history import is_frame
from surrogates import checks


class Pool:
    """The candidates of an ask, read once; the first part of them at once.

    Iterating gives pairs: points (c, e) on the unit cube, and (c, d + 1) the same points in the
    user's units with their rows in the last column. What breaks a constraint of the space is left
    out.

    Args:
        space: of the points.
        source: the path of a Parquet or CSV file or a DataFrame with a column for each parameter;
            points (c, d) in the user's units; dicts; or an iterable of such parts.

    Attributes:
        num_rows: of the source; ``None`` where only reading it tells.
        points: (q, d), what was taken of it, in the user's units.
        rows: where these stand in the source.

    Raises:
        FileNotFoundError: if there is no such file; of a later part of an iterator when it comes.
        TypeError, ValueError: if the source or its first part is none; of a later part when it
            comes.
    """

    def __init__(self, space: Space, source: Any) -> None:
        self.space = space
        for part in source if isinstance(source, list | tuple) else [source]:
            if isinstance(part, str | os.PathLike):
                checks.existing_file("pool", part)
        if not isinstance(source, os.PathLike | Iterable):
            raise TypeError(
                "`pool` must be a file, a DataFrame, points, dicts, or an iterable of such parts,"
                f" got {type(source).__name__}."
            )
        self._parts = self._read(source)
        self._first = list(islice(self._parts, 1))
        self.num_rows = _number_of_rows(source)
        self.points = torch.empty(0, space.dim, dtype=torch.float64)
        self.rows: list[int] = []

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return chain(self._first, self._parts)

    def take(self, labels: Tensor) -> Tensor:
        """Note the second of the pairs (q, d + 1) of what was chosen; return its points (q, d)."""
        self.points = labels[:, :-1].contiguous()
        self.rows = labels[:, -1].long().tolist()
        return self.points

    def _read(self, source: Any) -> Iterator[tuple[Tensor, Tensor]]:
        first = 0
        for X in self._points(source, 0):
            rows = torch.arange(first, first + len(X), dtype=X.dtype).unsqueeze(1)
            first += len(X)
            allowed = self.space.feasible(X)
            labels = torch.cat([X, rows], dim=1)
            yield self.space.normalize(X[allowed]), labels[allowed]

    def _points(self, source: Any, first: int) -> Iterator[Tensor]:
        """Yield points (c, d) in the user's units, of a source whose first row has this number."""
        if isinstance(source, str | os.PathLike) or is_frame(source):
            from scalable_bo.storage.tables import table_frames  # which needs an extra

            if not is_frame(source):
                checks.existing_file("pool", source)
            wanted = {*self.space.names, *self.space.fixed}
            for frame in table_frames(self.space, source, wanted, whole=False):
                yield self.space.from_frame(frame, first)
                first += len(frame)
        elif isinstance(source, Tensor | np.ndarray) or _are_dicts(source):
            yield self.space.read(source)
        else:
            for part in source:
                for X in self._points(part, first):
                    yield X
                    first += len(X)


def _are_dicts(source: Any) -> bool:
    return isinstance(source, Sequence) and all(isinstance(part, Mapping) for part in source)


def _number_of_rows(source: Any) -> int | None:
    if isinstance(source, str | os.PathLike):
        if Path(source).suffix != ".parquet":
            return None
        from scalable_bo.storage import parquet  # which needs an extra

        return parquet.num_rows(Path(source))
    if isinstance(source, Tensor | np.ndarray) or is_frame(source) or _are_dicts(source):
        return len(source)
    return None
