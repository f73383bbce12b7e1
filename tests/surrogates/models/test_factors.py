"""A Cholesky factor kept over rounds: what is appended to it, when it is given up,
and that it changes nothing but the time.
"""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from surrogates import (
    CG,
    Auto,
    Cholesky,
    KernelSystem,
    PathwiseGP,
    SamplePaths,
    gaussian_likelihood,
)
from surrogates.models.batches import DataSet, data_sets
from surrogates.models.factors import DirectSolver, KeptFactor
from surrogates.operators.tiled import kernel_operator
from tests import problems

N = 60
K = 7
D = 2
S = 4
X = problems.uniform(N + K, D)
Y = 10 + 4 * torch.sin(5 * X.sum(1, keepdim=True))
YVAR = 0.05 + 0.3 * problems.uniform(N + K, 1, seed=3)
Z = problems.uniform(5, D, seed=1)


def built(n: int = N, *, keep_factor: bool = True, **changes: Any) -> PathwiseGP:
    kernel = problems.scaled(problems.matern(1.5, 0.4), 1.3)
    options = {
        "covar_module": kernel,
        "outcome_transform": None,
        "num_features": 64,
        "solver": Cholesky(),
        **changes,
    }
    if "train_Yvar" not in options:
        options = {"likelihood": gaussian_likelihood(0.02), **options}
    return PathwiseGP(X[:n], Y[:n], keep_factor=keep_factor, **options).eval()


def drawn(model: PathwiseGP) -> Tensor:
    """Return the values of paths at Z, from a generator that is the same for every model."""
    with torch.no_grad():
        return model.paths(S, generator=torch.Generator().manual_seed(5))(Z)


def data_and_system(model: PathwiseGP) -> tuple[DataSet, KernelSystem]:
    (data,) = data_sets(model)
    return data, KernelSystem(kernel_operator(data.kernel, data.X), data.noise)


def num_kept(model: PathwiseGP) -> int:
    (factor,) = model._factors
    return factor.num_kept


@pytest.mark.parametrize("known_noise", [False, True])
def test_an_appended_factor_is_that_of_all_data(known_noise: bool) -> None:
    first, whole = (
        built(n, **({"train_Yvar": YVAR[:n]} if known_noise else {})) for n in (N, N + K)
    )
    (data,) = data_sets(first)
    earlier = KeptFactor.of(data)
    data, system = data_and_system(whole)
    assert earlier is not None
    factor = KeptFactor.of(data, [earlier])
    assert factor is not None and factor.num_kept == N
    torch.testing.assert_close(factor.lower, torch.linalg.cholesky(system.to_dense()))


@pytest.mark.parametrize(
    "solver", [Cholesky(), Auto(tolerance=1e-6), None], ids=["cholesky", "auto", "default"]
)
def test_paths_by_an_appended_factor_are_those_of_a_new_model(solver: Any) -> None:
    previous = built(solver=solver)
    model = built(N + K, solver=solver)
    previous.paths(2)
    torch.testing.assert_close(
        drawn(model.warm_start(previous)), drawn(built(N + K, keep_factor=False))
    )
    assert num_kept(model) == N
    assert model.solution is not None and model.solution.converged.all()
    assert f"{N} rows were kept" in model.solution.note
    drawn(model)
    assert num_kept(model) == N + K  # nothing is factorised for further paths


@pytest.mark.parametrize("solver", [Cholesky(), Auto()], ids=["exact", "paths"])
def test_conditioning_on_further_data_appends_to_the_factor(solver: Any) -> None:
    model = built(solver=solver)
    model.paths(2)
    conditioned = model.condition_on_observations(X[N:], Y[N:])
    torch.testing.assert_close(drawn(conditioned), drawn(built(N + K, keep_factor=False)))
    assert num_kept(conditioned) == N


@pytest.mark.parametrize("change", ["lengthscale", "noise", "points"])
def test_other_hyperparameters_or_points_are_factorised_anew(change: str) -> None:
    model = built()
    reference = built(keep_factor=False)
    model.paths(2)
    for each in (model, reference):
        if change == "lengthscale":
            each.covar_module.base_kernel.lengthscale = 0.7
        elif change == "noise":
            each.likelihood.noise = 0.5
        else:
            each.set_train_data(X[K:], Y[K:].squeeze(1), strict=False)
    torch.testing.assert_close(drawn(model), drawn(reference))
    assert num_kept(model) == 0


@pytest.mark.parametrize(
    "options",
    [{"keep_factor": False}, {"solver": CG(None)}, {"memory_budget": 8 * N**2 - 1}],
    ids=["unasked", "iterative", "over-budget"],
)
def test_no_factor_is_kept_where_none_is_wanted_or_fits(options: dict[str, Any]) -> None:
    model = built(**options)
    torch.testing.assert_close(drawn(model), drawn(built(**{**options, "keep_factor": False})))
    assert model._factors == ()


def test_what_rounding_leaves_indefinite_is_left_to_the_solver() -> None:
    copies = torch.cat([X[:N], X[:N]]).float()
    model = PathwiseGP(
        copies,
        torch.cat([Y[:N], Y[:N]]).float(),
        covar_module=problems.scaled(problems.matern(1.5, 40.0), 1.0).float(),
        likelihood=gaussian_likelihood(1e-9).float(),
        solver=Cholesky(),
        keep_factor=True,
    )
    model.paths(2)
    assert model._factors == ()
    assert model.solution is not None and "jitter" in model.solution.note


def test_a_factor_that_misses_the_tolerance_is_left_to_the_solver() -> None:
    data, system = data_and_system(built())
    factor = KeptFactor.of(data)
    assert factor is not None
    wrong = replace(factor, lower=1.1 * factor.lower)
    rhs = problems.normal(N, S)
    solution = DirectSolver(wrong, CG(None, tolerance=1e-8)).solve(system, rhs)
    torch.testing.assert_close(
        solution.value, Cholesky().solve(system, rhs).value, rtol=0, atol=1e-5
    )
    assert "factor" not in solution.note


def test_outputs_of_one_kernel_and_noise_share_a_factor() -> None:
    model = PathwiseGP(
        X,
        torch.cat([Y, Y.cos()], 1),
        covar_module=problems.scaled(problems.matern(1.5, 0.4), 1.3),
        likelihood=gaussian_likelihood(0.02),
        solver=Cholesky(),
        keep_factor=True,
    )
    model.paths(S)
    first, second = model._factors
    assert second.lower is first.lower and (first.num_kept, second.num_kept) == (0, N + K)


def test_copies_share_the_factor_and_moves_give_it_up() -> None:
    model = built()
    paths = model.paths(S)
    assert isinstance(paths, SamplePaths)
    assert deepcopy(model)._factors[0] is model._factors[0]
    assert model.float()._factors == ()


def test_keep_factor_is_true_or_false() -> None:
    with pytest.raises(TypeError, match="`keep_factor` must be True or False, got str 'yes'"):
        PathwiseGP(X, Y, keep_factor="yes")  # type: ignore[arg-type]
