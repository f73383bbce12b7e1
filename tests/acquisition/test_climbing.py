"""The climb of one function to its maximum in a box."""

import math

import pytest
import torch
from torch import Tensor

from acquisition.climbing import climb
from acquisition.constraints import FeasibleSet
from acquisition.multistart import FunctionOfPoints

UNIT = torch.tensor([[0.0], [1.0]], dtype=torch.float64).repeat(1, 5)


class Peak:
    """−log(1 + ‖(x − top) / width‖²): a maximum of 0 at its top, as narrow as its width."""

    def __init__(self, top: list[float], width: list[float]) -> None:
        self.top = torch.tensor(top, dtype=torch.float64)
        self.width = torch.tensor(width, dtype=torch.float64)

    def __call__(self, X: Tensor) -> Tensor:
        return -torch.log1p(((X - self.top) / self.width).square().sum(-1))


def climbed(peak: Peak, leader: list[float], **options: object) -> Tensor:
    feasible = FeasibleSet.of(UNIT, **options)  # type: ignore[arg-type]
    leaders = torch.tensor([leader], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    return climb(FunctionOfPoints(peak), leaders, feasible, generator).squeeze(0)


def test_a_narrow_peak_beside_the_best_point_is_climbed_to_its_top() -> None:
    peak = Peak([0.35, 0.5012, 0.0, 1.0, 0.0], [0.2, 1e-4, 0.5, 0.5, 0.5])
    points = climbed(peak, [0.35, 0.5, 0.0, 1.0, 0.0])
    assert peak(points[:1]) > -1e-6
    values = peak(points)
    assert torch.equal(values, values.sort(descending=True).values)


def test_a_fixed_input_stays() -> None:
    best = climbed(Peak([0.5] * 5, [0.1] * 5), [0.1] * 5, fixed_features={0: 0.1})[0]
    assert best.tolist() == pytest.approx([0.1, 0.5, 0.5, 0.5, 0.5], abs=1e-6)
    assert math.isclose(best[0], 0.1)


class Terrace(Peak):
    """A peak whose values are rounded to steps, which its gradients do not tell."""

    def __init__(self, top: list[float], width: list[float]) -> None:
        super().__init__(top, width)
        self.evaluations = 0

    def __call__(self, X: Tensor) -> Tensor:
        self.evaluations += 1
        values = super().__call__(X)
        return values + ((1e3 * values).round() / 1e3 - values).detach()


def test_where_values_differ_by_rounding_alone_a_climb_ends_soon() -> None:
    terrace = Terrace([0.3] * 5, [0.4] * 5)
    points = climbed(terrace, [0.35] * 5)
    assert terrace(points[:1]) > -2e-3
    assert terrace.evaluations < 40
