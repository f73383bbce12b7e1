"""Every solver, as its name or its paper has it, drives a study from its first values."""

from typing import Any

import pytest
import torch

from scalable_bo import Categorical, Float, Int, Space, Study
from surrogates import PathwiseGP, Solver
from tests import problems
from tests.card import CARD
from tests.quick import QUICK

# What a stochastic method leaves of so few values, it says
pytestmark = pytest.mark.filterwarnings("ignore::surrogates.solvers.solver.UnsolvedWarning")

SPACES = {
    "1": Space(x=Float(0.0, 1.0)),
    "3": Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0), z=Float(0.0, 1.0)),
    "6": Space(**{f"x{i}": Float(0.0, 1.0) for i in range(6)}),
    "mixed": Space(x=Float(0.0, 1.0), n=Int(1, 50), c=Categorical(["a", "b", "c"])),
}
CASES = [(name, list(SPACES)[i % len(SPACES)], "thompson") for i, name in enumerate(CARD)]
# These fit many kernels at every ask: a few cases are enough
CASES += [("sgd", "3", "regions"), ("adasap", "6", "turbo"), ("cg-100", "mixed", "turbo")]


def value(params: dict[str, Any]) -> float:
    numbers = ["abc".index(x) / 3 if isinstance(x, str) else x for x in params.values()]
    return -sum((1 + i) * (x - 0.3) ** 2 for i, x in enumerate(numbers))


@pytest.mark.parametrize("batches", [(5, 4), pytest.param((5, 4, 3), marks=pytest.mark.slow)])
@pytest.mark.parametrize(("solver", "space", "strategy"), CASES)
def test_every_solver_drives_a_study_from_its_first_values(
    solver: str, space: str, strategy: str, batches: tuple[int, ...]
) -> None:
    study = Study(
        SPACES[space],
        maximize=True,
        seed=0,
        num_initial=5,
        solver=CARD[solver],
        strategy=strategy,
        sampler=QUICK,
    )
    for batch in batches:
        asked = study.ask(batch)
        study.tell(asked.ids, [value(params) for params in asked.params])
    assert study.num_observations == sum(batches)


@pytest.mark.parametrize("solver", ["adasap", "cg-100", "sgd", "sdd-paper"])
def test_solvers_of_large_systems_drive_a_study_of_several_objectives(solver: str) -> None:
    study = Study(
        SPACES["mixed"],
        objectives={"gain": "maximize", "cost": "minimize"},
        num_initial=3,
        solver=CARD[solver],
        strategy="thompson",
        sampler=QUICK,
    )
    for batch in (3, 4):
        asked = study.ask(batch)
        study.tell(asked.ids, [(value(params), params["x"]) for params in asked.params])
    assert study.num_observations == 7


@pytest.mark.parametrize("solver", CARD.values(), ids=CARD.keys())
def test_every_solver_serves_a_model_of_a_few_values(solver: Solver) -> None:
    Q = problems.uniform(4, problems.DIM, seed=1)
    kernel = problems.COMPOSED["nearly-main-effects"]()  # such as a study may choose
    for n, dtype, settings in (
        (1, torch.float64, {"covar_module": kernel}),
        (2, torch.float32, {}),
        (5, torch.float64, {"covar_module": kernel}),
    ):
        X = problems.uniform(n, problems.DIM)
        model = PathwiseGP(X.to(dtype), X.sum(1, keepdim=True).to(dtype), solver=solver, **settings)
        assert model.paths(3)(Q.to(dtype)).isfinite().all()
        posterior = model.posterior(Q.to(dtype))
        assert posterior.mean.isfinite().all() and (posterior.variance > 0).all()
