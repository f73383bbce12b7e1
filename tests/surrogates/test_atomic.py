"""Files that are replaced as a whole, or not at all."""

import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import pytest

from surrogates.atomic import replacing, write_atomically


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    return path


def test_content_is_replaced_as_a_whole_and_nothing_else_is_left(path: Path) -> None:
    write_atomically(path, b"new" * 100_000)
    assert path.read_bytes() == b"new" * 100_000
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, OSError])
def test_an_interruption_in_the_middle_leaves_the_old_content_and_no_other_file(
    path: Path, error: type[BaseException]
) -> None:
    with pytest.raises(error), replacing(path) as temporary:
        temporary.write_bytes(b"ne")
        raise error("now")
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_failure_at_the_end_leaves_the_old_content_and_no_other_file(
    path: Path, name: str, error: type[BaseException]
) -> None:
    with patch.object(os, name, side_effect=error("no space left")), pytest.raises(error):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_the_error_names_the_file_and_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(
        OSError,
        match=(
            "none/file could not be written: .*No such file or directory.* Make its folder, and"
            " repeat the call"
        ),
    ):
        write_atomically(tmp_path / "none" / "file", b"new")


def test_a_folder_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").mkdir()
    monkeypatch.chdir(tmp_path)
    for path in (Path(), Path("/"), Path(".."), Path("file")):
        said = f"{path} could not be written: .*Is a directory.* or name a file, and repeat"
        with pytest.raises(OSError, match=said), replacing(path):
            pytest.fail("a name was given")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_content_is_on_the_disk_before_it_has_its_name_and_the_folder_after(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, bool]] = []
    fsync = os.fsync
    replace = os.replace

    def seen_fsync(descriptor: int) -> None:
        calls.append(("fsync", stat.S_ISDIR(os.fstat(descriptor).st_mode)))
        fsync(descriptor)

    def seen_replace(source: Path, target: Path) -> None:
        calls.append(("replace", target == path and source.parent == path.parent))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(os, "replace", seen_replace)
    write_atomically(path, b"new")
    assert calls == [("fsync", False), ("replace", True), ("fsync", True)]


def test_writers_at_the_same_time_have_temporary_files_of_their_own(path: Path) -> None:
    contents = [bytes([number]) * 10_000 for number in range(8)]
    barrier = threading.Barrier(len(contents))
    names: set[Path] = set()

    def write(content: bytes) -> None:
        with replacing(path) as temporary:
            names.add(temporary)
            temporary.write_bytes(content[:5000])
            barrier.wait(30)
            with temporary.open("ab") as file:
                file.write(content[5000:])

    with ThreadPoolExecutor(len(contents)) as threads:
        list(threads.map(write, contents))
    assert len(names) == len(contents)
    assert path.read_bytes() in contents
    assert list(path.parent.iterdir()) == [path]


def test_the_file_has_the_permissions_of_any_new_one(path: Path) -> None:
    usual = path.stat().st_mode
    write_atomically(path, b"new")
    assert path.stat().st_mode == usual
