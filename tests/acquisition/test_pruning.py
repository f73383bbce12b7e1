"""A pruned ascent: which starts go on, how long the steps are,
and that it acquires no less than all steps from all starts.
"""

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, ScaleKernel
from torch import Tensor

from acquisition import FeasibleSet, ParallelThompsonSampling, TrustRegion, ascend, thompson
from scalable_bo.experiments.models import fixed_model, matern_kernel
from scalable_bo.experiments.problems import GPPrior
from surrogates import Cholesky
from tests import problems
from tests.acquisition.functions import Functions, waves

FIXED = {
    "num_candidates": 1000,
    "num_rounds": 30,
    "num_starts": 30,
    "num_steps": 100,
    "learning_rate": 0.02,
    "prune": False,
}


def box(d: int) -> Tensor:
    return torch.tensor([[0.0], [1.0]], dtype=torch.float64).repeat(1, d)


def test_a_third_of_the_starts_go_on_from_stages_that_grow_longer() -> None:
    functions = waves(2, 2)
    ascend(functions, problems.uniform(2, 30, 2), box(2), num_steps=60, prune=True)
    assert [X.shape[1] for X in functions.visited] == [30] * 10 + [10] * 20 + [4] * 31


@pytest.mark.parametrize(
    ("num_starts", "num_steps"), [(1, 3), (4, 5), (7, 0), (7, 1), (9, 4), (120, 60)]
)
def test_every_start_is_returned_no_lower_than_it_was_with_its_value(
    num_starts: int, num_steps: int
) -> None:
    functions = waves(3, 2)
    starts = problems.uniform(3, num_starts, 2)
    points, values = ascend(
        functions, starts, box(2), num_steps=num_steps, learning_rate=0.1, prune=True
    )
    assert torch.equal(functions.formula(points), values)
    assert points.shape == starts.shape
    assert len(functions.visited) == num_steps + 1
    assert torch.equal(
        values.amax(1),
        torch.stack([functions.formula(X).amax(1) for X in functions.visited]).amax(0),
    )
    assert (values.sort(dim=1).values >= functions.formula(starts).sort(dim=1).values).all()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_starts_of_the_highest_values_go_on(sign: float) -> None:
    # hills of width 0.01 at the starts, so that none is left: start j of function i has rank (j +
    # i) mod 9
    centres = torch.linspace(0.1, 0.9, 9, dtype=torch.float64)
    heights = torch.stack([torch.arange(9, dtype=torch.float64).roll(i) for i in range(3)])
    functions = Functions(
        3, lambda X: sign * (heights.unsqueeze(1) - 1e4 * (X - centres).square()).amax(-1)
    )
    starts = centres.reshape(1, 9, 1).expand(3, 9, 1) + 1e-3
    points, values = ascend(
        functions, starts, box(1), num_steps=9, learning_rate=1e-4, prune=True, sign=sign
    )
    best = centres[heights.topk(3, dim=1).indices]
    assert functions.visited[-1].shape == (3, 3, 1)
    assert ((functions.visited[-1].squeeze(-1) - best).abs() < 5e-3).all()
    assert torch.equal((sign * values).argmax(1), torch.zeros(3, dtype=torch.long))


def test_equal_starts_and_flat_functions_can_be_pruned() -> None:
    flat = Functions(2, lambda X: 0.0 * X.sum(-1))
    points, values = ascend(
        flat, torch.full((2, 20, 2), 0.5, dtype=torch.float64), box(2), num_steps=12, prune=True
    )
    assert torch.equal(points, torch.full_like(points, 0.5))
    assert values.eq(0.0).all()


def test_the_rate_may_differ_by_feature_and_falls_to_a_tenth() -> None:
    bounds = torch.tensor([[0.0, -50.0], [1.0, 50.0]], dtype=torch.float64)
    slope = Functions(1, lambda X: X.sum(-1))
    rate = torch.tensor([0.01, 0.002], dtype=torch.float64)
    starts = torch.tensor([[[0.1, -40.0]]], dtype=torch.float64)
    ascend(slope, starts, bounds, num_steps=10, learning_rate=rate, prune=True)
    # Along a slope, Adam's steps are its rate
    steps = torch.cat(slope.visited).squeeze(1).diff(dim=0) / (bounds[1] - bounds[0])
    share = torch.linspace(1.0, 0.1, 11, dtype=torch.float64)[:-1]
    torch.testing.assert_close(steps, share.unsqueeze(1) * rate, rtol=1e-6, atol=1e-9)


def test_those_that_go_on_ascend_as_they_would_alone() -> None:
    starts = problems.uniform(1, 12, 2)
    options = {"num_steps": 12, "learning_rate": 0.05, "prune": True}
    together = waves(1, 2)
    ascend(together, starts, box(2), **options)
    ends = []
    for j in range(12):
        alone = waves(1, 2)
        ascend(alone, starts[:, j : j + 1], box(2), **options)
        ends.append(alone.visited[-1])
    last = together.visited[-1]
    distances = torch.cdist(
        last[0], torch.cat(ends, dim=1)[0], compute_mode="donot_use_mm_for_euclid_dist"
    )
    assert last.shape == (1, 4, 2)
    assert (distances.amin(1) < 1e-9).all()


