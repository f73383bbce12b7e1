"""Studies that were written by older versions still open, and go on.

``stored/`` holds two folders of version 2, whose settings are texts: ``mixed`` with every kind of
parameter, constraints, failures, added data, pending points and a checkpoint, and ``box`` with
known variances; and what their rows were then. Of version 9, the last with a table for every kind
of row, it holds ``nine``, with all kinds of them, and ``nine_several``, of several outcomes.
"""

import math
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from scalable_bo.report.snapshot import to_frame
from scalable_bo.space.space import Categorical, Float, Int, LinearConstraint, Space
from scalable_bo.storage.legacy import read_texts
from scalable_bo.storage.storage import MemoryStorage
from scalable_bo.study.answers import read_snapshot
from scalable_bo.study.study import Study
from tests.quick import QUICK
from tests.scalable_bo.frames import timeless

STORED = Path(__file__).parent / "stored"
BOUNDS = torch.tensor([[-5.0, 0.0], [10.0, 15.0]])


def fits(params: dict[str, Any]) -> bool:
    return params["width"] <= 48 or params["kind"] != "wide"


SPACE = Space(
    LinearConstraint({"x": 1.0, "y": 0.5}, at_least=-1.5, at_most=2.5),
    fits,
    x=Float(-2.0, 2.0),
    rate=Float(1e-4, 1.0, log=True),
    epochs=10,
    width=Int(1, 64, log=True),
    y=Float(0, 1.0 / 3.0),
    kind=Categorical(["wide", "deep", True, 3, 0.1, np.float64(0.7)]),
    name="a `quoted` 'name' ≤ 1",
    share=np.float64(0.25),
    flag=False,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(STORED, tmp_path / "stored"))


def expected(name: str) -> str:
    return (STORED / f"{name}.csv").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["mixed", "box"])
def test_a_stored_study_is_read_to_the_last_bit_without_its_program(
    folder: Path, name: str
) -> None:
    snapshot = read_snapshot(folder / name)
    assert to_frame(snapshot.space, snapshot.rows).to_csv() == expected(name)


def test_a_stored_mixed_study_goes_on(folder: Path) -> None:
    options: dict[str, Any] = {"maximize": True, "seed": 5, "num_initial": 6, "sampler": QUICK}
    for num_asks in (5, 6):
        with Study(SPACE, path=folder / "mixed", **options) as study:
            rows = study.to_dataframe()
            assert "".join(rows.to_csv().splitlines(True)[:18]) == expected("mixed")
            assert study.snapshot().beliefs
            batch = study.ask(2)
            assert study.num_asks == num_asks
            assert batch.ids == [len(rows), len(rows) + 1]
            assert SPACE.feasible(batch.X).all()
            study.tell(batch.ids, [0.5, -0.5])
    with pytest.raises(ValueError, match="seed: stored 5, given 4"):
        Study(SPACE, path=folder / "mixed", **options | {"seed": 4})


def test_a_stored_design_goes_on_to_the_points_that_it_would_have_had(folder: Path) -> None:
    never_stored = Study(BOUNDS, maximize=False, seed=2)
    never_stored.ask(4)
    with Study(BOUNDS, maximize=False, seed=2, path=folder / "box") as study:
        assert study.pending.ids == [1, 3]
        assert torch.equal(study.ask(2).X, never_stored.ask(2).X)


def test_a_stored_study_is_opened_without_its_space_once_that_is_kept_whole(folder: Path) -> None:
    with Study.open(folder / "box") as study:
        assert study.to_dataframe().to_csv() == expected("box")
        assert (study.maximize, study.seed) == (False, 2)
        assert study._record.settings["strategy"] == "thompson"  # all that there was then
        assert torch.equal(study.space.bounds, BOUNDS.double())
    with pytest.raises(
        ValueError, match="kept the constraint '-1.5 ≤ 1 · x .* as text alone. Open it once by"
    ):
        Study.open(folder / "mixed")
    Study(SPACE, maximize=True, seed=5, path=folder / "mixed").close()
    with pytest.raises(ValueError, match=r"has the function .*:fits.* Give `functions=\[fits\]`"):
        Study.open(folder / "mixed")
    with Study.open(folder / "mixed", functions=[fits], num_initial=6, sampler=QUICK) as study:
        assert "".join(study.to_dataframe().to_csv()) == expected("mixed")
        assert study.space.to_dict() == SPACE.to_dict()
        assert study.space.constraints[1] is fits
        assert study.num_initial == 6


