"""The BoTorch posterior made of paths: its law, and samples that cost O(q S)."""

import pytest
import torch

from surrogates import CG, PathwiseGP, gaussian_likelihood
from surrogates.models.posterior import path_distribution
from tests import problems

Z = problems.uniform(4, 3, 5, 2, seed=1)


@pytest.fixture(scope="module")
def model() -> PathwiseGP:
    X = problems.uniform(40, 2)
    return PathwiseGP(
        X,
        5 + 3 * torch.sin(5 * X.sum(1, keepdim=True)),
        likelihood=gaussian_likelihood(0.05),
        solver=CG(tolerance=1e-8, preconditioner=None),
        num_paths=64,
        num_features=128,
    )


def test_the_covariance_is_that_of_the_paths_about_the_exact_mean(model: PathwiseGP) -> None:
    paths = model.paths(32)
    distribution = path_distribution(paths, Z)
    deviations = paths(Z) - paths.mean(Z)
    torch.testing.assert_close(distribution.mean, paths.mean(Z))
    torch.testing.assert_close(
        distribution.covariance_matrix, torch.einsum("sabi,sabj->abij", deviations, deviations) / 32
    )
    torch.testing.assert_close(distribution.variance, deviations.square().mean(0))


@pytest.mark.parametrize("batch", [(), (3,)], ids=["one", "batch"])
def test_samples_of_several_outputs_can_be_viewed_in_other_shapes(batch: tuple[int, ...]) -> None:
    X = problems.uniform(*batch, 10, 2)
    several = PathwiseGP(
        X, problems.normal(*batch, 10, 2), solver=CG(), num_paths=8, num_features=16
    )
    samples = several.posterior(X[..., :4, :]).rsample(torch.Size([5]))
    assert samples.shape == (5, *batch, 4, 2)
    assert samples.view(-1, 4, 2).shape[1:] == (4, 2)  # as BoTorch's hypervolumes do
