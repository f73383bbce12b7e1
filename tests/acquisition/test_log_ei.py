"""Expected improvement: its maximiser in a box, beside pending points, of several outcomes."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from botorch.acquisition.analytic import LogConstrainedExpectedImprovement, LogExpectedImprovement
from botorch.acquisition.analytic import _log_ei_helper as log_improvement
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.models.transforms.outcome import ChainedOutcomeTransform, Log, Standardize
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.multi_objective.box_decompositions.dominated import DominatedPartitioning
from botorch.utils.multi_objective.hypervolume import Hypervolume
from botorch.utils.multi_objective.pareto import is_non_dominated
from botorch.utils.sampling import draw_sobol_normal_samples
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from torch import Tensor

from acquisition import (
    AutoStrategy,
    LogEIStrategy,
    ParallelThompsonSampling,
    Request,
    Strategy,
    log_ei,
)
from acquisition.log_ei import LogImprovement, _Improvement, _Posterior, beside_the_best
from acquisition.outcomes import Demands, Scalarisations
from surrogates import PathwiseGP, gaussian_likelihood, memory
from surrogates.rules.data_set import DataSet
from tests import problems
from tests.acquisition.functions import linear

BOX = torch.tensor([[-5.0, 100.0], [10.0, 300.0]], dtype=torch.float64)
UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


def make_request(make_model: Any, q: int = 1, **options: Any) -> Request:
    return Request(make_model(BOX, n=12), q, BOX, problems.seeded(3), **options)


def everywhere(num_points: int = 4000) -> Tensor:
    engine = torch.quasirandom.SobolEngine(2, scramble=True, seed=1)
    return torch.lerp(BOX[0], BOX[1], engine.draw(num_points, dtype=torch.float64))


def means(request: Request) -> Tensor:
    model = request.model
    return model.posterior(model.train_inputs[0]).mean


@torch.no_grad()
def test_one_point_has_the_largest_improvement_of_all(make_model: Any) -> None:
    request = make_request(make_model)
    point = LogEIStrategy().generate(request)
    logarithm = LogExpectedImprovement(request.model, means(request).max())
    values = logarithm(torch.cat([point, everywhere()]).unsqueeze(1))
    assert values.argmax() == 0


@torch.no_grad()
def test_where_an_input_is_rounded_a_point_has_the_largest_improvement_of_all() -> None:
    def rounding(X: Tensor) -> Tensor:
        return torch.cat([(10 * X[..., :1]).round() / 10, X[..., 1:]], dim=-1)

    X = rounding(problems.uniform(40, 2))
    Y = -(X - torch.tensor([0.53, 0.3217])).square().sum(1, keepdim=True)
    model = PathwiseGP(X, Y, likelihood=gaussian_likelihood(1e-6))
    constraints = {"rounding": rounding}
    request = Request(model, 1, UNIT, problems.seeded(), constraints=constraints)
    point = LogEIStrategy().generate(request)
    assert torch.equal(point, rounding(point))
    axis = torch.linspace(0.0, 1.0, 2001, dtype=torch.float64)
    others = torch.cartesian_prod(torch.linspace(0.0, 1.0, 11, dtype=torch.float64), axis)
    logarithm = LogExpectedImprovement(model, means(request).max())
    values = logarithm(torch.cat([point, others]).unsqueeze(1))
    assert values[0] > values[1:].max() - 1e-3


def peaked(*, of_tasks: bool = False, noise: float = 1e-4) -> PathwiseGP:
    """Return a model whose three largest values lie beyond 0.8 in the first input or, ``of_tasks``,
    at 1 in the second.
    """
    x = torch.tensor([0.0, 0.08, 0.2, 0.28, 0.45, 0.6, 0.9, 0.95, 1.0], dtype=torch.float64)
    high = x > 0.8
    Y = torch.where(high, 8.0, torch.sin(9.0 * x)).unsqueeze(1)
    X = torch.stack([x - 0.8 * high, high.double()] if of_tasks else [x, 0.0 * x], dim=1)
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2))
    kernel.base_kernel.lengthscale = torch.tensor([0.1, 0.3])
    kernel.outputscale = 1.0
    known = torch.full_like(Y, noise)
    return PathwiseGP(X, Y, known, covar_module=kernel, outcome_transform=None).eval()


UP_TO = torch.tensor([[0.0, 0.0], [0.6, 1.0]], dtype=torch.float64)
NARROWED: dict[str, tuple[Tensor, dict[str, Any]]] = {
    "linear": (UNIT, {"inequality_constraints": [linear([0], [-1.0], -0.6)]}),
    "nonlinear": (UNIT, {"nonlinear_inequality_constraints": [lambda x: 0.6 - x[0]]}),
    "accepts": (UNIT, {"accepts": lambda X: X[:, 0] <= 0.6}),
    "bounds": (UP_TO, {}),
    "task": (UP_TO, {}),
}


@torch.no_grad()
@pytest.mark.parametrize("case", list(NARROWED))
def test_what_may_not_be_proposed_is_not_improved_on(case: str) -> None:
    bounds, constraints = NARROWED[case]
    constraints = {"fixed_features": {1: 0.0}} | constraints
    model = peaked(of_tasks=case == "task")
    point = LogEIStrategy().generate(
        Request(model, 1, bounds, problems.seeded(), constraints=constraints)
    )
    axis = torch.linspace(0.0, 0.6, 2001, dtype=torch.float64)
    others = torch.stack([axis, torch.zeros_like(axis)], dim=1)
    logarithm = LogExpectedImprovement(model, model.train_targets[:6].max())
    values = logarithm(torch.cat([point, others]).unsqueeze(1))
    assert values[0] > values[1:].max() - 0.01


@torch.no_grad()
def test_before_a_task_has_data_the_means_at_the_others_points_are_improved_on() -> None:
    model = peaked(of_tasks=True)
    constraints = {"fixed_features": {1: 0.5}}
    request = Request(model, 1, UNIT, problems.seeded(), constraints=constraints)
    found = _Improvement.of(request, LogEIStrategy()).beside(UNIT[:0], 0)
    moved = model.train_inputs[0].clone()
    moved[:, 1] = 0.5
    logarithm = LogExpectedImprovement(model, model.posterior(moved).mean.max())
    torch.testing.assert_close(found.mean(moved), logarithm(moved.unsqueeze(1)))


@torch.no_grad()
@pytest.mark.parametrize("noise", [1e-4, 0.5])
def test_pending_points_that_may_not_be_proposed_are_not_improved_on(noise: float) -> None:
    request = Request(peaked(of_tasks=True, noise=noise), 1, UNIT, problems.seeded())
    elsewhere = torch.tensor([[0.12, 1.0]], dtype=torch.float64)
    points = torch.tensor([[0.16, 0.0], [0.7, 0.0]], dtype=torch.float64)
    inside = replace(request, constraints={"fixed_features": {1: 0.0}})
    improvement = _Improvement.of(inside, LogEIStrategy())
    alone, beside = (improvement.beside(of, 0).mean(points) for of in (UNIT[:0], elsewhere))
    torch.testing.assert_close(beside, alone, atol=0.3, rtol=0.0)  # of 64 draws


@torch.no_grad()
def test_the_front_is_of_points_that_may_be_proposed() -> None:
    models = [peaked(of_tasks=True), peaked(of_tasks=True)]
    goal = {"objective": Scalarisations.draw(1, -UNIT[1], UNIT[1], problems.seeded())}
    constraints = {"fixed_features": {1: 0.0}}
    request = Request(models, 1, UNIT, problems.seeded(), goal=goal, constraints=constraints)
    improvement = _Improvement.of(request, LogEIStrategy())
    point = torch.tensor([[0.16, 0.0]], dtype=torch.float64)
    assert improvement.beside(UNIT[:0], 0).mean(point) > -10.0
    assert (improvement.leaders[:, 1] == 0.0).all()


def test_a_maximum_at_a_known_point_is_left_by_the_least_step_in_the_real_inputs() -> None:
    def rounding(X: Tensor) -> Tensor:
        return torch.stack([(4 * X[..., 0]).round() / 4, X[..., 1]], dim=-1)

    X = rounding(problems.uniform(20, 2))
    best = torch.tensor([[0.5, 1.0]], dtype=torch.float64)
    X = torch.cat([X, best])
    Y = X[:, 1:] - 4.0 * (X[:, :1] - 0.5).square()
    model = PathwiseGP(X, Y, likelihood=gaussian_likelihood(0.01))
    constraints = {"rounding": rounding}
    request = Request(model, 1, UNIT, problems.seeded(), constraints=constraints)
    ((along_grid, step),) = (best - LogEIStrategy().generate(request)).abs().tolist()
    assert along_grid == 0.0
    assert 1e-6 < step < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("num_pending", [0, 2])
def test_with_noise_the_best_of_the_function_at_the_data_is_improved(num_pending: int) -> None:
    X = problems.uniform(15, 2)
    Y = torch.sin(5.0 * X[:, :1]) + X[:, 1:] + 0.4 * problems.normal(15, 1, seed=2)
    model = PathwiseGP(X, Y, likelihood=gaussian_likelihood(0.2))
    pending = problems.uniform(num_pending, 2, seed=5) if num_pending else None
    request = Request(model, 1, UNIT, problems.seeded(), X_pending=pending)
    points = problems.uniform(40, 2, seed=3)
    none = UNIT[:0] if pending is None else pending
    improvement = _Improvement.of(request, LogEIStrategy())
    found = torch.stack([improvement.beside(none, seed).mean(points) for seed in range(16)]).exp()
    # By draws of all of them together
    together = torch.cat([points, X, none])
    joint = model.posterior(together)
    samples = joint.rsample(torch.Size([40_000])).squeeze(-1)
    best = samples[:, len(points) :].amax(1, keepdim=True)
    expected = (samples[:, : len(points)] - best).clamp_min(0.0).mean(0) / Y.std()
    torch.testing.assert_close(found.mean(0), expected, rtol=0.1, atol=0.02 * expected.max().item())
    # Beside the best point nothing is gained, where over its mean there is
    beside = X[model.posterior(X).mean.argmax()][None] + 1e-4
    over_mean = LogExpectedImprovement(model, model.posterior(X).mean.max())
    assert improvement.beside(none, 0).mean(beside).exp() < 0.05 * expected.max()
    assert over_mean(beside[None]).exp() > 0.2 * over_mean(points[:, None]).exp().max()


@torch.no_grad()
def test_the_second_point_adds_most_to_the_first(make_model: Any) -> None:
    request = make_request(make_model, q=2)
    first, second = LogEIStrategy().generate(request)
    sampler = SobolQMCNormalSampler(torch.Size([512]), seed=9)
    joint = qLogExpectedImprovement(request.model, means(request).max(), sampler=sampler)
    others = torch.cat([second[None], everywhere(1000)]).unsqueeze(1)
    values = joint(torch.cat([first.expand_as(others), others], dim=1))
    assert values[0] > values[1:].max() - 0.02  # 128 draws chose it, others judge


@pytest.mark.parametrize("noise", [1e-6, 0.05])
def test_pending_points_from_long_ago_lead_elsewhere(noise: float) -> None:
    X = problems.uniform(12, 2)
    Y = torch.sin(5.0 * X).sum(1, keepdim=True)
    request = Request(
        PathwiseGP(X, Y, likelihood=gaussian_likelihood(noise)), 1, UNIT, problems.seeded()
    )
    strategy = LogEIStrategy(most_pending=2)
    first = strategy.generate(request)
    pending = torch.cat([first, problems.uniform(3, 2, seed=7)])
    again = strategy.generate(replace(request, X_pending=pending, generator=problems.seeded()))
    assert (again - first).abs().max() > 0.02


def test_a_pending_point_leads_elsewhere(make_model: Any) -> None:
    alone = LogEIStrategy().generate(make_request(make_model))
    beside = LogEIStrategy().generate(make_request(make_model, X_pending=alone))
    assert ((alone - beside) / (BOX[1] - BOX[0])).norm() > 0.05


def mean_improvement(request: Request, pending: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the improvement at points (c, d), and its standard error, over 64 choices of draws."""
    improvement = _Improvement.of(request, LogEIStrategy())
    found = torch.stack([improvement.beside(pending, seed).mean(points) for seed in range(64)])
    return found.exp().mean(0), found.exp().std(0) / 8.0


