"""Whatever has been done to a model, it can be pickled, and answers then as before."""

import pickle
from collections.abc import Callable
from copy import deepcopy
from io import BytesIO
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from botorch.acquisition import PosteriorMean, qKnowledgeGradient
from botorch.models.transforms import Normalize
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import RBFKernel
from torch import Tensor

from acquisition import PathwiseThompsonSampling
from surrogates import (
    CG,
    Cholesky,
    FiniteFeatureGP,
    FourierFeatures,
    GPRegressor,
    InducingPathwiseGP,
    NystromSGM,
    PathwiseGP,
    SketchAndProject,
    VariationalGP,
    fit,
    multi_task_kernel,
)
from tests import problems

N = 16
X = problems.uniform(N, 2)
Y = 3.0 + torch.sin(5.0 * X.sum(1, keepdim=True))
NEW = problems.uniform(1, 2, seed=1)
Z = problems.uniform(3, 2, seed=2)
SMALL: dict[str, Any] = {"num_paths": 4, "num_features": 16}


def own() -> dict[str, Any]:
    return {"input_transform": Normalize(2)}


MODELS: dict[str, Callable[[], PathwiseGP]] = {
    "exact": lambda: PathwiseGP(X, Y, **own()),
    "single precision": lambda: PathwiseGP(X.float(), Y.float(), **own()),
    "paths": lambda: PathwiseGP(X, Y, solver=CG(), **SMALL, **own()),
    "two outputs": lambda: PathwiseGP(X, torch.cat([Y, -Y], 1), solver=CG(), **SMALL, **own()),
    "known noise": lambda: PathwiseGP(
        X, Y, torch.full_like(Y, 0.1), solver=SketchAndProject.asap(), **SMALL, **own()
    ),
    "inducing": lambda: InducingPathwiseGP(X, Y, inducing_points=6, **SMALL, **own()),
    "variational": lambda: VariationalGP(X, Y, inducing_points=6, **SMALL, **own()),
    "features": lambda: FiniteFeatureGP(
        X, Y, feature_map=FourierFeatures(RBFKernel(), 2, 16), **own()
    ),
    "tasks": lambda: PathwiseGP(
        torch.cat([X[:, :1], (X[:, 1:] > 0.5).double()], 1),
        Y,
        covar_module=multi_task_kernel(2, 2),
        solver=CG(),
        **SMALL,
    ),
}


def point(model: PathwiseGP) -> Tensor:
    return NEW.to(model.train_targets, copy=True)


def conditioned(model: PathwiseGP) -> Any:
    values = point(model)[:, :1].repeat(1, model.num_outputs)
    return model.condition_on_observations(point(model), values, 0.1 * torch.ones_like(values))


def fantasies(model: Any, X: Tensor) -> Any:
    noise = torch.full((1, model.num_outputs), 0.1).to(X)
    return model.fantasize(X, SobolQMCNormalSampler(torch.Size([2]), seed=0), noise)


def knowledge(model: PathwiseGP) -> PathwiseGP:
    acquisition = qKnowledgeGradient(model, num_fantasies=2)
    acquisition(point(model).repeat(1, 3, 1).requires_grad_()).sum().backward()
    return model


def after(action: Callable[[PathwiseGP], Any]) -> Callable[[PathwiseGP], PathwiseGP]:
    def done(model: PathwiseGP) -> PathwiseGP:
        action(model)
        return model

    return done


DEEDS: dict[str, Callable[[PathwiseGP], Any]] = {
    "nothing": lambda model: model,
    "posterior": after(lambda model: model.posterior(point(model)).variance),
    "backward": after(
        lambda model: model.posterior(point(model).requires_grad_()).variance.sum().backward()
    ),
    "paths": after(lambda model: model.paths(2)),
    "the paths": lambda model: model.paths(2),
    "conditioning": conditioned,
    "conditioning, posterior": lambda model: after(lambda m: m.posterior(point(model)))(
        conditioned(model)
    ),
    "fantasies": after(lambda model: fantasies(model, point(model))),
    "the fantasies": lambda model: fantasies(model, point(model)),
    "fantasies of fantasies": lambda model: fantasies(
        fantasies(model, point(model)), point(model).expand(2, 1, 2)
    ),
    "knowledge gradient": knowledge,
    "state loaded": after(lambda model: model.load_state_dict(deepcopy(model).state_dict())),
    "saved weights": after(
        lambda model: model.warm_start(after(lambda m: m.paths(1))(deepcopy(model)))
    ),
}


def law(model: Any) -> tuple[Tensor, ...]:
    points = Z.float() if getattr(model, "dtype", None) == torch.float32 else Z
    with torch.no_grad():
        if not hasattr(model, "posterior"):
            return (model(points),)
        posterior = model.posterior(points.to(model.train_targets))
        return posterior.mean, posterior.variance


CASES = [("exact", deed) for deed in DEEDS]
CASES += [
    (kind, deed)
    for kind in MODELS
    if kind != "exact"
    for deed in ("the paths", "conditioning, posterior", "fantasies of fantasies")
]


@pytest.mark.parametrize(("kind", "deed"), CASES)
def test_a_model_is_pickled_whatever_has_been_done_to_it(kind: str, deed: str) -> None:
    result = DEEDS[deed](MODELS[kind]())
    ForkingPickler.dumps(result)  # which refuses graphs
    written = pickle.dumps(result)
    expected = law(result)
    torch.testing.assert_close(law(pickle.loads(written)), expected)
    torch.testing.assert_close(law(pickle.loads(pickle.dumps(result))), expected)
    torch.testing.assert_close(law(deepcopy(result)), expected)


@pytest.mark.parametrize("kind", ["exact", "paths"])
def test_what_is_made_of_a_model_is_pickled(kind: str) -> None:
    model = MODELS[kind]()
    fit(model)
    points = Z.unsqueeze(-2)
    for made in (
        PosteriorMean(model),
        qKnowledgeGradient(model, num_fantasies=2),
        PathwiseThompsonSampling(model),
    ):
        torch.manual_seed(0)
        arguments = points if not isinstance(made, qKnowledgeGradient) else Z.unsqueeze(0)
        before = made(arguments)
        file = BytesIO()
        torch.save(made, file)
        torch.testing.assert_close(pickle.loads(pickle.dumps(made))(arguments), before)


def test_regressors_are_pickled_after_they_have_predicted() -> None:
    for regressor in (GPRegressor(), GPRegressor(solver=Cholesky()), NystromSGM()):
        regressor.fit(X.numpy(), Y[:, 0].numpy())
        expected = regressor.predict(Z.numpy())
        again = pickle.loads(pickle.dumps(regressor)).predict(Z.numpy())
        torch.testing.assert_close(torch.from_numpy(again), torch.from_numpy(expected))
