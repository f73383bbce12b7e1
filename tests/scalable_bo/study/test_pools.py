"""Studies that ask for points of a pool."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from scalable_bo import Float, Int, Space, Study

SPACE = Space(x=Float(0.0, 3.0), k=Int(1, 20))


def catalogue(num_rows: int = 400) -> pd.DataFrame:
    generator = torch.Generator().manual_seed(0)
    x = 3.0 * torch.rand(num_rows, generator=generator, dtype=torch.float64)
    return pd.DataFrame({"x": x.numpy(), "k": [i % 20 + 1 for i in range(num_rows)]})


def value(params: dict[str, float]) -> float:
    return -((params["x"] - 2.0) ** 2) - 0.01 * (params["k"] - 7) ** 2


def make(**options: Any) -> Study:
    """Return a study by one kernel: a pool is searched in the same way by all."""
    return Study(SPACE, **{"maximize": True, "strategy": "thompson"} | options)


def told(study: Study, rounds: int, pool: pd.DataFrame | None = None) -> Study:
    """Ask for six points and tell their values, so often."""
    for _ in range(rounds):
        batch = study.ask(6, pool=pool)
        study.tell(batch.ids, [value(params) for params in batch.params])
    return study


def test_every_batch_is_of_the_pool_to_the_last_bit_new_and_better_than_chance(
    tmp_path: Path,
) -> None:
    table = catalogue()
    table.to_parquet(tmp_path / "pool.parquet")
    study = make()
    rows: list[int | None] = []
    for _ in range(4):
        batch = study.ask(12, pool=tmp_path / "pool.parquet")
        assert batch.rows is not None
        rows += batch.rows
        stored = table.iloc[batch.rows]
        assert [p["x"] for p in batch.params] == stored["x"].tolist()
        assert [p["k"] for p in batch.params] == stored["k"].tolist()
        study.tell(batch.ids, [value(params) for params in batch.params])
    assert len(set(rows)) == 48
    assert study.last_ask.choice == "thompson: among a pool"
    values = sorted((value(params) for params in table.to_dict("records")), reverse=True)
    assert study.best_value == values[0]


def test_the_same_seed_gives_the_same_rows_from_a_file_and_a_stream() -> None:
    table = catalogue()
    pools = [table, iter([table.iloc[:150], table.iloc[150:]])]
    found = []
    for pool in pools:
        found.append(told(make(seed=3), 2, catalogue(30)).ask(5, pool=pool).rows)
    assert found[0] == found[1]


def test_points_of_the_queue_come_first_and_have_no_row() -> None:
    study = make()
    study.enqueue({"x": 1.0, "k": 3})
    batch = study.ask(3, pool=catalogue(10))
    assert batch.rows is not None
    assert batch.rows[0] is None
    assert None not in batch.rows[1:]
    for pool in (catalogue(10), []):
        study.enqueue({"x": 1.5, "k": 3})
        assert study.ask(1, pool=pool).rows == [None]


def test_a_pool_that_is_used_up_is_refused_and_the_study_goes_on() -> None:
    study = make()
    study.ask(8, pool=catalogue(10))
    with pytest.raises(ValueError, match="must hold q = 3 distinct points .* got 2 among 10 rows"):
        study.ask(3, pool=catalogue(10))
    assert len(study.ask(2, pool=catalogue(10)).ids) == 2


def test_an_interrupt_leaves_the_study_as_it_was() -> None:
    table = SPACE.from_frame(catalogue())
    study = told(make(num_initial=12), 2)

    def stream() -> Iterator[Tensor]:
        yield table[:100]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study.ask(5, pool=stream())
    assert study.num_asks == 2
    assert len(study.pending.ids) == 0
    assert study.ask(5, pool=table).rows == told(make(num_initial=12), 2).ask(5, pool=table).rows


def test_a_study_of_several_outcomes_takes_a_pool() -> None:
    study = make(maximize=None, objectives={"cost": "minimize", "gain": "maximize"})
    for _ in range(3):
        batch = study.ask(4, pool=catalogue(60))
        assert batch.rows is not None
        study.tell(batch.ids, [{"cost": p["k"], "gain": value(p)} for p in batch.params])
    assert study.num_observations == 12
    assert study.result.front


def test_a_stored_study_goes_on_after_an_ask_from_a_pool(tmp_path: Path) -> None:
    batches = []
    for reopen in (False, True):
        path = tmp_path / str(reopen)
        study = make(path=path)
        for _ in range(3):
            if reopen:
                study.close()
                study = make(path=path)
            told(study, 1, catalogue())
        batches.append(study.ask(4, pool=catalogue()).rows)
        study.close()
    assert batches[0] == batches[1]


def test_a_pool_that_will_not_do_is_refused_before_the_surrogate_is_fitted() -> None:
    study = told(make(num_initial=12), 2)
    null = catalogue()
    null.loc[len(null) - 1, "x"] = float("nan")
    lines: list[str] = []
    for pool, message in (
        (catalogue(5), "at least 10 feasible rows, got 5"),
        (iter([catalogue(5)]), "at least 10 feasible rows, got 5"),
        ([], "at least 10 feasible rows, got 0"),
        (iter(()), "at least 10 feasible rows, got 0"),
        (null, "`x` must be .* in row 399"),
    ):
        with pytest.raises(ValueError, match=message):
            study.ask(10, pool=pool, callback=lines.append)
    assert lines == []
    assert study.num_asks == 2
    again = study.ask(4, pool=catalogue()).rows
    assert again == told(make(num_initial=12), 2).ask(4, pool=catalogue()).rows


@pytest.mark.parametrize("num_values", [0, 12])
def test_rows_that_were_left_out_are_counted_and_the_tolerance_is_named(num_values: int) -> None:
    space = Space(lambda p: p["id"] < 120, id=Int(0, 5_000_000))
    study = Study(space, maximize=True, num_initial=2, strategy="thompson")
    if num_values:
        study.add_data([{"id": number} for number in range(12)], list(range(12)))
    pool = [{"id": number} for number in range(100, 130)]
    with pytest.raises(
        ValueError, match="among 30 rows, of which 10 are infeasible. Points count as one .* 1e-06 "
    ):
        study.ask(15, pool=pool)
