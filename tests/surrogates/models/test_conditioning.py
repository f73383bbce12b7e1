"""Data appended to a model, fantasies, and copies: each is the model that would have been built."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.models.transforms.input import FilterFeatures, NumericToCategoricalEncoding
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood

from surrogates import CG, Cholesky, PathwiseGP
from surrogates.models.fresh import EXACT_UP_TO
from tests import problems
from tests.refusals import assert_refused
from tests.surrogates.models.toy_model import (
    BOUNDS,
    FEW,
    MODELS,
    TIGHT,
    YVAR,
    D,
    N,
    X,
    Y,
    Z,
    law,
    settings,
)

K = 5
NEW = problems.uniform(K, D, seed=9)
NEW_Y = 10 + 4 * torch.sin(5 * NEW.sum(1, keepdim=True))
NEW_YVAR = 0.05 + 0.3 * problems.uniform(K, 1, seed=3)


each_kind = pytest.mark.parametrize("kind", MODELS)
WIDTHS: dict[str, Callable[[], Any]] = {
    "narrower": lambda: FilterFeatures(torch.tensor([0])),
    "wider": lambda: NumericToCategoricalEncoding(
        D, {1: 3}, {1: lambda x: torch.nn.functional.one_hot((3 * x).long(), 3)}
    ),
}


@pytest.mark.parametrize("kind", ["paths", "exact"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_transform_may_change_the_number_of_columns(kind: str, width: str) -> None:
    model = MODELS[kind](input_transform=WIDTHS[width]())
    paths = model.paths(2)
    mean = model.posterior(NEW).mean[:, 0]
    torch.testing.assert_close(paths.mean(NEW), mean)
    assert paths(NEW).shape == paths.each(NEW.expand(2, K, D)).shape == (2, K)
    conditioned = model.condition_on_observations(NEW, NEW_Y)
    whole = with_all_data(MODELS[kind](input_transform=WIDTHS[width]()))
    torch.testing.assert_close(law(conditioned), law(whole), rtol=1e-6, atol=1e-6)
    fantasy = model.fantasize(NEW, SobolQMCNormalSampler(torch.Size([2]), seed=0))
    assert fantasy.posterior(NEW).mean.shape == (2, K, 1)
    with pytest.raises(ValueError, match="must have shape"):
        replace(paths, input_transform=lambda x: x[..., :0])(NEW)


def with_all_data(model: PathwiseGP) -> PathwiseGP:
    """Return a model of the appended data in the units of ``model``, solved from scratch."""
    model.eval()
    standardised = (NEW_Y - model.outcome_transform.means) / model.outcome_transform.stdvs
    model.set_train_data(
        torch.cat([X, NEW]), torch.cat([model.train_targets, standardised.squeeze(1)]), strict=False
    )
    return model


@each_kind
@pytest.mark.parametrize("variance", [1e-7, 1.0])
def test_noise_given_where_it_is_inferred_is_that_of_the_new_data(
    kind: str, variance: float
) -> None:
    noise = torch.full((K, 1), variance).double()
    model = MODELS[kind]()
    before = law(model)
    conditioned = model.condition_on_observations(NEW, NEW_Y, noise)
    fresh = with_all_data(MODELS[kind]())
    sigma = model.likelihood.noise.detach()
    known = FixedNoiseGaussianLikelihood(sigma.expand(N))
    fresh.likelihood = known.get_fantasy_likelihood(noise=noise.squeeze(1).clamp_min(1e-6))
    fresh.likelihood.noise = torch.cat([sigma.expand(N), noise.squeeze(1)])
    for each in (conditioned, deepcopy(conditioned), conditioned.train().eval()):
        torch.testing.assert_close(law(each), law(fresh), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(law(model), before)
    # Values to come have the noise that they had
    noisy = conditioned.posterior(Z[0], observation_noise=True).variance
    scale = model.outcome_transform.stdvs.square()
    added = (noisy - conditioned.posterior(Z[0]).variance) / scale
    torch.testing.assert_close(added, sigma.expand_as(added), rtol=1e-6, atol=1e-8)


@each_kind
def test_values_without_noise_after_those_with_it_have_the_inferred_one(kind: str) -> None:
    model = MODELS[kind]()
    sigma = model.likelihood.noise.detach()
    known = torch.full((2, 1), 0.3).double()
    first = model.condition_on_observations(NEW[:2], NEW_Y[:2], known)
    implied = first.condition_on_observations(NEW[2:], NEW_Y[2:])
    stated = first.condition_on_observations(NEW[2:], NEW_Y[2:], sigma.expand(K - 2, 1))
    torch.testing.assert_close(law(implied), law(stated))
    sampler = SobolQMCNormalSampler(torch.Size([3]), seed=0)
    noise = sigma.reshape(1, 1)
    fantasies = [first.fantasize(NEW[2:], sampler, given) for given in (None, noise)]
    means = [fantasy.posterior(Z).mean for fantasy in fantasies]
    torch.testing.assert_close(*means)


def test_the_mean_goes_on_from_where_it_was() -> None:
    solver = CG(tolerance=1e-3, preconditioner=None)
    model = MODELS["paths"](solver=solver, num_paths=1)
    # where a study goes on: near what it has
    near = X[:2] + 1e-3
    near_Y = Y[:2] + 1e-3
    cold = model.condition_on_observations(near, near_Y)
    law(model)
    warm = model.condition_on_observations(near, near_Y)
    law(cold), law(warm)
    assert warm.solution.steps[0] < cold.solution.steps[0]


@pytest.mark.parametrize("batch_shape", [(), (3,)])
@pytest.mark.parametrize("known_noise", [False, True], ids=["inferred", "known"])
def test_fantasies_of_an_exact_model_are_those_of_single_task_gp(
    batch_shape: tuple[int, ...], known_noise: bool
) -> None:
    results = []
    for kind, own in ((PathwiseGP, {"solver": Cholesky()}), (SingleTaskGP, {})):
        model = kind(X, Y, YVAR if known_noise else None, **own)
        fantasies = model.fantasize(
            problems.uniform(*batch_shape, 2, D, seed=7),
            SobolQMCNormalSampler(torch.Size([4]), seed=0),
        )
        with torch.no_grad():
            posterior = fantasies.posterior(problems.uniform(*batch_shape, 3, D, seed=4))
        assert posterior.mean.shape == (4, *batch_shape, 3, 1)
        results.append((posterior.mean, posterior.variance))
    torch.testing.assert_close(*results, rtol=1e-8, atol=1e-8)


def test_fantasies_of_an_exact_model_stay_exact_when_their_points_exceed_the_limit() -> None:
    inputs = problems.uniform(EXACT_UP_TO, D, seed=8)
    data = inputs, torch.sin(5.0 * inputs.sum(1, keepdim=True))
    results = []
    for solver in (None, Cholesky()):
        fantasies = PathwiseGP(*data, solver=solver).fantasize(
            NEW[:2], SobolQMCNormalSampler(torch.Size([1]), seed=0)
        )
        results.append(law(fantasies, Z[0]))
    torch.testing.assert_close(*results)


def test_a_batch_of_exact_fantasies_has_paths_with_its_means() -> None:
    batch = MODELS["exact"]().fantasize(NEW[:2], SobolQMCNormalSampler(torch.Size([4]), seed=0))
    with torch.no_grad():  # the values imagined depend on the hyperparameters
        paths = batch.paths(3)
    assert paths(Z[0]).shape == (3, 4, 4)
    torch.testing.assert_close(
        paths.mean(Z[0]).unsqueeze(-1), law(batch, Z[0])[0], rtol=1e-6, atol=1e-6
    )


def test_bad_observations_are_refused_by_name() -> None:
    model = PathwiseGP(X, Y, YVAR, **settings(likelihood=None, solver=TIGHT, **FEW))

    def conditioned(**changes: Any) -> Any:
        return model.condition_on_observations(
            **{"X": NEW, "Y": NEW_Y, "noise": NEW_YVAR, **changes}
        )

    assert_refused(TypeError, conditioned, X=[NEW.float()])
    assert_refused(
        ValueError,
        conditioned,
        X=[NEW[:, :1]],
        Y=[NEW_Y[:3], NEW_Y * torch.nan],
        noise=[None, -NEW_YVAR, NEW_YVAR[:2]],
    )


@each_kind
def test_a_copy_is_a_model_of_its_own(kind: str) -> None:
    model = MODELS[kind]()
    expected = law(model)
    copy = deepcopy(model)
    copy.covar_module.outputscale = 0.1
    law(copy)
    torch.testing.assert_close(law(model), expected)


@pytest.mark.filterwarnings("ignore::surrogates.UnsolvedWarning")  # float32 falls short of 1e-10
@each_kind
def test_a_moved_model_can_be_conditioned(kind: str) -> None:
    model = MODELS[kind](input_transform=Normalize(D, bounds=BOUNDS))
    law(model)
    moved = model.float().condition_on_observations(NEW.float(), NEW_Y.float())
    mean, _ = law(moved, Z.float())
    expected, _ = law(
        MODELS[kind](input_transform=Normalize(D, bounds=BOUNDS)).condition_on_observations(
            NEW, NEW_Y
        )
    )
    torch.testing.assert_close(mean.double(), expected, rtol=0, atol=2e-2)
