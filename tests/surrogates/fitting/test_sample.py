"""The exact marginal likelihood of random samples."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from surrogates import PathwiseGP, fit_exact, fit_sample
from surrogates.fitting.batched import BatchedGP
from surrogates.fitting.sample import _joint
from surrogates.fitting.search import LITTLE_NOISE
from surrogates.rules.hyperparameters import training_data
from surrogates.rules.limits import LONGEST
from tests import problems
from tests.refusals import assert_refused

N = 200
X = problems.uniform(N, 2)
CLEAR = torch.sin(6.0 * X[:, :1])
NOISE = problems.normal(N, 1, seed=1)


@pytest.mark.parametrize("share", [0.01, 0.3])
def test_a_sample_of_all_data_has_the_exact_optimum(share: float) -> None:
    ours = fit_sample(PathwiseGP(X, CLEAR + share * NOISE), sample_size=N)
    exact = fit_exact(PathwiseGP(X, CLEAR + share * NOISE))
    assert ours.noise.item() == pytest.approx(exact.noise.item(), rel=0.02)
    ratio = ours.covar_module.lengthscale / exact.covar_module.lengthscale
    assert ratio[0, 0].item() == pytest.approx(1.0, abs=0.05)  # the other input is irrelevant


def test_a_second_start_is_tried_where_much_is_left_as_noise() -> None:
    for share, starts in ((0.01, 1), (1.0, 2)):
        model = PathwiseGP(X, CLEAR + share * NOISE)
        given = model.noise.item()
        seen: list[float] = []
        evaluated = BatchedGP.negative_log_likelihood

        def watch(gp: BatchedGP, *data: Tensor, seen: list[float] = seen, f=evaluated) -> Tensor:  # type: ignore[no-untyped-def]
            seen.append(gp.likelihood.noise.item())
            return f(gp, *data)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BatchedGP, "negative_log_likelihood", watch)
            fit_sample(model)
        tried = any(noise == pytest.approx(given, rel=1e-6) for noise in seen)
        assert seen[0] == pytest.approx(0.5) and tried == (starts == 2)
        assert (model.noise.item() > LITTLE_NOISE) == (starts == 2)


def test_starts_are_judged_by_the_joint_density_of_others_given_the_sample() -> None:
    model = PathwiseGP(X, CLEAR + NOISE)
    X_all, y = training_data(model)
    sample = torch.arange(150)
    others = torch.arange(150, N)
    ours = _joint(BatchedGP(model), sample.unsqueeze(0), others)
    with torch.no_grad():
        mean = model.mean_module(X_all)
        H = model.covar_module(X_all).to_dense() + model.noise * torch.eye(N, dtype=X.dtype)
        gain = torch.linalg.solve(H[:150, :150], H[:150, 150:]).mT
        conditional = torch.distributions.MultivariateNormal(
            mean[150:] + gain @ (y - mean)[:150], H[150:, 150:] - gain @ H[:150, 150:]
        )
    assert ours == pytest.approx(conditional.log_prob(y[150:]).item(), rel=1e-8)


def test_more_samples_come_nearer_to_the_truth() -> None:
    errors = []
    for num_samples in (1, 4):
        noises = []
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            model = PathwiseGP(X, CLEAR + NOISE)
            fit_sample(model, sample_size=50, num_samples=num_samples, generator=generator)
            noises.append(model.noise.item() * (CLEAR + NOISE).var().item())
        errors.append((torch.tensor(noises) - NOISE.var()).square().mean().item())
    assert errors[1] < errors[0]


def test_an_irrelevant_input_has_a_lengthscale_in_its_range() -> None:
    model = fit_sample(
        PathwiseGP(X, CLEAR, covar_module=problems.matern(2.5, ard_num_dims=2).to(X))
    )
    assert (model.covar_module.lengthscale <= 1.0001 * LONGEST).all()


def test_bad_settings_are_named() -> None:
    assert_refused(
        ValueError, partial(fit_sample, PathwiseGP(X, CLEAR)), sample_size=[1], num_samples=[0]
    )


@pytest.mark.parametrize(
    ("fitted", "n"),  # where the others judge, or the sample itself, or all
    [
        (partial(fit_sample, sample_size=80), 300),
        (partial(fit_sample, sample_size=80), 180),
        (fit_exact, 60),
    ],
)
def test_a_function_within_clusters_is_found(fitted: Callable[..., PathwiseGP], n: int) -> None:
    points, f = problems.two_clusters(n, seed=1)
    Y = f + 0.01 * problems.normal(n, 1, seed=2)
    model = fitted(PathwiseGP(points, Y, covar_module=problems.rbf(ard_num_dims=2).to(points)))
    assert (model.covar_module.lengthscale < 1e-3).all()
    Z, truth = problems.two_clusters(200, seed=3)
    assert (model.posterior(Z).mean - truth).square().mean().sqrt() < 0.05 * truth.std()
