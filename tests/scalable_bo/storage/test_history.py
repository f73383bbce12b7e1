"""Past evaluations: arrays, dicts and tables say the same, bad ones are refused whole,
and none is added twice.
"""

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
    monkeypatch.setattr(tables, "ROWS_AT_ONCE", rows_at_once)
    data = FRAME if suffix == "frame" else write(FRAME, tmp_path / f"past{suffix}")
    study = make()
    study.add_data(data, target="score", noise="variance")
    frame = study.to_dataframe()
    assert frame[["x", "n", "kind", "flag"]].equals(
        FRAME[["x", "n", "kind", "flag"]].set_axis(frame.index)
    )
    assert frame["status"].tolist() == ["observed", "failed", "observed", "failed", "observed"]
    assert frame["reason"].tolist() == ["", "the value is nan", "", "the value is inf", ""]
    assert study.result.values.tolist() == [1.0, 3.0, 0.1 + 0.2]
    assert frame["noise"].dropna().tolist() == [0.1, 0.3, 0.5]
    assert frame["fixed"].tolist() == [3] * 5


def test_arrays_and_dicts_say_the_same_as_tables() -> None:
    by_table = make()
    by_dicts = make()
    by_tensor = make()
    by_table.add_data(FRAME, target="score")
    by_dicts.add_data(
        FRAME[["kind", "flag", "n", "x"]].to_dict("records"), FRAME["score"].to_numpy()
    )
    by_tensor.add_data(by_table._record.rows.X, torch.tensor(FRAME["score"].to_numpy()))
    assert timeless(by_dicts).equals(timeless(by_table))
    assert timeless(by_tensor).equals(timeless(by_table))


def test_what_is_no_number_has_failed_for_that_reason(tmp_path: Path) -> None:
    frame = FRAME.astype({"score": object})
    frame.loc[2, "score"] = "crashed"
    study = make()
    study.add_data(write(frame, tmp_path / "past.csv"), target="score")
    assert study.to_dataframe()["reason"][2] == "not a number: 'crashed'"
    assert study.num_observations == 2


def test_the_same_data_are_not_added_twice(tmp_path: Path) -> None:
    path = write(FRAME, tmp_path / "past.csv")
    with make(tmp_path / "study") as study:
        study.add_data(path, target="score")
    with make(tmp_path / "study") as study:
        study.add_data(path, target="score")
        study.add_data(FRAME, target="score")
        assert len(study.to_dataframe()) == 5


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
                study.correct(1, 0.75)  # which the file does not know
    with make(tmp_path / "study") as study:
        whole = make(None)
        whole.add_data(FRAME, target="score")
        whole.correct(1, 0.75)
        assert timeless(study).equals(timeless(whole))
        write(FRAME.head(3), path)  # has lost rows
        with pytest.raises(ValueError, match="were added before with other content"):
            study.add_data(path, target="score")
        write(FRAME.iloc[::-1], path)
        with pytest.raises(ValueError, match="were added before with other content"):
            study.add_data(path, target="score")


def test_other_data_under_the_same_name_are_refused_with_the_difference(tmp_path: Path) -> None:
    path = write(FRAME, tmp_path / "past.csv")
    with make(tmp_path / "study") as study:
        study.add_data(path, target="score")
    changed = FRAME.copy()
    changed.loc[[2, 4], "x"] = 0.25
    write(pd.concat([changed, changed.tail(1)]), path)
    difference = (
        "  rows: stored 5, given 6\n  x in row 2: stored 0.333333, given 0.25 \\(2 rows"
        " differ\\)\nUse"
    )
    with make(tmp_path / "study") as study:
        with pytest.raises(
            ValueError, match=f"'past.csv' were added before with other content:\n{difference}"
        ):
            study.add_data(path, target="score")
        assert len(study.to_dataframe()) == 5
        study.add_data(path, target="score", name="more")
        assert len(study.to_dataframe()) == 11


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
        ({}, {"target": "loss"}, ValueError, "The data must have the column 'loss', got"),
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
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_bad_tables_are_refused_whole(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    suffix: str,
    change: dict[str, Any],
    options: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    monkeypatch.setattr(tables, "ROWS_AT_ONCE", 2)
    frame = FRAME.copy()
    for name, value in change.items():
        frame.loc[4, name] = value
    study = make(tmp_path / "study")
    if suffix == ".csv":  # as a spreadsheet counts
        message = message.replace("in row 4", "in row 6")
    with pytest.raises(error, match=message):
        study.add_data(write(frame, tmp_path / f"past{suffix}"), **{"target": "score"} | options)
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


def test_a_file_that_does_not_fit_in_memory_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(FRAME, tmp_path / "past.parquet")
    monkeypatch.setattr("surrogates.memory.available", lambda device: 100)
    with pytest.raises(MemoryError, match="Reading past.parquet needs"):
        make().add_data(path, target="score")


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None
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


@pytest.mark.parametrize("form", ["dicts", "tensor", "frame", "file"])
def test_what_was_observed_between_steps_is_data_as_it_was(tmp_path: Path, form: str) -> None:
    frame = pd.DataFrame({"temp": [83.7, 20.5], "count": [7, 10], "kind": ["b", "a"]})
    study = Study(STEPS, maximize=True, seed=0)
    given: dict[str, Any] = {
        "dicts": frame.to_dict("records"),
        "tensor": torch.tensor([[83.7, 7.0, 1.0], [20.5, 10.0, 0.0]], dtype=torch.float64),
        "frame": frame,
        "file": tmp_path / "past.csv",
    }
    frame.to_csv(tmp_path / "past.csv", index=False)
    study.add_data(given[form], [2.0, 1.0])
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