@torch.no_grad()
@pytest.mark.parametrize("num_pending", [0, 2])
def test_of_objectives_between_limits_the_hypervolume_is_improved(num_pending: int) -> None:
    X = problems.uniform(15, 2)
    Y = torch.stack([torch.sin(5.0 * X[:, 0]), X[:, 1] - X[:, 0]], dim=1)
    models = [PathwiseGP(X, column[:, None]) for column in Y.T]
    corner = torch.tensor([-0.5, -0.2], dtype=torch.float64)
    ends = corner, Y.amax(0)
    goal = {
        "objective": Scalarisations.draw(1, *ends, problems.seeded()),
        "outcome_constraints": [lambda Y: Y[..., 0] - 100.0],  # which all keep
    }
    request = Request(models, 1, UNIT, problems.seeded(), goal=goal)
    pending = problems.uniform(2, 2, seed=5)[:num_pending]
    points = problems.uniform(10, 2, seed=3)
    found, error = mean_improvement(request, pending, points)
    known = torch.cat([model.posterior(X).mean for model in models], dim=1)
    draws = [
        model.posterior(torch.cat([pending, points])).rsample(torch.Size([4000]))
        for model in models
    ]
    samples = torch.cat(draws, dim=-1)
    before = torch.cat([known.expand(4000, *known.shape), samples[:, :num_pending]], dim=1)
    volume = DominatedPartitioning(corner, before).compute_hypervolume()
    gains = []
    for column in range(num_pending, samples.shape[1]):
        after = torch.cat([before, samples[:, column : column + 1]], dim=1)
        gains.append(DominatedPartitioning(corner, after).compute_hypervolume() - volume)
    # A quarter of the circle, of heights in units of the best ones
    expected = torch.stack(gains, dim=1) / (Y.amax(0) - corner).prod() / (math.pi / 4)
    scatter = expected.std(0) / math.sqrt(4000)
    assert ((found - expected.mean(0)).abs() < 5.0 * torch.hypot(error, scatter) + 1e-5).all()
    assert expected.mean(0).max() > 0.01


