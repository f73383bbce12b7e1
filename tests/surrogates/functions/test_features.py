"""Random features: their mean kernel, variance, and the prior functions made of them."""

import math
from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
import torch
from botorch.models.kernels.categorical import CategoricalKernel
from botorch.models.kernels.infinite_width_bnn import InfiniteWidthBNNKernel
from gpytorch.kernels import (
    AdditiveKernel,
    ArcKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    PiecewisePolynomialKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)

from surrogates import PriorPaths, RandomFeatures
from surrogates.operators.forms import StationaryKernel
from tests import problems
from tests.problems import ARD, COMPOSED, DIM, GENERIC, STATIONARY, seeded

D8 = 8
LAWS: dict[str, dict[str, bool]] = {
    "independent": {"weighted": False},
    "orthogonal": {"weighted": False, "orthogonal": True},
    "weighted": {"weighted": True},
}
DIAGONAL = torch.full((1, D8), D8**-0.5, dtype=torch.float64)


def mean_kernel(features: RandomFeatures, X: torch.Tensor, Z: torch.Tensor) -> torch.Tensor:
    return features(X) @ features(Z).T


@pytest.mark.parametrize("name", STATIONARY)
def test_the_mean_kernel_is_the_kernel(name: str) -> None:
    kernel = STATIONARY[name]().double()
    X = problems.uniform(12, DIM)
    K = problems.own_evaluation(kernel, X, X)
    num_frequencies = 50_000
    tolerance = 5 * K.max().item() / math.sqrt(num_frequencies)
    for law in LAWS.values():
        features = RandomFeatures.draw(kernel, DIM, 2 * num_frequencies, **law, generator=seeded(1))
        torch.testing.assert_close(mean_kernel(features, X, X), K, rtol=0, atol=tolerance)


def test_orthogonal_features_have_lower_variance() -> None:
    kernel = problems.matern(1.5, 1.0).double()
    x = DIAGONAL * 0.8

    def spread(law: str) -> float:
        values = [
            mean_kernel(
                RandomFeatures.draw(kernel, D8, 2 * D8, **LAWS[law], generator=seeded(i)), x, 0 * x
            )
            for i in range(400)
        ]
        return torch.cat(values).var().item()

    assert spread("orthogonal") < 0.8 * spread("independent")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_prior_paths_are_functions_with_gradients(dtype: torch.dtype) -> None:
    paths = PriorPaths.draw(
        problems.matern(2.5),
        DIM,
        5,
        num_features=40,
        num_draws=2,
        generator=seeded(),
        like=torch.ones(1, dtype=dtype),
    )
    X = problems.uniform(2, 4, DIM, dtype=dtype).requires_grad_()
    values = paths(X)
    assert values.shape == (5, 2, 4) and values.dtype == dtype
    assert torch.equal(paths(X), values)
    Y = X[0].detach().repeat(5, 1, 1).requires_grad_()
    torch.testing.assert_close(paths.each(Y), values[:, 0])
    own = [torch.autograd.grad(values[i, 0].sum(), X, retain_graph=True)[0][0] for i in range(5)]
    (together,) = torch.autograd.grad(paths.each(Y).sum(), Y)
    torch.testing.assert_close(together, torch.stack(own))
    if dtype == torch.float64:
        assert torch.autograd.gradcheck(paths, (X,))


@pytest.mark.parametrize(
    ("num_paths", "num_draws", "sizes"), [(7, 3, [3, 2, 2]), (2, 5, [1, 1]), (4, 1, [4])]
)
def test_groups_of_paths_have_features_of_their_own(
    num_paths: int, num_draws: int, sizes: list[int]
) -> None:
    paths = PriorPaths.draw(
        problems.rbf(), DIM, num_paths, num_features=10, num_draws=num_draws, generator=seeded()
    )
    assert [weights.shape[1] for _, weights in paths.draws] == sizes
    assert paths.num_paths == num_paths and paths.dim == DIM
    frequencies = [features.frequencies for features, _ in paths.draws]
    assert all(not torch.equal(a, b) for i, a in enumerate(frequencies) for b in frequencies[:i])


def test_the_same_seed_draws_the_same_functions_and_leaves_the_global_state() -> None:
    before = torch.get_rng_state()
    first, second = (
        PriorPaths.draw(problems.rbf(), DIM, 3, num_features=8, generator=seeded(4))(
            problems.uniform(2, DIM).float()
        )
        for _ in range(2)
    )
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("num_features", "error"),
    [(7, ValueError), (0, ValueError), (-2, ValueError), (8.0, TypeError)],
)
def test_a_number_of_features_that_is_not_even_and_positive_is_refused(
    num_features: int, error: type[Exception]
) -> None:
    with pytest.raises(error, match="`num_features` must be"):
        RandomFeatures.draw(problems.rbf(), DIM, num_features, generator=seeded())


def linear(variance: float | torch.Tensor, **settings: object) -> Kernel:
    kernel = LinearKernel(**settings)
    kernel.variance = variance
    return kernel


