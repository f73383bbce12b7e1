"""Nearest neighbours in the kernel's metric, against all distances."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel, RBFKernel

from surrogates.fitting.neighbours import Neighbours, inverse_lengthscales
from tests import problems

X = problems.normal(300, 3)
KERNEL = problems.rbf(problems.ARD, ard_num_dims=3)


def by_all_distances(X: torch.Tensor, Z: torch.Tensor, k: int) -> torch.Tensor:
    return torch.cdist(Z / problems.ARD, X / problems.ARD).topk(k, largest=False).values


def found(X: torch.Tensor, Z: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return ((X[index] - Z.unsqueeze(1)) / problems.ARD).norm(dim=-1).sort().values


@pytest.mark.parametrize("k", [1, 5, 300])
def test_neighbours_are_the_nearest_in_units_of_the_lengthscales(k: int) -> None:
    Z = problems.normal(20, 3, seed=1)
    torch.testing.assert_close(
        found(X, Z, Neighbours(X, KERNEL).of(Z, k)), by_all_distances(X, Z, k)
    )


def test_approximate_neighbours_are_at_most_half_as_far_again() -> None:
    X = problems.uniform(6000, 4)
    kernel = problems.rbf(1.0)
    index = Neighbours(X, kernel).of(X[:50], 10)
    distances = (X[index] - X[:50].unsqueeze(1)).norm(dim=-1).sort().values
    exact = torch.cdist(X[:50], X).topk(10, largest=False).values
    assert (distances <= 1.5 * exact + 1e-6).all()
    assert distances.mean() < 1.02 * exact.mean()


def test_a_common_factor_moves_no_neighbour_and_another_metric_does() -> None:
    kernel = problems.rbf(torch.ones(1, 3), ard_num_dims=3)
    neighbours = Neighbours(X, kernel)
    kernel.lengthscale = torch.full((1, 3), 9.0)
    assert not neighbours.follow(kernel)
    kernel.lengthscale = problems.ARD
    assert neighbours.follow(kernel) and not neighbours.follow(kernel)
    torch.testing.assert_close(
        found(X, X[:10], neighbours.of(X[:10], 4)), by_all_distances(X, X[:10], 4)
    )


def test_of_several_parts_the_shortest_lengthscale_of_every_input_counts() -> None:
    kernel = problems.scaled(problems.rbf(0.5, active_dims=[0, 2]), 2.0) + problems.matern(
        1.5, 0.25, active_dims=[2]
    )
    np.testing.assert_allclose(inverse_lengthscales(kernel, 4), [2.0, 0.0, 4.0, 0.0])
    np.testing.assert_allclose(
        inverse_lengthscales(
            problems.scaled(problems.scaled(problems.rbf(0.5, active_dims=[1]), 2.0), 1.0), 2
        ),
        [0.0, 2.0],
    )
    np.testing.assert_allclose(
        inverse_lengthscales(RBFKernel(ard_num_dims=2) * LinearKernel(), 2),
        [1.0 / np.log(2.0)] * 2,
        rtol=1e-6,
    )
    np.testing.assert_allclose(inverse_lengthscales(LinearKernel(), 2), [1.0, 1.0])
