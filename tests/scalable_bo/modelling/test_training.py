"""Values of many magnitudes, and wild ones: the scales on which they are alike, and when these are
taken.
"""

import math
import sys

import pytest
import torch
from torch import Tensor

from scalable_bo.modelling.factory import SurrogateFactory
from scalable_bo.modelling.fitting import fit_warped
from scalable_bo.modelling.training import SCALES, Fences, LogGap, TrainingData
from tests import problems

U = problems.uniform(40, 2)
FACTORY = SurrogateFactory.default(2, torch.float64, torch.device("cpu"))
MANY_MAGNITUDES = -torch.exp(10.0 * (U - 0.4).square().sum(1) * 2.0)
SMOOTH = torch.sin(3.0 * U).sum(1)


def with_wild_ones(values: Tensor, wild: list[float]) -> Tensor:
    """Return values of which three are replaced."""
    values = values.clone()
    values[[3, 17, 31]] = torch.tensor(wild, dtype=torch.float64)
    return values


def data_of(values: Tensor, noise: Tensor | None = None, maximize: bool = True) -> TrainingData:
    return TrainingData.of(U, values, noise, maximize)


@pytest.mark.parametrize("kind", [LogGap, Fences])
def test_a_scale_and_its_inverse_undo_each_other_and_its_slope_is_the_derivative(
    kind: type[LogGap | Fences],
) -> None:
    given = with_wild_ones(SMOOTH, [1e6, -1e6, 3e5]) if kind is Fences else MANY_MAGNITUDES
    warp = kind.of(given)
    values = given.clone().requires_grad_()
    scaled = warp(values)
    torch.testing.assert_close(warp.inverse(scaled), values)
    (slope,) = torch.autograd.grad(scaled.sum(), values)
    at_fence = (given == given.clamp(SMOOTH.min(), SMOOTH.max())) & (slope != 1.0)
    if kind is Fences:
        slope = torch.where(at_fence, 1.0, slope)
    torch.testing.assert_close(warp.log_slope(given), slope.log())
    assert (scaled.argsort() == values.argsort()).all()


def test_values_below_all_that_were_seen_are_not_of_magnitudes_beyond_theirs() -> None:
    warp = LogGap.of(MANY_MAGNITUDES)
    worst = float(MANY_MAGNITUDES.min())
    z = warp(MANY_MAGNITUDES).min() - torch.tensor([0.0, 1e-6, 1.0, 10.0], dtype=torch.float64)
    values = warp.inverse(z)
    slope = 1.0 / warp.log_slope(MANY_MAGNITUDES.min()).exp()
    torch.testing.assert_close(worst - values, slope * (z[0] - z))


