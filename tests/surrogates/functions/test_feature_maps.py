"""Feature maps against the kernels they stand for, and what they refuse."""

from itertools import cycle
from typing import Any

import pytest
import torch
from gpytorch.kernels import RQKernel
from torch import Tensor, nn

from surrogates import AttentionFeatures, FeatureKernel, FourierFeatures, NystromFeatures
from tests import problems

X = problems.uniform(40, problems.DIM)
KERNELS = {
    name: problems.STATIONARY[name] for name in ("rbf", "rbf-ard", "matern32", "matern52-active")
}


@pytest.mark.parametrize(
    ("name", "orthogonal"), [*zip(KERNELS, cycle([False, True]), strict=False)]
)
def test_fourier_features_average_to_the_kernel(name: str, orthogonal: bool) -> None:
    kernel = KERNELS[name]().double()
    num_features = 256
    draws = 64
    values = []
    for seed in range(draws):
        generator = problems.seeded(seed)
        features = FourierFeatures(
            kernel, problems.DIM, num_features, orthogonal=orthogonal, generator=generator
        ).double()(X)
        torch.testing.assert_close(features.square().sum(1), torch.ones(len(X)).double())
        values.append((features @ features.T).detach())
    error = torch.stack(values).mean(0) - kernel(X).to_dense()
    assert error.abs().max() < 5 * (num_features * draws) ** -0.5


def test_orthogonal_features_are_closer_to_the_kernel_than_independent_ones() -> None:
    kernel = problems.rbf(0.6).double()
    errors = []
    for orthogonal in (True, False):
        draws = [
            FourierFeatures(kernel, 3, 96, orthogonal=orthogonal, generator=problems.seeded(s))
            for s in range(20)
        ]
        values = torch.stack([draw.double()(X) @ draw.double()(X).T for draw in draws])
        errors.append((values - kernel(X).to_dense()).square().mean().item())
    assert errors[0] < 0.8 * errors[1]


def test_fourier_features_follow_the_lengthscale_and_have_its_gradient() -> None:
    features = FourierFeatures(problems.rbf(0.6), problems.DIM, 64).double()
    before = features(X)
    features.kernel.lengthscale = 1.2
    torch.testing.assert_close(features(2 * X), before)
    features(X)[:, 0].sum().backward()
    assert features.kernel.raw_lengthscale.grad.abs() > 0


@pytest.mark.parametrize("make", [*problems.KERNELS.values()], ids=[*problems.KERNELS])
def test_nystrom_features_on_all_points_have_the_kernel_itself(make: Any) -> None:
    kernel = make().double()
    features = NystromFeatures(kernel, X)(X)
    torch.testing.assert_close(features @ features.T, kernel(X).to_dense(), rtol=1e-8, atol=1e-8)


def test_the_rest_of_a_nystrom_kernel_is_positive_semi_definite() -> None:
    kernel = problems.matern(1.5).double()
    features = NystromFeatures(kernel, X[:10])(X)
    rest = kernel(X).to_dense() - features @ features.T
    assert torch.linalg.eigvalsh(rest).min() > -1e-10
    torch.testing.assert_close(rest[:10], torch.zeros(10, 40).double(), rtol=0, atol=1e-10)


def test_the_feature_kernel_is_the_product_of_the_features_for_batches_and_diagonals() -> None:
    network = nn.Sequential(nn.Linear(3, 5), nn.Tanh()).double()
    kernel = FeatureKernel(network)
    A = problems.uniform(2, 4, 3)
    B = problems.uniform(6, 3, seed=1)
    torch.testing.assert_close(kernel(A, B).to_dense(), network(A) @ network(B).T)
    torch.testing.assert_close(kernel(B).to_dense(), network(B) @ network(B).T)
    torch.testing.assert_close(kernel(B, diag=True), network(B).square().sum(1))


def test_attention_features_treat_every_point_alone_and_are_reproducible() -> None:
    features = AttentionFeatures(problems.DIM, 16, seed=3).double().eval()
    order = torch.arange(len(X)).flip(0)
    torch.testing.assert_close(features(X[order])[order], features(X))
    torch.testing.assert_close(features(X[:3]), features(X)[:3])
    state = torch.random.get_rng_state()
    again = AttentionFeatures(problems.DIM, 16, seed=3).double().eval()
    other = AttentionFeatures(problems.DIM, 16, seed=4).double().eval()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(again(X), features(X))
    assert not torch.allclose(other(X), features(X))
    assert features(X).shape == (40, 16)


class Wrong(nn.Module):
    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, X: Tensor) -> Any:
        return self.output


@pytest.mark.parametrize(
    ("output", "error", "message"),
    [
        (
            torch.ones(40).double(),
            ValueError,
            r"`feature_map` must map \(40, 3\) to \(40, F\), got \(40,\)",
        ),
        (torch.ones(39, 2).double(), ValueError, r"to \(40, F\), got \(39, 2\)"),
        (torch.ones(40, 0).double(), ValueError, r"to \(40, F\), got \(40, 0\)"),
        (torch.ones(40, 2, 2).double(), ValueError, "Flatten what it returns"),
        (None, TypeError, "`feature_map` must return a tensor, got NoneType"),
        (torch.ones(40, 2), TypeError, r"`feature_map\(X\)` must have the dtype of `X`"),
    ],
)
def test_a_map_of_the_wrong_shape_is_refused(
    output: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        FeatureKernel(Wrong(output)).features(X)


def test_arguments_that_make_no_sense_are_refused() -> None:
    for build, error, message in (
        (
            lambda: FeatureKernel(torch.sin),
            TypeError,
            "`feature_map` must be a torch.nn.Module, got builtin_function_or_method",
        ),
        (
            lambda: FourierFeatures(RQKernel(), 3, 8),
            TypeError,
            "`kernel` must be an RBFKernel or a MaternKernel, got RQKernel",
        ),
        (lambda: FourierFeatures(problems.rbf(), 3, 7), ValueError, "`num_features` must be even"),
        (
            lambda: FourierFeatures(problems.rbf(), 3, 8)(X[:, :2]),
            ValueError,
            "`X` must have 3 columns",
        ),
        (
            lambda: NystromFeatures(problems.rbf(), X[0]),
            ValueError,
            r"`inducing_points` must have shape \(m, d\)",
        ),
        (
            lambda: AttentionFeatures(3, 30),
            ValueError,
            "`width` must be a multiple of `num_heads` = 4, got 30",
        ),
        (lambda: AttentionFeatures(1), ValueError, "`dim` must be at least 2, got 1"),
    ):
        with pytest.raises(error, match=message):
            build()


def test_constraints_and_priors_of_a_kernel_inside_are_found() -> None:
    kernel = FeatureKernel(nn.Sequential(nn.Linear(3, 2), FourierFeatures(problems.rbf(), 2, 8)))
    (found,) = [
        bounds
        for name, _, bounds in kernel.named_parameters_and_constraints()
        if name.endswith("raw_lengthscale")
    ]
    assert found.lower_bound == 0.0
    assert len(list(kernel.parameters())) == 3
