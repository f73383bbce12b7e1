"""What exact posteriors are differentiable in: their gradients are whole, or not there."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import botorch
import pytest
import torch
from botorch.acquisition import qKnowledgeGradient, qNegIntegratedPosteriorVariance
from botorch.acquisition.multi_step_lookahead import qMultiStepLookahead
from botorch.models.transforms import Normalize, Warp
from botorch.sampling import SobolQMCNormalSampler
from torch import Tensor

from surrogates import Cholesky, PathwiseGP, gaussian_likelihood
from surrogates.models.double import ExactPosterior
from tests import problems
from tests.problems import by_differences

pytestmark = pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized")

D = 2
X = problems.uniform(12, D)
Y = torch.cat([torch.sin(5 * X.sum(1, keepdim=True)), X.square().sum(1, keepdim=True)], 1)
YVAR = 0.01 + 0.1 * problems.uniform(12, 2, seed=3)
Z = problems.uniform(3, D, seed=1)
NEW = problems.uniform(2, D, seed=9)
UNIT = torch.tensor([[0.0] * D, [1.0] * D]).double()

SETTINGS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "raw": lambda: {"outcome_transform": None},
    "scaled": lambda: {"input_transform": Normalize(D, bounds=UNIT)},
    "warped": lambda: {"input_transform": Warp(D, indices=[0, 1], bounds=UNIT)},
}


def sampler(num_samples: int = 3) -> SobolQMCNormalSampler:
    return SobolQMCNormalSampler(torch.Size([num_samples]), seed=0)


def build(name: str, m: int, **changes: Tensor | None) -> PathwiseGP:
    data = {"train_X": X, "train_Y": Y[:, :m], "train_Yvar": YVAR[:, :m], **changes}
    return PathwiseGP(**data, solver=Cholesky(), **SETTINGS[name]())  # type: ignore[arg-type]


def value(model: Any, observation_noise: bool = False, at: Tensor = Z) -> Tensor:
    posterior = model.posterior(at, observation_noise=observation_noise)
    total: Tensor = posterior.mean.sin().sum() + posterior.variance.sqrt().sum()
    return total


def assert_whole(f: Callable[[Tensor], Tensor], at: Tensor) -> None:
    """Require that the slope of f in a random direction be that of differences."""
    leaf = at.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(f(leaf), leaf)
    direction = problems.normal(*at.shape, seed=8)
    start = torch.zeros(1, dtype=torch.float64)
    (expected,) = by_differences(lambda t: f(at + t * direction).detach(), start, 1e-5)
    assert expected != 0.0
    torch.testing.assert_close((gradient * direction).sum(), expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("name", SETTINGS)
def test_gradients_in_data_are_whole(name: str, m: int) -> None:
    for what, data in (("train_X", X), ("train_Y", Y[:, :m]), ("train_Yvar", YVAR[:, :m])):
        for noise in (False, True):
            assert_whole(lambda z, what=what, n=noise: value(build(name, m, **{what: z}), n), data)
        assert_whole(
            lambda z, what=what: value(build(name, m, **{what: z}).fantasize(NEW, sampler())), data
        )


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("name", SETTINGS)
def test_gradients_in_what_is_appended_are_whole(name: str, m: int) -> None:
    values = problems.normal(2, m, seed=4)
    noise = 0.1 + problems.uniform(2, m, seed=5)
    for model, given in (
        (build(name, m, train_Yvar=None), {}),
        (build(name, m), {"noise": noise}),
    ):
        assert_whole(lambda z, of=model: value(of.fantasize(z, sampler())), NEW)
        conditioned = model.condition_on_observations
        assert_whole(lambda z, on=conditioned, g=given: value(on(z, values, **g)), NEW)
        assert_whole(lambda z, on=conditioned, g=given: value(on(NEW, z, **g)), values)
        assert_whole(lambda z, on=conditioned: value(on(NEW, values, noise=z)), noise)
        first = model.fantasize(NEW[:1], sampler())
        again = NEW[1:].expand(3, 1, D).clone()
        assert_whole(lambda z, of=first: value(of.fantasize(z, sampler())), again)


@pytest.mark.parametrize("noise", [1e-6, 1e-2])
def test_a_conditioned_model_has_the_gradients_of_dense_algebra(noise: float) -> None:
    kernel = problems.rbf(0.5).double()
    targets = Y[:, :1]
    model = PathwiseGP(
        X,
        targets,
        covar_module=kernel,
        likelihood=gaussian_likelihood(noise),
        outcome_transform=None,
        solver=Cholesky(),
    )
    model.posterior(Z)

    def dense(new: Tensor) -> tuple[Tensor, Tensor]:
        points = torch.cat([X, new])
        H = kernel(points).to_dense() + model.likelihood.noise * torch.eye(len(points))
        S = torch.linalg.solve(H, kernel(points, Z).to_dense())
        between = kernel(Z, points).to_dense()
        covariance = kernel(Z).to_dense() - between @ S
        return S.T @ torch.cat([targets, targets[:2]]), covariance.diagonal()

    leaf = NEW.clone().requires_grad_()
    posterior = model.condition_on_observations(leaf, targets[:2]).posterior(Z)
    for ours, theirs in zip((posterior.mean, posterior.variance), dense(leaf), strict=True):
        gradients = [
            torch.autograd.grad(part.sum(), leaf, retain_graph=True)[0] for part in (ours, theirs)
        ]
        scale = gradients[1].abs().max().item()
        # The condition number times the rounding of float64
        torch.testing.assert_close(*gradients, rtol=0.0, atol=1e-13 * len(X) / noise * scale)


ACQUISITIONS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "integrated variance": (lambda model: qNegIntegratedPosteriorVariance(model, Z), 2),
    "knowledge gradient": (
        lambda model: qKnowledgeGradient(model, num_fantasies=3, sampler=sampler()),
        5,
    ),
    "look-ahead": (
        lambda model: qMultiStepLookahead(model, [1, 1], samplers=[sampler(2), sampler(2)]),
        7,
    ),
}


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_acquisition_functions_of_fantasies_have_whole_gradients(name: str) -> None:
    make, num_points = ACQUISITIONS[name]
    acquisition = make(PathwiseGP(X, Y[:, :1]))
    at = problems.uniform(1, num_points, D, seed=6)
    assert_whole(lambda z: acquisition(z).sum(), at)


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("name", ["plain", "warped"])
def test_hyperparameters_are_constants_unless_gradients_are_propagated(name: str, m: int) -> None:
    model = build(name, m, train_Yvar=None)
    parameters = list(model.parameters())
    at = Z.clone().requires_grad_()
    fantasies = model.fantasize(NEW, sampler())
    for _ in range(2):  # no graph is used up
        value(model, True, at).backward()
        value(fantasies, True, at).backward()
    with botorch.settings.propagate_grads(True):
        value(model.fantasize(NEW, sampler(), propagate_grads=True), True, at).backward()
    everything = [p for part in (model, fantasies) for p in part.parameters()]
    assert all(p.grad is None and p.requires_grad for p in everything)

    def changed(values: Tensor) -> Tensor:
        torch.nn.utils.vector_to_parameters(values, parameters)
        return value(model, True)

    flat = torch.nn.utils.parameters_to_vector(parameters).detach()
    expected = by_differences(lambda z: changed(z).detach(), flat, 1e-5)
    torch.nn.utils.vector_to_parameters(flat, parameters)
    for _ in range(2):
        with botorch.settings.propagate_grads(True):
            gradients = torch.autograd.grad(value(model, True), parameters)
        found = torch.cat([part.flatten() for part in gradients])
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    value(model, True, at).backward()
    assert all(p.grad is None and p.requires_grad for p in parameters)


def test_graphs_that_nothing_needs_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Any]] = []
    predict = ExactPosterior.__call__

    def watched(self: ExactPosterior, *inputs: Tensor, **settings: Any) -> Any:
        law = predict(self, *inputs, **settings)
        made.append(weakref.ref(self.model.prediction_strategy))
        return law

    monkeypatch.setattr(ExactPosterior, "__call__", watched)
    model = build("raw", 1, train_X=X.clone().requires_grad_(), train_Yvar=None)
    for f in (value, lambda of: value(of.fantasize(NEW.clone().requires_grad_(), sampler()))):
        f(model)
        f(model).backward()
    gc.collect()
    assert len(made) == 6
    assert [strategy for strategy in made if strategy() is not None] == []
