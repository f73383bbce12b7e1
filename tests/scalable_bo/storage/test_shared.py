"""Many processes write one study in a database: no point is asked for twice, no value is lost."""

import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from threading import Barrier
from typing import Any
from unittest.mock import Mock, patch

import pytest
import sqlalchemy as sa
import torch

from scalable_bo.space.space import Float, Int, Space
from scalable_bo.storage.checkpoints import load_checkpoint
from scalable_bo.storage.log import pack
from scalable_bo.storage.shared import SQLStorage
from scalable_bo.storage.storage import Contents, Write
from scalable_bo.study.design import NotEnoughLeftError
from scalable_bo.study.study import Study
from tests.forked import CONTEXT
from tests.quick import QUICK
from tests.scalable_bo.postgres import serving

SPACE = Space(x=Float(0.0, 1.0), k=Int(0, 1000))
NUM_PROCESSES = 3
ROUNDS = 5
BATCH = 2
NUM_INITIAL = NUM_PROCESSES * ROUNDS  # half of the points of a test
NUM_POINTS = 43  # of one budget, no multiple of what is asked for at once


Open = Callable[..., Study]
BY_SURROGATE: dict[str, Any] = {"num_initial": 4, "sampler": QUICK}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """The URL of a database, and the name of the study of a test."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shared.db", request.node.name
    return request.getfixturevalue("server"), request.node.name


@pytest.fixture
def opened(place: tuple[str, str]) -> Iterator[Open]:
    """Opens the study of a test once more, as another process would."""
    studies: list[Study] = []

    def open_again(**options: Any) -> Study:
        settings = {"maximize": True, "storage": place[0], "name": place[1]}
        studies.append(Study(SPACE, **settings | options))
        return studies[-1]

    yield open_again
    for study in studies:
        study.close()


def execute(url: str, statement: str, **parameters: Any) -> Any:
    """Return the rows that a statement returns, none of one that changes them."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        found = connection.execute(sa.text(statement), parameters)
        rows = found.all() if found.returns_rows else []
    engine.dispose()
    return rows


def value(params: Any) -> float:
    return float(params["x"]) - params["k"] / 1000


def work(url: str, name: str, told: Any, rounds: int = ROUNDS) -> None:
    """Ask and tell as fast as that goes; half of the points of the surrogate."""
    options: dict[str, Any] = {"num_initial": NUM_INITIAL, "sampler": QUICK}
    with Study(SPACE, maximize=True, storage=url, name=name, **options) as study:
        for _ in range(rounds):
            batch = study.ask(BATCH)
            study.tell(batch, [value(params) for params in batch.params])
            told.put(batch.ids)


def test_every_process_asks_for_other_points_and_no_value_is_lost(
    place: tuple[str, str], opened: Open
) -> None:
    told: Any = CONTEXT.Queue()
    workers = [CONTEXT.Process(target=work, args=(*place, told)) for _ in range(NUM_PROCESSES)]
    for worker in workers:
        worker.start()
    ids = [told.get(timeout=300) for _ in range(NUM_PROCESSES * ROUNDS)]
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    total = NUM_PROCESSES * ROUNDS * BATCH
    assert sorted(id for batch in ids for id in batch) == list(range(total))
    frame = opened().to_dataframe()
    assert len(frame) == total
    assert (frame["status"] == "observed").all()
    assert frame["value"].tolist() == [value(row) for row in frame[["x", "k"]].to_dict("records")]
    assert len(frame[["x", "k"]].drop_duplicates()) == total
    assert frame["ask"].tolist() == sorted(frame["ask"])  # one ask after the other
    assert frame["ask"].max() == NUM_PROCESSES * ROUNDS


