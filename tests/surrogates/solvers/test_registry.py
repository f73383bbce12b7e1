"""The one list of solvers by name."""

from dataclasses import fields

import pytest
import torch

from surrogates import (
    CG,
    SDD,
    SGD,
    Exact,
    Identity,
    Nystrom,
    PathwiseGP,
    PivotedCholesky,
    SketchAndProject,
    Solver,
)
from surrogates.solvers.registry import SOLVERS, check_solver, make_solver
from tests import problems
from tests.surrogates.solvers.toy_solver import ConjugateResiduals


def test_every_name_makes_a_solver_that_takes_its_settings_by_keyword() -> None:
    for name in SOLVERS:
        solver = make_solver(name)
        settings = {entry.name: getattr(solver, entry.name) for entry in fields(solver)}  # type: ignore[arg-type]
        again = make_solver(name, **settings)
        assert solver == again


def test_every_solver_checks_its_requests_in_the_one_place() -> None:
    for name in SOLVERS:
        assert type(make_solver(name)).solve is Solver.solve


def test_names_give_the_papers_settings_and_others_can_be_set() -> None:
    assert make_solver("adasap-i", block_size=7) == SketchAndProject.adasap_identity(block_size=7)
    assert make_solver("adasap-i").preconditioner == Identity()  # type: ignore[attr-defined]
    assert make_solver("sdd-10", batch_size=5) == SDD(step_size=10.0, batch_size=5)
    with pytest.raises(TypeError, match="unexpected keyword argument 'speed'"):
        make_solver("cg", speed=2)
    assert CG.paper(max_epochs=50.0) == CG(PivotedCholesky(100), tolerance=0.01, max_epochs=50.0)
    assert CG.paper(tolerance=1e-3).tolerance == 1e-3
    sdd = SDD.paper(max_epochs=7.0)
    assert (sdd.batch_size, sdd.step_size, sdd.momentum, sdd.max_epochs) == (500, 50.0, 0.9, 7.0)
    assert (SGD.paper().step_size, SGD.paper().sample_step_size) == (0.5, 0.1)
    assert isinstance(SketchAndProject.sap().preconditioner, Exact)
    adasap = SketchAndProject.adasap(max_epochs=3.0)
    assert adasap.preconditioner == Nystrom(100, sketch="gaussian")
    assert adasap.accelerated and not adasap.tail_average and adasap.max_epochs == 3.0


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    listed = ", ".join(SOLVERS)
    with pytest.raises(ValueError, match=f"`solver` must be one of {listed}, got 'lu'"):
        check_solver("lu")
    with pytest.raises(ValueError, match="Did you mean 'cholesky'"):
        make_solver("cholsky")


def test_a_further_solver_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOLVERS, "cr", ConjugateResiduals)
    assert make_solver("cr", tolerance=1e-6) == ConjugateResiduals(tolerance=1e-6)
    with pytest.raises(ValueError, match="adasap-i, cr, got 'crr'"):
        check_solver("crr")
    X = problems.uniform(60, 2)
    Y = torch.sin(6.0 * X[:, :1])
    model = PathwiseGP(X, Y, solver=make_solver("cr", tolerance=1e-8))
    mean = model.paths(3).mean(X[:5])
    assert model.solution is not None and model.solution.converged.all()
    torch.testing.assert_close(
        mean, PathwiseGP(X, Y).posterior(X[:5]).mean.squeeze(-1), rtol=1e-5, atol=1e-5
    )
