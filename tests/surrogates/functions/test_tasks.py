"""Tasks: features of index kernels, and paths of each task."""

import math
from typing import Any

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import MultiTaskGP
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import IndexKernel, Kernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import HadamardGaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood

from surrogates import (
    CG,
    Cholesky,
    FantasyGP,
    PathwiseGP,
    RandomFeatures,
    fit,
    multi_task_kernel,
    predict_by_neighbours,
)
from tests import problems

# GPyTorch's own, once in a process
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")
NUM_FEATURES = 40_000
GENERATOR = torch.Generator().manual_seed(0)
X = torch.cat(
    [
        torch.rand(60, 2, generator=GENERATOR, dtype=torch.float64),
        torch.arange(60, dtype=torch.float64).remainder(3).unsqueeze(1),
    ],
    dim=1,
)
Y = torch.sin(5.0 * X[:, :1]) * (1.0 + X[:, 2:]) + X[:, 1:2] ** 2


def tasks(active_dims: tuple[int, ...] = (2,)) -> Kernel:
    kernel = IndexKernel(num_tasks=3, rank=2, active_dims=active_dims).double()
    factor = torch.tensor([[1.0, 0.2], [0.8, -0.5], [-0.3, 1.2]], dtype=torch.float64)
    kernel.covar_factor = torch.nn.Parameter(factor)
    return kernel


KERNELS = {
    "alone": tasks,
    "product": lambda: RBFKernel(active_dims=(0, 1)).double() * tasks(),
    "scaled": lambda: ScaleKernel(RBFKernel(active_dims=(0, 1)) * tasks()).double(),
    "of MultiTaskGP": lambda: multi_task_kernel(3, 3, rank=2).double(),
    "sum": lambda: RBFKernel(active_dims=(0, 1)).double() * tasks() + RBFKernel().double(),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_features_have_the_covariance(kernel: str, weighted: bool) -> None:
    made = KERNELS[kernel]()
    features = RandomFeatures.draw(
        made, 3, NUM_FEATURES, weighted=weighted, generator=torch.Generator().manual_seed(0)
    )(X)
    exact = made(X).to_dense().detach()
    found = features @ features.T
    # Five standard errors of a mean over NUM_FEATURES / 2 waves; the variance is exact
    assert (found - exact).abs().max() < 5.0 * exact.max() * (2.0 / NUM_FEATURES) ** 0.5
    if kernel != "sum":
        torch.testing.assert_close(found.diagonal(), exact.diagonal(), rtol=1e-10, atol=0.0)


def test_a_task_learns_from_another_that_is_like_it() -> None:
    def wave(X: torch.Tensor) -> torch.Tensor:
        return torch.sin(6.0 * X[:, :1]) * (1.0 - 0.2 * X[:, 1:])

    generator = torch.Generator().manual_seed(3)
    many = torch.rand(40, 1, generator=generator, dtype=torch.float64)
    few = torch.tensor([[0.1], [0.55], [0.9]], dtype=torch.float64)
    data = torch.cat([many, torch.zeros_like(many)], 1), torch.cat([few, torch.ones_like(few)], 1)
    train = torch.cat(data)
    model = fit(PathwiseGP(train, wave(train), covar_module=multi_task_kernel(2, 2)))
    points = torch.linspace(0, 1, 30, dtype=torch.float64).unsqueeze(1)
    points = torch.cat([points, torch.ones_like(points)], 1)
    alone = fit(PathwiseGP(few, wave(data[1])))
    errors = [
        (prediction.mean - wave(points)).square().mean().sqrt()
        for prediction in (model.posterior(points), alone.posterior(points[:, :1]))
    ]
    assert errors[0] < 0.05 < errors[1]
    paths = model.paths(50, generator=torch.Generator().manual_seed(0))
    assert (paths(points).mean(0) - wave(points).squeeze()).abs().max() < 0.2


def test_tasks_that_share_another_need_not_be_alike() -> None:
    def wave(X: torch.Tensor) -> torch.Tensor:
        sine, cosine = torch.sin(9.0 * X[:, 0]), torch.cos(9.0 * X[:, 0])
        tasks = torch.stack([sine, (sine + cosine) / 2**0.5, cosine], 1)
        return tasks.gather(1, X[:, 1:].long())

    x = torch.linspace(0, 1, 20, dtype=torch.float64).repeat(3)
    X = torch.stack([x, torch.arange(3.0, dtype=torch.float64).repeat_interleave(20)], 1)
    model = fit(PathwiseGP(X, wave(X), covar_module=multi_task_kernel(2, 3).double()), "exact")
    K = model.covar_module.kernels[1].covar_matrix
    # A factor with equal columns and the diagonal give at least equality
    assert K[0, 2] * K[1, 1] < 0.9 * K[0, 1] * K[1, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 1}, "`dim` must be at least 2"),
        ({"task_feature": 3}, "`task_feature` must be a column of 3"),
        ({"rank": 4}, "`rank` must be at most the number of tasks, 3, got 4"),
        ({"num_tasks": 0}, "`num_tasks` must be"),
    ],
)
def test_impossible_tasks_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        multi_task_kernel(**{"dim": 3, "num_tasks": 3, **arguments})


@pytest.mark.parametrize("number", [-1.0, 3.0])
def test_what_is_no_task_is_refused(number: float) -> None:
    model = PathwiseGP(X, Y, covar_module=multi_task_kernel(3, 3).double())
    paths = model.paths(2)
    point = torch.tensor([[0.5, 0.5, number]], dtype=torch.float64)
    for call in (paths, model.posterior):
        with pytest.raises(ValueError, match="must hold numbers from 0 to 2, got"):
            call(point)