def hypervolume(corner: Tensor, Y: Tensor) -> float:
    front = Y[is_non_dominated(Y) & (corner < Y).all(1)]
    return float(Hypervolume(corner).compute(front))


@torch.no_grad()
@pytest.mark.parametrize(("k", "num_pending", "num_draws"), [(2, 0, 500), (2, 2, 500), (3, 2, 200)])
def test_of_several_objectives_the_hypervolume_grows(
    k: int, num_pending: int, num_draws: int
) -> None:
    X = problems.uniform(15, 2)
    Y = torch.sin(torch.stack([(1.0 + j) * X[:, j % 2] + j for j in range(k)], dim=1))
    models = [PathwiseGP(X, column[:, None]) for column in Y.T]
    corner = Y.amin(0) - 0.1
    goal = {"objective": Scalarisations.draw(1, corner, Y.amax(0), problems.seeded())}
    request = Request(models, 1, UNIT, problems.seeded(), goal=goal)
    pending = problems.uniform(2, 2, seed=5)[:num_pending]
    points = problems.uniform(4, 2, seed=3)
    found = _Improvement.of(request, LogEIStrategy()).beside(pending, 0).mean(points).exp()
    known, draws = [], []
    for model in models:
        joint = model.posterior(torch.cat([pending, points])).distribution
        known.append(torch.cat([model.posterior(X).mean[:, 0], joint.mean[:num_pending]]))
        within, across = joint.covariance_matrix.split([num_pending, len(points)])
        given = torch.linalg.solve(within[:, :num_pending], within[:, num_pending:])
        deviation = (across[:, num_pending:] - across[:, :num_pending] @ given).diagonal().sqrt()
        steps = problems.normal(num_draws, len(points), seed=len(draws))
        draws.append(joint.mean[num_pending:] + deviation * steps)
    before = torch.stack(known, dim=1)
    volume = hypervolume(corner, before)
    for value, drawn in zip(found, torch.stack(draws, dim=-1).unbind(1), strict=True):
        after = [hypervolume(corner, torch.cat([before, y[None]])) for y in drawn]
        gains = torch.tensor(after, dtype=torch.float64) - volume
        scatter = float(gains.std()) / math.sqrt(num_draws)
        assert abs(float(value - gains.mean())) < 5.0 * scatter + 1e-5 * volume
    assert found.max() > 0.01 * volume


