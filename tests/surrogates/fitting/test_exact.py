"""Hyperparameters by the exact marginal likelihood."""

from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.likelihoods.sparse_outlier_noise import SparseOutlierGaussianLikelihood
from botorch.models.transforms.input import Warp
from gpytorch.likelihoods.noise_models import HomoskedasticNoise

from surrogates import FineStructureWarning, PathwiseGP, fit, fit_exact
from surrogates.fitting import exact
from tests import problems
from tests.problems import likelihood_of

X = problems.uniform(50, 2)
Y = torch.sin(6 * X.sum(1, keepdim=True)) + 0.1 * problems.normal(50, 1, seed=1)

LINE_SEARCH = 20  # evaluations, the most in one of SciPy's


def test_a_bounded_fit_climbs_from_the_present_hyperparameters_alone() -> None:
    model = PathwiseGP(X, Y)
    before = likelihood_of(model)
    evaluations: list[float] = []
    fit_exact(model, callback=lambda _, value: evaluations.append(value), max_evaluations=5)
    assert 5 <= len(evaluations) < 5 + LINE_SEARCH
    assert evaluations[0] == pytest.approx(len(X) * before)
    assert len(X) * likelihood_of(model) == pytest.approx(max(evaluations))
    assert max(evaluations) > evaluations[0] + 1.0


@pytest.mark.parametrize(
    ("bound", "options", "error"),
    [(0, {}, "at least 1, got 0"), (5, {"optimizer_kwargs": {}}, "where BoTorch fits, got 5")],
)
def test_a_bound_that_cannot_be_kept_is_refused(
    bound: int, options: dict[str, Any], error: str
) -> None:
    model = PathwiseGP(X, Y)
    with pytest.raises(ValueError, match=f"`max_evaluations` must be .*{error}"):
        fit_exact(model, max_evaluations=bound, **options)


def by_botorch(model: PathwiseGP) -> tuple[PathwiseGP, int]:
    """Return the model fitted by BoTorch's optimiser, and the number of evaluations."""
    evaluations: list[float] = []
    fit_exact(model, callback=lambda _, value: evaluations.append(value), optimizer_kwargs={})
    return model, len(evaluations)


@pytest.mark.parametrize(("d", "share"), [(3, 1.0), (10, 0.3)])
def test_the_optimum_is_that_of_botorchs_optimiser_in_fewer_evaluations(
    d: int, share: float
) -> None:
    points = problems.uniform(100, d, seed=1)
    values = torch.sin(6 * points[:, :1]) + share * problems.normal(100, 1, seed=2)
    seen: list[float] = []
    ours = fit_exact(PathwiseGP(points, values), callback=lambda _, value: seen.append(value))
    theirs, evaluations = by_botorch(PathwiseGP(points, values))
    assert likelihood_of(ours) > likelihood_of(theirs) - 1e-3
    assert len(seen) < 0.75 * evaluations
    assert max(seen) == pytest.approx(100 * likelihood_of(ours), abs=1e-6)


def test_little_noise_at_the_start_does_not_end_in_taking_noise_for_signal() -> None:
    points = problems.uniform(100, 3, seed=1)
    noise = problems.normal(100, 1, seed=2)
    model = PathwiseGP(points, torch.sin(6 * points[:, :2].sum(1, keepdim=True)) + noise)
    model.likelihood.noise = 1e-3
    assert fit_exact(model).noise.item() > 0.3  # of 1, true: 0.67


def test_hyperparameters_without_noise_are_found_too() -> None:
    points = problems.uniform(100, 15)
    model = fit_exact(PathwiseGP(points, torch.sin(6 * points[:, :1])))
    theirs, _ = by_botorch(PathwiseGP(points, torch.sin(6 * points[:, :1])))
    assert model.noise.item() < 1.01e-4  # the default's lower bound is 1e-4
    assert likelihood_of(model) > likelihood_of(theirs) - 1e-3


def test_what_is_not_a_function_of_mean_kernel_and_noise_goes_to_botorch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exact, "_search", None)  # not called
    warp = Warp(d=2, indices=[0, 1])
    outliers = SparseOutlierGaussianLikelihood(HomoskedasticNoise().double(), dim=20)
    for model in (
        PathwiseGP(X[:20], Y[:20].expand(-1, 2)),
        PathwiseGP(X[:20], Y[:20], input_transform=warp),
        SingleTaskGP(X[:20], Y[:20], likelihood=outliers),
    ):
        before = model.covar_module.lengthscale.clone()
        fit_exact(model)
        assert not torch.equal(model.covar_module.lengthscale, before)
    assert not torch.equal(warp.concentration0, torch.ones(2, dtype=X.dtype))


def test_known_noise_stays_and_the_rest_is_fitted() -> None:
    given = torch.full_like(Y, 0.04)
    model = fit_exact(PathwiseGP(X, Y, given))
    theirs, _ = by_botorch(PathwiseGP(X, Y, given))
    torch.testing.assert_close(model.likelihood.noise, theirs.likelihood.noise)
    assert likelihood_of(model) > likelihood_of(theirs) - 1e-4


def test_too_many_points_are_refused_with_the_remedy() -> None:
    with pytest.raises(
        ValueError,
        match="`model` must have at most 4096 points .*, got 4097. Fit a model of a random subset",
    ):
        fit_exact(PathwiseGP(problems.uniform(4097, 1), problems.normal(4097, 1)))


def test_lengthscales_that_a_kernel_forbids_are_reported() -> None:
    points, f = problems.two_clusters(60, seed=1)
    with pytest.warns(FineStructureWarning, match=r"must allow other .* nats likelier at .*e-05"):
        model = fit(PathwiseGP(points, f), "exact")  # BoTorch's kernel keeps them above 0.025
    assert model.covar_module.lengthscale.min() > 0.02
