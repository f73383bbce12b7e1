"""Noise and ripples: what near points tell apart, and what is best then."""

import math
from itertools import product

import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, ScaleKernel
from gpytorch.means import ZeroMean
from torch import Tensor

from scalable_bo.modelling.belief import is_rough, rough_bands
from scalable_bo.space.space import Float, Space
from scalable_bo.study.study import Study
from surrogates.rules.data_set import DataSet
from tests.quick import QUICK


def clustered(n: int = 40) -> Tensor:
    """Points around a few places, as late in an optimisation."""
    generator = torch.Generator().manual_seed(0)
    places = torch.rand(4, 2, dtype=torch.float64, generator=generator)
    spread = torch.randn(n, 2, dtype=torch.float64, generator=generator)
    return places.repeat(n // 4, 1) + 3e-3 * spread


def of(X: Tensor, rough: Tensor, noise: float = 0.1) -> DataSet:
    kernel = ScaleKernel(MaternKernel(nu=2.5)).double()
    kernel.outputscale = 2.0
    kernel.base_kernel.lengthscale = 0.8
    y = (3 * X).sin().sum(1) + rough
    return DataSet(X, y, torch.tensor(noise).double(), kernel, ZeroMean())


def normal_noise(n: int, variance: float = 0.1) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return math.sqrt(variance) * torch.randn(n, dtype=torch.float64, generator=generator)


def test_ripples_are_told_from_noise_by_near_points() -> None:
    X = clustered()
    ripples = 0.45 * (40 * X).cos().prod(1)
    assert rough_bands(of(X, ripples), X)[1] > 0.999
    assert is_rough(of(X, ripples), X[:1])
    assert rough_bands(of(X, normal_noise(len(X))), X)[1] < 1e-3
    assert not is_rough(of(X, normal_noise(len(X))), X[:1])


def test_ripples_beneath_a_little_noise_are_told_as_well() -> None:
    X = clustered()
    ripples = 0.45 * (40 * X).cos().prod(1)
    data = of(X, ripples + normal_noise(len(X), 1e-3))
    bands = rough_bands(data, X)
    assert bands[1] > 0.999
    truth = (3 * X).sin().sum(1) + ripples
    assert float(truth.max() - truth[bands[0].argmax()]) < 0.02


def test_bands_are_those_of_every_explanation_by_its_probability() -> None:
    X = clustered(12)
    data = of(X, 0.2 * (30 * X).sin().sum(1))
    Z = torch.cat([X[:3], X[:2] + 0.2])
    shares = (0.5, 0.9, 0.99, 1.0 - 1e-6)
    odds, lowers = [], []
    with torch.no_grad():
        K = data.kernel(torch.cat([X, Z])).to_dense()
        for scale, share in [(1.0, 0.0), *product((0.3, 0.1, 0.03, 0.01), shares)]:
            R = data.kernel(torch.cat([X, Z]) / scale).to_dense() / 2.0
            C = K + share * 0.1 * R
            C[:12, :12] += (1.0 - share) * 0.1 * torch.eye(12)
            normal = torch.distributions.MultivariateNormal(torch.zeros(12).double(), C[:12, :12])
            prior = 0.05 / 16 if share else 0.95
            odds.append(prior * normal.log_prob(data.y).exp())
            gains = C[12:, :12] @ C[:12, :12].inverse()
            variances = (C[12:, 12:] - gains @ C[:12, 12:]).diagonal().clamp_min(0.0)
            lowers.append(gains @ data.y - 2.0 * variances.sqrt())
    weights = torch.stack(odds) / sum(odds)
    found = rough_bands(data, Z)
    assert found[1] == pytest.approx(float(weights[1:].sum()))
    torch.testing.assert_close(found[0], weights @ torch.stack(lowers), atol=1e-5, rtol=0.0)


def test_of_many_values_those_at_the_best_points_are_compared() -> None:
    X = clustered()
    data = of(X, 0.45 * (40 * X).cos().prod(1))
    best = rough_bands(data, X, num_compared=20)
    assert best[1] > 0.5
    whole = rough_bands(data, X)
    assert torch.equal(best[0].topk(3).indices, whole[0].topk(3).indices)


def test_a_point_without_variance_has_a_band() -> None:
    X = clustered()
    X[0] = 0.0
    kernel = LinearKernel().double()
    bands = rough_bands(of(X, normal_noise(len(X)))._replace(kernel=kernel), X)
    assert bool(bands[0].isfinite().all())
    assert float(bands[0][0]) > -1.0
    assert 0.0 <= bands[1] <= 1.0


def test_what_is_recommended_among_many_noisy_values_does_not_depend_on_their_order() -> None:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(2100, 2, dtype=torch.float64, generator=generator)
    f = -4.0 * (X - 0.6).square().sum(1)
    y = f + 0.5 * torch.randn(len(X), dtype=torch.float64, generator=generator)
    for order in (torch.arange(len(X)), y.argsort()):
        study = Study(Space(a=Float(0.0, 1.0), b=Float(0.0, 1.0)), maximize=True, sampler=QUICK)
        study.add_data(X[order], y[order])
        best = torch.tensor([list(study.recommend().values())])
        assert 4.0 * float((best - 0.6).square().sum()) < 0.05
