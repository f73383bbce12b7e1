"""What a model is of: its data sets, independent outputs and batches, taken apart to be solved one
by one or as models of some of the outputs; their noise; and how it knows that what it keeps is
still of them.

Notation: B the shape of the batch, outputs last, as ``SingleTaskGP`` lays them out: X (*B, n, d), y
(*B, n).
"""

import itertools
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import gpytorch
import numpy as np
import torch
from botorch.models import SingleTaskGP
from botorch.models.gpytorch import BatchedMultiOutputGPyTorchModel
from botorch.models.transforms.input import InputTransform
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import (
    InducingPointKernel,
    Kernel,
    MultiDeviceKernel,
    ProductKernel,
    ScaleKernel,
)
from gpytorch.likelihoods import (
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    HadamardGaussianLikelihood,
)
from gpytorch.likelihoods.noise_models import HomoskedasticNoise
from gpytorch.means import LinearMean, Mean
from gpytorch.models import ExactGP
from gpytorch.priors import Prior
from torch import Tensor, nn

from surrogates import checks
from surrogates.functions.spectra import Embedding, NoFeaturesError
from surrogates.functions.tasks import TaskKernel
from surrogates.operators.forms import StationaryKernel
from surrogates.rules.data_set import DataSet
from surrogates.rules.inducing_points import INDUCING_METHODS, choose_inducing_points
from surrogates.rules.limits import INFERRED_NOISE, noise_at
from surrogates.solvers.cholesky import Cholesky
from surrogates.solvers.solver import Solver

BOOKKEEPING = vars(gpytorch.Module()).keys() - {"training"}  # of PyTorch and GPyTorch
PATHS = "paths"  # behind a posterior, among what is kept of a model
# In standardised units, what stands for no noise: GPyTorch's own bound, before any change to it
LEAST_NOISE = {
    dtype: float(gpytorch.settings.min_fixed_noise.value(dtype))
    for dtype in (torch.float32, torch.float64)
}


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


def gaussian_likelihood(noise: float) -> GaussianLikelihood:
    """Return a Gaussian likelihood with the variance ``noise`` = σ², however small (GPyTorch's own
    refuses σ² < 1e-4).

    Raises:
        ValueError: if ``noise`` is not finite and above 0.
    """
    noise = checks.positive_float("noise", noise, "Use a small value such as 1e-6 for exact data.")
    likelihood = GaussianLikelihood(noise_constraint=GreaterThan(min(1e-8, 0.5 * noise)))
    likelihood.noise = noise
    return likelihood


def check_likelihood(
    likelihood: Any, train_X: Tensor, train_Y: Tensor, input_transform: InputTransform | None
) -> None:
    """Require a likelihood whose noise variances are numbers, of each task where they depend on it.

    Raises:
        TypeError: naming the kinds, for any other.
        ValueError: for noise of tasks of several outputs or with a batch shape, or of a column that
            is not there or holds no tasks.
    """
    known = (*INFERRED_NOISE, FixedNoiseGaussianLikelihood)
    if not isinstance(likelihood, known) or hasattr(likelihood, "num_classes"):
        raise TypeError(
            "`likelihood` must be a GaussianLikelihood or a FixedNoiseGaussianLikelihood, whose"
            f" noise variances are numbers, got {type(likelihood).__name__}. Give variances that"
            " differ as `train_Yvar`, or use botorch.models.SingleTaskGP with this likelihood."
        )
    if isinstance(likelihood, HadamardGaussianLikelihood):
        X = train_X if input_transform is None else deepcopy(input_transform)(train_X)
        column = likelihood.task_feature_index
        d = X.shape[-1]
        m = train_Y.shape[-1]
        batch_shape = tuple(likelihood.noise.shape[:-1])
        if column is None or not -d <= column < d or m > 1 or batch_shape:
            raise ValueError(
                "`likelihood` must have the task's column, a number from"
                f" {-d} to {d - 1}, as its `task_feature_index`, no batch shape, and be of a model"
                f" of one output, got {column}, the batch shape {batch_shape} and {m} outputs. Use"
                " `HadamardGaussianLikelihood(num_tasks, task_feature_index=-1)` for the last"
                " column."
            )
        remedy = "Give the likelihood the task's column as `task_feature_index`."
        noise_at(likelihood, whole_tasks(X, column, remedy))


