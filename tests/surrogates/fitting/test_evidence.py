"""Predictive densities of left-out data."""

import math

import pytest
import torch
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import MaternKernel, PolynomialKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from torch import Tensor

from surrogates import PathwiseGP
from surrogates.fitting.batched import BatchedGP
from surrogates.fitting.evidence import Evidence, paired_difference
from tests import problems

N = 40
X = problems.uniform(N, 2)
Y = torch.sin(6.0 * X.sum(1, keepdim=True)) + 0.3 * problems.normal(N, 1, seed=1)


def make_model(**settings: Tensor) -> PathwiseGP:
    model = PathwiseGP(X, Y, **settings)
    model.covar_module.lengthscale = 0.4
    return model.eval()


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize("known", [False, True])
def test_of_few_data_it_is_the_exact_leave_one_out_density(known: bool) -> None:
    model = make_model(**({"train_Yvar": 0.05 + 0.1 * X[:, :1]} if known else {}))
    got = Evidence(model, generator()).log_densities(model)
    y = model.train_targets
    with torch.no_grad():
        H = model.covar_module(X).to_dense() + torch.diag(model.noise.expand(N))
        r = y - model.mean_module(X)
        expected = []
        for i in range(N):
            rest = [j for j in range(N) if j != i]
            weights = torch.linalg.solve(H[rest][:, rest], H[rest, i])
            variance = H[i, i] - weights @ H[rest, i]
            mean = weights @ r[rest]
            log_density = -0.5 * ((r[i] - mean) ** 2 / variance + (2 * math.pi * variance).log())
            expected.append(log_density)
    torch.testing.assert_close(got.sort().values, torch.stack(expected).sort().values)


def test_predictions_from_a_sample_are_those_of_the_model_of_it() -> None:
    model = make_model()
    points = problems.uniform(7, 2, seed=5)
    gp = BatchedGP(model)
    mean, variance = gp.predict(points.unsqueeze(0), gp.whole)
    posterior = model.posterior(points)
    scale = Y.std()
    torch.testing.assert_close(mean * scale + Y.mean(), posterior.mean.mT)
    torch.testing.assert_close(variance * scale.square(), posterior.variance.mT)


def test_duplicates_predict_one_another() -> None:
    model = PathwiseGP(X[:1].repeat(N, 1), Y).eval()
    model.likelihood.noise = 1e-4
    assert torch.isfinite(Evidence(model, generator()).log_densities(model)).all()


def test_the_gain_is_the_marginal_likelihood_above_that_of_noise() -> None:
    model = make_model()
    y = model.train_targets
    with torch.no_grad():
        H = model.covar_module(X).to_dense() + model.noise * torch.eye(N)
        of = torch.distributions.MultivariateNormal
        expected = of(model.mean_module(X), H).log_prob(y)
        expected -= torch.distributions.Normal(y.mean(), y.std()).log_prob(y).sum()
    assert Evidence(model, generator()).gain(model) == pytest.approx(expected.item())


def test_a_silent_model_is_the_mean_and_noise() -> None:
    model = make_model()
    evidence = Evidence(model, generator())
    assert evidence.silence(model)
    # N − 1 neighbours tell the mean to its own error
    gap = paired_difference(evidence.log_densities(model), evidence.white)
    assert abs(gap.mean) < 2.0 / N
    assert (model.posterior(problems.uniform(9, 2)).mean - Y.mean()).abs().max() < 1e-2


def test_a_kernel_without_lengthscales_cannot_be_silent() -> None:
    model = PathwiseGP(X, Y, covar_module=PolynomialKernel(power=2).to(X)).eval()
    before = model.noise.clone()
    assert not Evidence(model, generator()).silence(model)
    assert torch.equal(model.noise, before)


def test_a_bounded_kernel_is_silent_as_far_as_its_bounds_allow() -> None:
    matern = MaternKernel(lengthscale_constraint=Interval(0.005, 4.0))
    kernel = ScaleKernel(matern, outputscale_constraint=GreaterThan(0.01)).double()
    model = PathwiseGP(X, Y, covar_module=kernel).eval()
    assert Evidence(model, generator()).silence(model)
    assert matern.lengthscale.item() == pytest.approx(3.6)
    assert kernel.outputscale.item() == pytest.approx(0.011)


@pytest.mark.parametrize("excluded", ["noise", "mean"])
def test_a_model_whose_bounds_exclude_the_noise_or_its_mean_cannot_be_silent(excluded: str) -> None:
    bounds = {"noise": Interval(1e-8, 1e-3), "mean": Interval(0.5, 2.0)}
    model = PathwiseGP(X, Y).eval()
    if excluded == "noise":
        model.likelihood = GaussianLikelihood(noise_constraint=bounds[excluded]).double()
    else:
        model.mean_module = ConstantMean(constant_constraint=bounds[excluded]).double()
    before = [parameter.clone() for parameter in model.parameters()]
    assert not Evidence(model, generator()).silence(model)
    for parameter, value in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, value)


