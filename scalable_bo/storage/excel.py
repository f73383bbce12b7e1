"""Excel files, in which every number and every text comes back as it was written.

A workbook is XML, which has no control characters and turns a carriage return into a line feed:
Excel writes such a character as its code, such as ``_x000D_``, and so does this.
"""

from __future__ import annotations

import re
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

from scalable_bo._packages import require

require("openpyxl", extra="tables", user="An Excel file")
require("pandas", extra="tables", user="An Excel file")

import openpyxl
import pandas as pd

# Characters that XML does not allow, and underscores that would be read as the start of a code
CODED = re.compile("[\0-\x08\x0b-\x1f\ud800-\udfff\ufffe\uffff]|_(?=x[0-9A-Fa-f]{4}_)")
CODE = re.compile("_x([0-9A-Fa-f]{4})_")


def write_excel(frame: pd.DataFrame, path: Path) -> None:
    """Write a table with its index, and times without their zone."""
    cells = frame.reset_index().astype(object)
    book = openpyxl.Workbook()
    sheet = book.active
    assert sheet is not None
    for row, values in enumerate([list(cells), *cells.itertuples(index=False)], 1):
        for column, value in enumerate(values, 1):
            if pd.isna(value):
                continue
            cell = sheet.cell(row, column)
            if isinstance(value, str):
                cell.value = CODED.sub(lambda found: f"_x{ord(found[0]):04X}_", value)
            elif isinstance(value, pd.Timestamp):
                cell.value = value.tz_localize(None)
            elif isinstance(value, bool):
                cell.value = value
            else:  # openpyxl would write 16 digits of the 17 that a float may need
                cell.value = repr(value)
                cell.data_type = "n"
    with path.open("wb") as stream:
        book.save(stream)


def read_excel(path: Path) -> pd.DataFrame:
    """Return the cells of the first sheet below those of its first row, which are the headings;
    empty cells are empty texts.

    Raises:
        OSError, ValueError, KeyError, zipfile.BadZipFile: if it is no Excel file.
        ValueError: if a formula has no stored value, as where no spreadsheet program wrote it.
    """
    load = partial(openpyxl.load_workbook, path, read_only=True)
    with ExitStack() as open_ones:
        both = []
        for only_values in (True, False):
            book = open_ones.enter_context(closing(load(data_only=only_values)))
            book.worksheets[0].reset_dimensions()  # which some programs write wrong
            both.append(open_ones.enter_context(closing(book.worksheets[0].iter_rows())))
        rows = [list(map(_read, *cells)) for cells in zip(*both, strict=True)]
    while rows and not any(value != "" for value in rows[-1]):
        rows.pop()
    width = max(map(len, rows), default=0)
    headings, *body = [row + [""] * (width - len(row)) for row in rows] or [[]]
    frame = pd.DataFrame(body, columns=pd.Index(headings, dtype=object), dtype=object)
    return frame.loc[:, [heading != "" for heading in headings]]


def _read(cell: Any, formula: Any) -> Any:
    value = cell.value
    # An empty text that a formula has given is a value of its own type
    if value is None and cell.data_type == "n" and formula.data_type == "f":
        raise ValueError(
            f"the formula in {formula.coordinate} has no stored value. Save the file in a"
            " spreadsheet program, or put the value in its place"
        )
    if value is None or cell.data_type == "e":
        return ""
    if isinstance(value, str):
        return CODE.sub(lambda found: chr(int(found[1], 16)), value)
    return value
