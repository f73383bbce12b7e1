"""Damage of any kind is noticed, and what is whole is restored."""

import random
import re
import shlex
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pandas as pd
import pytest
import torch

from scalable_bo.report.snapshot import to_frame
from scalable_bo.space.space import Categorical, Float, Space
from scalable_bo.storage.restore import restore
from scalable_bo.storage.sqlite import DATABASE, VERSION, DamagedError, SQLiteStorage, connect
from scalable_bo.study.answers import read_snapshot
from scalable_bo.study.study import Study

SPACE = Space(x=Float(0.0, 1.0), kind=Categorical(["a", "b"]))
FILES = ("study.sqlite", "backup.sqlite", "lock")


def make(path: Path) -> Study:
    return Study(SPACE, maximize=True, seed=3, path=path, num_initial=10_000)


def tell_all(study: Study) -> None:
    batch = study.pending
    study.tell(batch.ids, [float("nan") if id % 7 == 3 else id / 3 for id in batch.ids])


Running = tuple[Path, pd.DataFrame]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Running:
    """The folder of a study as it is while it runs, with a backup of its beginning; and what it
    holds.
    """
    folder = tmp_path_factory.mktemp("running")
    with make(folder / "study") as study:
        study.add_data([{"x": 0.5, "kind": "b"}, {"x": 0.25, "kind": "a"}], [1.0, 2.0], name="old")
        for _ in range(4):
            study.ask(30)
            tell_all(study)
    study = make(folder / "study")
    for _ in range(3):
        study.ask(10)
        tell_all(study)
    study.ask(2)
    shutil.copytree(folder / "study", folder / "copy")
    frame = study.to_dataframe()
    study.close()
    return folder / "copy", frame


@pytest.fixture
def copied(running: Running, tmp_path: Path) -> Path:
    """A copy of that folder."""
    return Path(shutil.copytree(running[0], tmp_path / "study"))


