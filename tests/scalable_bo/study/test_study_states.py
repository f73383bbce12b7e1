"""Any sequence of calls and restarts leaves a study in the state that a list of rows has."""

import math
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scalable_bo.space.space import Float, Int, Space
from scalable_bo.study.study import Study
from tests import problems

SPACE = Space(x=Float(-1.0, 2.0), n=Int(1, 1000))
VALUES = st.one_of(st.floats(-1e9, 1e9), st.sampled_from([math.nan, math.inf, "broken", None]))


@dataclass
class Row:
    point: tuple[float, ...]
    ask: int
    value: Any = None  # as told
    order: int | None = None

    @property
    def status(self) -> str:
        if self.order is None:
            return "pending"
        return (
            "observed" if isinstance(self.value, float) and math.isfinite(self.value) else "failed"
        )


class StudyAsRows(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.rows: list[Row] = []
        self.num_asks = self.num_told = 0
        self.added: list[tuple[torch.Tensor, list[float]]] = []
        self.open()

    def open(self) -> None:
        self.study = Study(SPACE, maximize=False, seed=5, path=self.folder, num_initial=10_000)

    def teardown(self) -> None:
        self.study.close()
        shutil.rmtree(self.folder)

    def record(self, row: Row, value: Any) -> None:
        row.value = value
        row.order = self.num_told
        self.num_told += 1

    @rule(q=st.integers(1, 4))
    def ask(self, q: int) -> None:
        batch = self.study.ask(q)
        self.num_asks += 1
        assert batch.ids == list(range(len(self.rows), len(self.rows) + q))
        known = {row.point for row in self.rows if row.status != "observed"}
        for point in map(tuple, batch.X.tolist()):
            assert point not in known
            known.add(point)
            self.rows.append(Row(point, self.num_asks))

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def tell(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(self.pending), min_size=1, unique=True))
        values = [data.draw(VALUES) for _ in ids]
        self.study.tell(ids, values)
        for number, value in zip(ids, values, strict=True):
            self.record(self.rows[number], value)

    @precondition(lambda self: self.num_told)
    @rule(data=st.data())
    def tell_again(self, data: st.DataObject) -> None:
        number = data.draw(
            st.sampled_from(
                [number for number, row in enumerate(self.rows) if row.order is not None]
            )
        )
        self.study.tell([number], [self.rows[number].value])
        with pytest.raises(ValueError, match="must not have been told before with another value"):
            self.study.tell([number, *self.pending], [123.25] * (1 + len(self.pending)))

    @rule(
        count=st.integers(1, 5),
        seed=st.integers(0, 2**30),
        values=st.lists(st.floats(-1e3, 1e3), min_size=5, max_size=5),
    )
    def add_data(self, count: int, seed: int, values: list[float]) -> None:
        U = problems.uniform(count, 2, seed=seed)
        X = SPACE.unnormalize(U)
        y = values[:count]
        self.study.add_data(X, y)
        if any(
            torch.equal(X, before) and y == values_before for before, values_before in self.added
        ):
            return
        self.added.append((X, y))
        for point, value in zip(map(tuple, X.tolist()), y, strict=True):
            self.rows.append(Row(point, 0))
            self.record(self.rows[-1], value)

    @precondition(lambda self: self.added)
    @rule(data=st.data())
    def add_the_same_again(self, data: st.DataObject) -> None:
        self.study.add_data(*data.draw(st.sampled_from(self.added)))

    @rule()
    def reopen(self) -> None:
        self.study.close()
        self.open()

    @property
    def pending(self) -> list[int]:
        return [number for number, row in enumerate(self.rows) if row.order is None]

    @invariant()
    def states_agree(self) -> None:
        frame = self.study.to_dataframe()
        assert list(zip(frame["x"], frame["n"], strict=True)) == [row.point for row in self.rows]
        assert frame["ask"].tolist() == [row.ask for row in self.rows]
        assert frame["status"].tolist() == [row.status for row in self.rows]
        assert (frame["reason"] != "").tolist() == [row.status == "failed" for row in self.rows]
        assert self.study.pending.ids == self.pending
        observed = sorted(
            (row for row in self.rows if row.status == "observed"), key=lambda row: row.order or 0
        )
        assert self.study.num_observations == len(observed)
        if observed:
            result = self.study.result
            assert result.values.tolist() == [row.value for row in observed]
            assert list(map(tuple, result.X.tolist())) == [row.point for row in observed]
            assert result.best_value == min(row.value for row in observed)


StudyAsRows.TestCase.settings = settings(
    max_examples=15,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
test_any_sequence_of_calls_leaves_the_rows_that_a_list_has = StudyAsRows.TestCase
