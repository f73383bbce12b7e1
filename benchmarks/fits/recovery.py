"""Recovery of known variances, (σ_f², σ²) = (4, 1), from data drawn with them.

References:
    Chen, Zheng, Al Kontar, Raskutti (2022), "Gaussian Process Parameter Estimation Using Mini-batch
    Stochastic Gradient Descent: Convergence Guarantees and Empirical Benefits", Section 6.1.
    "Unbiased Stochastic Optimization for Gaussian Processes on Finite Dimensional RKHS", Section
    5.1. Differs: (1) Adam, with larger steps and fewer of them; (2) the features are drawn anew for
    every seed.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from benchmarks.fits.fit_cell import FitCell, FitMethod
from benchmarks.fits.sgpr import fit_sgpr
from scalable_bo.experiments.cells import Status
from scalable_bo.experiments.models import matern_kernel, zero_mean_model
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
STARTS = ((5.0, 3.0), (2.5, 3.5), (2.5, 0.7))


@dataclass(frozen=True, kw_only=True)
class RecoveryCell(FitCell):
    """One method from one start, on data of several seeds.

    Args:
        method: one of ``RECOVERY_METHODS``. Those of finite features have data from a kernel with
            128 of them, the others from an RBF kernel.
        start: σ_f² and σ² to start from.
        n: points x ~ N(0, 5²).
        batch_size: of stochastic methods, and inducing points of SGPR; points of a subset.
        num_steps: SCGD's steps, and half of MINIMAX's.
    """

    experiment: ClassVar[str] = "recovery"
    told = (("outputscale", "signal", ".2f"), ("noise", "noise", ".3f"), ("nll", "NLL", ".4f"))
    method: str
    start: tuple[float, float] = STARTS[0]
    seeds: tuple[int, ...] = tuple(range(10))
    n: int = 1024
    batch_size: int = 128
    max_epochs: int = 25
    num_steps: int = 300

    def __post_init__(self) -> None:
        checks.one_of("method", self.method, RECOVERY_METHODS)
        checks.fields(self, ["n", "batch_size", "max_epochs", "num_steps"], checks.positive_int)
        if not self.seeds:
            raise ValueError("`seeds` must hold at least one seed, got none.")

    def measure(self, on_status: Status) -> dict[str, Any]:
        estimates = []
        for seed in self.seeds:
            of_features = self.method in OF_FEATURES
            model = drawn_from_features(self, seed) if of_features else drawn_from_rbf(self, seed)
            generator = torch.Generator().manual_seed(seed)
            method = RECOVERY_METHODS[self.method]
            _, seconds = self.learn(method, model, generator, on_status)
            estimates.append(
                {
                    "seed": seed,
                    "outputscale": model.covar_module.outputscale.item(),
                    "noise": model.likelihood.noise.item(),
                    "nll": negative_log_likelihood(model) / self.n,
                    "seconds": seconds,
                }
            )
        return {"truth": list(TRUTH), "estimates": estimates}

    def describe(self, record: dict[str, Any]) -> str:
        means = {
            key: statistics.fmean(e[key] for e in record["estimates"]) for key, *_ in self.told
        }
        return super().describe(means)


def drawn_from_rbf(cell: RecoveryCell, seed: int, lengthscale: float = 0.5) -> PathwiseGP:
    """Return a model, at the cell's start, of a draw from the RBF kernel of known lengthscale."""
    generator, X = _points(cell, seed)
    kernel = matern_kernel(lengthscale, cell.start[0], math.inf)
    kernel.raw_outputscale.requires_grad_(True)
    with torch.no_grad():
        K = kernel.base_kernel(X).to_dense()
        H = TRUTH[0] * K + TRUTH[1] * torch.eye(cell.n, dtype=X.dtype)
        root = torch.linalg.cholesky(H)
    y = root @ torch.randn(cell.n, 1, generator=generator, dtype=X.dtype)
    model = zero_mean_model(X, y[:, 0], cell.start[1], PathwiseGP, covar_module=kernel)
    return model.to(cell.device)


def drawn_from_features(
    cell: RecoveryCell, seed: int, lengthscale: float = 0.5, num_features: int = 128
) -> FiniteFeatureGP:
    """Return a model, at the cell's start, of a draw of known orthogonal random features."""
    generator, X = _points(cell, seed)
    base = RBFKernel()
    base.lengthscale = lengthscale
    features = FourierFeatures(base, 1, num_features, generator=generator).to(X)
    features.requires_grad_(False)
    weights = TRUTH[0] ** 0.5 * torch.randn(num_features, 1, generator=generator, dtype=X.dtype)
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


def _points(cell: RecoveryCell, seed: int, spread: float = 5.0) -> tuple[torch.Generator, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return generator, spread * torch.randn(cell.n, 1, generator=generator, dtype=torch.float64)


def _sggp(sampling: str) -> FitMethod:
    return fit_minibatch, lambda cell: {
        "batch_size": cell.batch_size,
        "sampling": sampling,
        "optimizer": "sgd",
        "max_epochs": cell.max_epochs,
        "num_batches": 1,
        # α₁ as published; 9 for the others
        "learning_rate": 6.0 if cell.start == (2.5, 0.7) else None,
        "tolerance": 0,
    }


def _minimax(penalty: float) -> FitMethod:
    return fit_finite_features, lambda cell: {
        "method": Minimax(penalty=penalty),
        "batch_size": cell.batch_size,
        "num_steps": 2 * cell.num_steps,
        "learning_rate": 0.02,
        "step_decay": 0.3,
        "check_every": 0,
    }


OF_FEATURES: dict[str, FitMethod] = {
    "scgd": (
        fit_finite_features,
        lambda cell: {
            "batch_size": cell.batch_size,
            "num_steps": cell.num_steps,
            "learning_rate": 0.1,
            "step_decay": 0.3,
        },
    ),
    **{f"minimax-{penalty}": _minimax(float(penalty)) for penalty in (0, 1, 10, 100, 1000)},
    "exact-features": (fit_exact, lambda cell: {}),
}
RECOVERY_METHODS: dict[str, FitMethod] = {
    "nearest": _sggp("nearest"),
    "uniform": _sggp("uniform"),
    "subsets": (fit_subsets, lambda cell: {"subset_size": cell.batch_size}),
    "iterative": (fit_iterative, lambda cell: {}),
    "exact": (fit_exact, lambda cell: {}),
    "sgpr": (fit_sgpr, lambda cell: {"num_inducing": cell.batch_size}),
    **OF_FEATURES,
}
