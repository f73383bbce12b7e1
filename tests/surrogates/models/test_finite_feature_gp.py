"""FiniteFeatureGP: the weight-space posterior against the dense one of the same kernel,
and as a BoTorch model.
"""

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.sampling.pathwise import draw_matheron_paths
from gpytorch.means import LinearMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor, nn

from acquisition import ParallelThompsonSampling
from surrogates import (
    AttentionFeatures,
    FiniteFeatureGP,
    FourierFeatures,
    NystromFeatures,
    gaussian_likelihood,
    memory,
)
from surrogates.functions.features import PriorPaths
from tests import problems
from tests.surrogates.models.toy_model import YVAR, D, N, X, Y, law
from tests.surrogates.models.toy_model import Z as Q

F = 12


class Network(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.first = nn.Parameter(2.0 * problems.normal(D, F, seed=seed))
        self.shift = nn.Parameter(problems.normal(F, seed=seed + 1))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.tanh(inputs @ self.first + self.shift)


MAPS: dict[str, Callable[[], nn.Module]] = {
    "network": Network,
    "fourier": lambda: FourierFeatures(problems.matern(1.5, 0.4), D, F),
    "nystrom": lambda: NystromFeatures(problems.rbf(0.4), X[:F]),
    "attention": lambda: AttentionFeatures(D, F),
    "fourier-of-network": lambda: nn.Sequential(
        Network(), FourierFeatures(problems.rbf(2.0), F, F)
    ),
}
NOISES: dict[str, Callable[[], dict[str, Any]]] = {
    "one-noise": lambda: {"likelihood": gaussian_likelihood(0.02)},
    "known-noise": lambda: {"train_Yvar": YVAR},
}
TRANSFORMS: dict[str, Callable[[], dict[str, Any]]] = {
    "defaults": dict,
    "none": lambda: {"outcome_transform": None},
    "both": lambda: {"input_transform": Normalize(D), "mean_module": LinearMean(D)},
}


def gp(feature_map: str = "network", outputscale: float = 1.7, **changes: Any) -> FiniteFeatureGP:
    model = FiniteFeatureGP(
        X, Y, feature_map=MAPS[feature_map](), **{**NOISES["one-noise"](), **changes}
    )
    model.covar_module.outputscale = outputscale
    return model


def dense(model: FiniteFeatureGP, **changes: Any) -> SingleTaskGP:
    """Return BoTorch's model with the kernel, mean and noise of ``model``."""
    own = {} if "train_Yvar" in changes else {"likelihood": model.likelihood}
    changes = {
        name: value for name, value in changes.items() if name not in ("likelihood", "mean_module")
    }
    return SingleTaskGP(
        X, Y, covar_module=model.covar_module, mean_module=model.mean_module, **own, **changes
    )


@pytest.mark.filterwarnings("ignore:Data .* is not standardized")
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("noise", NOISES)
def test_the_posterior_is_the_dense_one_of_the_same_kernel(noise: str, transform: str) -> None:
    changes = {**NOISES[noise](), **TRANSFORMS[transform]()}
    model = gp(**{"likelihood": None, **changes})
    exact = dense(
        model,
        **{
            **changes,
            **{
                name: value
                for name, value in TRANSFORMS[transform]().items()
                if name == "input_transform"
            },
        },
    )
    torch.testing.assert_close(law(model), law(exact), rtol=1e-8, atol=1e-8)
    exact.train()
    likelihood = ExactMarginalLogLikelihood(exact.likelihood, exact)
    with torch.no_grad():
        expected = N * likelihood(exact(*exact.train_inputs), exact.train_targets) - sum(
            prior.log_prob(closure(part)).sum()
            for _, part, prior, closure, _ in exact.named_priors()
        )
    assert model.log_marginal_likelihood() == pytest.approx(expected.item(), rel=1e-8)


@pytest.mark.parametrize("feature_map", MAPS)
def test_every_map_gives_the_dense_posterior_with_gradients(feature_map: str) -> None:
    model = gp(feature_map)
    results = []
    for each in (model, dense(model)):
        points = Q.clone().requires_grad_()
        posterior = each.posterior(points, observation_noise=True)
        value = posterior.mean.sum() + posterior.variance.log().sum()
        results.append((posterior.mean, posterior.variance, *torch.autograd.grad(value, points)))
    torch.testing.assert_close(*results, rtol=1e-7, atol=1e-7)


def test_chunks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = gp()
    before = law(model)
    value = model.log_marginal_likelihood()
    drawn = model.paths(3)(Q)
    monkeypatch.setattr(memory, "chunk_entries", lambda device: 7 * F)
    torch.testing.assert_close(law(gp()), before)
    torch.testing.assert_close(gp().paths(3)(Q), drawn)
    assert gp().log_marginal_likelihood() == pytest.approx(value)


def test_the_root_of_the_covariance_has_as_many_columns_as_there_are_features() -> None:
    posterior = gp().posterior(problems.uniform(200, D))
    assert posterior.base_sample_shape == (F,)
    assert posterior.distribution.lazy_covariance_matrix.root.shape == (200, F)
    assert posterior.rsample(torch.Size([2])).shape == (2, 200, 1)


def test_paths_have_the_moments_of_the_posterior() -> None:
    model = gp()
    num_paths = 20_000
    points = Q.reshape(-1, D)
    mean, covariance = law(model, points)
    values = model.paths(num_paths)(points)
    scale = covariance.diagonal().sqrt()
    assert ((values.mean(0) - mean.squeeze(-1)) / scale).abs().max() < 5 / math.sqrt(num_paths)
    assert ((values.T.cov() - covariance) / torch.outer(scale, scale)).abs().max() < 5 * math.sqrt(
        2 / num_paths
    )
    torch.testing.assert_close(model.paths(1).mean(points), mean.squeeze(-1))


def test_paths_are_functions_with_gradients_whose_seed_decides_them() -> None:
    model = gp(input_transform=Normalize(D))
    paths = model.paths(5)
    own = problems.uniform(5, 6, D, seed=4).requires_grad_()
    each = paths.each(own)
    expected = torch.stack([paths(own[i])[i] for i in range(5)])
    torch.testing.assert_close(each, expected)
    torch.testing.assert_close(
        torch.autograd.grad(each.sum(), own), torch.autograd.grad(expected.sum(), own)
    )
    assert torch.equal(model.paths(5)(Q), paths(Q)) and torch.equal(
        deepcopy(model).paths(5).to("cpu")(Q), paths(Q)
    )
    other = model.paths(5, generator=problems.seeded(7))
    assert not torch.allclose(other(Q), paths(Q))


CHANGES: dict[str, Callable[[FiniteFeatureGP], Any]] = {
    "weights": lambda m: m.covar_module.base_kernel.feature_map.first.data.mul_(0.5),
    "map": lambda m: setattr(m.covar_module.base_kernel, "feature_map", Network(5)),
    "targets": lambda m: m.set_train_data(X, m.train_targets.flip(0)),
    "state_dict": lambda m: m.load_state_dict(
        {**m.state_dict(), "mean_module.raw_constant": torch.tensor(2.0).double()}
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_after_a_change_the_posterior_is_that_of_a_fresh_model(name: str) -> None:
    model = gp()
    fresh = gp()
    change = CHANGES[name]
    before = law(model)
    drawn = model.paths(2)
    values = drawn(Q)
    change(model)
    change(fresh)
    assert max((a - b).abs().max() for a, b in zip(law(model), before, strict=True)) > 1e-3
    torch.testing.assert_close(law(model), law(fresh))
    assert torch.equal(drawn(Q), values)


def test_float32_is_as_close_as_its_rounding() -> None:
    model = FiniteFeatureGP(
        X.float(), Y.float(), feature_map=Network(), likelihood=gaussian_likelihood(0.02)
    )
    for ours, exact in zip(law(model, Q.float()), law(gp(outputscale=1.0)), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), exact, rtol=1e-3, atol=1e-3)


def test_fantasies_are_exactly_the_models_of_appended_data() -> None:
    model = gp(outcome_transform=None)
    new = problems.uniform(2, D, seed=5)
    values = torch.ones(2, 1).double()
    everything = FiniteFeatureGP(
        torch.cat([X, new]),
        torch.cat([Y, values]),
        feature_map=Network(),
        outcome_transform=None,
        likelihood=gaussian_likelihood(0.02),
    )
    everything.covar_module.outputscale = 1.7
    torch.testing.assert_close(law(model.condition_on_observations(new, values)), law(everything))
    for part, expected in zip(
        law(model.condition_on_observations(new, values.expand(3, 2, 1))),
        law(everything),
        strict=True,
    ):
        torch.testing.assert_close(part, expected.expand_as(part))
        assert part.shape[0] == 3


def test_several_outputs_are_independent_models_of_the_same_features() -> None:
    model = FiniteFeatureGP(X, torch.cat([Y, Y.flip(0)], 1), feature_map=Network())
    posterior = model.posterior(Q)
    for t, targets in enumerate((Y, Y.flip(0))):
        single = FiniteFeatureGP(X, targets, feature_map=Network())
        torch.testing.assert_close(posterior.mean[..., t : t + 1], single.posterior(Q).mean)
        torch.testing.assert_close(posterior.variance[..., t : t + 1], single.posterior(Q).variance)
    with pytest.raises(
        ValueError, match="`weight_posterior` needs a model of one output and one data set, got 2"
    ):
        model.weight_posterior()


def test_it_serves_thompson_sampling_and_botorchs_paths() -> None:
    bounds = torch.tensor([[0.0] * D, [1.0] * D]).double()
    small = {"num_candidates": 50, "num_rounds": 2, "num_starts": 2, "num_steps": 3}
    batch = ParallelThompsonSampling(gp(), bounds, **small).generate(q=4)
    assert batch.shape == (4, D)
    paths = draw_matheron_paths(gp(), torch.Size([5]))
    assert paths(Q[0]).shape == (5, 4)


class Nan(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return torch.where(inputs > 0.9, torch.nan, inputs)


class Growing(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.repeat(1, 1 + len(inputs) // 50)


@pytest.mark.parametrize(
    ("feature_map", "message"),
    [
        (nn.Flatten(0), r"`feature_map` must map \(16, 2\) to \(16, F\), got \(32,\)"),
        (Nan(), "`feature_map` must return finite features, got .* others among"),
        (Growing(), "`feature_map` must always return 2 features, as it did first, got 4"),
    ],
)
def test_a_bad_feature_map_is_refused(feature_map: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FiniteFeatureGP(X, Y, feature_map=feature_map).log_marginal_likelihood()


def test_prior_paths_cannot_be_given_and_memory_is_foreseen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prior = PriorPaths.draw(problems.rbf(), D, 2, num_features=8, generator=problems.seeded())
    with pytest.raises(ValueError, match="`prior` must be None for a FiniteFeatureGP"):
        gp().paths(2, prior=prior)
    monkeypatch.setattr("surrogates.memory.available", lambda device: 1000)
    with pytest.raises(MemoryError, match="A posterior of 12 weights needs .* Use fewer features"):
        gp().posterior(Q)
