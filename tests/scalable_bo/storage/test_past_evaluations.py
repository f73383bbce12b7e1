"""Past evaluations: arrays, dicts and tables say the same, bad ones are refused whole,
and none is added twice.
"""

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scalable_bo.space.space import Categorical, Float, Int, Space
from scalable_bo.storage import tables
from scalable_bo.storage.past_evaluations import read_history
from scalable_bo.storage.storage import Source
from scalable_bo.study.study import Study
from tests.scalable_bo.frames import timeless

SPACE = Space(
    x=Float(0.0, 1.0),
    n=Int(-5, 5),
    kind=Categorical(["1", "None", "c,d"]),
    flag=Categorical([True, False]),
    fixed=3,
)
FRAME = pd.DataFrame(
    {
        "comment": ["first", "second", "third", "fourth", "fifth"],
        "kind": ["None", "1", "c,d", "1", "None"],
        "score": [1.0, np.nan, 3.0, np.inf, 0.1 + 0.2],
        "x": [0.0, 0.1, 1 / 3, 0.5, 1.0],
        "n": [-5, 0, 1, 2, 5],
        "flag": [True, False, True, True, False],
        "variance": [0.1, 0.2, 0.3, 0.4, 0.5],
    }
)


def make(path: Path | None = None) -> Study:
    return Study(SPACE, maximize=True, path=path)


def write(frame: pd.DataFrame, path: Path) -> Path:
    frame.to_csv(path, index=False) if path.suffix == ".csv" else frame.to_parquet(path)
    return path


@pytest.mark.parametrize("suffix", ["frame", ".csv", ".parquet"])
@pytest.mark.parametrize("rows_at_once", [2, 100])
def test_all_kinds_of_tables_say_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, rows_at_once: int
) -> None:
    table_frames = partial(tables.table_frames, rows_at_once=rows_at_once)
    monkeypatch.setattr(tables, "table_frames", table_frames)
    data = FRAME if suffix == "frame" else write(FRAME, tmp_path / f"past{suffix}")
    study = make()
    study.add_data(data, target="score", noise="variance")
    frame = study.to_dataframe()
    assert frame[["x", "n", "kind", "flag"]].equals(
        FRAME[["x", "n", "kind", "flag"]].drop(1).set_axis(frame.index)
    )
    assert frame["status"].tolist() == ["observed", "observed", "failed", "observed"]
    assert frame["reason"].tolist() == ["", "", "the value is inf", ""]
    assert study.result.values.tolist() == [1.0, 3.0, 0.1 + 0.2]
    assert frame["noise"].dropna().tolist() == [0.1, 0.3, 0.5]
    assert frame["fixed"].tolist() == [3] * 4


def test_arrays_and_dicts_say_the_same_as_tables() -> None:
    by_table = make()
    by_dicts = make()
    by_tensor = make()
    frame = FRAME.drop(1)
    by_table.add_data(FRAME, target="score")
    by_dicts.add_data(
        frame[["kind", "flag", "n", "x"]].to_dict("records"), frame["score"].to_numpy()
    )
    by_tensor.add_data(by_table._record.rows.X, torch.tensor(frame["score"].to_numpy()))
    assert timeless(by_dicts).equals(timeless(by_table))
    assert timeless(by_tensor).equals(timeless(by_table))


def test_what_is_no_number_has_failed_for_that_reason(tmp_path: Path) -> None:
    frame = FRAME.astype({"score": object})
    frame.loc[2, "score"] = "crashed"
    study = make()
    study.add_data(write(frame, tmp_path / "past.csv"), target="score")
    assert study.to_dataframe()["reason"][1] == "not a number: 'crashed'"
    assert study.num_observations == 2
    marked = make()
    marks = ["" if score != "crashed" else "-" for score in frame["score"]]
    marked.add_data(write(frame.assign(reason=marks), tmp_path / "marked.csv"), target="score")
    assert marked.to_dataframe()["reason"][1] == "not a number: 'crashed'"


