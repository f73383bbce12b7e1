"""A reader who follows a common call meets few files, moves between them seldom, and no long chain
of calls. These bars only fall.
"""

import math
import sys
from pathlib import Path

import pytest
import torch
from gpytorch.kernels import RBFKernel

import scalable_bo
import scalable_bo.cli.config
from scalable_bo.cli.study_commands import run
from surrogates import CG, KernelSystem, PathwiseGP, kernel_operator
from tests.walks import walk

GENERATOR = torch.Generator().manual_seed(0)
X = torch.rand(300, 3, dtype=torch.float64, generator=GENERATOR)
Y = torch.sin(6.0 * X[:, :1])

STUDY = """
[study]
path = "{folder}/study"
maximize = false
[space]
rate = {{ type = "float", low = 1e-5, high = 1.0, log = true }}
width = {{ type = "int", low = 8, high = 512 }}
[objective]
function = "an_objective_of_the_walk:loss"
[run]
rounds = 1
batch = 2
executor = "none"
"""

OBJECTIVE = """
import sys

def loss(params):
    sys.setprofile(None)  # the walk ends here
    return params["rate"]
"""


def test_a_walk_counts_our_own_files_and_calls() -> None:
    taken = walk(lambda: kernel_operator(RBFKernel(), X[:5]).to_dense().sum())
    assert "surrogates/operators/kernel_matrix.py" in taken.files
    assert taken.deepest[0] == "surrogates/operators/kernel_matrix.py:kernel_operator"
    assert not [file for file in taken.files if "tests" in file or "torch" in file]
    assert walk(lambda: X.sum()).depth == 0


def test_drawing_paths() -> None:
    PathwiseGP(X, Y, solver=CG()).paths(4)  # which imports what PyTorch puts off
    model = PathwiseGP(X, Y, solver=CG())
    taken = walk(lambda: model.paths(4))
    assert len(taken.files) <= 23, taken
    assert taken.moves <= 159, taken
    assert taken.depth <= 14, taken


def test_the_mean_of_a_posterior_of_paths() -> None:
    PathwiseGP(X, Y, solver=CG(), num_paths=16).posterior(X[:5])  # likewise
    model = PathwiseGP(X, Y, solver=CG(), num_paths=16)
    taken = walk(lambda: model.posterior(X[:5]).mean)
    assert len(taken.files) <= 24, taken
    assert taken.moves <= 211, taken
    assert taken.depth <= 16, taken


def test_a_solve_by_conjugate_gradients() -> None:
    system = KernelSystem(kernel_operator(RBFKernel(), X), 0.1)
    solver = CG()
    taken = walk(lambda: solver.solve(system, Y))
    assert len(taken.files) <= 9, taken
    assert taken.moves <= 60, taken
    assert taken.depth <= 7, taken


# How often a search moves depends on its steps, and these on rounding
@pytest.mark.parametrize(
    ("strategy", "files", "moves", "depth"), [("auto", 49, 1_640, 17), ("thompson", 46, 1_900, 17)]
)
def test_asking_a_study(strategy: str, files: int, moves: int, depth: int) -> None:
    space = scalable_bo.Space(a=scalable_bo.Float(0, 1), b=scalable_bo.Float(0, 1))
    study = scalable_bo.Study(space, maximize=True, seed=0, strategy=strategy)
    for _ in range(2):
        batch = study.ask(20)
        # Inputs that act apart have a sum of kernels, each part of which is a walk of its own
        study.tell(batch.ids, [math.sin(6.0 * point["a"] * point["b"]) for point in batch.params])
    taken = walk(lambda: study.ask(3))
    assert len(taken.files) <= files, taken
    assert taken.moves <= moves, taken
    assert taken.depth <= depth, taken


def test_a_file_of_a_study_to_its_first_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "study.toml"
    file.write_text(STUDY.format(folder=tmp_path))
    (tmp_path / "an_objective_of_the_walk.py").write_text(OBJECTIVE)
    monkeypatch.syspath_prepend(tmp_path)
    taken = walk(lambda: run(file))
    sys.modules.pop("an_objective_of_the_walk")
    assert len(taken.files) <= 28, taken
    assert taken.depth <= 11, taken
