"""What BoTorch asks of a model, of every model class and mode: outputs, batches, transforms,
copies. Exact answers are SingleTaskGP's.
"""

import math
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from inspect import getfullargspec, signature
from typing import Any

import pytest
import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.acquisition.multi_objective import qLogExpectedHypervolumeImprovement
from botorch.acquisition.objective import (
    ExpectationPosteriorTransform,
    GenericMCObjective,
    ScalarizedPosteriorTransform,
)
from botorch.models import SingleTaskGP
from botorch.models.transforms import (
    Bilog,
    ChainedOutcomeTransform,
    Log,
    Normalize,
    Power,
    Standardize,
)
from botorch.sampling import IIDNormalSampler, SobolQMCNormalSampler
from botorch.sampling.get_sampler import get_sampler
from botorch.utils.multi_objective.box_decompositions.non_dominated import (
    FastNondominatedPartitioning,
)
from gpytorch.constraints import GreaterThan, Interval, LessThan
from gpytorch.kernels import (
    AdditiveKernel,
    Kernel,
    PeriodicKernel,
    RBFKernel,
    RFFKernel,
    ScaleKernel,
)
from gpytorch.means import LinearMean, Mean
from torch import Tensor

from surrogates import (
    CG,
    BatchPaths,
    Cholesky,
    FiniteFeatureGP,
    InducingPathwiseGP,
    PathwiseGP,
    VariationalGP,
    fit_variational,
)
from tests import problems
from tests.pairs import each_pair
from tests.surrogates.models.toy_model import law

# Where a test has no transform, or another
pytestmark = pytest.mark.filterwarnings("ignore:Data .* is not standardized")

N = 24
D = 2
TIGHT = CG(tolerance=1e-11, preconditioner=None, max_epochs=2000)
SMALL = {"num_paths": 16, "num_features": 32}

Model = SingleTaskGP
MADE_OF_PATHS = ("paths", "inducing")
MODES: dict[str, Callable[..., PathwiseGP]] = {
    "exact": lambda X, Y, **settings: PathwiseGP(X, Y, solver=Cholesky(), **{**SMALL, **settings}),
    "paths": lambda X, Y, **settings: PathwiseGP(X, Y, solver=TIGHT, **{**SMALL, **settings}),
    "inducing": lambda X, Y, **settings: InducingPathwiseGP(
        X, Y, **{**SMALL, "inducing_points": X, **settings}
    ),
    "variational": lambda X, Y, **settings: VariationalGP(
        X, Y, **{**SMALL, "inducing_points": X, **settings}
    ),
}
CASES = [
    (mode, batch, m)
    for mode in MODES
    for batch in ((), (3,))
    for m in (1, 2)
    if not batch or mode in ("exact", "paths")
]
each_case = pytest.mark.parametrize(
    ("mode", "batch", "m"),
    CASES,
    ids=[f"{mode}-batch{list(batch)}-m{m}" for mode, batch, m in CASES],
)
SHAPES: list[tuple[tuple[int, ...], int]] = [((), 1), ((), 2), ((3,), 1), ((3,), 2), ((2, 3), 2)]
each_shape = pytest.mark.parametrize(("batch", "m"), SHAPES)
TRANSFORMS: dict[str, Callable[[tuple[int, ...], int], dict[str, Any]]] = {
    "defaults": lambda batch, m: {},
    "none": lambda batch, m: {"outcome_transform": None},
    "normalize": lambda batch, m: {
        "input_transform": Normalize(D, bounds=torch.tensor([[0.0, -0.5], [1.0, 1.5]]).double())
    },
    "power": lambda batch, m: {"outcome_transform": Power(power=0.5)},
    "bilog": lambda batch, m: {"outcome_transform": Bilog()},
    "chain": lambda batch, m: {
        "outcome_transform": ChainedOutcomeTransform(
            log=Log(), standardize=Standardize(m=m, batch_shape=torch.Size(batch))
        )
    },
}