@torch.no_grad()
def test_of_noisy_objectives_the_hypervolume_grows_by_what_the_function_may_be() -> None:
    X = problems.uniform(12, 2)
    Y = torch.sin(torch.stack([X[:, 0], 2.0 * X[:, 1] + 1.0], dim=1))
    likelihood = gaussian_likelihood(0.05)
    models = [PathwiseGP(X, column[:, None], likelihood=likelihood) for column in Y.T]
    corner = Y.amin(0) - 0.1
    goal = {"objective": Scalarisations.draw(1, corner, Y.amax(0), problems.seeded())}
    improvement = _Improvement.of(
        Request(models, 1, UNIT, problems.seeded(), goal=goal), LogEIStrategy()
    )
    pending, points = problems.uniform(4, 2, seed=5).split([1, 3])
    found = improvement._beside_a_front(corner, pending, 0, None, num_draws=500).mean(points).exp()
    places = torch.cat([X, pending, points])
    draws = torch.cat([m.posterior(places).rsample(torch.Size([1000])) for m in models], dim=-1)
    gains = []
    for known, tried in (drawn.split([13, 3]) for drawn in draws):
        volume = hypervolume(corner, known)
        gains.append([hypervolume(corner, torch.cat([known, y[None]])) - volume for y in tried])
    gain = torch.tensor(gains, dtype=torch.float64)
    scatter = gain.std(0) * math.sqrt(1 / 500 + 1 / 1000)
    assert ((found - gain.mean(0)).abs() < 5.0 * scatter + 1e-5 * found.max()).all()
    assert found.max() > 5.0 * scatter.max()


