"""The folder of a study: one writer, whole files, a schema that can change."""

import json
import os
import sqlite3
from pathlib import Path

import pytest
import torch

from scalable_bo.space.space import Float, Space
from scalable_bo.storage import database, seals
from scalable_bo.storage.checkpoints import Checkpoint, load_checkpoint, save_checkpoint
from scalable_bo.storage.database import WriterLock
from scalable_bo.storage.record import make_settings
from scalable_bo.storage.rounds import AskReport
from scalable_bo.storage.rows import Outcomes
from scalable_bo.storage.sqlite import SQLiteStorage
from scalable_bo.storage.storage import Ask, Source
from tests.forked import CONTEXT
from tests.scalable_bo.crashes import hold_lock

SPACE = Space(x=Float(0.0, 9.0), y=Float(0.0, 9.0))
SETTINGS = make_settings(SPACE.to_dict(), True, 0)
COST = AskReport(0.25, 0.5, 1.0, 1e-3, "CG()", False, "log-ei: few")


def fill(folder: Path) -> None:
    storage = SQLiteStorage(folder)
    storage.save_settings(SETTINGS)
    X = torch.arange(6.0, dtype=torch.float64).reshape(3, 2)
    storage.add_source(
        Source("history", "abc", 0, 3), X, Outcomes.of([1.0, "x", 3.0], noise=0.5), 0
    )
    storage.add_ask(Ask(1, 2, 2, 2, None), COST, 3, X[:2] / 3)
    storage.add_outcomes([4], Outcomes.of([0.1]), 3)
    storage.close()


def test_what_was_stored_comes_back_to_the_last_bit(tmp_path: Path) -> None:
    fill(tmp_path)
    storage = SQLiteStorage(tmp_path)
    rows = storage.load(2).rows
    third = torch.arange(4.0, dtype=torch.float64).reshape(2, 2) / 3
    assert torch.equal(
        rows.X, torch.cat([torch.arange(6.0, dtype=torch.float64).reshape(3, 2), third])
    )
    nan = float("nan")
    torch.testing.assert_close(
        rows.values,
        torch.tensor([1.0, nan, 3.0, nan, 0.1], dtype=torch.float64),
        equal_nan=True,
        rtol=0,
        atol=0,
    )
    torch.testing.assert_close(
        rows.noise,
        torch.tensor([0.5, nan, 0.5, nan, nan], dtype=torch.float64),
        equal_nan=True,
        rtol=0,
        atol=0,
    )
    assert rows.told.tolist() == [True, True, True, False, True]
    assert rows.asks.tolist() == [0, 0, 0, 1, 1]
    assert rows.observed == [0, 2, 4]
    assert rows.reasons == {1: "not a number: str 'x'"}
    assert storage.load(2).asks == [Ask(1, 2, 2, 2, None)]
    assert storage.load(2).costs == {1: COST}
    assert storage.load(2).sources == [Source("history", "abc", 0, 3)]


def test_the_database_is_safe_against_power_cuts(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path)
    storage.save_settings(SETTINGS)
    assert storage._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert storage._connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


def test_a_second_writer_is_refused_with_the_process_and_the_host_of_the_first(
    tmp_path: Path,
) -> None:
    there, here = CONTEXT.Pipe()
    first = CONTEXT.Process(target=hold_lock, args=(tmp_path / "lock", there))
    first.start()
    try:
        assert here.recv() == "locked"
        host = os.uname().nodename
        with pytest.raises(RuntimeError, match=f"is in use by process {first.pid} on host {host}"):
            SQLiteStorage(tmp_path)
    finally:
        first.kill()
        first.join()
    SQLiteStorage(tmp_path).close()  # the lock of a dead process is none


def test_the_lock_is_freed_when_the_storage_is_closed_or_forgotten(tmp_path: Path) -> None:
    first = SQLiteStorage(tmp_path)
    with pytest.raises(RuntimeError, match=f"is in use by process {os.getpid()}"):
        SQLiteStorage(tmp_path)
    first.close()
    second = SQLiteStorage(tmp_path)
    del second
    third = SQLiteStorage(tmp_path)
    third.close()
    third.close()
    with pytest.raises(RuntimeError, match="has been closed"):
        third.add_ask(Ask(1, 1, 0, 1, None), COST, 0, torch.zeros(1, 2))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_hold_the_lock(tmp_path: Path) -> None:
    lock = WriterLock(tmp_path / "lock")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(reader, 1)
        os._exit(0)
    try:
        lock.release()
        again = WriterLock(tmp_path / "lock")  # refused if the child held it
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
        again.release()
    finally:
        os.write(writer, b".")
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("content", ["", "{}", '{"pid": "x"}', "\x00\xff", "[" * 900])
def test_a_strange_lock_file_is_no_obstacle(tmp_path: Path, content: str) -> None:
    (tmp_path / "lock").write_text(content)
    SQLiteStorage(tmp_path).close()
    holder = json.loads((tmp_path / "lock").read_text())
    assert holder["pid"] == os.getpid()