def check_noise(train_Yvar: Any, train_Y: Tensor) -> None:
    """Require variances of at least 0 of the shape, dtype and device of ``train_Y``.

    Raises:
        TypeError, ValueError: naming what does not fit.
    """
    checks.floating_tensor("train_Yvar", train_Yvar)
    if train_Yvar.shape != train_Y.shape:
        raise ValueError(
            f"`train_Yvar` must have the shape of `train_Y`, {tuple(train_Y.shape)}, got"
            f" {tuple(train_Yvar.shape)}."
        )
    checks.like("train_Yvar", train_Yvar, "train_Y", train_Y)
    if (train_Yvar < 0).any():
        raise ValueError(
            f"`train_Yvar` must be at least 0, got {train_Yvar.min().item():g}. Use 0 for exact"
            " data, or None to infer the noise."
        )


def check_noise_of_values(likelihood: Any, noise: Any, name: str = "noise") -> None:
    """Require no variances of single values beside those of tasks.

    Raises:
        ValueError: naming the argument.
    """
    if isinstance(noise, Tensor) and isinstance(likelihood, HadamardGaussianLikelihood):
        raise ValueError(
            f"`{name}` must not be given where the noise variance of every task is inferred, got"
            f" variances of shape {tuple(noise.shape)}. Leave it out, or build a model of all data"
            " with `train_Yvar`."
        )


def known_noise(noise: Any) -> Tensor:
    """Return variances in standardised units with GPyTorch's least in the place of zeros: the
    systems that are solved need a positive diagonal.

    Raises:
        TypeError, ValueError: if they are not finite or below 0.
    """
    noise = checks.floating_tensor("noise", noise)
    if (noise < 0).any():
        raise ValueError(
            f"`noise` must be variances of at least 0, got {noise.min().item():g}. Give them in"
            " standardised units."
        )
    return noise.where(noise > 0, LEAST_NOISE[noise.dtype])


def data_sets(model: SingleTaskGP) -> list[DataSet]:
    """Return the data sets of ``model``, which is in evaluation mode,
    in row-major order of B = ``train_targets.shape[:-1]``.
    """
    # Constants, even where transforms of the data have parameters to learn
    y = model.train_targets.detach()
    X = model.train_inputs[0].detach()
    noise = noise_at(model.likelihood, X).detach()
    mean_module = deepcopy(model.mean_module).requires_grad_(False)
    batch_shape = y.shape[:-1]
    if not batch_shape:
        return [DataSet(X, y, noise, frozen_kernel(model.covar_module), mean_module)]
    X = X.expand(*batch_shape, *X.shape[-2:])
    noise = noise.expand(*batch_shape, noise.shape[-1] if noise.ndim else 1)
    elements = []
    for index in indices(batch_shape):
        kernel = kernel_of_batch(model.covar_module, index)
        mean = MeanOfBatch(mean_module, batch_shape, index)
        elements.append(DataSet(X[index], y[index], noise[index].squeeze(-1), kernel, mean))
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
    return detached_copy(kernel).requires_grad_(False)


def detached_copy(module: Any) -> Any:
    """Return a copy of a module, or of ``None``, that no longer follows the model; what it holds
    may depend on data with a graph, which nothing copies.
    """
    buffers = [] if module is None else module.buffers()
    return deepcopy(module, {id(part): part.detach().clone() for part in buffers})


def kernel_of_batch(kernel: Kernel, index: tuple[int, ...]) -> Kernel:
    """Return a frozen copy of ``kernel`` for the element ``index``; parts without batch shape are
    shared by all.

    GPyTorch's own indexing of kernels does not broadcast batch shapes, takes buffers such as
    ``active_dims`` for batches, and leaves out the bounds of constraints.
    """
    kernel = frozen_kernel(kernel)
    for part in kernel.modules():
        if isinstance(part, Kernel):
            for _, tensor, num_batch in _own_tensors(part, kernel_batch_shape(part)):
                shape = tensor.shape[:num_batch]
                own = zip(index[len(index) - num_batch :], shape, strict=True)
                tensor.data = tensor.data[tuple(i if size > 1 else 0 for i, size in own)]
            part._batch_shape = torch.Size()
    return kernel