def periodic(
    period: float | torch.Tensor, lengthscale: float | torch.Tensor, **settings: object
) -> Kernel:
    kernel = problems.with_lengthscale(PeriodicKernel(**settings), lengthscale)
    kernel.period_length = period
    return kernel


def piecewise(q: int, lengthscale: float | torch.Tensor, **settings: Any) -> Kernel:
    return problems.with_lengthscale(PiecewisePolynomialKernel(q, **settings), lengthscale)


def categorical(lengthscale: float | torch.Tensor, **settings: Any) -> Kernel:
    return problems.with_lengthscale(CategoricalKernel(**settings), lengthscale)


def rq(alpha: float, **settings: object) -> Kernel:
    kernel = problems.with_lengthscale(RQKernel(**settings), 0.6)
    kernel.alpha = alpha
    return kernel


SUMS_AND_PRODUCTS: dict[str, Callable[[], Kernel]] = (
    COMPOSED
    | GENERIC
    | {
        "rq-heavy-tail": lambda: rq(0.3),
        "rq-active": lambda: problems.scaled(rq(2.0, active_dims=[2]), 0.7),
        "rq-ard": lambda: problems.with_lengthscale(RQKernel(ard_num_dims=DIM), ARD),
        "piecewise-0": lambda: PiecewisePolynomialKernel(q=0),
        "piecewise-1": lambda: piecewise(1, 1.5),
        "piecewise-2": lambda: problems.scaled(piecewise(2, 2.0, active_dims=[1]), 0.7),
        "piecewise-3": lambda: piecewise(3, ARD, ard_num_dims=DIM),
        "periodic": lambda: periodic(0.7, 0.8),
        "periodic-ard": lambda: periodic(ARD, ARD.flip(1), ard_num_dims=DIM),
        "periodic-active": lambda: problems.scaled(periodic(0.5, 0.3, active_dims=[1]), 2.0),
        "linear": lambda: linear(0.7),
        "linear-ard": lambda: linear(ARD, ard_num_dims=DIM),
        "trend": lambda: (
            problems.scaled(linear(0.7, active_dims=[0]), 1.5)
            + problems.matern(2.5)
            + problems.rbf(active_dims=[1, 2])
        ),
        "season": lambda: periodic(0.7, 0.8, active_dims=[0]) * problems.rbf(1.5) + linear(0.2),
        "quadratic": lambda: linear(0.8) * linear(0.5, active_dims=[0, 2]),
        "growing": lambda: linear(0.8) * problems.matern(1.5),
        "sum-times-sum": lambda: (
            (linear(0.5) + problems.rbf()) * (problems.matern(2.5, 1.0) + periodic(0.7, 0.8))
        ),
        "cube": lambda: problems.rbf() * problems.matern(0.5) * rq(1.0),
        "scaled-sum": lambda: problems.scaled(
            problems.rbf() + problems.scaled(problems.matern(1.5), 2.0), 0.5
        ),
        "active-sum": lambda: AdditiveKernel(
            problems.rbf(active_dims=[1]), problems.matern(1.5, active_dims=[0, 1])
        ),
    }
)


# Of integer codes
CATEGORICAL: dict[str, Callable[[], Kernel]] = {
    "categorical": lambda: categorical(0.8),
    "categorical-ard": lambda: problems.scaled(categorical(ARD, ard_num_dims=DIM), 2.0),
    "mixed": lambda: problems.scaled(
        categorical(0.3, active_dims=[0]) * problems.matern(1.5, active_dims=[1, 2])
        + categorical(0.5, active_dims=[2]),
        1.5,
    ),
}


# Which law a part is drawn by is that part's own: it meets every kernel above
@pytest.mark.parametrize(
    ("name", "law"), [*zip(SUMS_AND_PRODUCTS | CATEGORICAL, cycle(LAWS), strict=False)]
)
def test_the_mean_kernel_is_that_of_sums_and_products(name: str, law: str) -> None:
    kernel = (SUMS_AND_PRODUCTS | CATEGORICAL)[name]().double()
    X = problems.uniform(10, DIM) - 0.3
    if name in CATEGORICAL:
        X = (4 * X).round()
    num_frequencies = 2_000
    draws = 12
    generator = seeded(2)
    values = torch.stack(
        [
            mean_kernel(
                RandomFeatures.draw(
                    kernel, DIM, 2 * num_frequencies, **LAWS[law], generator=generator
                ),
                X,
                X,
            )
            for _ in range(draws)
        ]
    )
    standard_error = (values.var(0) / draws).sqrt()
    K = problems.own_evaluation(kernel, X, X)
    assert ((values.mean(0) - K).abs() <= 6 * standard_error + 1e-9).all()
    assert standard_error.max() < 0.12 * K.diagonal().max() / math.sqrt(draws)


