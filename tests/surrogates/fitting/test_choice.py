"""Learning hyperparameters with one call: what is chosen, and what every method owes."""

import logging
import math
import sys
import warnings
from collections.abc import Callable
from copy import deepcopy
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import ChainedInputTransform, Normalize, Warp
from gpytorch.constraints import Interval
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.priors import UniformPrior
from torch import Tensor

from surrogates import (
    FiniteFeatureGP,
    FourierFeatures,
    NoSignalWarning,
    PathwiseGP,
    VariationalGP,
    choose_fit,
    fit,
)
from surrogates.fitting import choice
from surrogates.operators.linalg import CHEAP_FACTOR_UP_TO
from tests import problems
from tests.pairs import each_pair
from tests.problems import hyperparameters, likelihood_of

N = 60
X = problems.uniform(N, 2)
Y = torch.sin(6.0 * X.sum(1, keepdim=True)) + 0.1 * problems.normal(N, 1, seed=1)

# Settings that make each method quick.
QUICK: dict[str, dict[str, Any]] = {
    "exact": {},
    "subsets": {"num_subsets": 2, "subset_size": 30, "num_steps": 10},
    "sample": {"sample_size": 40},
    "minibatch": {"batch_size": 16, "max_epochs": 4},
    "iterative": {"num_steps": 6},
    "finite_features": {"num_steps": 20, "batch_size": 20},
    "variational": {"num_steps": 20},
}
PACKAGE = Path(choice.__file__).parents[1]
GENERAL = ("exact", "sample", "subsets", "minibatch", "iterative")


def make_model(method: str = "exact", X: Tensor = X, Y: Tensor = Y, **settings: Any) -> PathwiseGP:
    if method == "finite_features":
        features = FourierFeatures(problems.rbf(), X.shape[1], 32)
        return FiniteFeatureGP(X, Y, feature_map=features, **settings)
    if method == "variational":
        return VariationalGP(X, Y, inducing_points=10, **settings)
    return PathwiseGP(X, Y, **settings)


def warp() -> ChainedInputTransform:
    return ChainedInputTransform(scale=Normalize(2), warp=Warp(d=2, indices=[0, 1]))


class Shift(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.by = torch.nn.Parameter(torch.zeros((), dtype=X.dtype))


class Shifted(PathwiseGP):
    shift: Shift

    def forward(self, x: Tensor) -> MultivariateNormal:
        prior = super().forward(x)
        return MultivariateNormal(prior.mean + self.shift.by, prior.lazy_covariance_matrix)


def _not_called(*_: object) -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("make", "n", "methods"),
    [
        (PathwiseGP, CHEAP_FACTOR_UP_TO, ("exact",)),
        (PathwiseGP, CHEAP_FACTOR_UP_TO + 1, ("sample", "sample")),
        (PathwiseGP, choice.EXACT_UP_TO + 1, ("sample", "iterative")),
        (PathwiseGP, choice.SAMPLE_IS_DENSE_UP_TO + 1, ("sample", "minibatch", "iterative")),
        (PathwiseGP, choice.REFINE_UP_TO, ("sample", "minibatch", "iterative")),
        (PathwiseGP, choice.REFINE_UP_TO + 1, ("sample", "minibatch")),
        (lambda X, Y: PathwiseGP(X, Y.expand(-1, 2)), CHEAP_FACTOR_UP_TO + 1, ("exact",)),
        (
            lambda X, Y: PathwiseGP(X, Y, input_transform=Warp(d=1, indices=[0])),
            choice.REFINE_UP_TO + 1,
            ("sample",),
        ),
        (lambda X, Y: VariationalGP(X, Y, inducing_points=4), 50, ("variational",)),
        (lambda X, Y: make_model("finite_features", X, Y), 50, ("finite_features",)),
    ],
    ids=[
        "few points",
        "more points",
        "two thousand",
        "thousands",
        "ten thousand",
        "many points",
        "two outputs",
        "learned transform",
        "variational",
        "finite features",
    ],
)
def test_the_choice_follows_the_model(
    make: Callable[[Tensor, Tensor], PathwiseGP], n: int, methods: tuple[str, ...]
) -> None:
    chosen = choose_fit(make(problems.uniform(n, 1), problems.normal(n, 1)))
    assert chosen.methods == methods and str(n) in chosen.reason


def test_what_was_chosen_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "surrogates.fitting"):
        fit(make_model())
    chosen, stage, *_ = [record.getMessage() for record in caplog.records]
    assert chosen == "fit_exact: 60 points, up to 1000 by the exact marginal likelihood"
    assert stage.startswith("exact: taken")


