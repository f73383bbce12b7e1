"""Values of many magnitudes: the scale on which they are alike, and when it is taken."""

import math

import pytest
import torch
from torch import Tensor

from scalable_bo.storage.surrogate import SurrogateFactory, TrainingData
from scalable_bo.storage.warp import LogGap

U = torch.rand(40, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
FACTORY = SurrogateFactory.default(2, torch.float64, torch.device("cpu"))
MANY_MAGNITUDES = -torch.exp(10.0 * (U - 0.4).square().sum(1) * 2.0)
SMOOTH = torch.sin(3.0 * U).sum(1)


def data_of(values: Tensor, noise: Tensor | None = None, maximize: bool = True) -> TrainingData:
    return TrainingData.of(U, values, noise, maximize)


def test_the_scale_and_its_inverse_undo_each_other_and_its_slope_is_the_derivative() -> None:
    warp = LogGap.of(MANY_MAGNITUDES)
    assert warp is not None
    values = MANY_MAGNITUDES.clone().requires_grad_()
    scaled = warp(values)
    torch.testing.assert_close(warp.inverse(scaled), values)
    (slope,) = torch.autograd.grad(scaled.sum(), values)
    torch.testing.assert_close(warp.log_slope(values), slope.log())
    assert (scaled.argsort() == values.argsort()).all()


@pytest.mark.parametrize("maximize", [True, False])
def test_the_likelihood_takes_the_logarithm_of_many_magnitudes_alone(maximize: bool) -> None:
    sign = 1.0 if maximize else -1.0
    generator = torch.Generator().manual_seed(0)
    _, many = FACTORY.fit_few(data_of(sign * MANY_MAGNITUDES, maximize=maximize), generator)
    _, smooth = FACTORY.fit_few(data_of(sign * SMOOTH, maximize=maximize), generator)
    assert many.warp is not None
    assert smooth.warp is None
    torch.testing.assert_close(many.values_of(many.y[:, 0]), MANY_MAGNITUDES)


def test_values_with_known_noise_or_without_a_gap_stay_as_they_are() -> None:
    known = data_of(MANY_MAGNITUDES, torch.ones(40, dtype=torch.float64))
    assert known.warped() is known
    constant = data_of(torch.ones(40, dtype=torch.float64))
    assert constant.warped() is constant


def test_the_jacobian_makes_likelihoods_those_of_the_values() -> None:
    data = data_of(7.0 * SMOOTH)
    assert data.log_jacobian(torch.arange(40)) == pytest.approx(
        -40 * math.log(7.0 * float(SMOOTH.std()))
    )