def test_a_process_that_is_killed_loses_nothing_and_keeps_nobody_waiting(
    place: tuple[str, str], opened: Open
) -> None:
    told: Any = CONTEXT.Queue()
    study = opened(num_initial=NUM_INITIAL, sampler=QUICK)
    worker = CONTEXT.Process(target=work, args=(*place, told, 1000))
    worker.start()
    known = set(told.get(timeout=300))
    time.sleep(Random(0).uniform(0.0, 0.5))
    os.kill(worker.pid or 0, signal.SIGKILL)
    worker.join()
    while not told.empty():
        known |= set(told.get())
    start = time.monotonic()
    batch = study.ask(2)
    study.tell(batch, [1.0, 2.0])
    assert time.monotonic() - start < 60  # nobody holds the study
    frame = study.to_dataframe()
    assert (frame["status"][sorted(known)] == "observed").all()
    assert list(frame.index) == list(range(len(frame)))


def test_what_one_tells_the_other_knows(opened: Open) -> None:
    one, other = opened(), opened()
    batch = one.ask(4)
    assert other.pending.ids == batch.ids
    other.tell(batch.ids[:2], [1.0, 2.0])
    one.enqueue({"x": 0.5, "k": 7})
    assert one.result.values.tolist() == [1.0, 2.0]
    later = other.ask(2)
    assert later.params[0] == {"x": 0.5, "k": 7}
    assert later.ids == [4, 5]
    one.add_data([{"x": 0.25, "k": 1}], [9.0], name="past")
    assert other.result.best_value == 9.0
    other.correct(0, -1.0)
    one.tell([2], ["no number"])
    assert one.result.values.tolist() == [2.0, 9.0, -1.0]
    assert other.retry().ids == [2, 3, 4, 5]
    with pytest.raises(ValueError, match="must not have been told before with another value"):
        one.tell([1], [7.0])
    assert one.result.values.tolist() == other.result.values.tolist()


def test_each_optimises_beside_the_other_and_nothing_is_evaluated_twice(opened: Open) -> None:
    one, other = (opened(sampler=QUICK) for _ in range(2))
    evaluated = []
    held = other.ask(3)

    def objective(params: Any) -> float:
        evaluated.append(tuple(params.values()))
        return value(params)

    one.optimize(objective, rounds=2, batch=4)
    assert len(set(evaluated)) == len(evaluated) == 8
    other.tell(held, [value(params) for params in held.params])
    other.optimize(objective, rounds=1, batch=4)
    assert len(set(evaluated)) == len(evaluated) == 12
    assert one.result.num_observations == other.result.num_observations == 15


def optimize_by_threads(url: str, name: str, together: Any, evaluated: Any) -> None:
    study = Study(SPACE, maximize=True, storage=url, name=name, num_initial=1000)
    with study, study.optimizing(NUM_POINTS):
        together.wait(300)  # so that all are there before one ends
        study.optimize(
            partial(note_and_wait, evaluated),
            rounds=NUM_POINTS,
            batch=5,
            executor=lambda: ThreadPoolExecutor(2),
        )


def note_and_wait(evaluated: Any, params: Any) -> float:
    evaluated.put(tuple(params.values()))
    time.sleep(0.01)
    return value(params)


def test_processes_that_optimise_at_once_spend_one_budget(
    place: tuple[str, str], opened: Open
) -> None:
    evaluated: Any = CONTEXT.Queue()
    arguments = (*place, CONTEXT.Barrier(NUM_PROCESSES), evaluated)
    workers = [
        CONTEXT.Process(target=optimize_by_threads, args=arguments) for _ in range(NUM_PROCESSES)
    ]
    for worker in workers:
        worker.start()
    points = [evaluated.get(timeout=300) for _ in range(NUM_POINTS)]
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert evaluated.empty()
    assert len(set(points)) == NUM_POINTS
    assert opened().result.num_observations == NUM_POINTS
    assert opened().unfinished().ids == []


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_budget_is_spent_to_the_last_point_and_a_later_run_has_its_own(
    opened: Open, asynchronous: bool
) -> None:
    studies = [opened(num_initial=1000) for _ in range(3)]
    together = Barrier(3)

    def optimize(study: Study) -> None:
        with study.optimizing(22):  # so that all are there before one ends
            together.wait(60)
            study.optimize(
                value,
                rounds=4,
                batch=4,
                executor=lambda: ThreadPoolExecutor(2),
                asynchronous=asynchronous,
                progress=False,  # of which a terminal shows one at a time
            )

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(optimize, studies))
    assert studies[0].result.num_observations == 22
    studies[0].optimize(value, rounds=2, batch=4)
    assert studies[0].result.num_observations == 30
    assert len(studies[0].ask(3).ids) == 3  # beyond any budget