def test_starts_are_compared_by_what_is_accepted() -> None:
    # Above 0.4 all starts climb out of what is accepted, to values beyond all others; the hill at
    # 0.2 is the best there is.
    def formula(X: Tensor) -> Tensor:
        hill = 0.9 - 4.0 * (X - 0.2).square()
        return torch.where(X < 0.4, hill, 10.0 * (X - 0.68)).squeeze(-1)

    outwards = torch.linspace(0.65, 0.69, 8, dtype=torch.float64)
    hill = torch.linspace(0.04, 0.07, 4, dtype=torch.float64)
    starts = torch.cat([outwards, hill]).reshape(1, 12, 1)
    feasible = FeasibleSet.of(box(1), accepts=lambda X: X[:, 0] < 0.7)
    points, values = ascend(
        Functions(1, formula),
        starts,
        box(1),
        num_steps=40,
        learning_rate=0.01,
        prune=True,
        feasible_set=feasible,
    )
    assert (points < 0.7).all()
    assert torch.equal(values, formula(points))
    assert values.max() > 0.899
    assert torch.equal(points[points > 0.4].sort().values, outwards)


@pytest.fixture
def ascents(spy: Callable[[Any, str], Mock]) -> Mock:
    return spy(thompson, "ascend")


def lengthscales(*values: float) -> ScaleKernel:
    kernel = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=len(values))).double()
    kernel.base_kernel.lengthscale = torch.tensor(values, dtype=torch.float64)
    return kernel


@pytest.mark.parametrize(
    ("kernel", "options", "rate"),
    [
        (lengthscales(0.2, 0.4), {}, [0.05, 0.1]),
        (lengthscales(0.2, 40.0), {}, [0.05, 0.15]),
        (LinearKernel().double(), {}, [0.05, 0.05]),
        (lengthscales(0.2, 0.4), {"fixed_features": {1: 0.5}}, [0.05, 0.1]),
        (lengthscales(0.2, 0.4), {"learning_rate": 0.3}, 0.3),
    ],
    ids=["ard", "long", "no lengthscale", "fixed feature", "given"],
)
def test_the_rate_is_a_quarter_of_the_lengthscale(
    make_model: Any, ascents: Any, kernel: Any, options: dict[str, Any], rate: object
) -> None:
    small = {"num_candidates": 50, "num_rounds": 2, "num_starts": 2, "num_steps": 1}
    model = make_model(box(2), kernel=kernel)
    ParallelThompsonSampling(model, box(2), **small | options).generate(2)
    found = torch.as_tensor(ascents.call_args_list[0].kwargs["learning_rate"])
    torch.testing.assert_close(found, torch.as_tensor(rate, dtype=found.dtype))


def test_in_a_trust_region_the_rate_is_measured_in_its_sides(make_model: Any, ascents: Any) -> None:
    model = make_model(box(2), kernel=lengthscales(0.1, 0.1))
    region = TrustRegion(2, batch_size=2)
    ParallelThompsonSampling(
        model, box(2), num_candidates=50, num_rounds=2, num_starts=2, trust_region=region
    ).generate(2)
    options = ascents.call_args_list[0].kwargs
    low, high = options["bounds"]
    sides, rate = high - low, options["learning_rate"]
    assert sides.max() < 1.0
    torch.testing.assert_close(rate, (0.025 / sides).clamp_max(0.15))


def test_a_rare_accepted_region_is_found_by_small_rounds(make_model) -> None:
    def accepts(X: Tensor) -> Tensor:
        return ((X - 0.5).abs() < 0.01).all(-1)

    sampler = ParallelThompsonSampling(
        make_model(box(2)),
        box(2),
        num_candidates=50,
        num_rounds=3,
        num_starts=3,
        num_steps=5,
        accepts=accepts,
    )
    assert accepts(sampler.generate(2)).all()


@pytest.mark.parametrize(("d", "lengthscale", "seed"), [(2, 0.2, 0), (8, 0.5, 2)])
def test_the_defaults_acquire_at_least_what_a_hundred_fixed_steps_from_thirty_starts_do(
    d: int, lengthscale: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    kernel = matern_kernel(lengthscale, 1.0).float()
    bounds = box(d).float()
    target = GPPrior(
        kernel, d, noise=1e-6, num_features=300, generator=generator, dtype=torch.float32
    )
    X = torch.rand(200, d, generator=generator)
    model = fixed_model(X, target(X), kernel, 1e-6, Cholesky(), 300)
    paths = model.paths(12, generator=generator)
    values = [
        paths.each(
            ParallelThompsonSampling(model, bounds, seed=seed, **options)
            .generate(12, paths=paths)
            .unsqueeze(1)
        ).mean()
        for options in (FIXED, {})
    ]
    assert values[1] > values[0] - 2e-3  # of a prior standard deviation of 1
