"""What the fits share."""

import math

import pytest
import torch
from gpytorch.constraints import GreaterThan, Interval, LessThan
from gpytorch.kernels import PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.priors import UniformPrior
from hypothesis import given, settings
from hypothesis import strategies as st

from surrogates import PathwiseGP
from surrogates.rules.hyperparameters import Coordinates, log_prior, training_data
from surrogates.rules.limits import lengthscale_limits
from tests import problems

X = problems.uniform(12, 2)
Y = problems.normal(12, 1, seed=1)


def bounded_model() -> PathwiseGP:
    """Return a model with every kind of bound, BoTorch's own, which raw values do not respect,
    among them.
    """
    base = RBFKernel(lengthscale_constraint=Interval(0.1, 3.0))
    return PathwiseGP(
        X, Y, covar_module=ScaleKernel(base, outputscale_constraint=LessThan(5.0)).to(X)
    )


def test_coordinates_stand_for_the_hyperparameters_that_they_were_read_from() -> None:
    model = bounded_model()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    Coordinates(model).write()
    torch.testing.assert_close(list(model.parameters()), before, rtol=1e-12, atol=1e-12)


def test_the_range_of_lengthscales_stays_within_the_bounds_that_are_set() -> None:
    model = bounded_model()
    coordinates = Coordinates(model, X)
    lengthscale = model.covar_module.base_kernel
    assert (coordinates.lower.isfinite() & coordinates.upper.isfinite()).sum() == 1
    coordinates.value += 1e3
    coordinates.write()
    assert lengthscale.lengthscale.item() == pytest.approx(3.0, rel=1e-6)


def test_lengthscales_in_proportion_start_and_stay_inside_their_range() -> None:
    model = PathwiseGP(X, Y, covar_module=RBFKernel(ard_num_dims=2).to(X))
    model.covar_module.lengthscale = torch.tensor([1e-7, 1e7], dtype=X.dtype)
    coordinates = Coordinates(model, X, in_proportion=True)
    assert (coordinates.lower <= coordinates.value).all()
    assert (coordinates.value <= coordinates.upper).all()
    coordinates.write()
    lower, upper = lengthscale_limits(model.covar_module, X)[0][1:]
    lengthscale = model.covar_module.lengthscale
    assert (lengthscale >= 0.99 * lower).all() and (lengthscale <= 1.01 * upper).all()


def test_a_prior_whose_support_the_data_do_not_suggest_decides() -> None:
    model = PathwiseGP(X, Y, covar_module=RBFKernel(lengthscale_prior=UniformPrior(1e-5, 2e-5)))
    model.covar_module.lengthscale = 1.5e-5
    coordinates = Coordinates(model.to(X), X)
    assert (coordinates.lower <= coordinates.upper).all()
    coordinates.write()
    assert log_prior(model).isfinite()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ends", [(0.01, 0.05), (10.0, 10.5)])
def test_a_uniform_prior_is_above_zero_on_the_limits(
    ends: tuple[float, float], dtype: torch.dtype
) -> None:
    kernel = RBFKernel(lengthscale_prior=UniformPrior(*ends)).to(dtype)
    kernel.lengthscale = sum(ends) / 2
    for step in (-1e3, 1e3):
        coordinates = Coordinates(kernel)
        coordinates.value += step
        coordinates.write()
        assert log_prior(kernel).isfinite()


def test_a_uniform_prior_limits_nothing_but_the_learned_parameter_that_it_is_of() -> None:
    kernel = PeriodicKernel().to(X)  # both of its parameters start with the same value
    kernel.register_prior("lengthscale_prior", UniformPrior(0.5, 1.0), "lengthscale")
    limited = Coordinates(kernel).upper.isfinite()
    names = [name for name, _ in kernel.named_parameters()]
    assert [names[i] for i in limited.nonzero().flatten()] == ["raw_lengthscale"]
    logarithmic = RBFKernel().to(X)
    logarithmic.register_prior("prior", UniformPrior(-5.0, 0.5), lambda m: m.lengthscale.log())
    assert not Coordinates(logarithmic).upper.isfinite().any()
    fixed = ScaleKernel(RBFKernel(), outputscale_prior=UniformPrior(0.1, 5.0)).to(X)
    fixed.raw_outputscale.requires_grad_(False)
    assert not Coordinates(fixed).upper.isfinite().any()


