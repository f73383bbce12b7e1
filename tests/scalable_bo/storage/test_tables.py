"""Tables round-trip: points, values and reasons of failures are read back as they were written,
whatever the names and the choices are.
"""

import math
from itertools import count
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalable_bo.space.cell_texts import FORMULA_STARTS, cell_texts, guarded, unguarded
from scalable_bo.space.space import Categorical, Float, Int, Space
from scalable_bo.storage.pools import Pool
from scalable_bo.storage.tables import write_table
from scalable_bo.study.study import Study
from tests.scalable_bo.strategies import kinds, points_of

texts = st.builds(
    str.__add__,
    st.sampled_from(["", "'", "''", "[", '"', *FORMULA_STARTS]),
    st.text(max_size=3) | st.sampled_from(["1", "0.1", "None", "true", "null", "\r\n", "a\0b"]),
)
numbers = st.integers(-3, 3) | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
choices = st.lists(
    st.none() | st.booleans() | numbers | texts | numbers.map(str),
    min_size=2,
    max_size=5,
    unique=True,
)
names = texts | st.sampled_from(
    ["id", "value", "status", "reason", "noise", "ask", "told", "x", "x_"]
)
MIXED = [
    ["scale", "auto", 0.1],
    [True, False, "auto"],
    [True, None],
    ["-1", "+1", "=A1", "@b", "'-1"],
    [None, ""],
    [None, "", "null", '""'],
    [1, "1"],
    [1, "1", "'1", "1.0"],
    [-1, "-1", "'-1"],
    [True, "True", "true"],
    [2**60 + 1, 0.5],
    [2**70, -1],
    [16, 32, None],
    [5e-324, 1.7976931348623157e308, 0.1],
]


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    """Return a space with choices of mixed kinds, and a parameter that is there for one of them."""
    params: dict[str, Any] = draw(
        st.dictionaries(names, kinds | choices.map(Categorical) | texts, max_size=4)
    )
    first, second = draw(st.lists(names.filter(lambda name: name not in params), min_size=2,
                                  max_size=2, unique=True))  # fmt: skip
    found = draw(choices)
    params[first] = Categorical(found)
    condition = {first: draw(st.sampled_from(found))}
    params[second] = draw(
        st.just(Float(-1.0, 1.0, active_if=condition))
        | st.just(Int(2, 5, active_if=condition))
        | choices.map(lambda some: Categorical(some, active_if=condition))
    )
    return Space(**params)


def answered(space: Space, points: torch.Tensor, told: list[Any], **goal: Any) -> Study:
    """Return a study of points that were told values or reasons for their failure, or nothing."""
    study = Study(space, **goal)
    study.enqueue(space.to_dicts(space.unnormalize(points)))
    batch = study.ask(len(points))
    for number, value in zip(batch.ids, told, strict=True):
        if isinstance(value, str):
            failed = math.nan if not study.outcomes else (math.nan,) * len(study.outcomes)
            study.tell([number], [failed], reasons={number: value})
        elif value is not None:
            study.tell([number], [value])
    return study


def again(study: Study, path: Path, **options: Any) -> Study:
    """Return a study of what another one has written."""
    write_table(study.to_dataframe(), path, path.suffix, study.space, study.outcomes)
    other = Study(study.space, maximize=True) if not study.outcomes else Study(study.space, **GOAL)
    other.add_data(path, **options)
    return other


GOAL: dict[str, Any] = {
    "objectives": {"value": "minimize", "noise": "maximize"},
    "outcome_constraints": {"=status": (None, 1.0), "reason": (0.0, None)},
}
values = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("several", "num_spaces"),
    [
        (False, 25),
        (True, 10),
        *(pytest.param(some, 200, marks=pytest.mark.slow) for some in (False, True)),
    ],
)
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".xlsx"])
def test_any_rows_of_one_or_several_outcomes_come_back_from_a_file(
    tmp_path: Path, suffix: str, several: bool, num_spaces: int
) -> None:
    value = st.tuples(values, values, values, values) if several else values

    @settings(max_examples=num_spaces, deadline=None)
    @given(data=st.data())
    def come_back(data: st.DataObject) -> None:
        space = data.draw(spaces())
        points = data.draw(points_of(space))
        n = len(points)
        told = data.draw(st.lists(value | texts.filter(bool) | st.none(), min_size=n, max_size=n))
        study = answered(space, points, told, **(GOAL if several else {"maximize": True}))
        taken = space.params | space.fixed
        column = next(name for i in count() if (name := "value" + "_" * i) not in taken)
        target = None if several else column
        assert_same(again(study, tmp_path / f"rows{suffix}", target=target), study)

    come_back()


