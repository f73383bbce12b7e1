"""Studies that were written before spaces had a schema of their own still open, and go on.

``stored/`` holds two folders of version 2, whose settings are texts: ``mixed`` with every kind of
parameter, constraints, failures, added data, pending points and a checkpoint, and ``box`` with
known variances; and what their rows were then.
"""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from acquisition import ParallelThompsonSampling
from scalable_bo.report.snapshot import read_snapshot, to_frame
from scalable_bo.space.space import Categorical, Float, Int, LinearConstraint, Space
from scalable_bo.storage.legacy import read_texts
from scalable_bo.study.study import Study

STORED = Path(__file__).parent / "stored"
BOUNDS = torch.tensor([[-5.0, 0.0], [10.0, 15.0]])
QUICK = partial(
    ParallelThompsonSampling, num_candidates=50, num_rounds=2, num_starts=2, num_steps=5
)


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


def test_an_enumeration_that_was_kept_as_text_is_read() -> None:
    texts = {"parameter `k`": "Categorical(choices=(<Colour.RED: 'red'>, 'b', np.str_('c')))"}
    params = read_texts({**texts, "direction": "maximize"})["space"]["parameters"]
    assert params == {"k": {"type": "categorical", "choices": ["red", "b", "c"]}}