def check_kernel(
    kernel: Kernel,
    train_X: Tensor,
    train_Y: Tensor,
    input_transform: InputTransform | None,
    solver: Solver | None,
) -> None:
    """Require a kernel whose batch shape is that of the data, or broadcasts to it; for an iterative
    solver, one with random features.

    Raises:
        TypeError: for what is no kernel, or has no single value for two points.
        ValueError: naming both shapes, those of bounds among them, a part without features, one of
            a single input that looks at several, or a task that is no whole number.
    """
    if not isinstance(kernel, Kernel):
        raise TypeError(
            "`covar_module` must be a GPyTorch kernel such as MaternKernel(), got"
            f" {type(kernel).__name__} {kernel!r}."
        )
    others = {MultiDeviceKernel, InducingPointKernel} & set(map(type, kernel.modules()))
    if others or kernel.num_outputs_per_input(train_X, train_X) != 1:
        raise TypeError(
            "`covar_module` must have one value for every two points, wherever they are, got"
            f" {type(kernel).__name__}. Use `multi_task_kernel` for tasks, columns of `train_Y` for"
            " outputs, or the kernel inside it, in an InducingPathwiseGP for inducing points."
        )
    expected = train_X.shape[:-2] + (train_Y.shape[-1:] if train_Y.shape[-1] > 1 else ())
    own = kernel.batch_shape
    if not checks.broadcasts(own, expected):
        raise ValueError(
            "`covar_module` must have no batch shape or that of the data and outputs,"
            f" {tuple(expected)}, got {tuple(own)}."
        )
    for name, parameter, constraint in kernel.named_parameters_and_constraints():
        for bound in () if constraint is None else constraint:
            if not checks.broadcasts(bound.shape, parameter.shape):
                raise ValueError(
                    f"`covar_module` must have bounds that broadcast to the shape of `{name}`,"
                    f" {tuple(parameter.shape)}, got {tuple(bound.shape)}. Give the kernel their"
                    " batch shape, or the constraint fewer bounds."
                )
    X = train_X if input_transform is None else deepcopy(input_transform)(train_X)
    is_exact = solver is None or isinstance(solver, Cholesky)
    with suppress(NoFeaturesError) if is_exact else nullcontext():
        Embedding.of(frozen_kernel(kernel).to(X), X)
    for part in kernel.kernels if isinstance(kernel, ProductKernel) else ():
        if isinstance(part, TaskKernel):
            whole_tasks(
                X,
                int(part.active_dims),
                "Give `multi_task_kernel` the task's column as `task_feature`, and count it in"
                " `dim`.",
            )


def whole_tasks(X: Tensor, column: int, remedy: str) -> Tensor:
    """Return X if the tasks in a column of it are whole numbers.

    Raises:
        ValueError: if a task is not a whole number; the message ends with ``remedy``.
    """
    tasks = X[..., column]
    if (fractions := tasks != tasks.round()).any():
        raise ValueError(
            f"`train_X` must have the task, a whole number, in column {column}, got"
            f" {tasks[fractions][0].item():g}. {remedy}"
        )
    return X


