"""Objectives and outcome constraints over joint draws: ranked feasibility first,
against brute force over the same candidates.
"""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from botorch.acquisition.multi_objective.objective import IdentityMCMultiOutputObjective
from botorch.acquisition.objective import LinearMCObjective
from botorch.models import ModelListGP, SingleTaskGP
from botorch.utils.multi_objective.box_decompositions.dominated import DominatedPartitioning
from gpytorch.kernels import RBFKernel
from torch import Tensor

from acquisition import ParallelThompsonSampling, ascend
from acquisition.outcomes import Demands, OutcomePaths, Scalarisations, only_output
from surrogates import PathwiseGP, gaussian_likelihood
from surrogates.systems.system import Rows
from tests import problems
from tests.refusals import assert_refused

UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
SMALL = {
    "num_candidates": 300,
    "num_rounds": 3,
    "num_starts": 3,
    "num_steps": 10,
    "learning_rate": 0.01,
}


def model_of(
    formula: Callable[[Tensor], Tensor], *, n: int = 60, seed: int = 0, lengthscale: float = 0.7
) -> PathwiseGP:
    """Return a model of a known function, of which the paths hardly deviate for many points and a
    long lengthscale.
    """
    kernel = RBFKernel().double()
    kernel.lengthscale = lengthscale
    X = problems.uniform(n, 2, seed=seed)
    return PathwiseGP(
        X,
        formula(X).unsqueeze(1),
        likelihood=gaussian_likelihood(1e-6),
        covar_module=kernel,
        num_features=512,
    )


def test_each_path_demands_a_probability_of_success_of_its_own() -> None:
    model = model_of(lambda X: X[:, 0])
    sampler = ParallelThompsonSampling(model, UNIT, **SMALL, success=lambda X: 1.0 - X[..., 0])
    x = sampler.generate(40)[:, 0].sort().values
    (data,) = model.train_inputs
    usual = float(1.0 - data[:, 0].mean())
    # As far as each demand allows, of which the least is half of what is usual
    assert 1.0 - usual - 0.05 < x[0] < 1.0 - 0.9 * usual
    assert 1.0 - 0.6 * usual < x[-1] <= 1.0 - 0.5 * usual
    assert x.diff().max() < 0.2 * usual


def test_where_all_evaluations_seem_to_fail_the_likeliest_to_succeed_is_taken() -> None:
    model = model_of(lambda X: X[:, 0])
    choices = torch.tensor([[0.9, 0.5], [0.5, 0.5], [0.7, 0.5]], dtype=torch.float64)
    success = lambda X: torch.where(X[..., 0] < 0.65, -0.4, -X[..., 0])  # noqa: E731
    demands = Demands(success, torch.tensor([0.5, 0.5], dtype=torch.float64))
    paths = OutcomePaths((model.paths(2),), only_output, demands=demands)
    assert paths(choices).argmax(1).tolist() == [1, 1]
    at = choices.expand(2, -1, -1).clone().requires_grad_()
    values = paths.each(at)
    assert torch.equal(values, paths(choices))
    (slope,) = torch.autograd.grad(values[:, 0].sum(), at)
    assert (slope[:, 0, 0] == -1.0).all()  # towards success, not towards larger values


@pytest.fixture
def models() -> list[PathwiseGP]:
    """Return models that leave much room for their paths."""
    return [
        model_of(lambda X: torch.sin(5.0 * X).sum(1), n=12, lengthscale=0.3),
        model_of(lambda X: torch.cos(7.0 * X).sum(1), n=15, seed=1, lengthscale=0.3),
    ]


def difference(Y: Tensor) -> Tensor:
    return Y[..., 0] - 2.0 * Y[..., 1]


def first_is_low(Y: Tensor) -> Tensor:
    return Y[..., 0] - 0.3


def second_is_high(Y: Tensor) -> Tensor:
    return 0.2 - Y[..., 1]


def brute_force(values: list[list[float]], X: Tensor, maximize: bool) -> Tensor:
    """Return the best candidate by the rule: feasible before infeasible,
    then by objective or least violation.
    """

    def rank(row: int) -> tuple[bool, float]:
        y0, y1 = values[row]
        violation = max(0.0, y0 - 0.3) + max(0.0, 0.2 - y1)
        return (
            violation == 0.0,
            (y0 - 2.0 * y1) * (1.0 if maximize else -1.0) if violation == 0.0 else -violation,
        )

    return X[max(range(len(X)), key=rank)]


@pytest.mark.parametrize("maximize", [True, False])
def test_the_choices_of_joint_draws_are_those_of_brute_force(
    models: list[PathwiseGP], maximize: bool
) -> None:
    paths = [model.paths(1) for model in models]
    X = problems.uniform(200, 2, seed=5)
    values = torch.stack([part(X).squeeze(0) for part in paths], dim=1).tolist()
    sampler = ParallelThompsonSampling(
        models,
        UNIT,
        objective=difference,
        outcome_constraints=[first_is_low, second_is_high],
        maximize=maximize,
    )
    chosen = sampler.generate(1, paths=paths, choices=X)
    assert torch.equal(chosen[0], brute_force(values, X, maximize))


