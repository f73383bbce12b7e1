"""Pools of candidates for a study, read part by part.

Notation: c candidates of a part, d parameters, e columns on the unit cube.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acquisition.constraints import TooFewPoints
from scalable_bo.space.space import Space
from scalable_bo.storage.past_evaluations import is_frame
from surrogates import checks


class Pool:
    """The candidates of an ask, read once; those in memory whole at once, of others the first part.

    Iterating gives pairs: points (c, e) on the unit cube, and (c, d + 1) the same points in the
    user's units with their rows in the last column. What breaks a constraint is left out.

    Args:
        source: the path of a Parquet or CSV file or a DataFrame with a column for each parameter;
            points (c, d) in the user's units; dicts; or an iterable of such parts.
        dicts_at_once: dicts of a part where an iterable gives them one by one.

    Attributes:
        num_rows: of the source; ``None`` where only reading it tells.
        num_infeasible: how many of them break a constraint of the space.
        points: (q, d), what was taken of it, in the user's units.
        rows: where these stand in the source.

    Raises:
        FileNotFoundError: if there is no such file; of a later part of an iterator when it comes.
        TypeError, ValueError: if the source or its first part is none; a later part when it comes.
    """

    def __init__(
        self, space: Space, source: Any, *, rows_at_once: int = 100_000, dicts_at_once: int = 2**12
    ) -> None:
        self.space = space
        for part in source if isinstance(source, list | tuple) else [source]:
            if isinstance(part, str | os.PathLike):
                checks.existing_file("pool", part)
        self.num_read = 0
        self.num_infeasible = 0
        self._unread = self._read(source, rows_at_once, dicts_at_once)
        in_memory = _in_memory(source)
        self._held = list(self._unread if in_memory else islice(self._unread, 1))
        self.num_rows = self.num_read if in_memory else _number_of_rows(source)
        self.points = torch.empty(0, space.dim, dtype=torch.float64, device="cpu")
        self.rows: list[int] = []

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for labels in chain(self._held, self._unread):
            yield self.space.normalize(labels[:, :-1]), labels

    def require(self, q: int) -> None:
        """Require q feasible rows, reading no more than it takes to know, or raise TooFewPoints;
        and FileNotFoundError, TypeError or ValueError of a part that is none.
        """
        num_rows = self.num_rows
        if num_rows is None or num_rows >= q:
            while self.num_read - self.num_infeasible < q:
                part = next(self._unread, None)
                if part is None:
                    break
                self._held.append(part)
            num_rows = self.num_read
        if num_rows - self.num_infeasible < q:
            broken = f", of which {self.num_infeasible} break a constraint of the space"
            raise TooFewPoints(
                f"`pool` must hold at least {q} feasible rows, got {num_rows}"
                f"{broken if self.num_infeasible else ''}. Add candidates, or lower `q`."
            )

    def take(self, labels: Tensor) -> Tensor:
        """Note the second of the pairs (q, d + 1) of what was chosen; return its points (q, d)."""
        self.points = labels[:, :-1].contiguous()
        self.rows = labels[:, -1].long().tolist()
        return self.points

    def _read(self, source: Any, rows_at_once: int, dicts_at_once: int) -> Iterator[Tensor]:
        """Yield the feasible points in the user's units with their rows, (c, d + 1)."""
        for part in _parts(source, dicts_at_once):
            for X in self._points(part, rows_at_once):
                if not len(X):
                    continue
                rows = torch.arange(
                    self.num_read, self.num_read + len(X), dtype=X.dtype, device="cpu"
                )
                allowed = self.space.feasible(X)
                self.num_read += len(X)
                self.num_infeasible += int((~allowed).sum())
                yield torch.cat([X, rows.unsqueeze(1)], dim=1)[allowed]

    def _points(self, part: Any, rows_at_once: int) -> Iterator[Tensor]:
        """Yield points (c, d) in the user's units, of which the first is the next row."""
        if isinstance(part, str | os.PathLike) or is_frame(part):
            from scalable_bo.storage.tables import table_frames  # which needs an extra

            if not is_frame(part):
                checks.existing_file("pool", part)
            wanted = {*self.space.names, *self.space.fixed}
            for frame in table_frames(self.space, part, wanted, rows_at_once):
                yield self.space.from_frame(frame, self.num_read)
        elif isinstance(part, Tensor | np.ndarray):
            _check_array(part, self.space.names)
            yield self.space.check(part, self.num_read)
        else:
            yield self.space.from_dicts(part, self.num_read)


