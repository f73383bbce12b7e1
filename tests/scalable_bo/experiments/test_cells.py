"""Cells that fail or are interrupted between their steps run again, and those of one source share
their data.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from scalable_bo.experiments.cells import Cell, Status, run_cell, run_cells
from scalable_bo.experiments.records import Record


@dataclass(frozen=True)
class Counting(Cell[int]):
    """Counts from its data on; fails after so many steps, if at all."""

    experiment: ClassVar[str] = "counting"
    steps: ClassVar[str | None] = "counts"
    number: int
    fail_after: int | None = None

    @property
    def name(self) -> str:
        return f"counting_{self.number}"

    def settings(self) -> Record:
        return {"number": self.number}

    @property
    def source(self) -> int:
        return self.number // 10

    def load(self, on_status: Status) -> int:
        on_status(f"loading {self.source}")
        return 100 * self.source

    def run(self, data: int, on_status: Status, state: Path) -> Iterator[Record]:
        counts: list[int] = []
        for step in range(3):
            if step == self.fail_after:
                raise RuntimeError("it failed")
            counts.append(data + step)
            yield {"counts": counts, "complete": step == 2}

    def describe(self, record: Record) -> str:
        return f"{self.name}: {record['counts'][-1]}"


def test_a_record_is_written_after_every_step(tmp_path: Path) -> None:
    for step, (cell, record, kept) in enumerate(run_cells([Counting(7)], tmp_path), 1):
        stored = json.loads((tmp_path / "counting_7.json").read_text())
        assert stored["counts"] == record["counts"] == list(range(step))
        assert stored["complete"] == (step == 3)
        assert (cell, kept) == (Counting(7), False)


def test_a_cell_that_failed_runs_again_and_the_others_are_kept(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="it failed"):
        list(run_cells([Counting(1), Counting(2, fail_after=2)], tmp_path))
    assert not json.loads((tmp_path / "counting_2.json").read_text())["complete"]
    again = list(run_cells([Counting(1), Counting(2)], tmp_path))
    assert [(step.cell.name, step.kept) for step in again] == [
        ("counting_1", True),
        *[("counting_2", False)] * 3,
    ]
    assert all(step.kept for step in run_cells([Counting(1), Counting(2)], tmp_path))
    assert not any(step.kept for step in run_cells([Counting(1)], tmp_path, rerun=True))


@pytest.mark.parametrize("content", ["", "{", '{"settings": {}}', "[]"])
def test_a_file_that_is_no_record_of_the_cell_is_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / "counting_7.json").write_text(content)
    assert [step.kept for step in run_cells([Counting(7)], tmp_path)] == [False] * 3
    assert json.loads((tmp_path / "counting_7.json").read_text())["complete"]


def test_cells_of_one_source_next_to_each_other_share_their_data(tmp_path: Path) -> None:
    said: list[str] = []
    cells = [Counting(number) for number in (1, 2, 11, 12, 3)]
    list(run_cells(cells, tmp_path, on_status=said.append))
    assert said == ["loading 0", "loading 1", "loading 0"]


def test_a_cell_alone_is_written_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    steps: list[int] = []
    record = run_cell(Counting(12), on_step=lambda record: steps.append(len(record["counts"])))
    assert steps == [1, 2, 3]
    assert (record["experiment"], record["counts"]) == ("counting", [100, 101, 102])
    assert run_cell(Counting(12), 5)["counts"] == [5, 6, 7]
    assert not list(tmp_path.iterdir())