def data(batch: tuple[int, ...] = (), m: int = 1) -> tuple[Tensor, Tensor]:
    X = problems.uniform(*batch, N, D)
    waves = torch.sin(3.0 * X.sum(-1, keepdim=True) + torch.arange(m)) * torch.arange(1, m + 1)
    return X, 4.0 + waves + 0.2 * problems.normal(*batch, N, m, seed=2)


def points(*shape: int, seed: int = 7) -> Tensor:
    return problems.uniform(*shape, D, seed=seed)


def covariances(model: Model, X: Tensor) -> Tensor:
    """Return the joint covariances (..., m, q, q) of every output,
    however the posterior orders its entries.
    """
    chosen = [
        ScalarizedPosteriorTransform(weights) for weights in torch.eye(model.num_outputs).double()
    ]
    with torch.no_grad():
        return torch.stack(
            [
                model.posterior(X, posterior_transform=each).distribution.covariance_matrix
                for each in chosen
            ],
            -3,
        )


@each_case
def test_posteriors_and_samples_have_the_shapes_of_botorch(
    mode: str, batch: tuple[int, ...], m: int
) -> None:
    model = MODES[mode](*data(batch, m))
    exact = SingleTaskGP(*data(batch, m))
    assert (model.batch_shape, model.num_outputs) == (exact.batch_shape, m)
    for shape in ((1,), (4,), (*batch, 4), (2, *batch, 4), (2, *[1 for _ in batch], 4)):
        ours = model.posterior(points(*shape))
        theirs = exact.posterior(points(*shape))
        assert ours.mean.shape == ours.variance.shape == theirs.mean.shape
        assert ours.rsample(torch.Size([5])).shape == (5, *theirs.mean.shape)
        for sampler in (
            SobolQMCNormalSampler(torch.Size([6]), seed=0),
            IIDNormalSampler(torch.Size([6]), seed=0),
        ):
            assert sampler(ours).shape == (6, *theirs.mean.shape)
        assert get_sampler(ours, torch.Size([6]), seed=0)(ours).shape == (6, *theirs.mean.shape)
        normals = problems.normal(6, *ours.base_sample_shape)
        assert ours.rsample_from_base_samples(torch.Size([6]), normals).shape == (
            6,
            *theirs.mean.shape,
        )
        if mode in MADE_OF_PATHS:
            assert ours.base_sample_shape[-2 if m > 1 else -1] == 16


@each_pair(
    shape=SHAPES, transform=["defaults", "none", "normalize", "chain"], known_noise=[False, True]
)
def test_exact_mode_equals_single_task_gp(
    shape: tuple[tuple[int, ...], int], transform: str, known_noise: bool
) -> None:
    batch, m = shape
    X, Y = data(batch, m)
    noise = (
        0.1 + 0.1 * problems.uniform(*Y.shape, seed=3)
        if known_noise and transform != "chain"
        else None
    )
    Z = points(2, *batch, 3)
    results = []
    for kind, own in ((PathwiseGP, {"solver": Cholesky()}), (SingleTaskGP, {})):
        model = kind(X, Y, noise, **TRANSFORMS[transform](batch, m), **own)
        inputs = Z.clone().requires_grad_()
        posterior = model.posterior(inputs)
        sampler = SobolQMCNormalSampler(torch.Size([8]), seed=0)
        improvement = qLogExpectedImprovement(
            model,
            torch.tensor(5.0).double(),
            sampler=sampler,
            objective=GenericMCObjective(lambda Y, X=None: Y[..., -1]),
        )(inputs)
        value = sampler(posterior).sum() + improvement.sum()
        results.append((sampler(posterior), improvement, *torch.autograd.grad(value, inputs)))
        if transform != "chain":
            results[-1] += (
                posterior.mean,
                posterior.variance,
                posterior.distribution.covariance_matrix,
            )
    torch.testing.assert_close(*results, rtol=1e-8, atol=1e-8)


