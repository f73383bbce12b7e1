"""What holds for every storage of a study; a further one is a line in ``STORAGES``."""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from scalable_bo.space.space import Categorical, Float, Int, Space
from scalable_bo.storage.rounds import AskReport
from scalable_bo.storage.rows import Outcomes
from scalable_bo.storage.shared import SQLStorage
from scalable_bo.storage.sqlite import SQLiteStorage
from scalable_bo.storage.storage import Ask, Change, MemoryStorage, Source, Storage
from scalable_bo.study.study import Study
from tests.quick import QUICK
from tests.scalable_bo.frames import timeless
from tests.scalable_bo.postgres import serving
from tests.scalable_bo.storage.toy_storage import Diary

# Each opens the storage in a folder, or the one that is open already.
STORAGES: dict[str, Callable[[Path], Storage]] = {
    "sqlite": SQLiteStorage,
    "memory": lambda folder, kept={}: kept.setdefault(folder, MemoryStorage()),
    "from outside": Diary,
    "shared sqlite": lambda folder: SQLStorage(f"sqlite:///{folder}/shared.db", "tuning"),
    "postgresql": lambda folder: SQLStorage(postgres(), str(folder)),
}
SETTINGS = {"space": {"a ≤ \udcff": [0.1 + 0.2, True, 1, "one"]}, "direction": "maximize"}
COST = AskReport(0.25, 0.5, 1.0, 1e-3, "CG()", False, "log-ei: few")
SPACE = Space(x=Float(0.0, 1.0), n=Int(1, 9), kind=Categorical(["a", "b"]))


_server = ExitStack()


@cache
def postgres() -> str:
    return _server.enter_context(serving())


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    yield
    _server.close()
    postgres.cache_clear()


Reopen = Callable[[], Storage]


@pytest.fixture(params=STORAGES)
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Reopen:
    opened: list[Storage] = []

    def open_again() -> Storage:
        for storage in opened:
            storage.close()
        opened.append(STORAGES[request.param](tmp_path))
        return opened[-1]

    return open_again


@pytest.fixture
def storage(reopen: Reopen) -> Storage:
    """A storage with past evaluations, two asks, and values of what they asked for."""
    storage = reopen()
    storage.save_settings(SETTINGS)
    storage.load(2)
    X = torch.arange(6.0, dtype=torch.float64).reshape(3, 2) / 3
    outcomes = Outcomes.of([1.0, "x", 3.0], noise=0.1)
    storage.add_source(Source("history", "abc", 0, 3), X, outcomes, 0)
    storage.add_ask(Ask(1, 2, 2, 2, None), COST, 3, -X[:2])
    storage.add_ask(Ask(2, 1, 2, 3, True), AskReport(), 5, X[2:] * 1e-300)
    storage.add_outcomes([4], Outcomes.of([0.1]), 3)
    storage.add_outcomes([5, 3], Outcomes.of([math.nan, -1 / 3]), 4)
    return storage


def test_a_new_storage_holds_nothing_and_then_the_last_settings(reopen: Reopen) -> None:
    storage = reopen()
    assert storage.load_settings() is None
    storage.save_settings({"seed": 1})
    storage.save_settings(SETTINGS)
    assert storage.load_settings() == reopen().load_settings() == SETTINGS


def test_what_was_stored_comes_back_to_the_last_bit(storage: Storage, reopen: Reopen) -> None:
    found = reopen().load(2)
    X = torch.arange(6.0, dtype=torch.float64).reshape(3, 2) / 3
    assert torch.equal(found.rows.X, torch.cat([X, -X[:2], X[2:] * 1e-300]))
    assert str(found.rows.values.tolist()) == "[1.0, nan, 3.0, -0.3333333333333333, 0.1, nan]"
    assert str(found.rows.noise.tolist()) == "[0.1, nan, 0.1, nan, nan, nan]"
    assert found.rows.told.all()
    assert found.rows.asks.tolist() == [0, 0, 0, 1, 1, 2]
    assert found.rows.observed == [0, 2, 4, 3]
    assert found.rows.reasons == {1: "not a number: str 'x'", 5: "the value is nan"}
    assert found.rows.next_told == 6
    assert found.asks == [Ask(1, 2, 2, 2, None), Ask(2, 1, 2, 3, True)]
    assert found.costs == {1: COST, 2: AskReport()}
    assert found.sources == [Source("history", "abc", 0, 3)]


def test_times_come_back_to_the_last_bit(storage: Storage, reopen: Reopen) -> None:
    X = torch.zeros(2, 2, dtype=torch.float64)
    storage.add_ask(Ask(3, 2, 4, 3, True), AskReport(time=1.7e9 + 0.1), 6, X)
    storage.add_outcomes([7], Outcomes.of([1.0]).taking([0.3]).told_at(1.7e9 + 0.7), 6)
    expected = [[1.7e9 + 0.1, math.nan, math.nan], [1.7e9 + 0.1, 1.7e9 + 0.7, 0.3]]
    for found in (storage.load(2), reopen().load(2)):
        assert str(found.rows.times[6:].tolist()) == str(expected)
        assert found.rows.times[:6].isnan().all()
        assert found.costs[3].time == 1.7e9 + 0.1


def test_notes_come_back_the_last_one_of_each_point(storage: Storage, reopen: Reopen) -> None:
    for id, text in ((4, "a"), (0, "b"), (4, "c\n≤")):
        storage.set_note(id, text)
    for found in (storage.load(2), reopen().load(2)):
        assert found.rows.notes == {4: "c\n≤", 0: "b"}


