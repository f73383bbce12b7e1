"""The token's file: made once, and for its owner alone."""

import stat
from pathlib import Path

import pytest

from scalable_bo.serving.tokens import read_or_make_token, read_token


def test_a_token_is_made_once_and_its_owner_alone_can_read_it(tmp_path: Path) -> None:
    file = tmp_path / "token"
    token = read_or_make_token(file)
    assert len(token) >= 40
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_or_make_token(file) == token == read_token(file)
    assert read_or_make_token(tmp_path / "another") != token


def test_an_empty_file_of_a_start_that_was_killed_gets_a_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.touch(0o600)
    assert read_or_make_token(file) == read_token(file)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "a token"
    read_or_make_token(file)
    file.chmod(mode)
    for read in (read_or_make_token, read_token):
        with pytest.raises(ValueError, match="Run: chmod 600 '/.*/a token'"):
            read(file)


def test_who_has_no_file_is_told_where_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"must be there, got \S+token. Copy it from"):
        read_token(tmp_path / "token")


@pytest.mark.parametrize("content", [b"short", b"\xff" * 40, b"two words" * 10, b"\0" * 64])
def test_a_file_with_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    file.chmod(0o600)
    for read in (read_or_make_token, read_token):
        with pytest.raises(ValueError, match=r"must hold a token .* Copy the server's again"):
            read(file)


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "token").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        read_or_make_token(tmp_path / "token")
    assert not (tmp_path / "elsewhere").exists()