@pytest.mark.parametrize("keep", [0, 1, 50, 100, 4096, 5000])
def test_a_truncated_database_is_reported_and_left_alone(tmp_path: Path, keep: int) -> None:
    fill(tmp_path)
    database = tmp_path / "study.sqlite"
    content = database.read_bytes()
    assert len(content) > 5000
    database.write_bytes(content[:keep])
    with pytest.raises(
        RuntimeError, match="is damaged: .*`scalable-bo repair .*` restores what is"
    ):
        SQLiteStorage(tmp_path)
    assert database.read_bytes() == content[:keep]


def test_a_torn_database_is_reported(tmp_path: Path) -> None:
    fill(tmp_path)
    database = tmp_path / "study.sqlite"
    content = bytearray(database.read_bytes())
    for page in range(4096, len(content), 4096):
        content[page : page + 512] = bytes(512)
    database.write_bytes(content)
    with pytest.raises(RuntimeError, match="is damaged"):
        SQLiteStorage(tmp_path)


def test_a_missing_database_beside_what_belongs_to_it_is_reported(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "study.sqlite").rename(tmp_path / "study.sqlite-wal")
    with pytest.raises(RuntimeError, match=r"is damaged: study.sqlite is missing"):
        SQLiteStorage(tmp_path)


def test_missing_rows_are_reported(tmp_path: Path) -> None:
    fill(tmp_path)
    with sqlite3.connect(tmp_path / "study.sqlite") as connection:
        connection.execute("DELETE FROM points WHERE id = 1")
    connection.close()
    with pytest.raises(RuntimeError, match="is damaged: rows of the table points are missing"):
        SQLiteStorage(tmp_path)


def test_a_half_made_database_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "study.sqlite.new").write_bytes(b"SQLite format 3\x00 and no more")
    fill(tmp_path)
    assert not (tmp_path / "study.sqlite.new").exists()


def test_an_older_schema_is_migrated_and_a_newer_one_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    now = database.SCHEMA_VERSION
    with monkeypatch.context() as patch:
        patch.setattr(database, "SCHEMA_VERSION", now + 2)
        patch.setattr(
            database,
            "MIGRATIONS",
            database.MIGRATIONS
            | {
                now: "ALTER TABLE asks ADD COLUMN note TEXT",
                now + 1: "UPDATE asks SET note = 'first'; CREATE TABLE more (a INTEGER)",
            },
        )
        storage = SQLiteStorage(tmp_path)
        assert storage._connection.execute("SELECT note FROM asks").fetchall() == [("first",)]
        assert len(storage.load(2).asks) == 1
        storage.close()
    with pytest.raises(
        RuntimeError,
        match=f"has version {now + 2} of the schema, this scalable_bo reads up to {now}. Install",
    ):
        SQLiteStorage(tmp_path)


def test_a_study_from_before_the_costs_of_asks_were_kept_is_opened_and_goes_on(
    tmp_path: Path,
) -> None:
    fill(tmp_path)
    with sqlite3.connect(tmp_path / "study.sqlite") as connection:
        connection.executescript(
            "DROP TABLE costs; DROP TABLE queue; DROP TABLE ends; DROP TABLE changes;"
            " DELETE FROM settings;"
            " ALTER TABLE points DROP COLUMN further; PRAGMA user_version = 1"
        )
        for table in ("settings", "asks", "sources", "points"):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN seal")
        connection.executemany(
            "INSERT INTO settings VALUES (?, ?)",
            [
                ("columns", "x, y"),
                ("parameter `x`", "Float(low=0.0, high=9.0, log=False)"),
                ("parameter `y`", "Float(low=0.0, high=9.0, log=False)"),
                ("direction", "maximize"),
                ("seed", "0"),
            ],
        )
    connection.close()
    copy = SQLiteStorage.copy_of(tmp_path)
    assert copy.load_settings() == SETTINGS
    assert (copy.load(2).costs, copy.load(2).asks) == ({}, [Ask(1, 2, 2, 2, None)])
    storage = SQLiteStorage(tmp_path)
    storage.add_ask(Ask(2, 1, 3, 3, None), COST, 5, torch.zeros(1, 2, dtype=torch.float64))
    assert storage.load(2).costs == {2: COST}
    assert len(storage.load(2).rows) == 6


def test_a_study_from_before_points_had_values_of_some_outcomes_is_opened_and_goes_on(
    tmp_path: Path,
) -> None:
    fill(tmp_path)
    with sqlite3.connect(tmp_path / "study.sqlite") as connection:
        connection.execute("ALTER TABLE costs DROP COLUMN error")
        seals.seal(seals.install(connection), "costs")
        connection.execute("PRAGMA user_version = 8")
    connection.close()
    storage = SQLiteStorage(tmp_path)
    found = storage.load(2)
    assert all(cost.error is None for cost in found.costs.values()) and found.costs
    rows = found.rows
    assert (rows.observed, list(rows.reasons)) == ([0, 2, 4], [1])
    storage.add_outcomes([3], Outcomes.of([7.0]), rows.next_told)
    storage.close()
    assert SQLiteStorage(tmp_path).load(2).rows.observed == [0, 2, 4, 3]


