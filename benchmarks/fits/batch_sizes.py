"""Kernels over networks, learned on minibatches of several sizes.

Every method learns the same model; its hyperparameters are judged by the exact marginal likelihood
and predictions of that model.

References:
    "Unbiased Stochastic Optimization for Gaussian Processes on Finite Dimensional RKHS", Section
    5.2. Differs: (1) small networks, and Adam without a search for its step; (2) the
    Gaussian kernel is one of random features for all methods; (3) biased gradients and SVGP end
    with their last step, SCGD and MINIMAX with their best epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from gpytorch.kernels import RBFKernel
from gpytorch.means import ZeroMean
from torch import nn

from benchmarks.fits.fit_cell import FitCell
from benchmarks.fits.scores import first_model, load
from scalable_bo.experiments.cells import Status
from surrogates import (
    FiniteFeatureGP,
    FourierFeatures,
    VariationalGP,
    checks,
    fit_finite_features,
    fit_minibatch,
    fit_variational,
)

KERNELS = ("linear", "gaussian")


@dataclass(frozen=True, kw_only=True)
class BatchSizeCell(FitCell):
    """One method, kernel and size of batches.

    Args:
        kernel: ``linear``, φᵀφ of a network's outputs; ``gaussian``, by random features of them.
        batch_size: of the minibatches, and inducing points of SVGP.
        seed: of the split 90 : 10, the network's first weights and the method.
        n: points of the data set, training and test together.
        width: of both layers of the network, and number of random features.
        data_dir: folder of the data sets; see ``find_data_dir``.
    """

    experiment: ClassVar[str] = "batch-sizes"
    told = (("nll", "NLL", ".4f"), ("rmse", "RMSE", ".3f"), ("seconds", "seconds", ".1f"))
    data: str = "bike"
    kernel: str
    method: str
    batch_size: int
    seed: int = 0
    n: int = 2000
    max_epochs: int = 20
    width: int = 32
    data_dir: Path | None = None

    def __post_init__(self) -> None:
        checks.one_of("method", self.method, BATCH_METHODS)
        checks.one_of("kernel", self.kernel, KERNELS)
        checks.fields(self, ["batch_size", "width"], checks.integer, 2)
        checks.fields(self, ["seed"], checks.integer, 0)
        checks.fields(self, ["n"], checks.integer, 10)
        checks.fields(self, ["max_epochs"], checks.positive_int)

    def measure(self, on_status: Status) -> dict[str, Any]:
        data = load(self, test_fraction=0.1)
        parts = data.train_X, data.train_y, data.test_X
        X, y, test_X = (tensor.to(self.device) for tensor in parts)
        feature_map: nn.Module = network(X.shape[1], self.width, self.seed)
        if self.kernel == "gaussian":
            base = RBFKernel()
            base.lengthscale = 1.0
            fourier = FourierFeatures(
                base, self.width, 2 * self.width, generator=torch.Generator().manual_seed(self.seed)
            )
            feature_map = nn.Sequential(feature_map, fourier)
        model = first_model(X, y, FiniteFeatureGP, feature_map=feature_map.to(X))
        steps = self.max_epochs * max(1, len(X) // self.batch_size)
        settings = {
            "batch_size": min(self.batch_size, len(X)),
            "num_steps": steps,
            "learning_rate": 0.01,
        }
        method = (BATCH_METHODS[self.method], lambda _: settings)
        generator = torch.Generator().manual_seed(self.seed)
        _, seconds = self.learn(method, model, generator, on_status)
        with torch.no_grad():
            mean = model.posterior(test_X).mean.reshape(-1).cpu()
        return {
            "num_train": len(X),
            "num_steps": steps,
            "nll": -model.log_marginal_likelihood() / len(X),
            "rmse": (mean - data.test_y).square().mean().sqrt().item(),
            "noise": model.likelihood.noise.item(),
            "seconds": seconds,
        }


def network(dim: int, width: int, seed: int) -> nn.Module:
    """Return two fully connected layers of this width with ReLU, float64."""
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs in (dim, width):
        layer = nn.Linear(inputs, width, dtype=torch.float64)
        with torch.no_grad():
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
            layer.bias.zero_()
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers)


def _biased(model: FiniteFeatureGP, batch_size: int, num_steps: int, **options: Any) -> None:
    fit_minibatch(
        model,
        batch_size=batch_size,
        sampling="uniform",
        max_epochs=max(1, round(num_steps * batch_size / len(model.train_targets))),
        num_batches=1,
        tolerance=0,
        **options,
    )


def _variational(model: FiniteFeatureGP, batch_size: int, num_steps: int, **options: Any) -> None:
    X = model.train_inputs[0]
    svgp = VariationalGP(
        X,
        model.train_targets.unsqueeze(1),
        likelihood=model.likelihood,
        covar_module=model.covar_module,
        mean_module=ZeroMean(),
        outcome_transform=None,
        inducing_points=min(batch_size, len(X)),
    )
    fit_variational(svgp, batch_size=batch_size, num_steps=num_steps, **options)
    model.covar_module.load_state_dict(svgp.covar_module.state_dict())
    model.likelihood.load_state_dict(svgp.likelihood.state_dict())


# Each fits a model with batches of a size in so many steps
BATCH_METHODS: dict[str, Callable[..., object]] = {
    "scgd": fit_finite_features,
    "minimax": partial(fit_finite_features, method="minimax"),
    "biased": _biased,
    "svgp": _variational,
}