@pytest.mark.parametrize(("n", "d", "noise"), [(15, 1, 0.0), (45, 2, 0.1), (60, 3, 0.01)])
def test_replicates_that_are_equal_up_to_rounding_are_fitted_as_equal_ones(
    n: int, d: int, noise: float
) -> None:
    equal = problems.uniform(n // 3, d).repeat(3, 1)
    Y = torch.sin(5.0 * equal.sum(1, keepdim=True)) + noise * problems.normal(n, 1, seed=1)
    close = equal + 1e-10 * problems.normal(n, d, seed=2)
    values = [likelihood_of(fit(PathwiseGP(X, Y))) for X in (equal, close)]
    # L-BFGS ends where a step gains 1e-7 of the likelihood a datum
    assert values[1] == pytest.approx(values[0], abs=0.05)


@pytest.mark.parametrize("method", GENERAL)
def test_replicates_stop_no_method(method: str) -> None:
    inputs = problems.uniform(20, 2).repeat(3, 1) + 1e-10 * problems.normal(60, 2, seed=2)
    assert math.isfinite(likelihood_of(fit(make_model(X=inputs), method, **QUICK[method])))


@pytest.mark.parametrize("method", choice.METHODS)
def test_a_fit_that_raises_leaves_the_model_as_it_was(method: str) -> None:
    model = make_model(method)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    parts = [(part, part.training) for part in model.modules()]

    def fail(step: int, _: float) -> None:
        if step == 2:
            raise RuntimeError

    for data, arguments, kind in (
        (Y, {"callback": fail}, RuntimeError),
        (Y * torch.nan, {}, ValueError),
    ):
        model.set_train_data(targets=data.squeeze(1), strict=False)
        with pytest.raises(kind):
            choice.METHODS[method](model, **QUICK[method], **arguments)
        torch.testing.assert_close(model.state_dict(), state, rtol=0.0, atol=0.0)
        assert [(part, part.training) for part in model.modules()] == parts
        assert model.train_inputs[0] is not None and torch.equal(model.train_inputs[0], X)


def test_a_warning_that_is_an_error_leaves_the_model_as_it_was() -> None:
    model = make_model(Y=problems.normal(N, 1, seed=5))
    before = hyperparameters(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NoSignalWarning):
            fit(model)
    assert model.training and torch.equal(hyperparameters(model), before)


@pytest.mark.parametrize("method", choice.METHODS)
@pytest.mark.parametrize("is_module", [False, True], ids=["transform", "module"])
def test_what_is_learned_beside_mean_kernel_and_likelihood_is_fitted_or_refused(
    method: str, is_module: bool
) -> None:
    model = make_model(method, **({} if is_module else {"input_transform": warp()}))
    if is_module:
        model = Shifted(X, Y) if method in GENERAL else model
        model.shift = Shift()
    name, learned = next(
        (name, parameter)
        for name, parameter in model.named_parameters()
        if name in ("shift.by", "input_transform.warp.concentration0")
    )
    before = learned.detach().clone()
    if method in ("exact", "sample"):
        fit(model, method, **QUICK[method])
        assert not torch.equal(learned, before)
        before = learned.detach().clone()
    else:
        with pytest.raises(ValueError, match=f"`model` must learn nothing but .*{name}"):
            fit(model, method, callback=_not_called, **QUICK[method])
    for other in (model.shift if is_module else model.input_transform).parameters():
        other.requires_grad_(False)
    fit(model, method, **QUICK[method])
    assert torch.equal(learned, before)


@pytest.mark.parametrize("noise", [None, 0.02])
@pytest.mark.parametrize("kind", [PathwiseGP, SingleTaskGP])
def test_a_warp_learned_from_a_sample_is_that_of_the_posterior(
    kind: type[SingleTaskGP], noise: float | None
) -> None:
    known = None if noise is None else torch.full_like(Y, noise)
    model = kind(X, Y, known, input_transform=warp()).eval()  # its inputs are transformed already
    start = likelihood_of(model)
    fit(model, "sample", sample_size=50)
    assert likelihood_of(model) > start
    reference = SingleTaskGP(X, Y, known, input_transform=warp())
    reference.load_state_dict(model.state_dict(), keep_transforms=True)
    at = problems.uniform(20, 2, seed=3)
    with torch.no_grad():
        torch.testing.assert_close(model.posterior(at).mean, reference.posterior(at).mean)
        torch.testing.assert_close(model.posterior(at).variance, reference.posterior(at).variance)


@pytest.mark.parametrize("method", choice.METHODS)
def test_every_method_fits_reports_and_repeats(method: str) -> None:
    fitted = []
    told = []
    for seed in (0, 0, 1):
        model = make_model(method)
        before = hyperparameters(model)
        generator = torch.Generator().manual_seed(seed)
        assert (
            fit(
                model,
                method,
                generator=generator,
                callback=lambda *step: told.append(step),
                **QUICK[method],
            )
            is model
        )
        assert not torch.equal(hyperparameters(model), before)
        fitted.append(hyperparameters(model))
    steps = [step for step, _ in told].index(1, 1)
    assert [step for step, _ in told[:steps]] == list(range(1, steps + 1))
    assert told[:steps] == told[steps : 2 * steps]
    assert all(math.isfinite(value) for _, value in told)
    assert torch.equal(fitted[0], fitted[1])
    assert torch.equal(fitted[0], fitted[2]) == (method == "exact")


def interrupted_after(steps: int, method: str) -> PathwiseGP:
    model = make_model()

    def interrupt(step: int, value: float) -> None:
        if step == steps:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(model, method, callback=interrupt, **QUICK[method])
    return model


@pytest.mark.parametrize("method", [method for method in GENERAL if method != "sample"])
def test_an_interruption_keeps_the_best_so_far(method: str) -> None:
    assert likelihood_of(interrupted_after(5, method)) > likelihood_of(make_model()) + 0.01


def fit_to_call(number: int, model: PathwiseGP, method: str, settings: dict[str, Any]) -> None:
    """Fit ``model``, interrupted by the ``number``-th call of a function of the package."""
    calls = count(1)

    def watch(frame: FrameType, event: str, arg: Any) -> None:
        if str(PACKAGE) in frame.f_code.co_filename and next(calls) == number:
            raise KeyboardInterrupt

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        fit(model, method, **settings)
    finally:
        sys.settrace(before)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        *((method, QUICK[method]) for method in QUICK),
        ("exact", {"max_evaluations": 5}),
        ("sample", {"sample_size": 40, "restart": False}),
    ],
)
def test_an_interruption_at_any_call_of_a_fit_ends_as_one(
    method: str, settings: dict[str, Any]
) -> None:
    given = make_model(method)
    for number in (*range(1, 61, 7), 100, 200):
        model = deepcopy(given)
        with pytest.raises(KeyboardInterrupt):
            fit_to_call(number, model, method, settings)
        assert hyperparameters(model).isfinite().all()
        if method in ("exact", "sample"):
            rounding = torch.finfo(X.dtype).eps ** 0.5
            assert likelihood_of(model) >= likelihood_of(given) - rounding


