"""BoTorch's own tests with our model in the place of ``SingleTaskGP``:
``make test-botorch BOTORCH_TESTS=<folder>``.

The folder is the user's (``test/`` of a checkout of BoTorch's repository) and stays as it is: the
name ``SingleTaskGP`` means our model wherever the tests take it from. What fails for a known reason
is listed in ``expected_failures.toml``; a listed test that passes is reported.
"""

import argparse
import importlib
import pkgutil
import re
import sys
import tomllib
import unittest
from collections import Counter
from collections.abc import Generator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

MODES = ("exact", "paths", "botorch")
EXPECTED = Path(__file__).with_name("expected_failures.toml")
# What builds a SingleTaskGP, by itself or through BoTorch's helpers of tests
NAMES = re.compile(r"SingleTaskGP|\bget_model\b|from \.harness")
# What holds the name for tests
REFERENCES = ("botorch.models", "botorch.models.gp_regression", "botorch.utils.test_helpers")


def main(arguments: list[str] | None = None) -> int:
    """Run the tests and return pytest's exit status."""
    parser = argparse.ArgumentParser(prog="make test-botorch", description=__doc__.splitlines()[0])
    parser.add_argument(
        "folder", nargs="?", default="", help="the folder test/ of BoTorch's repository"
    )
    parser.add_argument(
        "tests",
        nargs="*",
        help="files, folders or node ids in it; by default all that build a SingleTaskGP",
    )
    parser.add_argument(
        "--mode",
        default=MODES[0],
        help="exact: PathwiseGP; paths: its posterior of 512 paths; botorch: SingleTaskGP itself",
    )
    parser.add_argument("--expected", type=Path, default=EXPECTED, help="the expected failures")
    options, pytest_arguments = parser.parse_known_intermixed_args(arguments)
    if options.mode not in MODES:
        parser.error(f"BOTORCH_MODE must be one of {', '.join(MODES)}, got {options.mode!r}.")
    folder = Path(options.folder).resolve()
    is_package = bool(options.folder) and (folder / "__init__.py").is_file()
    files = swapped_in(folder) if is_package else []
    if not files:
        parser.error(
            "BOTORCH_TESTS must be the folder test/ of a checkout of BoTorch's repository (its"
            f" packages hold no tests), got {options.folder!r}. Give it: make test-botorch"
            " BOTORCH_TESTS=botorch/test"
        )
    sys.dont_write_bytecode = True  # the folder is the user's
    tests = [f"{folder}/{test}" for test in options.tests or files]
    # Without this project's settings: BoTorch's tests see to their warnings themselves.
    settings = ["-c", "/dev/null", "--rootdir", str(folder), "-p", "no:cacheprovider"]
    plugin = SwappedModel(options.mode, options.expected, whole=not options.tests)
    return pytest.main([*settings, *pytest_arguments, *tests], plugins=[plugin])


class SwappedModel:
    """Pytest plugin: our model under the name ``SingleTaskGP``, and expected failures.

    Args:
        mode: one of ``MODES``.
        expected: TOML of tables ``[[exact]]``, ``[[paths]]``, ``[[both]]`` and ``[[any]]``, each a
            ``reason`` and a list of ``tests``, node ids relative to the folder. Those under
            ``any``, which may be files that cannot be imported, fail with BoTorch's own model, too,
            and may pass: it depends on its version. So may those of a table that is ``random``.
        whole: whether all files run, so that an entry without a test is stale.
    """

    def __init__(self, mode: str, expected: Path, whole: bool):
        tables = tomllib.loads(expected.read_text())
        self.mode = mode
        self.whole = whole
        self.model = models()[mode]
        self.patch = pytest.MonkeyPatch()
        self.ours = (
            {} if mode == "botorch" else entries([*tables.get("both", []), *tables.get(mode, [])])
        )
        self.theirs = entries(tables.get("any", []))
        self.unknown: list[str] = []
        self.counts: dict[str, Counter[str]] = {}

    def pytest_sessionstart(self) -> None:
        for name in REFERENCES:
            self.patch.setattr(importlib.import_module(name), "SingleTaskGP", self.model)
        # A test has one outcome: it fails with the first of its parts that fails.
        self.patch.setattr(unittest.TestCase, "subTest", lambda *args, **kwargs: nullcontext())

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        if report.failed and collector.nodeid in self.theirs:
            report.outcome = "skipped"
            report.longrepr = (collector.nodeid, None, self.theirs[collector.nodeid]["reason"])
            self._count(collector.nodeid, "theirs")
        return report

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if entry := self.ours.get(item.nodeid) or self.theirs.get(item.nodeid):
                strict = item.nodeid in self.ours and not entry.get("random", False)
                item.add_marker(pytest.mark.xfail(reason=entry["reason"], strict=strict))
        if self.whole:
            self.unknown = sorted(self.ours.keys() - {item.nodeid for item in items})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._count(report.nodeid, self._outcome(report))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.patch.undo()
        if self.unknown and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        columns = ("passed", "expected", "theirs", "skipped", "failed")
        terminalreporter.section(f"mode {self.mode}")
        for suite, counts in [
            *sorted(self.counts.items()),
            ("all", sum(self.counts.values(), Counter())),
        ]:
            terminalreporter.write_line(
                f"{suite:45}" + "  ".join(f"{counts[column]:5} {column}" for column in columns)
            )
        for nodeid in self.unknown:
            terminalreporter.write_line(
                f"Stale: {nodeid} is listed as an expected failure, but there is no such test."
                " Remove the entry."
            )

    def _count(self, nodeid: str, outcome: str) -> None:
        suite = Path(nodeid.split("::")[0]).parent.as_posix()
        self.counts.setdefault(suite, Counter())[outcome] += 1

    def _outcome(self, report: pytest.TestReport) -> str:
        if report.outcome == "skipped" and hasattr(report, "wasxfail"):
            return "expected" if report.nodeid in self.ours else "theirs"
        return report.outcome


def swapped_in(folder: Path) -> list[str]:
    """Return the test files, relative to the folder, that build a ``SingleTaskGP``."""
    tests = sorted(folder.rglob("test_*.py"))
    return [file.relative_to(folder).as_posix() for file in tests if NAMES.search(file.read_text())]


def models() -> dict[str, type]:
    """Return what stands for ``SingleTaskGP`` in each mode; BoTorch is imported here,
    after the arguments are checked.
    """
    import botorch
    from botorch.models import SingleTaskGP

    from surrogates import CG, PathwiseGP

    for module in pkgutil.walk_packages(botorch.__path__, "botorch."):
        with suppress(ImportError):  # optional dependencies
            # Before the swap: BoTorch's own subclasses must keep their base
            importlib.import_module(module.name)

    class PathsGP(PathwiseGP):
        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(
                *args,
                **{"solver": CG(tolerance=1e-8, preconditioner=None), "num_paths": 512, **kwargs},
            )

    return dict(zip(MODES, (PathwiseGP, PathsGP, SingleTaskGP), strict=True))


def entries(tables: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the table of each listed test."""
    return {test: table for table in tables for test in table["tests"]}


if __name__ == "__main__":
    sys.exit(main())