def test_a_difference_has_the_standard_error_of_its_pairs() -> None:
    gap = paired_difference(torch.tensor([3.0, 5.0]), torch.tensor([1.0, 2.0]))
    assert gap == pytest.approx((2.5, 0.5))
    assert str(gap) == "+2.5000 ± 0.5000"


def test_errors_of_neighbours_are_alike_where_a_function_is_too_fine_for_the_model() -> None:
    n = 400
    cells = problems.uniform(n // 8, 2, seed=1).repeat_interleave(8, 0)
    points = cells + 1e-3 * problems.uniform(n, 2, seed=2)
    fine = problems.normal(n // 8, 1, seed=3).repeat_interleave(8, 0)  # a value for each cell
    heavy = problems.normal(n, 1, seed=4) / problems.normal(n, 1, seed=5)  # Cauchy's law
    uneven = (0.1 + 5.0 * points[:, :1]) * problems.normal(n, 1, seed=6)
    shares = []
    for Y in (fine, heavy, uneven):
        model = PathwiseGP(points, Y).eval()
        model.covar_module.lengthscale = 100.0
        model.likelihood.noise = 1.0
        misfit = Evidence(model, generator()).misfit(model)
        assert 1e-5 < misfit.distance < 1e-3
        shares.append(misfit.nearer.double().mean().item())
    assert shares[0] > 0.9
    assert shares[1:] == pytest.approx([0.5, 0.5], abs=0.1)  # four standard errors


def test_the_points_in_clusters_tell_of_structure_that_others_hide() -> None:
    """Half of the points are far from all others, and say nothing of short distances."""
    n = 1000
    cells = problems.uniform(n // 8, 2, seed=1).repeat_interleave(4, 0)
    near = cells + 1e-4 * problems.uniform(n // 2, 2, seed=2)
    points = torch.cat([near, problems.uniform(n // 2, 2)])
    fine = problems.normal(n // 8, 1, seed=3).repeat_interleave(4, 0)
    model = PathwiseGP(points, torch.cat([fine, problems.normal(n // 2, 1, seed=4)])).eval()
    model.covar_module.lengthscale = 100.0
    model.likelihood.noise = 1.0
    misfit = Evidence(model, generator()).misfit(model)
    assert len(misfit.nearer) == n // 2 and misfit.distance < 1e-4
    assert misfit.nearer.double().mean().item() > 0.9


@pytest.mark.parametrize("n", [300, 1])
def test_points_that_are_there_twice_say_nothing_of_short_distances(n: int) -> None:
    points = torch.cat([problems.uniform(100, 2).repeat(2, 1), problems.uniform(n - 1, 2, seed=1)])
    values = torch.cat([problems.normal(100, 1).repeat(2, 1), problems.normal(n - 1, 1, seed=2)])
    model = PathwiseGP(points, values).eval()
    model.covar_module.lengthscale = 100.0
    model.likelihood.noise = 1.0
    nearer, _, distance = Evidence(model, generator()).misfit(model)
    assert len(nearer) == n - 1
    assert (distance > 0.0) == (n > 1)
    if n > 1:
        assert nearer.double().mean().item() == pytest.approx(0.5, abs=0.12)  # four errors


@pytest.mark.parametrize("lengthscale", [0.01, 0.025])
def test_a_long_series_misses_means_that_too_long_lengthscales_are_sure_of(
    lengthscale: float,
) -> None:
    """Nearest neighbours tell of each point well, whatever the lengthscale; all data do not."""
    points = problems.uniform(3000, 1)
    values = problems.series(points, 0.01) + 0.1 * problems.normal(3000, 1, seed=2)
    model = PathwiseGP(points, values).eval()
    model.covar_module.lengthscale = lengthscale
    model.likelihood.noise = 0.015
    evidence = Evidence(model, generator())
    gain = (evidence.log_densities(model) - evidence.white).mean()
    assert (gain < -0.5) if lengthscale > 0.01 else (gain > 1.0)
    missed = evidence.misfit(model).missed
    share = missed.double().mean().item()
    assert 200 < len(missed) <= 300 and ((share > 0.5) if lengthscale > 0.01 else (share < 0.1))


def test_a_point_of_two_blocks_counts_once() -> None:
    points = problems.uniform(1100, 2)
    model = PathwiseGP(points, problems.normal(1100, 1)).eval()
    nearer, missed, _ = Evidence(model, generator()).misfit(model)
    assert len(nearer) <= 550 and 100 <= len(missed) <= 120
