"""Several data sets in one model: independent outputs and batches, taken apart into the data sets
that are solved one by one.

Notation: B the shape of the batch, outputs last, as ``SingleTaskGP`` lays them out: X (*B, n, d), y
(*B, n).
"""

import itertools
from copy import deepcopy
from typing import NamedTuple

import torch
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from torch import Tensor

from surrogates.models.fresh import FreshGP
from surrogates.models.outputs import kernel_batch_shape


class DataSet(NamedTuple):
    """What one posterior is of, on transformed inputs and in standardised units; frozen copies.

    Attributes:
        X: (n, d).
        y: (n,).
        noise: Σ, a scalar or (n,) variances.
        kernel: without batch shape.
        mean_module: maps (..., q, d) to (..., q).
    """

    X: Tensor
    y: Tensor
    noise: Tensor
    kernel: Kernel
    mean_module: torch.nn.Module

    @property
    def residuals(self) -> Tensor:
        """y − μ(X), (n,)."""
        return self.y - self.mean_module(self.X)


class MeanOfBatch(torch.nn.Module):
    """The mean function of one element of a batch, whatever parameters the functions are made of.

    All are evaluated, which costs O(d) an element and point, and one is kept.
    """

    def __init__(self, mean_module: Mean, batch_shape: torch.Size, index: tuple[int, ...]):
        super().__init__()
        self.mean_module = mean_module
        self.batch_shape = batch_shape
        self.index = index

    def forward(self, X: Tensor) -> Tensor:
        """Return the mean at X (..., q, d): (..., q)."""
        flat = X.reshape(-1, X.shape[-1])
        values: Tensor = self.mean_module(flat).expand(*self.batch_shape, len(flat))
        return values[self.index].reshape(X.shape[:-1])


def data_sets(model: FreshGP) -> list[DataSet]:
    """Return the data sets of ``model``, which is in evaluation mode,
    in row-major order of B = ``train_targets.shape[:-1]``.
    """
    y = model.train_targets
    X = model.train_inputs[0]
    noise = model.noise
    mean_module = deepcopy(model.mean_module).requires_grad_(False)
    batch_shape = y.shape[:-1]
    if not batch_shape:
        return [
            DataSet(X, y, noise, deepcopy(model.covar_module).requires_grad_(False), mean_module)
        ]
    X = X.expand(*batch_shape, *X.shape[-2:])
    noise = noise.expand(*batch_shape, noise.shape[-1] if noise.ndim else 1)
    elements = []
    for index in indices(batch_shape):
        own_noise = noise[index] if noise.shape[-1] > 1 else noise[index].squeeze(-1)
        mean = MeanOfBatch(mean_module, batch_shape, index)
        elements.append(
            DataSet(X[index], y[index], own_noise, kernel_of_batch(model.covar_module, index), mean)
        )
    return elements


def indices(batch_shape: torch.Size) -> list[tuple[int, ...]]:
    """Return the index of every element, in row-major order."""
    return list(itertools.product(*map(range, batch_shape)))


def kernel_of_batch(kernel: Kernel, index: tuple[int, ...]) -> Kernel:
    """Return a frozen copy of ``kernel`` for the element ``index``; parts without batch shape are
    shared by all.

    GPyTorch's own indexing of kernels does not broadcast batch shapes, and takes buffers such as
    ``active_dims`` for batches.
    """
    kernel = deepcopy(kernel).requires_grad_(False)
    for part in kernel.modules():
        shape = kernel_batch_shape(part) if isinstance(part, Kernel) else torch.Size()
        if shape:
            own = tuple(
                i if size > 1 else 0 for i, size in zip(index[-len(shape) :], shape, strict=True)
            )
            for parameter in part.parameters(recurse=False):
                parameter.data = parameter.data[own]
            part.batch_shape = torch.Size()
    return kernel


def check_kernel(kernel: Kernel, train_X: Tensor, train_Y: Tensor) -> None:
    """Require a kernel whose batch shape is that of the data, or broadcasts to it.

    Raises:
        ValueError: naming both.
    """
    expected = train_X.shape[:-2] + (train_Y.shape[-1:] if train_Y.shape[-1] > 1 else ())
    own = kernel.batch_shape
    if len(own) > len(expected) or any(
        size not in (1, wanted) for size, wanted in zip(own[::-1], expected[::-1], strict=False)
    ):
        raise ValueError(
            "`covar_module` must have no batch shape or that of the data and outputs,"
            f" {tuple(expected)}, got {tuple(own)}."
        )
