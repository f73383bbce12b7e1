"""Past evaluations: arrays, dicts, DataFrames, CSV and Parquet files, as points and outcomes."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scalable_bo.evaluation.evaluator import storable
from scalable_bo.space.space import Space
from scalable_bo.storage.rows import Outcomes, Rows
from scalable_bo.storage.storage import Source
from surrogates import checks


@dataclass(frozen=True, eq=False)
class History:
    """Points that were evaluated elsewhere.

    Attributes:
        name: of the file, or of the content if there is none.
        X: (n, d) in the user's units.
        outcomes: n of them.
        content: what a digest is of: all points and outcomes that there were.
        kept: the rows of the content that these are; remarks beside them left the others out.
    """

    name: str
    X: Tensor
    outcomes: Outcomes
    content: tuple[Tensor, Outcomes]
    kept: Sequence[int]

    def digest(self, num_rows: int | None = None) -> str:
        """Return a digest of the content, or of its first rows."""
        X, outcomes = self.content
        return _digest(X[:num_rows], outcomes.select(range(len(X))[:num_rows]))

    def added_since(
        self, sources: Sequence[Source], rows: Rows, names: Sequence[str]
    ) -> History | None:
        """Return the rows that none of ``sources`` has: all of them, those that a file has gained
        since, or ``None``. The rows of the sources are among ``rows`` of the parameters ``names``.

        Raises:
            ValueError: if one has this name and other content; the message says where they differ.
        """
        digest = self.digest()
        or_gained = re.compile(re.escape(self.name) + r"(\[\d+:\])?")
        same = [one for one in sources if or_gained.fullmatch(one.name)]
        if any(source.digest == digest for source in sources):
            return None
        if not same:
            return self
        known = sum(source.num_rows for source in same)
        # What was added then may have been as many rows as are known, or more that said nothing
        ends = [-1, *self.kept, len(self.content[0])]
        more = range(ends[known] + 1, ends[known + 1] + 1) if known + 1 < len(ends) else ()
        for length in {known, *more}:
            if self.digest(length) == same[-1].digest:
                first = bisect_left(self.kept, length)
                rest = self.outcomes.select(range(first, len(self.X)))
                name = f"{self.name}[{known}:]"
                new = History(name, self.X[first:], rest, self.content, self.kept[first:])
                return new if len(rest.values) else None
        raise ValueError(
            f"The data {self.name!r} were added before with other"
            f" content:\n{self._changes(same[0], rows, names)}\nUse the data as they were,"
            " or give these another `name` to add them, too."
        )

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
                f"  {name} in row {self.kept[row]}: stored {stored[row, column]:g}, given"
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
    remarks = None
    wrong: dict[int, str] = {}
    if isinstance(data, str | os.PathLike) or is_frame(data):
        # which need an extra
        from scalable_bo.storage.tables import Remarks, read_table

        if isinstance(data, str | os.PathLike):
            checks.existing_file("X", data)
        remarks = Remarks([*space.names, *space.fixed], names)
        X, y, noise, wrong = read_table(space, data, y, target, noise, names, remarks)
    else:
        if y is None:
            raise ValueError(
                "`y` must be given with points or dicts, got None. Put the values there, or pass a"
                " table that has them and name their column by `target`."
            )
        X = space.read(data, observed=True)
    outcomes = Outcomes.several(y, noise, names) if names else Outcomes.of(y, noise, "y")
    outcomes = replace(outcomes, reasons=outcomes.reasons | wrong)
    if len(X) != len(outcomes.values):
        raise ValueError(
            f"`X` and `y` must have the same length, got {len(X)} and {len(outcomes.values)}."
        )
    content = X, outcomes
    kept: Sequence[int] = range(len(X))
    if remarks is not None:
        outcomes, kept = remarks.applied(outcomes)
        if len(kept) < len(X):
            X, outcomes = X[kept], outcomes.select(kept)
    if name is None or isinstance(name, str) and not name:
        is_file = isinstance(data, str | os.PathLike)
        name = Path(data).name if is_file else f"data {_digest(*content)[:12]}"
    return History(storable(name, "name"), X, outcomes, content, kept)


def _digest(X: Tensor, outcomes: Outcomes) -> str:
    digest = hashlib.sha256()
    for part in (X, outcomes.values, outcomes.noise, outcomes.further):
        digest.update(part.contiguous().numpy().tobytes())
    digest.update(repr(sorted(outcomes.reasons.items())).encode())
    return digest.hexdigest()


def is_frame(data: Any) -> bool:
    """Return whether these are a DataFrame, which there is only once pandas has been imported."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.DataFrame)
