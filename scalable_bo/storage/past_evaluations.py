"""Past evaluations: arrays, dicts, DataFrames, CSV and Parquet files, as points and outcomes."""

from __future__ import annotations

import hashlib
import math
import os
import re
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scalable_bo.evaluation.evaluator import storable
from scalable_bo.space.space import Space
from scalable_bo.storage.rows import Outcomes, keys
from scalable_bo.storage.storage import Contents
from surrogates import checks


@dataclass(frozen=True, eq=False)
class History:
    """Points that were evaluated elsewhere.

    Attributes:
        name: of the file, or of the content if there is none.
        X: (n, d) in the user's units.
        content: all points and outcomes that there were, also of rows that say nothing.
        kept: the rows of the content that these are.
        first_row: what errors call the first row of the content.
    """

    name: str
    X: Tensor
    outcomes: Outcomes
    content: tuple[Tensor, Outcomes]
    kept: Sequence[int]
    first_row: int

    def digest(self, rows: Sequence[int]) -> str:
        """Return a digest of rows of the content."""
        X, outcomes = self.content
        if len(rows) == len(X):
            return _digest(X, outcomes)
        return _digest(X[list(rows)], outcomes.select(rows))

    def added_since(
        self, contents: Contents, names: Sequence[str]
    ) -> tuple[Sequence[int], dict[int, int]]:
        """Return the positions of the points that are new to a study, and by id of those that
        complete its pending ones; the order may have changed.

        Raises:
            ValueError: if points that the study has by this name are not among these; the message
                names one, in the columns ``names``, and says where it differs.
        """
        # The digests of older versions cover the rows that say nothing, too
        digests = {self.digest(self.kept), _digest(*self.content)}
        if any(source.digest in digests for source in contents.sources):
            return [], {}
        or_gained = re.compile(re.escape(self.name) + r"(\[\d+:\])?")
        same = [one for one in contents.sources if or_gained.fullmatch(one.name)]
        ids = [id for one in same for id in range(one.first_id, one.first_id + one.num_rows)]
        if not ids:
            return range(len(self.X)), {}
        # The digest knows the first rows, whatever the study has been told of them since
        for rows in (self.kept[: len(ids)], range(min(len(ids), len(self.content[0])))):
            if self.digest(rows) == same[-1].digest:
                return range(bisect_left(self.kept, rows[-1] + 1), len(self.kept)), {}
        return self._compare(ids, contents, names)

    def _compare(
        self, ids: Sequence[int], contents: Contents, names: Sequence[str]
    ) -> tuple[list[int], dict[int, int]]:
        """Return the positions of ``added_since``, from a comparison with the rows of the study."""
        rows = contents.rows
        index = torch.tensor(ids, dtype=torch.long, device="cpu")
        table, noise = self.outcomes.table, self.outcomes.noise
        known = rows.outcomes(table.shape[1], index)
        # Infinity stands for NaN, which would equal nothing
        stored = torch.cat([rows.X[index], known, rows.noise[index, None]], 1).nan_to_num(math.inf)
        given = torch.cat([self.X, table, noise[:, None]], 1).nan_to_num(math.inf)
        new, lost = _beyond(given, stored), _beyond(stored, given)
        completed = {}
        for place in [place for place in lost if not rows.told[ids[place]]]:
            fits = (given[new] == stored[place]) | stored[place].isinf()
            if fits.all(1).any():
                completed[ids[place]] = new.pop(int(fits.all(1).nonzero()[0]))
                lost.remove(place)
        if not lost:
            return new, completed
        where = ""
        if new:
            differ = given[new] != stored[lost[0]]
            nearest = int(differ.sum(1).argmin())
            column = int(differ[nearest].nonzero()[0])
            both = given[new[nearest], column].item(), stored[lost[0], column].item()
            now, before = ("nothing" if number == math.inf else number for number in both)
            kinds = {change.id: f" ({change.kind} since)" for change in contents.changes}
            where = (
                f" `{[*names, 'noise'][column]}` in row {self.first_row + self.kept[new[nearest]]}"
                f" is {now}, and the study has {before}{kinds.get(ids[lost[0]], '')}."
            )
        raise ValueError(
            f"The data {self.name!r} were added before with other content: {len(lost)} of"
            f" {len(ids)} rows in the study cannot be found among the {len(given)} given.{where}"
            " Give these rows as the study has them, or change the study by `correct`. Another"
            " `name` adds all rows, those that are in the study a second time."
        )


def read_history(
    space: Space,
    data: Any,
    y: Any = None,
    *,
    target: str | None = None,
    noise: Any = None,
    name: str | None = None,
    names: Sequence[str] = (),
) -> History:
    """Read evaluations of points of ``space``, of several outcomes if they have ``names``; other
    arguments as in ``Study.add_data``.
    """
    remarks = None
    wrong: dict[int, str] = {}
    is_file = isinstance(data, str | os.PathLike)
    if is_file or is_frame(data):
        # which need an extra
        from scalable_bo.storage.tables import Remarks, read_table

        if is_file:
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
        name = Path(data).name if is_file else f"data {_digest(*content)[:12]}"
    return History(
        storable(name, "name"), X, outcomes, content, kept, remarks.first_row if remarks else 0
    )


def _beyond(rows: Tensor, others: Tensor) -> list[int]:
    """Return the positions of rows that are not among the others, each of which matches one."""
    left = Counter(keys(others))
    found = []
    for position, key in enumerate(keys(rows)):
        left[key] -= 1
        if left[key] < 0:
            found.append(position)
    return found


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
