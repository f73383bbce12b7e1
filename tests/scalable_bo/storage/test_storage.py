"""The folder of a study: one writer, whole files, a schema that can change."""

import fcntl
import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import pandas as pd
import pytest
import torch
from safetensors.torch import save

from scalable_bo.space.space import Float, Space
from scalable_bo.storage import legacy, sqlite
from scalable_bo.storage.checkpoints import Checkpoint, load_checkpoint, save_checkpoint
from scalable_bo.storage.lock import WriterLock
from scalable_bo.storage.log import pack
from scalable_bo.storage.record import make_settings
from scalable_bo.storage.restore import restore
from scalable_bo.storage.rounds import AskReport
from scalable_bo.storage.rows import Outcomes
from scalable_bo.storage.sqlite import CheckpointFolder, SQLiteStorage, connect
from scalable_bo.storage.storage import Ask, Source, Write
from scalable_bo.study.study import Study
from tests.forked import CONTEXT
from tests.quick import QUICK
from tests.scalable_bo.crashes import hold_lock

STORED = Path(__file__).parent / "stored"
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


def test_the_database_is_safe_against_power_cuts(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path)
    storage.save_settings(SETTINGS)
    assert storage._connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert storage._connection.execute("PRAGMA synchronous").fetchone() == (3,)  # EXTRA


def test_a_process_that_changes_its_folder_writes_to_the_study_that_it_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> Study:
        return Study(SPACE, maximize=True, num_initial=2, sampler=QUICK, path=Path("runs") / "kept")

    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        with make() as study:
            study.tell(study.ask(1), [1.0])
    before = (tmp_path / "here/runs/kept/backup.sqlite").read_bytes()
    study = make()
    monkeypatch.chdir(tmp_path / "here")
    study.tell(study.ask(3), [2.0] * 3)
    study.tell(study.ask(3), [3.0] * 3)
    study.close()
    assert (tmp_path / "here/runs/kept/backup.sqlite").read_bytes() == before
    assert not (tmp_path / "here/runs/kept/checkpoints").exists()
    assert list((tmp_path / "there/runs/kept/checkpoints").iterdir())
    (tmp_path / "there/runs/kept/study.sqlite").unlink()
    restore(tmp_path / "there/runs/kept")
    with Study.open(tmp_path / "there/runs/kept") as study:
        assert study.num_observations == 7


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
    with pytest.raises(RuntimeError, match=f"by process {os.getpid()} .*, this one. Call `close"):
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
    with closing(SQLiteStorage(tmp_path)):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("note", ["ended", "closed", "strange"])
def test_a_lock_that_is_held_by_no_study_names_no_process(tmp_path: Path, note: str) -> None:
    lock = tmp_path / "lock"
    if note == "closed":
        SQLiteStorage(tmp_path).close()
    else:
        ended = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True, check=True)
        pid = int(ended.stdout) if note == "ended" else "x"
        lock.write_text(json.dumps({"pid": pid, "host": os.uname().nodename}))
    with (
        lock.open() as file,
        pytest.raises(RuntimeError, match="is in use by an unknown process: `fuser lock` in"),
    ):
        fcntl.flock(file, fcntl.LOCK_EX)
        SQLiteStorage(tmp_path)


@pytest.mark.parametrize(
    ("mode", "umask", "of_files"),
    [(None, 0, 0o600), (0o2770, 0o077, 0o660), (0o2700, 0o077, 0o600), (0o770, 0o077, 0o600)],
)
def test_files_are_their_owners_alone_or_those_of_the_group_whose_folder_it_is(
    tmp_path: Path, mode: int | None, umask: int, of_files: int
) -> None:
    folder = tmp_path / "study"
    if mode is not None:
        folder.mkdir()
        folder.chmod(mode)
    before = os.umask(umask)
    try:
        with Study(SPACE, maximize=True, path=folder, num_initial=2, sampler=QUICK) as study:
            for _ in range(2):
                study.tell(study.ask(2), [1.0, 2.0])
        (folder / "study.sqlite").write_bytes(b"no database")
        restore(folder)
    finally:
        os.umask(before)
    paths = [*folder.rglob("*"), *([folder] if mode is None else [])]
    modes = {path: path.stat().st_mode & 0o777 for path in paths}
    assert {mode for path, mode in modes.items() if path.is_file()} == {of_files}
    of_folders = 0o770 if of_files == 0o660 else 0o700
    assert {mode for path, mode in modes.items() if path.is_dir()} == {of_folders}
    names = {"lock", "study.sqlite", "backup.sqlite", "checkpoints", "damaged-1"}
    assert names < {path.name for path in modes}


