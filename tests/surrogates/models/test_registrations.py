"""BoTorch's pathwise sampling, on our models: its shapes, our functions, and bounded memory."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import ChainedOutcomeTransform, Log, Normalize, Standardize
from botorch.optim import optimize_acqf
from botorch.sampling.pathwise import (
    MatheronPath,
    draw_kernel_feature_paths,
    draw_matheron_paths,
    gaussian_update,
    get_matheron_path_model,
)
from botorch.utils.sampling import manual_seed, optimize_posterior_samples
from linear_operator import to_linear_operator
from linear_operator.operators import (
    ConstantDiagLinearOperator,
    DiagLinearOperator,
    ZeroLinearOperator,
)
from torch import Size

from surrogates import (
    CG,
    Cholesky,
    InducingPathwiseGP,
    PathwiseGP,
    PathwiseSamplePath,
    UnsolvedWarning,
    VariationalGP,
)
from surrogates.models.registrations import TiledLinearPath
from tests import problems
from tests.forked import run_fresh
from tests.pairs import each_pair
from tests.surrogates.models.toy_model import D, N, X, settings

pytestmark = pytest.mark.usefixtures("botorch_seed")

Y = 10 + 4 * torch.sin(5 * X.sum(1, keepdim=True))
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()


MODELS: dict[str, Callable[[], PathwiseGP]] = {
    "exact": lambda: PathwiseGP(X, Y, **settings(num_features=64, input_transform=Normalize(D))),
    "paths": lambda: PathwiseGP(
        X, Y, **settings(num_features=64, solver=CG(tolerance=1e-8, preconditioner=None))
    ),
    "inducing": lambda: InducingPathwiseGP(
        X, Y, inducing_points=X[:20], **settings(num_features=64)
    ),
    "variational": lambda: VariationalGP(X, Y, inducing_points=X[:20], **settings(num_features=64)),
}


def drawn(model: PathwiseGP, *sample_shape: int, seed: int = 0) -> Any:
    """Draw with BoTorch's source of randomness at ``seed``, and leave it as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.random.set_rng_state(problems.seeded(seed).get_state())
        return draw_matheron_paths(model, Size(sample_shape))


def stock(model: PathwiseGP) -> SingleTaskGP:
    return SingleTaskGP(X, Y, **settings(input_transform=getattr(model, "input_transform", None)))


@pytest.mark.parametrize("kind", ["paths", "inducing", "variational"])
def test_the_functions_are_those_of_the_model(kind: str) -> None:
    model = MODELS[kind]()
    path = drawn(model, 2, 3)
    assert isinstance(path, PathwiseSamplePath)
    with torch.random.fork_rng(devices=[]):
        torch.random.set_rng_state(problems.seeded().get_state())
        seed = int(torch.randint(2**62, ()))
    expected = model.paths(6, generator=problems.seeded(seed))
    points = problems.uniform(5, D)
    torch.testing.assert_close(path(points), expected(points).reshape(2, 3, 5))
    torch.testing.assert_close(
        path(problems.uniform(2, 3, 5, D)),
        expected.each(problems.uniform(6, 5, D)).reshape(2, 3, 5),
    )


@pytest.mark.parametrize("sample_shape", [(), (1,), (4,), (2, 3), (1, 3), (2, 1)], ids=str)
def test_shapes_broadcast_as_in_botorch(sample_shape: tuple[int, ...]) -> None:
    model = MODELS["exact"]()
    path = drawn(model, *sample_shape)  # type: ignore[arg-type]
    theirs = drawn(stock(model), *sample_shape)  # type: ignore[arg-type]
    batches: list[tuple[int, ...]] = [(), (1,), (4,), (5, 1), (5, 4), (3,), (2, 3)]
    batches += [(6, 2, 1), (6, 1, 3), (6, 2, 3)]
    for batch in batches:
        points = problems.uniform(*batch, 2, D)
        try:
            shape = theirs(points).shape
        except RuntimeError:
            with pytest.raises(RuntimeError):
                path(points)
            continue
        values = path(points)
        assert values.shape == shape
        # Every function at every point
        everywhere = path(points.reshape(-1, D)).reshape(-1, *batch, 2).movedim(0, -1)
        index = (
            torch.arange(max(1, Size(sample_shape).numel()))
            .reshape(sample_shape)
            .expand(torch.broadcast_shapes(sample_shape, batch))
        )
        expected = (
            everywhere.expand(*index.shape, 2, -1)
            .gather(-1, index[..., None, None].expand(*index.shape, 2, 1))
            .squeeze(-1)
        )
        torch.testing.assert_close(values, expected)