def test_an_ask_of_more_than_is_left_says_so_and_a_process_that_is_killed_holds_no_budget(
    place: tuple[str, str], opened: Open
) -> None:
    study = opened()
    with study.optimizing(3):
        study.ask(2)
        with pytest.raises(NotEnoughLeftError, match="must be at most 1, what is left"):
            study.ask(2)
        other = opened()
        with other.optimizing(100), pytest.raises(NotEnoughLeftError, match="at most 1"):
            other.ask(2)
        assert opened().ask(4).ids == [2, 3, 4, 5]  # of no budget
    started = CONTEXT.Event()
    worker = CONTEXT.Process(target=hold_a_budget, args=(*place, started))
    worker.start()
    assert started.wait(300)
    os.kill(worker.pid or 0, signal.SIGKILL)
    worker.join()
    with study.optimizing(7):
        assert len(study.ask(7).ids) == 7


LOSE_LOCKS = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"


def test_a_connection_that_is_lost_takes_its_lock_with_it_and_nothing_else(server: str) -> None:
    with Study(SPACE, maximize=True, storage=server, name="lost", num_initial=100) as study:
        with study.optimizing(3):
            assert execute(server, LOSE_LOCKS) == [(True,)]
            assert study.ask(2).ids == [0, 1]
        study.optimize(value, rounds=1, batch=3)
        assert study.num_observations == 5  # two of those of before, three of its own budget


def hold_a_budget(url: str, name: str, started: Any) -> None:
    study = Study(SPACE, maximize=True, storage=url, name=name)
    with study.optimizing(1):
        started.set()
        time.sleep(300)


def test_points_of_a_process_that_is_gone_are_evaluated_by_another(
    place: tuple[str, str], opened: Open
) -> None:
    url, name = place
    lost = Study(SPACE, maximize=True, storage=SQLStorage(url, name, lease=3600.0))
    batch = lost.ask(2)
    other = opened()
    assert other.pending.ids == batch.ids
    assert other.unfinished().ids == []
    an_hour_later = "UPDATE scalable_bo_claims SET until = until - 3601 WHERE study = :name"
    execute(url, an_hour_later, name=name)
    assert other.unfinished().ids == batch.ids  # they are its own now
    assert opened().unfinished().ids == []
    lost.tell(batch.ids, [1.0, 2.0])  # late, and still in time
    assert other.result.num_observations == 2
    by_hand = opened()
    by_hand.ask(2)
    by_hand.close()
    assert other.unfinished().ids == []
    with pytest.raises(KeyboardInterrupt):
        opened().optimize(Mock(side_effect=KeyboardInterrupt), rounds=1, batch=3)
    assert other.unfinished().ids == [4, 5, 6]


def test_a_study_is_opened_with_what_it_was_made_with(place: tuple[str, str], opened: Open) -> None:
    opened(seed=3).ask(2)
    url, name = place
    with Study.open(url, name=name) as again:
        assert again.seed == 3
        assert again.pending.ids == [0, 1]
    with pytest.raises(ValueError, match="was made with other settings"):
        opened(seed=4)
    with pytest.raises(ValueError, match="got 'nobody'. There are .*test_a_study_is_opened"):
        Study.open(url, name="nobody")


