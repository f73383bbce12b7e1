"""The climb of one function: to its maximum in a box, on a grid and among choices."""

import math

import pytest
import torch
from torch import Tensor

from acquisition.climbing import climb
from acquisition.constraints import FeasibleSet
from acquisition.multistart import Functions

UNIT = torch.tensor([[0.0], [1.0]], dtype=torch.float64).repeat(1, 5)


class Peak:
    """−log(1 + ‖(x − top) / width‖²): a maximum of 0 at its top, as narrow as its width."""

    num_samples = 1

    def __init__(self, top: list[float], width: list[float]) -> None:
        self.top = torch.tensor(top, dtype=torch.float64)
        self.width = torch.tensor(width, dtype=torch.float64)

    def __call__(self, X: Tensor) -> Tensor:
        return self.each(X.unsqueeze(0))

    def each(self, X: Tensor) -> Tensor:
        return -torch.log1p(((X - self.top) / self.width).square().sum(-1))


def mixed(X: Tensor) -> Tensor:
    """Round the first input to twentieths, and the last three to a choice among them."""
    one = torch.nn.functional.one_hot(X[..., 2:].argmax(-1), 3).to(X)
    return torch.cat([(20 * X[..., :1]).round() / 20, X[..., 1:2], one], dim=-1)


def climbed(function: Functions, leader: list[float], **options: object) -> Tensor:
    feasible = FeasibleSet.of(UNIT, **options)  # type: ignore[arg-type]
    leaders = torch.tensor([leader], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    return climb(function, leaders, feasible, generator).squeeze(0)


@pytest.mark.parametrize("rounding", [None, mixed])
def test_a_narrow_peak_beside_the_best_point_is_climbed_to_its_top(rounding: object) -> None:
    top = [0.35, 0.5012, 0.0, 1.0, 0.0]
    leader = [0.35, 0.5, 0.0, 1.0, 0.0]
    peak = Peak(top, [0.2, 1e-4, 0.5, 0.5, 0.5])
    best = climbed(peak, leader, rounding=rounding)[:1]
    assert peak(best) > -1e-6


@pytest.mark.parametrize("choice", range(3))
@pytest.mark.parametrize("start", range(3))
def test_from_every_choice_every_other_is_reached(start: int, choice: int) -> None:
    place = torch.eye(3).tolist()
    peak = Peak([0.95, 0.0317, *place[choice]], [0.02, 1e-3, 0.5, 0.5, 0.5])
    points = climbed(peak, [0.05, 0.6, *place[start]], rounding=mixed)
    torch.testing.assert_close(points[0], peak.top, atol=1e-6, rtol=0.0)
    assert torch.equal(points, mixed(points))
    values = peak(points).squeeze(0)
    assert torch.equal(values, values.sort(descending=True).values)


def test_where_all_is_rounded_the_best_point_of_the_grid_is_found() -> None:
    def to_grid(X: Tensor) -> Tensor:
        return (10 * X).round() / 10

    ripples = Peak([0.72, 0.31, 0.0, 1.0, 0.5], [0.1, 0.1, 0.1, 0.1, 0.1])
    best = climbed(ripples, [0.0, 0.0, 1.0, 0.0, 0.0], rounding=to_grid)[0]
    assert [round(10 * x) for x in best.tolist()] == [7, 3, 0, 10, 5]


def test_a_fixed_input_stays() -> None:
    best = climbed(Peak([0.5] * 5, [0.1] * 5), [0.1] * 5, fixed_features={0: 0.1})[0]
    assert best.tolist() == pytest.approx([0.1, 0.5, 0.5, 0.5, 0.5], abs=1e-6)
    assert math.isclose(best[0], 0.1)
