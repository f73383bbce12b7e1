"""Hyperparameters of neighbourhoods, against the exact marginal likelihood."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from surrogates import PathwiseGP, fit_exact, gaussian_likelihood
from surrogates.fitting.neighbours import Neighbours
from surrogates.fitting.subsets import fit_subsets
from tests import problems
from tests.problems import likelihood_of
from tests.refusals import assert_refused

X = problems.uniform(80, 2)
Y = torch.sin(6 * X.sum(1, keepdim=True)) + 0.1 * problems.normal(80, 1, seed=1)


def test_one_subset_of_all_data_reaches_the_exact_optimum() -> None:
    model = PathwiseGP(X, Y)
    assert (
        fit_subsets(model, num_subsets=1, subset_size=100, num_steps=60) is model
        and not model.training
    )
    assert likelihood_of(model) == pytest.approx(
        likelihood_of(fit_exact(PathwiseGP(X, Y))), abs=1e-3
    )


@pytest.mark.parametrize("average", ["log", "arithmetic"])
def test_subsets_fitted_side_by_side_are_the_average_of_subsets_fitted_alone(average: Any) -> None:
    def model(rows: Tensor | slice) -> PathwiseGP:
        kernel = problems.scaled(problems.matern(1.5), 1.0) + problems.scaled(
            problems.matern(0.5, active_dims=[0]), 0.5
        )
        return PathwiseGP(
            X[rows],
            Y[rows],
            covar_module=kernel,
            likelihood=gaussian_likelihood(0.2),
            outcome_transform=None,
        )

    together = fit_subsets(
        model(slice(None)),
        num_subsets=3,
        subset_size=25,
        average=average,
        num_steps=15,
        generator=torch.Generator().manual_seed(5),
    )
    centroids = torch.randperm(80, generator=torch.Generator().manual_seed(5))[:3]
    # One lengthscale: any metric finds the same
    index = Neighbours(X, together.covar_module.kernels[0]).of(X[centroids], 25)
    alone = [
        fit_subsets(model(rows), num_subsets=1, subset_size=25, num_steps=15) for rows in index
    ]
    for read in (lambda gp: gp.noise, lambda gp: gp.covar_module.kernels[0].outputscale):
        values = torch.stack([read(gp).detach() for gp in alone])
        expected = values.log().mean().exp() if average == "log" else values.mean()
        torch.testing.assert_close(read(together).detach(), expected, rtol=1e-5, atol=1e-8)
    constants = torch.stack([gp.mean_module.constant.detach() for gp in alone])
    torch.testing.assert_close(
        together.mean_module.constant.detach(), constants.mean(), rtol=1e-5, atol=1e-8
    )


def test_bad_arguments_are_named() -> None:
    assert_refused(
        ValueError,
        partial(fit_subsets, PathwiseGP(X, Y)),
        num_subsets=[0],
        subset_size=[1],
        average=["median"],
        num_steps=[0],
        learning_rate=[-1.0],
    )
