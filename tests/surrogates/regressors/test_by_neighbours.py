"""Predictions from nearest neighbours, against the exact posterior."""

from typing import Any

import pytest
import torch
from botorch.models.transforms.input import Normalize

from surrogates import Cholesky, PathwiseGP, memory
from surrogates.regressors.by_neighbours import predict_by_neighbours
from tests import problems

X = 10.0 + 5.0 * problems.uniform(60, 2)
Y = 3.0 + 7.0 * torch.sin(X.sum(1, keepdim=True)) + 0.1 * problems.normal(60, 1, seed=1)
Z = 10.0 + 5.0 * problems.uniform(9, 2, seed=2)


def model(**settings: Any) -> PathwiseGP:
    return PathwiseGP(X, Y, solver=Cholesky(), input_transform=Normalize(d=2), **settings)


@pytest.mark.parametrize("known_noise", [False, True], ids=["inferred", "known"])
@pytest.mark.parametrize("observation_noise", [False, True], ids=["function", "observation"])
def test_all_data_as_neighbours_give_the_exact_posterior(
    known_noise: bool, observation_noise: bool
) -> None:
    gp = model(
        train_Yvar=problems.vector_noise(60).unsqueeze(1) if known_noise else None,
        covar_module=problems.matern(1.5, 0.4),
    )
    mean, variance = predict_by_neighbours(
        gp, Z, num_neighbours=60, observation_noise=observation_noise
    )
    exact = gp.posterior(Z, observation_noise=observation_noise)
    torch.testing.assert_close(mean, exact.mean, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(variance, exact.variance, rtol=1e-7, atol=1e-7)


def test_more_neighbours_never_raise_the_variance_and_approach_the_mean() -> None:
    gp = model()
    exact = model().posterior(Z).mean
    predictions = [predict_by_neighbours(gp, Z, num_neighbours=k) for k in (1, 5, 20, 1000)]
    for (_, larger), (_, smaller) in zip(predictions, predictions[1:], strict=False):
        assert (smaller <= larger + 1e-9).all()
    errors = [(mean - exact).norm() for mean, _ in predictions]
    assert errors[2] < 0.2 * errors[0] and errors[3] < 1e-6


def test_points_predicted_together_are_predicted_alone() -> None:
    gp = model()
    many = Z.repeat(memory.part_size(len(X) ** 2) // len(Z) + 1, 1)  # in several parts
    alone = [predict_by_neighbours(gp, z.unsqueeze(0), num_neighbours=len(X)) for z in Z]
    for together, single in zip(
        predict_by_neighbours(gp, many, num_neighbours=len(X)),
        zip(*alone, strict=True),
        strict=True,
    ):
        torch.testing.assert_close(together, torch.cat(single).repeat(len(many) // len(Z), 1))


def test_float32_stays_float32() -> None:
    mean, variance = predict_by_neighbours(model().float(), Z.float(), num_neighbours=8)
    assert mean.dtype == variance.dtype == torch.float32 and mean.shape == variance.shape == (9, 1)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="`num_neighbours` must be at least 1, got 0"):
        predict_by_neighbours(model(), Z, num_neighbours=0)
    with pytest.raises(ValueError, match=r"`X` must have shape \(q, d\), got \(2, 9, 2\)"):
        predict_by_neighbours(model(), Z.expand(2, 9, 2))
    with pytest.raises(ValueError, match="`X` must be finite"):
        predict_by_neighbours(model(), Z * torch.nan)
    with pytest.raises(ValueError, match="`X` must have the model's 2 inputs, got 3"):
        predict_by_neighbours(
            PathwiseGP(X, Y, covar_module=problems.rbf()), torch.zeros(1, 3, dtype=torch.float64)
        )
