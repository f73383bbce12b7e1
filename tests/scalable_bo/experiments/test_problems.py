"""Objectives: prior draws have the prior's law; BoTorch's functions are turned to maximisation."""

import math

import pytest
import torch

from scalable_bo.experiments import problems
from scalable_bo.experiments.models import matern_kernel
from scalable_bo.experiments.problems import GPPrior


def draw(seed: int, dim: int = 3, **options: object) -> GPPrior:
    generator = torch.Generator().manual_seed(seed)
    return GPPrior(matern_kernel(0.5, 2.0), dim, num_features=200, generator=generator, **options)  # type: ignore[arg-type]


def test_draws_have_the_kernels_covariance(generator: torch.Generator) -> None:
    # One lengthscale apart
    X = torch.tensor([[0.2, 0.5, 0.5], [0.7, 0.5, 0.5]], dtype=torch.float64)
    targets = [draw(seed) for seed in range(100)]
    own = torch.stack([target(X) for target in targets])
    shared = [target.share_features(20, generator)(X) for target in targets]
    values = torch.cat([own, *shared])
    expected = 2.0 * torch.tensor([[1.0, 0.4834], [0.4834, 1.0]], dtype=torch.float64)
    # The error of a covariance from N draws of variance 2 is 2 sqrt((1 + ρ²) / N); features add a
    # kurtosis of order 1/F.
    torch.testing.assert_close(
        values.T @ values / len(values), expected, atol=5 * 2 * math.sqrt(2 / len(values)), rtol=0
    )


def test_a_seed_means_one_function() -> None:
    X = torch.rand(5, 3, dtype=torch.float64)
    assert torch.equal(draw(1)(X), draw(1)(X))
    assert not torch.allclose(draw(1)(X), draw(2)(X))


def test_observations_add_noise_of_the_stated_variance(generator: torch.Generator) -> None:
    target = draw(0, noise=0.04)
    X = torch.rand(4000, 3, dtype=torch.float64)
    noise = target.observe(X, generator) - target(X)
    assert noise.std().item() == pytest.approx(0.2, rel=5 / math.sqrt(2 * 4000))
    assert abs(noise.mean().item()) < 5 * 0.2 / math.sqrt(4000)


def test_shared_features_span_the_target(generator: torch.Generator) -> None:
    target = draw(0)
    shared = target.share_features(7, generator)
    ((features, weights),) = shared.draws
    assert features is target.prior.draws[0][0]
    assert weights.shape == (200, 7)
    assert shared(target.bounds).shape == (7, 2)
    assert not torch.allclose(weights[:, :1], target.prior.draws[0][1])


@pytest.mark.parametrize("name", problems.TEST_FUNCTIONS)
def test_every_test_function_reaches_its_optimal_value_and_never_exceeds_it(name: str) -> None:
    problem = problems.test_function(name)
    assert problem.optimal_value is not None
    assert problem.optimizers is not None
    values = problem(problem.optimizers)
    torch.testing.assert_close(
        values, torch.full_like(values, problem.optimal_value), atol=2e-3, rtol=1e-3
    )
    low, high = problem.bounds
    X = low + (high - low) * torch.rand(200, problem.dim, dtype=torch.float64)
    assert (problem(X) <= problem.optimal_value + 1e-3).all()


def test_test_functions_are_found_by_any_spelling_and_take_a_dimension() -> None:
    assert problems.test_function("styblinski_tang", dim=5).dim == 5
    assert problems.test_function("Six-Hump-Camel").dim == 2
    assert problems.test_function("ackley", dim=8, noise=0.5).noise == 0.5


def test_float32_points_on_a_bound_are_inside() -> None:
    problem = problems.test_function("ackley")
    assert problem(problem.bounds.float()).dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "dim", "message"),
    [
        ("nope", None, "`name` must be one of Ackley, Beale.*got 'nope'"),
        ("branin", 3, "`dim` must be 2 for Branin, got 3"),
        ("hartmann", 5, "`dim` = 5 is not possible for Hartmann"),
        ("ackley", 0, "`dim` must be at least 1, got 0"),
    ],
)
def test_unknown_functions_and_dimensions_are_named(
    name: str, dim: int | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        problems.test_function(name, dim)


def test_an_unknown_optimum_is_none() -> None:
    assert problems.test_function("michalewicz", dim=3).optimal_value is None


def test_points_of_another_shape_or_outside_are_refused() -> None:
    target = draw(0)
    with pytest.raises(ValueError, match=r"`X` must have shape \(n, 3\), got \(3,\)"):
        target(torch.zeros(3, dtype=torch.float64))
    with pytest.raises(ValueError, match="`bounds`"):
        target(torch.full((1, 3), 1.1, dtype=torch.float64))
    with pytest.raises(ValueError, match="`bounds`"):
        target(torch.full((1, 3), math.nan, dtype=torch.float64))


@pytest.mark.parametrize("noise", [-1.0, math.nan, math.inf])
def test_noise_that_is_no_variance_is_refused(noise: float) -> None:
    with pytest.raises(ValueError, match="`noise` must be a finite variance"):
        draw(0, noise=noise)
