"""Every solver against the contract, and the loop that the iterative ones share."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from surrogates import (
    CG,
    SDD,
    SGD,
    Auto,
    Cholesky,
    IterativeSolver,
    KernelSystem,
    Nystrom,
    PivotedCholesky,
    SketchAndProject,
    memory,
)
from surrogates.solvers.run import Start
from surrogates.solvers.state import State
from surrogates.systems.system import LinearSystem
from tests import problems
from tests.contracts import IterativeSolverContract, N, S, SolverContract
from tests.refusals import assert_refused
from tests.surrogates.solvers.toy_solver import ConjugateResiduals

ITERATIVE = {
    "cg": CG(preconditioner=None),
    "cg-nystrom-9": CG(preconditioner=Nystrom(9)),
    "cg-pivoted-20": CG(preconditioner=PivotedCholesky(20)),
    "sdd": SDD(batch_size=16, averaging=0.05),
    "sap": SketchAndProject.sap(block_size=30),
    "asap": SketchAndProject.asap(block_size=30),
    "adasap": SketchAndProject.adasap(preconditioner=Nystrom(20, sketch="gaussian"), block_size=30),
    "from-outside": ConjugateResiduals(),
    "adasap-identity": SketchAndProject.adasap_identity(block_size=30, mu=1e-3),
}
MANY_EPOCHS = {"adasap-identity"}  # to a small residual


@pytest.mark.parametrize("solver", [Cholesky(), Auto()], ids=["cholesky", "auto"])
class TestDirectSolvers(SolverContract):
    pass


@pytest.mark.parametrize("solver", [Auto()], ids=["auto"])
class TestAutoIterating(SolverContract):
    @pytest.fixture(autouse=True)
    def nothing_is_small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(memory, "available", lambda device: 0)  # for a factor


@pytest.mark.parametrize(
    "solver",
    [
        pytest.param(solver, marks=pytest.mark.slow if name in MANY_EPOCHS else ())
        for name, solver in ITERATIVE.items()
    ],
    ids=ITERATIVE.keys(),
)
class TestIterativeSolvers(IterativeSolverContract):
    pass


@pytest.mark.parametrize("name", ["rhs", "initial"])
def test_numbers_that_are_not_finite_are_refused(name: str) -> None:
    arguments = {"rhs": problems.normal(N, S), "initial": problems.normal(N, S)}
    for bad in (float("nan"), float("inf"), -float("inf")):
        arguments[name][4, 2] = bad
        message = rf"`{name}` must be finite, got .* at index \(4, 2\)"
        with pytest.raises(ValueError, match=message):
            CG().solve(problems.system(), **arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"rhs": torch.ones(N)}, ValueError, r"`rhs` must have shape \(90, s\), got \(90,\)"),
        (
            {"rhs": torch.ones(N - 1, 2)},
            ValueError,
            r"`rhs` must have shape \(90, s\), got \(89, 2\)",
        ),
        (
            {"rhs": torch.ones(N, 2), "initial": torch.ones(N, 3)},
            ValueError,
            r"`initial` must have the shape of `rhs`, \(90, 2\)",
        ),
        ({"rhs": [[1.0]] * N}, TypeError, "`rhs` must be a torch.Tensor, got list"),
        (
            {"rhs": torch.ones(N, 2).double()},
            TypeError,
            "`rhs` must have the system's dtype torch.float32, got torch.float64",
        ),
        (
            {"rhs": torch.ones(N, 2, dtype=torch.long)},
            TypeError,
            "`rhs` must have dtype float32 or float64, got torch.int64",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_named(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        CG().solve(problems.system(dtype=torch.float32), **arguments)


def test_settings_that_make_no_sense_are_refused() -> None:
    limits = ("tolerance", "max_epochs", "max_seconds")
    wrong = (0.0, -1.0, float("nan"), float("inf"))
    for kind in (CG, Auto):
        assert_refused(ValueError, kind, **dict.fromkeys(limits, wrong))
        assert_refused(TypeError, kind, **dict.fromkeys(limits, ["fast"]))
    steps: dict[str, Any] = {"step_size": [0.0, float("nan")], "batch_size": [0]}
    averages = {"momentum": [1.0, -0.1], "averaging": [0.0, 1.5]}
    assert_refused(ValueError, SDD, **steps, **averages)
    assert_refused(
        ValueError, SGD, **steps, num_features=[0], momentum=[1.0], clip=[-1.0], averaging=[2.0]
    )
    assert_refused(ValueError, SketchAndProject, block_size=[0], mu=[0.0], nu=[float("inf")])
    for kind, size in ((SDD, "batch_size"), (SketchAndProject, "block_size")):
        assert_refused(TypeError, kind, **{size: [2.5]})


@dataclass
class Iterates(State):
    W: Tensor
    R: Tensor
    norms: Tensor
    label: str = "tensor fields alone are selected"


@dataclass(frozen=True)
class Richardson(IterativeSolver[LinearSystem, None, Iterates]):
    """The simplest method there is, with switches for what can go wrong in the loop's eyes."""

    step_size: float = 0.02
    optimism: float = 1.0  # what the true residual is divided by in the method's own estimate

    def accepts(self, system: LinearSystem) -> LinearSystem:
        return system

    def prepare(self, system: LinearSystem, generator: torch.Generator) -> None:
        return None

    def init(self, system: LinearSystem, start: Start[None]) -> Iterates:
        return Iterates(start.initial, start.gap, start.gap.norm(dim=0))

    def step(
        self, system: LinearSystem, rhs: Tensor, state: Iterates, generator: torch.Generator
    ) -> Iterates:
        widths.append(state.W.shape[1])
        W = state.W + self.step_size * state.R
        R = rhs - system @ W
        return Iterates(W, R, R.norm(dim=0))

    def estimate(self, system: LinearSystem, state: Iterates) -> Tensor:
        return state.W

    def residual_norm(self, system: LinearSystem, state: Iterates) -> Tensor:
        return state.norms / self.optimism


