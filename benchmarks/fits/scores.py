"""Hyperparameters learned on simulated and real data: the noise found, the error and likelihood of
predictions, seconds, memory.

References:
    Chen, Zheng, Al Kontar, Raskutti (2022), "Gaussian Process Parameter Estimation Using Mini-batch
    Stochastic Gradient Descent: Convergence Guarantees and Empirical Benefits", Section 6.2.
        Differs: (1) predictions are from the nearest data of every point;
    (2) all methods start from unit variance and lengthscales, and noise 0.1; (3) at most 10 000
    test points are predicted.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from benchmarks.fits.fit_cell import FitCell, FitMethod
from benchmarks.fits.sgpr import SGPR, fit_sgpr
from benchmarks.fits.simulators import SIMULATORS
from scalable_bo.experiments.cells import Status
from scalable_bo.experiments.models import Model, matern_kernel, zero_mean_model
from scalable_bo.experiments.records import peak_memory_bytes, reset_peak_memory
from scalable_bo.experiments.regression.data import RegressionData, load_table, split_table
from scalable_bo.experiments.regression.regression_cell import negative_log_likelihood
from surrogates import (
    FiniteFeatureGP,
    FourierFeatures,
    PathwiseGP,
    checks,
    fit,
    fit_exact,
    fit_finite_features,
    fit_iterative,
    fit_minibatch,
    fit_subsets,
    predict_by_neighbours,
)
from surrogates.fitting.choice import REFINEMENT

if TYPE_CHECKING:
    from benchmarks.fits.batch_sizes import BatchSizeCell


@dataclass(frozen=True, kw_only=True)
class ScoreCell(FitCell):
    """One method on one data set and split.

    Args:
        data: a simulator's name, or a data set's.
        seed: of the simulated data, of the 60 : 40 split, and of the method.
        n: points, training and test together; ``None`` for 10 000 simulated or all of a data set.
        max_epochs: of sgGP, with minibatches of 16, and of SCGD, with 256, up to 1000 steps.
        tolerance: at which sgGP stops; 0 for all epochs.
        num_inducing: points of SGPR, and random features of SCGD.
        num_neighbours: data that a prediction is made from.
        data_dir: folder of the data sets; see ``find_data_dir``.
    """

    experiment: ClassVar[str] = "scores"
    told = (
        ("noise_std", "noise", ".3f"),
        ("rmse", "RMSE", ".3f"),
        ("nll", "NLL", ".3f"),
        ("seconds", "seconds", ".1f"),
    )
    data: str
    method: str
    seed: int = 0
    n: int | None = None
    max_epochs: int = 100
    tolerance: float = 1e-3
    num_inducing: int = 512
    num_neighbours: int = 128
    num_test: int = 10_000
    data_dir: Path | None = None

    def __post_init__(self) -> None:
        checks.one_of("method", self.method, SCORE_METHODS)
        checks.fields(self, ["seed"], checks.integer, 0)
        checks.fields(self, ["n"], checks.integer, 10)
        counts = ["max_epochs", "num_inducing", "num_neighbours", "num_test"]
        checks.fields(self, counts, checks.positive_int)

    def measure(self, on_status: Status) -> dict[str, Any]:
        device = torch.device(self.device)
        data = load(self)
        X, y = data.train_X.to(device), data.train_y.to(device)
        test_X, test_y = data.test_X[: self.num_test].to(device), data.test_y[: self.num_test]
        generator = torch.Generator().manual_seed(self.seed)
        reset_peak_memory(device)
        begin = time.perf_counter()
        model = starting_model(self, X, y, generator)
        fitted, _ = self.learn(SCORE_METHODS[self.method], model, generator, on_status)
        seconds = time.perf_counter() - begin
        peak = peak_memory_bytes(device)
        on_status(f"{self.name}: predicting")
        begin = time.perf_counter()
        moments = predict(fitted, test_X, self.num_neighbours)
        mean, variance = (moment.reshape(-1).double().cpu() for moment in moments)
        kernel = model.covar_module.base_kernel
        kernel = kernel.feature_map.kernel if self.method == "scgd" else kernel
        return {
            "num_train": len(X),
            "num_test": len(test_X),
            "dim": X.shape[1],
            "true_noise_std": getattr(SIMULATORS.get(self.data), "noise_std", None),
            "noise_std": model.likelihood.noise.item() ** 0.5,
            "signal_std": model.covar_module.outputscale.item() ** 0.5,
            "lengthscale": kernel.lengthscale.flatten().tolist(),
            "rmse": (mean - test_y).square().mean().sqrt().item(),
            "nll": negative_log_likelihood(test_y, mean, variance),
            "seconds": seconds,
            "seconds_prediction": time.perf_counter() - begin,
            "peak_memory_bytes": peak,
        }


def load(
    cell: ScoreCell | BatchSizeCell, test_fraction: float = 0.4, num_simulated: int = 10_000
) -> RegressionData:
    """Return the cell's data, split and standardised by training statistics.

    Args:
        cell: names a simulator or a data set, the number of points and the seed.
        test_fraction: of the points.
        num_simulated: points of a simulator where the cell names no number.
    Raises:
        ValueError: if a data set is not there, or has fewer than n points.
    """
    generator = torch.Generator().manual_seed(cell.seed)
    if cell.data in SIMULATORS:
        n = num_simulated if cell.n is None else cell.n
        X, values = SIMULATORS[cell.data].sample(n, generator)
        table = torch.cat([X, values.unsqueeze(1)], dim=1).numpy()
    else:
        table = load_table(cell.data, cell.data_dir)
        if cell.n is not None and cell.n > len(table):
            raise ValueError(
                f"`n` must be at most the {len(table)} points of {cell.data}, got {cell.n}."
            )
        if cell.n is not None:
            table = table[torch.randperm(len(table), generator=generator)[: cell.n].numpy()]
    return split_table(table, cell.seed, test_fraction)


def rbf_kernel(dim: int) -> Kernel:
    """Return an RBF kernel, its variance and lengthscales 1."""
    return matern_kernel(torch.ones(dim), 1.0, math.inf).requires_grad_(True)


def starting_model(cell: ScoreCell, X: Tensor, y: Tensor, generator: torch.Generator) -> PathwiseGP:
    """Return the model that is fitted: of an RBF kernel, or of random features of it."""
    kernel = rbf_kernel(X.shape[1])
    if cell.method != "scgd":
        return first_model(X, y, PathwiseGP, covar_module=kernel.to(X))
    dim, base = X.shape[1], kernel.base_kernel
    features = FourierFeatures(base, dim, cell.num_inducing, generator=generator)
    return first_model(X, y, FiniteFeatureGP, feature_map=features.to(X))


def first_model(X: Tensor, y: Tensor, kind: type[Model], **options: Any) -> Model:
    """Return a zero-mean model of X (n, d) and y (n,), its noise 0.1."""
    return zero_mean_model(X, y, 0.1, kind, **options).to(X)


@torch.no_grad()
def predict(fitted: Any, points: Tensor, num_neighbours: int) -> tuple[Tensor, Tensor]:
    """Return mean and variance of observations at points (q, d), q numbers each."""
    if isinstance(fitted, SGPR):
        return fitted.predict(points)
    if isinstance(fitted, FiniteFeatureGP):
        posterior = fitted.posterior(points)
        return posterior.mean, posterior.variance + fitted.likelihood.noise
    return predict_by_neighbours(
        fitted, points, num_neighbours=num_neighbours, observation_noise=True
    )


def fit_refined(model: PathwiseGP, max_epochs: int, tolerance: float, **options: Any) -> PathwiseGP:
    """Fit by minibatches of nearest neighbours, then on all data, as ``fit`` does if quick."""
    fit_minibatch(model, max_epochs=max_epochs, tolerance=tolerance, **options)
    return fit_iterative(model, **options, **REFINEMENT)


def fit_scgd(
    model: PathwiseGP,
    max_epochs: int,
    batch_size: int = 256,
    most_steps: int = 1000,
    **options: Any,
) -> PathwiseGP:
    """Fit by SCGD. A step with 512 features costs 30 ms, so that they are bounded."""
    steps = min(most_steps, max_epochs * math.ceil(len(model.train_targets) / batch_size))
    return fit_finite_features(model, batch_size=batch_size, num_steps=steps, **options)


def _epochs(cell: ScoreCell) -> dict[str, Any]:
    return {"max_epochs": cell.max_epochs, "tolerance": cell.tolerance}


SCORE_METHODS: dict[str, FitMethod] = {
    "nearest": (fit_minibatch, lambda cell: {"sampling": "nearest"} | _epochs(cell)),
    "uniform": (fit_minibatch, lambda cell: {"sampling": "uniform"} | _epochs(cell)),
    "subsets": (fit_subsets, lambda cell: {}),
    "refined": (fit_refined, _epochs),
    "iterative": (fit_iterative, lambda cell: {}),
    "exact": (fit_exact, lambda cell: {}),
    "auto": (fit, lambda cell: {}),
    "sgpr": (fit_sgpr, lambda cell: {"num_inducing": cell.num_inducing}),
    "scgd": (fit_scgd, lambda cell: {"max_epochs": cell.max_epochs}),
}
