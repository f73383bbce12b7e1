"""What a user notes of points."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import scalable_bo as sbo
from scalable_bo.storage.tables import write_table
from tests.quick import QUICK

SPACE = sbo.Space(x=sbo.Float(0.0, 1.0), kind=sbo.Categorical(["a", None, True, 2]))
PAST = [{"x": 0.25, "kind": None}]


def make(**options: Any) -> sbo.Study:
    return sbo.Study(SPACE, **{"maximize": True, "seed": 1, "num_initial": 10_000} | options)


def test_a_note_is_kept_and_changes_no_ask(tmp_path: Path) -> None:
    quick = partial(make, num_initial=3, sampler=QUICK)
    kept, plain = quick(path=tmp_path), quick()
    for study in (kept, plain):
        batch = study.ask(3)
        study.tell(batch.ids, [1.0, math.nan, 2.0])
    kept.note(0, "first")
    kept.note(0, "second")
    kept.note(1, "\ud800 odd")
    kept.note(2, "gone")
    kept.note(2, "")
    kept.correct(0, 1.5)
    plain.correct(0, 1.5)
    kept.retry([1])
    plain.retry([1])
    kept.close()
    with quick(path=tmp_path) as kept:
        assert kept.to_dataframe()["note"].tolist() == ["second", "\\ud800 odd", ""]
        assert torch.equal(kept.ask(2).X, plain.ask(2).X)
        kept.report(tmp_path / "report.html")
    assert '<td class="word">second</td>' in (tmp_path / "report.html").read_text()


def test_what_is_no_note_is_refused() -> None:
    study = make()
    study.ask(1)
    with pytest.raises(ValueError, match="unknown 1"):
        study.note(1, "text")
    with pytest.raises(TypeError, match="`text` must be a text, got 3"):
        study.note(0, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`ids` must be whole numbers"):
        study.note("0", "text")  # type: ignore[arg-type]
    assert study.to_dataframe()["note"][0] == ""


@pytest.mark.parametrize("suffix", [".csv", ".xlsx"])
def test_a_sheet_brings_notes_and_an_export_guards_them(tmp_path: Path, suffix: str) -> None:
    study = make()
    batch = study.ask(3)
    sheet = study.sheet(batch)
    sheet["value"] = [1.0, math.nan, math.nan]
    sheet["note"] = ["=SUM(A1)", "not yet", ""]
    path = tmp_path / f"next{suffix}"
    write_table(sheet, path, suffix, SPACE)
    for _ in range(2):
        study.tell(path)
        assert study.to_dataframe()["note"].tolist() == ["=SUM(A1)", "not yet", ""]
        assert study.pending.ids == batch.ids[1:]
    write_table(study.to_dataframe(), path, suffix, SPACE)
    read = pd.read_csv if suffix == ".csv" else pd.read_excel
    assert read(path)["note"].tolist()[:2] == ["'=SUM(A1)", "not yet"]


def test_a_parameter_named_note_is_no_note() -> None:
    study = sbo.Study(sbo.Space(note=sbo.Categorical(["c", "d"])), maximize=True)
    sheet = study.sheet(study.ask(1))
    sheet["value"] = 1.0
    sheet["note_"] = "loud"
    study.tell(sheet)
    assert study.to_dataframe()["note_"][0] == "loud"


def test_a_copy_has_the_times_and_the_notes(tmp_path: Path) -> None:
    with make(path=tmp_path / "here") as study:
        study.add_data(PAST, [1.0])
        batch = study.ask(3)
        study.tell(batch.ids[:2], [1.0, math.nan], seconds=[2.0, math.nan])
        study.note(2, "leaked")
        study.copy_to(tmp_path / "there")
        with sbo.Study.open(tmp_path / "there") as copy:
            assert copy.points() == study.points()
