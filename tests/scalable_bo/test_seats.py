"""Every solver in every seat: the faces of Ax and Optuna, every model and kind of kernel, a round
of the Thompson benchmark, and a regression. Its seat in a study is in
``study/test_study_solvers.py``, and that among several processes in
``tests/surrogates/systems/test_shared.py``.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from gpytorch.kernels import Kernel

from acquisition import ParallelThompsonSampling
from scalable_bo.experiments.cells import run_cell
from scalable_bo.experiments.presets import THOMPSON_PRESETS
from scalable_bo.experiments.thompson.cell import ThompsonCell
from surrogates import (
    GPRegressor,
    InducingPathwiseGP,
    PathwiseGP,
    Solver,
    TanimotoKernel,
    fit,
    multi_task_kernel,
)
from surrogates.solvers.registry import SOLVERS
from tests import problems
from tests.card import CARD

pytestmark = [
    # What a stochastic method leaves of so few values, it says
    pytest.mark.filterwarnings("ignore::surrogates.solvers.solver.UnsolvedWarning"),
    pytest.mark.filterwarnings(r"ignore::DeprecationWarning:ax\..*"),  # of Ax to itself
]

LIGHT = {"num_candidates": 60, "num_rounds": 2, "num_starts": 2, "num_steps": 3}
N = 40
each_solver = pytest.mark.parametrize("solver", CARD.values(), ids=CARD.keys())
# Where a solver is handed on, a direct, a deterministic and a stochastic one stand for all
KINDS = ("cholesky", "cg", "sdd")
each_kind = pytest.mark.parametrize("solver", [CARD[name] for name in KINDS])
each_kind_and_all_in_slow_tests = pytest.mark.parametrize(
    "solver",
    [
        pytest.param(solver, id=name, marks=() if name in KINDS else pytest.mark.slow)
        for name, solver in CARD.items()
    ],
)


@pytest.fixture
def solves(spy: Any, solver: Solver) -> Any:
    """Return what notes the solves by solvers of the kind of ``solver``."""
    return spy(type(solver), "_solve")


@each_kind_and_all_in_slow_tests
def test_optuna_asks_by_a_solver(solver: Solver, solves: Any) -> None:
    optuna = pytest.importorskip("optuna")
    from scalable_bo.integrations.optuna import ThompsonSampler

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = ThompsonSampler(
        seed=0,
        n_startup_trials=3,
        solver=solver,
        strategy="thompson",
        sampler=partial(ParallelThompsonSampling, **LIGHT),
    )
    study = optuna.create_study(sampler=sampler)
    study.optimize(lambda trial: trial.suggest_float("x", -1.0, 2.0) ** 2, n_trials=5)
    assert len(study.trials) == 5
    assert solver in [call.args[0] for call in solves.call_args_list]


@each_kind_and_all_in_slow_tests
def test_ax_asks_by_a_solver(solver: Solver, solves: Any) -> None:
    pytest.importorskip("ax")
    from ax.api.client import Client
    from ax.api.configs import RangeParameterConfig

    from scalable_bo.integrations.ax import pathwise_generation_strategy

    logging.disable(logging.WARNING)
    client = Client(random_seed=0)
    x = RangeParameterConfig(name="x", parameter_type="float", bounds=(0.0, 2.0))
    client.configure_experiment(parameters=[x])
    client.configure_optimization(objective="value")
    client.set_generation_strategy(
        pathwise_generation_strategy(
            num_initial=3,
            strategy="thompson",
            sampler_options=LIGHT,
            model_options={"solver": solver},
        )
    )
    for _ in range(2):
        trials = client.get_next_trials(max_trials=3)
        assert len(trials) == 3
        for index, params in trials.items():
            client.complete_trial(index, {"value": -((params["x"] - 1.2) ** 2)})
    logging.disable(logging.NOTSET)
    assert solver in [call.args[0] for call in solves.call_args_list]


KERNELS: dict[str, Callable[[], Kernel]] = {
    "matern": lambda: problems.scaled(problems.matern(1.5), 1.5),
    "sum": problems.COMPOSED["sum"],
    "product": problems.COMPOSED["product"],
    "tanimoto": lambda: problems.scaled(TanimotoKernel(), 1.5),
    "tasks": lambda: multi_task_kernel(problems.DIM, 2),
}


# Each solver with one kernel in turn, and those that stand for all with every one
SEATS = [(solver, list(KERNELS)[number % len(KERNELS)]) for number, solver in enumerate(CARD)]
SEATS += [(solver, name) for solver in KINDS for name in KERNELS if (solver, name) not in SEATS]


@pytest.mark.parametrize(("solver", "name"), SEATS)
def test_solvers_serve_kernels_of_every_kind(solver: str, name: str) -> None:
    X = problems.uniform(N, problems.DIM)
    X[:, -1] = (X[:, -1] > 0.5).double()  # a task, or a bit
    Q = X[:4].clone()
    Q[:, 0] += 0.01
    model = PathwiseGP(X, X[:, :1].sin(), covar_module=KERNELS[name](), solver=CARD[solver])
    posterior = model.posterior(Q)
    assert model.paths(3)(Q).isfinite().all()
    assert posterior.mean.isfinite().all() and (posterior.variance > 0).all()


@each_solver
def test_inducing_points_take_the_solvers_that_need_no_parts_of_the_matrix(solver: Solver) -> None:
    X = problems.uniform(N, problems.DIM)
    model = InducingPathwiseGP(X, X[:, :1].sin(), inducing_points=9, solver=solver)
    try:
        assert model.paths(3)(X[:4]).isfinite().all()
    except TypeError as refused:
        assert "Use Cholesky(), SGD() or CG(preconditioner=None)" in str(refused)
        assert not {name for name in ("auto", "cholesky", "sgd") if CARD[name] is solver}


@each_kind
def test_a_fitted_model_and_a_regressor_take_a_solver(solver: Solver) -> None:
    X = problems.uniform(N, 2)
    y = X[:, 0].sin()
    model = fit(PathwiseGP(X, y[:, None], solver=solver))
    assert model.paths(2)(X[:3]).isfinite().all()
    mean = GPRegressor(solver=solver, num_paths=8).fit(X.numpy(), y.numpy()).predict(X[:3].numpy())
    assert torch.as_tensor(mean).isfinite().all()


SMOKE = replace(
    THOMPSON_PRESETS["smoke"], num_initial=60, num_rounds=2, q=3, dim=2, num_candidates=100
)


@pytest.mark.parametrize("solver", SOLVERS)  # each with a published budget
def test_every_solver_makes_the_rounds_of_the_thompson_benchmark(solver: str) -> None:
    rounds = run_cell(ThompsonCell(SMOKE, solver, 0.5, 0))["rounds"]
    assert [number["num_points"] for number in rounds] == [63, 66]