def test_a_draw_that_is_feasible_nowhere_is_best_at_the_least_violation() -> None:
    model = model_of(lambda X: 3.0 + X[:, 0])
    (batch,) = ParallelThompsonSampling(
        model, UNIT, outcome_constraints=[lambda Y: Y[..., 0]], **SMALL | {"num_steps": 60}
    ).generate(1)
    assert batch[0].item() == pytest.approx(0.0, abs=0.01)


def test_merits_order_feasible_points_by_objective_above_all_others_by_violation(
    models: list[PathwiseGP],
) -> None:
    paths = tuple(model.paths(4) for model in models)
    X = problems.uniform(300, 2, seed=3)
    merit = OutcomePaths(paths, difference, (first_is_low, second_is_high))(X)
    Y = torch.stack([part(X) for part in paths], dim=-1)
    violation = first_is_low(Y).clamp_min(0.0) + second_is_high(Y).clamp_min(0.0)
    feasible = violation == 0.0
    assert feasible.any(1).all()
    assert (~feasible).any(1).all()
    assert torch.equal(merit[feasible], difference(Y)[feasible])
    for i in range(4):
        assert merit[i][feasible[i]].min() > merit[i][~feasible[i]].max()
        assert torch.equal(
            merit[i][~feasible[i]].argsort(), violation[i][~feasible[i]].argsort(descending=True)
        )


def test_gradients_are_those_of_the_objective_or_of_the_violation(models: list[PathwiseGP]) -> None:
    paths = tuple(model.paths(3) for model in models)
    X = problems.uniform(3, 40, 2, seed=4).requires_grad_()
    functions = OutcomePaths(paths, difference, (first_is_low, second_is_high), sign=-1.0)
    (gradient,) = torch.autograd.grad(functions.each(X).sum(), X)
    Y = torch.stack([part.each(X) for part in paths], dim=-1)
    violation = first_is_low(Y).clamp_min(0.0) + second_is_high(Y).clamp_min(0.0)
    (uphill,) = torch.autograd.grad(-difference(Y).sum(), X, retain_graph=True)
    (inwards,) = torch.autograd.grad(-violation.sum(), X)
    torch.testing.assert_close(
        gradient, torch.where((violation == 0.0).unsqueeze(-1), uphill, inwards)
    )


@pytest.mark.parametrize("units", [1e-3, 1.0, 1e3])
def test_the_constrained_optimum_is_found_whatever_the_units_of_the_constraint(
    units: float,
) -> None:
    # max x₀ + x₁ where x₀² + x₁² ≤ 1: both are outcomes, learned from data.
    models = [model_of(lambda X: X.sum(1)), model_of(lambda X: X.square().sum(1), seed=1)]
    sampler = ParallelThompsonSampling(
        ModelListGP(*models),
        UNIT,
        objective=lambda Y: Y[..., 0],
        outcome_constraints=[lambda Y: units * (Y[..., 1] - 1.0)],
        **SMALL | {"num_steps": 100},
    )
    batch = sampler.generate(4)
    torch.testing.assert_close(
        batch.sum(1), torch.full((4,), 2.0**0.5, dtype=torch.float64), atol=0.01, rtol=0.0
    )
    assert (batch.square().sum(1) <= 1.005).all()


def test_an_ascent_enters_the_feasible_region_and_climbs_there(models: list[PathwiseGP]) -> None:
    functions = OutcomePaths(
        tuple(model.paths(6) for model in models), difference, (first_is_low, second_is_high)
    )
    starts = problems.uniform(6, 8, 2, seed=9)
    before = functions.each(starts)
    _, after = ascend(
        functions, starts, UNIT, num_steps=60, learning_rate=0.02, unit_gradients=True
    )
    entered = (before < -1e100) & (after > -1e100)
    climbed = (before > -1e100) & (after > before)
    assert entered.sum() >= 5
    assert climbed.sum() >= 5
    assert (after >= before).all()


def test_a_linear_objective_of_botorch_scalarises_the_models(models: list[PathwiseGP]) -> None:
    weights = torch.tensor([1.0, -2.0], dtype=torch.float64)
    batches = [
        ParallelThompsonSampling(models, UNIT, objective=f, **SMALL).generate(3)
        for f in (difference, LinearMCObjective(weights))
    ]
    torch.testing.assert_close(*batches)


def test_the_objective_of_one_model_may_be_its_value(models: list[PathwiseGP]) -> None:
    plain = ParallelThompsonSampling(models[0], UNIT, **SMALL).generate(4)
    spelled_out = ParallelThompsonSampling(
        [models[0]], UNIT, objective=lambda Y: Y[..., 0], **SMALL
    )
    paths = models[0].paths(4)
    assert torch.equal(ParallelThompsonSampling([models[0]], UNIT, **SMALL).generate(4), plain)
    # The data are ranked by their means, not their targets: the candidates differ a little, the
    # maxima do not.
    values = [paths.each(batch.unsqueeze(1)) for batch in (plain, spelled_out.generate(4))]
    torch.testing.assert_close(*values, atol=0.15, rtol=0.0)


