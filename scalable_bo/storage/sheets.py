"""Sheets, CSV or Excel, in which points go to a laboratory, and come back with outcomes."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from torch import Tensor

from scalable_bo._packages import require
from scalable_bo.evaluation.evaluator import MOST_BYTES
from scalable_bo.space.cell_texts import (
    bare,
    choice_reader,
    distinct,
    guarded,
    unguarded,
    with_bare,
)
from scalable_bo.space.frames import cell_position
from scalable_bo.space.parameters import Parameter
from scalable_bo.space.plain_values import nearest
from scalable_bo.space.space import Space

require("pandas", extra="tables", user="A sheet")

import pandas as pd
from pandas.errors import EmptyDataError

SUFFIXES = (".csv", ".xlsx")
EMPTY = ("", "nan", "none", "na", "n/a", "-", "–")
DECIMAL = re.compile(r"\s*[-+]?(?=.?\d)\d*[.,]\d*(e[-+]?\d+)?\s*", re.IGNORECASE)
AMBIGUOUS = "is ambiguous beside decimal commas. Write it with a comma, or without a mark"
# What tables of this project have beside parameters and outcomes
OTHERS = (
    *("id", "status", "reason", "noise", "ask", "asked", "told", "seconds", "note"),
    *("feasible", "front"),
)


def make_sheet(space: Space, ids: Sequence[int], X: Tensor, names: Sequence[str]) -> pd.DataFrame:
    """Return points (q, d) with their ids, an empty column for each outcome, and one for the reason
    why an evaluation failed. Numbers have the digits that their range asks for.
    """
    shown = X.clone()
    for column, param in enumerate(space.params.values()):
        shown[:, column] = X.new_tensor([param.rounded(number) for number in X[:, column]])
    frame = space.to_frame(shown)
    id, reason = distinct(["id", "reason"], [*space.names, *space.fixed, *names])
    frame.index = pd.Index(list(ids), name=id)
    return frame.assign(**dict.fromkeys(names, np.nan), **{reason: ""})


def read_sheet(path: Path) -> pd.DataFrame:
    """Return the cells of a sheet, those of a CSV file as texts, whatever separates them; raise
    ValueError if it is another kind of file, or cannot be read.
    """
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise ValueError(f"A sheet must end in {' or '.join(SUFFIXES)}, got {path.name}.")
    try:
        if kind == ".xlsx":
            from scalable_bo.storage.excel import read_excel  # which needs openpyxl

            return read_excel(path)
        how = dialect(path)
        cells = {"dtype": str, "keep_default_na": False, "skip_blank_lines": False}
        rows = pd.read_csv(path, header=None, **how, **cells)
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        why = "its first line is blank" if isinstance(error, EmptyDataError) else error
        raise ValueError(f"{path.name} could not be read: {why}.") from error
    frame = rows[1:].set_axis(rows.iloc[0].tolist(), axis=1)
    frame.attrs["decimal"] = how["decimal"]
    return frame.loc[:, [cell_text(name) != "" for name in frame.columns]]


def dialect(path: Path) -> dict[str, Any]:
    """Return how pandas reads a CSV file, whose first line may be ``sep=;``, which is Excel's."""
    encodings = ("utf-8-sig", "strict"), ("utf-16", "strict"), ("cp1252", "replace")
    for encoding, errors in encodings:
        with suppress(UnicodeError), path.open(encoding=encoding, errors=errors) as stream:
            heading = re.sub('"[^"]*"', "", stream.readline(MOST_BYTES))
            while stream.read(MOST_BYTES):
                pass
            break
    said = re.fullmatch("sep=(.)\n?", heading)
    separator = said[1] if said else max(",;\t", key=heading.count)
    how = {"sep": separator, "decimal": "." if separator == "," else ","}
    return how | {"skiprows": int(bool(said)), "encoding": encoding, "encoding_errors": errors}


def find_decimals(frame: pd.DataFrame, columns: Collection[str]) -> dict[str, tuple[Any, ...]]:
    """Return the index, text and column of a number with each decimal mark in the columns."""
    found: dict[str, tuple[Any, ...]] = {}
    for name, column in frame.loc[:, frame.columns.isin(columns)].items():
        texts = column.astype(str)
        for mark in {".", ","} - found.keys():
            near = texts[texts.str.contains(mark, regex=False)]
            numbers = ((*cell, name) for cell in near.items() if DECIMAL.fullmatch(cell[1]))
            found.update(zip(mark, numbers, strict=False))
    return found


