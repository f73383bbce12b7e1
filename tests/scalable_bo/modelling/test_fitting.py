"""The surrogate of few values."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from scalable_bo.modelling.factory import APART, SMOOTH, SurrogateFactory
from scalable_bo.modelling.fitting import MOST_EVALUATIONS, fit_warped
from scalable_bo.modelling.training import TrainingData
from scalable_bo.study.surrogate import KeptSurrogate
from surrogates import PathwiseGP
from surrogates.fitting.search import FitWatch
from tests import problems

CPU = torch.device("cpu")


def few_values(noise: float, n: int = 40) -> TrainingData:
    """Return values of a smooth function, with noise of a standard deviation."""
    generator = problems.seeded()
    U = torch.rand(n, 2, dtype=torch.float64, generator=generator)
    errors = torch.randn(n, dtype=torch.float64, generator=generator)
    return TrainingData.of(U, torch.sin(4.0 * U).sum(1) + noise * errors, None, True)


@pytest.mark.parametrize("exponent", [-1000, -500, 500, 1000])
@pytest.mark.parametrize("variance", [None, 1e-4])
def test_values_of_any_size_are_the_same_in_their_own_units(
    exponent: int, variance: float | None
) -> None:
    unit = 2.0**exponent
    plain = few_values(0.1)
    # A variance is the square of a unit: known ones do not reach as far
    known = (
        None
        if variance is None or abs(exponent) > 500
        else torch.full((40,), variance, dtype=torch.float64)
    )
    ones = TrainingData.of(plain.U, plain.signed, known, True)
    data = TrainingData.of(
        plain.U, unit * plain.signed, None if known is None else known * unit * unit, True
    )
    assert torch.equal(data.y, ones.y)
    assert (data.offset, data.scale) == (unit * ones.offset, unit * ones.scale)
    assert torch.equal(data.values_of(data.y), unit * ones.values_of(ones.y))
    if known is not None:
        assert data.noise is not None and ones.noise is not None
        torch.testing.assert_close(data.noise, ones.noise)


@pytest.mark.parametrize(("noise", "least", "most"), [(0.0, 0.0, 2e-5), (0.2, 0.02, 0.2)])
def test_few_values_have_as_little_noise_as_they_say(
    noise: float, least: float, most: float
) -> None:
    factory = SurrogateFactory.default(2, torch.float64, CPU)
    model, data = fit_warped(factory, few_values(noise), problems.seeded(1), few=True)
    assert least <= model.likelihood.noise.item() <= most
    weights = torch.zeros(40, 1, dtype=torch.float64)
    kept = factory.checkpoint(1, model, weights, few=True, scale_name=data.scale_name)
    assert (
        replace(factory, encoding="a as Float(0.0, 0.5)").restore(few_values(noise), kept) is None
    )
    restored = factory.restore(few_values(noise), kept)
    assert torch.equal(restored[0].likelihood.noise, model.likelihood.noise)


def test_values_that_are_nothing_beside_a_new_one_are_no_start() -> None:
    U = problems.uniform(8, 2)
    values = 1e-30 * torch.sin(4.0 * U).sum(1)
    before = TrainingData.of(U[:7], values[:7], None, True)
    values[7] = 1e306
    data = TrainingData.of(U, values, None, True)
    factory = SurrogateFactory.default(2, torch.float64, CPU)
    kept = KeptSurrogate(factory, lambda _: torch.Generator(), lambda *_: False, None)
    last = factory.build(before, PathwiseGP(before.U, before.y))
    last.paths(1)
    kept.hold(last, before, False)
    model, _ = kept.make(data, False, False, torch.Generator())
    assert model.paths(2).mean(U).isfinite().all()


def test_a_surrogate_that_drew_no_paths_is_no_start() -> None:
    data = few_values(0.1)
    factory = SurrogateFactory.default(2, torch.float64, CPU)
    kept = KeptSurrogate(factory, lambda _: torch.Generator(), lambda *_: False, None)
    last = factory.build(data, PathwiseGP(data.U, data.y))
    kept.hold(last, data, False)  # as after an ask that was interrupted
    model, _ = kept.make(data, False, False, torch.Generator())
    assert not model.has_weights
    model.paths(1)
    kept.hold(model, data, False)
    following, _ = kept.make(data, False, False, torch.Generator())
    assert following.has_weights


def separable(U: torch.Tensor) -> torch.Tensor:
    """Return the sum of a function of several minima of each input."""
    x = 10.0 * U - 5.0
    return (x**4 - 16.0 * x**2 + 5.0 * x).sum(1)


def entangled(U: torch.Tensor) -> torch.Tensor:
    """Return a function of two directions that are no inputs, with kinks."""
    return (U[:, 0] - U[:, 1]).abs() * (U[:, 2] + U[:, 3] - 1.0).abs()


def valley(U: torch.Tensor) -> torch.Tensor:
    """Return a parabola of condition 1e4 whose axes are no inputs."""
    generator = problems.seeded(3)
    axes = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64, generator=generator)).Q
    return ((U - 0.4) @ axes).square() @ torch.logspace(0, 4, 4, dtype=torch.float64)


def curved_valley(U: torch.Tensor) -> torch.Tensor:
    """Return Rosenbrock's function of two inputs, near whose border it is six magnitudes larger."""
    X = 15.0 * U[:, :2] - 5.0
    return -(100.0 * (X[:, 1] - X[:, 0] ** 2) ** 2 + (X[:, 0] - 1.0) ** 2)


