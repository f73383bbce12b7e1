"""No file of a study is opened through a link, and what is elsewhere stays as it is."""

import os
import shutil
from itertools import product
from pathlib import Path

import pytest

from scalable_bo.space.space import Float, Space
from scalable_bo.storage.restore import restore
from scalable_bo.study.answers import read_snapshot
from scalable_bo.study.study import Study
from surrogates.atomic import open_own

PRECIOUS = b"precious " * 60
DATABASE = ("study.sqlite", "study.sqlite-journal", "study.sqlite-wal", "study.sqlite-shm")
NAMES = (*DATABASE, "lock", "backup.sqlite", "checkpoints/ask-00000002.safetensors")
NAMES_OF_REPAIR = (
    "study.sqlite.repaired",
    "study.sqlite.repaired.new",
    "study.sqlite.repaired.new-journal",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study of two asks, the second by a surrogate."""
    folder = tmp_path_factory.mktemp("whole") / "study"
    with Study(Space(x=Float(0.0, 1.0)), maximize=False, path=folder, num_initial=3) as study:
        for size in (3, 1):
            batch = study.ask(size)
            study.tell(batch.ids, [(x - 0.3) ** 2 for x in batch.X[:, 0].tolist()])
    return folder


def use(folder: Path) -> None:
    with Study.open(folder, num_initial=100) as study:
        study.ask(1)


def ask_surrogate(folder: Path) -> None:
    with Study.open(folder, num_initial=3) as study:
        study.ask(1)


def link(path: Path, precious: Path) -> None:
    path.symlink_to(precious)


def name_again(path: Path, precious: Path) -> None:
    path.hardlink_to(precious)


def link_to_nothing(path: Path, precious: Path) -> None:
    path.symlink_to(precious.with_name("nothing"))


def make_pipe(path: Path, precious: Path) -> None:
    os.mkfifo(path)


def make_folder(path: Path, precious: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("name", [*NAMES, *NAMES_OF_REPAIR])
def test_what_stands_in_the_place_of_a_file_is_neither_followed_nor_waited_for(
    tmp_path: Path, whole: Path, name: str
) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(PRECIOUS)
    folder = tmp_path / "study"
    acts = (restore,) if name in NAMES_OF_REPAIR else (use, read_snapshot, restore)
    replacements = (link, name_again, link_to_nothing, make_pipe, make_folder)
    for act, replace in product(acts, replacements):
        shutil.copytree(whole, folder)
        if act is restore:
            (folder / "study.sqlite").write_bytes(b"no database")
        (folder / name).unlink(missing_ok=True)
        replace(folder / name, precious)
        try:
            act(folder)
        except (RuntimeError, ValueError, OSError, UserWarning) as error:
            assert name in str(error) or "must hold a study" in str(error)
        assert precious.read_bytes() == PRECIOUS
        assert sorted(path.name for path in tmp_path.iterdir()) == ["precious", "study"]
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["lock", *DATABASE[:2]])
def test_a_link_is_refused_with_its_name_and_the_remedy(
    tmp_path: Path, whole: Path, name: str
) -> None:
    folder = tmp_path / "study"
    shutil.copytree(whole, folder)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(whole / name)
    for act in (use, restore):
        with pytest.raises(
            RuntimeError,
            match=f"study/{name} must be a regular file without another name, got a symbolic link: "
            ".* Remove it, or put a copy",
        ):
            act(folder)


def test_checkpoints_are_not_kept_in_a_folder_elsewhere(tmp_path: Path, whole: Path) -> None:
    folder = tmp_path / "study"
    shutil.copytree(whole, folder)
    (folder / "checkpoints").rename(tmp_path / "elsewhere")
    (folder / "checkpoints").symlink_to(tmp_path / "elsewhere")
    before = {path.name: path.read_bytes() for path in (tmp_path / "elsewhere").iterdir()}
    for act in (ask_surrogate, read_snapshot):
        with pytest.raises(RuntimeError, match="checkpoints must be a folder, got a symbolic link"):
            act(folder)
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "elsewhere").iterdir()}


def test_a_study_in_a_folder_that_is_reached_by_a_link_is_opened(
    tmp_path: Path, whole: Path
) -> None:
    shutil.copytree(whole, tmp_path / "study")
    (tmp_path / "link").symlink_to(tmp_path / "study")
    use(tmp_path / "link")
    assert restore(tmp_path / "link") is None


def test_what_takes_the_place_of_a_file_while_it_is_opened_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "precious").write_bytes(PRECIOUS)
    monkeypatch.setattr("surrogates.atomic.require_own", lambda path: None)
    for replace in (link, name_again, make_pipe):
        file = tmp_path / replace.__name__
        replace(file, tmp_path / "precious")
        with pytest.raises((RuntimeError, OSError), match=f"{replace.__name__}"):
            os.close(open_own(file, os.O_RDWR))
