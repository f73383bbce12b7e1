"""Excel files: what is written comes back, and what spreadsheets of people hold is understood."""

import os
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import openpyxl
import pandas as pd
import pytest

from scalable_bo.space.space import Float, Space
from scalable_bo.storage.excel import read_excel, write_excel
from scalable_bo.study.study import Study

NUMBERS = [375.97358769005365, -0.0, 5e-324, 1.7976931348623157e308, 2**53 + 1, 0.1 + 0.2]
TEXTS = ["a\rb\r\nc\n", "\0\x1f", " blanks ", "_x0041_", "_x005F_", "\ud800\uffff", "1.0"]


def test_numbers_and_texts_come_back_to_the_last_digit_and_character(tmp_path: Path) -> None:
    cells = [*NUMBERS, *TEXTS, True, None]
    frame = pd.DataFrame({"a\x07b": cells}, index=pd.RangeIndex(len(cells), name="id"))
    write_excel(frame, tmp_path / "cells.xlsx")
    found = read_excel(tmp_path / "cells.xlsx")
    assert list(found) == ["id", "a\x07b"]
    assert repr(found["a\x07b"].tolist()) == repr([*cells[:-1], ""])
    assert found["id"].tolist() == list(range(len(cells)))


def book(path: Path, rows: list[list[Any]]) -> Path:
    file = openpyxl.Workbook()
    for row in rows:
        file.active.append(row)
    file.save(path)
    return path


def test_blanks_around_headings_and_empty_rows_and_columns_are_passed_over(tmp_path: Path) -> None:
    rows = [[" x ", None, "score"], [0.5, None, 1], [0.25, "aside", "#N/A"], [0.75, None, None]]
    path = book(tmp_path / "past.xlsx", [*rows, [None, None, ""]])
    study = Study(Space(x=Float(0.0, 1.0)), maximize=True)
    study.add_data(path, target="score")
    assert study.to_dataframe()["x"].tolist() == [0.5]
    assert study.num_failed == 0


def test_a_formula_whose_value_is_not_in_the_file_is_refused_with_its_cell(tmp_path: Path) -> None:
    path = book(tmp_path / "past.xlsx", [["x", "score"], [0.5, 1.0], [0.25, "=1+1"]])
    study = Study(Space(x=Float(0.0, 1.0)), maximize=True)
    with pytest.raises(ValueError, match="the formula in B3 has no stored value. Save the file"):
        study.add_data(path, target="score")
    study.ask(1)
    path = book(tmp_path / "next.xlsx", [["id", "value"], [0, "=1+1"]])
    with pytest.raises(ValueError, match="the formula in B2 has no stored value"):
        study.tell(path)


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ('<c r="B2"><f>1+1</f><v>2</v></c>', 2),
        ('<c r="B2" t="str"><f>1+1</f><v></v></c>', ""),
    ],
)
def test_a_formula_has_the_value_that_is_stored(tmp_path: Path, cell: str, value: Any) -> None:
    path = book(tmp_path / "past.xlsx", [["x", "score"], [0.5, "=1+1"]])
    with ZipFile(path) as file:
        parts = {name: file.read(name).decode() for name in file.namelist()}
    sheet = "xl/worksheets/sheet1.xml"
    assert '<c r="B2"><f>1+1</f><v /></c>' in parts[sheet]
    parts[sheet] = parts[sheet].replace('<c r="B2"><f>1+1</f><v /></c>', cell)
    with ZipFile(path, "w") as file:
        for name, text in parts.items():
            file.writestr(name, text)
    assert read_excel(path)["score"].tolist() == [value]


def test_a_heading_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    study = Study(Space(x=Float(0.0, 1.0)), maximize=True)
    study.ask(1)
    path = book(tmp_path / "next.xlsx", [["id", "value", "value"], [0, 1.0, 2.0]])
    with pytest.raises(ValueError, match="the column `value` is there twice"):
        study.tell(path)


def test_an_empty_file_has_no_cells(tmp_path: Path) -> None:
    assert read_excel(book(tmp_path / "empty.xlsx", [])).empty


def test_a_file_that_is_refused_is_closed(tmp_path: Path) -> None:
    path = book(tmp_path / "past.xlsx", [["x", "score"], [0.25, "=1+1"], [0.5, 1.0]])
    with pytest.raises(ValueError, match="has no stored value") as refused:
        read_excel(path)
    opened = [os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    assert refused.value.args  # while the traceback lives
    assert str(path) not in opened
