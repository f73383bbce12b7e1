"""Fantasies of paths: each is the model of all data, and BoTorch's look-ahead acquisition functions
use them.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.acquisition import qKnowledgeGradient
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Log, Normalize, Standardize
from botorch.models.utils.assorted import fantasize as fantasize_flag
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import MaternKernel
from gpytorch.means import ZeroMean
from torch import Tensor

from surrogates import (
    CG,
    Auto,
    Cholesky,
    FantasyGP,
    InducingPathwiseGP,
    Nystrom,
    PathwiseGP,
    SketchAndProject,
    Solution,
    Solver,
    VariationalGP,
    gaussian_likelihood,
)
from tests import problems

pytestmark = pytest.mark.filterwarnings("ignore:Data .* is not standardized")

N = 24
D = 2
K = 2
F = 4
X = problems.uniform(N, D)
TIGHT = CG(tolerance=1e-12, preconditioner=None, max_epochs=2000)
INDUCING = problems.uniform(8, D, seed=1)
BOUNDS = torch.tensor([[0.0, -0.5], [1.0, 1.5]]).double()


def targets(X: Tensor, m: int, seed: int = 2) -> Tensor:
    waves = torch.sin(3.0 * X.sum(-1, keepdim=True) + torch.arange(m)) * torch.arange(1, m + 1)
    return 4.0 + waves + 0.2 * problems.normal(*X.shape[:-1], m, seed=seed)


def models(m: int = 1, known_noise: bool = False, **paths: Any) -> tuple[PathwiseGP, SingleTaskGP]:
    """Return a model of paths and the exact one."""
    noise = 0.1 + problems.uniform(N, m, seed=3) if known_noise else None
    own = {"solver": TIGHT, "num_paths": 16, "num_features": 32, **paths}
    transforms = [Normalize(D, bounds=BOUNDS) for _ in range(2)]
    return (
        PathwiseGP(X, targets(X, m), noise, input_transform=transforms[0], **own),
        SingleTaskGP(X, targets(X, m), noise, input_transform=transforms[1]),
    )


def sampler(*shape: int) -> SobolQMCNormalSampler:
    return SobolQMCNormalSampler(torch.Size(shape), seed=0)


def conditioned(model: Any, new: Tensor, values: Tensor, noise: Tensor | None) -> Any:
    model.posterior(X)  # GPyTorch needs its caches
    with fantasize_flag():  # or BoTorch warns that X and Y differ in shape
        return model.condition_on_observations(
            new, values, **({} if noise is None else {"noise": noise})
        )


@pytest.mark.parametrize(
    ("known_noise", "batch", "m"),
    [(False, (), 1), (False, (3,), 2), (True, (), 2), (True, (3,), 1)],
)
def test_fantasies_equal_models_of_appended_data(
    known_noise: bool, batch: tuple[int, ...], m: int
) -> None:
    num_paths = 1024
    new = problems.uniform(*batch, K, D, seed=5)
    values = targets(new.expand(F, *batch, K, D), m, seed=6)
    noise = 0.1 + problems.uniform(*batch, K, m, seed=8) if known_noise else None
    ours, exact = (
        conditioned(model, new, values, noise)
        for model in models(m, known_noise, num_paths=num_paths, num_features=256)
    )
    assert isinstance(ours, FantasyGP) and (ours.batch_shape, ours.num_outputs) == (
        exact.batch_shape,
        m,
    )
    theirs = exact.train_inputs[0]
    torch.testing.assert_close(ours.train_targets, exact.train_targets)
    torch.testing.assert_close(ours.train_inputs[0], theirs.expand(*ours.train_inputs[0].shape))
    assert ours.train_inputs[0].shape[:-1] == ours.train_targets.shape
    for shape in ((3,), (*batch, 3), (F, *batch, 3)):
        Z = problems.uniform(*shape, D, seed=9)
        first = ours.posterior(Z)
        second = exact.posterior(Z)
        torch.testing.assert_close(first.mean, second.mean, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(
            first.variance, second.variance, rtol=5 * (2 / num_paths) ** 0.5, atol=0
        )
        assert sampler(5)(first).shape == (5, *second.mean.shape)
        noisy = [
            posterior.posterior(Z, observation_noise=True).variance for posterior in (ours, exact)
        ]
        torch.testing.assert_close(
            noisy[0] - first.variance, noisy[1] - second.variance, rtol=1e-6, atol=1e-8
        )


def test_the_paths_of_a_fantasy_have_the_covariance_of_the_paths_of_a_model_of_all_data() -> None:
    new = problems.uniform(K, D, seed=5)
    Z = torch.cat([new, problems.uniform(1, D, seed=9)])
    model, _ = models(num_paths=4096, num_features=256)
    model.likelihood.noise = 0.5  # of the size of the variance at the new points
    values = targets(new, 1, seed=6)
    fantasy = model.condition_on_observations(new, values.expand(F, K, 1))
    whole = model.condition_on_observations(new, values)
    covariances = [
        each.posterior(Z).distribution.covariance_matrix.detach() for each in (fantasy, whole)
    ]
    variance = covariances[1].diagonal()
    error = ((torch.outer(variance, variance) + covariances[1].square()) / 4096).sqrt()
    assert ((covariances[0] - covariances[1]).abs() < 5 * error).all()


@pytest.mark.parametrize("m", [1, 2])
def test_fantasies_are_fantasised_from_in_turn(m: int) -> None:
    first = problems.uniform(3, K, D, seed=5)
    second = problems.uniform(F, 3, 1, D, seed=6)
    Z = problems.uniform(4, D, seed=9)
    results = []
    for model in models(m):
        once = conditioned(model, first, targets(first.expand(F, 3, K, D), m), None)
        twice = conditioned(once, second, targets(second.expand(5, F, 3, 1, D), m), None)
        results.append(twice.posterior(Z).mean)
    assert results[0].shape == (5, F, 3, 4, m)
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)


def test_any_number_of_fantasies_takes_one_solve_of_a_column_a_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, _ = models()
    model.posterior(X)
    columns = []
    solve = CG.solve

    def counted(self: CG, system: Any, rhs: Tensor, **kwargs: Any) -> Solution:
        columns.append(rhs.shape[1])
        return solve(self, system, rhs, **kwargs)

    monkeypatch.setattr(CG, "solve", counted)
    new = problems.uniform(3, K, D, seed=5)
    model.fantasize(new, sampler(64)).posterior(problems.uniform(64, 3, 1, D))
    assert columns == [3 * K]


def test_the_posterior_is_differentiable_in_the_points_of_the_fantasies() -> None:
    model, _ = models(num_paths=3)
    new = problems.uniform(2, K, D, seed=5).requires_grad_()
    Z = problems.uniform(F, 2, 3, D, seed=9).requires_grad_()
    values = targets(new.detach(), 1).expand(F, 2, K, 1)

    def law(new: Tensor, Z: Tensor) -> tuple[Tensor, Tensor]:
        posterior = model.condition_on_observations(new, values).posterior(Z)
        return posterior.mean, posterior.distribution.covariance_matrix

    assert torch.autograd.gradcheck(law, (new, Z), eps=1e-5, atol=1e-4, fast_mode=True)


def value(acquisition: Callable[[Any], Any], model: Any, inputs: Tensor) -> tuple[Tensor, Tensor]:
    inputs = inputs.clone().requires_grad_()
    values = acquisition(model)(inputs)
    (gradient,) = torch.autograd.grad(values.sum(), inputs)
    return values.detach(), gradient


def test_knowledge_gradient_is_that_of_single_task_gp_within_monte_carlo_error() -> None:
    inputs = problems.uniform(2, 1 + F, D, seed=8)
    ours, exact = (
        value(
            lambda model: qKnowledgeGradient(model, num_fantasies=F, sampler=sampler(F)),
            model,
            inputs,
        )
        for model in models(num_paths=4096, num_features=256)
    )
    torch.testing.assert_close(ours[0], exact[0], rtol=0, atol=0.02)
    torch.testing.assert_close(ours[1], exact[1], rtol=0, atol=0.1)
    assert exact[1].abs().max() > 0.5


def test_a_fantasy_stays_what_it_was_when_its_model_changes() -> None:
    model, _ = models()
    fantasy = model.fantasize(problems.uniform(K, D, seed=5), sampler(F))
    Z = problems.uniform(3, D, seed=9)
    before = fantasy.posterior(Z).mean.detach()
    model.covar_module.lengthscale = 0.1
    model.posterior(Z)
    assert torch.equal(fantasy.posterior(Z).mean, before)


@pytest.mark.parametrize("m", [1, 2])
def test_fantasies_of_a_batch_of_data_sets_are_those_of_each(m: int) -> None:
    inputs = problems.uniform(3, N, D, seed=4)
    new = problems.uniform(3, K, D, seed=5)
    values = targets(new.expand(F, 3, K, D), m, seed=6)
    noise = 0.1 + problems.uniform(3, N, m, seed=3)
    own = {"solver": TIGHT, "num_paths": 1024, "num_features": 256}
    models = (
        PathwiseGP(inputs, targets(inputs, m), noise, **own),
        SingleTaskGP(inputs, targets(inputs, m), noise),
    )
    known = 0.1 + problems.uniform(3, K, m, seed=8)
    ours, exact = (conditioned(model, new, values, known) for model in models)
    assert ours.batch_shape == (F, 3) and ours.num_outputs == m
    for shape in ((4,), (3, 4), (F, 3, 4)):
        Z = problems.uniform(*shape, D, seed=9)
        first, second = (model.posterior(Z, observation_noise=True) for model in (ours, exact))
        torch.testing.assert_close(first.mean, second.mean, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(
            first.variance, second.variance, rtol=5 * (2 / 1024) ** 0.5, atol=0
        )
    again = ours.condition_on_observations(new, values, known)
    expected = exact.condition_on_observations(
        new.expand(F, 3, K, D), values, noise=known.expand_as(values)
    )
    torch.testing.assert_close(
        again.posterior(Z).mean, expected.posterior(Z).mean, rtol=1e-6, atol=1e-6
    )
    with pytest.raises(
        ValueError,
        match=(
            r"`Y` must have a batch shape that the one of the model, \(3,\), broadcasts to, got"
            r" \(4,\)"
        ),
    ):
        models[0].condition_on_observations(new[0], values[:, 0], known[0])
    with pytest.raises(
        ValueError,
        match=(
            r"`X` must have a batch shape that broadcasts with that of the model, \(4, 3\), got"
            r" \(2,\)"
        ),
    ):
        ours.posterior(problems.uniform(2, 4, D))


KINDS: dict[str, Callable[[Tensor, Tensor], PathwiseGP]] = {
    "inducing": lambda X, Y: InducingPathwiseGP(
        X, Y, inducing_points=INDUCING, outcome_transform=None, num_paths=4096, num_features=64
    ),
    "variational": lambda X, Y: VariationalGP(
        X, Y, inducing_points=INDUCING, outcome_transform=None, num_paths=4096, num_features=64
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_fantasies_of_models_of_inducing_points_equal_models_of_appended_data(kind: str) -> None:
    # A cluster, of which the inducing points explain little
    new = 0.3 * problems.uniform(6, D, seed=5)
    Z = torch.cat([new[:2], new[:2] + 0.1])
    values = targets(new, 1, seed=6)
    model = KINDS[kind](X, targets(X, 1))
    model.covar_module.lengthscale = 0.2
    model.likelihood.noise = 0.05
    fantasy = model.condition_on_observations(new, values.expand(F, 6, 1))
    whole = model.condition_on_observations(new, values)
    assert isinstance(fantasy, FantasyGP)
    before, ours, expected = (each.posterior(Z) for each in (model, fantasy, whole))
    assert (before.variance / expected.variance).max() > 5
    torch.testing.assert_close(ours.mean, expected.mean.expand(F, 4, 1), rtol=1e-6, atol=1e-6)
    covariance = expected.distribution.covariance_matrix
    variance = covariance.diagonal()
    error = ((torch.outer(variance, variance) + covariance.square()) / 4096).sqrt()
    assert ((ours.distribution.covariance_matrix - covariance).abs() < 5 * error).all()


def test_fantasies_of_inducing_points_are_differentiable_in_their_points() -> None:
    model = KINDS["inducing"](X, targets(X, 1))
    new = problems.uniform(2, K, D, seed=5).requires_grad_()
    Z = problems.uniform(F, 2, 3, D, seed=9).requires_grad_()
    values = targets(new.detach(), 1).expand(F, 2, K, 1)

    def mean(new: Tensor, Z: Tensor) -> Tensor:
        return model.condition_on_observations(new, values).posterior(Z).mean

    assert torch.autograd.gradcheck(mean, (new, Z), eps=1e-5, atol=1e-4, fast_mode=True)
    empty = model.fantasize(X[:0], sampler(F))
    torch.testing.assert_close(
        empty.posterior(Z[0, 0]).mean, model.posterior(Z[0, 0]).mean.expand(F, 3, 1)
    )


@pytest.mark.parametrize("transform", [lambda: Standardize(m=1), Log], ids=["standardize", "log"])
def test_lists_of_models_of_paths_are_conditioned_as_lists_of_exact_models(
    transform: Callable[[], Any],
) -> None:
    new = [problems.uniform(3, K, D, seed=5 + t) for t in range(2)]
    Z = problems.uniform(3, 4, D, seed=9)
    values = torch.cat([targets(points, 1) for points in new], -1)
    medians = []
    own = {"solver": TIGHT, "num_paths": 16, "num_features": 32}
    for build in (lambda *data, **settings: PathwiseGP(*data, **settings, **own), SingleTaskGP):
        models = ModelListGP(
            *[build(X, targets(X, 1, seed=t), outcome_transform=transform()) for t in range(2)]
        )
        for _ in range(2):  # and once more
            models.posterior(Z)
            models = models.condition_on_observations(new, values)
        assert isinstance(models, ModelListGP) and models.posterior(Z) is not None
        medians.append([])
        for part in (model.posterior(Z) for model in models.models):
            medians[-1].append(
                part.rsample_from_base_samples(
                    torch.Size([1]), torch.zeros(1, *part.base_sample_shape).double()
                )
            )
    torch.testing.assert_close(*medians, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("m", [1, 2])
def test_fantasy_models_take_transformed_inputs_and_standardised_targets_with_the_points_last(
    m: int,
) -> None:
    model, _ = models(m)
    points = problems.uniform(F, K, D, seed=5)
    Z = problems.uniform(3, D, seed=9)
    values = targets(points, m)
    inputs = model.eval().transform_inputs(points)
    standardised = model.outcome_transform(values)[0]
    if m > 1:
        laid_out = inputs.unsqueeze(-3).expand(F, m, K, D), standardised.mT
        with pytest.raises(ValueError, match="`inputs` must be the same for every output"):
            model.get_fantasy_model(problems.uniform(F, m, K, D), standardised.mT)
    else:
        laid_out = inputs, standardised.squeeze(-1)
    expected = model.condition_on_observations(points, values).posterior(Z).mean
    torch.testing.assert_close(model.get_fantasy_model(*laid_out).posterior(Z).mean, expected)


@pytest.mark.parametrize(
    ("solver", "n", "noise", "dtype"),
    [
        (CG(), 800, 1e-5, torch.float64),
        (CG(), 500, 1e-4, torch.float32),
        (SketchAndProject.asap(), 500, 1e-4, torch.float64),
        pytest.param(None, 4200, 1e-4, torch.float64, marks=pytest.mark.slow),
        pytest.param(Auto(direct=False), 4200, 1e-2, torch.float64, marks=pytest.mark.slow),
        pytest.param(Auto(), 4200, 1e-5, torch.float32, marks=pytest.mark.slow),
    ],
)
def test_fantasies_are_as_accurate_as_the_paths(
    solver: Solver | None, n: int, noise: float, dtype: torch.dtype
) -> None:
    inputs = problems.uniform(n, D, dtype=dtype)
    y = torch.sin(5.0 * inputs.sum(1, keepdim=True))
    y += noise**0.5 * problems.normal(n, 1, seed=2, dtype=dtype)
    model = PathwiseGP(
        inputs,
        y,
        covar_module=problems.with_lengthscale(MaternKernel(2.5), 0.2).to(dtype),
        mean_module=ZeroMean(),
        likelihood=gaussian_likelihood(noise).to(dtype),
        outcome_transform=None,
        solver=solver,
    )
    new = problems.uniform(3, K, D, seed=5, dtype=dtype)
    Z = torch.cat([new[1] + 0.02, problems.uniform(8, D, seed=9, dtype=dtype)])
    before = model.posterior(new)
    values = (before.mean + 3.0 * before.variance.sqrt()).detach()

    def exact(Q: Tensor) -> tuple[Tensor, Tensor]:
        data = torch.cat([inputs.double(), Q]), torch.cat([y, values[1]]).squeeze(1)
        return problems.exact_posterior(model.covar_module, *data, model.likelihood.noise, Z)

    Q = new[1].double()
    mean, C = exact(Q)
    std = C.diagonal().sqrt()
    found = model.condition_on_observations(new.requires_grad_(), values).posterior(Z).distribution
    covariance = found.covariance_matrix[1]
    (slopes,) = torch.autograd.grad(found.mean[1].sum(), new)
    step = problems.normal(K, D, seed=6)
    slope = (exact(Q + 1e-6 * step)[0] - exact(Q - 1e-6 * step)[0]).sum() / 2e-6
    assert ((found.mean[1] - mean) / std).abs().max() < 0.3
    assert ((covariance - C) / torch.outer(std, std)).abs().max() < 0.4
    assert (slopes[1] * step).sum().item() == pytest.approx(slope.item(), rel=0.05)


@pytest.mark.parametrize(
    "solver", [Cholesky(), CG(Nystrom(10)), Auto()], ids=["cholesky", "cg", "auto"]
)
def test_what_depends_on_the_data_alone_is_computed_once(
    solver: Solver, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = models(solver=solver)
    monkeypatch.setattr(PathwiseGP, "_is_exact", False)
    new = problems.uniform(K, D, seed=5)
    Z = problems.uniform(3, D, seed=9)
    model.fantasize(new, sampler(F))
    prepared: list[str] = []
    for kind, name in ((Nystrom, "__call__"), (Auto, "choose")):
        monkeypatch.setattr(kind, name, lambda *args, **kwargs: prepared.append("again"))
    monkeypatch.setattr(
        "surrogates.solvers.cholesky.factorise", lambda *args: prepared.append("again")
    )
    fantasy = model.fantasize(new.requires_grad_(), sampler(F))
    fantasy.posterior(Z).mean.sum().backward()
    assert not prepared and new.grad.abs().max() > 0
    model.covar_module.lengthscale = 0.1  # and not for other hyperparameters
    with pytest.raises((TypeError, AttributeError)):
        model.fantasize(new, sampler(F))
    assert prepared


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"X": X[:K, :1]}, ValueError, r"`X` must have shape \(..., k, 2\), got \(2, 1\)"),
        (
            {"Y": torch.zeros(F, 3, 1).double()},
            ValueError,
            r"`Y` must have a shape that ends in \(2, 1\), got \(4, 3, 1\)",
        ),
        (
            {"noise": torch.ones(3, 1).double()},
            ValueError,
            r"`noise` must be variances of shape \(2, 1\), got \(3, 1\)",
        ),
    ],
)
def test_bad_fantasies_are_refused_by_name(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    model, _ = models(known_noise=True)
    good = {"X": X[:K], "Y": torch.zeros(F, K, 1).double(), "noise": torch.ones(K, 1).double()}
    with pytest.raises(error, match=message):
        model.condition_on_observations(**{**good, **changes})


@pytest.mark.filterwarnings(
    "ignore::surrogates.solvers.solver.UnsolvedWarning",  # float32
    "ignore:A not p.d.",  # GPyTorch says so whenever it adds jitter
)
@pytest.mark.parametrize("scale", [1e-12, 1e6, 1e12])
@pytest.mark.parametrize("solver", [Cholesky(), CG(tolerance=1e-8)], ids=["exact", "paths"])
def test_conditioning_is_the_same_at_any_output_scale(solver: Solver, scale: float) -> None:
    X = problems.uniform(30, 2)
    Q = torch.cat([X[:4], X[:4], problems.uniform(4, 2, seed=5)])  # some known, some twice

    def conditioned(scale: float, noise: float, dtype: torch.dtype = torch.float64) -> Tensor:
        points, new = X.to(dtype), Q.to(dtype)
        model = PathwiseGP(
            points,
            scale**0.5 * torch.sin(4.0 * points.sum(1, keepdim=True)),
            covar_module=problems.scaled(problems.matern(2.5, 0.8), scale).to(points),
            likelihood=gaussian_likelihood(noise * scale),
            outcome_transform=None,
            solver=solver,
            num_paths=16,
        ).to(dtype)
        model.posterior(new)
        values = scale**0.5 * torch.sin(4.0 * new.sum(1, keepdim=True))
        return model.condition_on_observations(new, values).posterior(new).mean / scale**0.5

    with torch.no_grad():
        torch.testing.assert_close(
            conditioned(scale, 1e-4), conditioned(1.0, 1e-4), rtol=1e-4, atol=1e-4
        )
        for noise in (1e-8, 1e-8 / scale):  # of the output scale, and beside it
            for dtype in (torch.float32, torch.float64):
                assert conditioned(scale, noise, dtype).isfinite().all()
