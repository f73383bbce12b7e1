"""Recovery of known variances, (σ_f², σ²) = (4, 1), from data drawn with them.

References:
    Chen, Zheng, Al Kontar, Raskutti (2022), "Gaussian Process Parameter Estimation Using Mini-batch
    Stochastic Gradient Descent: Convergence Guarantees and Empirical Benefits", Section 6.1.
    "Unbiased Stochastic Optimization for Gaussian Processes on Finite Dimensional RKHS", Section
    5.1. Differs: (1) Adam, with larger steps and fewer of them; (2) the features are drawn anew for
    every seed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from benchmarks.fits.cell import FitCallback, FitCell, counting
from benchmarks.fits.sgpr import SGPR
from scalable_bo.experiments.cells import Status
from scalable_bo.experiments.models import zero_mean_model
from surrogates import (
    FiniteFeatureGP,
    FourierFeatures,
    Minimax,
    PathwiseGP,
    checks,
    fit_exact,
    fit_finite_features,
    fit_iterative,
    fit_minibatch,
    fit_subsets,
)

TRUTH = (4.0, 1.0)  # σ_f², σ²
SPREAD = 5.0
LENGTHSCALE = 0.5
NUM_FEATURES = 128
STARTS = ((5.0, 3.0), (2.5, 3.5), (2.5, 0.7))
FIRST_STEPS = {(2.5, 0.7): 6.0}  # α₁ as published; 9 for the others


@dataclass(frozen=True, kw_only=True)
class RecoveryCell(FitCell):
    """One method from one start, on data of several seeds.

    Args:
        method: one of ``RECOVERY_METHODS``. Those of finite features have data from a kernel with
            128 of them, the others from an RBF kernel.
        start: σ_f² and σ² to start from.
        seeds: of data and method.
        n: points x ~ N(0, 5²).
        batch_size: of stochastic methods, and inducing points of SGPR; points of a subset.
        max_epochs: of sgGP.
        num_steps: SCGD's steps, and half of MINIMAX's.
    """

    experiment: ClassVar[str] = "recovery"
    method: str
    start: tuple[float, float] = STARTS[0]
    seeds: tuple[int, ...] = tuple(range(10))
    n: int = 1024
    batch_size: int = 128
    max_epochs: int = 25
    num_steps: int = 300

    def __post_init__(self) -> None:
        checks.one_of("method", self.method, RECOVERY_METHODS)
        for name in ("n", "batch_size", "max_epochs", "num_steps"):
            checks.positive_int(name, getattr(self, name))
        if not self.seeds:
            raise ValueError("`seeds` must hold at least one seed, got none.")

    def measure(self, on_status: Status) -> dict[str, Any]:
        estimates = []
        for seed in self.seeds:
            model = (finite_model if self.method in OF_FEATURES else rbf_model)(self, seed)
            generator = torch.Generator().manual_seed(seed)
            begin = time.perf_counter()
            callback = counting(on_status, f"{self.method}, seed {seed}", self.n)
            RECOVERY_METHODS[self.method](self, model, generator=generator, callback=callback)
            seconds = time.perf_counter() - begin
            outputscale = model.covar_module.outputscale.item()
            noise = model.likelihood.noise.item()
            nll = negative_log_likelihood(model) / self.n
            estimates.append(
                {
                    "seed": seed,
                    "outputscale": outputscale,
                    "noise": noise,
                    "nll": nll,
                    "seconds": seconds,
                }
            )
        return {"truth": list(TRUTH), "estimates": estimates}

    def describe(self, record: dict[str, Any]) -> str:
        outputscale, noise, nll = (
            statistics.fmean(one[key] for one in record["estimates"])
            for key in ("outputscale", "noise", "nll")
        )
        start = f"({self.start[0]:g}, {self.start[1]:g})"
        return (
            f"{self.method} from {start}: signal {outputscale:.2f}, noise {noise:.3f}, {nll:.4f}"
            f" nats a datum, mean of {len(self.seeds)}"
        )


def rbf_model(cell: RecoveryCell, seed: int) -> PathwiseGP:
    """Return a model, at the cell's start, of a draw from the RBF kernel;
    the lengthscale is known.
    """
    generator, X = _points(cell, seed)
    base = RBFKernel().double()
    base.lengthscale = LENGTHSCALE
    kernel = ScaleKernel(base.requires_grad_(False)).double()
    kernel.outputscale = cell.start[0]
    with torch.no_grad():
        root = torch.linalg.cholesky(
            TRUTH[0] * base(X).to_dense() + TRUTH[1] * torch.eye(cell.n, dtype=X.dtype)
        )
    y = root @ torch.randn(cell.n, 1, generator=generator, dtype=X.dtype)
    return zero_mean_model(X, y[:, 0], cell.start[1], PathwiseGP, covar_module=kernel).to(
        cell.device
    )


def finite_model(cell: RecoveryCell, seed: int) -> FiniteFeatureGP:
    """Return a model, at the cell's start, of a draw from the kernel of 128 orthogonal random
    features, which are known.
    """
    generator, X = _points(cell, seed)
    base = RBFKernel()
    base.lengthscale = LENGTHSCALE
    features = (
        FourierFeatures(base, 1, NUM_FEATURES, generator=generator).double().requires_grad_(False)
    )
    weights = TRUTH[0] ** 0.5 * torch.randn(NUM_FEATURES, 1, generator=generator, dtype=X.dtype)
    with torch.no_grad():
        y = features(X) @ weights
    y += TRUTH[1] ** 0.5 * torch.randn(cell.n, 1, generator=generator, dtype=X.dtype)
    model = zero_mean_model(X, y[:, 0], cell.start[1], FiniteFeatureGP, feature_map=features)
    model.covar_module.outputscale = cell.start[0]
    return model.to(cell.device)


@torch.no_grad()
def negative_log_likelihood(model: PathwiseGP) -> float:
    """Return −log p(y) of all data in nats."""
    if isinstance(model, FiniteFeatureGP):
        return -model.log_marginal_likelihood()
    X = model.train_inputs[0]
    y = model.train_targets
    H = model.covar_module(X).to_dense() + model.likelihood.noise * torch.eye(len(X)).to(X)
    value: Tensor = -torch.distributions.MultivariateNormal(torch.zeros_like(y), H).log_prob(y)
    return value.item()


def _points(cell: RecoveryCell, seed: int) -> tuple[torch.Generator, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return generator, SPREAD * torch.randn(cell.n, 1, generator=generator, dtype=torch.float64)


# Fits a model with a cell's settings; called with a generator and a callback, too
RecoveryMethod = Callable[..., object]


def _sggp(sampling: Any) -> RecoveryMethod:
    return lambda cell, model, **options: fit_minibatch(
        model,
        batch_size=cell.batch_size,
        sampling=sampling,
        optimizer="sgd",
        max_epochs=cell.max_epochs,
        num_batches=1,
        learning_rate=FIRST_STEPS.get(cell.start),
        tolerance=0,
        **options,
    )


def _scgd(cell: RecoveryCell, model: FiniteFeatureGP, **options: Any) -> None:
    fit_finite_features(
        model,
        batch_size=cell.batch_size,
        num_steps=cell.num_steps,
        learning_rate=0.1,
        step_decay=0.3,
        **options,
    )


def _minimax(penalty: float) -> RecoveryMethod:
    return lambda cell, model, **options: fit_finite_features(
        model,
        Minimax(penalty=penalty),
        batch_size=cell.batch_size,
        num_steps=2 * cell.num_steps,
        learning_rate=0.02,
        step_decay=0.3,
        check_every=0,
        **options,
    )


def _exact(
    cell: RecoveryCell, model: PathwiseGP, generator: torch.Generator, callback: FitCallback
) -> None:
    fit_exact(model, callback=callback)


def _sgpr(
    cell: RecoveryCell, model: PathwiseGP, generator: torch.Generator, callback: FitCallback
) -> None:
    X = model.train_inputs[0]
    y = model.train_targets
    SGPR(X, y, model.covar_module, model.likelihood, cell.batch_size, generator).fit(
        100, 0.1, callback
    )


_OF_RBF: dict[str, RecoveryMethod] = {
    "nearest": _sggp("nearest"),
    "uniform": _sggp("uniform"),
    "subsets": lambda cell, model, **options: fit_subsets(
        model, subset_size=cell.batch_size, **options
    ),
    "iterative": lambda cell, model, **options: fit_iterative(model, **options),
    "exact": _exact,
    "sgpr": _sgpr,
}
OF_FEATURES: dict[str, RecoveryMethod] = {
    "scgd": _scgd,
    **{f"minimax-{penalty}": _minimax(float(penalty)) for penalty in (0, 1, 10, 100, 1000)},
    "exact-features": _exact,
}
RECOVERY_METHODS = _OF_RBF | OF_FEATURES
