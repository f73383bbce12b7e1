"""The guard against foreign packages that have the names of ours."""

import sys
from pathlib import Path

import pytest

from scalable_bo._packages import check_sibling_packages
from tests.forked import run_fresh


@pytest.mark.parametrize("file", ["surrogates.py", "surrogates/__init__.py", "acquisition.py"])
def test_a_foreign_package_in_the_way_is_named(tmp_path: Path, file: str) -> None:
    foreign = tmp_path / file
    foreign.parent.mkdir(exist_ok=True)
    foreign.write_text("raise SystemExit('the foreign module was imported')\n")
    run = run_fresh("import scalable_bo", tmp_path)
    assert run.returncode == 1
    last_line = run.stderr.strip().splitlines()[-1]
    assert last_line.startswith("ImportError: ")
    assert str(foreign) in last_line


def test_a_foreign_package_that_is_already_imported_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "acquisition", pytest)
    with pytest.raises(ImportError, match="acquisition") as error:
        check_sibling_packages("surrogates", "acquisition")
    assert error.value.path == pytest.__file__


def test_a_missing_package_is_named() -> None:
    with pytest.raises(ImportError, match="that_nobody_wrote.*Install scalable-bo again"):
        check_sibling_packages("surrogates", "that_nobody_wrote")


def test_our_own_packages_pass(tmp_path: Path) -> None:
    check_sibling_packages("surrogates", "acquisition")
    assert run_fresh("import scalable_bo", tmp_path).returncode == 0
