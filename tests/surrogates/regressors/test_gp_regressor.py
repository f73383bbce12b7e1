"""Gaussian-process regression with the interface of scikit-learn."""

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import check_estimator

from surrogates import CG, Cholesky, GPRegressor, NystromSGM, PathwiseGP
from tests import problems


def data(n: int = 40, d: int = 2, seed: int = 0) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    X = generator.uniform(-50.0, 200.0, (n, d))
    y = 10.0 + 5.0 * np.sin(X[:, 0] / 40.0) + 0.3 * generator.standard_normal(n)
    return X, y


@pytest.mark.parametrize("optimize", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore::surrogates.NoSignalWarning")  # some checks fit noise
def test_it_meets_the_conventions_of_scikit_learn(optimize: bool) -> None:
    check_estimator(GPRegressor(optimize=optimize), on_skip=None)


def kernel() -> ScaleKernel:
    return ScaleKernel(problems.matern(2.5, 0.4)).double()


def fixed(**settings: Any) -> GPRegressor:
    """Return a regressor whose hyperparameters are not learnt."""
    return GPRegressor(kernel(), optimize=False, **settings)


def exact(X: Any, y: Any, at: Any, noise: float) -> tuple[Any, Any]:
    """Return mean and covariance in closed form: inputs scaled to the unit cube, y standardised."""
    low = X.min(0)
    span = X.max(0) - low
    scale = y.std(ddof=1)
    Z, Q = (torch.tensor((points - low) / span) for points in (X, at))
    standardised = torch.tensor((y - y.mean()) / scale)
    mean, covariance = problems.exact_posterior(kernel(), Z, standardised, noise / scale**2, Q)
    return mean.numpy() * scale + y.mean(), covariance.numpy() * scale**2


def test_predictions_are_those_of_the_closed_form_in_the_units_of_y() -> None:
    X, y = data()
    at = data(7, seed=1)[0]
    regressor = fixed(noise_variance=0.25).fit(X, y)
    mean, covariance = exact(X, y, at, 0.25)
    np.testing.assert_allclose(regressor.predict(at), mean, rtol=1e-8)
    np.testing.assert_allclose(regressor.predict(at, return_cov=True)[1], covariance, atol=1e-8)
    deviation = regressor.predict(at, return_std=True)[1]
    np.testing.assert_allclose(deviation, np.sqrt(np.diag(covariance)), rtol=1e-6)
    assert regressor.noise_variance_ == 0.25


def test_outputs_are_independent_of_one_another() -> None:
    X, y = data()
    z = np.cos(X[:, 1] / 30.0)
    at = data(6, seed=1)[0]
    both = fixed(noise_variance=0.1).fit(X, np.stack([y, z], 1))
    mean, covariance = both.predict(at, return_cov=True)
    assert mean.shape == (6, 2)
    assert covariance.shape == (6, 6, 2)
    for column, target in enumerate((y, z)):
        alone = fixed(noise_variance=0.1).fit(X, target)
        own_mean, own_covariance = alone.predict(at, return_cov=True)
        np.testing.assert_allclose(mean[:, column], own_mean, rtol=1e-8)
        np.testing.assert_allclose(covariance[:, :, column], own_covariance, atol=1e-8)
    assert both.sample_y(at, 3).shape == (6, 2, 3)


def test_samples_have_the_posterior_s_moments() -> None:
    X, y = data()
    at = data(5, seed=1)[0]
    regressor = fixed(noise_variance=0.25).fit(X, y)
    samples = regressor.sample_y(at, 4000)
    mean, deviation = regressor.predict(at, return_std=True)
    assert samples.shape == (5, 4000)
    np.testing.assert_allclose(samples.mean(1), mean, atol=5 * deviation.max() / 4000**0.5)
    np.testing.assert_allclose(samples.std(1), deviation, rtol=0.1)


def test_the_same_seed_gives_the_same_samples() -> None:
    X, y = data()
    regressor = fixed().fit(X, y)
    np.testing.assert_array_equal(regressor.sample_y(X[:3], 2), regressor.sample_y(X[:3], 2))
    other = regressor.sample_y(X[:3], 2, random_state=1)
    assert not np.array_equal(regressor.sample_y(X[:3], 2), other)


def test_it_learns_the_noise_in_the_units_of_y() -> None:
    X, y = data(200)
    regressor = GPRegressor().fit(X, y)
    assert isinstance(regressor.model_, PathwiseGP)
    assert regressor.noise_variance_ == pytest.approx(0.09, rel=0.35)
    assert regressor.score(X, y) > 0.98
    assert regressor.fit_account_.chosen


@pytest.mark.parametrize("regressor", [GPRegressor(optimize=False), NystromSGM(random_state=0)])
def test_another_fit_that_raises_leaves_the_predictions(regressor: Any) -> None:
    X, y = data()
    predicted = clone(regressor).fit(X, y)
    before = predicted.predict(X)
    predicted.kernel = "rbf"
    with pytest.raises(TypeError):
        predicted.fit(X[:, :1], 1e3 * y)
    assert np.array_equal(predicted.predict(X), before)


def test_noise_may_be_known_for_every_target() -> None:
    X, y = data()
    regressor = fixed(noise_variance=np.full_like(y, 0.25)).fit(X, y)
    np.testing.assert_allclose(
        regressor.predict(X), fixed(noise_variance=0.25).fit(X, y).predict(X), rtol=1e-10
    )
    assert regressor.noise_variance_ is None
    with pytest.raises(ValueError, match=r"`noise_variance` must be a number or of the shape"):
        fixed(noise_variance=np.ones(3)).fit(X, y)


@pytest.mark.parametrize("noise", [-1.0, np.where(np.arange(40) == 7, -1.0, 0.5)])
def test_noise_below_zero_is_named_as_it_was_given(noise: Any) -> None:
    X, y = data(40)
    with pytest.raises(ValueError, match="`noise_variance` must be at least 0, got -1. Use 0"):
        fixed(noise_variance=noise).fit(X, 1e3 * y)


def test_settings_may_be_numbers_of_numpy() -> None:
    X, y = data()
    grid = {"num_paths": np.array([8, 16]), "num_features": np.array([64])}
    search = GridSearchCV(fixed(), grid, cv=2, error_score="raise").fit(X, y)
    samples = search.best_estimator_.sample_y(X[:3], np.int64(5))
    plain = search.best_estimator_.sample_y(X[:3], 5)
    assert samples.shape == (3, 5) and np.array_equal(samples, plain)
    model = search.best_estimator_.model_
    assert type(model.num_paths) is int and type(model.num_features) is int


def test_it_takes_tables_and_precisions() -> None:
    X, y = data()
    table = pd.DataFrame(X, columns=["length", "width"])
    regressor = fixed().fit(table, y)
    assert list(regressor.feature_names_in_) == ["length", "width"]
    single = fixed().fit(X.astype(np.float32), y.astype(np.float32))
    assert single.predict(X).dtype == np.float32
    np.testing.assert_allclose(single.predict(X), regressor.predict(table), rtol=1e-3)


AS_LAID_OUT = {
    "rows reversed": lambda A: A[::-1].copy()[::-1],
    "columns reversed": lambda A: A[..., ::-1].copy()[..., ::-1],
    "table reversed": lambda A: pd.DataFrame(A[::-1].copy())[::-1],
    "the other byte order": lambda A: A.astype(A.dtype.newbyteorder()),
    "integers in the other byte order": lambda A: A.astype(">i2"),
    "half precision": lambda A: A.astype(np.float16),
    "read-only": lambda A: np.broadcast_to(A, A.shape),
    "every other row": lambda A: np.repeat(A, 2, axis=0)[::2],
}


@pytest.mark.parametrize(
    "regressor", [GPRegressor(optimize=False), NystromSGM(random_state=0)], ids=["GP", "SGM"]
)
def test_arrays_may_lie_in_memory_in_any_way(regressor: Any) -> None:
    inputs = np.arange(40.0).reshape(20, 2) % 7
    values = inputs[:, 0] - inputs[:, 1]
    expected = clone(regressor).fit(inputs, values).predict(inputs)
    for laid_out in AS_LAID_OUT.values():
        targets = laid_out(values[:, None])
        targets = targets[0] if isinstance(targets, pd.DataFrame) else targets[:, 0]
        fitted = clone(regressor).fit(laid_out(inputs), targets)
        found = fitted.predict(laid_out(inputs))
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


def test_a_solver_gives_paths_with_the_same_mean() -> None:
    X, y = data()
    sampled = fixed(noise_variance=0.25, solver=CG(None, tolerance=1e-8)).fit(X, y)
    whole = fixed(noise_variance=0.25).fit(X, y)
    np.testing.assert_allclose(sampled.predict(X), whole.predict(X), rtol=1e-6)


def test_the_kernel_that_was_given_is_left_alone() -> None:
    X, y = data()
    kernel = RBFKernel()
    before = kernel.lengthscale.clone()
    regressor = clone(GPRegressor(kernel)).fit(X, y)
    assert torch.equal(kernel.lengthscale, before)
    assert not torch.equal(regressor.kernel_.lengthscale.float(), before)


def test_wrong_arguments_are_named() -> None:
    X, y = data()
    with pytest.raises(NotFittedError):
        GPRegressor().sample_y(X)
    with pytest.raises(TypeError, match=r"`kernel` must be a GPyTorch kernel"):
        GPRegressor("rbf").fit(X, y)
    regressor = fixed().fit(X, y)
    with pytest.raises(ValueError, match=r"must not both be True"):
        regressor.predict(X, return_std=True, return_cov=True)
    with pytest.raises(ValueError, match=r"`n_samples`"):
        regressor.sample_y(X, 0)


@pytest.mark.parametrize(
    ("scale", "offset", "dtype"),
    [
        (1e-6, 0.0, np.float32),
        (1e6, 0.0, np.float64),
        (1e-30, 0.0, np.float32),
        (1.0, 1e8, np.float64),
    ],
)
def test_the_units_of_y_scale_what_is_predicted(scale: float, offset: float, dtype: Any) -> None:
    X, y = data()
    at = data(6, seed=1)[0].astype(dtype)
    usual = fixed(noise_variance=0.09).fit(X.astype(dtype), y)
    shifted = fixed(noise_variance=0.09 * scale**2).fit(X.astype(dtype), scale * y + offset)
    mean, deviation = usual.predict(at, return_std=True)
    own_mean, own_deviation = shifted.predict(at, return_std=True)
    assert own_mean.dtype == own_deviation.dtype == dtype
    rounding = np.finfo(dtype).eps * (offset + 10.0 * scale)
    np.testing.assert_allclose(own_mean, scale * mean + offset, rtol=1e-6, atol=4.0 * rounding)
    np.testing.assert_allclose(own_deviation, scale * deviation, rtol=1e-5)
    samples = shifted.sample_y(at, 3)
    expected = scale * usual.sample_y(at, 3) + offset
    np.testing.assert_allclose(samples, expected, rtol=1e-4, atol=1e-4 * scale + 4.0 * rounding)
    learnt = fixed().fit(X.astype(dtype), scale * y + offset)
    ratio = learnt.noise_variance_ / fixed().fit(X.astype(dtype), y).noise_variance_
    assert ratio == pytest.approx(scale**2, rel=1e-6)


def test_few_rows_of_float32_are_as_precise_as_those_of_float64() -> None:
    X, y = data(20)
    X = X.astype(np.float32)
    at = data(6, seed=1)[0].astype(np.float32)
    y = np.sin(X[:, 0] / 100.0)
    single = fixed(noise_variance=1e-8).fit(X, y).predict(at, return_std=True)
    double = fixed(noise_variance=1e-8).fit(X.astype(float), y).predict(at, return_std=True)
    for own, expected in zip(single, double, strict=True):
        assert own.dtype == np.float32
        np.testing.assert_allclose(own, expected, rtol=1e-6)


# Few rows of float32 are computed in float64, many are not
@pytest.mark.parametrize(
    ("n", "dtype", "share"),
    [
        *product([40], [np.float32, np.float64], [0.0, 1e-30, 1e-9, 1.0, -1.0]),
        *product([2100], [np.float32], [1e-30, 1.0]),
    ],
)
def test_a_constant_column_of_any_size_changes_nothing(n: int, share: float, dtype: Any) -> None:
    X, y = data(n)
    X = X.astype(dtype)
    column = np.full((n, 1), share * np.finfo(dtype).max, dtype)
    settings = {"noise_variance": 0.25, "solver": Cholesky(), "num_features": 64, "num_paths": 4}
    expected = fixed(**settings).fit(X, y).predict(X[:5])
    wider = np.hstack([X, column])
    found = fixed(**settings).fit(wider, y).predict(wider[:5])
    np.testing.assert_allclose(found, expected, rtol=100.0 * np.finfo(dtype).eps ** 0.5)


@pytest.mark.parametrize("value", [0.0, 0.1, -5e3, 1e200])
def test_constant_targets_are_predicted(value: float) -> None:
    X, y = data(30)
    regressor = GPRegressor().fit(X, np.full_like(y, value))
    mean, deviation = regressor.predict(X, return_std=True)
    np.testing.assert_allclose(mean, value, rtol=1e-12)
    assert (deviation < 0.1).all()
    assert regressor.target_scale_ == 1.0


def test_one_row_is_data() -> None:
    X, y = data()
    regressor = fixed(noise_variance=1e-6).fit(X[:1], y[:1])
    mean, deviation = regressor.predict(X, return_std=True)
    np.testing.assert_allclose(mean, y[0], rtol=1e-9)
    assert deviation[0] < 0.01 < deviation[1:].min()
