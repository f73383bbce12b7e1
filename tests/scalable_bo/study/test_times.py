"""When points are asked for and told, and how long their evaluation takes."""

import math
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from scalable_bo.evaluation.evaluator import Evaluation
from scalable_bo.evaluation.external import Command
from scalable_bo.serving.worker import work
from scalable_bo.space.space import Float, Int, Space
from scalable_bo.storage.tables import write_table
from scalable_bo.study.study import Study
from tests.scalable_bo.serving.served import served

SPACE = Space(x=Float(0.0, 1.0), n=Int(1, 9))
PROGRAM = """
import json, sys, time
for line in sys.stdin:
    point = json.loads(line)
    time.sleep(0.02)
    print(json.dumps({"id": point["id"], "value": point["params"]["x"]}), flush=True)
"""


def make(**options: Any) -> Study:
    return Study(SPACE, maximize=True, **{"seed": 3, "num_initial": 10_000} | options)


def slow(params: dict[str, Any]) -> float:
    time.sleep(0.02)
    if params["n"] == 1:
        raise ValueError("too few")
    return params["x"]


def times(study: Study) -> pd.DataFrame:
    return study.to_dataframe()[["asked", "told", "seconds"]]


def test_a_row_shows_when_it_was_asked_for_and_told_and_how_long_that_took(tmp_path: Path) -> None:
    start = pd.Timestamp.now("UTC").floor("us")
    with make(path=tmp_path) as study:
        study.add_data([{"x": 0.5, "n": 2}], [1.0])
        batch = study.ask(4)
        handed_out = pd.Timestamp.now("UTC")
        time.sleep(0.01)
        study.tell(batch.ids[:3], [1.0, math.nan, 2.0], seconds=[12.5, math.nan, 0.0])
        frame = times(study)
    end = pd.Timestamp.now("UTC")
    assert list(map(str, frame.dtypes)) == ["datetime64[us, UTC]"] * 2 + ["float64"]
    assert frame["asked"].isna().tolist() == [True] + [False] * 4
    assert frame["told"].isna().tolist() == [False] * 4 + [True]
    assert frame["asked"][1:].between(start, handed_out).all()
    assert (frame["told"][1:4] > handed_out).all() and (frame["told"][:4] <= end).all()
    assert frame["seconds"].fillna(-1).tolist() == [-1.0, 12.5, -1.0, 0.0, -1.0]
    with make(path=tmp_path) as study:
        assert times(study).equals(frame)


def test_a_correction_tells_again_and_keeps_how_long_the_evaluation_took() -> None:
    study = make()
    ids = study.ask(3).ids
    study.tell(ids, [1.0, math.nan, 3.0], seconds=[1.0, 2.0, 3.0])
    before = times(study)
    time.sleep(0.01)
    study.correct(ids[0], 1.5)
    study.withdraw([ids[2]])
    assert study.retry([ids[1]]).ids == [ids[1]]
    after = times(study)
    assert (after["told"] > before["told"]).tolist() == [True, False, True]
    assert after["told"].isna().tolist() == [False, True, False]
    assert after["seconds"].fillna(-1).tolist() == [1.0, -1.0, 3.0]
    assert after["asked"].equals(before["asked"])


def test_outcomes_that_come_later_keep_how_long_the_evaluation_took() -> None:
    study = Study(SPACE, objectives={"cost": "minimize", "gain": "maximize"})
    (id,) = study.ask(1).ids
    study.tell([id], [{"cost": 1.0}], seconds=[7.0])
    first = times(study)["told"][id]
    time.sleep(0.01)
    study.tell([id], [{"gain": 1.0}])
    found = times(study).loc[id]
    assert found["told"] > first and found["seconds"] == 7.0


@pytest.mark.parametrize(
    "executor", [None, lambda: ThreadPoolExecutor(2), lambda: ProcessPoolExecutor(2)]
)
def test_a_run_measures_its_evaluations_those_that_fail_among_them(executor: Any) -> None:
    study = make()
    study.optimize(slow, 1, 12, executor=executor)
    frame = study.to_dataframe()
    assert set(frame["status"]) == {"observed", "failed"}
    assert frame["seconds"].between(0.02, 60.0).all()
    waited = (frame["told"] - frame["asked"]).dt.total_seconds()
    assert (waited >= frame["seconds"] - 1e-3).all()


def test_a_run_measures_a_program_and_a_server_keeps_what_a_worker_measures() -> None:
    study = make()
    program = Command([sys.executable, "-c", PROGRAM])
    study.optimize(program, 1, 2)
    program.close()
    assert study.to_dataframe()["seconds"].between(0.02, 60.0).all()
    with served(study, evaluations=5, batch=3) as (_, remote):
        (id,) = remote.ask(1).ids
        remote.tell([id], [0.5], seconds=[4.0])
        seconds = iter([1.5, 2.5])
        values = iter([1.0, math.nan])

        def evaluate(id: int, params: dict[str, Any]) -> Evaluation:
            return Evaluation(id, next(values), "none", seconds=next(seconds))

        assert work(remote, evaluate) == 2
        with pytest.raises(ValueError, match="`seconds` must have one entry for each of the 1"):
            remote.tell([id], [0.5], seconds=[])
    frame = study.to_dataframe()
    assert frame["seconds"][2:].tolist() == [4.0, 1.5, 2.5]
    assert frame["status"][2:].tolist() == ["observed", "observed", "failed"]


@pytest.mark.parametrize("seconds", [[1.0], [-1.0, 1.0], [math.inf, 1.0], 3.0])
def test_seconds_that_are_none_are_refused(seconds: Any) -> None:
    study = make()
    batch = study.ask(2)
    with pytest.raises(ValueError, match="`seconds` must be 2 numbers of at least 0"):
        study.tell(batch, [1.0, 2.0], seconds=seconds)
    with pytest.raises(TypeError, match="`seconds` must be numbers"):
        study.tell(batch, [1.0, 2.0], seconds=["a", "b"])
    assert study.pending.ids == batch.ids


def test_a_time_by_a_clock_that_is_centuries_off_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    study = make()
    batch = study.ask(2)
    study.tell(batch.ids[:1], [1.0])
    monkeypatch.setattr(time, "time", lambda: 2.0**34)
    study.tell(batch.ids[1:], [2.0])
    frame = times(study)
    assert frame["told"].isna().tolist() == [False, True]
    assert frame["asked"].notna().all()


@pytest.mark.parametrize("suffix", [".csv", ".xlsx", ".parquet"])
def test_an_export_has_the_times(tmp_path: Path, suffix: str) -> None:
    study = make()
    batch = study.ask(2)
    study.tell(batch.ids[:1], [1.0], seconds=[2.0])
    path = tmp_path / f"export{suffix}"
    frame = study.to_dataframe()
    write_table(frame.copy(), path, suffix, SPACE)
    read = {".csv": pd.read_csv, ".xlsx": pd.read_excel, ".parquet": pd.read_parquet}[suffix]
    found = read(path)
    for name in ("asked", "told"):
        there = pd.to_datetime(found[name], utc=True)
        assert ((there - frame[name]).abs() <= pd.Timedelta("1ms"))[: 1 + (name == "asked")].all()
    assert pd.isna(found["told"][1])
    assert found["seconds"].fillna(-1).tolist() == [2.0, -1.0]
    other = make()
    other.add_data(path, target="value")
    assert other.num_observations == 1