def test_a_missing_database_beside_what_belongs_to_it_is_reported(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "study.sqlite").rename(tmp_path / "study.sqlite-wal")
    with pytest.raises(RuntimeError, match=r"is damaged: study.sqlite is missing"):
        SQLiteStorage(tmp_path)


def test_a_half_made_database_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "study.sqlite.new").write_bytes(b"SQLite format 3\x00 and no more")
    fill(tmp_path)
    assert not (tmp_path / "study.sqlite.new").exists()


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    fill(tmp_path)
    with sqlite3.connect(tmp_path / "study.sqlite") as connection:
        connection.execute(f"PRAGMA user_version = {sqlite.VERSION + 1}")
    connection.close()
    for read in (SQLiteStorage, SQLiteStorage.copy_of):
        with pytest.raises(RuntimeError, match="has version 11 of the schema, .* reads up to 10."):
            read(tmp_path)


def make_older(folder: Path, version: int) -> None:
    """Bring a study of version 9 of the schema to what an older version would have made of it."""
    with sqlite3.connect(folder / "study.sqlite") as connection:
        for first, statement in (
            (9, "ALTER TABLE costs DROP COLUMN error"),
            (8, "DROP TABLE changes"),
            (7, "DROP TABLE queue; ALTER TABLE points DROP COLUMN further"),
            (6, "DROP TABLE ends"),
            (5, "ALTER TABLE costs DROP COLUMN choice"),
            (4, "ALTER TABLE costs DROP COLUMN converged"),
        ):
            if version < first:
                connection.executescript(statement)
        tables = legacy.table_names(connection)
        if "ends" in tables:
            last = json.loads(connection.execute("SELECT rows FROM ends").fetchone()[0])
            kept = json.dumps({name: last[name] for name in last if name in tables})
            connection.execute("UPDATE ends SET rows = ?", (kept,))
        for table in tables:
            if version < 6:
                connection.execute(f"ALTER TABLE {table} DROP COLUMN seal")
                continue
            cursor = connection.execute(f"SELECT rowid, * FROM {table}")
            names = [column[0] for column in cursor.description]
            for row in cursor.fetchall():
                values = [
                    one for one, name in zip(row[1:], names[1:], strict=True) if name != "seal"
                ]
                seal = (legacy.seal_of(values), row[0])
                connection.execute(f"UPDATE {table} SET seal = ? WHERE rowid = ?", seal)
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()


@pytest.mark.parametrize("version", range(3, 9))
def test_studies_of_older_versions_are_opened_and_go_on(tmp_path: Path, version: int) -> None:
    now, old = (Path(shutil.copytree(STORED / "nine", tmp_path / name)) for name in ("now", "old"))
    make_older(old, version)
    whole = SQLiteStorage(now).load(3)
    for read in (SQLiteStorage.copy_of, SQLiteStorage, SQLiteStorage):
        with closing(read(old)) as storage:
            assert storage.load_settings() == SQLiteStorage.copy_of(now).load_settings()
            found = storage.load(3)
            assert found.rows.observed == whole.rows.observed
            assert found.rows.reasons == whole.rows.reasons
            assert torch.equal(found.rows.X, whole.rows.X)
            assert found.asks == whole.asks
            assert found.sources == whole.sources
            assert found.changes == (whole.changes if version >= 8 else [])
            assert len(found.queue) == (len(whole.queue) if version >= 7 else 0)
            assert [cost.choice for cost in found.costs.values()] == ["", ""]
    with closing(SQLiteStorage(old)) as storage:
        pending = int((~found.rows.told).nonzero()[0])
        storage.add_outcomes([pending], Outcomes.of([7.0]), found.rows.next_told)
    assert SQLiteStorage(old).load(3).rows.observed == [*whole.rows.observed, pending]


