"""Whether a fit takes noise for signal: data of a known function and known noise.

n uniform points in d dimensions, a function of variance 1 and noise of variance 1 / ratio, or noise
alone where the ratio is 0. The functions are ``prior``, random features of the cell's own kernel;
``sine``, of the first input; ``two``, of the first two; ``ripples``, of several inputs with unequal
lengthscales.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, RQKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from benchmarks.fits.fit_cell import FitCell
from scalable_bo.experiments.cells import Status
from scalable_bo.experiments.records import Record
from scalable_bo.experiments.regression.regression_cell import negative_log_likelihood
from surrogates import (
    Cholesky,
    PathwiseGP,
    PriorPaths,
    checks,
    fit,
    fit_exact,
    memory,
    predict_by_neighbours,
)
from surrogates.fitting.exact import copy_parameters
from surrogates.operators.linalg import CHEAP_FACTOR_UP_TO

FUNCTIONS = ("prior", "sine", "two", "ripples")
KERNELS: dict[str, Callable[[int], Kernel]] = {
    "rbf": lambda d: RBFKernel(ard_num_dims=d),
    "scaled": lambda d: ScaleKernel(RBFKernel(ard_num_dims=d)),
    "rq": lambda d: RQKernel(ard_num_dims=d),
    "matern12": lambda d: MaternKernel(nu=0.5, ard_num_dims=d),
    "matern32": lambda d: MaternKernel(nu=1.5, ard_num_dims=d),
    "matern52": lambda d: MaternKernel(nu=2.5, ard_num_dims=d),
}


@dataclass(frozen=True, kw_only=True)
class GridCell(FitCell):
    """One method on one draw of data. Cells that differ in method, kernel or dtype alone share
    points and noise.

    Args:
        data: one of ``FUNCTIONS``.
        n: points, and another 1000 to test on.
        d: inputs.
        ratio: the variance of the function over that of the noise.
        kernel: one of ``KERNELS``; ``rbf`` is the model's default, with its priors.
        method: one of ``GRID_METHODS``.
    """

    experiment: ClassVar[str] = "grid"
    told = (
        ("noise_over_truth", "noise over the truth", ".3f"),
        ("rmse", "RMSE", ".3f"),
        ("nll", "NLL", ".3f"),
        ("seconds", "seconds", ".1f"),
    )
    data: str
    n: int
    d: int
    ratio: float
    kernel: str
    method: str
    dtype: str = "float64"
    seed: int = 0

    def __post_init__(self) -> None:
        checks.one_of("data", self.data, FUNCTIONS)
        checks.one_of("kernel", self.kernel, KERNELS)
        checks.one_of("method", self.method, GRID_METHODS)
        checks.fields(self, ["n"], checks.integer, 10)

    def measure(self, on_status: Status) -> Record:
        """Return what the hyperparameters are worth: the noise relative to the truth, the error to
        the noiseless function at new points, the negative log density of noisy values there,
        processor seconds, and for ``fit`` what it has chosen.
        """
        on_status(f"{self.name}: fitting")
        data = draw(self)
        start = time.process_time()
        model = GRID_METHODS[self.method](self, data)
        memory.wait_for(data.X.device)
        seconds = time.process_time() - start
        chosen = model.fit_account.chosen if self.method == "fit" else None
        return {"seconds": seconds, "chosen": chosen} | judged(self, data, model)


@dataclass(frozen=True)
class Data:
    """Points X (n, d), noisy values y (n, 1), and those to test on with the noiseless values."""

    X: Tensor
    y: Tensor
    test_X: Tensor
    test_f: Tensor
    test_y: Tensor


def draw(cell: GridCell, num_test: int = 1000) -> Data:
    seed = zlib.crc32(f"{cell.n} {cell.d} {cell.seed}".encode())
    generator = torch.Generator().manual_seed(seed)
    n, total = cell.n, cell.n + num_test
    X = torch.rand(total, cell.d, generator=generator, dtype=torch.float64)
    noise = torch.randn(total, 1, generator=generator, dtype=torch.float64)
    f = torch.zeros_like(noise) if cell.ratio == 0.0 else function(cell, X, generator)
    y = f + noise * _true_noise(cell) ** 0.5
    dtype = getattr(torch, cell.dtype)
    X, f, y = (values.to(cell.device, dtype) for values in (X, f, y))
    return Data(X[:n], y[:n], X[n:], f[n:], y[n:])


def function(
    cell: GridCell, X: Tensor, generator: torch.Generator, num_features: int = 8192
) -> Tensor:
    """Return values (n, 1) of mean 0 and variance 1 over the points."""
    if cell.data == "sine":
        f = torch.sin(6.0 * X[:, :1])
    elif cell.data == "two":
        f = torch.sin(5.0 * X[:, :1]) + 2.0 * (X[:, 1:2] - 0.3).square()
    elif cell.data == "ripples":
        frequencies = 8.0 / torch.arange(1, cell.d + 1, dtype=X.dtype)
        f = torch.cos(X * frequencies).sum(1, keepdim=True) + torch.sin(5.0 * X[:, :1] * X[:, -1:])
    else:
        kernel = KERNELS[cell.kernel](cell.d)
        kernel = getattr(kernel, "base_kernel", kernel).to(X)
        kernel.lengthscale = 0.3 * math.sqrt(cell.d)
        paths = PriorPaths.draw(
            kernel, cell.d, 1, num_features=num_features, generator=generator, like=X
        )
        f = paths(X).T
    return (f - f.mean()) / f.std()


def model_of(cell: GridCell, X: Tensor, y: Tensor) -> PathwiseGP:
    kernel = None if cell.kernel == "rbf" else KERNELS[cell.kernel](cell.d).to(X)
    return PathwiseGP(X, y, covar_module=kernel)


@torch.no_grad()
def judged(
    cell: GridCell,
    data: Data,
    model: PathwiseGP,
    exact_up_to: int = 5000,
    num_neighbours: int = 256,
) -> Record:
    """Return what the hyperparameters of ``model`` are worth, by exact predictions up to so many
    points and by those of the nearest beyond.
    """
    noise = model.noise.double() * data.y.double().var()
    if cell.n <= exact_up_to:
        exact = PathwiseGP(
            data.X.double(),
            data.y.double(),
            likelihood=GaussianLikelihood().double().to(data.X.device),
            covar_module=model.covar_module.double(),
            mean_module=model.mean_module.double(),
            solver=Cholesky(),
        )
        exact.likelihood.noise = model.noise.double()
        posterior = exact.posterior(data.test_X.double())
        mean, variance = posterior.mean, posterior.variance
    else:
        mean, variance = predict_by_neighbours(model, data.test_X, num_neighbours=num_neighbours)
    return {
        "noise_over_truth": noise.item() / _true_noise(cell),
        "rmse": (mean - data.test_f).square().mean().sqrt().item(),
        "nll": negative_log_likelihood(data.test_y.double(), mean.double(), variance + noise),
    }


def is_miss(ours: Record, reference: Record) -> bool:
    """Return whether a fit is worse than the reference: an error above 1.1 times its, a log density
    more than 0.02 nats below it or, where the reference finds it, a noise off by more than a tenth.
    """
    can_tell = abs(reference["noise_over_truth"] - 1.0) < 0.1
    return (
        ours["rmse"] > 1.1 * reference["rmse"]
        or ours["nll"] > reference["nll"] + 0.02
        or (can_tell and abs(ours["noise_over_truth"] - 1.0) > 0.1)
    )


def _true_noise(cell: GridCell) -> float:
    return 1.0 if cell.ratio == 0.0 else 1.0 / cell.ratio


def _by_sample(cell: GridCell, data: Data, *, priors: bool) -> PathwiseGP:
    """Return a model with the hyperparameters of the exact fit of 1000 random points."""
    chosen = torch.randperm(cell.n, generator=torch.Generator().manual_seed(7))[:CHEAP_FACTOR_UP_TO]
    chosen = chosen.to(data.X.device)
    small = model_of(cell, data.X[chosen], data.y[chosen])
    for part in () if priors else small.modules():
        getattr(part, "_priors", {}).clear()
    model = model_of(cell, data.X, data.y)
    fit_exact(small)
    with torch.no_grad():
        copy_parameters(small, model)
    return model


GRID_METHODS: dict[str, Callable[[GridCell, Data], Any]] = {
    "fit": lambda cell, data: fit(model_of(cell, data.X, data.y)),
    "reference": lambda cell, data: _by_sample(cell, data, priors=True),
    "likeliest": lambda cell, data: _by_sample(cell, data, priors=False),
}
