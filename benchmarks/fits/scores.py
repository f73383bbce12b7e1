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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from benchmarks.fits.cell import FitCallback, FitCell, counting
from benchmarks.fits.sgpr import SGPR
from benchmarks.fits.simulators import SIMULATORS
from scalable_bo.experiments.cells import Status
from scalable_bo.experiments.models import zero_mean_model
from scalable_bo.experiments.records import peak_memory_bytes, reset_peak_memory
from scalable_bo.experiments.regression.cell import negative_log_likelihood
from scalable_bo.experiments.regression.data import RegressionData, load_table, split_table
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
    gaussian_likelihood,
    predict_by_neighbours,
)
from surrogates.fitting.choice import REFINEMENT

TEST_FRACTION = 0.4
SIMULATED_POINTS = 10_000
FIRST_NOISE = 0.1
# a step of 512 features costs 30 ms
SCGD_BATCH = 256
SCGD_STEPS = 1000


@dataclass(frozen=True, kw_only=True)
class ScoreCell(FitCell):
    """One method on one data set and split.

    Args:
        data: a simulator's name, or a data set's.
        method: one of ``SCORE_METHODS``.
        seed: of the simulated data, of the 60 : 40 split, and of the method.
        n: points, training and test together; ``None`` for 10 000 simulated ones, and all of a data
            set.
        max_epochs: of sgGP, with minibatches of 16, and of SCGD, with 256, which ends after 1000
            steps.
        tolerance: at which sgGP stops; 0 for all epochs.
        num_inducing: points of SGPR, and random features of SCGD.
        num_neighbours: data that a prediction is made from.
        num_test: test points at most.
        data_dir: folder of the data sets; ``None`` for ``../shared/data/uci``, from here or from
            the project's root.
    """

    experiment: ClassVar[str] = "scores"
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
        checks.integer("seed", self.seed, 0)
        if self.n is not None:
            checks.integer("n", self.n, 10)
        for name in ("max_epochs", "num_inducing", "num_neighbours", "num_test"):
            checks.positive_int(name, getattr(self, name))

    def measure(self, on_status: Status) -> dict[str, Any]:
        on_status(f"{self.data}: data")
        device = torch.device(self.device)
        data = load(self)
        X, y, test_X, test_y = (
            t.to(device) for t in (data.train_X, data.train_y, data.test_X, data.test_y)
        )
        generator = torch.Generator().manual_seed(self.seed)
        reset_peak_memory(device)
        begin = time.perf_counter()
        fitted = SCORE_METHODS[self.method](
            self, X, y, generator, counting(on_status, f"{self.data}, {self.method}", len(X))
        )
        seconds = time.perf_counter() - begin
        peak = peak_memory_bytes(device)
        on_status(f"{self.data}, {self.method}: predicting")
        begin = time.perf_counter()
        mean, variance = (moment.reshape(-1).double().cpu() for moment in fitted.predict(test_X))
        simulator = SIMULATORS.get(self.data)
        return {
            "num_train": len(X),
            "num_test": len(test_X),
            "dim": X.shape[1],
            "true_noise_std": None if simulator is None else simulator.noise_std,
            "noise_std": fitted.noise**0.5,
            "signal_std": fitted.outputscale**0.5,
            "lengthscale": fitted.lengthscale,
            "rmse": (mean - test_y.cpu()).square().mean().sqrt().item(),
            "nll": negative_log_likelihood(test_y.cpu(), mean, variance),
            "seconds": seconds,
            "seconds_prediction": time.perf_counter() - begin,
            "peak_memory_bytes": peak,
        }

    def describe(self, record: dict[str, Any]) -> str:
        numbers = (
            f"noise {record['noise_std']:.3f}, RMSE {record['rmse']:.3f}, NLL {record['nll']:.3f},"
            f" {record['seconds']:.1f} seconds"
        )
        return (
            f"{self.data} seed {self.seed} {self.method}: {numbers},"
            f" {record['peak_memory_bytes'] / 2**30:.1f} GiB"
        )


def load(cell: ScoreCell) -> RegressionData:
    """Return the cell's data, split 60 : 40 and standardised by training statistics.

    Raises:
        ValueError: if a data set is not there, or has fewer than n points.
    """
    generator = torch.Generator().manual_seed(cell.seed)
    if cell.data in SIMULATORS:
        X, values = SIMULATORS[cell.data].sample(
            SIMULATED_POINTS if cell.n is None else cell.n, generator
        )
        table = torch.cat([X, values.unsqueeze(1)], dim=1).numpy()
    else:
        table = load_table(cell.data, cell.data_dir)
        if cell.n is not None and cell.n > len(table):
            raise ValueError(
                f"`n` must be at most the {len(table)} points of {cell.data}, got {cell.n}."
            )
        if cell.n is not None:
            table = table[torch.randperm(len(table), generator=generator)[: cell.n].numpy()]
    data = split_table(table, cell.seed, TEST_FRACTION)
    return RegressionData(
        data.train_X, data.train_y, data.test_X[: cell.num_test], data.test_y[: cell.num_test]
    )