def test_a_study_from_before_the_costs_of_asks_were_kept_is_opened(tmp_path: Path) -> None:
    shutil.copytree(STORED / "box", tmp_path / "study")
    with sqlite3.connect(tmp_path / "study" / "study.sqlite") as connection:
        connection.executescript("DROP TABLE costs; PRAGMA user_version = 1")
    connection.close()
    found = SQLiteStorage(tmp_path / "study").load(2)
    assert (found.costs, len(found.asks)) == ({}, 1)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE points SET value = value + 1e-15 WHERE id = 2",
        "UPDATE points SET x = x || x",
        "DELETE FROM points WHERE id = (SELECT max(id) FROM points)",
        "UPDATE settings SET value = '7' WHERE name = 'seed'",
        "UPDATE ends SET writes = 3",
        "CREATE VIEW more AS SELECT 1",
        "ALTER TABLE asks ADD COLUMN more AS (zeroblob(1000000000))",
        "DROP TABLE points",
        "PRAGMA user_version = 2",
    ],
)
def test_a_damaged_study_of_an_older_version_is_refused_and_its_backup_is_restored(
    tmp_path: Path, statement: str
) -> None:
    folder = Path(shutil.copytree(STORED / "nine", tmp_path / "study"))
    whole = SQLiteStorage.copy_of(folder).load(3)
    shutil.copy(folder / "study.sqlite", folder / "backup.sqlite")
    with sqlite3.connect(folder / "study.sqlite") as connection:
        connection.execute(statement)
    connection.close()
    content = (folder / "study.sqlite").read_bytes()
    for read in (SQLiteStorage, SQLiteStorage.copy_of):
        with pytest.raises(RuntimeError, match="is damaged: .* `scalable-bo repair"):
            read(folder)
    assert (folder / "study.sqlite").read_bytes() == content
    assert restore(folder) == ["whatever was written after write 2"]
    assert torch.equal(SQLiteStorage(folder).load(3).rows.X, whole.rows.X)


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


def test_a_conversion_that_fails_changes_nothing(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(STORED / "nine", tmp_path / "study"))
    full = sqlite3.OperationalError("the disk is full")
    message = "could not be brought from version 9 of the schema to 10: the disk is full. It is"
    with (
        patch.object(sqlite, "append", side_effect=full),
        pytest.raises(RuntimeError, match=message),
    ):
        SQLiteStorage(folder)
    assert len(SQLiteStorage(folder).load(3).rows) == 10
    with closing(sqlite3.connect(folder / "version-9.sqlite")) as connection:
        assert connection.execute("SELECT count(*) FROM points").fetchone() == (10,)


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
    kept = CheckpointFolder(folder)
    assert load_checkpoint(kept, 9) is None
    for ask in (2, 3, 4):
        save_checkpoint(kept, checkpoint(ask))
    assert sorted(file.name for file in folder.iterdir()) == [
        "ask-00000003.safetensors",
        "ask-00000004.safetensors",
    ]
    for up_to, found in ((9, 4), (4, 4), (3, 3)):
        loaded = load_checkpoint(kept, up_to)
        assert (loaded.ask, loaded.kernel) == (found, "RBF")
        assert torch.equal(loaded.tensors["weights"], checkpoint(found).tensors["weights"])
    assert load_checkpoint(kept, 2) is None


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "ask-00000001.safetensors.0a1b.tmp").write_bytes(b"half")
    save_checkpoint(CheckpointFolder(tmp_path), checkpoint(1))
    assert [file.name for file in tmp_path.iterdir()] == ["ask-00000001.safetensors"]


def with_text(text: str) -> Callable[[bytes], bytes]:
    """Return a damage that leaves the tensors of a checkpoint beside another description."""
    return lambda content: save(checkpoint(2).tensors, metadata={"scalable_bo": text})