@pytest.mark.parametrize("number", [40, pytest.param(2000, marks=pytest.mark.slow)])
def test_no_flipped_bit_opens_with_other_numbers(
    tmp_path: Path, running: Running, number: int
) -> None:
    folder, frame = running
    instant = random.Random(number)
    sizes = [(folder / name).stat().st_size for name in FILES]
    for _ in range(number):
        shutil.copytree(folder, tmp_path / "study")
        file = tmp_path / "study" / instant.choices(FILES, sizes)[0]
        content = bytearray(file.read_bytes())
        position = instant.randrange(8 * len(content))
        content[position // 8] ^= 1 << position % 8
        file.write_bytes(content)
        with suppress(RuntimeError, OSError, ValueError), make(tmp_path / "study") as study:
            assert study.to_dataframe().equals(frame)
        shutil.rmtree(tmp_path / "study")


def contents(folder: Path) -> pd.DataFrame:
    with closing(SQLiteStorage(folder)) as storage:
        assert storage.load_settings() is not None
        return to_frame(SPACE, storage.load(2).rows)


def contents_of_copy(folder: Path) -> pd.DataFrame:
    snapshot = read_snapshot(folder)
    return to_frame(snapshot.space, snapshot.rows)


def contents_restored(folder: Path) -> pd.DataFrame:
    restore(folder)
    found = contents(folder)
    with closing(SQLiteStorage(folder)) as storage:
        storage.add_queued(torch.zeros(1, 2, dtype=torch.float64))
    return found


@pytest.mark.parametrize(
    ("seed", "number"), [(0, 40), pytest.param(1, 1000, marks=pytest.mark.slow)]
)
def test_a_damaged_byte_leaves_the_same_numbers_or_an_error_that_names_the_remedy(
    tmp_path: Path, seed: int, number: int
) -> None:
    instant = random.Random(seed)
    whole = tmp_path / "whole"
    with make(whole) as study:
        study.add_data([{"x": 0.5, "kind": "b"}, {"x": 0.25, "kind": "a"}], [1.0, 2.0], name="old")
        study.ask(30)
        tell_all(study)
        study.enqueue({"x": 0.5, "kind": "a"})
        study.withdraw([1])
        frame = study.to_dataframe()
    content = (whole / "study.sqlite").read_bytes()
    for _ in range(number):
        damaged = bytearray(content)
        # Mostly in the page that says what the others are, and in its header
        place = instant.randrange(instant.choice([100, 4096, 4096, len(content)]))
        damaged[place] ^= instant.randrange(1, 256)
        for read in (contents, contents_of_copy, contents_restored):
            shutil.copytree(whole, tmp_path / "study")
            (tmp_path / "study" / "study.sqlite").write_bytes(damaged)
            try:
                pd.testing.assert_frame_equal(read(tmp_path / "study"), frame)
            except RuntimeError as error:
                assert "scalable-bo repair" in str(error)
                assert read is not contents_restored or "move study.sqlite away" in str(error)
            shutil.rmtree(tmp_path / "study")


def change(folder: Path, statement: str) -> None:
    with closing(connect(folder / "study.sqlite")) as connection:
        connection.execute(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE writes SET content = content || x'00' WHERE number = 14",
        "UPDATE writes SET content = CAST(content AS TEXT) WHERE number = 14",
        "UPDATE writes SET content = 4 WHERE number = 9",
        "UPDATE writes SET content = (SELECT content FROM writes LIMIT 1) WHERE number = 10",
        "UPDATE writes SET digest = (SELECT digest FROM writes LIMIT 1) WHERE number = 14",
        "UPDATE writes SET digest = x'ff' WHERE number = 14",
        "UPDATE writes SET number = 0 WHERE number = 14",
        "UPDATE sqlite_sequence SET seq = 13",
        "UPDATE sqlite_sequence SET seq = 'many'",
        "INSERT INTO sqlite_sequence VALUES ('writes', 15)",
        "DELETE FROM writes WHERE number = (SELECT max(number) FROM writes)",
        "DELETE FROM writes WHERE number = 15",
        "DELETE FROM writes",
        "DELETE FROM sqlite_sequence",
    ],
)
def test_every_changed_or_missing_row_is_noticed_and_restored_from_the_backup(
    copied: Path, statement: str
) -> None:
    with make(copied) as study:  # the backup is now of all
        study.ask(1)
    frame = study.to_dataframe()
    change(copied, statement)
    with pytest.raises(DamagedError, match="is damaged: .* `scalable-bo repair .*study` restores"):
        make(copied)
    with pytest.raises(DamagedError, match="is damaged"):
        SQLiteStorage.copy_of(copied)
    lost = restore(copied)
    assert not lost or re.fullmatch(r"whatever was written after write 1\d", lost[0])
    assert restore(copied) is None
    with make(copied) as study:
        pd.testing.assert_frame_equal(study.to_dataframe(), frame)
        study.ask(3)
    assert (copied / "damaged-1" / "study.sqlite").exists()


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n) SELECT i"


@pytest.mark.parametrize(
    ("name", "statement"),
    [
        ("view writes", f"DROP TABLE writes; CREATE VIEW writes AS {ENDLESS}, i, i FROM n"),
        ("view more", f"CREATE VIEW more AS {ENDLESS} FROM n"),
        ("trigger more", "CREATE TRIGGER more AFTER UPDATE ON writes BEGIN SELECT 1; END"),
        ("table more", "CREATE TABLE more (id INTEGER PRIMARY KEY)"),
        ("table more", "CREATE VIRTUAL TABLE more USING fts5(a)"),
        ("index more", "CREATE INDEX more ON writes (content)"),
        ("table sqlite_stat1", "ANALYZE"),
        ("table writes", "ALTER TABLE writes ADD COLUMN more AS (zeroblob(1000000000))"),
        ("table writes", "ALTER TABLE writes ADD COLUMN more CHECK (length(zeroblob(1000000000)))"),
        ("table writes", "ALTER TABLE writes RENAME COLUMN content TO seals"),
        ("table writes", "DROP TABLE writes"),
    ],
)
def test_what_a_study_does_not_define_is_refused_before_anything_is_read(
    copied: Path, name: str, statement: str
) -> None:
    with make(copied) as study:
        study.ask(1)
    with closing(connect(copied / "study.sqlite")) as connection:
        connection.executescript(statement)
    for read in (make, SQLiteStorage.copy_of, read_snapshot):
        with pytest.raises(DamagedError, match=f"not those of version {VERSION}: .*{name}"):
            read(copied)
    assert restore(copied) is not None
    pd.testing.assert_frame_equal(contents(copied), study.to_dataframe())