@torch.no_grad()
@pytest.mark.parametrize("maximize", [True, False])
def test_with_a_limit_the_improvement_counts_where_the_limit_is_kept(maximize: bool) -> None:
    X = problems.uniform(15, 2)
    Y = torch.stack([3.0 + 2.0 * torch.sin(5.0 * X[:, 0]), X[:, 1] - X[:, 0]], dim=1)
    model = PathwiseGP(X, Y, likelihood=gaussian_likelihood(1e-4))
    goal = {
        "objective": lambda Y: Y[..., 0],
        "outcome_constraints": [lambda Y: Y[..., 1] - 0.2],
        "maximize": maximize,
    }
    request = Request(model, 1, UNIT, problems.seeded(), goal=goal)
    points = problems.uniform(30, 2, seed=3)
    found, error = mean_improvement(request, UNIT[:0], points)
    means = model.posterior(X).mean
    kept = means[means[:, 1] <= 0.2, 0]
    best = float(kept.max() if maximize else kept.min())
    exact = LogConstrainedExpectedImprovement(model, best, 0, {1: (None, 0.2)}, maximize)
    expected = exact(points.unsqueeze(1)).exp()
    scale = expected.max()
    assert ((found - expected).abs() < 5.0 * error + 0.01 * scale).all()


@torch.no_grad()
@pytest.mark.parametrize("num_objectives", [1, 2])
def test_while_no_value_keeps_a_limit_the_least_violation_is_improved(num_objectives: int) -> None:
    X = 0.8 * problems.uniform(15, 2)
    Y = torch.stack([torch.sin(5.0 * X[:, 0]), X[:, 1] - X[:, 0], X.sum(1)], dim=1)
    model = PathwiseGP(X, Y, likelihood=gaussian_likelihood(1e-4))
    limit = float(Y[:, 2].max()) + 0.1
    objective: Any = lambda Y: Y[..., 0]  # noqa: E731
    if num_objectives == 2:
        ends = torch.full((2,), -2.0, dtype=torch.float64), Y[:, :2].amax(0)
        objective = Scalarisations.draw(1, *ends, problems.seeded())
    goal = {"objective": objective, "outcome_constraints": [lambda Y: limit - Y[..., 2]]}
    request = Request(model, 1, UNIT, problems.seeded(), goal=goal)
    points = torch.cat([0.7 + 0.3 * problems.uniform(30, 2, seed=3), X])
    found, error = mean_improvement(request, UNIT[:0], points)
    posterior = model.posterior(points)
    mean, deviation = posterior.mean[:, 2], posterior.variance[:, 2].sqrt()
    nearest = model.posterior(X).mean[:, 2].max()
    above = [log_improvement((mean - low) / deviation).exp() for low in (nearest, limit)]
    expected = deviation * (above[0] - above[1])
    assert ((found - expected).abs() < 5.0 * error + 0.02 * expected.max()).all()
    assert expected.max() > 0.01
    assert found[30:].max() < 0.1 * expected.max()  # there is nothing to gain at data points
    leader = X[Y[:, 2].argmax()]
    assert (_Improvement.of(request, LogEIStrategy()).leaders == leader).all(1).any()


def test_the_points_of_a_batch_are_apart_where_none_is_thought_to_keep_a_limit() -> None:
    X = problems.uniform(30, 2)
    hill = torch.exp(-8.0 * (X - 0.4).square().sum(1))  # is 1 at its top
    model = PathwiseGP(X, torch.stack([X[:, 0], hill], dim=1))
    goal = {"objective": lambda Y: Y[..., 0], "outcome_constraints": [lambda Y: 1.5 - Y[..., 1]]}
    request = Request(model, 5, UNIT, problems.seeded(), goal=goal)
    batch = LogEIStrategy().generate(request)
    assert torch.pdist(batch).min() > 0.01
    points = torch.cat([batch, X, UNIT]).requires_grad_()
    improvement = _Improvement.of(request, LogEIStrategy()).beside(batch, 0)
    (slopes,) = torch.autograd.grad(improvement.of_points(points).sum(), points)
    assert slopes.isfinite().all()