def test_an_interrupted_fit_of_a_sample_is_no_worse_than_what_was_given() -> None:
    steps: list[int] = []
    fit(make_model(), "sample", callback=lambda step, value: steps.append(step), **QUICK["sample"])
    given = make_model()
    # The search starts far away: its first steps are worse than what was given, its last are not.
    assert torch.equal(hyperparameters(interrupted_after(2, "sample")), hyperparameters(given))
    assert likelihood_of(interrupted_after(steps[-1], "sample")) > likelihood_of(given) + 0.01


@pytest.mark.parametrize("method", ["minibatch", "subsets", "iterative"])
def test_a_prior_that_is_not_finite_leaves_the_model_as_it_was(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    before = hyperparameters(model)
    monkeypatch.setattr(
        f"surrogates.fitting.{method}.log_prior",
        lambda gp: gp.covar_module.raw_lengthscale.sum() * math.nan,
    )
    with pytest.raises(FloatingPointError, match="the model is as it was"):
        fit(model, method, **QUICK[method])
    assert torch.equal(hyperparameters(model), before)


@pytest.mark.parametrize("bounds", [None, Interval(0.005, 0.05)])
@pytest.mark.parametrize("method", (*GENERAL, "variational", None))
def test_a_fit_stays_where_the_prior_has_support(
    method: str | None, bounds: Interval | None
) -> None:
    kernel = RBFKernel(lengthscale_prior=UniformPrior(0.01, 0.05), lengthscale_constraint=bounds)
    kernel.lengthscale = 0.02
    model = fit(
        make_model(method or "exact", covar_module=kernel.to(X)),
        method,
        **QUICK.get(method or "", {}),
    )
    assert 0.02 < model.covar_module.lengthscale.item() < 0.05 * (1.0 + 1e-6)


def test_a_fit_reaches_the_end_of_the_support_that_is_likeliest() -> None:
    kernel = RBFKernel(lengthscale_prior=UniformPrior(0.01, 0.05)).to(X)
    kernel.lengthscale = 0.02
    model = fit(make_model(covar_module=kernel), "exact")
    assert model.covar_module.lengthscale.item() == pytest.approx(0.05, rel=1e-6)


@pytest.mark.parametrize("method", GENERAL)
def test_a_float32_model_stays_one_and_what_needs_no_gradient_stays(method: str) -> None:
    model = PathwiseGP(X.float(), Y.float())
    model.likelihood.requires_grad_(False)
    noise = model.noise.item()
    lengthscale = model.covar_module.lengthscale.clone()
    fit(model, method, **QUICK[method])
    assert model.noise.item() == noise and not torch.equal(
        model.covar_module.lengthscale, lengthscale
    )
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def constant_targets() -> tuple[Tensor, Tensor]:
    return X, torch.full_like(Y, 3.0)


def duplicated_inputs() -> tuple[Tensor, Tensor]:
    return X[:5].repeat(N // 5, 1), Y


def one_dimension_without_variation() -> tuple[Tensor, Tensor]:
    return torch.cat([X, torch.full((N, 1), 0.5, dtype=X.dtype)], dim=1), Y


def fewer_points_than_a_batch() -> tuple[Tensor, Tensor]:
    return X[:7], Y[:7]


def two_points() -> tuple[Tensor, Tensor]:
    return X[:2], Y[:2]


DEGENERATE = (
    constant_targets,
    duplicated_inputs,
    one_dimension_without_variation,
    fewer_points_than_a_batch,
    two_points,
)


@each_pair(data=DEGENERATE, method=choice.METHODS, dtype=[torch.float32, torch.float64])
def test_degenerate_data_give_a_finite_posterior(
    data: Callable[[], tuple[Tensor, Tensor]], method: str, dtype: torch.dtype
) -> None:
    inputs, targets = (part.to(dtype) for part in data())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # BoTorch advises to standardise what has no variance
        model = fit(make_model(method, inputs, targets), method, **QUICK[method])
    assert torch.isfinite(hyperparameters(model)).all()
    posterior = model.posterior(inputs[:4])
    assert torch.isfinite(posterior.mean).all() and torch.isfinite(posterior.variance).all()
    if data is constant_targets:
        torch.testing.assert_close(posterior.mean, targets[:4], rtol=0.0, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, 3.0, 1e8])
@pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized")
def test_targets_that_do_not_vary_are_neither_noise_nor_an_error(
    value: float, dtype: torch.dtype
) -> None:
    model = fit(PathwiseGP(X.to(dtype), torch.full_like(Y, value, dtype=dtype)))
    assert model.fit_account.chosen != "white noise"
    posterior = model.posterior(X[:4].to(dtype))
    torch.testing.assert_close(posterior.mean, torch.full_like(posterior.mean, value))
    assert (posterior.variance >= 0.0).all()


@pytest.mark.parametrize("method", choice.METHODS)
def test_data_that_are_not_finite_are_refused(method: str) -> None:
    for part, values in (("inputs", X), ("targets", Y.squeeze(1))):
        model = make_model(method)
        model.set_train_data(**{part: torch.full_like(values, math.nan)}, strict=False)
        before = hyperparameters(model)
        for refused in (choice.METHODS[method], fit):
            with pytest.raises(ValueError, match=f"`model.train_{part}` must be finite, got nan"):
                refused(model)
            assert torch.equal(hyperparameters(model), before)


def test_a_method_must_exist_and_a_model_must_be_one() -> None:
    with pytest.raises(
        ValueError, match="`method` must be one of exact, subsets, .*, got 'newton'"
    ):
        fit(make_model(), "newton")
    with pytest.raises(
        ValueError,
        match=(
            "`settings` must belong to a `method`, got num_steps without one. Choose one, such as"
        ),
    ):
        fit(make_model(), num_steps=3)
    with pytest.raises(
        TypeError, match="`model` must be a PathwiseGP or another SingleTaskGP, got Linear"
    ):
        fit(torch.nn.Linear(1, 1))  # type: ignore[type-var]
    with pytest.raises(TypeError, match="`model` must be a PathwiseGP .* got Tensor"):
        fit(torch.zeros(3, 1), torch.zeros(3, 1))  # type: ignore[type-var,arg-type]


@pytest.mark.parametrize(
    ("method", "settings"), [("exact", {}), ("sample", {"sample_size": 90})], ids=lambda v: str(v)
)
def test_equal_parts_of_a_sum_learn_a_long_and_a_short_lengthscale(
    method: str, settings: dict[str, Any]
) -> None:
    points = problems.uniform(90, 1)
    ripples = 0.4 * torch.sin(60.0 * points + 1.0) * torch.cos(3.0 * points)
    targets = torch.sin(5.0 * points) + ripples + 0.05 * problems.normal(90, 1, seed=1)
    kernel = ScaleKernel(RBFKernel()) + ScaleKernel(RBFKernel())
    model = fit(PathwiseGP(points, targets, covar_module=kernel), method, **settings)
    long, short = (part.base_kernel.lengthscale.item() for part in model.covar_module.kernels)
    assert long > 0.1 and short < 0.05
    assert model.likelihood.noise.item() < 0.05  # ripples are not taken for noise