def test_candidates_gather_around_feasible_data_first(models: list[PathwiseGP]) -> None:
    X = torch.cat([model.train_inputs[0] for model in models])
    functions = OutcomePaths(
        tuple(model.paths(2) for model in models), difference, (first_is_low, second_is_high)
    )
    Y = torch.stack([part.mean(X) for part in functions.parts], dim=-1)
    feasible = (first_is_low(Y) <= 0) & (second_is_high(Y) <= 0)
    points, values = functions.standing(X)
    assert 0 < feasible.sum() < len(X)
    assert torch.equal(points, X[feasible])
    torch.testing.assert_close(values, difference(Y[feasible]))
    nowhere = OutcomePaths(functions.parts, difference, (lambda Y: Y[..., 0].abs() + 1.0,))
    points, values = nowhere.standing(X)
    assert torch.equal(points, X)
    torch.testing.assert_close(values, -Y[..., 0].abs() - 1.0)


def test_candidates_come_from_the_data_of_all_models_at_the_finest_lengthscale(
    models: list[PathwiseGP],
) -> None:
    models[1].covar_module.lengthscale = 0.2
    sampler = ParallelThompsonSampling(models, UNIT, objective=difference, **SMALL)
    functions, _ = sampler._functions(Rows(2), None, torch.Generator().manual_seed(0))
    X = torch.cat([model.train_inputs[0] for model in models])
    search = sampler._search(functions)
    assert search.proposal_std.tolist() == pytest.approx([0.1, 0.1])
    assert sorted(search.X.tolist()) == sorted(X.tolist())


def test_bad_outcomes_are_named(models: list[PathwiseGP]) -> None:
    sampler = partial(ParallelThompsonSampling, models, UNIT)
    assert_refused(TypeError, sampler, objective=[3])
    of_none = [None, IdentityMCMultiOutputObjective(), lambda Y: 1.0]
    assert_refused(ValueError, sampler, objective=of_none)
    limited = partial(sampler, objective=difference)
    assert_refused(TypeError, limited, outcome_constraints=[difference])
    for constraint, error, message in (
        (None, TypeError, "must be a callable"),
        (lambda Y: Y, ValueError, "must map values"),
    ):
        with pytest.raises(error, match=rf"`outcome_constraints\[0\]` {message}"):
            limited(outcome_constraints=[constraint])


def test_bad_models_are_named(models: list[PathwiseGP]) -> None:
    with pytest.raises(ValueError, match="`model` must hold a model or more"):
        ParallelThompsonSampling([], UNIT)
    with pytest.raises(TypeError, match="`model` must be a PathwiseGP, got SingleTaskGP"):
        ParallelThompsonSampling(
            [models[0], SingleTaskGP(UNIT, problems.uniform(2, 1))], UNIT, objective=difference
        )
    other = PathwiseGP(UNIT[:, :1], problems.uniform(2, 1))
    with pytest.raises(ValueError, match="`model` must hold models of the same inputs"):
        ParallelThompsonSampling([models[0], other], UNIT, objective=difference)


def test_every_model_needs_its_paths(models: list[PathwiseGP]) -> None:
    sampler = ParallelThompsonSampling(models, UNIT, objective=difference, **SMALL)
    with pytest.raises(
        ValueError, match="`paths` must hold the paths of each of the 2 models, got 1"
    ):
        sampler.generate(2, paths=models[0].paths(2))
    with pytest.raises(ValueError, match="`paths` must hold q = 2 paths, got 3"):
        sampler.generate(2, paths=[models[0].paths(2), models[1].paths(3)])


@pytest.mark.parametrize("k", [2, 3, 4])
def test_the_mean_volume_over_directions_is_the_hypervolume(k: int) -> None:
    Y = problems.normal(20, k, seed=k)
    reference, best = torch.full((k,), -1.0, dtype=torch.float64), Y.amax(0)
    drawn = Scalarisations.draw(40_000, reference, best, torch.Generator().manual_seed(0))
    volumes = drawn.volume(Y.expand(40_000, 20, k)).amax(1).clamp_min(0.0)
    # The volume of the part of a ball that has positive coordinates
    factor = math.pi ** (k / 2) / (2**k * math.gamma(k / 2 + 1))
    exact = DominatedPartitioning(reference, Y).compute_hypervolume() / (best - reference).prod()
    error = float(volumes.std()) / 200.0
    assert abs(float(volumes.mean()) - float(exact) / factor) < 5.0 * error


def test_scalarisations_are_drawn_anew_from_all_of_their_reference_points() -> None:
    reference = -torch.arange(1.0, 6.0).repeat(2, 1).mT
    given = Scalarisations.draw(5, reference, torch.ones(2), problems.seeded())
    found = given.redrawn(200, problems.seeded(1))
    assert found.reference.shape == found.directions.shape == (200, 2)
    torch.testing.assert_close(found.reference.unique(dim=0), reference.double().flip(0))
    assert not torch.isin(found.directions, given.directions.double()).any()