def claim_a_terabyte(content: bytes) -> bytes:
    claim = {"weights": {"dtype": "F64", "shape": [2**40, 1], "data_offsets": [0, 2**43]}}
    header = json.dumps(claim).encode()
    return len(header).to_bytes(8, "little") + header + bytes(64)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "torn header": lambda content: content[:7],
    "torn end": lambda content: content[:-1],
    "a flipped bit": lambda content: content[:-5] + bytes([content[-5] ^ 1]) + content[-4:],
    "another kernel": lambda content: content.replace(b"RBF", b"FBR"),
    "an enormous header": lambda content: b"\xff" * 8 + content[8:],  # of 2⁶⁴ bytes
    "an enormous tensor": claim_a_terabyte,
    "a pickle": lambda content: b"\x80\x05K\x01.",
    "another format": lambda content: content.replace(rb"format\": 1", rb"format\": 2"),
    "torn text": with_text('{"format": 1'),
    "deep text": with_text("[" * 100_000),
    "a list": with_text("[]"),
    "null": with_text("null"),
    "an enormous number": with_text(
        '{"format": 1, "ask": "' + "9" * 5000 + '", "kernel": "", "digest": ""}'
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_broken_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    for ask in (1, 2):
        save_checkpoint(CheckpointFolder(tmp_path), checkpoint(ask))
    newest = tmp_path / "ask-00000002.safetensors"
    newest.write_bytes(damage(newest.read_bytes()))
    with pytest.warns(UserWarning, match="ask-00000002.safetensors is damaged and was passed over"):
        loaded = load_checkpoint(CheckpointFolder(tmp_path), 2)
    assert loaded.ask == 1


def test_a_checkpoint_is_not_that_of_another_ask(tmp_path: Path) -> None:
    save_checkpoint(CheckpointFolder(tmp_path), checkpoint(2))
    (tmp_path / "ask-00000002.safetensors").rename(tmp_path / "ask-00000001.safetensors")
    with pytest.warns(UserWarning, match="is damaged and was passed over"):
        assert load_checkpoint(CheckpointFolder(tmp_path), 9) is None


def test_a_checkpoint_that_could_not_be_finished_leaves_the_old_ones(tmp_path: Path) -> None:
    save_checkpoint(CheckpointFolder(tmp_path), checkpoint(1))
    with (
        patch.object(os, "fsync", side_effect=OSError("disk full")),
        pytest.warns(UserWarning, match=r"ask-00000002.* could not be kept \(.*disk full"),
    ):
        save_checkpoint(CheckpointFolder(tmp_path), checkpoint(2))
    loaded = load_checkpoint(CheckpointFolder(tmp_path), 2)
    assert loaded.ask == 1


def told_one_by_one(folder: Path, count: int) -> Study:
    study = Study(Space(x=Float(0.0, 1.0)), maximize=True, seed=1, path=folder, num_initial=1000)
    for id in study.ask(count).ids:
        study.tell([id], [id / 3 if id % 5 else "no number"])
    return study


def num_writes(file: Path) -> int:
    with closing(connect(file)) as connection:
        return int(connection.execute("SELECT count(*) FROM writes").fetchone()[0])


def test_what_values_told_one_by_one_amount_to_is_read_not_each_of_them(tmp_path: Path) -> None:
    with told_one_by_one(tmp_path, 50) as study:
        study.enqueue({"x": 0.25})
        study.withdraw([7], why="spilt")
        before = pack(Write("adopt", (study._record.contents,)))
    assert num_writes(tmp_path / "study.sqlite") == num_writes(tmp_path / "backup.sqlite") == 2
    with Study.open(tmp_path) as study:
        assert pack(Write("adopt", (study._record.contents,))) == before
        assert study.ask(1).params == [{"x": 0.25}]
        assert study.changes[0].why == "spilt"
    assert num_writes(tmp_path / "study.sqlite") == 3  # one more write is read as it is


def test_a_study_that_was_killed_is_put_together_when_it_is_opened_and_closed(
    tmp_path: Path,
) -> None:
    study = told_one_by_one(tmp_path / "running", 20)
    shutil.copytree(tmp_path / "running", tmp_path / "killed")
    study.close()
    for _ in range(2):
        with Study.open(tmp_path / "killed") as again:
            pd.testing.assert_frame_equal(again.to_dataframe(), study.to_dataframe())
        assert num_writes(tmp_path / "killed" / "study.sqlite") == 2


def test_a_log_that_cannot_be_read_or_kept_in_one_write_is_not_put_together(tmp_path: Path) -> None:
    study = told_one_by_one(tmp_path, 20)
    held = study._record.storage._held
    before = held.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 2000)
    held.back_up()
    held.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, before)
    assert num_writes(tmp_path / "study.sqlite") == num_writes(tmp_path / "backup.sqlite") == 22
    backup = (tmp_path / "backup.sqlite").read_bytes()
    study.ask(20)
    with closing(connect(tmp_path / "study.sqlite")) as connection:
        connection.execute("UPDATE writes SET content = x'00' WHERE number = 22")
    study.close()
    assert (tmp_path / "backup.sqlite").read_bytes() == backup
    with pytest.raises(RuntimeError, match="is damaged: write 22 is missing or has changed"):
        SQLiteStorage(tmp_path)
