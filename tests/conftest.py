"""What every test may use: a seeded generator, a small data set, and the rule that `gpu` tests
need a CUDA device.
"""

import importlib.util
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from botorch.acquisition.multi_objective import logei
from botorch.utils.sampling import manual_seed
from hypothesis import settings
from threadpoolctl import threadpool_limits

from tests import simulated_device
from tests.command_lines import CommandLine, command_line
from tests.toy_regression import write_toy_folder

pytest.register_assert_rewrite("tests.contracts")  # a suite, though not in a test file

# A machine with a device may have no more than numerics need: `pytest -m gpu` collects there
# without the files that read a study's settings
collect_ignore = (
    []
    if importlib.util.find_spec("pydantic")
    else [
        "scalable_bo/cli/test_study_commands.py",
        "scalable_bo/study/test_several_outcomes.py",
        "test_docs.py",
        "test_walks.py",
    ]
)

# What a shell runs in the background, or under `nohup`, ignores these, and so would all that the
# tests start and interrupt
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)

# The problems are small: on a busy machine, threads would wait for one another 10 times longer than
# they work, here and in the processes that tests start
torch.set_num_threads(1)
threadpool_limits(1)
os.environ["OMP_NUM_THREADS"] = "1"

# PyTorch differentiates on only one kind of accelerator per process
if not torch.cuda.is_available():
    simulated_device.register()

# BoTorch would compile its improvement of hypervolumes, which takes half a minute; a process that
# is ended meanwhile leaves a lock for which all others wait. Its Python finds the same values
logei._load_attempted = True

# On a busy machine a deadline fails at random; the same examples in every run make a failure
# repeatable.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def device() -> Iterator[torch.device]:
    """A simulated accelerator."""
    with simulated_device.simulated_device() as there:
        yield there


@pytest.fixture
def botorch_seed() -> Iterator[None]:
    """BoTorch draws its maxima, paths and starting points by the global generator."""
    with manual_seed(0):
        yield


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], Mock]:
    """Return a function that notes the calls of another one, given by its owner and its name, and
    lets them go on.
    """

    def watch(owner: Any, name: str) -> Mock:
        noted = Mock(side_effect=getattr(owner, name))
        # A function, unlike a mock, is bound to the instance of a class
        monkeypatch.setattr(owner, name, lambda *args, **options: noted(*args, **options))
        return noted

    return watch


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return command_line(monkeypatch, capsys)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Return a folder with the data set `toy`."""
    folder = tmp_path / "data"
    folder.mkdir()
    write_toy_folder(folder)
    return folder
