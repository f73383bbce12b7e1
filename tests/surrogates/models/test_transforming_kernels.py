"""Kernels that transform their inputs before a kernel inside sees them."""

import pickle
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor
from torch.nn import Linear, Sequential, Tanh

from surrogates import CG, PathwiseGP, fit, fit_exact
from surrogates.fitting.neighbours import inverse_lengthscales
from surrogates.rules.limits import lengthscale_limits
from tests import problems

DIM = 4


class Transformed(Kernel):
    """A kernel of ``transform(x)``."""

    def __init__(self, base: Kernel, transform: Callable[[Tensor], Tensor]):
        super().__init__()
        self.base = base
        self.transform = transform

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **_: Any) -> Any:
        first, second = self.transform(x1), self.transform(x2)
        return self.base(first, second, diag=diag) if diag else self.base(first, second).to_dense()


class OwnLengthscale(Kernel):
    """A kernel of two sums of inputs, with a lengthscale for each."""

    has_lengthscale = True

    def __init__(self) -> None:
        super().__init__(ard_num_dims=2)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **_: Any) -> Tensor:
        first, second = (
            torch.stack([x[..., :2].sum(-1), x[..., 2:].sum(-1)], -1) / self.lengthscale
            for x in (x1, x2)
        )
        if diag:
            return torch.exp(-(first - second).square().sum(-1))
        return torch.exp(-torch.cdist(first, second).square())


def network(width: int) -> Sequential:
    torch.manual_seed(0)
    return Sequential(Linear(DIM, 6), Tanh(), Linear(6, width))


def power(X: Tensor) -> Tensor:
    return X.clamp_min(0.0).pow(3.0)


KERNELS: dict[str, Callable[[], Kernel]] = {
    "fewer": lambda: Transformed(ScaleKernel(RBFKernel(ard_num_dims=2)), network(2)),
    "more": lambda: Transformed(ScaleKernel(MaternKernel(2.5, ard_num_dims=7)), network(7)),
    "as many": lambda: Transformed(ScaleKernel(MaternKernel(2.5, ard_num_dims=DIM)), power),
    "part": lambda: Transformed(RBFKernel(ard_num_dims=1, active_dims=(5,)), network(6)),
    "scaled": lambda: ScaleKernel(Transformed(RBFKernel(ard_num_dims=2), network(2))),
    "summand": lambda: (
        ScaleKernel(RBFKernel(ard_num_dims=DIM))
        + ScaleKernel(Transformed(RBFKernel(ard_num_dims=2), network(2)))
    ),
    "own": lambda: ScaleKernel(OwnLengthscale()),
}


def data(n: int = 60) -> tuple[Tensor, Tensor]:
    X = problems.uniform(n, DIM)
    return X, torch.sin(3.0 * X.sum(1, keepdim=True)) + 0.05 * problems.normal(n, 1)


def model(name: str, n: int = 60, dtype: torch.dtype = torch.float64) -> PathwiseGP:
    X, Y = data(n)
    return PathwiseGP(X.to(dtype), Y.to(dtype), covar_module=KERNELS[name]().to(dtype))


