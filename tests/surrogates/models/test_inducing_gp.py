"""InducingPathwiseGP: its posterior against dense algebra and the exact model,
and its inducing points as a part of the model.
"""

import math
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from torch import Tensor

from surrogates import (
    CG,
    SGD,
    Auto,
    Cholesky,
    InducingPathwiseGP,
    PathwiseGP,
    Solver,
    VariationalGP,
    gaussian_likelihood,
)
from surrogates.operators.linalg import DIRECT_SOLVE_UP_TO
from tests import problems
from tests.refusals import assert_refused
from tests.surrogates.models.toy_model import YVAR, D, N, X, Y, kernel

M = 15
NOISE = 0.02
TEST = problems.uniform(4, D, seed=1)


def settings(**changes: Any) -> dict[str, Any]:
    return {
        "covar_module": kernel(),
        "likelihood": gaussian_likelihood(NOISE),
        "num_paths": 64,
        "num_features": 128,
        **changes,
    }


def inducing(points: Tensor | int = M, **changes: Any) -> InducingPathwiseGP:
    return InducingPathwiseGP(X, Y, inducing_points=points, **settings(**changes))


def mean(model: PathwiseGP, points: Tensor = TEST) -> Tensor:
    with torch.no_grad():
        return model.posterior(points).mean


def estimator(model: InducingPathwiseGP) -> Tensor:
    """Return G (q, n) with G (y − μ) the update of the mean at the test points:
    k(·, Z) A⁻¹ K_ZX Σ⁻¹.
    """
    Z = model.inducing_points
    k = model.covar_module
    with torch.no_grad():
        K_ZX, K_ZZ, K_qZ = (k(a, b).to_dense() for a, b in ((Z, X), (Z, Z), (TEST, Z)))
        weighted = K_ZX / model.noise
        return K_qZ @ torch.linalg.solve(weighted @ K_ZX.T + K_ZZ, weighted)


@pytest.mark.parametrize("known_noise", [False, True], ids=["scalar", "vector"])
def test_the_mean_is_that_of_dense_algebra(known_noise: bool) -> None:
    model = inducing(
        outcome_transform=None, **({"train_Yvar": YVAR, "likelihood": None} if known_noise else {})
    )
    expected = model.mean_module.constant + estimator(model) @ (Y - model.mean_module.constant)
    torch.testing.assert_close(mean(model), expected.detach())
    torch.testing.assert_close(model.paths(2).mean(TEST).unsqueeze(-1), expected.detach())


def float32_and_float64_means(kind: type[PathwiseGP], **options: Any) -> tuple[Tensor, Tensor]:
    """Return means of 1000 float32 data with little noise, near-duplicates among them and among the
    inducing points.
    """
    coarse = problems.uniform(200, D, seed=5)
    inputs = (coarse.repeat(5, 1) + 1e-6 * problems.normal(1000, D, seed=6)).float()
    targets = torch.sin(5 * inputs.sum(1, keepdim=True))
    means = []
    for dtype in (torch.float32, torch.float64):
        model = kind(
            inputs.to(dtype),
            targets.to(dtype),
            covar_module=kernel().to(dtype=dtype),
            likelihood=gaussian_likelihood(1e-4),
            outcome_transform=None,
            inducing_points=inputs[:300].to(dtype),  # type: ignore[call-arg]
            **options,
        )
        means.append(mean(model, TEST.float().to(dtype)))
    return means[0], means[1]


@pytest.mark.parametrize(
    ("kind", "options"),
    [(InducingPathwiseGP, {}), (InducingPathwiseGP, {"solver": Auto()}), (VariationalGP, {})],
    ids=["inducing", "inducing-auto", "variational"],
)
def test_little_noise_and_close_inducing_points_cost_float32_no_accuracy(
    kind: type[PathwiseGP], options: dict[str, Any]
) -> None:
    single, double = float32_and_float64_means(kind, **options)
    torch.testing.assert_close(single.double(), double, rtol=0, atol=1e-3)


@pytest.mark.parametrize("solver", [None, Auto()], ids=["default", "auto"])
def test_float32_is_as_close_to_float64_as_its_own_spread(solver: Solver | None) -> None:
    inputs = problems.uniform(200, 2, dtype=torch.float32)
    wave = torch.sin(5 * inputs[:, :1])
    points = problems.uniform(50, 2, seed=1, dtype=torch.float32)
    single, double = (
        InducingPathwiseGP(
            inputs.to(dtype),
            wave.to(dtype),
            covar_module=problems.scaled(problems.rbf(0.3), 2.0),
            likelihood=gaussian_likelihood(1e-4),
            outcome_transform=None,
            inducing_points=inputs[:120].to(dtype),
            solver=solver,
        ).posterior(points.to(dtype))
        for dtype in (torch.float32, torch.float64)
    )
    assert single.mean.dtype == single.variance.dtype == torch.float32
    error = (single.mean.double() - double.mean) / double.variance.sqrt()
    assert error.abs().max() < 0.1
    torch.testing.assert_close(single.variance.double(), double.variance, rtol=0.05, atol=0.0)