class Fitted(NamedTuple):
    """What a method has learned, on standardised data.

    Attributes:
        outputscale: σ_f².
        noise: σ².
        lengthscale: one an input.
        predict: maps points (q, d) to mean and variance of observations, q numbers each.
    """

    outputscale: float
    noise: float
    lengthscale: list[float]
    predict: Callable[[Tensor], tuple[Tensor, Tensor]]


ScoreMethod = Callable[[ScoreCell, Tensor, Tensor, torch.Generator, FitCallback], Fitted]


def rbf_kernel(dim: int) -> ScaleKernel:
    """Return an RBF kernel, its variance and lengthscales 1."""
    base = RBFKernel(ard_num_dims=dim)
    base.lengthscale = 1.0
    kernel = ScaleKernel(base)
    kernel.outputscale = 1.0
    return kernel.double()


def _fitted_by(fit_model: Callable[..., object]) -> ScoreMethod:
    """Return the method that fits a ``PathwiseGP`` by
    ``fit_model(cell, model, generator=…, callback=…)``.
    """

    def method(
        cell: ScoreCell, X: Tensor, y: Tensor, generator: torch.Generator, callback: FitCallback
    ) -> Fitted:
        kernel = rbf_kernel(X.shape[1]).to(X)
        model = zero_mean_model(X, y, FIRST_NOISE, PathwiseGP, covar_module=kernel)
        fit_model(cell, model, generator=generator, callback=callback)
        lengthscale = model.covar_module.base_kernel.lengthscale.flatten().tolist()

        def predict(points: Tensor) -> tuple[Tensor, Tensor]:
            return predict_by_neighbours(
                model, points, num_neighbours=cell.num_neighbours, observation_noise=True
            )

        return Fitted(
            model.covar_module.outputscale.item(),
            model.likelihood.noise.item(),
            lengthscale,
            predict,
        )

    return method


def _sggp(sampling: Any) -> ScoreMethod:
    return _fitted_by(
        lambda cell, model, **options: fit_minibatch(
            model,
            sampling=sampling,
            max_epochs=cell.max_epochs,
            tolerance=cell.tolerance,
            **options,
        )
    )


def _refined(cell: ScoreCell, model: PathwiseGP, **options: Any) -> None:
    """Fit by minibatches of nearest neighbours, then on all data,
    as ``fit`` does where that is quick.
    """
    fit_minibatch(model, max_epochs=cell.max_epochs, tolerance=cell.tolerance, **options)
    fit_iterative(model, **options, **REFINEMENT)


def _exact(
    cell: ScoreCell, model: PathwiseGP, generator: torch.Generator, callback: FitCallback
) -> None:
    fit_exact(model, callback=callback)


def _sgpr(
    cell: ScoreCell, X: Tensor, y: Tensor, generator: torch.Generator, callback: FitCallback
) -> Fitted:
    kernel = rbf_kernel(X.shape[1]).to(X)
    likelihood = gaussian_likelihood(FIRST_NOISE).to(X)
    model = SGPR(X, y, kernel, likelihood, cell.num_inducing, generator)
    model.fit(100, 0.1, callback)
    return Fitted(
        kernel.outputscale.item(),
        likelihood.noise.item(),
        kernel.base_kernel.lengthscale.flatten().tolist(),
        model.predict,
    )


def _scgd(
    cell: ScoreCell, X: Tensor, y: Tensor, generator: torch.Generator, callback: FitCallback
) -> Fitted:
    base = rbf_kernel(X.shape[1]).base_kernel
    features = FourierFeatures(base, X.shape[1], cell.num_inducing, generator=generator).to(X)
    model = zero_mean_model(X, y, FIRST_NOISE, FiniteFeatureGP, feature_map=features)
    steps = min(SCGD_STEPS, cell.max_epochs * math.ceil(len(X) / SCGD_BATCH))
    model = fit_finite_features(
        model.to(X), batch_size=SCGD_BATCH, num_steps=steps, generator=generator, callback=callback
    )
    noise = model.likelihood.noise.item()

    @torch.no_grad()
    def predict(points: Tensor) -> tuple[Tensor, Tensor]:
        posterior = model.posterior(points)
        return posterior.mean, posterior.variance + noise

    lengthscale = model.covar_module.base_kernel.feature_map.kernel.lengthscale.flatten().tolist()
    return Fitted(model.covar_module.outputscale.item(), noise, lengthscale, predict)


SCORE_METHODS: dict[str, ScoreMethod] = {
    "nearest": _sggp("nearest"),
    "uniform": _sggp("uniform"),
    "subsets": _fitted_by(lambda cell, model, **options: fit_subsets(model, **options)),
    "refined": _fitted_by(_refined),
    "iterative": _fitted_by(lambda cell, model, **options: fit_iterative(model, **options)),
    "exact": _fitted_by(_exact),
    "auto": _fitted_by(lambda cell, model, **options: fit(model, **options)),
    "sgpr": _sgpr,
    "scgd": _scgd,
}