class Filled:
    """What a sheet says of points: an empty cell says nothing, and a row without an outcome or a
    reason is passed over.

    Args:
        frame: a row for each point, which its column or index ``id`` names; columns of parameters
            must hold what was asked for.
        X: (n, d), the points of all ids.
    Attributes:
        values: outcomes by name, those of each point.
    Raises:
        ValueError: with each problem, by row and column as a spreadsheet counts them.
    """

    def __init__(self, frame: pd.DataFrame, space: Space, X: Tensor, names: Sequence[str]) -> None:
        found = distinct(["id", "noise", "reason", "note"], [*space.names, *space.fixed, *names])
        self._id, self._noise, self._reason, self._note = found
        if self._id not in frame.columns and frame.index.name == self._id:
            frame = frame.reset_index()
        self.ids: list[int] = []
        self.values: list[dict[str, float]] = []
        self.noise: list[float] = []
        self.reasons: dict[int, str] = {}
        self.notes: dict[int, str] = {}
        known = known_headings(frame, [*space.names, *space.fixed, *names, *found])
        self._frame = frame.rename(columns=lambda name: known.get(name, cell_text(name)))
        self._space = space
        self._points = X
        self._names = names
        self._seen: set[int] = set()
        self._comma = self._frame.attrs.get("decimal") == ","
        numbers = {*space.names, *names, self._noise} - space.choices.keys()
        self._has_commas = self._comma and "," in find_decimals(self._frame, numbers)
        self._has_noise = not all(map(is_empty, self._frame.get(self._noise, ())))
        self._problems: dict[Any, str] = dict(enumerate(self._wrong_columns()))
        for row in range(len(frame)):
            self._read(row)
        if self._problems:
            lines = self._problems.values()
            raise ValueError("\n  ".join(["Nothing was told, since in the sheet", *lines]))

    def _wrong_columns(self) -> Iterator[str]:
        columns = list(self._frame.columns)
        known = [*self._space.names, *self._space.fixed, *self._names, *OTHERS]
        known += [self._id, self._noise, self._reason, self._note]
        if self._id not in columns:
            yield f"the column `{self._id}` is missing among {', '.join(columns)}"
        yield from (f"the column `{c}` is there twice" for c in {*columns} if columns.count(c) > 1)
        # A column of the laboratory's own may be any, unless an outcome is missed
        if missing := [name for name in self._names if name not in columns]:
            for column in columns:
                if column not in known:
                    yield f"the column `{column}` is no outcome.{nearest(column, missing)}"

    def _read(self, row: int) -> None:
        cells = self._frame.iloc[row].to_dict()
        values = {n: self._number(row, n, cells[n]) for n in self._names if n in cells}
        told = {name: value for name, value in values.items() if not math.isnan(value)}
        remarks = (cells.get(name) for name in (self._reason, self._note))
        reason, note = ("" if is_empty(cell) else unguarded(cell_text(cell)) for cell in remarks)
        if not (told or reason or note) or self._problems and self._id not in cells:
            return
        id = self._number(row, self._id, cells[self._id])
        if id not in range(len(self._points)) or id in self._seen:
            what = "there twice" if id in self._seen else "none that was asked for"
            self._report(row, self._id, cells[self._id], f"is {what}")
            return
        self._seen.add(int(id))
        if note:
            self.notes[int(id)] = note
        if not (told or reason):
            return
        asked = self._points[int(id)].tolist()
        for (name, param), number in zip(self._space.params.items(), asked, strict=True):
            if cell_text(cells.get(name)):
                self._compare(row, name, param, cells[name], number)
        self.ids.append(int(id))
        self.values.append(told)
        noise = self._number(row, self._noise, cells.get(self._noise)) if told else math.nan
        self.noise.append(noise)
        if told and self._has_noise and not noise > 0:
            problem = "is no variance above 0. Give one in all rows with a value, or in none"
            self._report(row, self._noise, cells[self._noise], problem)
        if reason:
            self.reasons[int(id)] = reason
        if reason and told:
            self._report(row, self._reason, reason, "stands beside a value. Clear one of the two")

    def _compare(self, row: int, name: str, param: Parameter, cell: Any, asked: float) -> None:
        """Report a parameter that is not what was asked for, but for what rounding may change."""
        if param.axis == "category":
            choices = param.choices  # type: ignore[union-attr]
            found = cell_position(choices, choice_reader(choices, self._comma)(str(cell)))
        else:
            found = self._number(row, name, cell)
        if not param.may_be_shown_as(asked, found) and not (math.isnan(found) and is_empty(cell)):
            (was,) = param.labels([asked])
            problem = f"is not what was asked for, {was}. Add what was run instead by `add_data`"
            self._report(row, name, cell, problem)

    def _number(self, row: int, name: str, cell: Any) -> float:
        """Return the number in a cell, NaN in an empty one."""
        text = cell_text(cell)
        if is_empty(cell):
            return math.nan
        is_pointed = DECIMAL.fullmatch(text.replace(",", "")) is not None
        if self._has_commas and is_pointed and name not in self._space.names:
            self._report(row, name, cell, AMBIGUOUS)
        number = math.inf
        with suppress(ValueError):
            number = float(text.replace(",", ".") if self._comma else text)
        if not math.isfinite(number) or "_" in text:
            self._report(row, name, cell, "is no number. Leave the cell empty, or give a reason")
            return math.nan
        return number

    def _report(self, row: int, name: str, cell: Any, problem: str) -> None:
        line = f"row {row + 2}, column `{name}`: {cell_text(cell)!r} {problem}"
        self._problems.setdefault((row, name), line)  # the first of a cell leads to the others


def cell_text(cell: Any) -> str:
    """Return the text of a cell, without what a spreadsheet puts around it."""
    return "" if pd.isna(cell) else bare(str(cell))


def is_empty(cell: Any) -> bool:
    """Return whether a cell says nothing: it is blank, or has one of the marks for that."""
    return cell_text(cell).lower() in EMPTY


def heading_of(name: str) -> str:
    """Return a name as the heading of a CSV file, where none may be empty."""
    return guarded(name) if bare(name).strip("'") else f"'{name}"


def known_headings(headings: Iterable[Any], columns: Sequence[str]) -> dict[Any, str]:
    """Return which column each heading of a file names, blanks around it left aside."""
    names = with_bare({text(name): name for text in (str, heading_of) for name in columns})
    found = {h: names.get(h, names.get(cell_text(h))) for h in headings}
    return {heading: name for heading, name in found.items() if name is not None}