def test_damage_is_noticed_and_nothing_is_read_of_it(place: tuple[str, str], opened: Open) -> None:
    study = opened()
    study.tell(study.ask(2), [1.0, 2.0])
    for change in (
        "UPDATE scalable_bo_writes SET digest = 'x' WHERE number = 2 AND study = :name",
        "DELETE FROM scalable_bo_writes WHERE number = 1 AND study = :name",
    ):
        execute(place[0], change, name=place[1])
        with pytest.raises(RuntimeError, match="is damaged: write . is missing or has changed"):
            opened()


def test_a_study_that_is_opened_again_finds_its_surrogate(
    place: tuple[str, str], opened: Open
) -> None:
    def ask_and_tell(study: Study) -> None:
        batch = study.ask(4)
        study.tell(batch, [value(params) for params in batch.params])

    study = opened(**BY_SURROGATE)
    for _ in range(4):
        ask_and_tell(study)
    assert study._record.storage.checkpoints.numbers() == [4, 3]
    expected = study.predict({"x": 0.5, "k": 7})
    study.close()
    with patch("scalable_bo.study.surrogate.fit_warped", None):
        assert opened(**BY_SURROGATE).predict({"x": 0.5, "k": 7}) == expected
    damage = "UPDATE scalable_bo_checkpoints SET content = :content WHERE ask = 4"
    execute(place[0], damage, content=b"0" * 99)
    with pytest.warns(UserWarning, match="The checkpoint of ask 4 of the study .* is damaged"):
        ask_and_tell(opened(**BY_SURROGATE))
    study = opened()
    assert study._record.storage.checkpoints.numbers() == [5, 4]
    study.correct(0, 9.0)
    assert study._record.storage.checkpoints.numbers() == []


def test_a_copy_is_the_study_and_its_next_ask_is_the_same_wherever_it_was_copied_to(
    place: tuple[str, str], tmp_path: Path
) -> None:
    url, name = place
    origin = tmp_path / "origin"
    with Study(SPACE, maximize=True, seed=5, path=origin, **BY_SURROGATE) as study:
        study.add_data([{"x": 0.25, "k": 1}], [9.0], name="past")
        for _ in range(3):
            batch = study.ask(3)
            study.tell(batch.ids[1:], [value(batch.params[1]), "no number"])
        study.correct(2, -1.0, why="a slip")
        study.ask(1)
        study.enqueue([{"x": 0.5, "k": 7}, {"x": 0.75, "k": 7}])
        expected = exactly(study)
    database = f"sqlite:///{tmp_path}/other.db"
    places: list[tuple[Any, str | None]] = [
        (origin, None),
        (url, name),
        (url, f"{name} again"),
        (database, "copy"),
        (tmp_path / "copy", None),
    ]
    for (before, its_name), (after, new_name) in pairwise(places):
        with Study.open(before, name=its_name, **BY_SURROGATE) as study:
            study.copy_to(after, name=new_name)
    points = []
    for where, its_name in places:
        with Study.open(where, name=its_name, **BY_SURROGATE) as study:
            assert exactly(study) == expected
            assert study._record.storage.checkpoints.numbers() == [4]
            with pytest.raises(ValueError, match="`path` must be a place without a study"):
                study.copy_to(url, name=name)
            points.append(study.ask(5))
    assert all(batch.ids == points[0].ids for batch in points)
    assert all(batch.params == points[0].params for batch in points)


def exactly(study: Study) -> bytes:
    return pack(Write("adopt", (study._record.contents,)))


def test_what_was_told_one_by_one_is_put_together_by_who_opens_it_and_others_go_on(
    place: tuple[str, str], opened: Open
) -> None:
    writer, behind = opened(), opened()
    for id in writer.ask(20).ids:
        writer.tell([id], [id / 3])
    late = opened()  # which finds 21 writes
    count = "SELECT count(*), max(number) FROM scalable_bo_writes WHERE study = :name"
    assert execute(place[0], count, name=place[1]) == [(1, 21)]
    assert behind.ask(1).ids == [20]
    late.tell([20], [9.0])
    for study in (writer, behind, late, opened()):
        assert study.result.values.tolist() == [*(id / 3 for id in range(20)), 9.0]
        assert study.num_asks == 2


