"""The default install: what an extra brings may be absent, and who asks for it is told which."""

import re
import subprocess
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scalable_bo._packages import MissingPackageError, is_installed, require
from tests.forked import run_fresh

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
MOST_PACKAGES = 32  # beside torch's own
# What extras bring, by the name that is imported
ABSENT = (
    "pandas",
    "pyarrow",
    "matplotlib",
    "plotly",
    "ax",
    "optuna",
    "cma",
    "cmaes",
    "cocoex",
    "fastapi",
    "uvicorn",
)
BLOCKED = f"import sys\nfor name in {ABSENT!r}:\n    sys.modules[name] = None\n"
STUDY = """
import scalable_bo as sbo
space = sbo.Space(x=sbo.Float(0, 1), kind=sbo.Categorical(["a", "b"]))
with sbo.Study(space, maximize=False, seed=0, path="study") as study:
    study.add_data([{"x": 0.5, "kind": "a"}], [0.5])
    study.optimize(lambda params: params["x"], rounds=2, batch=4, progress=False)
    study.report("report.html")
    study.predict(study.best_params)
with sbo.Study(space, maximize=False, seed=0, path="study") as study:
    print(study.num_observations)
"""
TABLES = """
import scalable_bo as sbo
study = sbo.Study(sbo.Space(x=sbo.Float(0, 1)), maximize=False)
for call in (study.to_dataframe, lambda: study.add_data("past.csv", target="y")):
    try:
        call()
    except ImportError as error:
        print(error)
"""
COMMANDS = """
from scalable_bo.cli.main import main
for command in ("export study rows.csv", "bench thompson --preset smoke --out out"):
    sys.argv = ["scalable-bo", *command.split()]
    try:
        main()
    except SystemExit as ended:
        print(ended.code)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lean")


@pytest.fixture(scope="module")
def ran(folder: Path) -> subprocess.CompletedProcess[str]:
    """What code did in a folder where no extra is installed."""
    code = BLOCKED + STUDY + TABLES + COMMANDS
    return run_fresh(code, folder, "-W", "error::ImportWarning")


def test_a_study_runs_is_resumed_and_reported_without_any_extra(
    ran: subprocess.CompletedProcess[str], folder: Path
) -> None:
    assert ran.returncode == 0 and ran.stdout.startswith("9\n"), ran.stderr
    assert "<svg" in (folder / "report.html").read_text(encoding="utf-8")


def test_tables_and_commands_name_the_extra_that_they_need_before_any_work(
    ran: subprocess.CompletedProcess[str], folder: Path
) -> None:
    _, *refusals, code, other = ran.stdout.splitlines()
    assert len(refusals) == 2, ran.stderr
    for refusal in refusals:
        assert "needs the package `pandas`" in refusal
        assert refusal.endswith("pip install '.[tables]' in a clone, or '<wheel file>[tables]'.")
    assert (code, other) == ("2", "2"), ran.stderr
    table, bench = ran.stderr.splitlines()
    assert table.endswith("pip install '.[tables]' in a clone, or '<wheel file>[tables]'.")
    assert bench.endswith("pip install '.[bench]' in a clone, or '<wheel file>[bench]'.")
    assert not list(folder.rglob("*.json"))


def closure(requirements: list[str]) -> set[str]:
    """Return the packages that these requirements bring, by their names."""
    found: set[str] = set()
    todo = [Requirement(text) for text in requirements]
    while todo:
        one = todo.pop()
        name = canonicalize_name(one.name)
        if name not in found and (one.marker is None or one.marker.evaluate({"extra": ""})):
            found.add(name)
            todo += map(Requirement, requires(name) or [])
    return found


def test_the_default_install_is_lean() -> None:
    added = closure(PROJECT["dependencies"]) - closure(["torch"])
    assert len(added) <= MOST_PACKAGES, sorted(added)


def test_what_is_absent_is_named_with_the_remedy() -> None:
    require("json", extra="ax", user="`json`")
    assert not is_installed("nobody_wrote_this")
    with pytest.raises(
        MissingPackageError,
        match=r"^`me` needs the package `nobody_wrote_this`.*pip install '\.\[ax\]' in a clone",
    ):
        require("nobody_wrote_this", extra="ax", user="`me`")


def test_the_quickstart_lists_the_extras() -> None:
    text = (ROOT / "docs/quickstart.md").read_text(encoding="utf-8")
    rows = "".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(\w+)`", rows)) == set(EXTRAS) - {"all", "test", "docs", "dist"}


def test_all_takes_in_every_extra_that_is_not_for_developers() -> None:
    (everything,) = EXTRAS["all"]
    named = set(everything.partition("[")[2].rstrip("]").split(","))
    # PyKeOps compiles at import
    assert named == set(EXTRAS) - {"all", "test", "docs", "dist", "keops"}


@pytest.mark.slow
def test_the_tests_of_a_device_are_collected_without_pydantic() -> None:
    collect = """
import sys
sys.modules["pydantic"] = None
import pytest
options = ["-m", "gpu", "--collect-only", "-q", "-p", "no:cacheprovider"]
sys.exit(pytest.main(options))
"""
    found = run_fresh(collect, ROOT)
    assert found.returncode == 0, found.stdout[-2000:]