@torch.no_grad()
def test_of_a_transformed_outcome_its_own_values_are_drawn() -> None:
    X = problems.uniform(15, 2)
    Y = torch.exp(torch.sin(5.0 * X[:, :1]) + X[:, 1:])
    transform = ChainedOutcomeTransform(log=Log(), units=Standardize(1))
    model = PathwiseGP(X, Y, outcome_transform=transform, likelihood=gaussian_likelihood(1e-4))
    request = Request(model, 1, UNIT, problems.seeded())
    points = problems.uniform(10, 2, seed=3)
    found, error = mean_improvement(request, UNIT[:0], points)
    samples = model.posterior(points).rsample(torch.Size([20_000])).squeeze(-1)
    expected = (samples - model.posterior(X).mean.max()).clamp_min(0.0)
    scatter = expected.std(0) / math.sqrt(20_000)
    assert ((found - expected.mean(0)).abs() < 5.0 * torch.hypot(error, scatter) + 1e-4).all()
    assert expected.mean(0).max() > 0.01


@pytest.mark.parametrize("num_objectives", [1, 2])
def test_points_that_are_as_likely_to_succeed_as_is_demanded_are_improved_on(
    num_objectives: int,
) -> None:
    X = problems.uniform(12, 2)
    model = PathwiseGP(X, torch.stack([X.sum(1), X[:, 0]], dim=1)[:, :num_objectives])
    request = Request(model, 1, UNIT, problems.seeded())
    improvement = _Improvement.of(
        replace(request, goal={"objective": lambda Y: Y[..., 0]}), LogEIStrategy()
    )
    pending = problems.uniform(3, 2, seed=5)
    least = torch.tensor([0.6], dtype=torch.float64)
    demands = Demands(lambda X: 1.0 - X[..., 0], least)
    given, points = improvement._given(pending, 4, 0, demands)
    taken = torch.cat([X, pending])
    assert torch.equal(points, taken[taken[:, 0] <= 0.4])
    assert len(given[0][2]) == len(points)
    none = replace(demands, least=least + 1.0)  # is met nowhere
    assert torch.equal(improvement._given(pending, 4, 0, none)[1], taken)


def test_a_point_is_sought_where_an_outcome_is_feasible() -> None:
    X = problems.uniform(30, 2)
    Y = torch.stack([X.sum(1), X[:, 0]], dim=1)  # as large as can be where x₀ ≤ 0.3
    model = PathwiseGP(X, Y, likelihood=gaussian_likelihood(1e-4))
    goal = {"objective": lambda Y: Y[..., 0], "outcome_constraints": [lambda Y: Y[..., 1] - 0.3]}
    request = Request(model, 1, UNIT, problems.seeded(), goal=goal)
    ((x0, x1),) = LogEIStrategy().generate(request).tolist()
    assert 0.2 < x0 < 0.35
    assert x1 > 0.9
    down = replace(request, goal={"objective": lambda Y: Y[..., 0], "maximize": False})
    assert LogEIStrategy().generate(down).sum() < 0.3


def noisy_request(
    n: int = 40,
    noise: float = 0.1,
    near: Tensor | None = None,
    before: Callable[[Tensor], Tensor] = lambda X: X,
    **options: Any,
) -> Request:
    """Return a request for 3 points by a model of n rough values and, at points ``near`` (k, 2), of
    one that is worse than all of them; ``before`` changes the n points.
    """
    X = before(problems.uniform(n, 2, seed=4))
    y = (37 * X).sin().sum(1, keepdim=True)
    if near is not None:
        X = torch.cat([X, near])
        y = torch.cat([y, y.min() - torch.ones_like(near[:, :1])])
    model = PathwiseGP(X, y, likelihood=gaussian_likelihood(noise))
    return Request(model, 3, UNIT, problems.seeded(3), **options)


def distances_from_best(request: Request, strategy: Strategy | None = None) -> Tensor:
    """Return the sorted distances (q,) of the chosen points from that of the best value."""
    model = request.model
    best = model.train_inputs[0][model.train_targets.argmax()]
    batch = (strategy or LogEIStrategy()).generate(request)
    return (batch - best).abs().amax(1).sort().values


