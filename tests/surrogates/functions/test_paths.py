"""Sample paths: their mean and covariance, and how far the drawn features put them from the exact
posterior.
"""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from botorch.models.transforms.input import Normalize
from gpytorch.means import ZeroMean
from torch import Tensor

from surrogates import (
    CG,
    Cholesky,
    Nystrom,
    PathwiseGP,
    PriorPaths,
    RandomFeatures,
    SamplePaths,
    Solver,
    gaussian_likelihood,
)
from tests import problems

N = 300
Q = 50
NOISE = 0.1
NUM_PATHS = 4096
X = problems.uniform(N, 2)
Z = problems.uniform(Q, 2, seed=1)
Y = torch.sin(6 * X[:, :1]) * torch.cos(4 * X[:, 1:]) + math.sqrt(NOISE) * problems.normal(
    N, 1, seed=2
)
KERNEL = problems.scaled(problems.matern(1.5, 0.3), 1.5).double()


def model(solver: Solver | None = None, num_features: int = 256, **settings: object) -> PathwiseGP:
    return PathwiseGP(
        X,
        Y,
        likelihood=gaussian_likelihood(NOISE),
        covar_module=problems.scaled(problems.matern(1.5, 0.3), 1.5),
        mean_module=ZeroMean(),
        outcome_transform=None,
        solver=solver,
        num_features=num_features,
        **settings,
    )


def exact_posterior() -> tuple[Tensor, Tensor, Tensor]:
    """Return the exact mean (Q,) and covariance (Q, Q) at Z, and A = k(Z, X) H⁻¹."""
    H = problems.own_evaluation(KERNEL, X, X) + NOISE * torch.eye(N, dtype=torch.float64)
    K_ZX = problems.own_evaluation(KERNEL, Z, X)
    A = torch.linalg.solve(H, K_ZX.T).T
    return (A @ Y).squeeze(1), problems.own_evaluation(KERNEL, Z, Z) - A @ K_ZX.T, A


MEAN, COVARIANCE, A = exact_posterior()


def drawn_covariance(features: RandomFeatures) -> Tensor:
    """Return [I, −A] ΦΦᵀ [I, −A]ᵀ + σ² A Aᵀ, the covariance of paths that share ``features``."""
    R = features(Z) - A @ features(X)
    return R @ R.T + NOISE * A @ A.T


def largest_deviation(samples: Tensor, mean: Tensor, covariance: Tensor) -> tuple[float, float]:
    """Return the largest deviation of the samples' mean and covariance (about ``mean``),
    in standard errors.
    """
    num_samples = len(samples)
    centred = samples - mean
    variance = covariance.diagonal()
    of_mean = centred.mean(0).abs() / (variance / num_samples).sqrt()
    standard_error = ((torch.outer(variance, variance) + covariance.square()) / num_samples).sqrt()
    of_covariance = (centred.T @ centred / num_samples - covariance).abs() / standard_error
    return of_mean.max().item(), of_covariance.max().item()


@pytest.mark.parametrize(
    "solver", [Cholesky(), CG(tolerance=1e-6, preconditioner=Nystrom(30))], ids=["cholesky", "cg"]
)
def test_paths_have_the_exact_mean_and_the_covariance_of_their_features(solver: Solver) -> None:
    gp = model(solver)
    paths = gp.paths(NUM_PATHS, generator=problems.seeded())
    assert gp.solution is not None and gp.solution.converged.all(), str(gp.solution)
    torch.testing.assert_close(paths.mean(Z), MEAN, rtol=0, atol=1e-3)
    ((features, _),) = paths.prior.draws
    mean_error, covariance_error = largest_deviation(paths(Z), MEAN, drawn_covariance(features))
    assert mean_error < 5.0  # of 50 means and 1275 covariances, in standard errors
    assert covariance_error < 5.5