@pytest.mark.parametrize("version", [0, -1, 1, 2, 3, 5, 6, 9, -(2**31)])
def test_a_number_of_the_version_that_is_damaged_is_restored(tmp_path: Path, version: int) -> None:
    with make(tmp_path) as study:
        study.ask(5)
        tell_all(study)
    change(tmp_path, f"PRAGMA user_version = {version}")
    for read in (make, read_snapshot):
        with pytest.raises(DamagedError, match=f"version {version}.*scalable-bo repair"):
            read(tmp_path)
    assert restore(tmp_path) == []
    pd.testing.assert_frame_equal(contents(tmp_path), study.to_dataframe())


def test_a_header_that_forbids_to_write_is_damage(tmp_path: Path) -> None:
    with make(tmp_path) as study:
        study.ask(5)
    file = tmp_path / "study.sqlite"
    file.write_bytes(file.read_bytes()[:18] + b"\x07" + file.read_bytes()[19:])
    for read in (make, read_snapshot):
        with pytest.raises(DamagedError, match="cannot be read: attempt to write a readonly"):
            read(tmp_path)
    assert restore(tmp_path) == []
    with make(tmp_path) as study:
        study.ask(1)


def test_the_command_that_repairs_a_study_is_one_for_a_shell(tmp_path: Path) -> None:
    with make(tmp_path / "a study") as study:
        study.ask(1)
    (tmp_path / "a study" / DATABASE).write_bytes(b"no database")
    with pytest.raises(DamagedError) as refused:
        make(tmp_path / "a study")
    command = str(refused.value).split("`")[1]
    assert shlex.split(command) == ["scalable-bo", "repair", str(tmp_path / "a study")]


