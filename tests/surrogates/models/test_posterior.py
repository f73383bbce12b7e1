"""The BoTorch posterior made of paths: its law, and samples that cost O(q S)."""

from copy import deepcopy

import pytest
import torch
from botorch.models.transforms.outcome import ChainedOutcomeTransform, Standardize

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


def test_laws_of_several_outputs_are_computed_with_and_transformed_again() -> None:
    X = problems.uniform(40, 2)
    Y = torch.cat([torch.sin(5 * X[:, :1]), X[:, 1:]], 1)
    twice = ChainedOutcomeTransform(first=Standardize(2), second=Standardize(2))
    model = PathwiseGP(X, Y, outcome_transform=twice, solver=CG(tolerance=1e-8))
    once = PathwiseGP(X, Y, outcome_transform=Standardize(2), solver=CG(tolerance=1e-8))
    points = problems.uniform(3, 2, seed=1)
    torch.testing.assert_close(model.posterior(points).mean, once.posterior(points).mean)
    law = once.posterior(points).distribution
    covariance = law.covariance_matrix
    jitter = 1e-3 * torch.eye(len(covariance))
    for other, factor, offset, extra in [
        (law * 2.0, 4.0, law.mean, 0.0),
        (law + law, 2.0, law.mean, 0.0),
        (law + 1.0, 1.0, torch.ones_like(law.mean), 0.0),
        (law.add_jitter(1e-3), 1.0, torch.zeros_like(law.mean), jitter),
    ]:
        torch.testing.assert_close(other.mean, law.mean + offset)
        torch.testing.assert_close(other.covariance_matrix, factor * covariance + extra)
        assert other.rsample(torch.Size([5])).shape == (5, 3, 2)
    assert torch.equal(deepcopy(law).covariance_matrix, covariance)