widths: list[int] = []


@pytest.fixture(autouse=True)
def no_widths() -> None:
    widths.clear()


@pytest.fixture
def system() -> KernelSystem:
    return problems.system(60, 1.0)


def test_steps_touch_running_columns_only(system: KernelSystem) -> None:
    _, vectors = torch.linalg.eigh(system.to_dense())
    rhs = vectors[:, [-1, 0, -3]]  # the larger the eigenvalue, the sooner Richardson is done
    solution = Richardson(tolerance=1e-3, max_epochs=1e4).solve(system, rhs)
    assert solution.converged.all()
    assert solution.steps[0] < solution.steps[2] < solution.steps[1]
    assert widths == sorted(widths, reverse=True)
    assert sum(widths) == solution.steps.sum()


def test_a_column_keeps_the_value_it_converged_with(system: KernelSystem) -> None:
    _, vectors = torch.linalg.eigh(system.to_dense())
    rhs = vectors[:, [-1, 0]]
    long = Richardson(tolerance=1e-3, max_epochs=1e4).solve(system, rhs)
    short = Richardson(tolerance=1e-3, max_epochs=long.steps[0].item() + 2.0).solve(system, rhs)
    assert torch.equal(long.value[:, 0], short.value[:, 0])
    assert not short.converged[1] and long.converged[1]


def test_a_column_that_claims_too_much_goes_on_from_where_it_is(system: KernelSystem) -> None:
    rhs = problems.normal(60, 2)
    solution = Richardson(tolerance=1e-2, optimism=10.0, max_epochs=1e4).solve(system, rhs)
    assert solution.converged.all()
    honest = Richardson(tolerance=1e-2, max_epochs=1e4).solve(system, rhs)
    assert (solution.steps <= 1.3 * honest.steps).all()


def test_a_method_that_claims_a_little_too_much_is_asked_for_a_little_more(
    system: KernelSystem,
) -> None:
    rhs = problems.normal(60, 2)
    solution = Richardson(tolerance=1e-2, optimism=1.05, max_epochs=1e4).solve(system, rhs)
    assert solution.converged.all()
    assert (solution.residual > 0.8e-2).all()


def test_a_diverging_method_returns_the_start_and_says_so(system: KernelSystem) -> None:
    rhs = problems.normal(60, 2)
    initial = 1e-3 * problems.normal(60, 2, seed=1)
    for max_epochs in (20.0, 2000.0):  # far off, and beyond the largest number
        solution = Richardson(step_size=5.0, max_epochs=max_epochs).solve(
            system, rhs, initial=initial
        )
        assert torch.equal(solution.value, initial)
        assert not solution.converged.any()
        assert "stopped improving" in solution.note
        assert solution.note in str(solution)


SIZES = {
    "sdd": lambda size: SDD.paper(batch_size=size),
    "sgd": lambda size: SGD(batch_size=size),
    "sap": lambda size: SketchAndProject.sap(block_size=size),
    "asap": lambda size: SketchAndProject.asap(block_size=size),
    "dpp": lambda size: SketchAndProject(blocks="dpp", block_size=size),
    "adasap": lambda size: SketchAndProject.adasap(preconditioner=Nystrom(size, "gaussian")),
    "cg-nystrom": lambda size: CG(Nystrom(size)),
    "cg-pivoted": lambda size: CG(PivotedCholesky(size)),
}


@pytest.mark.parametrize("make", SIZES.values(), ids=SIZES.keys())
def test_sizes_beyond_the_data_take_all_rows_and_the_note_says_so(
    make: Callable[[int], IterativeSolver],
) -> None:
    for n in (1, 7, 60):
        system, rhs = problems.system(n), problems.normal(n, 2)
        small, large = (make(size).solve(system, rhs) for size in (n, 512))
        assert torch.equal(large.value, small.value)
        assert large.epochs == small.epochs
        assert re.fullmatch(rf"(.*; )?`(batch_size|block_size|rank)` 512 .* n = {n}", large.note)
        assert "reduced to n" not in small.note