def test_a_study_without_a_whole_write_is_left_as_it_is(tmp_path: Path) -> None:
    with make(tmp_path) as study:
        study.ask(5)
    (tmp_path / "backup.sqlite").unlink()
    file = tmp_path / "study.sqlite"
    file.write_bytes(file.read_bytes().replace(b"CREATE TABLE writes", b"CREATE \xffABLE writes"))
    for read in (make, read_snapshot):
        with pytest.raises(DamagedError, match="study.sqlite cannot be read: .*scalable-bo repair"):
            read(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(RuntimeError, match="cannot be restored: .* restore the folder from a copy"):
        restore(tmp_path)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_what_follows_a_write_that_is_whole_nowhere_is_lost(copied: Path, running: Running) -> None:
    # 10 writes are in the backup
    change(copied, "UPDATE writes SET content = x'00' WHERE number IN (10, 13)")
    assert restore(copied) == ["the last 5 of 17 writes"]
    with make(copied) as study:
        found = study.to_dataframe()
        assert len(found) == 132
        study.ask(3)
    told = found["status"] == "observed"
    pd.testing.assert_frame_equal(found[told], running[1][:132][told])


def test_a_backup_of_another_course_of_the_study_is_not_mixed_in(tmp_path: Path) -> None:
    with make(tmp_path / "study") as study:
        study.tell(study.ask(2), [1.0, 2.0])
    shutil.copytree(tmp_path / "study", tmp_path / "early")
    for name, value in (("study", 3.0), ("early", 4.0)):
        with make(tmp_path / name) as study:
            for _ in range(3):
                study.tell(study.ask(1), [value])
            frame = study.to_dataframe()
            shutil.copy(tmp_path / name / "study.sqlite", tmp_path / f"{name}.sqlite")
    shutil.copy(tmp_path / "study.sqlite", tmp_path / "early" / "backup.sqlite")
    shutil.copy(tmp_path / "early.sqlite", tmp_path / "early" / "study.sqlite")
    change(tmp_path / "early", "UPDATE writes SET content = x'00' WHERE number = 7")
    assert restore(tmp_path / "early") == ["the last 3 of 9 writes"]
    pd.testing.assert_frame_equal(contents(tmp_path / "early")[:3], frame[:3])


@pytest.mark.parametrize(
    "damage",
    [
        None,
        lambda content: b"no database",
        lambda content: bytes(4096) + content[4096:],
        lambda content: b"",
        lambda content: content[:100],
        lambda content: content[: len(content) * 3 // 5],
        lambda content: content[: len(content) * 3 // 5] + bytes(len(content) * 2 // 5),
    ],
    ids=["missing", "another file", "without its first page", "empty", "cut", "torn", "zeros"],
)
def test_without_a_readable_database_the_backup_is_restored(
    copied: Path, running: Running, damage: Callable[[bytes], bytes] | None
) -> None:
    file = copied / "study.sqlite"
    if damage is None:
        file.unlink()
    else:
        damaged = damage(file.read_bytes())
        file.write_bytes(damaged)
        with pytest.raises(
            RuntimeError, match="(?s)is damaged: .*`scalable-bo repair .*` restores what is"
        ):
            make(copied)
        assert file.read_bytes() == damaged
    assert restore(copied)
    with make(copied) as study:
        found = study.to_dataframe()
    told = found["status"] == "observed"
    pd.testing.assert_frame_equal(found[:122], running[1][:122])
    pd.testing.assert_frame_equal(found[told], running[1][: len(found)][told])


def test_every_page_that_is_overwritten_costs_no_more_than_what_follows_it(
    tmp_path: Path, running: Running
) -> None:
    folder, frame = running
    size = (folder / DATABASE).stat().st_size
    for page in range(size // 4096):
        shutil.copytree(folder, tmp_path / "study")
        with (tmp_path / "study" / DATABASE).open("r+b") as file:
            file.seek(4096 * page)
            file.write(bytes(4096))
        if restore(tmp_path / "study") is not None:
            with make(tmp_path / "study") as study:
                found = study.to_dataframe()
                assert len(found) >= 122  # those of the backup
                told = found["status"] == "observed"
                pd.testing.assert_frame_equal(found[told], frame[: len(found)][told])
                assert told[:122].equals(frame["status"][:122] == "observed")
        shutil.rmtree(tmp_path / "study")


def test_what_is_no_study_is_not_repaired(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`folder` must hold a study"):
        restore(tmp_path)
    (tmp_path / "study.sqlite").write_bytes(b"no database")
    with pytest.raises(RuntimeError, match="cannot be restored: its settings are whole neither"):
        restore(tmp_path)
    assert (tmp_path / "study.sqlite").read_bytes() == b"no database"


def test_a_backup_is_made_when_a_study_is_closed_and_at_times(tmp_path: Path) -> None:
    backup = tmp_path / "backup.sqlite"

    def num_writes() -> int:
        with closing(sqlite3.connect(backup)) as connection:
            return connection.execute("SELECT count(*) FROM writes").fetchone()[0]

    with make(tmp_path) as study:
        study.ask(5)
        assert not backup.exists()
    assert num_writes() == 2
    study = make(tmp_path)
    storage = study._record.storage
    storage._held.next_backup = 0.0
    study.ask(5)
    assert num_writes() == 3
    study.close()