def test_other_constraints_than_those_that_are_kept_as_text_are_refused(folder: Path) -> None:
    other = LinearConstraint({"x": 1.0, "y": 0.6}, at_least=-1.5, at_most=2.5)
    space = Space(other, fits, **SPACE.params, **SPACE.fixed)
    with pytest.raises(
        ValueError, match="constraint 1: stored -1.5 ≤ .*0.5 · y ≤ 2.5, given .*0.6 · y"
    ):
        Study(space, maximize=True, seed=5, path=folder / "mixed")


def test_a_study_of_before_times_were_kept_goes_on_with_them(folder: Path) -> None:
    with Study.open(folder / "ten", num_initial=10_000) as study:
        assert len(study._record.contents.changes) == 2
        study.tell([12], [1.0])
        study.ask(1)
    with Study.open(folder / "ten", num_initial=10_000) as study:
        frame = study.to_dataframe()
    assert frame["asked"].notna().tolist() == [False] * 13 + [True]
    assert frame["told"].notna().tolist() == [False] * 12 + [True, False]
    assert frame["seconds"].isna().all()


SPACE_OF_NINE = Space(x=Float(-2.0, 2.0), width=Int(1, 64, log=True), kind=Categorical(["a", "b"]))


def fill(study: Study) -> None:
    """Do what was done to ``nine``."""
    nan = math.nan
    past = [{"x": 0.5, "width": 3, "kind": "b"}, {"x": 0.25, "width": 9, "kind": "a"}]
    study.add_data(past, [1.0, nan], name="old")
    ids = study.ask(6).ids
    study.tell(ids, [0.5, nan, "no", 2.0, -1 / 3, 4.0], reasons={ids[1]: "burnt"})
    study.retry([ids[2]])
    study.enqueue(
        [
            {"x": 0.125, "width": 5, "kind": "a"},
            {"x": 1.0, "width": 64, "kind": "b"},
            {"x": 1.5, "width": 1, "kind": "b"},
        ]
    )
    study.ask(2)
    study.correct(ids[0], 0.75, why="a typo")
    study.withdraw([ids[3]], why="mixed up")
    study.tell([ids[2]], [1e-300])


def fill_several(study: Study) -> None:
    """Do what was done to ``nine_several``."""
    ids = study.ask(5).ids
    study.tell(ids[:4], [(1.0, 2.0), {"gain": 3.0}, {"cost": 1.5}, math.nan])
    study.tell([ids[2]], [{"gain": 2.5}])
    study.ask(1)


@pytest.mark.parametrize(
    ("name", "act", "goal"),
    [
        ("nine", fill, {"maximize": True}),
        ("nine_several", fill_several, {"objectives": {"cost": "minimize", "gain": "maximize"}}),
    ],
)
def test_a_study_of_the_last_version_with_tables_goes_on_as_one_that_never_was_stored(
    folder: Path, name: str, act: Callable[[Study], None], goal: dict[str, Any]
) -> None:
    quick: dict[str, Any] = {"strategy": "thompson", "sampler": QUICK}
    options: dict[str, Any] = {"seed": 4, "num_initial": 10_000} | goal | quick
    storage = MemoryStorage()
    act(never_stored := Study(SPACE_OF_NINE, storage=storage, **options))
    before = (folder / name / "study.sqlite").read_bytes()
    (folder / name / "writes").write_text("0000000000000000009 00000000\n")
    snapshot = read_snapshot(folder / name)
    assert snapshot.rows.observed == never_stored._record.rows.observed
    assert (folder / name / "study.sqlite").read_bytes() == before
    assert {path.name for path in (folder / name).iterdir()} == {"study.sqlite", "writes"}
    for num_initial in (10_000, 3):
        options["num_initial"] = num_initial
        never_stored = Study(SPACE_OF_NINE, storage=storage, **options)
        with Study.open(folder / name, num_initial=num_initial, **quick) as study:
            pd.testing.assert_frame_equal(timeless(study), timeless(never_stored))
            assert study._record.asks == never_stored._record.asks
            assert [replace(line, time="") for line in study.changes] == [
                replace(line, time="") for line in never_stored.changes
            ]
            assert study.pending.outcomes == never_stored.pending.outcomes
            assert torch.equal(study.ask(3).X, never_stored.ask(3).X)
    assert not (folder / name / "writes").exists()
    kept = sqlite3.connect(folder / name / "version-9.sqlite")
    assert kept.execute("SELECT count(*) FROM points").fetchone() == (len(snapshot.rows),)
    kept.close()


def test_an_enumeration_that_was_kept_as_text_is_read() -> None:
    texts = {"parameter `k`": "Categorical(choices=(<Colour.RED: 'red'>, 'b', np.str_('c')))"}
    params = read_texts({**texts, "direction": "maximize"})["space"]["parameters"]
    assert params == {"k": {"type": "categorical", "choices": ["red", "b", "c"]}}