@pytest.mark.parametrize("suffix", ["frame", ".csv", ".parquet", ".xlsx"])
@pytest.mark.parametrize("goal", [{"maximize": True}, {"objectives": {"score": "maximize"}}])
def test_a_row_without_an_outcome_says_nothing_unless_it_says_that_it_failed(
    tmp_path: Path, suffix: str, goal: dict[str, Any]
) -> None:
    if "objectives" in goal:
        goal = {"objectives": {"score": "maximize", "cost": "minimize"}}
    rows = [
        {"x": 0.0, "score": 1.0, "cost": 1.0, "status": "observed", "reason": ""},
        {"x": 0.1, "score": np.nan, "cost": np.nan, "status": "", "reason": ""},
        {"x": 0.2, "score": np.nan, "cost": np.nan, "status": "failed", "reason": ""},
        {"x": 0.3, "score": np.nan, "cost": np.nan, "status": "", "reason": "the flask broke"},
        {"x": 0.4, "score": np.nan, "cost": np.nan, "status": "pending", "reason": ""},
        {"x": 0.5, "score": np.nan, "cost": np.nan, "status": "observed", "reason": ""},
    ]
    data: Any = pd.DataFrame(rows)
    if suffix == ".xlsx":
        data.to_excel(tmp_path / "past.xlsx", index=False)
    if suffix != "frame":
        data = tmp_path / "past.xlsx" if suffix == ".xlsx" else write(data, tmp_path / f"p{suffix}")
    study = Study(Space(x=Float(0.0, 1.0)), **goal)
    study.add_data(data, target=None if "objectives" in goal else "score")
    assert study.num_failed == 2
    assert study._record.rows.X.flatten().tolist() == [0.0, 0.2, 0.3]
    assert study.reasons([0, 2]) == [None, "the flask broke"]


def test_of_a_file_with_gaps_that_has_grown_the_new_rows_are_added(tmp_path: Path) -> None:
    gaps = pd.DataFrame({"x": np.arange(9) / 8, "score": [np.nan, 1, np.nan, np.nan, 4] + [7] * 4})
    gaps.loc[6:7, "score"] = np.nan
    path = tmp_path / "past.csv"
    space = Space(x=Float(0.0, 1.0))
    for num_rows in (1, 2, 3, 4, 4, 5, 7, 8, 9):
        with Study(space, maximize=True, path=tmp_path / "study") as study:
            study.add_data(write(gaps.head(num_rows), path), target="score")
            assert study._record.rows.X[:, 0].tolist() == [
                x for x, score in gaps.head(num_rows).to_numpy() if score == score
            ]
    write(gaps.assign(x=gaps["x"] / 2), path)
    with (
        Study(space, maximize=True, path=tmp_path / "study") as study,
        pytest.raises(ValueError, match="were added before with other content"),
    ):
        study.add_data(path, target="score")


def lines(study: Study) -> list[tuple[Any, ...]]:
    """Return the points of a study, with their outcomes, as rows of a file of both."""
    return [(*point.params.values(), *point.outcomes.values()) for point in study.points()]


def test_results_that_are_filled_in_are_added_once_wherever_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "past.csv"
    space = Space(x=Float(0.0, 100.0))
    steps = (
        ("x,v\n1,\n2,\n2,\n", []),
        ("x,v\n1,\n2,\n2,20\n", [(2.0, 20.0)]),
        ("x,v\n1,10\n2,\n2,20\n", [(2.0, 20.0), (1.0, 10.0)]),
        ("x,v\n1,10\n2,\n2,20\n3,30\n", [(2.0, 20.0), (1.0, 10.0), (3.0, 30.0)]),
        # A replicate with the same result, and then the rows in another order
        ("x,v\n1,10\n2,20\n2,20\n3,30\n", [(2.0, 20.0), (1.0, 10.0), (3.0, 30.0), (2.0, 20.0)]),
        ("x,v\n3,30\n2,20\n2,20\n1,10\n", [(2.0, 20.0), (1.0, 10.0), (3.0, 30.0), (2.0, 20.0)]),
    )
    for text, expected in steps:
        path.write_text(text)
        for _ in range(2):
            with Study(space, maximize=True, path=tmp_path / "study") as study:
                study.add_data(path, target="v")
                assert lines(study) == expected
                assert len(study._record.contents.sources) <= len(expected)


