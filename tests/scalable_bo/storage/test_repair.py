"""Damage of any kind is noticed, and what is whole is restored."""

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from scalable_bo.report.snapshot import read_snapshot, to_frame
from scalable_bo.space.space import Categorical, Float, Space
from scalable_bo.storage import seals
from scalable_bo.storage.database import SCHEMA_VERSION, DamagedError, connect
from scalable_bo.storage.repair import LOST, repair
from scalable_bo.storage.sqlite import SQLiteStorage
from scalable_bo.study.study import Study

SPACE = Space(x=Float(0.0, 1.0), kind=Categorical(["a", "b"]))
FILES = ("study.sqlite", "study.sqlite-wal", "backup.sqlite", "writes", "lock")


def make(path: Path) -> Study:
    return Study(SPACE, maximize=True, seed=3, path=path, num_initial=10_000)


def tell_all(study: Study) -> None:
    batch = study.pending
    study.tell(batch.ids, [float("nan") if id % 7 == 3 else id / 3 for id in batch.ids])


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame]:
    """The folder of a study as it is while it runs: rows in the database, the log and the backup;
    and what it holds.
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


def flip(file: Path, instant: random.Random) -> None:
    content = bytearray(file.read_bytes())
    position = instant.randrange(8 * len(content))
    content[position // 8] ^= 1 << position % 8
    file.write_bytes(content)


def flips_unnoticed(folder: Path, frame: pd.DataFrame, workplace: Path, number: int) -> int:
    """Flip bits, one at a time, in files by their size; return how often the study is opened and
    holds anything else.
    """
    instant = random.Random(number)
    names = [name for name in FILES if (folder / name).exists()]
    sizes = [(folder / name).stat().st_size for name in names]
    unnoticed = 0
    for _ in range(number):
        shutil.rmtree(workplace, ignore_errors=True)
        shutil.copytree(folder, workplace)
        flip(workplace / instant.choices(names, sizes)[0], instant)
        try:
            with make(workplace) as study:
                unnoticed += not study.to_dataframe().equals(frame)
        except (RuntimeError, OSError, ValueError):
            continue
    return unnoticed


@pytest.mark.parametrize("number", [40, pytest.param(2000, marks=pytest.mark.slow)])
def test_no_flipped_bit_opens_with_other_numbers(
    tmp_path: Path, running: tuple[Path, pd.DataFrame], number: int
) -> None:
    folder, frame = running
    assert flips_unnoticed(folder, frame, tmp_path / "study", number) == 0


def contents(folder: Path) -> pd.DataFrame:
    with closing(SQLiteStorage(folder)) as storage:
        assert storage.load_settings() is not None
        return to_frame(SPACE, storage.load(2).rows)


def contents_of_copy(folder: Path) -> pd.DataFrame:
    snapshot = read_snapshot(folder)
    return to_frame(snapshot.space, snapshot.rows)


def contents_restored(folder: Path) -> pd.DataFrame:
    repair(folder)
    found = contents(folder)
    with closing(SQLiteStorage(folder)) as storage:
        storage.add_queued(torch.zeros(1, 2, dtype=torch.float64))
    return found


@pytest.mark.parametrize(
    ("seed", "number"), [(0, 80), pytest.param(1, 1000, marks=pytest.mark.slow)]
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
        "UPDATE points SET value = value + 1e-15 WHERE id = 4",
        "UPDATE points SET x = (SELECT x FROM points WHERE id = 3) WHERE id = 4",
        "UPDATE points SET told = told + 1 WHERE id = 4",
        "UPDATE points SET reason = 'no' WHERE id = 10",
        "UPDATE asks SET num_drawn = 1 WHERE number = 2",
        "UPDATE costs SET solver = 'CG' WHERE ask = 2",
        "UPDATE sources SET digest = 'other'",
        "UPDATE settings SET value = '4' WHERE name = 'seed'",
        "UPDATE ends SET writes = 0",
        "DELETE FROM points WHERE id = (SELECT max(id) FROM points)",
        "DELETE FROM points WHERE id = 5",
        "DELETE FROM points",
        "DELETE FROM asks WHERE number = (SELECT max(number) FROM asks)",
        "DELETE FROM sources",
        "DELETE FROM ends",
    ],
)
def test_every_changed_or_missing_row_is_noticed_and_restored_from_the_backup(
    tmp_path: Path, running: tuple[Path, pd.DataFrame], statement: str
) -> None:
    shutil.copytree(running[0], tmp_path / "study")
    with make(tmp_path / "study") as study:  # the backup is now of all
        study.ask(1)
    frame = study.to_dataframe()
    change(tmp_path / "study", statement)
    with pytest.raises(DamagedError, match="is damaged: .* `scalable-bo repair .*study` restores"):
        make(tmp_path / "study")
    with pytest.raises(DamagedError, match="is damaged"):
        SQLiteStorage.copy_of(tmp_path / "study")
    assert repair(tmp_path / "study") == []
    assert repair(tmp_path / "study") is None
    with make(tmp_path / "study") as study:
        pd.testing.assert_frame_equal(study.to_dataframe(), frame)
        study.ask(3)
    assert (tmp_path / "study" / "damaged-1" / "study.sqlite").exists()


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n) SELECT i"


@pytest.mark.parametrize(
    ("name", "statement"),
    [
        *(
            (f"view {table}", f"DROP TABLE {table}; CREATE VIEW {table} AS {ENDLESS} FROM n")
            for table in ("settings", "asks", "sources", "points", "costs", "ends", "queue")
        ),
        ("view more", f"CREATE VIEW more AS {ENDLESS} FROM n"),
        ("trigger more", "CREATE TRIGGER more AFTER UPDATE ON ends BEGIN DELETE FROM asks; END"),
        ("table more", "CREATE TABLE more (id INTEGER PRIMARY KEY)"),
        ("table more", "CREATE VIRTUAL TABLE more USING fts5(a)"),
        ("index more", "CREATE INDEX more ON points (value)"),
        ("table sqlite_stat1", "ANALYZE"),
        ("table asks", "ALTER TABLE asks ADD COLUMN more AS (zeroblob(1000000000))"),
        ("table asks", "ALTER TABLE asks ADD COLUMN more CHECK (length(zeroblob(1000000000)))"),
        ("table asks", "ALTER TABLE asks DROP COLUMN refitted"),
        ("table asks", "ALTER TABLE asks RENAME COLUMN refitted TO seals"),
        ("table changes", "DROP TABLE changes"),
    ],
)
def test_what_a_study_does_not_define_is_refused_before_anything_is_read(
    tmp_path: Path, running: tuple[Path, pd.DataFrame], name: str, statement: str
) -> None:
    folder = tmp_path / "study"
    shutil.copytree(running[0], folder)
    with make(folder) as study:
        study.ask(1)
    with closing(connect(folder / "study.sqlite")) as connection:
        connection.executescript(statement)
    for read in (make, SQLiteStorage.copy_of, read_snapshot):
        with pytest.raises(DamagedError, match=f"not those of version {SCHEMA_VERSION}: .*{name}"):
            read(folder)
    assert repair(folder) is not None
    pd.testing.assert_frame_equal(contents(folder), study.to_dataframe())


@pytest.mark.parametrize("version", [0, -1, 1, 2, 3, 4, 5, 6, 7])
def test_a_number_of_the_version_that_is_damaged_is_restored(tmp_path: Path, version: int) -> None:
    with make(tmp_path) as study:
        study.ask(5)
        tell_all(study)
    change(tmp_path, f"PRAGMA user_version = {version}")
    for read in (make, read_snapshot):
        with pytest.raises(DamagedError, match=f"version {version}.*scalable-bo repair"):
            read(tmp_path)
    assert repair(tmp_path) == []
    pd.testing.assert_frame_equal(contents(tmp_path), study.to_dataframe())


def test_a_header_that_forbids_to_write_is_damage(tmp_path: Path) -> None:
    with make(tmp_path) as study:
        study.ask(5)
    file = tmp_path / "study.sqlite"
    file.write_bytes(file.read_bytes()[:18] + b"\x07" + file.read_bytes()[19:])
    for read in (make, read_snapshot):
        with pytest.raises(DamagedError, match="cannot be read: attempt to write a readonly"):
            read(tmp_path)
    assert repair(tmp_path) == []
    with make(tmp_path) as study:
        study.ask(1)


@pytest.mark.parametrize("table", ["points", "settings", "ends"])
def test_rows_are_restored_without_a_backup_where_their_table_has_lost_its_definition(
    tmp_path: Path, table: str
) -> None:
    with make(tmp_path) as study:
        study.ask(5)
        tell_all(study)
    (tmp_path / "backup.sqlite").unlink()
    file = tmp_path / "study.sqlite"
    definition = f"CREATE TABLE {table} (".encode()
    file.write_bytes(file.read_bytes().replace(definition, b"CREATE \xff" + definition[8:]))
    for read in (make, read_snapshot):
        with pytest.raises(DamagedError, match="study.sqlite cannot be read: .*scalable-bo repair"):
            read(tmp_path)
    assert repair(tmp_path) == []
    pd.testing.assert_frame_equal(contents(tmp_path), study.to_dataframe())


def test_all_points_that_are_lost_are_named(tmp_path: Path) -> None:
    with make(tmp_path) as study:
        study.ask(5)
    (tmp_path / "backup.sqlite").unlink()
    change(tmp_path, "UPDATE points SET x = x || x")
    assert "points: 5 lost (0, 1, 2, 3, 4)" in (repair(tmp_path) or [])


def test_a_lost_point_has_none_of_the_outcomes_of_its_neighbour(tmp_path: Path) -> None:
    goal = {"objectives": {"a": "maximize", "b": "minimize"}}
    with Study(SPACE, path=tmp_path, num_initial=10, **goal) as study:
        batch = study.ask(3)
        study.tell(batch.ids, [(1.0, 2.0), (3.0, 4.0), (5.0, 6.0)])
    (tmp_path / "backup.sqlite").unlink()
    change(tmp_path, "UPDATE points SET value = 7.0 WHERE id = 1")
    assert repair(tmp_path) == ["points: 1 lost (1)"]
    with Study(SPACE, path=tmp_path, **goal) as study:
        assert study.to_dataframe()[["a", "b"]].isna().all(axis=1).tolist() == [False, True, False]


def test_values_of_some_outcomes_are_restored_and_asks_do_not_count_them(tmp_path: Path) -> None:
    options: dict[str, Any] = {"objectives": {"cost": "minimize", "gain": "maximize"}}
    with Study(SPACE, path=tmp_path / "study", num_initial=10_000, **options) as study:
        study.tell(study.ask(3), [{"cost": 1.5}, (2.0, 3.0), {"gain": 4.0}])
        study.ask(1)
        frame = study.to_dataframe()
    shutil.copytree(tmp_path / "study", tmp_path / "without backup")
    change(tmp_path / "study", "UPDATE points SET value = 1.0 WHERE id = 0")
    assert repair(tmp_path / "study") == []
    with Study.open(tmp_path / "study") as study:
        pd.testing.assert_frame_equal(study.to_dataframe(), frame)
        assert study.pending.outcomes == [{"cost": 1.5}, {"gain": 4.0}, {}]
    (tmp_path / "without backup" / "backup.sqlite").unlink()
    change(tmp_path / "without backup", "UPDATE points SET value = 1.0 WHERE id = 1")
    assert repair(tmp_path / "without backup") == ["points: 1 lost (1)"]
    with Study.open(tmp_path / "without backup") as study:
        assert study.pending.outcomes == [{"cost": 1.5}, {"gain": 4.0}, {}]
        assert study.snapshot().asks[-1].num_observed == study.num_observations == 0


def test_a_row_that_is_whole_nowhere_is_a_failure_and_the_others_keep_their_ids(
    tmp_path: Path, running: tuple[Path, pd.DataFrame]
) -> None:
    shutil.copytree(running[0], tmp_path / "study")
    (tmp_path / "study" / "backup.sqlite").unlink()
    change(tmp_path / "study", "UPDATE points SET value = 7.0 WHERE id IN (4, 5)")
    change(tmp_path / "study", "DELETE FROM asks WHERE number = 3")
    assert repair(tmp_path / "study") == ["asks: 1 lost (3)", "points: 2 lost (4, 5)"]
    with make(tmp_path / "study") as study:
        found = study.to_dataframe()
        rest = found.index.difference([4, 5])
        pd.testing.assert_frame_equal(found.loc[rest], running[1].loc[rest])
        assert study.reasons([4, 5]) == [LOST, LOST]
        study.ask(3)
        tell_all(study)
    with make(tmp_path / "study") as study:
        assert len(study.to_dataframe()) == len(found) + 3


def without_first_page(file: Path) -> None:
    file.with_name("study.sqlite-wal").unlink()
    file.write_bytes(bytes(4096) + file.read_bytes()[4096:])


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        lambda file: file.write_bytes(b"no database"),
        without_first_page,
    ],
    ids=["missing", "another file", "without its first page"],
)
def test_without_a_readable_database_the_backup_is_restored(
    tmp_path: Path, running: tuple[Path, pd.DataFrame], damage: Callable[[Path], object]
) -> None:
    shutil.copytree(running[0], tmp_path / "study")
    damage(tmp_path / "study" / "study.sqlite")
    assert repair(tmp_path / "study")
    with make(tmp_path / "study") as study:
        found = study.to_dataframe()
    told = found["status"] == "observed"
    pd.testing.assert_frame_equal(found[:122], running[1][:122])
    pd.testing.assert_frame_equal(found[told], running[1][: len(found)][told])


def test_lines_that_are_numbered_alone_are_numbered_anew(tmp_path: Path) -> None:
    with make(tmp_path) as study:
        study.ask(6)
        tell_all(study)
        for x in (0.1, 0.2, 0.3, 0.4):
            study.enqueue({"x": x, "kind": "a"})
        study.ask(1)
        for number in range(3):
            study.withdraw([number])
    (tmp_path / "backup.sqlite").unlink()
    change(tmp_path, "UPDATE changes SET why = 'another' WHERE id = 1")
    change(tmp_path, "UPDATE queue SET x = x || x WHERE id = 3")
    assert repair(tmp_path) == ["changes: 1 lost (2)", "queue: 1 lost (3)"]
    with make(tmp_path) as study:
        assert [line.id for line in study.changes] == [0, 2]
        assert study.ask(2).X[:, 0].tolist() == [0.2, 0.4]


def test_every_page_that_is_overwritten_costs_no_more_than_its_rows(
    tmp_path: Path, running: tuple[Path, pd.DataFrame]
) -> None:
    folder, frame = running
    size = (folder / "study.sqlite").stat().st_size
    for page in range(1, size // 4096):
        shutil.copytree(folder, tmp_path / "study")
        with closing(connect(tmp_path / "study" / "study.sqlite")) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with (tmp_path / "study" / "study.sqlite").open("r+b") as file:
            file.seek(4096 * page)
            file.write(bytes(4096))
        if repair(tmp_path / "study") is not None:
            with make(tmp_path / "study") as study:
                found = study.to_dataframe()
                assert len(found) == len(frame)
                told = found["status"] == "observed"
                pd.testing.assert_frame_equal(found[told], frame[told])
                assert told[:122].equals(frame["status"][:122] == "observed")
        shutil.rmtree(tmp_path / "study")


def test_what_is_no_study_is_not_repaired(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`folder` must hold a study"):
        repair(tmp_path)
    (tmp_path / "study.sqlite").write_bytes(b"no database")
    with pytest.raises(RuntimeError, match="cannot be restored: its settings are whole neither"):
        repair(tmp_path)
    assert (tmp_path / "study.sqlite").read_bytes() == b"no database"


def test_a_backup_is_made_when_a_study_is_closed_and_at_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = tmp_path / "backup.sqlite"

    def num_rows() -> int:
        with closing(sqlite3.connect(backup)) as connection:
            return connection.execute("SELECT count(*) FROM points").fetchone()[0]

    with make(tmp_path) as study:
        study.ask(5)
        assert not backup.exists()
    assert num_rows() == 5
    monkeypatch.setattr("scalable_bo.storage.sqlite.SECONDS_BETWEEN_BACKUPS", 0.0)
    study = make(tmp_path)
    study.ask(5)
    assert num_rows() == 10
    study.close()


@pytest.mark.parametrize("content", [b"", b"x", b"9999999999999999999 00000000\n", b"\xff" * 40])
def test_a_strange_count_of_writes_is_no_obstacle(tmp_path: Path, content: bytes) -> None:
    with make(tmp_path) as study:
        study.ask(5)
    (tmp_path / "writes").write_bytes(content)
    assert seals.read_count(tmp_path / "writes") == 0
    with make(tmp_path) as study:
        study.ask(1)
    assert seals.read_count(tmp_path / "writes") == 3


def test_a_folder_that_was_put_back_in_part_is_noticed(tmp_path: Path) -> None:
    with make(tmp_path / "study") as study:
        study.ask(5)
    shutil.copy(tmp_path / "study" / "study.sqlite", tmp_path)
    with make(tmp_path / "study") as study:
        study.ask(5)
        tell_all(study)
    shutil.copy(tmp_path / "study.sqlite", tmp_path / "study")
    with pytest.raises(DamagedError, match="the last 2 of 4 writes are missing"):
        make(tmp_path / "study")
