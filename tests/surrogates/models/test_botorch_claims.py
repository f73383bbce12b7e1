"""What BoTorch's own tests ask of a model, asked of ours: acquisition values, generation,
fitting, and whole loops.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import gpytorch
import pytest
import torch
from botorch.acquisition import (
    AcquisitionFunction,
    FixedFeatureAcquisitionFunction,
    LogExpectedImprovement,
    PosteriorMean,
    ProximalAcquisitionFunction,
    UpperConfidenceBound,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
    qNegIntegratedPosteriorVariance,
    qProbabilityOfImprovement,
    qSimpleRegret,
    qUpperConfidenceBound,
)
from botorch.acquisition.analytic import (
    LogConstrainedExpectedImprovement,
    LogProbabilityOfImprovement,
)
from botorch.acquisition.joint_entropy_search import qJointEntropySearch
from botorch.acquisition.max_value_entropy_search import (
    qLowerBoundMaxValueEntropy,
    qMaxValueEntropy,
)
from botorch.acquisition.multi_objective.logei import (
    qLogExpectedHypervolumeImprovement,
    qLogNoisyExpectedHypervolumeImprovement,
)
from botorch.acquisition.multi_step_lookahead import qMultiStepLookahead
from botorch.fit import fit_gpytorch_mll
from botorch.generation import MaxPosteriorSampling
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.model import Model
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from botorch.sampling.pathwise import draw_kernel_feature_paths
from botorch.utils.multi_objective.box_decompositions.non_dominated import (
    FastNondominatedPartitioning,
)
from botorch.utils.sampling import manual_seed
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from surrogates import CG, PathwiseGP, gaussian_likelihood
from surrogates.models.fresh import as_given
from tests import problems

pytestmark = pytest.mark.usefixtures("botorch_seed")

N = 30
D = 2
X = problems.uniform(N, D)
Y = torch.sin(5 * X.sum(1, keepdim=True)) + 0.1 * problems.normal(N, 1, seed=2)
Y2 = torch.cos(4 * X[:, :1]) + 0.1 * problems.normal(N, 1, seed=3)
GRID = problems.uniform(40, D, seed=4)
BOUNDS = torch.tensor([[0.0] * D, [1.0] * D]).double()
MODES: dict[str, dict[str, Any]] = {
    "exact": {},
    "paths": {"solver": CG(tolerance=1e-8, preconditioner=None)},
}

Factory = Callable[..., SingleTaskGP]


def sampler(num_samples: int = 32, seed: int = 0) -> SobolQMCNormalSampler:
    return SobolQMCNormalSampler(torch.Size([num_samples]), seed=seed)


def points(name: str, num_points: int) -> Tensor:
    return problems.uniform(4, num_points, D - (name == "fixed-feature"), seed=1)


def both(new: Factory, **settings: Any) -> ModelListGP:
    return ModelListGP(new(X, Y, **settings), new(X, Y2, **settings))


def joint_entropy(new: Factory) -> AcquisitionFunction:
    optimal_X = GRID[:6]
    return qJointEntropySearch(
        new(X, Y), optimal_inputs=optimal_X, optimal_outputs=Y.max() + 0.1 + optimal_X[:, :1]
    )


def test_joint_entropy_counts_optima_as_values_without_noise() -> None:
    def noisy(X: Tensor, Y: Tensor, **settings: Any) -> PathwiseGP:
        return PathwiseGP(X, Y, likelihood=gaussian_likelihood(0.5), **settings)

    exact = joint_entropy(noisy)(points("joint-entropy", 2))
    num_paths = 4096
    paths = joint_entropy(partial(noisy, num_paths=num_paths, **MODES["paths"]))
    # That of the logarithms of two deviations
    error = 2 / math.sqrt(2 * num_paths)
    torch.testing.assert_close(paths(points("joint-entropy", 2)), exact, rtol=0.0, atol=error)


def hypervolume(new: Factory) -> AcquisitionFunction:
    partitioning = FastNondominatedPartitioning(
        ref_point=torch.tensor([-1.0, -1.0]).double(), Y=torch.cat([Y, Y2], dim=1)
    )
    return qLogExpectedHypervolumeImprovement(
        both(new), ref_point=[-1.0, -1.0], partitioning=partitioning, sampler=sampler()
    )


def noisy_hypervolume(new: Factory) -> AcquisitionFunction:
    return qLogNoisyExpectedHypervolumeImprovement(
        both(new),
        ref_point=[-1.0, -1.0],
        X_baseline=X[:8],
        sampler=sampler(),
        cache_root=False,
        prune_baseline=False,
    )


def noisy_improvement(new: Factory) -> AcquisitionFunction:
    return qLogNoisyExpectedImprovement(
        new(X, Y), X[:8], sampler=sampler(), cache_root=False, prune_baseline=False
    )


# Each takes a model's class and makes the acquisition function; the number is that of the points
# which it is evaluated at.
ACQUISITIONS: dict[str, tuple[Callable[[Factory], AcquisitionFunction], int]] = {
    "mean": (lambda new: PosteriorMean(new(X, Y)), 1),
    "log-ei": (lambda new: LogExpectedImprovement(new(X, Y), Y.max()), 1),
    "log-pi": (lambda new: LogProbabilityOfImprovement(new(X, Y), Y.max()), 1),
    "ucb": (lambda new: UpperConfidenceBound(new(X, Y), 2.0), 1),
    "log-constrained-ei": (
        lambda new: LogConstrainedExpectedImprovement(both(new), Y.max(), 0, {1: (None, 0.5)}),
        1,
    ),
    "q-log-ei": (lambda new: qLogExpectedImprovement(new(X, Y), Y.max(), sampler=sampler()), 3),
    "q-log-nei": (noisy_improvement, 3),
    "q-ucb": (lambda new: qUpperConfidenceBound(new(X, Y), 2.0, sampler=sampler()), 3),
    "q-pi": (lambda new: qProbabilityOfImprovement(new(X, Y), Y.max(), sampler=sampler()), 3),
    "q-simple-regret": (lambda new: qSimpleRegret(new(X, Y), sampler=sampler()), 3),
    "q-integrated-variance": (
        lambda new: qNegIntegratedPosteriorVariance(new(X, Y), GRID, sampler=sampler(1)),
        2,
    ),
    "pending": (
        lambda new: qLogExpectedImprovement(
            new(X, Y), Y.max(), sampler=sampler(), X_pending=GRID[:2]
        ),
        1,
    ),
    "proximal": (
        lambda new: ProximalAcquisitionFunction(
            LogExpectedImprovement(new(X, Y), Y.max()), torch.tensor([0.5, 0.5]).double(), beta=1.0
        ),
        1,
    ),
    "fixed-feature": (
        lambda new: FixedFeatureAcquisitionFunction(
            LogExpectedImprovement(new(X, Y), Y.max()), D, [1], [0.3]
        ),
        1,
    ),
    "max-value-entropy": (
        lambda new: qMaxValueEntropy(new(X, Y), GRID, num_fantasies=4, num_y_samples=16),
        1,
    ),
    "max-value-entropy-pending": (
        lambda new: qMaxValueEntropy(
            new(X, Y), GRID, num_fantasies=4, num_y_samples=16, X_pending=GRID[:2]
        ),
        1,
    ),
    "gibbon": (lambda new: qLowerBoundMaxValueEntropy(new(X, Y), GRID), 1),
    "joint-entropy": (joint_entropy, 2),
    "knowledge-gradient": (
        lambda new: qKnowledgeGradient(new(X, Y), num_fantasies=3, sampler=sampler(3)),
        5,
    ),
    "look-ahead": (
        lambda new: qMultiStepLookahead(new(X, Y), [1, 1], samplers=[sampler(2), sampler(2)]),
        7,
    ),
    "hypervolume": (hypervolume, 2),
    "noisy-hypervolume": (noisy_hypervolume, 2),
}


def value_and_gradient(name: str, new: Factory) -> tuple[Tensor, Tensor]:
    make, num_points = ACQUISITIONS[name]
    with manual_seed(0):
        acquisition = make(new)
        at = points(name, num_points).requires_grad_()
        value = acquisition(at)
        (gradient,) = torch.autograd.grad(value.sum(), at)
    return value.detach(), gradient


class WholeSingleTaskGP(SingleTaskGP):
    """GPyTorch's update gives appended values the noise given in the variance, but not in the
    mean, and its caches are constants: here the mean has the noise and the gradients are whole.
    """

    def __call__(self, *inputs: Tensor, **settings: Any) -> Any:
        with gpytorch.settings.detach_test_caches(False):
            return super().__call__(*inputs, **settings)

    def get_fantasy_model(self, inputs: Tensor, targets: Tensor, **settings: Any) -> Any:
        with gpytorch.settings.detach_test_caches(False):
            return super().get_fantasy_model(inputs, targets, **settings)

    def condition_on_observations(
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **settings: Any
    ) -> Any:
        if noise is None:
            return super().condition_on_observations(X, Y, **settings)
        model: Any = super().condition_on_observations(X, Y, noise=noise, **settings)
        seen = self.likelihood.noise.detach().expand(len(self.train_targets))
        with as_given():
            known = FixedNoiseGaussianLikelihood(seen)
            known = known.get_fantasy_likelihood(noise=noise.squeeze(-1))
        model.prediction_strategy.likelihood = known
        return model


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_exact_values_and_gradients_are_those_of_single_task_gp(name: str) -> None:
    ours = value_and_gradient(name, PathwiseGP)
    theirs = value_and_gradient(name, WholeSingleTaskGP)
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


# A posterior of paths draws with other base samples than an exact one, and is compared with it
# elsewhere.
@pytest.mark.parametrize("name", ACQUISITIONS)
def test_values_and_gradients_of_paths_are_finite(name: str) -> None:
    def new(*data: Tensor) -> PathwiseGP:
        return PathwiseGP(*data, **MODES["paths"], num_paths=32, num_features=64)

    value, gradient = value_and_gradient(name, new)
    assert value.isfinite().all() and gradient.isfinite().all()
    assert gradient.abs().max() > 0


@pytest.mark.parametrize("mode", MODES)
def test_points_are_sampled_as_often_as_they_are_the_exact_posteriors_best(mode: str) -> None:
    num_samples = 4000
    # Each may be the best
    few = torch.tensor([[0.0, 0.32], [0.1, 0.2], [0.2, 0.12], [0.3, 0.02], [0.02, 0.2]]).double()
    frequencies = []
    for model in (PathwiseGP(X, Y, **MODES[mode], num_paths=1024), SingleTaskGP(X, Y)):
        with torch.no_grad(), manual_seed(1):
            chosen = MaxPosteriorSampling(model)(few, num_samples=num_samples)
        frequencies.append((chosen.unsqueeze(1) == few).all(-1).double().mean(0))
    # Two samples of 4000 differ by 0.011 times √2 at most; the covariance of 1024 paths is off by
    # √(2 / 1024).
    assert (frequencies[0] - frequencies[1]).abs().max() < 5 * math.sqrt(
        0.5 / num_samples
    ) + math.sqrt(2 / 1024)


@pytest.mark.parametrize("mode", MODES)
def test_noise_of_each_model_in_a_list_is_added_to_its_variance(mode: str) -> None:
    # in standardised units
    models = both(PathwiseGP, **MODES[mode])
    noise = 0.5 + problems.uniform(len(GRID), 2)
    noisy = models.posterior(GRID, observation_noise=noise)
    torch.testing.assert_close(
        noisy.variance, models.posterior(GRID).variance + noise * torch.cat([Y, Y2], dim=1).var(0)
    )


@pytest.mark.parametrize("mode", MODES)
def test_points_of_lower_precision_are_taken_as_the_models(mode: str) -> None:
    model = PathwiseGP(X, Y, **MODES[mode])
    rounded = GRID.float()
    found = model.posterior(rounded)
    expected = model.posterior(rounded.double())
    assert found.mean.dtype == torch.float64
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.variance, expected.variance)


def test_values_may_be_imagined_at_no_points() -> None:
    model = PathwiseGP(X, Y, **MODES["paths"])
    fantasies = model.fantasize(X[:0], sampler(4))
    found = fantasies.posterior(GRID)
    expected = model.posterior(GRID)
    torch.testing.assert_close(found.mean, expected.mean.expand(4, -1, -1))
    torch.testing.assert_close(found.variance, expected.variance.expand(4, -1, -1))
    assert model.paths(3)(X[:0]).shape == (3, 0)


def test_prior_functions_are_drawn_where_targets_carry_a_graph() -> None:
    model = PathwiseGP(X, Y.clone().requires_grad_())
    assert draw_kernel_feature_paths(model, torch.Size([3]))(GRID).shape == (3, len(GRID))


@pytest.mark.parametrize("mode", MODES)
def test_a_loop_finds_the_maximum(mode: str) -> None:
    def objective(at: Tensor) -> Tensor:
        return -(at - torch.tensor([0.3, 0.7]).double()).square().sum(-1, keepdim=True)

    train_X = X[:5]
    for _ in range(4):
        model: Model = PathwiseGP(train_X, objective(train_X), **MODES[mode])
        fit_gpytorch_mll(
            ExactMarginalLogLikelihood(model.likelihood, model),
            optimizer_kwargs={"options": {"maxiter": 50}},
        )
        acquisition = qLogExpectedImprovement(model, objective(train_X).max(), sampler=sampler())
        new_X, _ = optimize_acqf(
            acquisition, BOUNDS, q=2, num_restarts=2, raw_samples=32, options={"maxiter": 30}
        )
        train_X = torch.cat([train_X, new_X])
    assert objective(train_X).max() > -2e-3 > objective(X[:5]).max()
