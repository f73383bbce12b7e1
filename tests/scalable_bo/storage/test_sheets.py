"""Points go to a laboratory as a sheet, and come back with some of their outcomes."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from scalable_bo.space.space import Categorical, Float, Int, Space
from scalable_bo.storage.tables import table_frames, write_table
from scalable_bo.study.study import Study

SPACE = Space(
    **{"Temp (°C)": Float(20.0, 120.0), "n": Int(1, 9), "base": Categorical(["=K2CO3", None])},
    rate=Float(1e-5, 1.0, log=True),
    site="A",
)
GOAL = {"objectives": {"Yield [%]": "maximize", "Cost": "minimize"}}


def make_study(**options: Any) -> Study:
    return Study(SPACE, seed=0, **options or GOAL)


def written(study: Study, frame: pd.DataFrame, path: Path) -> Path:
    write_table(frame.copy(), path, path.suffix, study.space, study.outcomes)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".xlsx"])
def test_a_sheet_comes_back_with_gaps_and_later_with_the_rest(tmp_path: Path, suffix: str) -> None:
    study = make_study()
    batch = study.ask(4)
    frame = study.sheet(batch)
    assert list(frame.index) == batch.ids
    assert list(frame.columns) == [*SPACE.names, "site", "Yield [%]", "Cost", "reason"]
    assert frame["Yield [%]"].isna().all()
    frame.loc[0, ["Yield [%]", "Cost"]] = [70.5, 20.0]
    frame.loc[1, "Cost"] = 3.5
    frame.loc[3, "reason"] = "-the flask broke"
    study.tell(written(study, frame, tmp_path / f"results{suffix}"))
    assert study.num_observations == 1
    assert study.pending.ids == [1, 2]
    assert study.pending.outcomes == [{"Cost": 3.5}, {}]
    assert study.reasons([3]) == ["-the flask broke"]
    later = study.sheet(batch).loc[[1, 2]]
    later.loc[1, "Yield [%]"] = 55.0
    later.loc[2, ["Yield [%]", "Cost"]] = [60.0, 9.0]
    study.tell(written(study, later, tmp_path / f"later{suffix}"))
    study.tell(tmp_path / f"later{suffix}")  # once more
    assert study.result.outcomes.tolist() == [[70.5, 20.0], [55.0, 3.5], [60.0, 9.0]]


def test_one_outcome_and_a_frame(tmp_path: Path) -> None:
    study = make_study(maximize=True)
    frame = study.sheet(study.ask(3))
    frame.loc[0, "value"] = 1.5
    frame.loc[2, "value"] = 2.5
    frame["operator"] = "a column of ours"
    study.tell(frame)
    assert study.result.values.tolist() == [1.5, 2.5]
    assert study.pending.ids == [1]
    study.tell(pd.DataFrame({"id": [1], "value": ["3.5"], "noise": [0.1]}).iloc[:0])
    assert study.pending.ids == [1]


def test_what_a_spreadsheet_in_another_language_makes_of_it(tmp_path: Path) -> None:
    study = make_study()
    study.ask(2)
    path = tmp_path / "results.csv"
    path.write_bytes("id;Yield [%];Cost\r\n1;70,5;2,25\r\n;;\r\n".encode("utf-8-sig"))
    study.tell(path)
    assert study.result.outcomes.tolist() == [[70.5, 2.25]]
    path.write_bytes("id\tCost\treason\n0\t\tzu heiß\n".encode("cp1252"))
    study.tell(path)
    assert study.reasons([0]) == ["zu heiß"]


def test_all_that_is_wrong_is_said_at_once_and_nothing_is_told(tmp_path: Path) -> None:
    study = make_study()
    frame = study.sheet(study.ask(5)).astype(object).reset_index()
    frame["Cost"] = 1.0
    frame["Yield [%]"] = [1.0, "n.d.", 3.0, 4.0, 5.0]
    frame.loc[3, "reason"] = "it broke"
    frame.loc[2, "Temp (°C)"] += 7.0
    frame.loc[2, "base"] = "NaOH"
    frame.loc[4, "id"] = 0
    with pytest.raises(ValueError) as error:
        study.tell(frame)
    lines = str(error.value).splitlines()
    assert lines[0] == "Nothing was told, since in the sheet"
    assert lines[1] == (
        "  row 3, column `Yield [%]`: 'n.d.' is no number. Leave the cell empty, or give a reason"
    )
    assert "row 4, column `Temp (°C)`" in lines[2]
    assert "is not what was asked for" in lines[2]
    assert "row 4, column `base`: 'NaOH'" in lines[3]
    assert "row 5, column `reason`: 'it broke' stands beside a value" in lines[4]
    assert "row 6, column `id`: '0' is there twice" in lines[5]
    assert len(lines) == 6
    assert study.num_observations == 0
    with pytest.raises(ValueError, match="column `Yeild .%.` is no outcome. Did you mean `Yield"):
        study.tell(frame.rename(columns={"Yield [%]": "Yeild [%]"}))
    with pytest.raises(ValueError, match="the column `id` is missing"):
        study.tell(frame.drop(columns="id"))
    frame.loc[4, "id"] = 9
    with pytest.raises(ValueError, match="'9' is none that was asked for"):
        study.tell(frame)
    with pytest.raises(ValueError, match="must end in .csv or .xlsx, got results.ods"):
        study.tell(tmp_path / "results.ods")
    (tmp_path / "broken.xlsx").write_bytes(b"PK no")
    with pytest.raises(ValueError, match="broken.xlsx could not be read"):
        study.tell(tmp_path / "broken.xlsx")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("id,value\n0,1,9\n1,0,8\n", "Expected 2 fields in line 2, saw 3"),  # of "1,9" and "0,8"
        ("id,value\n0,1\n1,0,8\n", "Expected 2 fields in line 3, saw 3"),
        ("id,value,value\n0,1,2\n", "the column `value` is there twice"),
    ],
)
def test_no_cell_of_a_file_is_taken_for_that_of_another_column(
    tmp_path: Path, text: str, problem: str
) -> None:
    study = make_study(maximize=True)
    study.ask(2)
    path = tmp_path / "sheet.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=problem):
        study.tell(path)
    path.write_text(text.replace("id", "x"))
    once = problem.replace("the column `value` is there twice", "the column 'value' once, got x")
    with pytest.raises(ValueError, match=once):
        Study(Space(x=Float(0, 9)), maximize=True).add_data(path, target="value")


@pytest.mark.parametrize("suffix", [".csv", ".xlsx"])
def test_a_parameter_may_have_the_name_of_any_column_of_a_sheet(
    tmp_path: Path, suffix: str
) -> None:
    reason = Categorical(["hot", "cold"])
    study = Study(
        Space(id=Int(0, 9), noise=Float(0.01, 1.0), reason=reason, note=Float(0, 1)),
        maximize=True,
    )
    batch = study.ask(3)
    frame = study.sheet(batch)
    frame.loc[[0, 2], "value"] = [1.0, 2.0]
    frame.loc[1, "reason_"] = "it broke"
    study.tell(written(study, frame, tmp_path / f"sheet{suffix}"))
    told = study.to_dataframe()
    assert told["reason"].tolist() == [params["reason"] for params in batch.params]
    assert told["value"].tolist()[::2] == [1.0, 2.0]
    assert told["noise_"].isna().all()
    assert study.reasons([1]) == ["it broke"]


def test_a_renamed_column_is_known_where_an_outcome_is_missing() -> None:
    goal = {"objectives": {"yield": "maximize", "cost": "minimize"}}
    study = Study(Space(reason=Categorical(["hot", "cold"]), x=Float(0, 1)), **goal)
    study.tell(study.sheet(study.ask(1)).drop(columns="cost").assign(**{"yield": 1.0}))
    assert study.to_dataframe()["yield"].tolist() == [1.0]


def test_an_outcome_may_be_called_noise() -> None:
    study = make_study(objectives={"noise": "minimize", "gain": "maximize"})
    study.tell(study.sheet(study.ask(2)).assign(noise=[0.5, 1.0], gain=[1.0, 2.0]))
    assert study.result.outcomes.tolist() == [[0.5, 1.0], [1.0, 2.0]]


def test_a_sheet_shows_the_digits_that_a_range_asks_for() -> None:
    space = Space(
        wide=Float(20, 120), fine=Float(0, 1), rate=Float(1e-6, 1.0, log=True), k=Int(1, 9)
    )
    study = Study(space, maximize=True)
    study.enqueue([[83.123456, 0.0001234567, 3.14159e-4, 3], [20.00499, 1.0, 1e-6, 9]])
    sheet = study.sheet(study.ask(2))
    assert sheet["wide"].tolist() == [83.12, 20.0]
    assert sheet["fine"].tolist() == [0.0001, 1.0]
    assert sheet["rate"].tolist() == [3.142e-4, 1e-6]
    assert sheet["k"].tolist() == [3, 9]
    study.tell(sheet.assign(value=[1.0, 2.0]))
    assert study.result.X[0].tolist() == [83.123456, 0.0001234567, 3.14159e-4, 3.0]


def test_a_rounded_parameter_is_what_was_asked_for() -> None:
    study = make_study()
    frame = study.sheet(study.ask(6))
    frame[["Yield [%]", "Cost"]] = 1.0
    for name in ("Temp (°C)", "rate"):
        frame[name] = [float(f"{value:.4g}") for value in frame[name]]
    study.tell(frame)
    assert study.num_observations == 6


def test_what_was_run_instead_is_seen_in_a_narrow_range_far_from_zero() -> None:
    study = Study(Space(year=Int(1000, 1009), x=Float(0, 1)), maximize=True, seed=0)
    frame = study.sheet(study.ask(1)).assign(value=1.0)
    frame["year"] = 1009 if frame["year"].item() < 1005 else 1000
    with pytest.raises(ValueError, match="column `year`: '10.*' is not what was asked for, 10"):
        study.tell(frame)


@pytest.mark.parametrize("cell", ["", "n/a", "-"])
def test_a_parameter_that_is_not_active_is_not_compared(cell: str) -> None:
    inner = {"depth": Int(1, 9, active_if={"kind": "a"})}
    inner["tail"] = Categorical(["s", "t"], active_if={"kind": "a"})
    study = Study(Space(kind=Categorical(["a", "b"]), **inner), maximize=True, seed=0)
    study.enqueue([{"kind": "b"}])
    frame = study.sheet(study.ask(1)).astype(object).assign(value=1.0, depth=cell)
    study.tell(frame)
    assert study.num_observations == 1


def test_a_batch_is_a_frame() -> None:
    batch = make_study().ask(3)
    frame = batch.to_dataframe()
    assert frame.index.tolist() == batch.ids
    assert frame["n"].tolist() == [params["n"] for params in batch.params]
    assert not math.isnan(frame["rate"].sum())


@pytest.mark.parametrize("read", [pd.read_excel, pd.read_csv])
def test_an_empty_cell_that_pandas_reads_is_no_reason(tmp_path: Path, read: Any) -> None:
    study = make_study(maximize=True)
    frame = study.sheet(study.ask(3))
    frame.loc[0, "value"] = 1.0
    path = tmp_path / ("sheet.csv" if read is pd.read_csv else "sheet.xlsx")
    study.tell(read(written(study, frame, path)))
    assert (study.num_observations, study.num_failed) == (1, 0)
    assert study.pending.ids == [1, 2]


def test_what_is_too_large_for_a_number_is_said() -> None:
    study = make_study(maximize=True)
    frame = study.sheet(study.ask(1)).astype(object)
    frame["value"] = "1e999"
    with pytest.raises(ValueError, match="row 2, column `value`: '1e999' is no number"):
        study.tell(frame)


@pytest.mark.parametrize(
    ("cells", "separator"),
    [
        (("TRUE", "0,25"), ";"),
        (("FALSE", "0.50"), ","),
        (("true", "1"), ";"),
        (("False", "1"), ","),
    ],
)
def test_choices_are_read_as_spreadsheet_programs_write_them(
    tmp_path: Path, cells: tuple[str, str], separator: str
) -> None:
    space = Space(dry=Categorical([True, False]), share=Categorical([0.25, 0.5, 1.0, "all"]))
    study = Study(space, maximize=True)
    params = {"dry": cells[0].lower() == "true", "share": float(cells[1].replace(",", "."))}
    study.enqueue(params)
    batch = study.ask(1)
    path = tmp_path / "sheet.csv"
    rows = ["id", "dry", "share", "value"], [str(batch.ids[0]), *cells, "7"]
    path.write_text("\n".join(separator.join(row) for row in rows))
    study.tell(path)
    assert study.result.values.tolist() == [7.0]
    again = Study(space, maximize=True)
    again.add_data(path, target="value")
    assert again.points()[0].params == params
    path.write_text(path.read_text().replace(cells[1], "0.75"))
    with pytest.raises(ValueError, match="column `share`: '0.75' is not what was asked for"):
        study.tell(path)


@pytest.mark.parametrize("mark", ["-", "n/a", "None", " "])
def test_the_marks_of_an_empty_cell_are_those_of_every_column(tmp_path: Path, mark: str) -> None:
    space = Space(x=Float(0, 1), k=Categorical(["a", "b", None]))
    study = Study(space, maximize=True, seed=0)
    frame = study.sheet(study.ask(2)).astype(object).assign(note=mark)
    frame.loc[0, ["value", "reason", "x", "k"]] = [1.0, mark, mark, mark]
    frame.loc[1, ["value", "reason"]] = mark
    path = tmp_path / "sheet.csv"
    frame.to_csv(path)
    study.tell(path)
    assert [(point.status, point.note) for point in study.points()] == [
        ("observed", ""),
        ("pending", ""),
    ]
    again = Study(Space(x=Float(0, 1)), maximize=True)
    frame.assign(x=0.5).to_csv(path)
    again.add_data(path, target="value")
    assert [point.status for point in again.points()] == ["observed"]


@pytest.mark.parametrize("strips", [False, True])
@pytest.mark.parametrize("suffix", [".csv", ".xlsx"])
def test_blanks_in_choices_and_names_may_stay_or_go(
    tmp_path: Path, suffix: str, strips: bool
) -> None:
    space = Space(**{" x": Float(0, 1), "k": Categorical([" a", "10\xa0mg", "c"]), "s": "t "})
    study = Study(space, objectives={"yield ": "maximize", "cost": "minimize"}, seed=0)
    frame = study.sheet(study.ask(6)).assign(**{"yield ": 1.0, "cost": 2.0})
    path = written(study, frame, tmp_path / f"sheet{suffix}")
    if strips:
        read = pd.read_excel if suffix == ".xlsx" else pd.read_csv
        found = read(path, dtype=str)
        found = found.map(lambda cell: cell.replace("\xa0", " ").strip(), na_action="ignore")
        found = found.rename(columns=str.strip)
        found.to_excel(path, index=False) if suffix == ".xlsx" else found.to_csv(path, index=False)
    study.tell(path)
    assert study.num_observations == 6
    again = Study(space, objectives={"yield ": "maximize", "cost": "minimize"})
    again.add_data(path)
    chosen = [point.params["k"] for point in study.points()]
    assert [point.params["k"] for point in again.points()] == chosen


def test_choices_that_differ_in_blanks_alone_are_not_taken_for_each_other(tmp_path: Path) -> None:
    space = Space(x=Float(0, 1), k=Categorical(["a ", " a", "b"]))
    study = Study(space, maximize=True, seed=0)
    study.enqueue([{"x": 0.5, "k": choice} for choice in ("a ", " a", "b")])
    frame = study.sheet(study.ask(3)).assign(value=1.0)
    study.tell(written(study, frame, tmp_path / "sheet.csv"))
    assert study.num_observations == 3
    path = tmp_path / "rows.csv"
    path.write_text("x,k,value\n0.5,a,1\n")
    with pytest.raises(ValueError, match="`k` must be"):
        Study(space, maximize=True).add_data(path, target="value")


def test_a_decimal_point_beside_decimal_commas_is_refused_as_ambiguous(tmp_path: Path) -> None:
    study = make_study(maximize=True)
    x = [point["Temp (°C)"] for point in study.ask(2).params]
    path = tmp_path / "sheet.csv"
    path.write_text(f"id;Temp (°C);value\n0;{x[0]};1,5\n1;{x[1]};1.250\n", encoding="utf-8")
    refusal = "ow 3, column `value`: '1.250' is ambiguous beside decimal commas. Write it with a"
    with pytest.raises(ValueError, match=refusal) as error:
        study.tell(path)
    assert len(str(error.value).splitlines()) == 2  # as parameters are known
    path.write_text(path.read_text(encoding="utf-8").replace(",", "."), encoding="utf-8")
    study.tell(path)
    assert study.result.values.tolist() == [1.5, 1.25]


def test_commas_in_columns_of_their_own_do_not_make_points_ambiguous(tmp_path: Path) -> None:
    study = make_study(maximize=True)
    study.ask(2)
    path = tmp_path / "sheet.csv"
    path.write_text("id;value;operator batch\n0;1.25;3,4\n1;2.5;5\n")
    study.tell(path)
    assert study.result.values.tolist() == [1.25, 2.5]


@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        ("0;;1.234,5;", "column `value`: '1.234,5' is ambiguous"),
        ("0;;.;", "column `value`: '.' is no number"),
        ("0;;n.a.;", "column `value`: 'n.a.' is no number"),
        ("0;;1,5;abc", "column `noise`: 'abc' is no number"),
        ("0;hot;1,5;1", "column `Temp (°C)`: 'hot' is no number"),
        ("first;;1,5;1", "column `id`: 'first' is no number"),
    ],
)
def test_a_cell_is_reported_once(tmp_path: Path, cells: str, problem: str) -> None:
    study = make_study(maximize=True)
    study.ask(2)
    path = tmp_path / "sheet.csv"
    path.write_text(f"id;Temp (°C);value;noise\n1;;2,5;1\n{cells}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="Nothing was told") as error:
        study.tell(path)
    lines = [line for line in str(error.value).splitlines() if "row 3" in line]
    assert len(lines) == 1
    assert problem in lines[0]


@pytest.mark.parametrize("cells", [("1,5", "1.250"), ("1.250", "1,5")])
def test_a_table_has_decimal_commas_or_points(tmp_path: Path, cells: tuple[str, str]) -> None:
    space = Space(x=Float(0, 9), k=Categorical(["1.5", "2,5"]))
    path = tmp_path / "rows.csv"
    path.write_text("x;k;value;reason\n1;2,5;{};\n2;1.5;{};1.5\n".format(*cells))
    row = 2 + cells.index("1.250")
    for rows_at_once in (1, 9):
        frames = table_frames(space, path, {"x", "k", "value"}, rows_at_once)
        with pytest.raises(ValueError, match=f"Row {row}, column `value`: '1.250' is ambiguous"):
            list(frames)
    path.write_text(path.read_text().replace("1.250", "1,250"))
    study = Study(space, maximize=True)
    study.add_data(path, target="value")
    assert sorted(study.result.values.tolist()) == [1.25, 1.5]


def test_digits_in_groups_of_python_are_no_number() -> None:
    study = make_study(maximize=True)
    frame = study.sheet(study.ask(1)).astype(object).assign(value="1_000")
    with pytest.raises(ValueError, match="row 2, column `value`: '1_000' is no number"):
        study.tell(frame)


@pytest.mark.parametrize("cell", [None, -1.0, 0.0])
def test_a_sheet_has_variances_of_all_values_or_of_none(cell: float | None) -> None:
    study = make_study(maximize=True)
    frame = study.sheet(study.ask(3)).astype(object)
    frame["value"] = [1.0, 2.0, None]
    frame["noise"] = [0.1, cell, None]
    frame.loc[2, "reason"] = "it broke"
    with pytest.raises(ValueError) as error:
        study.tell(frame)
    assert str(error.value).splitlines() == [
        "Nothing was told, since in the sheet",
        f"  row 3, column `noise`: '{'' if cell is None else cell}' is no variance above 0. Give"
        " one in all rows with a value, or in none",
    ]
    study.tell(frame.assign(noise=[0.1, 0.2, "-"]))
    assert study.num_observations == 2


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("sep=;\r\nid;value;reason\r\n1;2,5;\r\n0;;zu heiß\r\n", "utf-8-sig"),
        ("sep=|\nid|value|reason\n1|2,5|\n0||zu heiß\n", "cp1252"),
        ("id\tvalue\treason\r\n1\t2,5\t\r\n0\t\tzu heiß\r\n", "utf-16"),
    ],
)
def test_what_excel_puts_before_the_headings_is_understood(
    tmp_path: Path, text: str, encoding: str
) -> None:
    study = make_study(maximize=True)
    study.ask(2)
    path = tmp_path / "sheet.csv"
    path.write_bytes(text.encode(encoding))
    study.tell(path)
    assert study.result.values.tolist() == [2.5]
    assert study.reasons([0]) == ["zu heiß"]
    path.write_bytes(text.replace("id", "x").encode(encoding))
    again = Study(Space(x=Float(0, 9)), maximize=True)
    again.add_data(path, target="value")
    assert again.reasons([1]) == ["zu heiß"]


def test_a_blank_line_before_the_headings_is_named(tmp_path: Path) -> None:
    study = make_study(maximize=True)
    study.ask(1)
    path = tmp_path / "sheet.csv"
    path.write_text("\nid,value\n0,1\n")
    with pytest.raises(ValueError, match="sheet.csv could not be read: its first line is blank."):
        study.tell(path)


def test_a_name_in_other_letters_is_suggested() -> None:
    study = make_study(maximize=True)
    frame = study.sheet(study.ask(1)).rename(columns={"value": "VALUE"})
    with pytest.raises(ValueError, match="column `VALUE` is no outcome. Did you mean `value`"):
        study.tell(frame)