def exact(gp: PathwiseGP, Z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the posterior mean and variance (q, 1) at Z by a Cholesky factorisation, in float64
    and in the units of the values.
    """
    X = gp.train_inputs[0]
    with torch.no_grad():
        y = gp.train_targets - gp.mean_module(X)
        mean, covariance = problems.exact_posterior(gp.covar_module, X, y, gp.noise, Z)
        scale = gp.outcome_transform.stdvs
        mean = gp.outcome_transform.means + scale * (gp.mean_module(Z) + mean).unsqueeze(1)
        return mean, scale.square() * covariance.diagonal().unsqueeze(1)


def assert_exact(gp: PathwiseGP, Z: Tensor) -> None:
    posterior = gp.posterior(Z)
    torch.testing.assert_close((posterior.mean, posterior.variance), exact(gp, Z))


fit_briefly = partial(fit_exact, max_evaluations=10)
FITS: dict[str, Callable[[PathwiseGP], Any] | None] = {
    "given": None,
    "brief": fit_briefly,
    "judged": fit,
}
# The judged fit takes seconds where a kernel has a network: once is enough
CASES = [(name, how) for name in KERNELS for how in ("given", "brief")]
CASES += [("own", "judged"), pytest.param("fewer", "judged", marks=pytest.mark.slow)]


@pytest.mark.parametrize(("name", "how"), CASES)
def test_the_posterior_is_exact(name: str, how: str) -> None:
    gp = model(name)
    fitted = FITS[how]
    if fitted is not None:
        before = [value.clone() for value in gp.covar_module.parameters()]
        fitted(gp)
        after = list(gp.covar_module.parameters())
        assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert_exact(gp, problems.uniform(20, DIM, seed=1))


@pytest.mark.parametrize("name", ["more", "summand", "own"])
def test_fits_in_float32_and_new_observations_pass(name: str) -> None:
    gp = fit_briefly(model(name, dtype=torch.float32))
    X, Y = (part.float() for part in data(70))
    more = gp.condition_on_observations(X[60:], Y[60:])
    Z = problems.uniform(20, DIM, seed=1, dtype=torch.float32)
    for posterior in (gp.posterior(Z), more.posterior(Z)):
        assert torch.isfinite(posterior.mean).all()
        assert (posterior.variance > 0).all()


def test_lengthscales_inside_say_nothing_of_the_inputs() -> None:
    X = problems.uniform(30, DIM)
    for name in ("fewer", "more", "as many", "part", "scaled", "own"):
        kernel = KERNELS[name]().double()
        assert not lengthscale_limits(kernel, X)
        assert (inverse_lengthscales(kernel, DIM) == 1.0).all()
    kernel = KERNELS["summand"]().double()
    ((part, *_),) = lengthscale_limits(kernel, X)
    assert part is kernel.kernels[0].base_kernel


DEEP = [name for name in KERNELS if name != "own"]


@pytest.mark.parametrize("name", DEEP)
def test_paths_have_the_law_of_the_posterior(name: str) -> None:
    gp = model(name)
    gp.solver = CG(tolerance=1e-8)
    gp.num_paths = 1024
    Z = problems.uniform(20, DIM, seed=1)
    law = gp.posterior(Z)
    mean, variance = exact(gp, Z)
    assert ((law.mean - mean).abs() < 1e-3 * variance.sqrt()).all()
    assert (law.variance / variance - 1.0).abs().max() < 5.0 * (2.0 / gp.num_paths) ** 0.5


@pytest.mark.parametrize(
    ("name", "dtype"), [*zip(DEEP, cycle([torch.float32, torch.float64]), strict=False)]
)
def test_paths_follow_neither_the_model_nor_other_points(name: str, dtype: torch.dtype) -> None:
    gp = model(name, dtype=dtype)
    paths = gp.paths(3)
    Z = problems.uniform(5, DIM, seed=1).to(dtype)
    before = paths(Z)
    tolerance = 1e4 * torch.finfo(dtype).eps
    bounds = {"rtol": tolerance, "atol": tolerance * before.abs().max().item()}
    torch.testing.assert_close(paths(Z[2:3]), before[:, 2:3], **bounds)
    torch.testing.assert_close(paths.each(Z.expand(3, 5, DIM)), before, **bounds)
    for value in gp.covar_module.parameters():
        value.data.add_(0.3)
    assert torch.equal(paths(Z), before)
    assert torch.equal(pickle.loads(pickle.dumps(paths))(Z), before)


@pytest.mark.parametrize("name", ["fewer", "more", "summand"])
def test_paths_have_gradients_through_the_transform(name: str) -> None:
    gp = model(name)
    gp.num_features = 64
    paths = gp.paths(2)
    Z = problems.uniform(3, DIM, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(paths, (Z,))
    assert torch.autograd.gradcheck(lambda Z: paths.each(Z.expand(2, 3, DIM)), (Z,))
    if name != "more":  # whose data are less smooth
        assert torch.autograd.gradgradcheck(paths, (Z,), atol=1e-3, rtol=1e-3)


class OfAll(Transformed):
    """A kernel of points less their mean, which is none of single points."""

    def __init__(self) -> None:
        super().__init__(RBFKernel(), lambda X: X - X.mean(-2, keepdim=True))


class Doubled(Transformed):
    """A kernel that returns twice what the kernel inside it returns."""

    def __init__(self) -> None:
        super().__init__(RBFKernel(), torch.sin)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **_: Any) -> Any:
        return 2.0 * super().forward(x1, x2, diag=diag)


@pytest.mark.parametrize("kind", [OwnLengthscale, OfAll, Doubled])
def test_what_is_no_kernel_of_transformed_points_has_no_features(kind: type[Kernel]) -> None:
    X, Y = data()
    with pytest.raises(ValueError, match=rf"got {kind.__name__}.*use solver=Cholesky\(\)"):
        PathwiseGP(X, Y, covar_module=ScaleKernel(kind()).double(), solver=CG())


def test_the_posterior_of_many_data_is_exact_where_a_kernel_has_no_features() -> None:
    assert_exact(model("own", 2100), problems.uniform(5, DIM, seed=1))


@pytest.mark.slow
def test_many_data_are_fitted() -> None:
    X, Y = data(2600)
    gp = fit(PathwiseGP(X[:2500], Y[:2500], covar_module=KERNELS["fewer"]().double()))
    assert (gp.posterior(X[2500:]).mean - Y[2500:]).square().mean() < 0.1 * Y.var()
