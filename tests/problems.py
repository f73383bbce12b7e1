"""Small problems that several tests share: kernels of every kind, systems with a known answer,
and tolerances.
"""

import math
from collections.abc import Callable
from copy import deepcopy

import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, RQKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from surrogates import Dense, InducingSystem, KernelOperator, KernelSystem
from surrogates.operators.main_effects import MainEffectsKernel
from surrogates.operators.tiles import KernelTiles

DIM = 3
ARD = torch.tensor([[0.4, 0.9, 1.7]])
OPERATORS: tuple[type[KernelOperator], ...] = KernelOperator.__subclasses__()  # type: ignore[assignment]

Scalar = Callable[[Tensor], Tensor]


def by_differences(f: Callable[[Tensor], Tensor], X: Tensor, step: float = 1e-7) -> Tensor:
    """Return the derivative of ``f`` at X in float64 by central differences,
    of the shape of f(X) + that of X.
    """
    columns = [
        (f(X + step * e.view_as(X)) - f(X - step * e.view_as(X))) / (2.0 * step)
        for e in torch.eye(X.numel(), dtype=X.dtype)
    ]
    return torch.stack(columns, -1).reshape(*columns[0].shape, *X.shape)


def uniform(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


def series(X: Tensor, lengthscale: float, seed: int = 0) -> Tensor:
    """Return the values (n, 1) at X (n, 1) of a sum of a thousand waves, close to a draw of a
    Gaussian process.
    """
    frequency, phase, height = normal(3, 1000, seed=seed)
    waves = torch.cos(X * frequency / lengthscale + 2.0 * math.pi * phase)
    return waves @ height.unsqueeze(1) * math.sqrt(2.0 / 1000)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def with_lengthscale(kernel: Kernel, lengthscale: float | Tensor) -> Kernel:
    kernel.lengthscale = lengthscale
    return kernel


def scaled(kernel: Kernel, outputscale: float) -> Kernel:
    kernel = ScaleKernel(kernel)
    kernel.outputscale = outputscale
    return kernel


def matern(nu: float, lengthscale: float | Tensor = 0.6, **settings: object) -> Kernel:
    return with_lengthscale(MaternKernel(nu=nu, **settings), lengthscale)


def rbf(lengthscale: float | Tensor = 0.6, **settings: object) -> Kernel:
    return with_lengthscale(RBFKernel(**settings), lengthscale)


# Kernels with a closed form, and so a fast path and random features; all on DIM inputs.
STATIONARY: dict[str, Callable[[], Kernel]] = {
    "rbf": rbf,
    "matern12": lambda: matern(0.5),
    "matern32": lambda: matern(1.5),
    "matern52": lambda: matern(2.5),
    "rbf-ard": lambda: rbf(ARD, ard_num_dims=DIM),
    "matern12-ard": lambda: matern(0.5, ARD, ard_num_dims=DIM),
    "matern32-ard": lambda: matern(1.5, ARD, ard_num_dims=DIM),
    "matern52-ard": lambda: matern(2.5, ARD, ard_num_dims=DIM),
    "scale-matern32": lambda: scaled(matern(1.5), 2.5),
    "scale-scale-rbf-ard": lambda: scaled(scaled(rbf(ARD, ard_num_dims=DIM), 0.5), 3.0),
    "matern52-active": lambda: matern(2.5, ARD[:, :2], ard_num_dims=2, active_dims=[2, 0]),
    "scale-scale-matern12-active": lambda: scaled(scaled(matern(0.5, active_dims=[1]), 0.5), 1.5),
}
GENERIC: dict[str, Callable[[], Kernel]] = {"rq": lambda: with_lengthscale(RQKernel(), 0.6)}
COMPOSED: dict[str, Callable[[], Kernel]] = {
    "sum": lambda: scaled(rbf(), 0.5) + matern(1.5, active_dims=[0, 2]),
    "product": lambda: matern(2.5, ARD, ard_num_dims=DIM) * scaled(rbf(1.5), 2.0),
    "sum-in-a-scale": lambda: scaled(scaled(rbf(), 0.5) + COMPOSED["product"](), 1.5),
    "main-effects": lambda: scaled(with_lengthscale(MainEffectsKernel(DIM), ARD), 1.5),
    "nearly-main-effects": lambda: COMPOSED["main-effects"]() + scaled(matern(2.5), 0.3),
}
KERNELS = STATIONARY | COMPOSED | GENERIC


def own_evaluation(kernel: Kernel, X: Tensor, Z: Tensor) -> Tensor:
    """Return k(X, Z) by GPyTorch, in float64."""
    with torch.no_grad():
        return deepcopy(kernel).double()(X.double(), Z.double()).to_dense()


def operator(
    kind: type[KernelOperator], kernel: Kernel, X: Tensor, Z: Tensor | None = None
) -> KernelOperator:
    return kind(KernelTiles.of(kernel.to(X), X, X if Z is None else Z), symmetric=Z is None)


def system(
    n: int = 90,
    noise: float | Tensor = 0.1,
    *,
    kind: type[KernelOperator] = Dense,
    dtype: torch.dtype = torch.float64,
    order: Tensor | None = None,
    X: Tensor | None = None,
) -> KernelSystem:
    """Return a well-conditioned system of n points in two dimensions,
    its points (and noise) in ``order``.
    """
    X = uniform(n, 2, dtype=dtype) if X is None else X
    if order is not None:
        X = X[order]
        noise = noise[order] if isinstance(noise, Tensor) and noise.ndim else noise
    return KernelSystem(operator(kind, scaled(matern(1.5, 0.4), 1.5), X), noise)


def inducing_system(
    n: int = 60,
    m: int = 20,
    noise: float | Tensor = 0.1,
    *,
    spread: float = 1.0,
    memory_budget: int | None = None,
) -> InducingSystem:
    """Return the system of m of n points in two dimensions; the larger ``spread``,
    the better its condition.
    """
    X = spread * uniform(n, 2)
    return InducingSystem(
        scaled(matern(1.5, 0.4), 1.5).to(X), X, X[:m], noise, memory_budget=memory_budget
    )


def dense_inducing(system: InducingSystem) -> tuple[Tensor, Tensor, Tensor]:
    """Return A, K_XZ and K_ZZ."""
    K_XZ = system.cross.to_dense()
    K_ZZ = system.kernel.to_dense()
    return K_XZ.T @ (K_XZ / system.noise.expand(system.num_data).unsqueeze(1)) + K_ZZ, K_XZ, K_ZZ


def vector_noise(n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return n variances between 0.05 and 1.05."""
    return 0.05 + uniform(n, seed=7, dtype=dtype)


def exact_posterior(
    kernel: Kernel, X: Tensor, y: Tensor, noise: float | Tensor, Z: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the posterior's mean (q,) and covariance (q, q) at Z in float64, of a process of mean
    0 with values y (n,) at X and one noise variance or n of them.
    """
    H = own_evaluation(kernel, X, X)
    H.diagonal().add_(torch.as_tensor(noise).detach())
    cross = own_evaluation(kernel, X, Z)
    weights = torch.cholesky_solve(cross, torch.linalg.cholesky(H))
    return weights.T @ y.double(), own_evaluation(kernel, Z, Z) - cross.T @ weights


def relative_error(value: Tensor, reference: Tensor) -> float:
    return ((value.double() - reference.double()).norm() / reference.double().norm()).item()


def two_clusters(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return points of two clusters of width 1e-4, and a smooth function in each."""
    within = uniform(n, 2, seed=seed)
    second = (torch.arange(n) % 2 == 1).unsqueeze(1)
    centre = torch.where(second, torch.tensor([0.8, 0.7]), torch.tensor([0.2, 0.2]))
    first_f = torch.cos(3.0 * within[:, 1:]) * within[:, :1]
    second_f = torch.sin(3.0 * within[:, :1]) + within[:, 1:]
    return centre.to(within) + 1e-4 * within, torch.where(second, second_f, first_f)


def exact_likelihood(model: SingleTaskGP) -> Tensor:
    """Return (log p(y) + log prior) / n, differentiable."""
    model.train()
    value: Tensor = ExactMarginalLogLikelihood(model.likelihood, model)(
        model(*model.train_inputs), model.train_targets
    )
    model.eval()
    return value


def likelihood_of(model: SingleTaskGP) -> float:
    """Return the value of :func:`exact_likelihood`."""
    return exact_likelihood(model).item()


def hyperparameters(model: torch.nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
