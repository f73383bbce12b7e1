"""Several data sets in one model: independent outputs and batches, taken apart into the data sets
that are solved one by one, or into models of some of the outputs.

Notation: B the shape of the batch, outputs last, as ``SingleTaskGP`` lays them out: X (*B, n, d), y
(*B, n).
"""

import itertools
from copy import deepcopy

import torch
from botorch.models import SingleTaskGP
from botorch.models.gpytorch import BatchedMultiOutputGPyTorchModel
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.likelihoods.noise_models import HomoskedasticNoise
from gpytorch.means import LinearMean, Mean
from torch import Tensor, nn

from surrogates.operators.stationary import StationaryKernel
from surrogates.rules.data import DataSet
from surrogates.rules.inducing_points import choose_inducing_points

DEFAULT_NUM_INDUCING = 1024


class MeanOfBatch(nn.Module):
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


def noise_variances(model: SingleTaskGP) -> Tensor:
    """Return the noise variances in standardised units: a scalar, or (n,) where they are known;
    after the batch shape if there is one.
    """
    noise: Tensor = model.likelihood.noise.detach()
    return noise.reshape(()) if noise.numel() == 1 else noise


def data_sets(model: SingleTaskGP) -> list[DataSet]:
    """Return the data sets of ``model``, which is in evaluation mode,
    in row-major order of B = ``train_targets.shape[:-1]``.
    """
    # Constants, even where transforms of the data have parameters to learn
    y = model.train_targets.detach()
    X = model.train_inputs[0].detach()
    noise = noise_variances(model)
    mean_module = deepcopy(model.mean_module).requires_grad_(False)
    batch_shape = y.shape[:-1]
    if not batch_shape:
        return [DataSet(X, y, noise, frozen_kernel(model.covar_module), mean_module)]
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


def forget_caches(kernel: Kernel) -> None:
    """Drop the matrices that GPyTorch's kernels of grids and inducing points keep in evaluation
    mode: they outlive changed hyperparameters, and cannot be copied.
    """
    for part in kernel.modules():
        if isinstance(part, Kernel):
            part._clear_cache()


def frozen_kernel(kernel: Kernel) -> Kernel:
    """Return a copy of ``kernel`` whose parameters take no gradients."""
    forget_caches(kernel)
    return deepcopy(kernel).requires_grad_(False)


def kernel_of_batch(kernel: Kernel, index: tuple[int, ...]) -> Kernel:
    """Return a frozen copy of ``kernel`` for the element ``index``; parts without batch shape are
    shared by all.

    GPyTorch's own indexing of kernels does not broadcast batch shapes, and takes buffers such as
    ``active_dims`` for batches.
    """
    kernel = frozen_kernel(kernel)
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


def place_inducing_points(
    model: SingleTaskGP, inducing_points: Tensor | int, method: str, seed: int
) -> Tensor:
    """Return Z (m, d) on the transformed inputs of ``model``: the points given, or so many chosen
    among its data, at most all.

    Several outputs share them; distances are in lengthscales of the first.
    """
    model.eval()  # the training inputs are then the transformed ones
    try:
        if isinstance(inducing_points, Tensor):
            return model.transform_inputs(inducing_points).detach().clone()
        data = data_sets(model)[0]
        generator = torch.Generator().manual_seed(seed)
        X = data.X.detach()
        m = min(inducing_points, len(X))
        return choose_inducing_points(
            X, m, method, generator=generator, lengthscale=_lengthscale(data.kernel)
        )
    finally:
        model.train()


def _lengthscale(kernel: Kernel) -> Tensor | None:
    """Return the lengthscales of ``kernel`` if it has a closed form in all inputs."""
    stationary = StationaryKernel.of(kernel)
    return (
        None if stationary is None or stationary.active_dims is not None else stationary.lengthscale
    )


def subset_outputs(model: SingleTaskGP, outputs: list[int]) -> BatchedMultiOutputGPyTorchModel:
    """Return a model of some ``outputs`` of ``model``, which has several and is given away.

    BoTorch subsets the data, the transforms, and those parameters that it is told to: its default
    modules' alone.

    Raises:
        NotImplementedError: for a mean whose parameters cannot be told apart.
    """
    m = model.num_outputs
    training = model.training
    X = model.train_inputs[0].reshape(-1, model.train_inputs[0].shape[-1])[:1]
    shapes = {name: _own_batch_shape(part, X) for name, part in model.named_modules()}
    ours = {name for name, shape in shapes.items() if shape and shape[-1] == m}
    parameters = [(name.rpartition("."), value) for name, value in model.named_parameters()]
    model._subset_batch_dict = {
        f"{part}.{name}": len(shapes[part]) - 1 - p.ndim
        for (part, _, name), p in parameters
        if part in ours
    }
    # In training mode, where the inputs are those given
    subset = SingleTaskGP.subset_output(model.train(), outputs)
    tail = (len(outputs),) if len(outputs) > 1 else ()
    # BoTorch takes the batch shape of a part for that of the whole
    for name, part in subset.named_modules():
        if isinstance(part, Kernel):
            part.batch_shape = (
                torch.Size((*shapes[name][:-1], *tail)) if name in ours else shapes[name]
            )
    return subset.train(training)


def kernel_batch_shape(kernel: Kernel) -> torch.Size:
    """Return the batch shape of the parameters of ``kernel``,
    without those of the kernels in it.
    """
    # A ScaleKernel takes over the batch shape of what it scales, without noting it.
    return kernel.raw_outputscale.shape if isinstance(kernel, ScaleKernel) else kernel._batch_shape


def _own_batch_shape(part: nn.Module, X: Tensor) -> torch.Size:
    """Return the batch shape of the parameters of ``part``, without those of the parts in it;
    X (1, d) is any point.
    """
    if isinstance(part, Kernel):
        return kernel_batch_shape(part)
    if isinstance(part, HomoskedasticNoise):
        return part.raw_noise.shape[:-1]
    if isinstance(part, LinearMean):
        return part.weights.shape[:-2]
    if not isinstance(part, Mean):
        return torch.Size()
    if "batch_shape" not in vars(part) and part(X).ndim > 1:
        raise NotImplementedError(
            f"`subset_output` does not know which parameters of a {type(part).__name__} belong to"
            " which output."
        )
    return getattr(part, "batch_shape", torch.Size())
