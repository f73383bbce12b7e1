"""Candidates gather around good data and stay inside the box."""

import math
from collections.abc import Callable

import pytest
import torch
from botorch.models.transforms.input import AppendFeatures, InputPerturbation, InputTransform
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from acquisition import (
    LogEIStrategy,
    ParallelThompsonSampling,
    PathwiseMaxPosteriorSampling,
    PathwiseThompsonSampling,
    Request,
    propose,
    sampling_weights,
)
from acquisition.candidates import baseline, may_be_proposed
from acquisition.constraints import FeasibleSet
from surrogates import PathwiseGP
from tests.refusals import assert_refused

UNIT_SQUARE = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


def near(
    X: Tensor,
    y: Tensor,
    num_candidates: int,
    std: float | list[float],
    bounds: Tensor,
    seed: int = 0,
    **kwargs: float,
) -> Tensor:
    """Propose, around data alone unless told otherwise."""
    std = torch.as_tensor(std, dtype=X.dtype).expand(X.shape[1])
    generator = torch.Generator().manual_seed(seed)
    return propose(
        X,
        y,
        bounds,
        num_candidates,
        proposal_std=std,
        generator=generator,
        **({"uniform_fraction": 0.0} | kwargs),
    )


def test_weights_are_values_above_the_worst() -> None:
    # y + min(y), as published code has it, would give [6, 4, 3, 1] / 14 here: the worst point the
    # likeliest.
    weights = sampling_weights(torch.tensor([-3.0, -1.0, 0.0, 2.0]))
    torch.testing.assert_close(weights, torch.tensor([0.0, 0.2, 0.3, 0.5]))


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=20))
def test_weights_are_a_distribution_ordered_like_the_values(values: list[int]) -> None:
    y = torch.tensor(values, dtype=torch.float64)
    weights = sampling_weights(y)
    assert (weights >= 0).all()
    assert weights.sum().item() == pytest.approx(1.0)
    order = y.argsort()
    assert (weights[order].diff() >= 0).all()
    torch.testing.assert_close(sampling_weights(3.0 * y + 7.0), weights)


@pytest.mark.parametrize("value", [0.0, 3.0, -1e30])
def test_equal_values_are_equally_likely(value: float) -> None:
    torch.testing.assert_close(sampling_weights(torch.full((4,), value)), torch.full((4,), 0.25))


def test_data_points_are_drawn_in_proportion_to_their_weights() -> None:
    X = torch.tensor([[0.1, 0.1], [0.5, 0.5], [0.9, 0.9]], dtype=torch.float64)
    candidates = near(X, torch.tensor([-4.0, -3.0, -1.0]), 10_000, 1e-3, UNIT_SQUARE)
    shares = torch.cdist(candidates, X).argmin(1).bincount(minlength=3) / 10_000
    error = math.sqrt(0.25 * 0.75 / 10_000)
    torch.testing.assert_close(shares, torch.tensor([0.0, 0.25, 0.75]), atol=4 * error, rtol=0.0)
    assert shares[0] == 0


@given(num_candidates=st.integers(1, 200), fraction=st.floats(0.0, 1.0))
def test_the_uniform_share_is_as_stated(num_candidates: int, fraction: float) -> None:
    X = torch.full((1, 6), 0.5, dtype=torch.float64)
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, 6)
    candidates = near(X, torch.ones(1), num_candidates, 1e-5, bounds, uniform_fraction=fraction)
    assert candidates.shape == (num_candidates, 6)
    num_near = int(((candidates - X).abs() < 1e-3).all(1).sum())
    assert num_near == num_candidates - round(fraction * num_candidates)


def test_uniform_candidates_fill_the_box() -> None:
    bounds = torch.tensor([[-5.0, 100.0], [-4.0, 300.0]], dtype=torch.float64)
    candidates = near(bounds[:1], torch.ones(1), 10_000, 1.0, bounds, uniform_fraction=1.0)
    unit = (candidates - bounds[0]) / (bounds[1] - bounds[0])
    torch.testing.assert_close(
        unit.mean(0),
        torch.full((2,), 0.5, dtype=torch.float64),
        atol=4 * math.sqrt(1 / 12 / 10_000),
        rtol=0.0,
    )
    torch.testing.assert_close(
        unit.var(0), torch.full((2,), 1 / 12, dtype=torch.float64), atol=0.004, rtol=0.0
    )