@pytest.mark.parametrize("shape", [(2, D), (3, 2, D), (4, 1, 2, D)], ids=str)
def test_gradients_are_those_of_the_functions(shape: tuple[int, ...]) -> None:
    path = drawn(MODELS["exact"](), 3)
    assert torch.autograd.gradcheck(path, (problems.uniform(*shape).requires_grad_(),))


def test_draws_come_from_botorchs_source_of_randomness() -> None:
    model = MODELS["exact"]()
    points = problems.uniform(5, D)
    first, again, other = (drawn(model, 2, seed=seed)(points) for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_thompson_sampling_maximises_a_path_for_each_point() -> None:
    acquisition = PathwiseThompsonSampling(MODELS["paths"]())
    batch = problems.uniform(4, 3, D).requires_grad_()
    values = acquisition(batch)
    assert values.shape == (4,)
    torch.testing.assert_close(acquisition(batch[:2]), values[:2])
    paths = acquisition.samples._path.paths
    torch.testing.assert_close(values, paths.each(batch.movedim(1, 0)).sum(0))
    (gradient,) = torch.autograd.grad(values.sum(), batch)
    assert gradient.abs().min() > 0
    candidates, best = optimize_acqf(
        acquisition, BOUNDS, q=3, num_restarts=2, raw_samples=16, options={"seed": 0, "maxiter": 20}
    )
    assert candidates.shape == (3, D)
    # Two starts do not find every path's best
    assert best >= paths(problems.uniform(100, D)).mean(1).sum()


@pytest.mark.parametrize("kind", ["exact", "inducing"])
def test_paths_are_maximised_by_botorch(kind: str) -> None:
    path_model = get_matheron_path_model(MODELS[kind](), sample_shape=Size([3]))
    grid = torch.cartesian_prod(torch.linspace(0, 1, 25), torch.linspace(0, 1, 25)).double()
    with torch.random.fork_rng(devices=[]):
        points, values = optimize_posterior_samples(
            path_model, BOUNDS, raw_samples=256, num_restarts=4
        )
    assert points.shape == (3, D) and values.shape == (3, 1)
    # A few starts may miss the best by a little
    assert (values.squeeze(1) >= path_model(grid).squeeze(-1).quantile(0.95, dim=1)).all()


def test_lists_of_models_have_lists_of_paths() -> None:
    models = ModelListGP(MODELS["exact"](), MODELS["paths"]())
    values = get_matheron_path_model(models, sample_shape=Size([3]))(problems.uniform(5, D))
    assert values.shape == (3, 5, 2)


def test_other_samplers_than_the_default_are_obeyed() -> None:
    sampler = partial(draw_kernel_feature_paths, num_features=32)
    path = draw_matheron_paths(MODELS["exact"](), Size([3]), prior_sampler=sampler)
    assert isinstance(path, MatheronPath) and path(problems.uniform(5, D)).shape == (3, 5)
    assert path["prior_paths"].feature_map.num_outputs == 32
    with pytest.raises(
        ValueError,
        match="`update_strategy` must be left to a InducingPathwiseGP itself, got BoTorch's",
    ):
        draw_matheron_paths(MODELS["inducing"](), Size([3]), prior_sampler=sampler)


BY_PARTS = {
    "prior_sampler": lambda model, sample_shape: draw_kernel_feature_paths(
        model, sample_shape=sample_shape, num_features=512
    )
}


@pytest.mark.parametrize(
    ("parts", "known_noise"),
    [({}, False), (BY_PARTS, True)],
    ids=["whole", "by parts, of known noise"],
)
def test_paths_have_the_law_of_botorchs(parts: dict[str, Any], known_noise: bool) -> None:
    # the features' own error averages out over draws
    num_draws = 30
    points = problems.uniform(5, D, seed=4)
    given = settings(input_transform=Normalize(D), num_features=512, solver=Cholesky())
    if known_noise:
        given |= {"train_Yvar": 0.02 + 0.3 * problems.uniform(N, 1, seed=3), "likelihood": None}
    model = PathwiseGP(X, Y, **given)
    exact = SingleTaskGP(
        X, Y, **{name: given[name] for name in given if name not in ("num_features", "solver")}
    )
    law = exact.posterior(points)
    mean = law.mean.squeeze(-1).detach()
    deviation = law.variance.squeeze(-1).sqrt().detach()
    for each in (model, exact):
        draws = [
            ((draw_matheron_paths(each, Size([30]), **parts)(points) - mean) / deviation).detach()
            for _ in range(num_draws)
        ]
        means = torch.stack([values.mean(0) for values in draws])
        covariances = torch.stack([values.T @ values / len(values) for values in draws])
        expected = law.distribution.covariance_matrix.detach() / torch.outer(deviation, deviation)
        for estimates, value in ((means, torch.zeros(5).double()), (covariances, expected)):
            error = estimates.std(0) / num_draws**0.5
            assert error.max() < 0.15
            assert ((estimates.mean(0) - value).abs() < 5 * error).all()


@pytest.mark.parametrize("kind", ["exact", "inducing"])
def test_prior_functions_have_the_law_of_the_prior_in_the_users_units(kind: str) -> None:
    num_paths = 2000
    points = problems.uniform(6, D, seed=4)
    model = MODELS[kind]()
    model.mean_module.constant = 0.5
    path = draw_kernel_feature_paths(model, Size([num_paths // 2, 2]), num_features=4096)
    assert isinstance(path, TiledLinearPath)
    values = path(points).reshape(num_paths, 6)
    inputs = model.transform_inputs(points)
    offset = model.outcome_transform.means.item()
    scale = model.outcome_transform.stdvs.item()
    deviation = scale * model.covar_module.outputscale.item() ** 0.5
    assert ((values.mean(0) - offset - 0.5 * scale).abs() < 5 * deviation / num_paths**0.5).all()
    covariance = scale**2 * model.covar_module(inputs).to_dense()
    torch.testing.assert_close(
        values.T.cov() / deviation**2,
        covariance / deviation**2,
        rtol=0,
        atol=5 * (2 / num_paths) ** 0.5 + 0.05,
    )
    few = draw_kernel_feature_paths(model, Size([3]))
    assert few.feature_map.num_outputs == model.num_features
    features = few.feature_map(inputs)
    # Before the transforms
    torch.testing.assert_close(
        few.forward(inputs), (features @ few.weight.unsqueeze(-1)).squeeze(-1) + 0.5
    )
    assert torch.autograd.gradcheck(few, (problems.uniform(3, 2, D).requires_grad_(),))


UPDATES: dict[str, dict[str, Any]] = {
    "model": {},
    "targets": {"target_values": problems.normal(N, seed=7)},
    "batch of targets": {"target_values": problems.normal(2, N, seed=7)},
    "noise": {"noise_covariance": DiagLinearOperator(0.1 + problems.uniform(N, seed=8))},
    "constant noise": {
        "noise_covariance": ConstantDiagLinearOperator(torch.tensor([0.2]).double(), N)
    },
    "no noise": {"noise_covariance": ZeroLinearOperator(N, N, dtype=torch.float64)},
    "correlated noise": {
        "noise_covariance": to_linear_operator(
            0.1 * torch.ones(N, N).double() + 0.2 * torch.eye(N).double()
        )
    },
    "points": {
        "points": problems.uniform(N, D, seed=9),
        "target_values": problems.normal(N, seed=7),
        "noise_covariance": DiagLinearOperator(0.1 + problems.uniform(N, seed=8)),
    },
}


@pytest.mark.parametrize("given", UPDATES)
def test_an_update_of_given_values_is_botorchs(given: str) -> None:
    model = PathwiseGP(
        X,
        Y,
        **settings(
            solver=CG(tolerance=1e-12, preconditioner=None, max_epochs=2000),
            input_transform=Normalize(D),
        ),
    )
    values = problems.normal(3, 2, N, seed=5)
    results = []
    for each in (model, stock(model)):
        each.eval()
        with manual_seed(3):  # both draw the noise by torch.randn_like
            path = gaussian_update(each, values, **UPDATES[given])
        points = problems.uniform(4, D, seed=6).requires_grad_()
        own_points = problems.uniform(5, 3, 2, 4, D, seed=6)
        at_points = path(points)
        results.append(
            (
                path.weight,
                at_points,
                path(own_points),
                *torch.autograd.grad(at_points.square().sum(), points),
            )
        )
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("given", ["model", "batch of targets"])
def test_an_update_ends_where_the_posterior_is_right_and_says_how_right(given: str) -> None:
    def update(**solver: Any) -> Any:
        model = PathwiseGP(X, Y, **settings(solver=CG(preconditioner=None, **solver)))
        with manual_seed(3):
            prior = draw_kernel_feature_paths(model, Size([64]))
            values = prior(X) if given == "model" else prior(X).unsqueeze(1)
            path = gaussian_update(model, values, **UPDATES[given])
        return model.solution, path(problems.uniform(200, D, seed=6))

    with pytest.warns(UnsolvedWarning, match="the mean may be off by .* posterior standard"):
        cut, _ = update(max_epochs=2)
    assert cut.error.max() > 0.1
    (solution, found), (_, exact) = update(), update(tolerance=1e-12, max_epochs=2000)
    assert bool(solution.converged.all())
    assert solution.error.max() <= 0.1
    deviation = exact.std(0, keepdim=True)
    assert ((found - exact) / deviation).square().mean().sqrt() <= 0.2


def test_parts_do_not_follow_the_model_when_it_changes() -> None:
    model = MODELS["paths"]()
    points = problems.uniform(5, D)
    paths = [
        draw_kernel_feature_paths(model, Size([3])),
        gaussian_update(model, problems.normal(3, N)),
        drawn(model, 3),
    ]
    before = [path(points) for path in paths]
    model.covar_module.base_kernel.lengthscale = 0.1
    model.mean_module.constant = 3.0
    model.set_train_data(X.flip(0), model.train_targets)
    assert all(map(torch.equal, before, (path(points) for path in paths)))


TIGHT = {"solver": CG(tolerance=1e-8, preconditioner=None), "num_features": 64}
YS = torch.cat([Y, -0.3 * Y + X[:, :1]], dim=1)


@each_pair(sample_shape=[(), (2, 6)], sizes=[((), 2), ((4,), 1), ((4,), 2)])
def test_several_outputs_and_data_sets_have_botorchs_shapes(
    sample_shape: tuple[int, ...], sizes: tuple[tuple[int, ...], int]
) -> None:
    batch, outputs = sizes
    data = (X.expand(*batch, N, D), YS[:, :outputs].expand(*batch, N, outputs))
    ours, theirs = (
        get_matheron_path_model(model, sample_shape=Size(sample_shape))
        for model in (PathwiseGP(*data, **TIGHT), SingleTaskGP(*data))
    )
    for shape in (
        (5, D),
        (3, *sample_shape, *([1] * len(batch)), 5, D),
        (3, *sample_shape, *batch, 5, D),
    ):
        try:
            expected = theirs(problems.uniform(*shape)).shape
        except RuntimeError:
            continue  # BoTorch's paths do not broadcast these
        assert ours(problems.uniform(*shape)).shape == expected


@pytest.mark.parametrize(
    "transform",
    [{}, {"outcome_transform": ChainedOutcomeTransform(log=Log(), scaled=Standardize(m=2))}],
    ids=["", "log"],
)
def test_the_functions_of_several_outputs_are_those_of_the_model(transform: dict[str, Any]) -> None:
    model = PathwiseGP(X, YS - YS.min() + 1, input_transform=Normalize(D), **TIGHT, **transform)
    path = drawn(model, 3)
    with torch.random.fork_rng(devices=[]):
        torch.random.set_rng_state(problems.seeded().get_state())
        expected = model.paths(3, generator=problems.seeded(int(torch.randint(2**62, ()))))
    points = problems.uniform(5, D)
    torch.testing.assert_close(path(points), expected(points).mT)
    own_points = problems.uniform(3, 5, D)
    torch.testing.assert_close(path(own_points.unsqueeze(1)), expected.each(own_points).mT)


def test_lists_of_models_are_updated_one_by_one() -> None:
    models = ModelListGP(MODELS["exact"](), MODELS["paths"]())
    path = draw_matheron_paths(
        models, Size([3]), prior_sampler=partial(draw_kernel_feature_paths, num_features=32)
    )
    assert [values.shape for values in path(problems.uniform(5, D))] == [(3, 5), (3, 5)]


def test_an_update_that_does_not_fit_in_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surrogates.memory.available", lambda device: 1000)
    with pytest.raises(
        MemoryError, match="An update of 180 sample values needs .* Draw fewer paths at a time."
    ):
        gaussian_update(MODELS["paths"](), problems.normal(3, N))


MANY_PATHS_OF_MANY_POINTS = """
import resource
import torch
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from surrogates import CG, PathwiseGP

generator = torch.Generator().manual_seed(0)
X = torch.rand(5000, 10, generator=generator).double()
Y = torch.sin(3.0 * X).sum(1, keepdim=True)
model = PathwiseGP(X, Y, solver=CG(tolerance=0.5, max_epochs=3))
acquisition = PathwiseThompsonSampling(model)
small = torch.rand(1, 100, 10, generator=generator).double()
acquisition(small)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
batch = torch.rand(20, 100, 10, generator=generator).double().requires_grad_()
acquisition(batch).sum().backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.slow  # a process of its own, and products of a 5000 × 5000 kernel matrix
def test_memory_does_not_grow_with_paths_times_data(tmp_path: Path) -> None:
    run = run_fresh(MANY_PATHS_OF_MANY_POINTS, tmp_path)
    assert run.returncode == 0, run.stderr
    # The kernel between the 2000 points and the data alone would take 80 MB, BoTorch's copies of X
    # 8 GB
    assert int(run.stdout) < 2**26