def test_a_log_that_is_more_than_a_write_can_hold_stays_as_it_is(opened: Open) -> None:
    study = opened()
    for id in study.ask(5).ids:
        study.tell([id], [id / 3])
    too_long = OverflowError("BLOB longer than INT_MAX bytes")
    with patch("scalable_bo.storage.shared.pack", side_effect=too_long):
        assert opened().result.num_observations == 5
    study.ask(1)
    assert opened().pending.ids == [5]


def test_a_log_is_read_also_where_the_disk_is_too_full_to_put_it_together(opened: Open) -> None:
    study = opened()
    study.tell(study.ask(2), [1.0, 2.0])
    with patch.object(SQLStorage, "_insert", side_effect=OSError("the disk is full")):
        assert opened().result.values.tolist() == [1.0, 2.0]


def test_a_write_that_fails_is_undone(opened: Open) -> None:
    study = opened()
    batch = study.ask(2)
    with (
        patch.object(SQLStorage, "_hold", side_effect=OSError("the disk is full")),
        pytest.raises(OSError, match="the disk is full"),
    ):
        study.ask(2)
    assert study.pending.ids == batch.ids
    assert study.ask(1).ids == [2]
    assert opened().pending.ids == [0, 1, 2]


def test_a_commit_that_fails_leaves_no_gap_also_while_the_database_is_away(opened: Open) -> None:
    study = opened()
    batch = study.ask(2)
    storage = study._record.storage

    def away(connection: Any) -> None:
        raise OSError("the network is down")

    sa.event.listen(storage._engine, "commit", away)
    for _ in range(2):
        with pytest.raises(OSError, match="the network is down"):
            study.tell(batch, [1.0, 2.0])
    sa.event.remove(storage._engine, "commit", away)
    other = opened()
    assert other.pending.ids == batch.ids
    assert study.pending.ids == batch.ids
    study.tell(batch, [1.0, 2.0])
    assert other.result.values.tolist() == [1.0, 2.0]
    assert opened().ask(1).ids == [2]


def test_arguments_are_refused_by_name(tmp_path: Path) -> None:
    for given in ("mysql://host/db", "tuning", "sqlite://", "nonsense://host/db"):
        with pytest.raises(ValueError, match="`storage` must be the URL of a database"):
            Study(SPACE, maximize=True, storage=given, name="a")
    for name in (None, ""):
        with pytest.raises(ValueError, match="`name` must be"):
            Study(SPACE, maximize=True, storage=f"sqlite:///{tmp_path}/a.db", name=name)
    with pytest.raises(ValueError, match="`name` must be given with the URL of a database"):
        Study(SPACE, maximize=True, name="a")
    with pytest.raises(ValueError, match="`name` must be a text"):
        Study.open(f"sqlite:///{tmp_path}/a.db")
    with pytest.raises(OSError, match="could not be reached: .*Repair the connection"):
        Study(SPACE, maximize=True, storage=f"sqlite:///{tmp_path}/none/a.db", name="a")
    study = Study(SPACE, maximize=True, storage=f"sqlite:///{tmp_path}/a.db", name="a")
    study.close()
    with pytest.raises(RuntimeError, match="has been closed. Open it again"):
        study.ask(1)


def test_a_link_in_the_place_of_the_lock_of_asks_is_not_followed(tmp_path: Path) -> None:
    with Study(SPACE, maximize=True, storage=f"sqlite:///{tmp_path}/shared.db", name="a") as study:
        assert study.ask(1).ids == [0]
        (lock,) = tmp_path.glob("shared.db.asking-*")
        lock.unlink()
        lock.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(RuntimeError, match="asking-.* must be a regular file .* symbolic link"):
            study.ask(1)
    assert not (tmp_path / "elsewhere").exists()