@torch.no_grad()
def place_inducing_points(
    model: Any, train_X: Tensor, inducing_points: Tensor | int, method: str
) -> None:
    """Give ``model`` its inducing points Z (m, d) on transformed inputs, as a buffer: the points
    given, or so many chosen among its data, at most all.

    Several outputs share them; distances are in lengthscales of the first.

    Raises:
        TypeError, ValueError: naming what does not fit.
    """
    if train_X.ndim != 2:
        raise ValueError(
            "`train_X` must have shape (n, d) for a model of inducing points, got"
            f" {tuple(train_X.shape)}. Build a model for each data set, or a PathwiseGP."
        )
    if isinstance(inducing_points, Tensor):
        checks.valid_inducing_points(inducing_points, "train_X", train_X)
    else:
        inducing_points = checks.positive_int("inducing_points", inducing_points)
    checks.one_of("inducing_method", method, INDUCING_METHODS)
    model.eval()  # the training inputs are then the transformed ones
    if isinstance(inducing_points, Tensor):
        Z = model.transform_inputs(inducing_points).detach().clone()
    else:
        data = data_sets(model)[0]
        generator = torch.Generator().manual_seed(model.seed)
        m = min(inducing_points, len(data.X))
        form = StationaryKernel.of(data.kernel)
        lengthscale = None if form is None or form.active_dims is not None else form.lengthscale
        Z = choose_inducing_points(data.X, m, method, generator=generator, lengthscale=lengthscale)
    model.register_buffer("inducing_points", Z)
    model.train()


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
    model._subset_batch_dict = {
        f"{name}.{own}": num_batch - 1 - tensor.ndim
        for name, part in model.named_modules()
        for own, tensor, num_batch in _own_tensors(part, shapes[name])
        if num_batch and tensor.shape[num_batch - 1] == m
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
    """Return the batch shape of ``kernel``'s own parameters, without those of the kernels in it."""
    # A ScaleKernel takes over the batch shape of what it scales, without noting it.
    return kernel.raw_outputscale.shape if isinstance(kernel, ScaleKernel) else kernel._batch_shape


def _own_tensors(part: nn.Module, shape: torch.Size) -> Iterator[tuple[str, Tensor, int]]:
    """Yield the parameters of ``part``, which has this batch shape, the bounds of each, and the
    other buffers that begin with that shape, by name, with how many of their dimensions are batch.
    """
    for name, parameter in part.named_parameters(recurse=False):
        num_own = parameter.ndim - len(shape)
        constraint = getattr(part, "_constraints", {}).get(f"{name}_constraint", nn.Module())
        for bound, value in constraint.named_buffers():
            yield f"{name}_constraint.{bound}", value, max(0, value.ndim - num_own)
        yield name, parameter, len(shape)
    for name, value in part.named_buffers(recurse=False):
        if name != "active_dims" and value.shape[: len(shape)] == shape:
            yield name, value, len(shape)


def _own_batch_shape(part: nn.Module, X: Tensor) -> torch.Size:
    """Return the batch shape of the parameters of ``part`` itself; X (1, d) is any point."""
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


class StateKey(NamedTuple):
    """All that a posterior depends on, compared by value: GPyTorch's setters write through
    ``.data``, past every version counter.

    Attributes:
        tensors: parameters, buffers, noise, data and other tensors of the mean and kernel.
        settings: the model's own, and the types and plain attributes of its mean and kernel.
    """

    tensors: tuple[Tensor, ...]
    settings: tuple[Any, ...]

    @classmethod
    def of(cls, model: ExactGP, *settings: Any) -> Self:
        """Return the present key of ``model``, which shares its tensors."""
        tensors = [*model.parameters(), *model.buffers(), model.noise]
        tensors += [*model.train_inputs, model.train_targets]
        parts = [*model.mean_module.modules(), *model.covar_module.modules()]
        plain = [
            (
                type(part),
                _plain([v for k, v in vars(part).items() if k not in BOOKKEEPING], tensors),
            )
            for part in parts
            if not isinstance(part, Prior)  # on which no posterior depends
        ]
        return cls(tuple(tensors), (*settings, *plain))

    def frozen(self) -> "StateKey":
        """Return a key that no longer follows the model."""
        return StateKey(tuple(tensor.detach().clone() for tensor in self.tensors), self.settings)

    def matches(self, other: "StateKey | None") -> bool:
        return (
            other is not None
            and self.settings == other.settings
            and len(self.tensors) == len(other.tensors)
            and all(
                a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
                for a, b in zip(self.tensors, other.tensors, strict=True)
            )
        )


@dataclass(frozen=True, eq=False)
class Kept:
    """What has been computed for a model as ``key`` describes it.

    Attributes:
        parts: by name. Copies and pickles have the paths alone; the rest, which may hold graphs of
            derivatives, is computed again.
    """

    key: StateKey
    parts: dict[str, Any] = field(default_factory=dict)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Kept | None":
        return Kept(self.key, {PATHS: self.parts[PATHS]}) if PATHS in self.parts else None

    def __reduce__(self) -> tuple[Any, ...]:
        if PATHS not in self.parts:
            return type(None), ()
        return Kept, (self.key, {PATHS: self.parts[PATHS]})


@dataclass(frozen=True, eq=False)
class _Itself:
    """An object that equals itself alone, and is held, so that no other takes over its ``id``."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.value is other.value


def _plain(value: Any, tensors: list[Tensor]) -> Any:
    """Return what tells a change of ``value``, an attribute; append tensors to ``tensors``."""
    if value is None or isinstance(value, (int, float, str, np.generic)):
        return value
    if isinstance(value, Tensor):
        tensors.append(value)
        return None
    if isinstance(value, (tuple, list, set, frozenset)):
        return tuple(_plain(part, tensors) for part in value)
    if isinstance(value, dict):
        return _plain(list(value.items()), tensors)
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return _Itself(value)
