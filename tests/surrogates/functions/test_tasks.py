"""Tasks: features of index kernels, and paths of each task."""

from pathlib import Path

import pytest
import torch
from gpytorch.kernels import IndexKernel, Kernel, RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from surrogates import CG, Cholesky, PathwiseGP, RandomFeatures, fit, multi_task_kernel
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


@pytest.mark.parametrize("kernel", ["of MultiTaskGP", "sum"])
def test_paths_are_of_the_posterior_of_each_task(kernel: str) -> None:
    made = KERNELS[kernel]()
    exact = PathwiseGP(X, Y, covar_module=made, solver=Cholesky())
    model = PathwiseGP(X, Y, covar_module=made, solver=CG(), num_features=8192)
    points = problems.uniform(6, 2, seed=2)
    points = torch.cat([points.repeat(3, 1), torch.arange(3.0).repeat_interleave(6)[:, None]], 1)
    with torch.no_grad():
        expected = exact.posterior(points)
        deviation = expected.variance[:, 0].sqrt()
        drawn = model.paths(1000)(points)
        noise = exact.noise.sqrt() * exact.outcome_transform.stdvs.squeeze()
    assert ((drawn.mean(0) - expected.mean[:, 0]).abs() < 0.2 * deviation + 0.01 * noise).all()
    assert ((drawn.std(0) / deviation - 1.0).abs() < 0.15).all()


def test_models_are_stored(tmp_path: Path) -> None:
    given = PathwiseGP(X, Y, covar_module=multi_task_kernel(3, 3, rank=2).double())
    given.covar_module.kernels[1].covar_factor = torch.rand(3, 2, dtype=torch.float64) + 0.1
    given.save(tmp_path / "model.safetensors")
    model = PathwiseGP.load(tmp_path / "model.safetensors")
    with torch.no_grad():
        assert torch.equal(model.posterior(X).mean, given.posterior(X).mean)
        assert torch.equal(model.posterior(X).variance, given.posterior(X).variance)
    likelihoods = [ExactMarginalLogLikelihood(gp.likelihood, gp.train()) for gp in (model, given)]
    values = [
        mll(mll.model(*mll.model.train_inputs), mll.model.train_targets) for mll in likelihoods
    ]
    assert torch.equal(*values)  # with the priors
    assert len(list(model.named_priors())) == len(list(given.named_priors())) == 3


def test_paths_are_differentiable_in_the_inputs_and_constant_in_the_task() -> None:
    model = PathwiseGP(X, Y, covar_module=KERNELS["product"](), solver=CG(), num_features=512)
    paths = model.paths(3, generator=torch.Generator().manual_seed(1))
    points = X[:4].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(paths(points).sum(), points)
    step = 1e-6
    for column in (0, 1):
        moved = X[:4].clone()
        moved[:, column] += step
        slope = (paths(moved).sum(0) - paths(X[:4]).sum(0)) / step
        torch.testing.assert_close(gradient[:, column], slope, atol=1e-3, rtol=1e-3)
    assert (gradient[:, 2] == 0.0).all()


def test_an_index_of_several_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="must look at one input where it is IndexKernel, got 2"):
        RandomFeatures.draw(tasks((1, 2)), 3, 8, generator=torch.Generator().manual_seed(0))


def test_paths_in_single_precision_are_of_the_posterior() -> None:
    kernel = KERNELS["product"]().float()
    exact = PathwiseGP(X.float(), Y.float(), covar_module=kernel, solver=Cholesky())
    model = PathwiseGP(X.float(), Y.float(), covar_module=kernel, solver=CG(), num_features=8192)
    with torch.no_grad():
        expected = exact.posterior(X[:9].float())
        drawn = model.paths(500)(X[:9].float())
        noise = exact.noise.sqrt() * exact.outcome_transform.stdvs.squeeze()
    gap = (drawn.mean(0) - expected.mean[:, 0]).abs()
    assert (gap < 0.25 * expected.variance[:, 0].sqrt() + 0.01 * noise).all()


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