def test_the_covariance_of_the_paths_is_the_mean_squared_error_of_the_mean() -> None:
    num_paths = 4096
    noise = 0.5
    model = inducing(
        outcome_transform=None,
        num_paths=num_paths,
        num_features=1024,
        likelihood=gaussian_likelihood(noise),
    )
    G = estimator(model)
    k = model.covar_module
    with torch.no_grad():
        cross = G @ k(X, TEST).to_dense()
        noisy = k(X, X).to_dense() + noise * torch.eye(N)
        expected = k(TEST, TEST).to_dense() - cross - cross.T + G @ noisy @ G.T
    posterior = model.posterior(TEST)
    tolerance = 5 * math.sqrt(2 / num_paths) * expected.diagonal().max()
    torch.testing.assert_close(
        posterior.distribution.covariance_matrix, expected, rtol=0, atol=tolerance
    )
    exact = SingleTaskGP(
        X, Y, covar_module=kernel(), likelihood=gaussian_likelihood(noise), outcome_transform=None
    ).posterior(TEST)
    assert (expected.diagonal() > exact.variance.squeeze(-1)).all()


def test_stochastic_gradients_give_the_direct_posterior() -> None:
    direct = mean(inducing())
    sgd = inducing(solver=SGD(batch_size=20, clip=10.0, max_epochs=2000.0, error=0.5), num_paths=2)
    assert (mean(sgd) - direct).abs().max() < 0.05 * Y.std()
    cg = inducing(solver=CG(preconditioner=None, tolerance=1e-8, max_epochs=500.0), num_paths=2)
    torch.testing.assert_close(mean(cg), direct, rtol=0, atol=1e-4 * float(Y.std()))


def test_the_solver_left_open_is_direct_up_to_the_limit_and_stochastic_beyond() -> None:
    assert isinstance(inducing().rule.solver_for(DIRECT_SOLVE_UP_TO), Cholesky)
    assert isinstance(inducing().rule.solver_for(DIRECT_SOLVE_UP_TO + 1), SGD)


@pytest.mark.parametrize("method", ["k-means", "random", "neighbours"])
def test_a_number_of_inducing_points_is_chosen_and_capped(method: str) -> None:
    assert inducing(M, inducing_method=method).inducing_points.shape == (M, D)
    assert len(InducingPathwiseGP(X, Y).inducing_points) == N
    assert torch.equal(
        inducing(inducing_method=method).inducing_points,
        inducing(inducing_method=method).inducing_points,
    )
    assert not torch.equal(
        inducing(seed=1, inducing_method=method).inducing_points,
        inducing(inducing_method=method).inducing_points,
    )


def test_inducing_points_are_given_in_the_users_units_and_kept_on_transformed_inputs() -> None:
    wide = 100.0 * X
    model = InducingPathwiseGP(
        wide, Y, inducing_points=wide[:M], **settings(input_transform=Normalize(D))
    )
    model.eval()
    torch.testing.assert_close(model.inducing_points, model.train_inputs[0][:M])
    chosen = InducingPathwiseGP(
        wide, Y, inducing_points=M, **settings(input_transform=Normalize(D))
    )
    assert chosen.inducing_points.min() >= 0 and chosen.inducing_points.max() <= 1
    assert chosen.training


def test_copies_state_dicts_and_dtypes_carry_the_inducing_points() -> None:
    model = inducing()
    other = inducing(seed=1)
    assert torch.equal(mean(deepcopy(model)), mean(model))
    paths = other.paths(2)
    before = paths(TEST)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    assert (mean(other) - mean(model)).abs().max() > 1e-4
    other.load_state_dict(state)
    torch.testing.assert_close(mean(other), mean(model))
    assert torch.equal(paths(TEST), before)  # drawn from what the model was
    assert model.float().inducing_points.dtype == torch.float32


def test_moved_inducing_points_change_the_posterior() -> None:
    model = inducing()
    before = mean(model)
    model.inducing_points.add_(0.1)
    assert (mean(model) - before).abs().max() > 1e-3


def test_a_warm_start_begins_at_the_solution_of_the_same_inducing_points() -> None:
    previous = inducing(X[:M], solver=Cholesky(), num_paths=2)
    mean(previous)
    model = inducing(X[:M], solver=CG(preconditioner=None, tolerance=1e-5), num_paths=2).warm_start(
        previous
    )
    mean(model)
    assert (
        model.solution is not None
        and model.solution.steps[0] == 0
        and (model.solution.steps[1:] > 0).all()
    )


def test_a_warm_start_from_other_inducing_points_is_refused() -> None:
    for previous in (inducing(X[1 : M + 1]), PathwiseGP(X, Y)):
        with pytest.raises(
            ValueError,
            match="`previous` must be an InducingPathwiseGP with the inducing points of this model",
        ):
            inducing(X[:M]).warm_start(previous)


def test_no_kernel_matrix_is_needed() -> None:
    torch.testing.assert_close(mean(inducing(memory_budget=8 * M * 7)), mean(inducing()))


def test_inducing_points_that_do_not_fit_are_refused() -> None:
    for kind in (InducingPathwiseGP, VariationalGP):
        model = partial(kind, X, Y)
        assert_refused(TypeError, model, inducing_points=[2.5, X[:3].float()])
        too_many = torch.cat([X, X])
        assert_refused(
            ValueError, model, inducing_points=[0, X[:0], too_many], inducing_method=["kmeans"]
        )