@pytest.mark.parametrize("maximize", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_likelihood_takes_the_logarithm_of_many_magnitudes_alone(maximize: bool) -> None:
    sign = 1.0 if maximize else -1.0
    generator = problems.seeded()
    many, smooth = (
        fit_warped(FACTORY, data_of(sign * values, maximize=maximize), generator, few=True)[1]
        for values in (MANY_MAGNITUDES, SMOOTH)
    )
    assert many.scale_name == "gaps"
    assert smooth.scale_name == "plain"
    torch.testing.assert_close(many.values_of(many.y[:, 0]), MANY_MAGNITUDES)


@pytest.mark.parametrize(
    ("few", "wild", "scale_name", "most"),
    [
        (True, [-1e6, -1e6, -3e5], "aside", 0.1),
        (False, [-1e6, -1e6, -3e5], "aside", 0.1),
        (True, [-sys.float_info.max] * 3, "aside", 0.1),
        (True, [1e6, -1e6, 3e5], "aside", 0.6),
        (False, [1e6, 1e6, 1e6], "near", 0.6),
    ],
)
def test_a_few_wild_values_leave_a_usable_surrogate(
    few: bool, wild: list[float], scale_name: str, most: float
) -> None:
    generator = problems.seeded()
    given = data_of(with_wild_ones(SMOOTH, wild))
    fitted, data = fit_warped(FACTORY, given, generator, few=few)
    assert data.scale_name == scale_name
    new = torch.rand(200, 2, dtype=torch.float64, generator=generator)
    mean = data.values_of(FACTORY.build(data, fitted).posterior(new).mean[:, 0].detach())
    truth = torch.sin(3.0 * new).sum(1)
    assert (mean - truth).square().mean().sqrt() < most * truth.std()
    weights = torch.zeros(len(data.U), 1, dtype=torch.float64)
    kept = FACTORY.checkpoint(1, fitted, weights, few=few, scale_name=data.scale_name)
    restored = FACTORY.restore(given, kept)
    assert torch.equal(restored[1].y, data.y)


def test_good_wild_values_are_never_left_out() -> None:
    good = data_of(with_wild_ones(SMOOTH, [1e6, 1e6, 3e5]))
    assert good.on("aside") is good
    both = data_of(with_wild_ones(SMOOTH, [1e6, -1e6, 3e5])).on("aside")
    assert len(both.U) == 39
    assert both.y.argmax() == both.signed.argmax()
    torch.testing.assert_close(both.values_of(both.y[:, 0]), both.signed)


def test_values_of_one_magnitude_and_those_that_are_mostly_alike_have_no_fences() -> None:
    assert Fences.of(SMOOTH) is None
    mostly = with_wild_ones(torch.ones(40, dtype=torch.float64), [1e6, -1e6, 3e5])
    assert Fences.of(mostly) is None


def test_values_with_known_noise_or_without_a_gap_stay_as_they_are() -> None:
    known = data_of(MANY_MAGNITUDES, torch.ones(40, dtype=torch.float64))
    assert all(known.on(name) is known for name in SCALES)
    constant = data_of(torch.ones(40, dtype=torch.float64))
    assert all(constant.on(name) is constant for name in SCALES)


def test_the_jacobian_makes_likelihoods_those_of_the_values() -> None:
    data = data_of(7.0 * SMOOTH)
    assert data.log_jacobian(torch.arange(40)) == pytest.approx(
        -40 * math.log(7.0 * float(SMOOTH.std()))
    )


@pytest.mark.parametrize("variance", [1e6, 1e12, 1e200])
@pytest.mark.parametrize("num_noisy", [2, 24])
def test_values_of_large_known_variances_do_not_set_the_units(
    num_noisy: int, variance: float
) -> None:
    values = torch.sin(6.0 * U[:, 0]) + U[:, 1]
    noise = torch.full((40,), 1e-6, dtype=torch.float64)
    alone = TrainingData.of(U[num_noisy:], values[num_noisy:], noise[num_noisy:], True)
    noise[:num_noisy] = variance
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(num_noisy // 2)
    values[:num_noisy] = variance**0.5 * signs
    data = data_of(values, noise)
    assert data.scale == pytest.approx(alone.scale, rel=0.05)
    assert data.offset == pytest.approx(alone.offset, abs=0.02)
    assert data.noise is not None
    assert torch.allclose(data.noise * data.scale**2, noise[:, None])


@pytest.mark.parametrize("variance", [1e-300, 0.3, 1e300])
def test_values_of_equal_known_variances_have_their_plain_units(variance: float) -> None:
    plain = data_of(SMOOTH - 7.0)
    data = data_of(SMOOTH - 7.0, torch.full_like(SMOOTH, variance))
    assert data.scale == pytest.approx(plain.scale) and data.offset == pytest.approx(plain.offset)
    assert torch.allclose(data.y, plain.y)


@pytest.mark.parametrize(
    ("values", "noise"),
    [
        ([1.0, 1.0, 5.0, 4.0], [1e-12, 1e-12, 100.0, 100.0]),  # all that is accurate is equal
        ([1.0, 1.0, 5.0], [0.0, 0.0, 9.2]),
        ([1.0, 2.0, 3.0, 4.0], [1e-6, 1e20, 1e20, 1e20]),  # one alone is accurate
        ([1.0, 2.0], [1e-300, 1e300]),
    ],
)
def test_values_of_which_the_accurate_ones_do_not_differ_have_their_plain_units(
    values: list[float], noise: list[float]
) -> None:
    told, known = (torch.tensor(each, dtype=torch.float64) for each in (values, noise))
    data = TrainingData.of(U[: len(told)], told, known, True)
    assert (data.scale, data.offset) == pytest.approx((told.std().item(), told.mean().item()))