def test_an_outcome_that_is_filled_in_completes_its_point(tmp_path: Path) -> None:
    path = tmp_path / "past.csv"
    space = Space(x=Float(0.0, 100.0))
    objectives = {"a": "maximize", "b": "minimize"}
    path.write_text("x,a,b\n1,10,\n2,,\n2,,5\n3,30,3\n")
    with Study(space, objectives=objectives, path=tmp_path / "study") as study:
        study.add_data(path)
        assert lines(study) == [(1.0, 10.0), (2.0, 5.0), (3.0, 30.0, 3.0)]
    path.write_text("x,a,b\n1,10,1\n2,20,2\n2,,5\n3,30,3\n")
    for _ in range(2):
        with Study(space, objectives=objectives, path=tmp_path / "study") as study:
            study.add_data(path)
            expected = [(1.0, 10.0, 1.0), (2.0, 5.0), (3.0, 30.0, 3.0), (2.0, 20.0, 2.0)]
            assert lines(study) == expected
            assert study.pending.ids == [1]


def test_a_file_that_has_completed_points_is_known_also_when_these_were_corrected() -> None:
    study = Study(Space(x=Float(0.0, 9.0)), objectives={"a": "maximize", "b": "minimize"})
    for b in (math.nan, 2.0):
        study.add_data([{"x": 1.0}], [{"a": 10.0, "b": b}], name="past")
    study.correct(0, {"b": 3.0})
    study.add_data([{"x": 1.0}], [{"a": 10.0, "b": 2.0}], name="past")
    assert [point.outcomes for point in study.points()] == [{"a": 10.0, "b": 3.0}]


@pytest.mark.parametrize("text", ["x,v\n1,10\n2,\n3,30\n4,\n", "x,v\n1,\n2,\n"])
def test_a_file_that_an_older_version_has_added_is_recognised(tmp_path: Path, text: str) -> None:
    path = tmp_path / "past.csv"
    path.write_text(text)
    study = Study(Space(x=Float(0.0, 100.0)), maximize=True)
    history = read_history(study.space, path, target="v")
    digest = history.digest(range(len(history.content[0])))  # also of rows that say nothing
    source = Source("past.csv", digest, 0, len(history.X))
    study._record._write("add_source", source, history.X, history.outcomes, 0)
    before = lines(study)
    study.add_data(path, target="v")
    assert lines(study) == before
    path.write_text(text.replace("2,\n", "2,20\n"))
    for _ in range(2):
        study.add_data(path, target="v")
        assert lines(study) == [*before, (2.0, 20.0)]


def test_a_file_whose_gaps_an_older_version_took_for_failures_may_grow(tmp_path: Path) -> None:
    space = Space(x=Float(0.0, 1.0))
    study = Study(space, maximize=True)
    frame = pd.DataFrame({"x": [0.0, 0.25, 0.5, 1.0], "score": [1.0, np.nan, 2.0, np.nan]})
    study.add_data(frame[["x"]].head(3), frame["score"].head(3).to_numpy(), name="past.csv")
    assert study.num_failed == 1
    for num_rows in (3, 4):
        study.add_data(frame.head(num_rows), target="score", name="past.csv")
        assert len(study.to_dataframe()) == 3
    frame.loc[3, "score"] = 5.0
    study.add_data(frame, target="score", name="past.csv")
    assert study._record.rows.values[[0, 2, 3]].tolist() == [1.0, 2.0, 5.0]