def test_the_best_value_is_measured_again_where_noise_may_be_ripples() -> None:
    request = noisy_request()
    beside, *others = distances_from_best(request).tolist()
    assert 1e-6 < beside < 1e-4
    assert min(others) > 1e-4
    for strategy in (AutoStrategy(), LogEIStrategy()):
        said = strategy.reason(request)
        assert said.endswith("; the first beside the best value, to tell noise from ripples")
    assert "beside" not in LogEIStrategy().reason(noisy_request(noise=1e-4))


def test_of_the_values_that_may_be_asked_for_the_best_is_measured_again() -> None:
    request = noisy_request()
    model = request.model
    assert isinstance(model, PathwiseGP)
    best, second = model.train_inputs[0][model.train_targets.topk(2).indices]
    allowed = lambda X: (X - best).abs().amax(-1) > 1e-6  # noqa: E731
    batch = LogEIStrategy().generate(replace(request, constraints={"accepts": allowed}))
    assert (batch - second).abs().amax(1).min() < 1e-4


def test_a_large_batch_measures_the_best_value_again_where_noise_may_be_ripples() -> None:
    quick = partial(ParallelThompsonSampling, num_candidates=50, num_rounds=2, num_starts=2)
    for noise, measured in ((0.5, True), (1e-4, False)):
        request = replace(noisy_request(noise=noise), q=60)
        distances = distances_from_best(request, AutoStrategy(quick))
        assert len(distances) == 60
        assert (1e-6 < distances[0] < 1e-4) == measured
        assert distances[1] > 1e-4
        assert ("beside the best" in AutoStrategy().reason(request)) == measured
        assert "beside the best" not in AutoStrategy().reason(replace(request, shared=True))


def test_among_integers_the_best_value_is_measured_again_beside_it_in_the_real_inputs() -> None:
    def rounded(X: Tensor) -> Tensor:
        return torch.stack([(8 * X[..., 0]).round() / 8, X[..., 1]], dim=-1)

    request = noisy_request(constraints={"rounding": rounded}, before=rounded)
    model = request.model
    best = model.train_inputs[0][model.train_targets.argmax()]
    gaps = (LogEIStrategy().generate(request) - best).abs()
    gap = gaps[gaps.amax(1).argmin()]
    assert gap[0] == 0.0
    assert 1e-6 < gap[1] < 1e-4


def test_a_second_value_that_is_pending_is_not_asked_for_again() -> None:
    first = LogEIStrategy().generate(noisy_request())
    assert distances_from_best(noisy_request(X_pending=first))[0] > 1e-4


def on_grid(X: Tensor) -> Tensor:
    return (64 * X).round() / 64


PAIR = torch.tensor([[0.5, 0.5], [0.5, 0.50001]], dtype=torch.float64)


@pytest.mark.parametrize(
    "options",
    [
        {"noise": 1e-3},
        {"n": 20},
        {"near": PAIR},
        {"constraints": {"rounding": on_grid}, "before": on_grid},
        {"choices": torch.cartesian_prod(*[torch.linspace(0, 1, 5, dtype=torch.float64)] * 2)},
    ],
    ids=["little noise", "few values", "known already", "grid", "choices"],
)
def test_no_value_is_measured_again_in_vain(options: dict[str, Any]) -> None:
    assert distances_from_best(noisy_request(**options))[0] > 1e-4


def test_known_variances_need_no_second_value() -> None:
    request = noisy_request()
    model = request.model
    (X,) = model.train_inputs
    y = model.train_targets.unsqueeze(1)
    known = PathwiseGP(X, y, torch.full_like(y, 0.1))
    assert distances_from_best(replace(request, model=known))[0] > 1e-4


def test_the_slope_of_an_improvement_is_that_of_its_logarithm_however_small() -> None:
    u = torch.tensor([-1e9, -1.1e4, -9e3, -95.0, -5.0, -1.0, 0.0, 0.5, 10.0], dtype=torch.float64)
    u.requires_grad_()
    (expected,) = torch.autograd.grad(log_improvement(u).sum(), u)
    (slope,) = torch.autograd.grad(LogImprovement.apply(u).sum(), u)
    torch.testing.assert_close(slope, expected, rtol=1e-7, atol=0.0)
    with pytest.raises(NotImplementedError, match="Leave out `create_graph`"):
        torch.autograd.grad(LogImprovement.apply(u).sum(), u, create_graph=True)


SCALES = pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])


