"""Sparse Gaussian process regression as GPyTorch has it, to compare with."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import InducingPointKernel, Kernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.models import ExactGP
from gpytorch.settings import fast_computations
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from surrogates import PathwiseGP


class SGPR(ExactGP):
    """A zero-mean Gaussian process with Titsias' collapsed bound.

    Args:
        X: (n, d).
        y: (n,).
        num_inducing: points of X, chosen at random to start from; at most n.
    """

    def __init__(
        self,
        X: Tensor,
        y: Tensor,
        kernel: Kernel,
        likelihood: GaussianLikelihood,
        num_inducing: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__(X, y, likelihood)
        rows = torch.randperm(len(X), generator=generator)[:num_inducing].to(X.device)
        self.mean_module = ZeroMean()
        self.covar_module = InducingPointKernel(kernel, X[rows].clone(), likelihood)

    def forward(self, X: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(X), self.covar_module(X))

    def fit(
        self, num_steps: int, learning_rate: float, callback: Callable[[int, float], None]
    ) -> None:
        """Maximise the bound by Adam over hyperparameters and inducing points."""
        self.train()
        objective = ExactMarginalLogLikelihood(self.likelihood, self)
        free = [p for p in self.parameters() if p.requires_grad]
        optimizer = torch.optim.Adam(free, lr=learning_rate)
        for step in range(1, num_steps + 1):
            optimizer.zero_grad()
            with _low_rank_algebra():
                loss = -objective(self(*self.train_inputs), self.train_targets)
                loss.backward()
            optimizer.step()
            callback(step, -len(self.train_targets) * loss.item())

    @torch.no_grad()
    def predict(self, X: Tensor, chunk: int = 1000) -> tuple[Tensor, Tensor]:
        """Return mean and variance (q,) of observations at X (q, d), ``chunk`` points at a time."""
        self.eval()
        self.likelihood.eval()
        with _low_rank_algebra():
            parts = [self.likelihood(self(points)) for points in X.split(chunk)]
        mean, variance = zip(*((part.mean, part.variance) for part in parts), strict=True)
        return torch.cat(mean), torch.cat(variance)


def fit_sgpr(
    model: PathwiseGP,
    num_inducing: int,
    generator: torch.Generator,
    callback: Callable[[int, float], None],
) -> SGPR:
    """Learn ``model``'s kernel and noise by 100 steps of 0.1, as published; return a predictor."""
    X, y = model.train_inputs[0], model.train_targets
    fitted = SGPR(X, y, model.covar_module, model.likelihood, num_inducing, generator)
    fitted.fit(100, 0.1, callback)
    return fitted


@contextmanager
def _low_rank_algebra() -> Iterator[None]:
    """Let GPyTorch use that the covariance is of low rank plus a diagonal;
    BoTorch has it factorise all matrices as they are, in O(n³). That the matrix of close inducing
    points needed a jitter is something that nobody can act on.
    """
    with fast_computations(True, True, True), warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        yield
