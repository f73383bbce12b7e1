"""What posteriors of paths and the paths themselves are differentiable in, and what they refuse."""

from typing import Any

import pytest
import torch
from botorch.models.transforms.input import Warp
from botorch.sampling import SobolQMCNormalSampler
from torch import Tensor

from surrogates import CG, InducingPathwiseGP, PathwiseGP
from tests import problems
from tests.problems import Scalar, by_differences

KERNELS = {name: problems.KERNELS[name] for name in ("matern32", "rq", "product")}


def model(name: str = "matern52", kind: type[PathwiseGP] = PathwiseGP, **settings: Any) -> Any:
    X = problems.uniform(40, 3)
    y = (3.0 * X.sum(1, keepdim=True)).sin()
    kernel = problems.KERNELS[name]().double()
    options = {"solver": CG(tolerance=1e-8), "num_paths": 16, "num_features": 64} | settings
    return kind(X, y, covar_module=kernel, **options)


def functions(gp: Any) -> dict[str, Scalar]:
    """Return scalars of X (2, d), one of every kind of prediction."""
    paths = gp.paths(2)
    return {
        "paths": lambda X: paths(X).sin().sum(),
        "each": lambda X: paths.each(X.reshape(2, 1, -1)).sin().sum(),
        "mean of paths": lambda X: paths.mean(X).sum(),
        "mean": lambda X: gp.posterior(X).mean.sum(),
        "variance": lambda X: gp.posterior(X).variance.sum(),
        "scalar and path": lambda X: X.square().sum() + paths(X)[0].sum(),
    }


@pytest.mark.parametrize("name", KERNELS)
def test_predictions_are_twice_differentiable_in_their_points(name: str) -> None:
    X = problems.uniform(2, 3, seed=5)
    for f in functions(model(name)).values():
        hessian = torch.autograd.functional.hessian(f, X)
        expected = by_differences(lambda x, f=f: torch.autograd.functional.jacobian(f, x), X)
        scale = expected.abs().max().item()
        torch.testing.assert_close(hessian, expected, rtol=0.0, atol=1e-6 * scale)
        torch.testing.assert_close(torch.func.hessian(f)(X), hessian)


