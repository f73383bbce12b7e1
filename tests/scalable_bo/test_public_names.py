"""The public names are imported at their first use, and are the ones that type checkers see."""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import scalable_bo

# The names of version 0.1.0, by module.
PUBLISHED = json.loads(Path(__file__).parents[1].joinpath("public_names.json").read_text())


def test_every_public_name_is_there() -> None:
    names = {*scalable_bo.__all__, "__version__"}
    assert not [name for name in names if getattr(scalable_bo, name) is None]
    assert names <= {*dir(scalable_bo)}


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(scalable_bo.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(seen) == sorted(scalable_bo.__all__)
    assert seen == scalable_bo._HOME


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Stdy'"):
        _ = scalable_bo.Stdy


@pytest.mark.parametrize("module", PUBLISHED)
def test_what_was_published_is_still_there(module: str) -> None:
    here = importlib.import_module(module)
    assert not [name for name in PUBLISHED[module] if not hasattr(here, name)]
    assert not [name for name in here.__all__ if not hasattr(here, name)]


def test_the_package_runs_as_the_command_line() -> None:
    command = [sys.executable, "-m", "scalable_bo", "--version"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == f"scalable-bo {scalable_bo.__version__}\n"


def test_what_takes_long_is_imported_where_it_is_needed() -> None:
    """Processes of an executor and workers of a server do without torch."""
    light = "evaluation.evaluator, evaluation.external, serving.worker, storage.points"
    code = f"""
import sys, scalable_bo
import {", ".join(f"scalable_bo.{name}" for name in light.split(", "))}
assert not {{"torch", "numpy", "ax", "optuna"}} & set(sys.modules)
scalable_bo.Study
assert not {{"sklearn", "pandas", "scipy.stats", "ax", "optuna"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