def assert_same(found: Study, study: Study) -> None:
    """Require the rows of a study, without the pending ones."""
    rows = study._record.rows
    kept = rows.told.nonzero().flatten().tolist()
    read = found._record.rows
    assert bits(read.X) == bits(rows.X[kept])
    assert bits(read.values) == bits(rows.values[kept])
    m = max(1, len(study.outcomes))
    assert bits(read.outcomes(m)) == bits(rows.outcomes(m)[kept])
    assert read.reasons == {
        new: rows.reasons[old] for new, old in enumerate(kept) if old in rows.reasons
    }


def bits(tensor: torch.Tensor) -> list[Any]:
    return tensor.nan_to_num(-math.inf).contiguous().view(torch.int64).tolist()


@pytest.mark.parametrize("some", MIXED, ids=str)
def test_choices_of_every_kind_come_back(tmp_path: Path, some: list[Any]) -> None:
    space = Space(**{"-x": Categorical(some)})
    n = len(some)
    told = [float(number) for number in range(n)]
    study = Study(space, maximize=True)
    study.add_data([{"-x": choice} for choice in some], told)
    by_frame = Study(space, maximize=True)
    by_frame.add_data(study.to_dataframe(), target="value")
    assert_same(by_frame, study)
    for file in (tmp_path / "rows.csv", tmp_path / "rows.parquet"):
        assert_same(again(study, file, target="value"), study)
        assert [labels.tolist() for _, labels in Pool(space, file)] == [
            [[float(row), float(row)] for row in range(n)]
        ]


@given(some=choices)
def test_no_two_choices_have_the_same_text(some: list[Any]) -> None:
    found = cell_texts(some)
    assert list(found) == some
    assert len(set(found.values())) == len(some)


@given(text=texts)
def test_no_text_is_a_formula_and_all_are_known_again(text: str) -> None:
    assert not guarded(text).startswith(FORMULA_STARTS)
    assert unguarded(guarded(text)) == text


@pytest.mark.parametrize(
    ("some", "cells", "expected"),
    [
        ([True, False], ["TRUE", "false", "True"], [0, 1, 0]),
        ([1, 0.5, "auto"], ["1.0", "0.50", "auto"], [0, 1, 2]),
        ([16, None], ["16", "", "1.6e1"], [0, 1, 0]),
        (["-a", "=b"], ["-a", "'=b", "'-a"], [0, 1, 0]),
        (["01", "1"], ["01", "1", "1"], [0, 1, 1]),
        ([None, ""], ["null", '""', ""], [0, 1, 1]),
        (["'-a", "b"], ["'-a", "''-a", "b"], [0, 0, 1]),
    ],
)
def test_cells_as_people_programs_and_older_versions_write_them_are_read(
    tmp_path: Path, some: list[Any], cells: list[str], expected: list[int]
) -> None:
    space = Space(**{"+x": Categorical(some), "y": Float(0, 1)})
    for heading in ("+x", "'+x"):
        frame = pd.DataFrame({heading: cells, "y": 0.5, "score": 1.0})
        frame.to_csv(tmp_path / "rows.csv", index=False)
        study = Study(space, maximize=True)
        study.add_data(tmp_path / "rows.csv", target="score")
        assert study._record.rows.X[:, 0].tolist() == expected


def test_long_reasons_of_a_file_take_no_more_memory_than_they_do_in_it(tmp_path: Path) -> None:
    study = Study(Space(x=Float(0, 1)), maximize=True)
    batch = study.ask(2)
    study.tell(batch.ids, [math.nan] * 2, reasons=dict.fromkeys(batch.ids, "ü" * 5000))
    found = again(study, tmp_path / "rows.parquet", target="value")
    assert found.reasons([0, 1]) == ["ü" * 5000] * 2


def test_the_same_export_is_not_added_twice_and_other_reasons_are_the_same_data(
    tmp_path: Path,
) -> None:
    study = answered(
        Space(x=Float(0, 1)), torch.rand(3, 1), [1.0, "it rained", None], maximize=True
    )
    path = tmp_path / "rows.csv"
    found = again(study, path, target="value")
    found.add_data(path, target="value")
    text = path.read_text()
    assert "it rained" in text
    path.write_text(text.replace("it rained", "it snowed"))
    found.add_data(path, target="value")
    assert found.reasons([1]) == ["it rained"]
    assert len(found.to_dataframe()) == 2
