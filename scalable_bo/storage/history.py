"""Past evaluations: arrays, dicts, DataFrames, CSV and Parquet files, all read to points and
outcomes.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
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
    remarks = None
    if isinstance(data, str | os.PathLike) or is_frame(data):
        # which need an extra
        from scalable_bo.storage.tables import Remarks, read_outcomes, read_table

        if isinstance(data, str | os.PathLike):
            checks.existing_file("X", data)
        remarks = Remarks([*space.names, *space.fixed], names)
        if names and y is None:
            X, outcomes = read_outcomes(space, data, target, noise, names, remarks)
        else:
            X, outcomes = read_table(space, data, y, target, noise, remarks)
    else:
        if y is None:
            raise ValueError(
                "`y` must be given with points or dicts, got None. Put the values there, or pass a"
                " table that has them and name their column by `target`."
            )
        X = space.read(data, observed=True)
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
    if remarks is not None:
        X, outcomes = remarks.applied(X, outcomes)
    file_name = Path(data).name if isinstance(data, str | os.PathLike) else f"data {content[:12]}"
    return History(storable(name or file_name), content, X, outcomes)


def is_frame(data: Any) -> bool:
    """Return whether these are a DataFrame, which there is only once pandas has been imported."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.DataFrame)
