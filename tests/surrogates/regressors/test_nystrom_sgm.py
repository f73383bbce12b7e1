"""The Nyström stochastic gradient regressor, against dense algebra,
autograd and the formulas of its paper.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import check_estimator

from surrogates import NystromSGM
from surrogates.operators.tiles import StationaryTiles
from surrogates.regressors.nystrom_steps import (
    approximate_leverage_scores,
    descend,
    flattening,
    inverse_root,
    regime_schedule,
)
from tests import problems
from tests.refusals import assert_refused

LENGTHSCALE = 0.2


def kernel_matrix(a: np.ndarray, b: np.ndarray, lengthscale: float = LENGTHSCALE) -> np.ndarray:
    return np.exp(-((a[:, None, :] - b[None, :, :]) ** 2).sum(-1) / (2.0 * lengthscale**2))


def toy_data(n: int, seed: int = 0, noise: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    X = generator.random((n, 1))
    return X, np.sin(6.0 * X[:, 0]) + noise * generator.standard_normal(n)


# scikit-learn's checks: shapes, dtypes, input errors, clones, idempotent fits, …
def test_it_is_a_scikit_learn_estimator() -> None:
    check_estimator(NystromSGM(), on_skip=None)


# The iteration
def test_steps_go_down_the_gradient_of_the_mean_squared_error_in_the_nystrom_space(
    generator: torch.Generator,
) -> None:
    X, y = toy_data(30)
    centers = X[:6]
    root = inverse_root(torch.tensor(kernel_matrix(centers, centers)))
    features = torch.tensor(kernel_matrix(X, centers)) @ root
    targets = torch.tensor(y)
    start = torch.randn(root.shape[1], 1, generator=generator, dtype=torch.float64)
    point = start.clone().requires_grad_()
    loss = 0.5 * (features @ point - targets[:, None]).square().mean()
    (gradient,) = torch.autograd.grad(loss, point)
    # So short a step that 20 000 of them stay where they started: their sum is an average of
    # gradients there.
    step = 1e-12
    num_passes = 2000
    batch_size = 3
    *_, end = descend(
        features.__getitem__,
        targets,
        start,
        torch.tensor([step], dtype=torch.float64),
        batch_size,
        num_passes,
        generator,
    )
    num_steps = num_passes * len(X) // batch_size
    singles = features * (features @ start - targets[:, None])
    standard_error = singles.std(0) / math.sqrt(num_steps * batch_size)
    assert (
        (((start - end) / (step * num_steps) - gradient)[:, 0]).abs() < 5.0 * standard_error + 1e-4
    ).all()
    assert standard_error.max() < 0.01 * gradient.abs().max()


def test_the_batch_gradient_is_its_dense_transcription() -> None:
    X, y = toy_data(40)
    model = NystromSGM(
        LENGTHSCALE, 8, step_size=0.5, batch_size=40, num_passes=25, random_state=0
    ).fit(X, y)
    K_nm = kernel_matrix(X, model.centers_)
    K_mm = kernel_matrix(model.centers_, model.centers_)
    projection = np.linalg.pinv(K_mm, rcond=1e-15, hermitian=True)
    weights = np.zeros(8)
    for _ in range(25):
        weights = weights - 0.5 / 40 * projection @ (K_nm.T @ (K_nm @ weights - y))
    np.testing.assert_allclose(model.predict(X), K_nm @ weights, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("batch_size", [1, 6])
def test_with_all_centers_and_many_passes_it_interpolates(batch_size: int) -> None:
    X = np.arange(6.0)[:, None]
    y = np.array([0.3, -1.0, 0.5, 2.0, 0.0, -0.7])
    model = NystromSGM(
        0.8, 6, step_size=1.0, batch_size=batch_size, num_passes=2000, random_state=1
    ).fit(X, y)
    expected = np.linalg.pinv(kernel_matrix(X, X, 0.8)) @ y
    at = np.linspace(-1.0, 6.0, 50)[:, None]
    np.testing.assert_allclose(model.predict(at), kernel_matrix(at, X, 0.8) @ expected, atol=1e-8)


def test_a_pass_draws_n_data_whatever_the_batch() -> None:
    drawn: list[int] = []

    def rows(index: Any) -> torch.Tensor:
        drawn.append(len(index))
        return torch.zeros(len(index), 2)

    after = []
    for _ in descend(
        rows, torch.zeros(10), torch.zeros(2, 1), torch.ones(1), 4, 4, problems.seeded()
    ):
        after.append(sum(drawn))
    assert set(drawn) == {4}
    assert after == [12, 20, 32, 40]  # as soon as 10, 20, 30 and 40 have been


def test_steps_decay_with_their_number_over_all_passes(generator: torch.Generator) -> None:
    features = torch.randn(20, 4, generator=generator, dtype=torch.float64)
    targets = torch.randn(20, generator=generator, dtype=torch.float64)
    start = torch.zeros(4, 1, dtype=torch.float64)
    step = torch.tensor([0.3], dtype=torch.float64)
    found = list(descend(features.__getitem__, targets, start, step, 20, 5, generator, decay=0.5))
    c = start
    for number, after in enumerate(found, 1):
        gradient = features.T @ (features @ c - targets[:, None]) / 20
        c = c - 0.3 / math.sqrt(number) * gradient
        torch.testing.assert_close(after, c)


def test_a_singular_kernel_matrix_has_its_pseudo_inverse() -> None:
    points = np.repeat(np.arange(4.0)[:, None], 3, axis=0)
    K = kernel_matrix(points, points, 1.0)
    root = inverse_root(torch.tensor(K)).numpy()
    assert root.shape == (12, 4)
    np.testing.assert_allclose(
        root @ root.T, np.linalg.pinv(K, hermitian=True, rcond=1e-12), atol=1e-10
    )


# Corollary 3.3
@pytest.mark.parametrize(
    ("regime", "step_size", "batch_size", "num_iterations"),
    [  # n = 10⁴, ζ = 1/2, γ = 1/2: p = 2.5, n^(1/p) = 39.81, n^((2ζ+1)/p) = 1584.9, log n = 9.2103
        ("I", 1 / 1584.893, 1, 8 * 1584.893 * 39.8107),
        ("II", 1 / 9.210340, 1585, 8 * 9.210340 * 39.8107),
        ("III", 1e-4, 1, 8 * 1e4 * 39.8107),
        ("IV", 1e-2, 100, 8 * 1e2 * 39.8107),
    ],
)
def test_regimes_are_those_of_the_corollary(
    regime: str, step_size: float, batch_size: int, num_iterations: float
) -> None:
    plan = regime_schedule(regime, 10**4, 0.5, 0.5, kernel_bound=2.0)
    assert plan.step_size == pytest.approx(step_size / (8.0 * 2.0), rel=1e-5)
    assert plan.batch_size == batch_size
    assert plan.num_iterations == pytest.approx(num_iterations, abs=0.51, rel=1e-5)


@pytest.mark.parametrize(
    ("regime", "passes"), [("I", 8), ("II", round(8 * math.log(100))), ("III", 80), ("IV", 80)]
)
def test_a_regime_sets_what_is_not_given(regime: str, passes: int) -> None:
    X, y = toy_data(100)
    plan = regime_schedule(regime, 100)
    model = NystromSGM(LENGTHSCALE, 8, regime=regime, random_state=0).fit(X, y)
    assert (model.step_size_, model.batch_size_, model.num_passes_) == (
        plan.step_size,
        plan.batch_size,
        passes,
    )
    assert model.validation_error_ is None
    explicit = NystromSGM(
        LENGTHSCALE, 8, regime=regime, step_size=0.25, batch_size=50, num_passes=2, random_state=0
    ).fit(X, y)
    assert (explicit.step_size_, explicit.batch_size_, explicit.num_passes_) == (0.25, 50, 2)


def test_the_default_number_of_centers_is_that_of_the_theory() -> None:
    X, y = toy_data(100)
    settings: dict[str, Any] = {
        "source_exponent": 0.25,
        "capacity_exponent": 0.5,
        "regime": "IV",
        "random_state": 0,
    }
    assert len(NystromSGM(**settings).fit(X, y).centers_) == round(100**0.5 * math.log(100))
    assert len(NystromSGM(subset="leverage", **settings).fit(X, y).centers_) == round(
        100**0.25 * math.log(100)
    )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # of three passes
def test_the_scale_of_the_kernel_does_not_matter() -> None:
    X, y = toy_data(80)
    plain = RBFKernel()
    scaled = ScaleKernel(RBFKernel())
    plain.lengthscale = scaled.base_kernel.lengthscale = LENGTHSCALE
    scaled.outputscale = 100.0
    for settings in ({"regime": "IV"}, {"max_passes": 10}, {"subset": "leverage", "max_passes": 3}):
        first, second = (
            NystromSGM(kernel, 8, random_state=0, **settings).fit(X, y)
            for kernel in (plain, scaled)
        )  # type: ignore[arg-type]
        np.testing.assert_allclose(first.predict(X), second.predict(X), atol=1e-5)


@pytest.mark.parametrize(
    ("of_inputs", "of_targets"), [(1.0, 1e-165), (1.0, 1e155), (1e155, 1.0), (1e-165, 1.0)]
)
def test_the_scale_of_the_data_does_not_matter(of_inputs: float, of_targets: float) -> None:
    X = np.random.default_rng(0).random((200, 3))
    y = X.sum(1)
    plain, scaled = (
        NystromSGM(random_state=0).fit(a * X, b * y)
        for a, b in ((1.0, 1.0), (of_inputs, of_targets))
    )
    assert scaled.num_passes_ == plain.num_passes_
    found = scaled.predict(of_inputs * X) / of_targets
    np.testing.assert_allclose(found, plain.predict(X), rtol=1e-4)


# Held-out data
@pytest.mark.parametrize("seed", [3, 11])  # the longest step is the best, and a shorter one
def test_the_step_and_the_pass_with_the_smallest_held_out_error_are_chosen(seed: int) -> None:
    X, y = toy_data(60, noise=1.0)
    settings: dict[str, Any] = {
        "kernel": LENGTHSCALE,
        "num_centers": 12,
        "max_passes": 200,
        "random_state": seed,
        "preconditioned": False,
        "refit": False,
    }
    model = NystromSGM(**settings).fit(X, y)
    curves = {
        step: NystromSGM(step_size=step, **settings).fit(X, y).validation_error_
        for step in model.step_sizes_
    }
    assert len(curves) == 3
    best = min(curves, key=lambda step: curves[step].min())
    assert model.step_size_ == best
    both = min(len(curves[best]), len(model.validation_error_))
    np.testing.assert_allclose(model.validation_error_[:both], curves[best][:both], rtol=1e-10)
    assert model.num_passes_ == model.validation_error_.argmin() + 1 < 200
    np.testing.assert_array_equal(
        model.coefficients_, model.coefficient_path_[model.num_passes_ - 1]
    )
    np.testing.assert_allclose(
        model.staged_predict(X)[model.num_passes_ - 1], model.predict(X), atol=1e-12
    )
    # With the passes given, only the step is chosen.
    given = NystromSGM(num_passes=7, **settings).fit(X, y)
    assert (given.num_passes_, given.step_size_) == (
        7,
        min(curves, key=lambda step: curves[step][6]),
    )


def ridge_error(X: np.ndarray, y: np.ndarray, lengthscale: float, split: int) -> float:
    """Return the smallest test error of kernel ridge regression over its penalties."""
    new = kernel_matrix(X[split:], X[:split], lengthscale)
    old = kernel_matrix(X[:split], X[:split], lengthscale)
    errors = []
    for penalty in 10.0 ** np.arange(-7, 2):
        weights = np.linalg.solve(old + penalty * np.eye(split), y[:split])
        errors.append(np.sqrt(np.square(new @ weights - y[split:]).mean()))
    return float(min(errors))


# In eight dimensions the error falls by a tenth for a tenth more data
@pytest.mark.parametrize(
    ("dim", "noise"), [(1, 0.02), (4, 0.05), pytest.param(8, 0.1, marks=pytest.mark.slow)]
)
def test_it_comes_near_kernel_ridge_regression(dim: int, noise: float) -> None:
    generator = np.random.default_rng(dim)
    X = generator.random((1200, dim))
    y = np.sin(2.0 * X @ generator.standard_normal((dim, 3))).sum(1)
    y = (y - y.mean()) / y.std() + noise * generator.standard_normal(len(y))
    lengthscale, num_centers = (0.8, 400) if dim < 8 else (2.0, 800)
    model = NystromSGM(lengthscale, num_centers, random_state=0).fit(X[:900], y[:900])
    error = np.sqrt(np.square(model.predict(X[900:]) - y[900:]).mean())
    assert error < 1.1 * ridge_error(X, y, lengthscale, 900)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("refit", "heeded"), [(False, 8), (True, 10)])
def test_a_refit_learns_from_the_held_out_data(refit: bool, heeded: int) -> None:
    X, y = toy_data(10)
    model = NystromSGM(
        LENGTHSCALE,
        4,
        step_size=0.1,
        max_passes=1,
        batch_size=8,  # the batch gradient, of the 8 kept data or of all
        validation_fraction=0.2,
        refit=refit,
        random_state=0,
    )
    before = model.fit(X, y).coefficients_
    changed = [model.fit(X, y + 5.0 * row).coefficients_ for row in np.eye(10)]
    assert sum(not np.allclose(after, before) for after in changed) == heeded


def test_passes_that_did_not_suffice_are_a_warning() -> None:
    X, y = toy_data(300, noise=0.01)
    with pytest.warns(ConvergenceWarning, match="still falling after `max_passes` = 3 passes"):
        NystromSGM(0.5, 50, max_passes=3, preconditioned=False, random_state=0).fit(X, y)


def test_flattening_makes_the_largest_eigenvalues_the_same(generator: torch.Generator) -> None:
    basis = torch.randn(500, 20, dtype=torch.float64, generator=generator)
    features = basis * 0.5 ** torch.arange(20, dtype=torch.float64)
    before = torch.linalg.eigvalsh(features.T @ features / 500).flip(0)
    flat = features @ flattening(features, batch_size=40)
    after = torch.linalg.eigvalsh(flat.T @ flat / 500).flip(0)
    k = int((after > 0.999 * after[0]).sum())
    assert 2 <= k < 20
    torch.testing.assert_close(after[:k], before[k - 1].expand(k))
    torch.testing.assert_close(after[k:], before[k:])
    # No further: what is left is below the noise of a batch.
    assert before[k - 1] * 40 <= flat.square().sum(1).max() < before[k - 2] * 40


def test_the_validation_error_is_that_of_data_that_were_not_fitted() -> None:
    # Isolated points, each of its own target: what is learnt of one says nothing of the others.
    X = 100.0 * np.arange(20.0)[:, None]
    y = np.ones(20)
    model = NystromSGM(
        1.0, 15, batch_size=15, validation_fraction=0.25, max_passes=5, refit=False, random_state=0
    ).fit(X, y)
    np.testing.assert_allclose(model.validation_error_, np.ones(5))
    assert (model.predict(X) != 0).sum() == 15


# Centres
def test_leverage_scores_are_exact_when_the_sketch_is_everything() -> None:
    X, _ = toy_data(50)
    K = kernel_matrix(X, X)
    expected = np.diag(K @ np.linalg.inv(K + 0.01 * 50 * np.eye(50)))
    kernel = RBFKernel().double()
    kernel.lengthscale = torch.tensor(LENGTHSCALE, dtype=torch.float64)
    scores = approximate_leverage_scores(kernel, torch.tensor(X), torch.randperm(50), 0.01)
    np.testing.assert_allclose(scores.detach(), expected, rtol=1e-8)


def test_leverage_scores_from_a_sketch_find_the_points_that_matter(
    generator: torch.Generator,
) -> None:
    X = torch.cat(
        [0.05 * torch.randn(190, 1, generator=generator), torch.linspace(2.0, 11.0, 10)[:, None]]
    ).double()
    kernel = RBFKernel().double().requires_grad_(False)
    kernel.lengthscale = 0.5
    exact = approximate_leverage_scores(kernel, X, torch.arange(200), 1e-3)
    assert exact[190:].min() > 10 * exact[:190].max()
    averages = torch.stack(
        [
            approximate_leverage_scores(
                kernel, X, torch.randperm(200, generator=generator)[:60], 1e-3
            )
            for _ in range(100)
        ]
    )
    ratio = averages.mean(0) / exact
    assert ratio.min() > 0.5 and ratio.max() < 2.0


def test_centers_by_leverage_cover_what_uniform_ones_miss() -> None:
    generator = np.random.default_rng(0)
    X = np.concatenate(
        [0.05 * generator.standard_normal((290, 1)), np.linspace(2.0, 11.0, 10)[:, None]]
    )
    y = np.where(X[:, 0] > 1.0, 1.0, 0.0)
    errors = {}
    for subset in ("uniform", "leverage"):
        fits = [
            NystromSGM(0.5, 20, subset=subset, step_size=1.0, num_passes=60, random_state=seed).fit(
                X, y
            )
            for seed in range(5)
        ]
        errors[subset] = np.mean([np.square(fit.predict(X) - y)[290:].mean() for fit in fits])
    assert errors["leverage"] < 0.5 * errors["uniform"]


# Memory
def test_a_budget_changes_nothing_but_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = toy_data(30_000)
    settings: dict[str, Any] = {
        "kernel": LENGTHSCALE,
        "num_centers": 10,
        "num_passes": 2,
        "batch_size": 300,
        "random_state": 0,
    }
    kept = NystromSGM(**settings).fit(X, y)
    largest = [0]
    tile = StationaryTiles.tile

    def spied(self: StationaryTiles, i: Any, j: Any, **out: torch.Tensor) -> torch.Tensor:
        result = tile(self, i, j, **out)
        largest.append(result.numel())
        return result

    monkeypatch.setattr(StationaryTiles, "tile", spied)
    frugal = NystromSGM(memory_budget=0, **settings).fit(X, y)
    np.testing.assert_allclose(frugal.coefficient_path_, kept.coefficient_path_, rtol=1e-9)
    assert max(largest) == 3000 * 10  # the held-out data; the rows of a batch are fewer


# As an estimator
def test_a_gpytorch_kernel_is_cloned_and_left_alone() -> None:
    X, y = toy_data(60)
    kernel = ScaleKernel(MaternKernel(nu=1.5))
    model = clone(NystromSGM(kernel, 10, random_state=0)).set_params(num_passes=5)
    assert isinstance(model.get_params(deep=False)["kernel"], ScaleKernel)
    model.fit(X, y)
    assert model.kernel_ is not model.kernel
    assert kernel.base_kernel.lengthscale.dtype == torch.float32
    at = torch.tensor([[0.3], [0.7]], dtype=torch.float64)
    expected = (
        model.kernel_(at, torch.tensor(model.centers_)).to_dense().detach().numpy()
        @ model.coefficients_
    )
    np.testing.assert_allclose(model.predict(at.numpy()), expected, rtol=1e-10)


def test_a_kernel_without_closed_form_fits() -> None:
    X = np.linspace(-1.0, 1.0, 30)[:, None]
    y = np.linspace(-2.0, 2.0, 30)
    model = NystromSGM(LinearKernel(), 5, step_size=1.0, num_passes=200, random_state=0).fit(X, y)
    assert len(inverse_root(torch.tensor(model.centers_ @ model.centers_.T))[0]) == 1
    np.testing.assert_allclose(model.predict(X), y, atol=1e-3)


def test_a_grid_search_may_pass_numpy_numbers() -> None:
    X, y = toy_data(60)
    grid = {"num_centers": np.array([2, 12]), "kernel": np.array([0.2])}
    search = GridSearchCV(NystromSGM(num_passes=20, random_state=0), grid, cv=3).fit(X, y)
    assert search.best_params_["num_centers"] == 12
    assert search.best_score_ > 0.8


def test_bad_parameters_are_named() -> None:
    X, y = toy_data(20)

    def fitted(**settings: Any) -> NystromSGM:
        return NystromSGM(random_state=0, **settings).fit(X, y)

    assert_refused(TypeError, fitted, num_centers=[2.5], kernel=["rbf"])
    assert_refused(
        ValueError,
        fitted,
        num_centers=[0, 19],  # of 18 data that are not held out
        batch_size=[0, 19],
        num_passes=[0],
        max_passes=[0],
        step_size=[0.0],
        subset=["best"],
        leverage_regularization=[-1.0],
        regime=["V"],
        source_exponent=[0.75],
        capacity_exponent=[1.5],
        validation_fraction=[0.0],
        memory_budget=[-1],
        kernel=[0.0, RBFKernel(batch_shape=torch.Size([2]))],
    )
    with pytest.raises(ValueError, match="must be below 2/κ² = 2 to be sure to converge, got 100"):
        fitted(step_size=1e6, batch_size=1)


@pytest.mark.parametrize("refit", [True, False])
@pytest.mark.parametrize(("step_size", "num_passes"), [(50.0, 1), (50.0, 3), (10.0, None)])
def test_a_descent_that_ends_above_its_start_has_diverged(
    step_size: float, num_passes: int | None, refit: bool
) -> None:
    X = np.random.default_rng(0).random((500, 3))
    settings: dict[str, Any] = {"num_passes": num_passes, "refit": refit, "random_state": 0}
    with pytest.raises(ValueError, match="must be below 2/κ² = 2 .* diverges. Reduce it."):
        NystromSGM(step_size=step_size, **settings).fit(X, X.sum(1))
    assert (
        NystromSGM(step_size=5.0, num_passes=3, random_state=0).fit(X, X.sum(1)).score(X, X.sum(1))
        > 0.95
    )


@pytest.mark.parametrize(("step_size", "batch_size"), [(2.0, 1), (5.0, None)])
def test_noise_that_a_stable_step_scatters_about_is_no_divergence(
    step_size: float, batch_size: int | None
) -> None:
    generator = np.random.default_rng(1)
    X = generator.random((500, 3))
    y = generator.standard_normal(500)
    settings: dict[str, Any] = {"batch_size": batch_size, "num_passes": 10, "random_state": 1}
    assert NystromSGM(step_size=step_size, **settings).fit(X, y).score(X, y) < 0.0


def test_targets_are_read_as_numbers_or_refused() -> None:
    X, y = toy_data(20)
    settings: dict[str, Any] = {"num_passes": 2, "random_state": 0}
    of_strings = NystromSGM(**settings).fit(X, y.astype(str))
    np.testing.assert_array_equal(
        of_strings.coefficients_, NystromSGM(**settings).fit(X, y).coefficients_
    )
    with pytest.raises(ValueError, match="could not convert string to float"):
        NystromSGM().fit(X, ["a"] * 20)


def test_centers_that_do_not_fit_are_refused_with_their_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, y = toy_data(200)
    monkeypatch.setattr("surrogates.memory.available", lambda device: 1000)
    with pytest.raises(
        MemoryError, match="A Nyström subspace of 100 centres needs .* Reduce `num_centers`"
    ):
        NystromSGM(num_centers=100).fit(X, y)
