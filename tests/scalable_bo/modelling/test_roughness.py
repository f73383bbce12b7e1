"""Noise and ripples: what near points tell apart."""

import math

import torch
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.means import ZeroMean
from torch import Tensor

from scalable_bo.modelling.roughness import evidence_of_roughness
from surrogates.rules.data_set import DataSet


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


def test_ripples_are_told_from_noise_by_near_points() -> None:
    X = clustered()
    ripples = 0.45 * (40 * X).cos().prod(1)
    generator = torch.Generator().manual_seed(1)
    noise = math.sqrt(0.1) * torch.randn(len(X), dtype=torch.float64, generator=generator)
    assert evidence_of_roughness(of(X, ripples)) > 10.0
    assert evidence_of_roughness(of(X, noise)) < -10.0


def test_the_evidence_is_that_of_the_densities() -> None:
    X = clustered(12)
    data = of(X, 0.2 * (30 * X).sin().sum(1))
    normal = torch.distributions.MultivariateNormal
    with torch.no_grad():
        K = data.kernel(X).to_dense()
        eye = torch.eye(len(X)).double()
        zero = torch.zeros(len(X)).double()
        both = [
            float(normal(zero, K + data.noise * part).log_prob(data.y))
            for part in (
                eye,
                *(data.kernel(X / c).to_dense() / 2.0 + 1e-6 * eye for c in (0.3, 0.1, 0.03, 0.01)),
            )
        ]
    expected = max(both[1:]) - both[0]
    assert abs(evidence_of_roughness(data) - expected) < 1e-6 * max(1.0, abs(expected))