@SCALES
@torch.no_grad()
def test_joint_draws_have_the_covariance_of_the_posterior_at_any_output_scale(scale: float) -> None:
    n, noise = 30, 1e-8
    X = problems.uniform(n, 2)
    Q = torch.cat([X[:3], X[:2], problems.uniform(3, 2, seed=1), problems.uniform(2, 2, seed=1)])
    K, k, prior = (
        problems.matern(2.5).double()(A, B).to_dense() for A, B in ((X, X), (Q, X), (Q, Q))
    )
    K += noise * torch.eye(n, dtype=K.dtype)
    expected = prior - k @ torch.linalg.solve(K, k.T)
    kernel = problems.scaled(problems.matern(2.5), scale).double()
    y = scale**0.5 * problems.normal(n)
    data = DataSet(X, y, scale * X.new_full((n,), noise), kernel, ConstantMean().double())
    posterior = _Posterior.of(data, X, y.unsqueeze(1), data.noise)
    steps = [draw_sobol_normal_samples(len(Q), 64, seed=seed) for seed in range(64)]
    draws = posterior.means(Q) + posterior.root(Q)[1] @ torch.cat(steps).to(Q).mT
    deviations = (draws - posterior.moments(Q)[0]) / scale**0.5
    covariance = deviations @ deviations.T / draws.shape[1]
    variance = expected.diagonal().clamp_min(0.0)
    error = (variance * variance.unsqueeze(1)).sqrt() * (2.0 / draws.shape[1]) ** 0.5
    rounding = n**2 * torch.finfo(K.dtype).eps
    assert ((covariance - expected).abs() <= 5.0 * error + rounding).all()


@SCALES
def test_a_batch_is_chosen_at_any_output_scale_beside_points_that_repeat(scale: float) -> None:
    X = problems.uniform(25, 2)
    Y = scale**0.5 * torch.sin(4.0 * X.sum(1, keepdim=True))
    model = PathwiseGP(
        X,
        Y,
        covar_module=problems.scaled(problems.matern(2.5, 20.0), scale).double(),
        likelihood=gaussian_likelihood(1e-8),
        outcome_transform=None,
    )
    pending = torch.cat([X[:4], X[:2], torch.full((3, 2), 0.5)]).double()
    generator = problems.seeded()
    points = LogEIStrategy().generate(Request(model, 3, UNIT, generator, X_pending=pending))
    assert points.isfinite().all() and ((points >= 0.0) & (points <= 1.0)).all()
    assert len(points.unique(dim=0)) == 3


def test_the_values_are_factorised_once_however_many_points_follow(spy: Any) -> None:
    n = 40
    seen = spy(log_ei, "jittered_cholesky")
    LogEIStrategy().generate(replace(noisy_request(n), q=4))
    sizes = [len(call.args[0]) for call in seen.call_args_list]
    assert sum(size >= n for size in sizes) == 3  # with noise, given these values, and without
    assert sum(size < n for size in sizes) == 3


@pytest.mark.parametrize("repeated", [False, True])
@torch.no_grad()
def test_further_draws_give_what_all_values_give_together(repeated: bool) -> None:
    X, further = problems.uniform(30, 3), problems.uniform(5, 3, seed=1)
    kernel = problems.matern(2.5).double()
    data = DataSet(X, problems.normal(30), torch.tensor(0.1), kernel, ConstantMean().double())
    if repeated:
        further[:2] = further[2]
    noise = X.new_full((30,), 0.1)
    steps = problems.normal(5, 4, seed=3)
    found = _Posterior.of(data, X, data.y.unsqueeze(1), noise).beside(further, steps)
    noise = torch.cat([noise, X.new_zeros(5)])
    together = _Posterior.of(data, torch.cat([X, further]), found.Y, noise)
    Z = problems.uniform(50, 3, seed=2)
    for one, other in zip(found.moments(Z), together.moments(Z), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-7)


def test_matrices_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    request = replace(noisy_request(), q=2)
    LogEIStrategy().generate(request)
    monkeypatch.setattr(memory, "available", lambda device: 7 * 40**2 * 8)
    with pytest.raises(MemoryError, match=r"expected improvement on 40 values needs.*thompson"):
        LogEIStrategy().generate(request)


def test_near_points_are_found_without_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "pdist", None)
    request = noisy_request()
    assert len(beside_the_best(request)) == 1
    near = request.model.train_inputs[0][:1] + 1e-5
    assert len(beside_the_best(replace(request, X_pending=near))) == 0