@pytest.mark.parametrize("name", ["linear", "linear-ard"])
def test_the_features_of_a_linear_kernel_are_exact(name: str) -> None:
    kernel = SUMS_AND_PRODUCTS[name]().double()
    X = problems.uniform(10, DIM)
    for num_features in (2 * DIM, 2 * DIM + 4):
        features = RandomFeatures.draw(kernel, DIM, num_features, generator=seeded())
        torch.testing.assert_close(
            mean_kernel(features, X, X), problems.own_evaluation(kernel, X, X)
        )


def test_few_features_of_a_linear_kernel_are_right_on_average() -> None:
    kernel = linear(0.7).double()
    X = problems.uniform(4, DIM)
    draws = 1000
    generator = seeded()
    values = torch.stack(
        [
            mean_kernel(RandomFeatures.draw(kernel, DIM, 4, generator=generator), X, X)
            for _ in range(draws)
        ]
    )
    error = (values.mean(0) - problems.own_evaluation(kernel, X, X)).abs()
    assert (error < 5 * (values.var(0) / draws).sqrt()).all()


def test_a_linear_summand_takes_no_more_features_than_make_it_exact() -> None:
    kernel = SUMS_AND_PRODUCTS["trend"]().double()
    features = RandomFeatures.draw(kernel, DIM, 102, generator=seeded())
    assert features.frequencies.shape == (DIM, 51)
    assert (features.frequencies == 0).all(0).sum() == 1


class UnknownKernel(RBFKernel):
    """A kernel of a type of its own, of which nothing is known."""

    def forward(self, *arguments: Any, **settings: Any) -> Any:
        return super().forward(*arguments, **settings) ** 2


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (UnknownKernel, "UnknownKernel"),
        (lambda: problems.rbf() + InfiniteWidthBNNKernel(), "InfiniteWidthBNNKernel"),
        (
            lambda: problems.scaled(problems.rbf() * ArcKernel(UnknownKernel()), 2.0),
            "UnknownKernel",
        ),
    ],
)
def test_a_kernel_without_features_is_refused_by_name(
    make: Callable[[], Kernel], named: str
) -> None:
    with pytest.raises(
        ValueError,
        match=(
            "`kernel` must be RBFKernel, .*SpectralMixtureKernel, or made of them.*got"
            f" {named}. Tell of its frequencies by `register_kernel`"
        ),
    ):
        RandomFeatures.draw(make(), DIM, 8, generator=seeded())


def test_a_batch_of_kernels_and_more_summands_than_features_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`kernel` must have no batch shape.*RBFKernel of \(2,\)"):
        RandomFeatures.draw(problems.rbf(batch_shape=torch.Size([2])), DIM, 8, generator=seeded())
    with pytest.raises(
        ValueError, match="`num_features` must be at least 6 for a sum of 3 kernels, got 4"
    ):
        RandomFeatures.draw(SUMS_AND_PRODUCTS["trend"](), DIM, 4, generator=seeded())


@pytest.mark.gpu
@pytest.mark.parametrize(
    "make",
    [lambda: problems.matern(1.5), SUMS_AND_PRODUCTS["trend"], SUMS_AND_PRODUCTS["sum-times-sum"]],
    ids=["matern", "trend", "product"],
)
def test_a_seed_means_the_same_on_cuda(make: Callable[[], Kernel]) -> None:
    X = problems.uniform(4, DIM)
    on_cpu, on_cuda = (
        PriorPaths.draw(make().double(), DIM, 3, num_features=20, generator=seeded(), like=x)(x)
        for x in (X, X.cuda())
    )
    torch.testing.assert_close(on_cuda.cpu(), on_cpu)


class SameMatern(MaternKernel):
    """Changes nothing but what is given."""

    def __init__(self) -> None:
        super().__init__(nu=1.5)
        self.lengthscale = 0.7


class SameScale(ScaleKernel):
    label = "a name of its own"


class Doubled(RBFKernel):
    @property
    def lengthscale(self) -> torch.Tensor:
        return 2.0 * super().lengthscale


def test_a_subclass_that_changes_nothing_has_the_features_and_the_form_of_its_parent() -> None:
    X = problems.uniform(20, 3)
    plain = problems.scaled(problems.matern(1.5, 0.7), 1.3)
    same = SameScale(SameMatern()).double()
    same.outputscale = 1.3
    form = StationaryKernel.of(same)
    assert form is not None and form.profile == "matern32"
    for kernel, other in (
        (same, plain),
        (same + same, plain + plain),
        (same * same, plain * plain),
    ):
        features, expected = (
            RandomFeatures.draw(k, 3, 64, generator=seeded(), like=X)(X) for k in (kernel, other)
        )
        torch.testing.assert_close(features, expected)


@pytest.mark.parametrize("kernel", [UnknownKernel(), Doubled()])
def test_a_subclass_that_changes_the_kernel_has_no_closed_form(kernel: Kernel) -> None:
    assert StationaryKernel.of(kernel) is None
    with pytest.raises(ValueError, match=f"got {type(kernel).__name__}"):
        RandomFeatures.draw(kernel, 3, 64, generator=seeded())