def test_what_others_wrote_is_read_again_where_taking_it_over_was_interrupted(
    opened: Open,
) -> None:
    first, second = opened(), opened()
    first.tell(first.ask(2), [1.0, 2.0])
    interrupted = patch.object(Contents, "add_outcomes", side_effect=KeyboardInterrupt)
    with interrupted, pytest.raises(KeyboardInterrupt):
        second.points()
    assert second.result.values.tolist() == [1.0, 2.0]
    assert second.ask(1).ids == [2]


def test_numbers_and_answers_are_those_of_what_others_told_and_corrected(opened: Open) -> None:
    first, second = opened(**BY_SURROGATE), opened(**BY_SURROGATE)
    first.enqueue({"x": 0.5, "k": 3})
    assert second.num_queued == 1
    batch = first.ask(12)
    first.tell(batch, [*batch.X[:-1, 0], math.nan])
    assert (second.num_observations, second.num_failed) == (11, 1)
    assert (second.num_evaluated, second.num_asks, second.num_queued) == (12, 1, 0)
    assert second.reasons(batch.ids[-1:]) == ["the value is nan"]
    assert second.best_value == first.best_value
    second.ask(1)  # by a surrogate
    for id, x in zip(batch.ids[:-1], batch.X[:-1, 0].tolist(), strict=True):
        first.correct(id, 1.0 - x)
    assert len(second.changes) == 11
    wanted = opened(**BY_SURROGATE).predict(batch.params)
    torch.testing.assert_close(tuple(second.predict(batch.params)), tuple(wanted))


def in_the_middle_of_an_ask(study: Study, act: Callable[[], Any]) -> None:
    propose = study._proposer.propose

    def slow(*arguments: Any) -> Any:
        found = propose(*arguments)
        act()
        return found

    with patch.object(study._proposer, "propose", slow):
        study.ask(2)


def test_values_may_be_withdrawn_while_another_process_asks(opened: Open) -> None:
    first, second = opened(**BY_SURROGATE), opened(**BY_SURROGATE)
    batch = first.ask(6)
    first.tell(batch, batch.X[:, 0])
    in_the_middle_of_an_ask(first, partial(second.withdraw, [0, 5]))
    asks = first.snapshot().asks
    assert [ask.num_observed for ask in asks] == [0, 4]
    for study in (first, second, opened(**BY_SURROGATE)):
        observed = [point.id for point in study.points() if point.status == "observed"]
        study.correct(observed[0], 0.25)
        study.withdraw(observed[-1:])


def test_an_ask_whose_lock_was_lost_is_not_stored_beside_that_of_another(server: str) -> None:
    options: dict[str, Any] = {"storage": server, "name": "lock lost", "num_initial": 100}
    make = partial(Study, SPACE, maximize=True, **options)
    with make() as first, make() as second:

        def lose() -> None:
            assert execute(server, LOSE_LOCKS)
            second.ask(3)

        with pytest.raises(OSError, match="lost the lock of this ask.* Ask again"):
            in_the_middle_of_an_ask(first, lose)
        assert first.ask(1).ids == [3]
        assert len({tuple(params.values()) for params in second.pending.params}) == 4


def test_a_database_is_one_study_also_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "real.db")
    for name in ("real", "link"):
        with Study(
            SPACE, maximize=True, storage=f"sqlite:///{tmp_path}/{name}.db", name="a"
        ) as study:
            study.ask(1)
    assert len(list(tmp_path.glob("*.asking-*"))) == 1


def test_a_database_is_one_study_wherever_the_process_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with Study(SPACE, maximize=True, storage="sqlite:///shared.db", name="a") as study:
        study.ask(1)
        monkeypatch.chdir("elsewhere")
        study.ask(1)
        study.optimize(value, rounds=1, batch=1)
    assert len(list(tmp_path.glob("*.asking-*"))) == 1
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_checkpoint_that_another_process_has_removed_is_passed_over(opened: Open) -> None:
    study = opened(num_initial=2, sampler=QUICK)
    batch = study.ask(4)
    study.tell(batch, batch.X[:, 0])
    study.ask(1)
    kept = study._record.storage.checkpoints
    numbers = [3, *kept.numbers()]  # of an ask that is over for another process
    with patch.object(type(kept), "numbers", return_value=numbers):
        found = load_checkpoint(kept, 3)
    assert found.ask == 2