def test_a_queue_is_kept_in_its_order_until_its_points_are_asked_for(
    storage: Storage, reopen: Reopen
) -> None:
    X = torch.arange(8.0, dtype=torch.float64).reshape(4, 2) / 7
    storage.add_queued(X[:1])
    storage.add_queued(X[1:])
    storage.add_ask(Ask(3, 1, 2, 3, True), AskReport(), 6, X[:3], num_queued=2)
    assert torch.equal(storage.load(2).queue, X[2:])
    found = reopen().load(2)
    assert torch.equal(found.queue, X[2:])
    assert torch.equal(found.rows.X[6:], X[:3])


def test_removed_outcomes_make_points_pending_and_keep_the_order_of_the_others(
    storage: Storage, reopen: Reopen
) -> None:
    storage.remove_outcomes([1, 5])
    rows = storage.load(2).rows
    assert rows.told.tolist() == [True, False, True, True, True, False]
    assert rows.reasons == {}
    storage.add_outcomes([1], Outcomes.of([7.0], 0.1), rows.next_told)
    rows = reopen().load(2).rows
    assert rows.observed == [0, 2, 4, 3, 1]
    assert rows.values[1] == 7.0


def test_replaced_outcomes_are_told_last_and_what_they_were_is_kept(
    storage: Storage, reopen: Reopen
) -> None:
    asks = [Ask(1, 2, 1, 2, None), Ask(2, 1, 1, 3, True)]
    changes = [
        Change("2026-01-01T00:00:00+00:00", "corrected", 0, 1.0, 0.1, None, "a typo"),
        Change("2026-01-01T00:00:00+00:00", "corrected", 5, None, None, "the value is nan", ""),
    ]
    storage.replace_outcomes([0, 5], Outcomes.of([math.nan, 1e-300]), 6, asks, changes)
    for found in (storage.load(2), reopen().load(2)):
        assert found.rows.observed == [2, 4, 3, 5]
        assert found.rows.reasons == {1: "not a number: str 'x'", 0: "the value is nan"}
        assert found.rows.values[5] == 1e-300
        assert found.rows.next_told == 8
        assert found.asks == asks
        assert found.changes == changes


def test_points_with_values_of_some_outcomes_come_back_pending(reopen: Reopen) -> None:
    names = ("a", "b", "c")
    storage = reopen()
    storage.save_settings(SETTINGS)
    storage.load(2)
    storage.add_ask(Ask(1, 4, 0, 4, None), COST, 0, torch.rand(4, 2, dtype=torch.float64))
    told = [(1.0, math.nan, -1 / 3), (4.0, 5.0, 6.0), math.nan, (math.nan, math.nan, 1e-300)]
    storage.add_outcomes([2, 0, 1, 3], Outcomes.several(told, None, names), 0)
    for found in (storage.load(2), reopen().load(2)):
        assert found.rows.told.tolist() == [True, True, False, False]
        assert found.rows.observed == [0]
        assert list(found.rows.reasons) == [1]
        assert found.rows.partial(names) == {2: {"a": 1.0, "c": -1 / 3}, 3: {"c": 1e-300}}
        assert found.rows.num_told == 2
    storage = reopen()
    rows = storage.load(2).rows
    storage.add_outcomes([3], Outcomes.several([(7.0, 8.0, 1e-300)], None, names), rows.next_told)
    changes = [Change("2026-01-01T00:00:00+00:00", "corrected", 2, 1.0, None, None, "")]
    partial = Outcomes.several([{"b": 2.0}], None, names)
    storage.replace_outcomes([2], partial, rows.next_told + 1, [Ask(1, 4, 0, 4, None)], changes)
    for found in (storage.load(2), reopen().load(2)):
        assert found.rows.observed == [0, 3]
        assert found.rows.partial(names) == {2: {"b": 2.0}}


def test_what_was_loaded_may_be_changed(storage: Storage) -> None:
    found = storage.load(2)
    found.rows.values[0] = 9.0
    found.rows.observed.clear()
    found.asks.clear()
    found.costs.clear()
    found.sources.clear()
    again = storage.load(2)
    assert again.rows.values[0] == 1.0
    assert (len(again.rows.observed), len(again.asks), len(again.costs)) == (4, 2, 2)
    assert len(again.sources) == 1


def test_a_study_that_is_opened_for_every_step_is_one_that_never_closed(reopen: Reopen) -> None:
    def step(study: Study) -> None:
        study.add_data([{"x": 0.5, "n": 1, "kind": "b"}], [0.25], name="past")
        batch = study.ask(3)
        study.tell(batch.ids[:2], [batch.X[0, 0].item(), math.nan])
        if study.num_asks == 3:
            study.withdraw([batch.ids[0] - 3])
            study.correct(batch.ids[1], 0.125)

    options: dict[str, Any] = {"maximize": True, "seed": 3, "num_initial": 4, "sampler": QUICK}
    never_closed = Study(SPACE, **options)
    for _ in range(3):
        step(never_closed)
        with Study(SPACE, storage=reopen(), **options) as study:
            step(study)
    study = Study(SPACE, storage=reopen(), **options)
    assert timeless(study).equals(timeless(never_closed))
    assert study.num_asks == 3
    assert study.model is None
    with pytest.raises(ValueError, match="made with other settings:\n  seed: stored 3, given 4"):
        Study(SPACE, storage=reopen(), **options | {"seed": 4})


def test_a_folder_and_a_storage_are_not_given_together(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`path` or `storage` must be given, not both"):
        Study(SPACE, maximize=True, path=tmp_path / "a", storage=MemoryStorage())
    assert not (tmp_path / "a").exists()