def test_the_distance_to_the_exact_covariance_falls_as_one_over_the_root_of_the_features() -> None:
    sizes = [64, 256, 1024, 4096]
    draws = 12
    generator = problems.seeded()
    squares = torch.zeros(len(sizes), draws)
    for i, j in product(range(len(sizes)), range(draws)):
        features = RandomFeatures.draw(KERNEL, 2, sizes[i], generator=generator)
        error = drawn_covariance(features) - COVARIANCE
        squares[i, j] = (error.norm() / COVARIANCE.norm()).square()
    distances = squares.mean(1).sqrt()
    slopes = distances.log2().diff() / 2.0  # a factor of 4 is two octaves
    assert slopes.mean().item() == pytest.approx(-0.5, abs=0.07)
    assert (slopes < -0.3).all()


@pytest.fixture(scope="module")
def paths() -> SamplePaths:
    return model().paths(6)


def test_a_path_is_a_function_that_is_the_same_everywhere_it_is_evaluated(
    paths: SamplePaths,
) -> None:
    batches = problems.uniform(3, 2, 5, 2)
    assert paths.num_samples == 6
    assert paths(batches).shape == (6, 3, 2, 5)
    assert paths.mean(batches).shape == (3, 2, 5)
    torch.testing.assert_close(paths(batches), paths(batches.reshape(-1, 2)).reshape(6, 3, 2, 5))
    own = problems.uniform(6, 4, 2)
    expected = torch.stack([paths(x)[i] for i, x in enumerate(own)])
    torch.testing.assert_close(paths.each(own), expected)


def test_gradients_are_those_of_the_functions(paths: SamplePaths) -> None:
    points = problems.uniform(6, 2, 2).requires_grad_()
    assert torch.autograd.gradcheck(paths.each, (points,))
    assert torch.autograd.gradcheck(paths, (points[0].detach().requires_grad_(),))
    assert torch.autograd.gradcheck(paths.mean, (points[0].detach().requires_grad_(),))


def test_paths_pass_through_noise_free_data() -> None:
    gp = PathwiseGP(
        X[:40], Y[:40], likelihood=gaussian_likelihood(1e-8), covar_module=problems.matern(1.5, 0.3)
    )
    torch.testing.assert_close(gp.paths(5)(X[:40]), Y[:40].T.expand(5, -1), rtol=0, atol=2e-3)


def test_offset_and_scale_are_the_users_units(paths: SamplePaths) -> None:
    shifted = replace(paths, offset=3.0, scale=2.0)
    torch.testing.assert_close(shifted(Z), 3.0 + 2.0 * paths(Z))
    torch.testing.assert_close(shifted.mean(Z), 3.0 + 2.0 * paths.mean(Z))
    torch.testing.assert_close(
        shifted.each(Z[:6].unsqueeze(1)), 3.0 + 2.0 * paths.each(Z[:6].unsqueeze(1))
    )


@pytest.mark.parametrize("float32", [False, True])
def test_tempered_paths_deviate_from_the_mean_by_their_shares(
    paths: SamplePaths, float32: bool
) -> None:
    shares = torch.tensor([0.0, 0.1, 0.3, 0.5, 0.9, 1.0]).to(
        torch.float32 if float32 else torch.float64
    )
    tempered = paths.tempered(shares)
    expected = paths.mean(Z) + shares.double().unsqueeze(1) * (paths(Z) - paths.mean(Z))
    torch.testing.assert_close(tempered(Z), expected)
    torch.testing.assert_close(tempered.mean(Z), paths.mean(Z))
    own = problems.uniform(6, 4, 2)
    each = torch.stack([tempered(points)[i] for i, points in enumerate(own)])
    torch.testing.assert_close(tempered.each(own), each)


def test_each_path_has_a_share(paths: SamplePaths) -> None:
    with pytest.raises(ValueError, match=r"`shares` must have shape \(6,\), one for every path"):
        paths.tempered(torch.ones(5))


