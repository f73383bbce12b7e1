"""L-BFGS on the exact likelihood of sets of data."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from surrogates import Cholesky, PathwiseGP, fit, fit_iterative, fit_minibatch, fit_subsets
from surrogates.fitting.batched import BatchedGP
from surrogates.fitting.search import (
    SCIPYS_BLAS,
    FitEndedError,
    FitWatch,
    Search,
    copy_set_apart,
    finer_starts,
    smooth_start,
    with_one_blas_thread,
)
from surrogates.rules.hyperparameters import log_prior, training_data
from tests import problems

N = 60
INDEX = torch.arange(N).unsqueeze(0)


def noisy_model() -> PathwiseGP:
    """Return a model with far too little noise."""
    X = problems.uniform(N, 3)
    model = PathwiseGP(X, torch.sin(6.0 * X[:, :1]) + problems.normal(N, 1, seed=1))
    model.likelihood.noise = 1e-3
    return model


def test_the_blas_of_scipy_has_one_thread_during_a_search_and_as_many_as_before_after_it() -> None:
    model = noisy_model()
    seen: list[int] = []

    def look(_number: int, _value: float) -> None:
        seen.extend(library["num_threads"] for library in SCIPYS_BLAS.info())

    with SCIPYS_BLAS.limit(limits=2):
        before = SCIPYS_BLAS.info()
        Search(look).maximise(BatchedGP(model), INDEX, maxiter=1)
        assert SCIPYS_BLAS.info() == before
    assert set(seen) <= {1} and bool(seen) == bool(before)


def test_the_blas_of_scipy_has_as_many_threads_as_before_after_searches_that_overlap() -> None:
    with SCIPYS_BLAS.limit(limits=2):
        before = SCIPYS_BLAS.info()
        first, second = with_one_blas_thread(), with_one_blas_thread()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert {library["num_threads"] for library in SCIPYS_BLAS.info()} <= {1}
        second.__exit__(None, None, None)
        assert SCIPYS_BLAS.info() == before


def test_the_first_step_changes_no_hyperparameter_by_more_than_a_factor_e(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = noisy_model()
    seen: list[Tensor] = []
    evaluated = BatchedGP.negative_log_likelihood

    def watch(gp: BatchedGP, *data: Tensor) -> Tensor:
        seen.append(torch.stack([gp.likelihood.noise[0], gp.covar_module.lengthscale[0, 0]]))
        return evaluated(gp, *data)

    monkeypatch.setattr(BatchedGP, "negative_log_likelihood", watch)
    Search(None).maximise(BatchedGP(model), INDEX)
    steps = (seen[1] / seen[0]).log().abs()
    assert 0.1 < steps.max().item() < 1.0 + 1e-6


def test_the_callback_is_told_the_log_posterior_of_all_data() -> None:
    model = noisy_model()
    told: list[float] = []
    search = Search(lambda _, value: told.append(value))
    best = search.maximise(BatchedGP(model), INDEX)
    with torch.no_grad():
        nll = best.negative_log_likelihood(INDEX)
    assert max(told) == pytest.approx((log_prior(best) - nll).item(), abs=1e-8)


def test_the_better_of_two_models_is_the_likelier() -> None:
    model = noisy_model()
    search = Search(None)
    given = BatchedGP(model)
    best = search.maximise(given, INDEX)
    assert search.likeliest(given, [search.best], INDEX) is best
    worse = BatchedGP(model)
    worse.likelihood.noise = math.exp(-8.0)
    search.best = worse
    assert search.likeliest(best, [search.best], INDEX) is best


def with_noise(model: PathwiseGP, noise: float) -> BatchedGP:
    gp = BatchedGP(model)
    gp.likelihood.noise = noise
    return gp


def test_a_search_ends_on_the_way_to_an_optimum_that_is_known() -> None:
    X = problems.uniform(N, 2)
    model = PathwiseGP(X, torch.sin(6.0 * X[:, :1]) + 0.1 * problems.normal(N, 1, seed=1))
    numbers: list[int] = []
    search = Search(lambda number, _: numbers.append(number))
    first = search.maximise(with_noise(model, 0.5), INDEX)
    known = len(numbers)
    second = search.maximise(with_noise(model, 0.001), INDEX)
    again = len(numbers) - known
    alone: list[int] = []
    search = Search(lambda number, _: alone.append(number))
    optimum = search.maximise(with_noise(model, 0.001), INDEX)
    assert again < 0.8 * len(alone)
    # What it returns is as likely, but for half a nat a hyperparameter
    likely, less, reached = (search.log_posterior(gp, INDEX) for gp in (first, second, optimum))
    assert likely == pytest.approx(reached, abs=0.01)
    assert likely - 2.0 < less <= likely + 0.01


@pytest.mark.parametrize("other", [0, 30])
def test_a_search_goes_on_beyond_a_valley_and_on_other_data(other: int) -> None:
    model = noisy_model()  # its optimum without noise is not that with it
    index = INDEX[:, other:]
    search, alone = (Search(None) for _ in range(2))
    search.maximise(with_noise(model, 1e-3), INDEX)
    found = search.maximise(with_noise(model, 1.0), index)
    torch.testing.assert_close(
        dict(found.named_parameters()),
        dict(alone.maximise(with_noise(model, 1.0), index).named_parameters()),
    )


def test_lengthscales_in_proportion_are_one_hyperparameter() -> None:
    model = noisy_model()
    model.likelihood.noise = 0.3
    ratios = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    model.covar_module = problems.matern(1.5, ard_num_dims=3).double()
    model.covar_module.lengthscale = ratios
    together = Search(None).maximise(BatchedGP(model), INDEX, in_proportion=True)
    found = together.covar_module.lengthscale[0] / ratios
    torch.testing.assert_close(found, found[:1].expand(3))
    # The same as one lengthscale for inputs in these units
    model.covar_module = problems.matern(1.5).double()
    in_units = BatchedGP(model)
    in_units.X = in_units.X / ratios
    alone = Search(None).maximise(in_units, INDEX)
    assert found[0].item() == pytest.approx(alone.covar_module.lengthscale.item(), rel=1e-2)
    assert together.likelihood.noise.item() == pytest.approx(
        alone.likelihood.noise.item(), rel=0.01
    )


def scaled(base: Kernel) -> ScaleKernel:
    return ScaleKernel(base)


def model_of(kernel: Kernel) -> PathwiseGP:
    X = problems.uniform(N, 2)
    return PathwiseGP(X, torch.sin(6.0 * X[:, :1]), covar_module=kernel)


def lengthscales(gp: BatchedGP | PathwiseGP) -> list[float]:
    parts = [part for part in gp.covar_module.modules() if isinstance(part, Kernel)]
    return [part.lengthscale.max().item() for part in parts if part.has_lengthscale]


@pytest.mark.parametrize("method", [None, "exact", "sample"])
def test_bounds_of_the_tutorial_of_trust_regions_are_kept(method: str | None) -> None:
    X = problems.uniform(N, 3)
    kernel = ScaleKernel(
        MaternKernel(nu=2.5, ard_num_dims=3, lengthscale_constraint=Interval(0.005, 4.0))
    )
    noise = GaussianLikelihood(noise_constraint=Interval(1e-8, 1e-3))
    model = PathwiseGP(X, X[:, :1], covar_module=kernel.double(), likelihood=noise.double())
    fit(model, *([] if method is None else [method]))
    assert ((kernel.base_kernel.lengthscale > 0.005) & (kernel.base_kernel.lengthscale < 4.0)).all()
    assert 1e-8 < model.likelihood.noise.item() < 1e-3
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("scale", [1e-6, 1e4])
def test_a_smooth_start_is_within_the_bounds_of_lengthscales(scale: float) -> None:
    X = scale * problems.uniform(N, 3)
    kernel = RBFKernel(lengthscale_constraint=Interval(0.005, 4.0)).double()
    start = smooth_start(BatchedGP(PathwiseGP(X, X[:, :1], covar_module=kernel)), 1.0)
    assert start is not None
    assert lengthscales(start) == pytest.approx([0.0055 if scale < 1.0 else 3.6])


def test_equal_parts_of_a_sum_start_apart() -> None:
    model = model_of(scaled(RBFKernel()) + scaled(RBFKernel()) + scaled(RBFKernel()))
    X, _ = training_data(model)
    smooth = smooth_start(BatchedGP(model), 1.0)
    assert smooth is not None
    for gp in (copy_set_apart(BatchedGP(model)), smooth, *finer_starts(BatchedGP(model), X, 1.0)):
        first, second, third = lengthscales(gp)
        assert second == pytest.approx(0.1 * first) and third == pytest.approx(0.01 * first)


@pytest.mark.parametrize(
    "fit",
    [
        partial(fit_iterative, num_steps=1, solver=Cholesky()),
        partial(fit_minibatch, max_epochs=1),
        partial(fit_subsets, num_subsets=2, subset_size=20, num_steps=2),
    ],
    ids=["iterative", "minibatch", "subsets"],
)
def test_every_fit_learns_equal_parts_of_a_sum_apart(fit: Callable[..., Any]) -> None:
    model = fit(model_of(scaled(RBFKernel()) + scaled(RBFKernel())))
    first, second = lengthscales(model)
    assert first > 3.0 * second


def bounded() -> RBFKernel:
    return RBFKernel(lengthscale_constraint=GreaterThan(0.5))


def fixed() -> RBFKernel:
    kernel = RBFKernel()
    kernel.raw_lengthscale.requires_grad_(False)
    return kernel


@pytest.mark.parametrize(
    "kernel",
    [
        scaled(RBFKernel()),
        scaled(RBFKernel(active_dims=[0])) + scaled(RBFKernel(active_dims=[1])),
        scaled(MaternKernel(1.5)) + scaled(MaternKernel(2.5)),
        scaled(RBFKernel()) * scaled(RBFKernel()),
        scaled(bounded()) + scaled(bounded()),
        scaled(fixed()) + scaled(fixed()),
    ],
    ids=["one", "of other inputs", "of other kinds", "product", "bounded", "fixed"],
)
def test_other_kernels_start_as_they_are(kernel: Kernel) -> None:
    gp = BatchedGP(model_of(kernel))
    assert copy_set_apart(gp) is gp


@pytest.mark.parametrize("rate", [0.5, 0.8, 0.9])
@pytest.mark.parametrize("limit", [1.0, -1.0])
def test_a_fit_ends_early_where_it_will_not_exceed_others_and_not_where_it_will(
    rate: float, limit: float
) -> None:
    watch = FitWatch()
    watch.begin(least=0.0)
    course = (limit - 1e3 * rate**number for number in range(200))
    ends = pytest.raises(FitEndedError) if limit < 0.0 else nullcontext()
    with ends:
        for number, likelihood in enumerate(course):
            watch(number, likelihood)
    assert watch.number < 200 if limit < 0.0 else watch.number == 200