def _parts(source: Any, most: int, levels: int = 3, whole: Any = None) -> Iterator[Any]:
    """Yield what a source consists of: paths, DataFrames, arrays, tensors and lists of ``most``
    dicts or fewer; raise TypeError for anything else. It may have so many ``levels`` of iterables,
    such as a list of readers that yield lists of dicts; ``whole`` is the iterable that it is in.
    """
    is_path = isinstance(source, str | os.PathLike) and levels > 1
    if is_path or is_frame(source) or isinstance(source, Tensor | np.ndarray):
        yield source
    elif isinstance(source, Mapping):
        columns = [value for value in source.values() if not isinstance(value, str)]
        if any(isinstance(value, Iterable) for value in columns):
            raise _refusal(source, whole)
        yield [source]
    elif not _is_iterable_of_parts(source, levels, whole):
        raise _refusal(source, whole)
    else:
        dicts: list[Mapping[str, Any]] = []
        for part in source:
            is_dict = isinstance(part, Mapping)
            if is_dict:
                dicts.append(part)
            if dicts and (not is_dict or len(dicts) == most):
                yield dicts
                dicts = []
            if not is_dict:
                yield from _parts(part, most, levels - 1, source)
        if dicts:
            yield dicts


def _is_iterable_of_parts(source: Any, levels: int, whole: Any) -> bool:
    if not isinstance(source, Iterable) or levels == 0:
        return False
    if isinstance(source, str | bytes | bytearray) or hasattr(source, "to_pandas"):
        return False
    # Within another iterable, a tuple is a pair, such as of a group's name and its rows
    is_pair = isinstance(source, tuple) and whole is not None
    return not is_pair or all(isinstance(part, Mapping) for part in source)


def _refusal(part: Any, whole: Any) -> TypeError:
    where = "" if whole is None else f" in a {type(whole).__name__}"
    remedy = "Make points a 2-D array, and a table a DataFrame."
    if hasattr(part, "to_pandas"):
        remedy = "Call its `to_pandas()`."
    elif isinstance(part, Mapping):
        remedy = "Of a dict of columns make a DataFrame."
    elif isinstance(part, tuple):
        remedy = "Take the points alone: `Batch.rows` says which they are."
    return TypeError(
        "`pool` must be the path of a Parquet or CSV file, a DataFrame, points as a 2-D array or"
        " tensor, dicts of parameters, or an iterable of these, got"
        f" {type(part).__name__}{where}. {remedy}"
    )


def _check_array(points: Tensor | np.ndarray, names: tuple[str, ...]) -> None:
    if isinstance(points, Tensor):
        numeric = points.layout == torch.strided and not points.is_complex()
    else:
        numeric = points.dtype.kind in "biuf"
    if not numeric:
        kind = points.layout if isinstance(points, Tensor) else points.dtype
        raise TypeError(
            f"`pool` must hold points as dense arrays of real numbers, got {kind}. Convert them,"
            " or make a DataFrame, whose columns have the names of the parameters."
        )
    if points.ndim != 2 or points.shape[1] != len(names):
        raise ValueError(
            f"`pool` must have shape (c, {len(names)}), a column for each of {', '.join(names)},"
            f" got {tuple(points.shape)}. Give a row to each point."
        )


def _in_memory(source: Any) -> bool:
    if isinstance(source, list | tuple):
        return all(_in_memory(part) for part in source)
    return is_frame(source) or isinstance(source, Tensor | np.ndarray | Mapping)


def _number_of_rows(source: Any) -> int | None:
    """Return the rows of Parquet files, which they tell; ``None`` of anything else."""
    if isinstance(source, list | tuple):
        counts = [_number_of_rows(part) for part in source]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None
    if not isinstance(source, str | os.PathLike) or Path(source).suffix.lower() != ".parquet":
        return None
    from scalable_bo.storage import parquet  # which needs an extra

    return parquet.num_rows(Path(source))
