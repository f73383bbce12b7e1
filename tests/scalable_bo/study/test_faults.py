"""Full disks, torn files, wrong clocks and hostile input: what was returned is kept,
and what is broken is named.
"""

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from scalable_bo.report.snapshot import to_frame
from scalable_bo.space.space import Categorical, Float, Int, Space
from scalable_bo.storage.parquet import LONGEST_TEXT
from scalable_bo.storage.restore import restore
from scalable_bo.storage.shared import CheckpointTable
from scalable_bo.storage.sqlite import CheckpointFolder, append, connect
from scalable_bo.study.answers import read_snapshot
from scalable_bo.study.study import Study
from tests.quick import QUICK
from tests.scalable_bo.frames import timeless

SPACE = Space(x=Float(0.0, 1.0), n=Int(1, 50))
MEGABYTE = 2**20


OPENS = """
from scalable_bo.study.study import Study
for name in ("folder", "file"):
    try:
        Study.open(name)
    except OSError as error:
        print(error)
"""


def make(path: Path | None, num_initial: int = 10_000) -> Study:
    return Study(SPACE, maximize=True, seed=3, path=path, num_initial=num_initial, sampler=QUICK)


def tell_all(study: Study) -> None:
    batch = study.pending
    study.tell(batch.ids, batch.X[:, 0])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Use up what is left of a disk; return the file to delete."""
    filler = disk / "filler"
    with pytest.raises(OSError, match="No space left"), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return filler


def test_on_a_full_disk_calls_fail_whole_and_work_again_once_there_is_space(
    small_disk: Path,
) -> None:
    study = make(small_disk / "study")
    filler = small_disk / "filler"
    filler.write_bytes(bytes(MEGABYTE // 2))
    num_rows = 0
    with pytest.raises(
        OSError, match="could not be written: .* Nothing of this call was stored; free space"
    ):
        while True:
            num_rows += len(study.ask(200).ids)
            tell_all(study)
    before = study.to_dataframe()
    assert len(before) == num_rows > 200
    filler.unlink()
    tell_all(study)
    study.ask(7)
    frame = study.to_dataframe()
    assert len(frame) == num_rows + 7
    study.close()
    with make(small_disk / "study") as study:
        assert study.to_dataframe().equals(frame)


def test_a_study_on_a_full_disk_is_not_called_damaged(small_disk: Path) -> None:
    path = small_disk / "study"
    study = make(path)
    study.ask(100)
    frame = study.to_dataframe()
    study.close()
    filler = fill(small_disk)
    with pytest.raises(OSError, match="The study in .*/other could not be created: .* Free space"):
        make(small_disk / "other")
    try:
        make(path).close()
    except OSError as error:
        assert "could not be opened" in str(error)  # noqa: PT017  # it may also be opened
    filler.unlink()
    make(small_disk / "other").close()
    with make(path) as study:
        assert study.to_dataframe().equals(frame)


@pytest.mark.parametrize("ended", ["closed", "killed"])
def test_a_study_on_a_read_only_disk_can_be_looked_at(small_disk: Path, ended: str) -> None:
    path = small_disk / "study"
    study = make(path if ended == "closed" else small_disk.parent / "elsewhere")
    study.ask(5)
    tell_all(study)
    frame = study.to_dataframe()
    if ended == "killed":
        shutil.copytree(small_disk.parent / "elsewhere", path)
    study.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    snapshot = read_snapshot(path)
    assert to_frame(snapshot.space, snapshot.rows).equals(frame)
    with pytest.raises(OSError, match="could not be opened: Read-only file system. Make the fold"):
        make(path)


def test_a_study_that_may_not_be_written_is_not_called_damaged(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OPENS]
    if os.getuid() == 0:  # whose rights to all files are set aside
        rights = "-dac_override,-dac_read_search"
        command[:0] = ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}"]
        if shutil.which("setpriv") is None or subprocess.run([*command[:3], "true"]).returncode:
            pytest.skip("root may write all files here")
    for name in ("folder", "file"):
        with make(tmp_path / name) as study:
            study.ask(1)
    (tmp_path / "file" / "study.sqlite").chmod(0o400)
    (tmp_path / "folder").chmod(0o500)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    for name, line in zip(("folder", "file"), done.stdout.splitlines(), strict=True):
        begins = f"The study in {tmp_path / name} could not be opened: attempt to write a readonly"
        assert line.startswith(begins)
        assert "Make the folder and its files writable; to look at what is stored, use" in line


def test_an_ask_whose_checkpoint_does_not_fit_warns_or_is_refused_and_loses_nothing(
    small_disk: Path,
) -> None:
    with_space = make(None, num_initial=4)
    study = make(small_disk / "study", num_initial=4)
    for each in (with_space, study):
        each.ask(6)
        tell_all(each)
    filler = fill(small_disk)
    with (
        pytest.warns(UserWarning, match="ask-00000002.safetensors could not be kept .*No space"),
        pytest.raises(OSError, match="could not be written: .* Nothing of this call was stored"),
    ):
        study.ask(2)
    assert len(study.to_dataframe()) == 6
    assert not list((small_disk / "study" / "checkpoints").iterdir())
    filler.unlink()
    assert torch.equal(study.ask(2).X, with_space.ask(2).X)


@pytest.mark.parametrize("place", ["folder", "database"])
def test_an_ask_is_stored_whose_checkpoint_cannot_be_kept(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    for kind in (CheckpointFolder, CheckpointTable):
        monkeypatch.setattr(kind, "write", full)
    where: dict[str, Any] = {"path": tmp_path / "study"}
    if place == "database":
        where = {"storage": f"sqlite:///{tmp_path}/shared.db", "name": "tuning"}
    options: dict[str, Any] = {"maximize": True, "seed": 3, "num_initial": 4, "sampler": QUICK}
    with Study(SPACE, **where, **options) as study, make(None, num_initial=4) as expected:
        for each in (study, expected):
            each.ask(6)
            tell_all(each)
        with pytest.warns(UserWarning, match="checkpoint .* could not be kept .*No space left"):
            X = study.ask(2).X
        assert torch.equal(X, expected.ask(2).X)
    with Study(SPACE, **where, **options) as study:
        assert torch.equal(study.pending.X, X)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame]:
    """The folder of a study whose process ended, with checkpoints; and the rows that one finds
    there.
    """
    folder = tmp_path_factory.mktemp("killed")
    study = make(folder / "study", num_initial=4)
    for _ in range(6):
        study.ask(2)
        tell_all(study)
    shutil.copytree(folder / "study", folder / "copy")
    study.close()
    shutil.copytree(folder / "copy", folder / "opened")
    with make(folder / "opened", num_initial=4) as whole:
        frame = whole.to_dataframe()
    assert len(frame) == 12
    return folder / "copy", frame


@pytest.mark.parametrize("num_bytes", [0, 1, 511, 512, 520, 4096, 5000, None])
def test_a_write_that_was_killed_is_undone_whatever_is_left_of_its_journal(
    tmp_path: Path, killed: tuple[Path, pd.DataFrame], num_bytes: int | None
) -> None:
    folder, frame = killed
    shutil.copytree(folder, tmp_path / "study")
    shutil.copy(folder / "study.sqlite", tmp_path / "study" / "backup.sqlite")
    with closing(connect(tmp_path / "study" / "study.sqlite")) as connection:
        connection.execute("PRAGMA cache_size = 1")  # so that pages are written before the end
        connection.execute("BEGIN IMMEDIATE")
        append(connection, [bytes(10_000)] * 9)
        shutil.copytree(tmp_path / "study", tmp_path / "midst")
    journal = tmp_path / "midst" / "study.sqlite-journal"
    content = journal.read_bytes()
    assert len(content) > 5000
    journal.write_bytes(content[:num_bytes])
    try:
        study = make(tmp_path / "midst", num_initial=4)
    except RuntimeError as error:
        assert num_bytes is not None and "scalable-bo repair" in str(error)  # noqa: PT017
        restore(tmp_path / "midst")
        study = make(tmp_path / "midst", num_initial=4)
    pd.testing.assert_frame_equal(study.to_dataframe(), frame)
    study.close()


def test_a_clock_that_goes_backwards_changes_no_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = iter(range(10**9, 0, -1000))
    for clock in ("time", "perf_counter", "monotonic"):
        monkeypatch.setattr(time, clock, lambda: float(next(readings)))
    path = tmp_path / "study"
    other = make(None, num_initial=4)
    for _ in range(5):
        with make(path, num_initial=4) as study:
            assert torch.equal(study.ask(2).X, other.ask(2).X)
            tell_all(study)
        tell_all(other)
        # The newest has the oldest date
        for age, file in enumerate(sorted((path / "checkpoints").glob("*"))):
            os.utime(file, (10**6 - age, 10**6 - age))


def test_names_never_lead_out_of_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "study"
    space = Space(**{"../../up": Float(0.0, 1.0), "/tmp/x": Categorical(["../c", "d"])})
    with Study(space, maximize=True, path=path, num_initial=2, sampler=QUICK) as study:
        study.add_data([{"../../up": 0.5, "/tmp/x": "../c"}], [1.0], name="../../../data")
        study.add_data([{"../../up": 0.25, "/tmp/x": "d"}], [2.0], name="/etc/data\0")
        study.ask(1)
    outside = [file for file in tmp_path.rglob("*") if file.is_file() and path not in file.parents]
    assert outside == []
    assert sorted(
        file.name for file in path.iterdir() if file.is_file() and "-" not in file.name
    ) == ["backup.sqlite", "lock", "study.sqlite"]


KINDS = Space(x=Float(0.0, 1.0), kind=Categorical(["a", "b"]))


def test_a_short_parquet_file_that_repeats_a_long_text_is_refused(tmp_path: Path) -> None:
    # half a terabyte
    n = 1_000_000
    length = 500_000
    kind = pa.DictionaryArray.from_arrays(np.zeros(n, dtype=np.int32), ["a" * length])
    path = tmp_path / "bomb.parquet"
    pq.write_table(
        pa.table({"x": np.zeros(n), "kind": kind, "score": np.zeros(n)}), path, store_schema=False
    )
    assert pq.read_schema(path).field("kind").type == pa.string()
    assert path.stat().st_size < MEGABYTE
    with pytest.raises(
        ValueError,
        match=(
            f"The column 'kind' must hold texts of at most {LONGEST_TEXT} bytes, got one of"
            f" {length}"
        ),
    ):
        Study(KINDS, maximize=True).add_data(path, target="score")


def test_a_parquet_file_of_more_values_than_fit_in_memory_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 100_000
    many = pa.ListArray.from_arrays(pa.array([0, n]), pa.array(np.zeros(n)))  # in one row
    pq.write_table(
        pa.table({"x": many, "kind": ["a"], "score": [0.0]}), path := tmp_path / "bomb.parquet"
    )
    assert path.stat().st_size < 5000
    monkeypatch.setattr("surrogates.memory.available", lambda device: MEGABYTE)
    with pytest.raises(MemoryError, match=r"Reading bomb.parquet needs .* Split the file"):
        Study(KINDS, maximize=True).add_data(path, target="score")


def test_a_csv_file_larger_than_memory_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "bomb.csv"
    with path.open("wb") as file:
        file.write(b"x,kind,score\n")
        file.truncate(2**42)  # one line of zeros, no block of them on the disk
    with pytest.raises(MemoryError, match=r"Reading bomb.csv needs 16384.0 GiB .* Split the file"):
        Study(KINDS, maximize=True).add_data(path, target="score")


def test_texts_in_a_parquet_file_are_read_however_they_are_stored(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [0.0, 0.5, 1.0], "kind": ["a", "b", "a"], "score": [1.0, 2.0, 3.0]})
    frames = []
    for kind in ("object", "category", "string"):
        frame.astype({"kind": kind}).to_parquet(path := tmp_path / f"{kind}.parquet")
        study = Study(KINDS, maximize=True)
        study.add_data(path, target="score")
        frames.append(timeless(study))
    assert frames[0]["kind"].tolist() == ["a", "b", "a"]
    assert frames[0].equals(frames[1])
    assert frames[0].equals(frames[2])
