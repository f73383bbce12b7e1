"""The processes that tests start: forked from one server, which has imported what they need, or
fresh ones.
"""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
# There is one server in a process: the last list would be that of all tests
CONTEXT.set_forkserver_preload(
    [
        "torch.fx.experimental.symbolic_shapes",  # imports SymPy, where the first kernel is made
        "scalable_bo.storage.shared",
        "tests.acquisition.shared_batches",
        "tests.scalable_bo.experiments.shared_rounds",
        "tests.scalable_bo.peaks",
        "tests.scalable_bo.serving.campaigns",
        "tests.scalable_bo.study.shared_study",
    ]
)


def run_fresh(code: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run code in a folder and a process of its own, which imports the packages of this tree."""
    tree = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(tree)},
        capture_output=True,
        text=True,
        timeout=600,
    )


def start_program(out: Path, program: Callable[..., Any], *arguments: Any) -> BaseProcess:
    """Start a program whose exit code is what it returns, and which prints to the file ``out`` and,
    errors, to ``out`` with the ending `.err`.
    """
    process = CONTEXT.Process(target=_print_to, args=(out, program, *arguments))
    process.start()
    return process


def _print_to(out: Path, program: Callable[..., Any], *arguments: Any) -> None:
    for number, file in ((1, out), (2, out.with_suffix(".err"))):
        with file.open("wb") as opened:
            os.dup2(opened.fileno(), number)
    sys.exit(program(*arguments))