def test_the_same_data_are_not_added_twice(tmp_path: Path) -> None:
    path = write(FRAME, tmp_path / "past.csv")
    with make(tmp_path / "study") as study:
        study.add_data(path, target="score")
    with make(tmp_path / "study") as study:
        study.add_data(path, target="score")
        study.add_data(FRAME, target="score")
        assert len(study.to_dataframe()) == 4


LABORATORY = """\
 Temp [°C] ;Solvent;Ratio;Yield (%);Cost;Note
80,5;MeCN;0,1;71,2;3,5;first
 95 ;DMF;auto;;4;no yield, was spilt
20;"a;b";0,1;n/a; 2,25 ;
"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252"])
def test_a_file_as_a_spreadsheet_of_another_country_writes_it_is_read(
    tmp_path: Path, encoding: str
) -> None:
    space = Space(
        **{"Temp [°C]": Float(20, 120, step=0.5)},
        Solvent=Categorical(["MeCN", "DMF", "a;b"]),
        Ratio=Categorical([0.1, "auto"]),
    )
    objectives = {"Yield (%)": "maximize", "Cost": "minimize"}
    path = tmp_path / "past.csv"
    path.write_bytes(LABORATORY.encode(encoding))
    study = Study(space, objectives=objectives)
    study.add_data(path)
    frame = study.to_dataframe()
    assert frame["Temp [°C]"].tolist() == [80.5, 95.0, 20.0]
    assert frame["Solvent"].tolist() == ["MeCN", "DMF", "a;b"]
    assert frame["Ratio"].tolist() == [0.1, "auto", 0.1]
    assert study.result.outcomes.tolist() == [[71.2, 3.5]]
    assert study.pending.outcomes == [{"Cost": 4.0}, {"Cost": 2.25}]
    path.write_bytes(
        LABORATORY.replace("71,2", "7l,2").replace("4;no", "4 EUR;no").encode(encoding)
    )
    with pytest.raises(ValueError, match="Outcomes must be numbers, got") as error:
        study.add_data(path)
    for fault in (
        "row 2, column `Yield (%)`: not a number: '7l.2'",
        "row 3, column `Cost`: not a number: '4 EUR'",
    ):
        assert fault in str(error.value)


def test_of_a_file_that_has_grown_the_new_rows_are_added(tmp_path: Path) -> None:
    path = tmp_path / "past.csv"
    for num_rows in (2, 4, 4, 5):
        write(FRAME.head(num_rows), path)
        with make(tmp_path / "study") as study:
            study.add_data(path, target="score")
            if num_rows == 2:
                study.correct(0, 0.75)  # which the file does not know
    with make(tmp_path / "study") as study:
        whole = make(None)
        whole.add_data(FRAME, target="score")
        whole.correct(0, 0.75)
        assert timeless(study).equals(timeless(whole))
        write(FRAME.head(3), path)  # has lost rows
        with pytest.raises(ValueError, match="were added before with other content"):
            study.add_data(path, target="score")


def test_a_failed_row_that_has_a_value_is_refused(tmp_path: Path) -> None:
    rows = {"x": [0.0, 0.5], "score": [1.0, 2.5], "status": ["observed", "failed"]}
    path = write(pd.DataFrame(rows), tmp_path / "past.csv")
    with pytest.raises(ValueError, match="Row 3 must have no outcome, or not the status failed"):
        Study(Space(x=Float(0.0, 1.0)), maximize=True).add_data(path, target="score")


@pytest.mark.parametrize(
    "cells",
    [
        pd.to_timedelta([3.0, 4.0], unit="s"),
        pd.to_datetime(["2024-01-01", "2024-01-02"]),
        [1 + 2j, 3.0],
    ],
    ids=["durations", "dates", "complex"],
)
def test_durations_dates_and_complex_numbers_are_no_numbers(cells: Any) -> None:
    study = Study(Space(x=Float(0.0, 1e9)), maximize=True)
    frame = pd.DataFrame({"x": [0.5, 0.25], "score": [1.0, 2.0]})
    with pytest.raises(TypeError, match="'score' must hold numbers, got not a number"):
        study.add_data(frame.assign(score=cells), target="score")
    with pytest.raises(ValueError, match="`x` must be between"):
        study.add_data(frame.assign(x=cells), target="score")


def test_other_data_under_the_same_name_are_refused_with_the_difference(tmp_path: Path) -> None:
    path = write(FRAME, tmp_path / "past.csv")
    with make(tmp_path / "study") as study:
        study.add_data(path, target="score")
    changed = FRAME.copy()
    changed.loc[[2, 4], "x"] = 0.25
    write(pd.concat([changed, changed.tail(1)]), path)
    difference = (
        "2 of 4 rows in the study cannot be found among the 5 given. `x` in row 4 is 0.25, and the"
        " study has 0.3333333333333333. Give"
    )
    with make(tmp_path / "study") as study:
        with pytest.raises(
            ValueError, match=f"'past.csv' were added before with other content: {difference}"
        ):
            study.add_data(path, target="score")
        assert len(study.to_dataframe()) == 4
        study.add_data(path, target="score", name="more")
        assert len(study.to_dataframe()) == 9


def test_the_row_that_has_another_value_is_named_as_the_spreadsheet_counts(tmp_path: Path) -> None:
    path = tmp_path / "past.csv"
    study = Study(Space(x=Float(0.0, 100.0)), maximize=True)
    for text in ("x,v\n1,1\n2,2\n", "x,v\n1,1\n2,2\n3,3\n4,4\n"):
        path.write_text(text)
        study.add_data(path, target="v")
    path.write_text("x,v\n1,1\n2,2\n3,33\n4,4\n5,5\n")
    with pytest.raises(
        ValueError,
        match=r"1 of 4 rows in the study cannot be found among the 5 given. `v.*` in row 4 is 33.0,"
        r" and the study has 3.0. .* Another `name` adds all rows, .* a second time",
    ):
        study.add_data(path, target="v")
    path.write_text("x,v\n1,1\n4,4\n")
    with pytest.raises(ValueError, match="2 of 4 rows in the study .* the 2 given. Give"):
        study.add_data(path, target="v")


def test_a_value_that_was_corrected_in_the_study_is_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "past.csv"
    study = Study(Space(x=Float(0.0, 100.0)), maximize=True)
    path.write_text("x,v\n1,1\n2,2\n3,\n4,4\n")
    study.add_data(path, target="v")
    study.correct(1, 22.0)
    study.add_data(path, target="v")
    path.write_text("x,v\n1,1\n2,2\n3,3\n4,4\n")
    with pytest.raises(
        ValueError, match=r"in row 3 is 2.0, and the study has 22.0 \(corrected since\)"
    ):
        study.add_data(path, target="v")
    path.write_text("x,v\n1,1\n2,22\n3,3\n4,4\n")  # corrected in the file, too
    study.add_data(path, target="v")
    assert lines(study) == [(1.0, 1.0), (2.0, 22.0), (4.0, 4.0), (3.0, 3.0)]


@pytest.mark.parametrize(
    ("change", "options", "error", "message"),
    [
        ({"n": 7}, {}, ValueError, "`n` must be an integer between -5 and 5, got .*7.* in row 4"),
        (
            {"x": np.nan},
            {},
            ValueError,
            "`x` must be between 0.0 and 1.0, got (.*nan.*|'') in row 4",
        ),
        (
            {"kind": "2"},
            {},
            ValueError,
            "`kind` must be one of '1', 'None', 'c,d', got '2' in row 4",
        ),
        ({}, {"target": "loss"}, ValueError, "The data must have the column 'loss' once, got"),
        (
            {},
            {"target": "comment"},
            TypeError,
            "The column 'comment' must hold numbers, got not a number: 'first'",
        ),
        ({}, {"target": "x"}, ValueError, "must not name a parameter, got x"),
        ({}, {"target": None}, ValueError, "Either `y` or `target`"),
        (
            {"variance": 0.0},
            {"noise": "variance"},
            ValueError,
            "`noise` must be variances above 0, got 0.0",
        ),
        ({}, {"y": [1.0] * 4, "target": None}, ValueError, "the same length, got 5 and 4"),
    ],
)
def test_bad_tables_are_refused_whole(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    options: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    monkeypatch.setattr(tables, "table_frames", partial(tables.table_frames, rows_at_once=2))
    frame = FRAME.copy()
    for name, value in change.items():
        frame.loc[4, name] = value
    study = make(tmp_path / "study")
    in_csv = message.replace("in row 4", "in row 6")  # as a spreadsheet counts
    for name, said in (("past.csv", in_csv), ("past.parquet", message)):
        with pytest.raises(error, match=said):
            study.add_data(write(frame, tmp_path / name), **{"target": "score"} | options)
    assert len(study.to_dataframe()) == 0
    study.close()
    assert len(make(tmp_path / "study").to_dataframe()) == 0


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "past.csv.gz").touch()
    with pytest.raises(ValueError, match=r"must end in .parquet, .csv or .xlsx, got past.csv.gz"):
        make().add_data(tmp_path / "past.csv.gz", target="score")
    for absent in ("past.csv", "past.parquet"):
        with pytest.raises(
            FileNotFoundError, match=rf"`X` must be .* got '.*{absent}'.* Check the"
        ):
            make().add_data(tmp_path / absent, target="score")


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None
)
@given(
    content=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)),
    suffix=st.sampled_from([".csv", ".parquet"]),
)
def test_any_bytes_are_data_or_a_clear_error(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"past{suffix}"
    head = b"x,n,kind,flag,score\n" if suffix == ".csv" else b"PAR1"
    for written in (content, head + content):
        path.write_bytes(written)
        study = make()
        try:
            study.add_data(path, target="score")
        except (ValueError, TypeError) as error:
            assert str(error)
        else:
            assert SPACE.check(study._record.rows.X) is not None


STEPS = Space(
    temp=Float(20.0, 120.0, step=0.5), count=Int(0, 100, step=5), kind=Categorical(["a", "b"])
)


def test_what_was_observed_between_steps_is_data_as_it_was(tmp_path: Path) -> None:
    frame = pd.DataFrame({"temp": [83.7, 20.5], "count": [7, 10], "kind": ["b", "a"]})
    tensor = torch.tensor([[83.7, 7.0, 1.0], [20.5, 10.0, 0.0]], dtype=torch.float64)
    frame.to_csv(tmp_path / "past.csv", index=False)
    for data in (frame.to_dict("records"), tensor, frame, tmp_path / "past.csv"):
        study = Study(STEPS, maximize=True, seed=0)
        study.add_data(data, [2.0, 1.0])
        assert study.result.best_params == {"temp": 83.7, "count": 7, "kind": "b"}
    assert study.predict({"temp": 83.7, "count": 7, "kind": "b"})[0].isfinite()
    for params in study.ask(12).params:  # steps bound what is asked for
        assert params["temp"] * 2 == round(params["temp"] * 2)
        assert params["count"] % 5 == 0
    for wrong in ({"temp": 120.5, "count": 5}, {"temp": 50.0, "count": 7.5}):
        with pytest.raises(ValueError, match="must be"):
            study.add_data([wrong | {"kind": "a"}], [1.0])
    with pytest.raises(ValueError, match="in steps of 0.5, got 83.7"):
        study.enqueue({"temp": 83.7, "count": 5, "kind": "a"})
