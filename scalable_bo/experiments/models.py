"""The benchmarks' surrogate: a zero-mean Matérn Gaussian process with given hyperparameters."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import torch
from gpytorch.kernels import Kernel, MaternKernel, ProductKernel, RBFKernel, ScaleKernel
from gpytorch.means import ZeroMean
from torch import Tensor

from surrogates import PathwiseGP, Solver, gaussian_likelihood

SMOOTHNESS = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5, "rbf": math.inf}
Model = TypeVar("Model", bound=PathwiseGP)


def matern_kernel(
    lengthscale: float | Tensor, outputscale: float, smoothness: float = 1.5
) -> Kernel:
    """Return a Matérn kernel inside a ``ScaleKernel``, float64.

    Args:
        lengthscale: one for all inputs, or (d,).
        outputscale: the prior variance.
        smoothness: ν, one of 0.5, 1.5, 2.5 and infinity, the Gaussian kernel.
    """
    scales = torch.as_tensor(lengthscale, dtype=torch.float64)
    base = base_kernel(smoothness, scales.numel() if scales.ndim else None)
    kernel = ScaleKernel(base).double()
    base.lengthscale = scales
    kernel.outputscale = outputscale
    return kernel.requires_grad_(False)


def base_kernel(smoothness: float, dim: int | None) -> Kernel:
    """Return the kernel inside :func:`matern_kernel`, with GPyTorch's lengthscales."""
    if smoothness == math.inf:
        return RBFKernel(ard_num_dims=dim)
    return MaternKernel(nu=smoothness, ard_num_dims=dim)


def coordinate_kernel(kernel: Kernel, dim: int) -> Kernel:
    """Return the product over the inputs of one-dimensional versions of ``kernel`` (see
    ``matern_kernel``), with its outputscale.

    Its random features have a scale of their own for each coordinate of a frequency, as those of
    the published codes do.
    """
    base = kernel.base_kernel
    parts = []
    for index, lengthscale in enumerate(base.lengthscale.reshape(-1).expand(dim)):
        part = MaternKernel(nu=base.nu, active_dims=(index,)).to(base.lengthscale)
        part.lengthscale = lengthscale
        parts.append(part)
    product = ScaleKernel(ProductKernel(*parts)).to(base.lengthscale)
    product.outputscale = kernel.outputscale
    return product.requires_grad_(False)


def fixed_model(
    train_X: Tensor,
    train_y: Tensor,
    kernel: Kernel,
    noise: float,
    solver: Solver | None,
    num_features: int = 2048,
    kind: type[PathwiseGP] = PathwiseGP,
    **options: Any,
) -> PathwiseGP:
    """Return the Gaussian process with this kernel, zero mean and noise variance, in the data's
    dtype and device.

    Args:
        train_X: (n, d).
        train_y: (n,).
        solver: of the linear systems; ``None`` for the model's own choice.
    """
    if solver is not None:
        options["solver"] = solver
    options |= {"covar_module": kernel, "num_features": num_features}
    return zero_mean_model(train_X, train_y, noise, kind, **options).eval()


def zero_mean_model(
    train_X: Tensor, train_y: Tensor, noise: float, kind: type[Model], **options: Any
) -> Model:
    """Return a Gaussian process of the class ``kind`` with zero mean, a noise variance that can be
    learned, and the targets (n,) as they are.
    """
    return kind(
        train_X,
        train_y[:, None],
        likelihood=gaussian_likelihood(noise),
        mean_module=ZeroMean(),
        outcome_transform=None,
        **options,
    )
