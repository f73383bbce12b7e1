"""Some of the outputs of a model, whatever its mean, kernel and likelihood."""

import torch
from botorch.models import SingleTaskGP
from botorch.models.gpytorch import BatchedMultiOutputGPyTorchModel
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.likelihoods.noise_models import HomoskedasticNoise
from gpytorch.means import LinearMean, Mean
from torch import Tensor, nn


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
