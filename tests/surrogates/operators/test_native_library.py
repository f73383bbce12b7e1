"""C code that is compiled when it is needed: once, for this processor, and again when damaged."""

import ctypes
import logging
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from surrogates.operators import native
from surrogates.operators.native import CompilationError, find_compiler, load

needs_a_compiler = pytest.mark.skipif(find_compiler() is None, reason="needs a C compiler")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a source whose function returns ANSWER, and a cache folder that is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "answer.c"
    source.write_text(
        "#ifndef ANSWER\n#define ANSWER 42\n#endif\nint answer(void) { return ANSWER; }\n"
    )
    return source


@pytest.fixture
def compilations(spy: Any) -> Any:
    return spy(native, "_compile")


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "scalable_bo").iterdir())


@needs_a_compiler
def test_a_source_is_compiled_once(source: Path, compilations: Any, tmp_path: Path) -> None:
    assert [load(source).answer() for _ in range(3)] == [42] * 3
    assert compilations.call_count == 1
    (library,) = kept(tmp_path)
    assert library.name.startswith("answer-") and library.suffix == ".so"
    assert stat.S_IMODE(library.parent.stat().st_mode) == 0o700


@needs_a_compiler
def test_another_source_or_definition_is_another_library(
    source: Path, compilations: Any, tmp_path: Path
) -> None:
    assert load(source).answer() == 42
    assert load(source, ["-DANSWER=7"]).answer() == 7
    source.write_text("int answer(void) { return 43; }\n")
    assert load(source).answer() == 43
    assert compilations.call_count == len(kept(tmp_path)) == 3


@needs_a_compiler
@pytest.mark.parametrize("left", [0.0, 0.1, 0.9])
def test_a_damaged_library_is_compiled_again(
    source: Path, compilations: Any, tmp_path: Path, left: float
) -> None:
    # Not loaded before: the loader would return what it has
    folder, compiler = native._cache_folder(), find_compiler()
    name = f"answer-{native._key(source, (), compiler)}"
    library = native._made(folder, name, source, (), compiler)
    whole = library.read_bytes()
    library.write_bytes(whole[: int(left * len(whole))].ljust(len(whole), b"\0"))
    assert native._kept(folder, name) is None
    assert load(source).answer() == 42
    assert compilations.call_count == 2
    assert [file.read_bytes() for file in kept(tmp_path)] == [whole]


@needs_a_compiler
def test_a_library_that_others_may_write_is_compiled_again(
    source: Path, compilations: Any, tmp_path: Path
) -> None:
    load(source)
    (library,) = kept(tmp_path)
    assert stat.S_IMODE(library.stat().st_mode) == 0o700
    library.chmod(0o722)
    load(source)
    assert compilations.call_count == 2
    assert [stat.S_IMODE(file.stat().st_mode) for file in kept(tmp_path)] == [0o700]


@needs_a_compiler
def test_a_cache_folder_whose_files_cannot_be_loaded_is_left(
    source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    as_it_is = ctypes.CDLL

    def refused(path: str) -> ctypes.CDLL:
        if path.startswith(str(tmp_path)):
            raise OSError("failed to map segment from shared object")
        return as_it_is(path)

    monkeypatch.setattr(native.ctypes, "CDLL", refused)
    assert load(source).answer() == 42


@needs_a_compiler
def test_a_source_that_does_not_compile_is_an_error_with_the_compilers_words(
    source: Path, tmp_path: Path
) -> None:
    source.write_text("int answer(void) { return nonsense; }\n")
    with pytest.raises(CompilationError, match="error.*nonsense"):
        load(source)
    assert kept(tmp_path) == []


@needs_a_compiler
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(
            lambda cache: cache.mkdir(mode=0o500),
            marks=pytest.mark.skipif(os.getuid() == 0, reason="root writes everywhere"),
        ),
        Path.touch,
    ],
    ids=["read only", "a file"],
)
def test_without_a_cache_folder_it_is_compiled_for_the_process(
    source: Path, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(tmp_path / "cache")
    assert load(source).answer() == 42


@needs_a_compiler
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_what_others_may_write_is_not_loaded(source: Path, tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "cache" / "scalable_bo"
    folder.mkdir(parents=True)
    folder.chmod(mode)
    assert load(source).answer() == 42
    assert kept(tmp_path) == []


@needs_a_compiler
def test_without_a_home_it_is_compiled_for_the_process(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    unknown = RuntimeError("Could not determine home directory.")
    with patch.object(Path, "home", side_effect=unknown):
        assert load(source).answer() == 42


@needs_a_compiler
def test_a_relative_cache_folder_is_passed_over(
    source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert load(source).answer() == 42
    assert not (tmp_path / "here").exists()
    assert len(list((tmp_path / "home" / ".cache" / "scalable_bo").iterdir())) == 1


def wrapped(tmp_path: Path, *commands: str) -> str:
    """Return a compiler that runs some commands of the shell first."""
    compiler = find_compiler()
    script = tmp_path / "wrapped"
    script.write_text("\n".join(["#!/bin/sh", *commands, f'exec {compiler[0]} "$@"', ""]))
    script.chmod(0o755)
    return str(script)


@needs_a_compiler
def test_a_compiler_may_say_what_is_no_text(
    source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CC", wrapped(tmp_path, r"printf '\377' >&2"))
    assert load(source).answer() == 42
    source.write_text("int answer(void) { return nonsense; }\n")
    with pytest.raises(CompilationError, match="nonsense"):
        load(source)


@needs_a_compiler
def test_for_a_processor_that_is_not_known_nothing_special_is_compiled(
    source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CC", wrapped(tmp_path, f'echo "$@" >> {tmp_path}/arguments'))
    assert load(source).answer() == 42
    assert "=native" in (tmp_path / "arguments").read_text()
    (tmp_path / "arguments").unlink()
    monkeypatch.setattr(native, "_processor", lambda: b"")
    assert load(source).answer() == 42
    assert "=native" not in (tmp_path / "arguments").read_text()


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_compiler_of_cpp_compiles_c(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "g++")
    assert load(source).answer() == 42


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("PATH", "", "no C compiler was found, of cc, gcc, clang"),
        ("CC", "gcc -DX='", "No closing quotation"),
        ("CC", "broken", "Error"),  # it cannot be started
    ],
)
def test_a_compiler_that_is_none_is_an_error(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
    message: str,
) -> None:
    (tmp_path / "broken").write_bytes(b"\x00")
    (tmp_path / "broken").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    if name == "CC":
        monkeypatch.setenv("CC", value)
    with pytest.raises(CompilationError, match=message):
        load(source)


@needs_a_compiler
def test_a_library_without_its_functions_is_not_used(
    source: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "SOURCE", source)
    with caplog.at_level(logging.INFO, native.logger.name):
        assert native._library.__wrapped__(torch.float32) is None
    assert "kernels stay uncompiled" in caplog.text


def test_the_compiler_of_the_environment_comes_first_with_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cc", "mine"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert find_compiler() == [str(tmp_path / "cc")]
    monkeypatch.setenv("CC", "mine -m64 '-DA=b c'")
    assert find_compiler() == [str(tmp_path / "mine"), "-m64", "-DA=b c"]
    monkeypatch.setenv("CC", "another")
    assert find_compiler() is None


@needs_a_compiler
def test_processors_of_other_abilities_have_other_libraries(
    source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    load(source)
    monkeypatch.setattr(native, "_processor", lambda: b"another")
    assert isinstance(load(source), ctypes.CDLL)
    assert len(kept(tmp_path)) == 2