def test_a_further_kernel_is_tried_where_a_few_wild_values_are_aside() -> None:
    floor = torch.linspace(0.2, 0.5, 20, dtype=torch.float64)
    beside = torch.stack([floor, ((15.0 * floor - 5.0) ** 2 + 5.0) / 15.0], dim=1)
    U = torch.cat([problems.uniform(20, 2), beside + 0.02 * problems.normal(20, 2)]).clamp(0.0, 1.0)
    data = TrainingData.of(U, curved_valley(U), None, True)
    factory = SurrogateFactory.default(2, torch.float64, CPU)
    errors = []
    for made in (factory, replace(factory, further={})):
        fitted, scaled = fit_warped(made, data, problems.seeded(1), few=True)
        mean = made.build(scaled, fitted).posterior(beside).mean[:, 0].detach()
        errors.append(float((scaled.values_of(mean) - curved_valley(beside)).abs().median()))
    assert errors[0] < 0.4 * errors[1]


@pytest.mark.parametrize(
    ("function", "expected"),
    [(separable, APART), (valley, SMOOTH), (entangled, None)],
    ids=["sum", "valley", "product"],
)
def test_a_further_kernel_is_taken_where_the_likelihood_says_so(
    function: Callable[[torch.Tensor], torch.Tensor], expected: str | None
) -> None:
    generator = problems.seeded()
    U, new = torch.rand(2, 60, 4, dtype=torch.float64, generator=generator)
    data = TrainingData.of(U, function(U), None, True)
    factory = SurrogateFactory.default(4, torch.float64, CPU)
    without = replace(factory, further={})
    errors = []
    for made in (factory, without):
        fitted, scaled = fit_warped(made, data, problems.seeded(1), few=True)
        model = made.build(scaled, fitted)
        found = scaled.values_of(model.posterior(new).mean[:, 0].detach())
        errors.append(((found - function(new)).square().mean().sqrt() / function(new).std()).item())
        assert made.further_of(model) == (expected if made is factory else None)
        weights = torch.zeros(60, 1, dtype=torch.float64)
        kept = made.checkpoint(1, model, weights, few=True, scale_name=scaled.scale_name)
        restored = factory.restore(data, kept)
        torch.testing.assert_close(restored[0].posterior(new).mean, model.posterior(new).mean)
    assert errors[0] < 0.2 * errors[1] if expected else errors[0] == errors[1]


@pytest.mark.parametrize(("n", "d"), [(10, 4), (20, 2), (60, 3)])
def test_constant_values_have_a_model(n: int, d: int) -> None:
    data = TrainingData.of(problems.uniform(n, d), torch.ones(n).double(), None, True)
    factory = SurrogateFactory.default(d, torch.float64, CPU)
    fitted, _ = fit_warped(factory, data, problems.seeded(1), few=True)
    mean = factory.build(data, fitted).posterior(problems.uniform(5, d, seed=1)).mean
    torch.testing.assert_close(mean, torch.zeros_like(mean), atol=1e-6, rtol=0.0)


@pytest.mark.parametrize("seed", range(4))
def test_noise_has_no_kernel_without_priors(seed: int) -> None:
    data = TrainingData.of(problems.uniform(20, 8), problems.normal(20, seed=seed), None, True)
    factory = SurrogateFactory.default(8, torch.float64, CPU)
    fitted, _ = fit_warped(factory, data, problems.seeded(1), few=True)
    assert factory.further_of(fitted) is None


@pytest.mark.parametrize("n", [20, 60])
def test_values_in_many_inputs_are_not_followed_by_a_kernel_without_priors(n: int) -> None:
    U = problems.uniform(n, 20)
    X = 15.0 * U - 5.0
    rosenbrock = (100.0 * (X[:, 1:] - X[:, :-1] ** 2) ** 2 + (X[:, :-1] - 1.0) ** 2).sum(1)
    data = TrainingData.of(U, rosenbrock, None, False)
    factory = SurrogateFactory.default(20, torch.float64, CPU)
    fitted, _ = fit_warped(factory, data, problems.seeded(1), few=True)
    assert factory.further_of(fitted) is None


def test_a_kernel_that_falls_behind_is_not_fitted_to_the_end() -> None:
    U = problems.uniform(60, 4)
    data = TrainingData.of(U, entangled(U), None, True)
    factory = SurrogateFactory.default(4, torch.float64, CPU)
    numbers = []
    for made in (factory, replace(factory, further={})):
        evaluations: list[int] = []
        generator = problems.seeded(1)
        fit_warped(made, data, generator, few=True, watch=FitWatch(evaluations.append))
        numbers.append(len(evaluations))
    assert 0 < numbers[0] - numbers[1] < 0.5 * len(factory.further) * MOST_EVALUATIONS