def test_floors_lie_where_a_hyperparameter_still_follows_its_coordinate() -> None:
    model = PathwiseGP(X, Y)
    coordinates = Coordinates(model)
    floors = coordinates.floors
    coordinates.value.copy_(coordinates.value.where(floors.isinf(), floors))
    coordinates.write()
    for part in (model.likelihood.noise_covar, model.covar_module):
        (parameter, bounds), *_ = [found[1:] for found in part.named_parameters_and_constraints()]
        ratio = bounds.transform(parameter) / bounds.lower_bound
        torch.testing.assert_close(ratio, torch.full_like(ratio, 1.001), rtol=1e-6, atol=0.0)


@given(move=st.floats(-200.0, 80.0), dtype=st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=20, deadline=None)
def test_no_step_leaves_the_bounds(move: float, dtype: torch.dtype) -> None:
    model = PathwiseGP(X.to(dtype), Y.to(dtype)) if move > 0 else bounded_model().to(dtype)
    coordinates = Coordinates(model)
    coordinates.value += move
    coordinates.write()
    for _, parameter, bounds in model.named_parameters_and_constraints():
        assert torch.isfinite(parameter).all()
        assert bounds is None or bounds.check_raw(parameter)


def test_gradients_follow_the_chain_rule() -> None:
    model = bounded_model()
    coordinates = Coordinates(model)

    def objective() -> torch.Tensor:
        return (
            log_prior(model)
            + model.covar_module(X).to_dense().sum()
            + model.likelihood.noise.log().sum()
        )

    objective().backward()
    coordinates.pull_gradient()
    assert all(parameter.grad is None for parameter in model.parameters())
    step = 1e-5
    gradient = coordinates.value.grad
    assert gradient is not None
    for value, slope in zip(coordinates.value.split(1), gradient, strict=True):
        slopes = []
        for sign in (1.0, -1.0):
            value += sign * step
            coordinates.write()
            slopes.append(sign * objective().item() / (2.0 * step))
            value -= sign * step
        assert slope.item() == pytest.approx(sum(slopes), rel=1e-6, abs=1e-6)


def test_what_is_held_fixed_is_no_coordinate() -> None:
    model = PathwiseGP(X, Y)
    number = len(Coordinates(model).value)
    model.likelihood.requires_grad_(False)
    assert len(Coordinates(model).value) == number - 1
    with pytest.raises(ValueError, match="`model` must have a parameter with `requires_grad=True`"):
        Coordinates(model.requires_grad_(False))


def test_the_prior_is_that_of_all_hyperparameters() -> None:
    model = PathwiseGP(X, Y)
    kernel = model.covar_module
    noise = model.likelihood.noise_covar
    expected = (
        kernel.lengthscale_prior.log_prob(kernel.lengthscale).sum()
        + noise.noise_prior.log_prob(noise.noise).sum()
    )
    assert log_prior(model).item() == pytest.approx(expected.item())
    assert log_prior(problems.rbf()).item() == 0.0


def test_data_are_transformed_and_checked() -> None:
    model = PathwiseGP(X, Y)
    inputs, targets = training_data(model.train())
    assert not model.training and inputs.shape == (12, 2) and targets.shape == (12,)
    with pytest.raises(
        TypeError, match="`model` must be a PathwiseGP or another SingleTaskGP, got Linear"
    ):
        training_data(torch.nn.Linear(2, 2))  # type: ignore[arg-type]
    model.set_train_data(targets=torch.full((12,), math.nan, dtype=torch.float64), strict=False)
    with pytest.raises(ValueError, match="`model.train_targets` must be finite"):
        training_data(model)


def test_bounds_that_are_hit_are_left_again() -> None:
    model = PathwiseGP(X, Y)
    bounds = GreaterThan(1e-4, transform=None)
    model.likelihood.noise_covar.raw_noise.data.fill_(bounds.lower_bound.item())
    coordinates = Coordinates(model)
    assert torch.isfinite(coordinates.value).all()