@each_case
def test_the_mean_is_the_exact_one_in_every_mode(mode: str, batch: tuple[int, ...], m: int) -> None:
    X, Y = data(batch, m)
    Z = points(2, *batch, 3)
    for transform in ("none", "normalize"):
        settings = TRANSFORMS[transform](batch, m)
        model, exact = (kind(X, Y, **settings) for kind in (MODES[mode], SingleTaskGP))
        mean = law(exact, Z)[0]
        torch.testing.assert_close(law(model, Z)[0], mean, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            model.paths(2).mean(Z), mean if m > 1 else mean.squeeze(-1), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("mode", ["paths", "inducing", "variational"])
@pytest.mark.parametrize("m", [1, 2])
def test_the_covariance_is_the_exact_one_within_monte_carlo_error(mode: str, m: int) -> None:
    num_paths = 1024
    Z = points(2, 3)
    exact = covariances(SingleTaskGP(*data((), m)), Z)
    ours = covariances(MODES[mode](*data((), m), num_paths=num_paths, num_features=512), Z)
    variance = exact.diagonal(dim1=-1, dim2=-2)
    error = ((variance.unsqueeze(-1) * variance.unsqueeze(-2) + exact.square()) / num_paths).sqrt()
    assert ((ours - exact).abs() < 5 * error).all()


@pytest.mark.parametrize("transform", ["power", "bilog", "chain"])
@pytest.mark.parametrize("m", [1, 2])
def test_other_outcome_transforms_are_undone_for_samples_and_paths(transform: str, m: int) -> None:
    X, Y = data((), m)
    paths, exact = (
        kind(X, Y, **TRANSFORMS[transform]((), m)) for kind in (MODES["paths"], SingleTaskGP)
    )
    Z = points(5)
    normals = torch.zeros(1, 16, m).double()
    median = paths.posterior(Z).rsample_from_base_samples(
        torch.Size([1]), normals if m > 1 else normals.squeeze(-1)
    )
    zeros = torch.zeros(1, 5, m).double()
    expected = exact.posterior(Z).rsample_from_base_samples(
        torch.Size([1]), zeros if m > 1 else zeros.squeeze(-1)
    )
    torch.testing.assert_close(median, expected, rtol=1e-6, atol=1e-6)
    drawn = paths.paths(512)
    assert isinstance(drawn, BatchPaths)
    torch.testing.assert_close(drawn.mean(Z).reshape(1, 5, m), expected, rtol=1e-6, atol=1e-6)
    # The medians of the untransformed functions
    assert (drawn(Z).median(0).values.reshape(5, m) - expected[0]).abs().max() < 0.2


@each_shape
def test_paths_have_the_batch_before_the_points_and_the_outputs_after_them(
    batch: tuple[int, ...], m: int
) -> None:
    model = MODES["paths"](*data(batch, m), input_transform=Normalize(D))
    paths = model.paths(5)
    outputs = (m,) if m > 1 else ()
    Z = points(5, *batch, 4).requires_grad_()
    values = paths(Z)
    assert values.shape == (5, 5, *batch, 4, *outputs)
    assert paths(points(4)).shape == (5, *batch, 4, *outputs)
    each = paths.each(Z)
    torch.testing.assert_close(each, torch.stack([values[i, i] for i in range(5)]))
    (gradient,) = torch.autograd.grad(each.sum(), Z)
    (expected,) = torch.autograd.grad(sum(values[i, i].sum() for i in range(5)), Z)
    torch.testing.assert_close(gradient, expected)
    if batch:
        with pytest.raises(
            ValueError, match="`X` must have shape .*, q, d\\), a row of points for every path"
        ):
            paths.each(points(5, 4))


def test_elements_of_a_batch_are_the_models_that_would_be_built_alone() -> None:
    X, Y = data((3,), 2)
    lengthscales = 0.2 + problems.uniform(3, 2, 1, D)
    constants = problems.normal(3, 2, seed=1)
    settings: dict[str, Any] = {"outcome_transform": None}
    together = MODES["paths"](X, Y, **settings)
    together.covar_module.lengthscale = lengthscales
    together.mean_module.constant = constants
    together.likelihood.noise = 0.1 + problems.uniform(3, 2, 1, seed=4)
    mean = law(together, points(4))[0]
    for i in range(3):
        for t in range(2):
            alone = MODES["paths"](X[i], Y[i, :, t : t + 1], **settings)
            alone.covar_module.lengthscale = lengthscales[i, t]
            alone.mean_module.constant = constants[i, t]
            alone.likelihood.noise = together.likelihood.noise[i, t]
            torch.testing.assert_close(
                mean[i, :, t], law(alone, points(4))[0].squeeze(-1), rtol=1e-6, atol=1e-6
            )


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("mode", ["exact", "paths"])
def test_modules_without_batch_shape_are_shared(mode: str, batch: tuple[int, ...]) -> None:
    def shared() -> dict[str, Any]:
        return {
            "covar_module": problems.scaled(problems.matern(2.5, 0.5, active_dims=[1, 0]), 1.3),
            "mean_module": LinearMean(D),
        }

    X, Y = data(batch, 2)
    ours = law(MODES[mode](X, Y, **shared()), points(*batch, 4))
    theirs = law(SingleTaskGP(X, Y, **shared()), points(*batch, 4))
    assert ours[0].shape == theirs[0].shape
    model, exact = (kind(X, Y, **shared()) for kind in (MODES[mode], SingleTaskGP))
    for each in (model, exact):
        torch.nn.init.constant_(each.mean_module.weights, 0.7)
        torch.nn.init.constant_(each.mean_module.bias, -0.2)
    torch.testing.assert_close(
        law(model, points(*batch, 4))[0], law(exact, points(*batch, 4))[0], rtol=1e-6, atol=1e-6
    )


@each_case
def test_samples_have_the_posteriors_mean_and_covariance(
    mode: str, batch: tuple[int, ...], m: int
) -> None:
    num_samples = 4000
    model = MODES[mode](*data(batch, m))
    posterior = model.posterior(points(*batch, 3))
    samples = posterior.rsample_from_base_samples(
        torch.Size([num_samples]), problems.normal(num_samples, *posterior.base_sample_shape)
    )
    centred = (samples - posterior.mean).detach().mT  # (samples, *batch, m, q)
    found = torch.einsum("n...i,n...j->...ij", centred, centred) / num_samples
    expected = covariances(model, points(*batch, 3))
    variance = expected.diagonal(dim1=-1, dim2=-2)
    bound = (
        6
        * (
            (variance.unsqueeze(-1) * variance.unsqueeze(-2) + expected.square()) / num_samples
        ).sqrt()
    )
    assert ((found - expected).abs() < bound).all()
    assert (centred.mean(0).abs() < 6 * (variance / num_samples).sqrt()).all()
    torch.testing.assert_close(posterior.variance.mT, variance)
    across = (centred[..., 0, :] * centred[..., -1, :]).mean(0)
    # Outputs are independent
    assert m == 1 or (across.abs() < 6 * (variance.prod(-2) / num_samples).sqrt()).all()


@pytest.mark.parametrize("mode", MODES)
def test_a_weighted_sum_of_outputs_is_that_of_single_task_gp(mode: str) -> None:
    transform = ScalarizedPosteriorTransform(torch.tensor([0.7, -2.0]).double(), offset=3.0)
    posterior = MODES[mode](*data((), 2)).posterior(points(2, 3), posterior_transform=transform)
    exact = SingleTaskGP(*data((), 2)).posterior(points(2, 3), posterior_transform=transform)
    torch.testing.assert_close(posterior.mean, exact.mean, rtol=1e-5, atol=1e-5)
    if mode == "exact":
        torch.testing.assert_close(posterior.variance, exact.variance)
    else:
        both = covariances(MODES[mode](*data((), 2)), points(2, 3))
        torch.testing.assert_close(
            posterior.distribution.covariance_matrix, 0.49 * both[:, 0] + 4.0 * both[:, 1]
        )
    if mode in MADE_OF_PATHS:
        assert posterior.base_sample_shape == (2, 32)  # 16 paths an output: nothing is factorised


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_an_expectation_over_groups_of_points_is_that_of_single_task_gp(
    mode: str, m: int, weighted: bool
) -> None:
    weights = torch.arange(1.0, 1.0 + 3 * m).double().reshape(3, m) if weighted else None
    transform = ExpectationPosteriorTransform(3, weights)
    X = points(2, 6)
    model = MODES[mode](*data((), m))
    posterior = model.posterior(X, posterior_transform=transform)
    exact = SingleTaskGP(*data((), m)).posterior(X, posterior_transform=transform)
    torch.testing.assert_close(posterior.mean, exact.mean, rtol=1e-5, atol=1e-5)
    if mode == "exact":
        torch.testing.assert_close(posterior.variance, exact.variance)
    averaging = torch.zeros(m, 2, 6).double()
    for group in range(2):
        averaging[:, group, 3 * group : 3 * group + 3] = transform.weights.expand(3, m).mT
    expected = averaging @ covariances(model, X) @ averaging.mT
    torch.testing.assert_close(posterior.variance.mT, expected.diagonal(dim1=-2, dim2=-1))
    assert posterior.rsample(torch.Size([4])).shape == (4, 2, 2, m)
    if mode in MADE_OF_PATHS:
        num_normals = posterior.base_sample_shape.numel() // math.prod(posterior.batch_shape)
        assert num_normals == 16 * m  # 16 paths an output: nothing is factorised


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("indices", [[0], [1], [1, 0]])
def test_outputs_are_chosen(mode: str, indices: list[int]) -> None:
    model = MODES[mode](*data((), 2))
    every = model.posterior(points(2, 3))
    chosen = model.posterior(points(2, 3), output_indices=indices)
    subset = model.subset_output(indices)
    assert subset.num_outputs == len(indices)
    torch.testing.assert_close(chosen.mean, every.mean[..., indices])
    torch.testing.assert_close(chosen.variance, every.variance[..., indices])
    apart = MODES[mode](*data((), 2)).subset_output(indices)  # before anything is drawn
    for model_of_these in (subset, apart, deepcopy(subset)):
        torch.testing.assert_close(
            law(model_of_these, points(2, 3))[0], chosen.mean, rtol=1e-5, atol=1e-5
        )
        torch.testing.assert_close(
            model_of_these.posterior(points(2, 3)).variance, chosen.variance, rtol=1e-5, atol=1e-8
        )
    with pytest.raises(ValueError, match=r"`idcs` must be outputs below 2, got \[2\]"):
        model.subset_output([2])
    with pytest.raises(
        ValueError, match=r"`output_indices` must be None or outputs below 2, got \[2\]"
    ):
        model.posterior(points(3), output_indices=[2])


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("kind", range(2))
def test_outputs_are_chosen_of_any_modules(kind: int, batch: tuple[int, ...]) -> None:
    shape = torch.Size((*batch, 3))
    kernel = problems.matern(2.5, 0.5, batch_shape=shape)
    kernel.lengthscale = 0.3 + problems.uniform(*kernel.lengthscale.shape)
    scaled = ScaleKernel(kernel)
    scaled.outputscale = 1.0 + problems.uniform(*shape, seed=1)
    mean = [LinearMean(D), LinearMean(D, batch_shape=shape)][kind]
    torch.nn.init.normal_(mean.weights, generator=problems.seeded())
    model = PathwiseGP(
        *data(batch, 3),
        covar_module=[kernel, scaled + RBFKernel()][kind],
        mean_module=mean,
        input_transform=Normalize(D, bounds=torch.tensor([[0.0, -0.5], [1.0, 1.5]]).double()),
        solver=[Cholesky(), TIGHT][kind],
        **SMALL,
    )
    model.likelihood.noise = 0.1 + problems.uniform(*model.likelihood.noise.shape)
    whole = law(model, points(*batch, 4))[0]
    for indices, training in (([1], True), ([2, 0], False)):
        subset = model.train(training).subset_output(indices)
        assert subset.training == training and subset.num_outputs == len(indices)
        torch.testing.assert_close(
            law(subset, points(*batch, 4))[0], whole[..., indices], rtol=1e-6, atol=1e-6
        )
        again = subset.train()  # nothing that is kept hides what the parameters are
        torch.testing.assert_close(
            law(again, points(*batch, 4))[0], whole[..., indices], rtol=1e-6, atol=1e-6
        )


def of_each(*values: float) -> Tensor:
    """Return bounds (m, 1, 1), one for every output."""
    return torch.tensor(values).double().reshape(-1, 1, 1)


def with_one_constraint_of_two_parts(shape: torch.Size) -> Kernel:
    constraint = GreaterThan(of_each(0.05, 1.5))
    return AdditiveKernel(
        RBFKernel(batch_shape=shape, lengthscale_constraint=constraint),
        RBFKernel(batch_shape=shape, lengthscale_constraint=constraint, active_dims=[0]),
    )


OF_A_BATCH: dict[str, Callable[[torch.Size], Kernel]] = {
    "lower bounds": lambda shape: RBFKernel(
        batch_shape=shape, lengthscale_constraint=GreaterThan(of_each(0.05, 1.5))
    ),
    "upper bounds": lambda shape: RBFKernel(
        batch_shape=shape, lengthscale_constraint=LessThan(of_each(2.0, 4.0))
    ),
    "intervals of all inputs": lambda shape: RBFKernel(
        batch_shape=shape,
        ard_num_dims=D,
        lengthscale_constraint=Interval(of_each(0.05, 1.5), of_each(0.4, 3.0)),
    ),
    "bounds of inputs": lambda shape: RBFKernel(
        batch_shape=shape,
        ard_num_dims=D,
        lengthscale_constraint=GreaterThan(torch.tensor([0.05, 1.5]).double()),
    ),
    "outputscales": lambda shape: ScaleKernel(
        RBFKernel(),
        batch_shape=shape,
        outputscale_constraint=GreaterThan(torch.tensor([0.05, 20.0]).double()),
    ),
    "periods": lambda shape: PeriodicKernel(
        batch_shape=shape, period_length_constraint=GreaterThan(of_each(0.05, 3.0))
    ),
    "a shared constraint": with_one_constraint_of_two_parts,
    "fixed frequencies": lambda shape: RFFKernel(20, num_dims=D, batch_shape=shape),
    "frequencies of inputs": lambda shape: RFFKernel(
        20, num_dims=D, batch_shape=shape, active_dims=[1, 0]
    ),
}


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("name", OF_A_BATCH)
def test_every_output_has_the_bounds_and_buffers_of_its_own(
    name: str, batch: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    kernel = OF_A_BATCH[name](torch.Size((*batch, 2))).double()
    exact = SingleTaskGP(*data(batch, 2), covar_module=deepcopy(kernel)).eval()
    exact.likelihood.noise = 0.1
    X = points(*batch, 4)
    with torch.no_grad():
        mean, variance = exact.posterior(X).mean, exact.posterior(X).variance
    for mode in ("exact", "paths"):
        model = MODES[mode](*data(batch, 2), covar_module=deepcopy(kernel), num_features=256)
        model.likelihood.noise = 0.1
        close = partial(torch.testing.assert_close, rtol=1e-6, atol=1e-6)
        close(law(model, X)[0], mean)
        errors = (model.paths(512)(X) - mean).square().mean(0)
        torch.testing.assert_close(errors, variance, rtol=6.0 * (2.0 / 512) ** 0.5, atol=1e-6)
        for output in range(2):
            close(law(model.subset_output([output]), X)[0], mean[..., [output]])


def test_bounds_that_do_not_fit_their_parameter_are_named() -> None:
    bounds = GreaterThan(of_each(0.05, 1.5))
    with pytest.raises(
        ValueError,
        match=(
            r"`covar_module` must have bounds that broadcast to the shape of `raw_lengthscale`,"
            r" \(1, 1\), got \(2, 1, 1\)"
        ),
    ):
        PathwiseGP(*data((), 2), covar_module=RBFKernel(lengthscale_constraint=bounds))


def test_outputs_are_not_chosen_of_a_mean_that_does_not_say_what_is_whose() -> None:
    class Offsets(Mean):
        def __init__(self) -> None:
            super().__init__()
            self.register_parameter("offsets", torch.nn.Parameter(torch.zeros(2)))

        def forward(self, X: Tensor) -> Tensor:
            return self.offsets.unsqueeze(-1) + X[..., 0]

    with pytest.raises(
        NotImplementedError,
        match="`subset_output` does not know which parameters of a Offsets belong to which output",
    ):
        PathwiseGP(*data((), 2), mean_module=Offsets()).subset_output([0])


@each_case
def test_observation_noise_is_that_of_single_task_gp(
    mode: str, batch: tuple[int, ...], m: int
) -> None:
    X, Y = data(batch, m)
    for noise in ({}, {"train_Yvar": 0.1 + problems.uniform(*Y.shape, seed=3)}):
        added = []
        for model in (MODES[mode](X, Y, **noise), SingleTaskGP(X, Y, **noise)):
            plain = model.posterior(points(*batch, 3)).variance
            given = problems.uniform(*batch, 3, m, seed=5)
            added.append(
                [
                    model.posterior(points(*batch, 3), observation_noise=kind).variance - plain
                    for kind in (True, given)
                ]
            )
        torch.testing.assert_close(*added, rtol=1e-6, atol=1e-8)


@pytest.mark.filterwarnings("ignore::surrogates.UnsolvedWarning")  # float32 falls short of 1e-11
@each_case
def test_copies_and_loaded_states_have_the_same_posterior(
    mode: str, batch: tuple[int, ...], m: int
) -> None:
    model = MODES[mode](*data(batch, m))
    other = MODES[mode](*data(batch, m))
    before = law(model, points(3))
    model.covar_module.lengthscale = 0.5 + problems.uniform(*model.covar_module.lengthscale.shape)
    model.mean_module.constant = torch.full_like(model.mean_module.constant, 0.7)
    expected = law(model, points(3))
    assert (expected[0] - before[0]).abs().max() > 1e-3  # nothing is stale
    other.load_state_dict(model.state_dict())
    for same in (other, deepcopy(model), model.train().eval(), deepcopy(model.train())):
        torch.testing.assert_close(law(same, points(3)), expected)
    single = law(model.float(), points(3).float())
    assert single[0].dtype == torch.float32
    torch.testing.assert_close(single[0].double(), expected[0], rtol=0, atol=5e-2)


@each_case
def test_appended_data_count_like_data_from_the_start(
    mode: str, batch: tuple[int, ...], m: int
) -> None:
    # two of the four
    X, Y = data(batch, m)
    k = 4
    known_noise = m == len(batch) + 1
    noise = 0.1 + problems.uniform(*Y.shape, seed=3)
    inducing = {"inducing_points": data()[0][:10]} if mode in ("inducing", "variational") else {}

    def built(rows: int) -> PathwiseGP:
        settings = {"train_Yvar": noise[..., :rows, :]} if known_noise else {}
        settings |= TRANSFORMS["normalize"](batch, m)
        return MODES[mode](
            X[..., :rows, :], Y[..., :rows, :], outcome_transform=None, **settings, **inducing
        )

    model = built(N - k)
    before = law(model, points(3))
    conditioned = model.condition_on_observations(
        X[..., -k:, :], Y[..., -k:, :], **({"noise": noise[..., -k:, :]} if known_noise else {})
    )
    assert (conditioned.batch_shape, conditioned.num_outputs) == (model.batch_shape, m)
    torch.testing.assert_close(
        law(conditioned, points(3)), law(built(N), points(3)), rtol=1e-6, atol=1e-6
    )
    torch.testing.assert_close(law(model, points(3)), before)  # it has seen nothing new
    assert type(conditioned) is type(model)
    inputs = conditioned.train().train_inputs[0]  # in the user's units
    torch.testing.assert_close(inputs, X.unsqueeze(-3).expand_as(inputs) if m > 1 else X)


def test_a_solve_accounts_for_every_output_and_data_set() -> None:
    model = MODES["paths"](*data((3,), 2))
    model.paths(4)
    assert model.solution.value.shape == (N, 6 * 5)
    assert model.solution.converged.all() and model.solution.residual.shape == (30,)


@pytest.mark.slow
def test_hypervolume_improvement_of_paths_factorises_nothing(spy: Any) -> None:
    X, Y = data((), 2)
    model = MODES["paths"](X, Y)
    reference = Y.amin(0)
    acquisition = qLogExpectedHypervolumeImprovement(
        model,
        reference,
        FastNondominatedPartitioning(reference, Y),
        sampler=SobolQMCNormalSampler(torch.Size([8]), seed=0),
    )
    law(model, points(2))
    factorise = spy(torch.linalg, "cholesky_ex")
    inputs = points(4, 5).requires_grad_()
    values = acquisition(inputs)
    (gradient,) = torch.autograd.grad(values.sum(), inputs)
    assert values.isfinite().all() and gradient.isfinite().all() and gradient.abs().max() > 0
    assert not factorise.called


@pytest.mark.parametrize("kind", [InducingPathwiseGP, VariationalGP])
def test_batches_of_inducing_points_are_refused(kind: type[PathwiseGP]) -> None:
    with pytest.raises(
        ValueError,
        match=(
            r"`train_X` must have shape \(n, d\) for a model of inducing points, got \(3, 24, 2\)."
            r" Build"
        ),
    ):
        kind(*data((3,)))


def test_what_a_batch_cannot_do_is_refused() -> None:
    batch = MODES["paths"](*data((3,), 2))
    for posterior in (batch.posterior, batch.paths(2), batch.paths(2).mean):
        with pytest.raises(
            ValueError,
            match=(
                r"`X` must have a batch shape that broadcasts with that of the model, \(3,\), got"
                r" \(2,\)"
            ),
        ):
            posterior(points(2, 4))
    X, Y = data((), 2)
    kernel = problems.matern(2.5, batch_shape=torch.Size([3]))
    with pytest.raises(
        ValueError,
        match=(
            r"`covar_module` must have no batch shape or that of the data and outputs, \(2,\), got"
            r" \(3,\)"
        ),
    ):
        PathwiseGP(X, Y, covar_module=kernel)
    one = MODES["paths"](*data())
    with pytest.raises(
        ValueError, match=r"`prior` must be None for a batch of posteriors, here of shape \(2,\)"
    ):
        MODES["paths"](X, Y).paths(3, prior=one.paths(3).prior)
    with pytest.raises(ValueError, match="`model` must have one output to be fitted, got 2"):
        fit_variational(MODES["variational"](X, Y), num_steps=1)


@pytest.mark.parametrize(
    ("kind", "own", "left_out"),
    [
        (InducingPathwiseGP, ["inducing_points", "inducing_method"], []),
        (VariationalGP, ["inducing_points", "inducing_method"], ["solver"]),
        (
            FiniteFeatureGP,
            ["feature_map"],
            ["covar_module", "solver", "num_features", "num_paths", "memory_budget"],
        ),
    ],
)
def test_the_signature_of_a_special_model_is_that_of_all_with_its_own_arguments(
    kind: type[PathwiseGP], own: list[str], left_out: list[str]
) -> None:
    general = signature(PathwiseGP).parameters
    found = signature(kind).parameters
    assert set(found) == {*general, *own} - {*left_out}
    assert all(found[name].default == general[name].default for name in found if name in general)
    read = getfullargspec(kind).args  # by Ax
    assert read == [*getfullargspec(PathwiseGP).args][: len(read)]
    X, Y = data()
    for name in (*left_out, "colour"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            kind(X, Y, **dict.fromkeys([*own, name]))