def test_paths_of_several_draws_of_features_are_tempered_by_their_own_shares() -> None:
    paths = model().paths(5)
    generator = problems.seeded()
    kernel = problems.scaled(problems.matern(1.5, 0.3), 1.5).double()
    prior = PriorPaths.draw(kernel, 2, 5, num_features=32, num_draws=2, generator=generator, like=X)
    factors = torch.tensor([1.0, 0.5, 0.0, 2.0, 0.25], dtype=torch.float64)
    torch.testing.assert_close(prior.scaled(factors)(Z), factors.unsqueeze(1) * prior(Z))
    drawn = replace(paths, prior=prior)
    expected = drawn.mean(Z) + factors.unsqueeze(1) * (drawn(Z) - drawn.mean(Z))
    torch.testing.assert_close(drawn.tempered(factors)(Z), expected)


def test_paths_of_finitely_many_features_are_tempered(paths: SamplePaths) -> None:
    shares = torch.linspace(0, 1, 6, dtype=torch.float64)
    finite = replace(paths, prior=None)
    expected = finite.mean(Z) + shares.unsqueeze(1) * (finite(Z) - finite.mean(Z))
    torch.testing.assert_close(finite.tempered(shares)(Z), expected)


def test_points_of_another_shape_are_refused(paths: SamplePaths) -> None:
    for bad in (problems.uniform(5, 3), problems.uniform(2)):
        for evaluate in (paths, paths.mean):
            with pytest.raises(ValueError, match=r"`X` must have shape \(..., q, 2\), got"):
                evaluate(bad)
    with pytest.raises(
        ValueError, match=r"`X` must have shape \(6, q, d\), a row of points for every path"
    ):
        paths.each(problems.uniform(5, 4, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_points_of_another_dtype_are_taken_in_that_of_the_model(dtype: torch.dtype) -> None:
    small = PathwiseGP(X[:40].to(dtype), Y[:40].to(dtype), input_transform=Normalize(2))
    drawn = small.paths(3, generator=problems.seeded())
    own = problems.uniform(3, 4, 2, seed=5, dtype=dtype)
    # Every number of the narrower type is one of the wider
    other = own.double() if dtype == torch.float32 else own.float()
    own = other.to(dtype)
    for evaluate in (drawn, drawn.each, drawn.mean):
        assert evaluate(other).dtype == dtype
        torch.testing.assert_close(evaluate(other), evaluate(own))
    corners = torch.tensor([[0, 1], [1, 1]])
    torch.testing.assert_close(drawn(corners), drawn(corners.to(dtype)))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_paths_move_between_devices(paths: SamplePaths, device: str) -> None:
    moved = paths.to(device)
    torch.testing.assert_close(moved(Z.to(device)).cpu(), paths(Z))
    torch.testing.assert_close(moved.mean(Z.to(device)).cpu(), paths.mean(Z))
    assert moved.weights.device.type == device


@pytest.mark.parametrize("normalize", [False, True])
def test_condensed_paths_agree_at_their_points(normalize: bool) -> None:
    transforms = {"input_transform": Normalize(2)} if normalize else {}
    gp = PathwiseGP(
        3.0 * X, 5.0 + 2.0 * Y, covar_module=problems.rbf(0.4), num_features=64, **transforms
    )
    paths = gp.paths(3)
    places = 3.0 * Z
    condensed = paths.condensed(places)
    assert condensed.prior is None
    assert condensed.weights.shape == (Q, 3)
    torch.testing.assert_close(condensed(places), paths(places), atol=1e-3, rtol=0.0)
    torch.testing.assert_close(condensed.mean(places), paths.mean(places), atol=1e-3, rtol=0.0)


def test_paths_of_features_are_not_condensed() -> None:
    paths = model().paths(3)
    features = RandomFeatures.draw(KERNEL, 2, 64, generator=problems.seeded(), like=X)
    with pytest.raises(TypeError, match=r"`data` must be a KernelBasis.*got RandomFeatures"):
        replace(paths, data=features).condensed(Z)