@given(
    lower=st.floats(-1e3, 1e3, width=32),
    width=st.floats(0.5, 1e3, width=32),
    std=st.floats(0.01, 1e4),
    fraction=st.floats(0.0, 1.0),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_candidates_lie_inside_the_box(
    lower: float, width: float, std: float, fraction: float, dtype: torch.dtype
) -> None:
    bounds = torch.tensor([[lower], [lower + width]], dtype=dtype).expand(2, 3)
    candidates = near(
        bounds.clone(), torch.tensor([1.0, 2.0]), 100, std, bounds, uniform_fraction=fraction
    )
    assert candidates.dtype == dtype
    assert torch.equal(candidates, candidates.clamp(bounds[0], bounds[1]))


def test_each_dimension_has_its_own_standard_deviation() -> None:
    bounds = torch.tensor([[-100.0] * 3, [100.0] * 3], dtype=torch.float64)
    std = torch.tensor([0.01, 1.0, 5.0], dtype=torch.float64)
    candidates = near(
        torch.zeros(1, 3, dtype=torch.float64), torch.ones(1), 10_000, std.tolist(), bounds
    )
    torch.testing.assert_close(candidates.std(0), std, rtol=4 / math.sqrt(2 * 10_000), atol=0.0)


@pytest.mark.filterwarnings("ignore:Data .* is not")
@pytest.mark.parametrize("kind", [InputPerturbation, AppendFeatures])
@pytest.mark.parametrize(
    "choose",
    [
        lambda model: ParallelThompsonSampling(model, UNIT_SQUARE),
        PathwiseMaxPosteriorSampling,
        PathwiseThompsonSampling,
        lambda model: LogEIStrategy().generate(
            Request(model, 1, UNIT_SQUARE, torch.Generator().manual_seed(0))
        ),
    ],
)
def test_a_model_that_makes_several_points_of_one_is_refused(
    kind: type[InputTransform], choose: Callable[[PathwiseGP], object]
) -> None:
    X = torch.rand(10, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = PathwiseGP(X, X.sum(1, keepdim=True), input_transform=kind(0.01 * X[:2]))
    with pytest.raises(
        ValueError,
        match=(
            "`model` must have an input transform that makes one point of each, got"
            f" {kind.__name__}. Leave it out"
        ),
    ):
        choose(model)


def test_data_count_that_may_be_proposed_but_for_rounding() -> None:
    def grid(X: Tensor) -> Tensor:
        return torch.cat([(4 * X[..., :1]).round() / 4, X[..., 1:]], dim=-1)

    edge = [(torch.tensor([0, 1]), torch.tensor([-1.0, -1.0]), -0.8)]
    for dtype in (torch.float32, torch.float64):
        box = UNIT_SQUARE.to(dtype)
        tiny = 4.0 * torch.finfo(dtype).eps
        inside = [[0.5, 0.3], [0.5, 0.3 + tiny], [0.5 + tiny, 0.1], [-tiny, 0.2]]
        outside = [[0.5, 0.31], [0.6, 0.1], [0.25, -0.01]]
        X = torch.tensor(inside + outside, dtype=dtype)
        on_grid = FeasibleSet.of(box, inequality_constraints=edge, rounding=grid)
        assert may_be_proposed(X, on_grid).tolist() == [True] * 4 + [False] * 3
        points, rows = baseline(X, on_grid)
        assert torch.equal(points, X[:4]) and rows.tolist() == [True] * 4 + [False] * 3
        # Off the grid by rounding they would not all be left out
        points, rows = baseline(X[5:6], on_grid)
        assert torch.equal(points, grid(X[5:6])) and rows.all()
        of_task = FeasibleSet.of(box, fixed_features={1: 0.3})
        assert may_be_proposed(X, of_task).tolist() == [True, True] + [False] * 5
        never = FeasibleSet.of(box, accepts=lambda X: X[:, 0] > 2.0)
        assert torch.equal(baseline(X[:1], never)[0], X[:1])


def test_bad_settings_are_named() -> None:
    def drawn(num_candidates: int = 10, uniform_fraction: float = 0.1) -> torch.Tensor:
        return near(
            torch.zeros(1, 2),
            torch.ones(1),
            num_candidates,
            0.1,
            UNIT_SQUARE,
            uniform_fraction=uniform_fraction,
        )

    assert_refused(ValueError, drawn, num_candidates=[0], uniform_fraction=[1.5, -0.1, math.nan])