def test_data_whose_tasks_are_no_whole_numbers_are_refused() -> None:
    wider = torch.cat([X[:, :2], torch.rand_like(X[:, :1]), X[:, 2:]], dim=1)
    with pytest.raises(ValueError, match="a whole number, in column 2, got 0.* count it in `dim`"):
        PathwiseGP(wider, Y, covar_module=multi_task_kernel(3, 3))
    PathwiseGP(wider, Y, covar_module=multi_task_kernel(4, 3))


VARIANCES = torch.tensor([4e-4, 1e-2, 0.25], dtype=torch.float64)


def with_noise(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows of three tasks, each of which has a noise of its own."""
    task = torch.arange(n) % 3
    inputs = torch.cat([problems.uniform(n, 2, seed=seed), task.unsqueeze(1)], 1)
    values = torch.sin(6.0 * inputs[:, 0] + 0.5 * task) * (1.0 + inputs[:, 1])
    noise = VARIANCES[task].sqrt() * problems.normal(n, seed=seed)
    return inputs, (values + noise).unsqueeze(1)


def model_with_noise(n: int, **settings: Any) -> PathwiseGP:
    likelihood = HadamardGaussianLikelihood(3, task_feature_index=-1).double()
    likelihood.noise = VARIANCES
    kernel = multi_task_kernel(3, 3).double()
    return PathwiseGP(
        *with_noise(n, 0), covar_module=kernel, likelihood=likelihood, num_paths=1024, **settings
    )


@pytest.mark.parametrize("n", [400, pytest.param(4500, marks=pytest.mark.slow)])
def test_paths_have_the_noise_of_each_task(n: int) -> None:
    model = model_with_noise(n, solver=CG() if n == 400 else None)
    points = with_noise(30, 1)[0]
    law = model.posterior(points)
    noisy = model.posterior(points, observation_noise=True).variance - law.variance
    (train,) = model.train_inputs
    scale = model.outcome_transform.stdvs.squeeze()
    constant = model.mean_module(points).detach()
    y = model.train_targets - constant[0]
    noise = VARIANCES[train[:, 2].long()]
    mean, covariance = problems.exact_posterior(model.covar_module, train, y, noise, points)
    mean, variance = constant + mean, covariance.diagonal()
    found = (law.mean[:, 0] - model.outcome_transform.means.squeeze()) / scale
    # Solves end at an error of a tenth
    assert ((found - mean).abs() < 0.3 * variance.sqrt()).all()
    ratio = law.variance[:, 0] / scale.square() / variance
    assert (ratio - 1.0).abs().max() < 5.0 * (2.0 / 1024) ** 0.5
    torch.testing.assert_close(noisy[:, 0] / scale.square(), VARIANCES[points[:, 2].long()])


FITS: dict[str, dict[str, Any]] = {
    "exact": {},
    "sample": {},
    "subsets": {"num_subsets": 2, "subset_size": 200},
    "minibatch": {"batch_size": 100, "max_epochs": 100, "learning_rate": 0.1},
    "iterative": {},
}


@pytest.mark.parametrize("method", FITS)
def test_every_fit_learns_the_noise_of_each_task(method: str) -> None:
    model = model_with_noise(300)
    model.likelihood.noise = VARIANCES.mean()
    fit(model, method, **FITS[method])
    found = model.likelihood.noise.detach() * model.outcome_transform.stdvs.square()
    # A variance of 100 values has a standard error of a seventh; these differ by factors of 25
    assert (found.squeeze() / VARIANCES).log().abs().max() < 0.7


def test_a_fit_with_noise_of_tasks_is_no_worse_than_that_of_botorch() -> None:
    points, values = with_noise(600, 1)
    ours = model_with_noise(400)
    with torch.random.fork_rng(devices=[]):  # theirs starts from random numbers
        torch.random.set_rng_state(torch.Generator().manual_seed(0).get_state())
        theirs = MultiTaskGP(*with_noise(400, 0), task_feature=-1)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(theirs.likelihood, theirs))
    scores = []
    for model in (fit(ours), theirs):
        law = model.posterior(points, observation_noise=True)
        error = values - law.mean
        nll = 0.5 * (error.square() / law.variance + (2.0 * math.pi * law.variance).log())
        scores.append(torch.stack([error.square().mean().sqrt(), nll.mean()]).detach())
    assert (scores[0] - scores[1] < 0.01).all()


def test_further_values_have_the_noise_of_their_tasks() -> None:
    points, values = with_noise(42, 1)
    models = [model_with_noise(60, solver=solver) for solver in (Cholesky(), CG(tolerance=1e-8))]
    conditioned = [model.condition_on_observations(points[:9], values[:9]) for model in models]
    variances = [model.posterior(points[9:]).variance for model in conditioned]
    errors = 5.0 * (2.0 / 1024) ** 0.5
    torch.testing.assert_close(variances[1], variances[0], atol=0.0, rtol=errors)
    sampler = SobolQMCNormalSampler(torch.Size([2]))
    imagined = [model.fantasize(points[:9], sampler) for model in models]
    assert isinstance(imagined[1], FantasyGP)
    for part in imagined:
        found = part.posterior(points[9:]).variance[0]
        torch.testing.assert_close(found, variances[0], atol=0.0, rtol=errors)


def test_predictions_by_neighbours_have_the_noise_of_each_task() -> None:
    model = model_with_noise(60)
    points = with_noise(6, 1)[0]
    silent, noisy = (
        predict_by_neighbours(model, points, observation_noise=noise)[1] for noise in (False, True)
    )
    scale = model.outcome_transform.stdvs.squeeze().square()
    torch.testing.assert_close((noisy - silent)[:, 0] / scale, VARIANCES.repeat(2))