def test_the_posterior_mean_beyond_2000_points_has_the_hessian_of_the_exact_one() -> None:
    X = problems.uniform(2001, 2)
    y = (3.0 * X.sum(1, keepdim=True)).sin()
    gp = PathwiseGP(X, y, num_paths=2, num_features=64)
    q = problems.uniform(1, 2, seed=5)
    f = lambda x: gp.posterior(x).mean.sum()  # noqa: E731
    expected = by_differences(lambda x: torch.autograd.functional.jacobian(f, x), q)
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(
        torch.autograd.functional.hessian(f, q), expected, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("observation_noise", [False, True])
@pytest.mark.parametrize("kind", [PathwiseGP, InducingPathwiseGP])
def test_hyperparameters_are_constants_of_a_posterior_of_paths(
    kind: type[PathwiseGP], observation_noise: bool
) -> None:
    options = {"inducing_points": 10, "solver": None} if kind is InducingPathwiseGP else {}
    gp = model(kind=kind, input_transform=Warp(d=3, indices=[0, 1, 2]), **options)
    parameters = list(gp.parameters())
    assert all(parameter.requires_grad for parameter in parameters)

    def predict(X: Tensor) -> Tensor:
        posterior = gp.posterior(X, observation_noise=observation_noise)
        return posterior.mean.sum() + posterior.variance.sum() + gp.paths(2)(X).sum()

    X = problems.uniform(2, 3, seed=5)
    assert not predict(X).requires_grad  # PyTorch refuses any gradient
    value = predict(X.requires_grad_())
    for parameter in parameters:
        with pytest.raises(RuntimeError, match="not have been used in the graph"):
            torch.autograd.grad(value, parameter, retain_graph=True)
    value.backward()
    assert X.grad is not None and X.grad.abs().min() > 0.0
    assert all(p.grad is None and p.requires_grad for p in parameters)


@pytest.mark.parametrize("name", ["train_X", "train_Y", "train_Yvar"])
def test_data_that_require_gradients_are_refused_by_name(name: str) -> None:
    data = {"train_X": problems.uniform(20, 2), "train_Y": problems.normal(20, 1)}
    if name == "train_Yvar":
        data[name] = 0.1 + problems.uniform(20, 1, seed=1)
    data[name].requires_grad_()
    gp = PathwiseGP(**data, solver=CG())
    X = problems.uniform(2, 2, seed=5)
    message = rf"`{name}` must not require gradients.*`{name}.detach\(\)`.*Cholesky\(\)"
    for predict in (gp.posterior, lambda X: gp.paths(2)(X)):
        with pytest.raises(ValueError, match=message):
            predict(X)
    with torch.no_grad():
        assert gp.posterior(X).mean.isfinite().all()
        paths = gp.paths(2)
    assert not paths(X).requires_grad


@pytest.mark.parametrize("name", ["rbf", "matern52", "rq", "product"])
def test_fantasies_under_torch_func_are_right_or_refused_by_name(name: str) -> None:
    gp = model(name)
    sampler = SobolQMCNormalSampler(torch.Size([2]), seed=0)
    Q = problems.uniform(4, 1, 3, seed=6).requires_grad_()
    fantasies = gp.fantasize(Q, sampler)

    def predict(X: Tensor) -> Tensor:
        posterior = fantasies.posterior(X)
        return posterior.mean.sin().sum() + posterior.variance.sum()

    X = problems.uniform(2, 3, seed=5)
    gradient = torch.func.grad(predict)(X)
    torch.testing.assert_close(gradient, by_differences(predict, X), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient, torch.autograd.functional.jacobian(predict, X))
    for transform in (torch.func.jacfwd, torch.func.hessian, vectorised):
        with pytest.raises(NotImplementedError, match=r"differentiable once.*Cholesky\(\)"):
            transform(predict)(X)
    with pytest.raises(NotImplementedError, match="Fantasies must be made outside"):
        torch.func.grad(lambda Q: gp.fantasize(Q, sampler).posterior(X).mean.sum())(Q.detach())


def vectorised(f: Scalar) -> Scalar:
    return lambda X: torch.func.vmap(f)(X.expand(3, *X.shape))


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacfwd, vectorised])
def test_paths_are_drawn_before_a_transform_or_the_model_says_so(transform: Any) -> None:
    X = problems.uniform(2, 3, seed=5)
    gp = model()
    for predict in (lambda X: gp.posterior(X).mean.sum(), lambda X: gp.paths(2)(X).sum()):
        with pytest.raises(NotImplementedError, match=r"draw its paths outside.*torch.func"):
            transform(predict)(X)
    gp.posterior(X)
    assert transform(lambda X: gp.posterior(X).mean.sum())(X).isfinite().all()


@pytest.mark.parametrize("name", ["rbf", "rq"])
def test_a_second_derivative_of_fantasies_is_refused_by_name(name: str) -> None:
    gp = model(name)
    sampler = SobolQMCNormalSampler(torch.Size([2]), seed=0)
    Q = problems.uniform(1, 3, seed=6).requires_grad_()

    fantasies = gp.fantasize(Q, sampler)

    def predict(X: Tensor) -> Tensor:
        return fantasies.posterior(X).mean.sum()

    X = problems.uniform(2, 3, seed=5)
    of_X, of_Q = torch.autograd.grad(predict(X.requires_grad_()), (X, Q), create_graph=True)
    assert of_X.abs().min() > 0.0 and of_Q.abs().min() > 0.0
    for gradient in (of_X, of_Q):
        with pytest.raises(NotImplementedError, match=r"differentiable once.*Cholesky\(\)"):
            gradient.sum().backward(retain_graph=True)