def evaluate_for_ever(url: str, name: str, started: Any) -> None:
    def last(params: Any) -> float:
        started.set()
        time.sleep(300)
        return 0.0

    Study(SPACE, maximize=True, storage=url, name=name).optimize(last, 1, 3)


def test_points_of_a_process_that_was_killed_at_them_are_evaluated_by_the_next(
    place: tuple[str, str], opened: Open
) -> None:
    started = CONTEXT.Event()
    worker = CONTEXT.Process(target=evaluate_for_ever, args=(*place, started))
    worker.start()
    try:
        assert started.wait(60)
        study = opened()
        assert study.unfinished().ids == []
    finally:
        os.kill(worker.pid or 0, signal.SIGKILL)
        worker.join()
    assert study.unfinished().ids == [0, 1, 2]
    # It is not at them by itself, as a server is not, and may have given them to others
    study._record.storage._process = worker.pid  # type: ignore[attr-defined]
    assert opened().unfinished().ids == []


def test_a_study_that_is_closed_while_it_optimises_leaves_the_claims_of_others(
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {"storage": f"sqlite:///{tmp_path}/a.db", "name": "a"}
    first, second, third = (Study(SPACE, maximize=True, **options) for _ in range(3))
    first.ask(3)

    def close(params: Any) -> float:
        second.close()
        return 1.0

    with pytest.raises(RuntimeError, match="has been closed"):
        second.optimize(close, 1, 2)
    with pytest.raises(RuntimeError, match="has been closed"):
        second.unfinished()
    assert not {0, 1, 2} & set(third.unfinished().ids)
    first.close()
    third.close()


def test_corrections_are_taken_over_where_reading_them_was_interrupted(opened: Open) -> None:
    first, second = opened(**BY_SURROGATE), opened(**BY_SURROGATE)
    batch = first.ask(8)
    first.tell(batch, batch.X[:, 0])
    second.ask(1)
    for id, x in zip(batch.ids, batch.X[:, 0].tolist(), strict=True):
        first.correct(id, 1.0 - x)
    interrupted = patch.object(Contents, "replace_outcomes", side_effect=KeyboardInterrupt)
    with interrupted, pytest.raises(KeyboardInterrupt):
        second.points()
    wanted = opened(**BY_SURROGATE).predict(batch.params)
    torch.testing.assert_close(tuple(second.predict(batch.params)), tuple(wanted))


def test_who_looks_at_a_study_leaves_the_checkpoint_of_another_process(opened: Open) -> None:
    first, second = opened(**BY_SURROGATE), opened(**BY_SURROGATE)
    batch = first.ask(8)
    first.tell(batch, batch.X[:, 0])
    first.correct(0, 0.25)
    number = first.ask(1).ids[0]
    assert second.num_asks == 2
    assert number == 8
    assert second._record.storage.checkpoints.numbers() == [2]


def test_points_that_are_to_be_tried_again_are_free(opened: Open) -> None:
    first = opened()
    first.tell(first.ask(2), [math.nan, math.nan])
    second = opened()
    second.retry()
    second.close()
    assert opened().unfinished().ids == [0, 1]


def test_of_processes_that_enqueue_the_same_only_the_first_does(opened: Open) -> None:
    first, second = opened(), opened()
    first.enqueue({"x": 0.5, "k": 3}, once=True)
    second.enqueue({"x": 0.5, "k": 3}, once=True)
    assert second.ask(2).params[0] == {"x": 0.5, "k": 3}
    first.enqueue({"x": 0.5, "k": 3}, once=True)
    assert first.num_queued == second.num_queued == 0
    second.enqueue({"x": 0.25, "k": 3})
    assert first.num_queued == 1
