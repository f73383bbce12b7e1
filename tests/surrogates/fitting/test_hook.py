"""BoTorch's ``fit_gpytorch_mll`` on our models: as on ``SingleTaskGP`` for few points,
without factorising all for many.
"""

import math

import pytest
import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import RBFKernel
from gpytorch.mlls import (
    ExactMarginalLogLikelihood,
    LeaveOneOutPseudoLikelihood,
    SumMarginalLogLikelihood,
)
from linear_operator.utils.errors import NotPSDError

from surrogates import PathwiseGP, fit
from tests import problems

N = 4097
X = problems.uniform(N, 2)
Y = torch.sin(6 * X.sum(1, keepdim=True)) + 0.1 * problems.normal(N, 1, seed=1)


def likelihood(model: SingleTaskGP) -> ExactMarginalLogLikelihood:
    return ExactMarginalLogLikelihood(model.likelihood, model)


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[SingleTaskGP]:
    """Note which models are fitted by other means than BoTorch's."""
    models: list[SingleTaskGP] = []
    monkeypatch.setattr("surrogates.fitting.hook.fit", models.append)
    return models


def test_few_points_are_fitted_as_botorch_fits_them() -> None:
    ours = PathwiseGP(X[:50], Y[:50])
    theirs = SingleTaskGP(X[:50], Y[:50])
    for model in (ours, theirs):
        mll = likelihood(model)
        assert (
            fit_gpytorch_mll(mll, optimizer_kwargs={"options": {"maxiter": 20}}) is mll
            and not model.training
        )
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(own, other)


def test_bounds_of_an_output_s_own_are_not_fitted() -> None:
    bounds = GreaterThan(torch.tensor([0.05, 1.5], dtype=torch.float64).reshape(2, 1, 1))
    kernel = RBFKernel(batch_shape=torch.Size([2]), lengthscale_constraint=bounds)
    model = PathwiseGP(X[:20], torch.cat([Y[:20], -Y[:20]], dim=1), covar_module=kernel)
    for fitted in (fit_gpytorch_mll, lambda mll: fit(mll.model)):
        with pytest.raises(
            ValueError,
            match=(
                r"`covar_module.raw_lengthscale` must have the same bounds for all outputs .*, got"
                r" bounds of shape \(2, 1, 1\)"
            ),
        ):
            fitted(likelihood(model))


@pytest.mark.parametrize("shape", [(), (1, 1), (1, 2), (2,)])
def test_bounds_of_all_outputs_are_fitted(shape: tuple[int, ...]) -> None:
    bounds = GreaterThan(torch.full(shape, 0.05, dtype=torch.float64))
    kernel = RBFKernel(ard_num_dims=2, batch_shape=torch.Size([2]), lengthscale_constraint=bounds)
    model = PathwiseGP(X[:20], torch.cat([Y[:20], -Y[:20]], dim=1), covar_module=kernel)
    fit_gpytorch_mll(likelihood(model), optimizer_kwargs={"options": {"maxiter": 2}})
    assert (model.covar_module.lengthscale != 0.05 + math.log(2.0)).all()


def test_a_failure_of_botorch_leaves_the_model_as_it_was() -> None:
    def fail(*_: object, **__: object) -> None:
        raise NotPSDError("by intent")

    model = PathwiseGP(X[:20], Y[:20]).eval()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    mll = likelihood(model).eval()
    with pytest.raises(ModelFittingError):
        fit_gpytorch_mll(mll, optimizer=fail)
    assert not any(part.training for part in mll.modules())
    for own, other in zip(model.parameters(), before, strict=True):
        assert torch.equal(own, other)


def test_another_fit_can_be_set_and_taken_back() -> None:
    model = PathwiseGP(X[:20], Y[:20])
    calls = []
    model.custom_fit = lambda **arguments: calls.append(arguments)
    mll = likelihood(model)
    fit_gpytorch_mll(mll, optimizer_kwargs={"options": {}})
    assert calls == [
        {"mll": mll, "closure": None, "closure_kwargs": None, "optimizer_kwargs": {"options": {}}}
    ]
    del model.custom_fit
    assert fit_gpytorch_mll(mll, optimizer_kwargs={"options": {"maxiter": 1}}) is mll
    assert len(calls) == 1


def test_many_points_are_not_fitted_by_botorch(fitted: list[SingleTaskGP]) -> None:
    model = PathwiseGP(X, Y)
    other = PathwiseGP(X, Y)
    mll = likelihood(model)
    assert fit_gpytorch_mll(mll) is mll and not model.training
    several = ModelListGP(other, PathwiseGP(X[:20], Y[:20]))
    assert not fit_gpytorch_mll(SumMarginalLogLikelihood(several.likelihood, several)).training
    assert [id(each) for each in fitted] == [id(model), id(other)]


def test_what_cannot_be_obeyed_is_named(fitted: list[SingleTaskGP]) -> None:
    model = PathwiseGP(X, Y)
    with pytest.raises(
        ValueError,
        match=(
            "`closure` must be None for 4097 points, got .*it would factorise a matrix of that size"
        ),
    ):
        fit_gpytorch_mll(likelihood(model), closure=print)
    with pytest.raises(
        TypeError,
        match=(
            "`mll` must be an ExactMarginalLogLikelihood for 4097 points, got"
            " LeaveOneOutPseudoLikelihood"
        ),
    ):
        fit_gpytorch_mll(LeaveOneOutPseudoLikelihood(model.likelihood, model))
    with pytest.warns(
        UserWarning, match="`optimizer_kwargs` of fit_gpytorch_mll do nothing for 4097 points"
    ):
        fit_gpytorch_mll(likelihood(model), optimizer_kwargs={"options": {"maxiter": 20}})
