"""The runner of BoTorch's own tests, on a folder of a few tests of ours."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.botorch_suite import peers, runner
from tests.forked import start_program

TESTS = """
import unittest
import torch
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.gp_regression import SingleTaskGP as SameModel
from botorch.models.gp_regression_mixed import MixedSingleTaskGP
from botorch.utils.test_helpers import get_model

X = torch.rand(5, 2, dtype=torch.float64)


class TestSwap(unittest.TestCase):
    def test_every_name_means_the_model(self):
        assert SingleTaskGP is SameModel
        assert SingleTaskGP.__name__ == "NAME"
        assert isinstance(get_model(X, X[:, :1]), SingleTaskGP)

    def test_botorchs_own_subclasses_keep_their_base(self):
        assert MixedSingleTaskGP.__mro__[1].__name__ == "SingleTaskGP"

    def test_fails(self):
        with self.subTest("first"):
            assert False
        with self.subTest("second"):
            assert False

    def test_suits_another_botorch(self):
        assert False

    def test_passes_with_this_botorch(self):
        assert get_model(X, X[:, :1]).posterior(X).mean.shape == (5, 1)

    def test_passes_by_now(self):
        assert ModelListGP(get_model(X, X[:, :1])).num_outputs == 1
"""
FILE = "test_end_to_end.py::TestSwap::"
EXPECTED = f"""
[[any]]
reason = "their version"
tests = ["{FILE}test_suits_another_botorch", "{FILE}test_passes_with_this_botorch"]

[[exact]]
reason = "a reason"
tests = ["{FILE}test_fails"{{more}}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "test"
    folder.mkdir()
    (folder / "__init__.py").touch()
    return folder


def run(program: Callable[[list[str]], int], folder: Path, *arguments: str) -> tuple[int, str]:
    """Run a program in a process of its own, and return its exit code and what it printed."""
    process = start_program(folder / "printed.out", program, list(arguments))
    process.join(300)
    printed = [(folder / f"printed.{ending}").read_text() for ending in ("out", "err")]
    return process.exitcode or 0, "".join(printed)


def run_suite(folder: Path, name: str, *arguments: str, more: str = "") -> tuple[int, str]:
    (folder / "test_end_to_end.py").write_text(TESTS.replace("NAME", name))
    expected = folder.parent / "expected.toml"
    expected.write_text(EXPECTED.format(more=more))
    options = (str(folder), "--expected", str(expected), "-rxX")
    return run(runner.main, folder.parent, *options, *arguments)


def test_our_model_takes_the_name_and_expected_failures_are_held_to_the_list(folder: Path) -> None:
    more = f', "{FILE}test_passes_by_now", "{FILE}test_of_old"'
    code, printed = run_suite(folder, "PathwiseGP", more=more)
    assert code == 1
    assert "1 failed, 2 passed, 2 xfailed, 1 xpassed" in printed, printed
    assert "TestSwap::test_fails - a reason" in printed
    assert "[XPASS(strict)] a reason" in printed
    assert f"Stale: {FILE}test_of_old" in printed
    assert not list(folder.rglob("__pycache__"))


def test_without_the_swap_expected_failures_are_those_of_any_model(folder: Path) -> None:
    options = ("--mode", "botorch", "--deselect", f"{FILE}test_fails")
    code, printed = run_suite(folder, "SingleTaskGP", *options)
    assert code == 0
    assert "3 passed, 1 deselected, 1 xfailed, 1 xpassed" in printed, printed


@pytest.mark.parametrize("given", [[], [""], ["/nowhere"], ["."]])
def test_a_folder_that_is_not_botorchs_is_refused(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        runner.main(given)
    assert (
        "BOTORCH_TESTS must be the folder test/ of a checkout of BoTorch's repository"
        in capsys.readouterr().err
    )


def test_an_unknown_mode_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        runner.main([str(folder), "--mode", "fast"])
    assert (
        "BOTORCH_MODE must be one of exact, paths, botorch, got 'fast'" in capsys.readouterr().err
    )


def test_other_peers_tests_meet_our_models(tmp_path: Path) -> None:
    names = [test.partition("::")[2] for test in peers.FILES["scikit-learn"]]
    claims = [f"def {name}(): assert issubclass({{}}, GPRegressor)" for name in names]
    (tmp_path / "test_gpr.py").write_text(
        "from sklearn.gaussian_process import GaussianProcessRegressor as Model\n"
        "from surrogates import GPRegressor\n"
        + "\n".join(claim.format("Model" if i else "int") for i, claim in enumerate(claims))
    )
    expected = tmp_path / "expected.toml"
    expected.write_text(
        f"[[scikit-learn]]\nreason = 'a reason'\ntests = ['test_gpr.py::{names[0]}']"
    )
    options = ("scikit-learn", str(tmp_path), "--expected", str(expected))
    code, printed = run(peers.main, tmp_path, *options)
    assert code == 0, printed
    assert f"{len(names) - 1} passed, 1 xfailed" in printed


def test_a_folder_without_the_peers_tests_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        peers.main(["gpytorch", str(tmp_path)])
    assert "`folder` must hold test_simple_gp_regression.py" in capsys.readouterr().err