def test_a_copy_is_of_what_is_committed_and_leaves_the_folder_as_it_is(tmp_path: Path) -> None:
    fill(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    copy = SQLiteStorage.copy_of(tmp_path)
    assert copy.load_settings() == SETTINGS
    assert len(copy.load(2).rows) == 5
    copy.close()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    storage = SQLiteStorage(tmp_path)
    storage.add_outcomes([3], Outcomes.of([7.0]), 4)
    # While another holds the lock
    assert SQLiteStorage.copy_of(tmp_path).load(2).rows.observed == [0, 2, 4, 3]
    with pytest.raises(
        ValueError, match="`folder` must hold a study, got .* without a study.sqlite"
    ):
        SQLiteStorage.copy_of(tmp_path / "elsewhere")
    storage.close()
    (tmp_path / "study.sqlite").write_bytes(b"no database")
    with pytest.raises(RuntimeError, match="is damaged"):
        SQLiteStorage.copy_of(tmp_path)


def test_a_migration_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    now = database.SCHEMA_VERSION
    with monkeypatch.context() as patch:
        patch.setattr(database, "SCHEMA_VERSION", now + 1)
        patch.setattr(
            database,
            "MIGRATIONS",
            database.MIGRATIONS | {now: "DELETE FROM points; SELECT nonsense FROM nowhere"},
        )
        with pytest.raises(
            RuntimeError,
            match=(
                f"could not be brought from version {now} of the schema to {now + 1}: no such"
                " table: nowhere. It is as it"
            ),
        ):
            SQLiteStorage(tmp_path)
    assert len(SQLiteStorage(tmp_path).load(2).rows) == 5


def test_what_could_not_be_written_is_reported_and_not_stored(tmp_path: Path) -> None:
    fill(tmp_path)
    storage = SQLiteStorage(tmp_path)
    (pages,) = storage._connection.execute("PRAGMA page_count").fetchone()
    storage._connection.execute(f"PRAGMA max_page_count = {pages}")  # the disk is full
    X = torch.zeros(5000, 2, dtype=torch.float64)
    with pytest.raises(
        OSError,
        match="could not be written: database or disk is full. Nothing of this call was stored",
    ):
        storage.add_source(Source("more", "def", 5, 5000), X, Outcomes.of(X[:, 0]), 4)
    assert len(storage.load(2).rows) == 5
    assert len(storage.load(2).sources) == 1


def checkpoint(ask: int) -> Checkpoint:
    return Checkpoint(
        ask,
        "RBF",
        {
            "lengthscale": torch.tensor([[float(ask)]]),
            "weights": torch.full((300, 1), ask, dtype=torch.float64),
        },
    )


def test_the_last_two_checkpoints_are_kept_and_the_right_one_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    assert load_checkpoint(folder, 9) is None
    for ask in (2, 3, 4):
        save_checkpoint(folder, checkpoint(ask))
    assert sorted(file.name for file in folder.iterdir()) == [
        "ask-00000003.safetensors",
        "ask-00000004.safetensors",
    ]
    for up_to, found in ((9, 4), (4, 4), (3, 3)):
        loaded = load_checkpoint(folder, up_to)
        assert loaded is not None
        assert (loaded.ask, loaded.kernel) == (found, "RBF")
        assert torch.equal(loaded.tensors["weights"], checkpoint(found).tensors["weights"])
    assert load_checkpoint(folder, 2) is None


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "ask-00000001.safetensors.0a1b.tmp").write_bytes(b"half")
    save_checkpoint(tmp_path, checkpoint(1))
    assert [file.name for file in tmp_path.iterdir()] == ["ask-00000001.safetensors"]


def flip(content: bytes) -> bytes:
    return content[:-5] + bytes([content[-5] ^ 1]) + content[-4:]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:7],
        lambda content: content[:-1],
        flip,
        lambda content: content.replace(b"RBF", b"FBR"),
        lambda content: b"\xff" * 8 + content[8:],  # a header of 2⁶⁴ bytes
        lambda content: b"\x80\x05K\x01.",  # a pickle
    ],
    ids=[
        "empty",
        "torn header",
        "torn end",
        "a flipped bit",
        "another kernel",
        "an enormous header",
        "a pickle",
    ],
)
def test_a_broken_checkpoint_falls_back_to_the_one_before(tmp_path: Path, damage) -> None:
    for ask in (1, 2):
        save_checkpoint(tmp_path, checkpoint(ask))
    newest = tmp_path / "ask-00000002.safetensors"
    newest.write_bytes(damage(newest.read_bytes()))
    with pytest.warns(UserWarning, match="ask-00000002.safetensors is damaged and was passed over"):
        loaded = load_checkpoint(tmp_path, 2)
    assert loaded is not None
    assert loaded.ask == 1


def test_a_checkpoint_that_could_not_be_finished_leaves_the_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path, checkpoint(1))

    def fail(descriptor: int) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="disk full"):
            save_checkpoint(tmp_path, checkpoint(2))
    loaded = load_checkpoint(tmp_path, 2)
    assert loaded is not None
    assert loaded.ask == 1
