"""Every likelihood of GPyTorch and BoTorch: its noise counts as in ``SingleTaskGP``, or it is
refused by name.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import gpytorch.likelihoods as gl
import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.likelihoods.pairwise import PairwiseLogitLikelihood, PairwiseProbitLikelihood
from botorch.models.likelihoods.sparse_outlier_noise import SparseOutlierGaussianLikelihood
from botorch.sampling import IIDNormalSampler
from gpytorch.kernels import RBFKernel
from gpytorch.likelihoods import Likelihood
from gpytorch.likelihoods.noise_models import HeteroskedasticNoise

from surrogates import (
    CG,
    Cholesky,
    FiniteFeatureGP,
    FourierFeatures,
    PathwiseGP,
    VariationalGP,
    fit,
    fit_finite_features,
)
from surrogates.solvers.solver import Solver
from tests import problems

N = 40
X = problems.uniform(N, 3)
X[:, 2] = X[:, 2].round()  # two tasks
Y = torch.sin(4.0 * X.sum(1, keepdim=True)) + 0.1 * problems.normal(N, 1)
Z = problems.uniform(9, 3, seed=1)
Z[:, 2] = Z[:, 2].round()
VARIANCES = 0.01 + 0.2 * problems.uniform(N, seed=2)
NUM_PATHS = 1024


def noise_of_tasks(*variances: float) -> gl.HadamardGaussianLikelihood:
    likelihood = gl.HadamardGaussianLikelihood(len(variances), task_feature_index=-1)
    likelihood.noise = torch.tensor(variances)
    return likelihood


TAKEN: dict[str, Callable[[], Any]] = {
    "GaussianLikelihood": gl.GaussianLikelihood,
    "GaussianLikelihoodWithMissingObs": gl.GaussianLikelihoodWithMissingObs,
    "FixedNoiseGaussianLikelihood": lambda: gl.FixedNoiseGaussianLikelihood(VARIANCES),
    "with further noise": lambda: gl.FixedNoiseGaussianLikelihood(
        VARIANCES, learn_additional_noise=True
    ),
    "HadamardGaussianLikelihood": lambda: noise_of_tasks(0.01, 0.3),
}
REFUSED: dict[str, Callable[[], Any]] = {
    "BernoulliLikelihood": gl.BernoulliLikelihood,
    "BetaLikelihood": gl.BetaLikelihood,
    "DirichletClassificationLikelihood": lambda: gl.DirichletClassificationLikelihood(
        (Y[:, 0] > 0).long()
    ),
    "LaplaceLikelihood": gl.LaplaceLikelihood,
    "LikelihoodList": lambda: gl.LikelihoodList(gl.GaussianLikelihood()),
    "MultitaskGaussianLikelihood": lambda: gl.MultitaskGaussianLikelihood(num_tasks=2),
    "NegativeBinomialLikelihood": gl.NegativeBinomialLikelihood,
    "PoissonLikelihood": gl.PoissonLikelihood,
    "SoftmaxLikelihood": lambda: gl.SoftmaxLikelihood(num_classes=2, num_features=2),
    "StudentTLikelihood": gl.StudentTLikelihood,
    "PairwiseProbitLikelihood": PairwiseProbitLikelihood,
    "PairwiseLogitLikelihood": PairwiseLogitLikelihood,
    "SparseOutlierGaussianLikelihood": lambda: SparseOutlierGaussianLikelihood(
        gl.GaussianLikelihood(), dim=N
    ),
    # The noise depends on the place, by a model of its own
    "_GaussianLikelihoodBase": lambda: gl.gaussian_likelihood._GaussianLikelihoodBase(
        HeteroskedasticNoise(SingleTaskGP(X, Y))
    ),
}


def test_every_likelihood_of_gpytorch_is_tried() -> None:
    kinds = {getattr(gl, name) for name in gl.__all__}
    names = {
        kind.__name__
        for kind in kinds
        if isinstance(kind, type) and issubclass(kind, Likelihood) and kind is not Likelihood
    }
    assert {name for name in names if not name.startswith("_")} <= {*TAKEN, *REFUSED}


@pytest.mark.filterwarnings("ignore:GaussianLikelihoodWithMissingObs is replaced")
@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("solver", [Cholesky(), CG(tolerance=1e-8)], ids=["exact", "paths"])
def test_its_noise_counts_as_in_botorch(name: str, solver: Solver) -> None:
    model = PathwiseGP(X, Y, likelihood=TAKEN[name](), solver=solver, num_paths=NUM_PATHS)
    exact = SingleTaskGP(X, Y, likelihood=TAKEN[name]())
    for observation_noise in (False, True):
        ours, theirs = (
            each.posterior(Z, observation_noise=observation_noise) for each in (model, exact)
        )
        torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-5, atol=1e-5)
        errors = 1e-6 if isinstance(solver, Cholesky) else 5.0 * (2.0 / NUM_PATHS) ** 0.5
        assert (ours.variance / theirs.variance - 1.0).abs().max() < errors


def test_others_are_refused_by_name() -> None:
    for name in REFUSED:
        with pytest.raises(
            TypeError, match=f"`likelihood` must be a GaussianLikelihood .* got {name}"
        ):
            PathwiseGP(X, Y, likelihood=REFUSED[name]())


@pytest.mark.parametrize(
    ("likelihood", "outputs", "message"),
    [
        (
            gl.HadamardGaussianLikelihood(2),
            1,
            "from -3 to 2, as its `task_feature_index`.* got None",
        ),
        (gl.HadamardGaussianLikelihood(2, task_feature_index=3), 1, "from -3 to 2.* got 3"),
        (gl.HadamardGaussianLikelihood(2, task_feature_index=-4), 1, "from -3 to 2.* got -4"),
        (noise_of_tasks(0.1, 0.2), 2, r"of one output, got -1, the batch shape \(\) and 2 outputs"),
        (
            gl.HadamardGaussianLikelihood(2, batch_shape=torch.Size([3]), task_feature_index=-1),
            1,
            r"no batch shape.* got -1, the batch shape \(3,\)",
        ),
        (
            gl.HadamardGaussianLikelihood(2, task_feature_index=0),
            1,
            "a whole number, in column 0.* Give the likelihood the task's column",
        ),
        (noise_of_tasks(0.1), 1, "must hold numbers from 0 to 0, got 1"),
    ],
)
def test_noise_of_what_is_no_task_is_refused(
    likelihood: gl.HadamardGaussianLikelihood, outputs: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        PathwiseGP(X, Y.repeat(1, outputs), likelihood=likelihood)


@pytest.mark.parametrize("solver", [Cholesky(), CG()], ids=["exact", "paths"])
def test_values_of_known_noise_are_refused_beside_noise_of_tasks(solver: Solver) -> None:
    model = PathwiseGP(X, Y, likelihood=noise_of_tasks(0.1, 0.2), solver=solver, num_paths=8)
    sampler = IIDNormalSampler(torch.Size([2]), seed=0)
    points, values = X[:2], Y[:2]
    noise = torch.full_like(values, 0.1)
    fantasies = model.fantasize(points, sampler)
    assert torch.isfinite(fantasies.posterior(Z, observation_noise=True).variance).all()
    for call in (
        partial(model.posterior, points, observation_noise=noise),
        partial(model.fantasize, points, sampler, observation_noise=noise),
    ):
        with pytest.raises(ValueError, match="`observation_noise` must not be given where"):
            call()
    for seen in (model, fantasies):
        several = values.expand(*seen.batch_shape, 2, 1)
        for call in (
            partial(seen.condition_on_observations, points, several, noise=noise),
            partial(seen.get_fantasy_model, points, several.squeeze(-1), noise=noise.squeeze(-1)),
        ):
            with pytest.raises(ValueError, match="`noise` must not be given where"):
                call()


@pytest.mark.parametrize("kind", [FiniteFeatureGP, VariationalGP])
def test_noise_of_tasks_is_not_learned_where_one_variance_is(kind: type[PathwiseGP]) -> None:
    features = FourierFeatures(RBFKernel().double(), 3, 8)
    own = {"feature_map": features} if kind is FiniteFeatureGP else {"inducing_points": 6}
    model = kind(X, Y, likelihood=noise_of_tasks(0.1, 0.2), **own)
    with pytest.raises(ValueError, match="must have one noise variance for this fit, or known"):
        fit(model)


def test_further_noise_may_be_learned_beside_known_noise() -> None:
    features = FourierFeatures(RBFKernel().double(), 3, 8)
    likelihood = gl.FixedNoiseGaussianLikelihood(VARIANCES, learn_additional_noise=True)
    before = likelihood.second_noise.item()
    model = FiniteFeatureGP(X, Y, feature_map=features, likelihood=likelihood)
    fit_finite_features(model, num_steps=2)
    assert likelihood.second_noise.item() != before
