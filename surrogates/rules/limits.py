"""The range that a fit keeps every lengthscale in, what data can tell of it; and the inputs that
the arithmetic and random features can hold.
"""

import math
from typing import Any

import torch
from botorch.models.kernels.categorical import CategoricalKernel
from gpytorch import Module
from gpytorch.kernels import Kernel, MaternKernel, PeriodicKernel, RBFKernel, RQKernel
from gpytorch.likelihoods import GaussianLikelihood, HadamardGaussianLikelihood
from torch import Tensor

from surrogates.functions.tasks import task_numbers
from surrogates.operators.forms import leaves

# Likelihoods whose noise variances are inferred from the data
INFERRED_NOISE = (GaussianLikelihood, HadamardGaussianLikelihood)
# The distance, in ranges of the inputs, up to which points are one: its square is lost where a
# likelihood computes squared distances from squares, in float64
RESOLUTION = math.sqrt(torch.finfo(torch.float64).eps)
LONGEST = 1e3  # times the range of an input: the kernel no longer depends on it


def lengthscale_limits(kernel: Kernel, X: Tensor) -> list[tuple[Kernel, Tensor, Tensor]]:
    """Return the parts of ``kernel`` with lengthscales, and the bounds of each, in their shape.

    The lengthscale of an input lies between a tenth of the median gap between its neighbouring
    values, and a thousand times its range; one for several inputs, between the least of the former
    and the largest of the latter. Periodic kernels, whose lengthscales are no distances of inputs,
    are left out.

    Args:
        X: (..., n, d), as the kernel sees them.
    """
    points = X.detach().reshape(-1, X.shape[-1])
    width = points.amax(0) - points.amin(0)
    columns_and_widths = zip(points.unbind(1), width, strict=True)
    # At a tenth of the gap every two values are uncorrelated
    lower = 0.1 * torch.stack([_gap(*pair) for pair in columns_and_widths])
    upper = LONGEST * torch.where(width > 0, width, 1.0)
    limits = []
    for part, columns in parts_with_lengthscales(kernel, X.shape[-1]):
        if isinstance(part, PeriodicKernel):
            continue
        own = part.lengthscale
        columns = columns.to(points.device)
        shortest, longest = lower[columns], upper[columns]
        if own.shape[-1] != len(columns):
            shortest, longest = shortest.min(), longest.max()
        limits.append((part, shortest.expand_as(own), longest.expand_as(own)))
    return limits


@torch.no_grad()
def assign(part: Module, name: str, value: Tensor | float) -> None:
    """Give ``part`` a positive hyperparameter; beyond a bound of its constraint, one a tenth inside
    of it, as a search would see no slope on the bound itself.
    """
    own = getattr(part, name)
    value = torch.as_tensor(value, dtype=own.dtype, device=own.device).expand_as(own)
    if (bounds := part.constraint_for_parameter_name(f"raw_{name}")) is not None:
        lower, upper = bounds.lower_bound.to(own).clamp_min(0.0), bounds.upper_bound.to(own)
        middle = 0.5 * (lower + upper)
        value = value.where(value > lower, torch.minimum(1.1 * lower, middle))
        value = value.where(value < upper, torch.maximum(0.9 * upper, middle))
    setattr(part, name, value)


@torch.no_grad()
def clamp_lengthscales(kernel: Kernel, X: Tensor) -> None:
    """Put the lengthscales that are learned, and lie outside their range, on its bounds."""
    for part, lower, upper in lengthscale_limits(kernel, X):
        value = part.lengthscale
        inside = value.clamp(lower.to(value), upper.to(value))
        if part.raw_lengthscale.requires_grad and not torch.equal(value, inside):
            assign(part, "lengthscale", inside)


@torch.no_grad()
def check_range(
    kernel: Kernel, X: Tensor, *, takes_differences: bool, largest_rounding: float = 0.1
) -> None:
    """Require inputs whose distances, in lengthscales, the dtype can hold.

    Args:
        X: (..., n, d), as the kernel sees them.
        takes_differences: whether distances are computed from differences of the inputs; otherwise
            from their squares, which cancel.
        largest_rounding: of a squared distance.

    Raises:
        ValueError: naming the inputs, their range and the remedies.
    """
    precision = torch.finfo(X.dtype)
    # There is room for sums and multiples of a squared distance
    room = precision.eps * precision.max
    largest = room if takes_differences else largest_rounding / precision.eps
    for part, columns in parts_with_lengthscales(kernel, X.shape[-1]):
        if not isinstance(part, RBFKernel | MaternKernel | RQKernel):
            continue
        points = X[..., columns.to(X.device)]
        scaled = (points - points.mean(-2, keepdim=True)) / part.lengthscale.to(X)
        squares = scaled.square().sum(-1)
        if not bool((squares <= largest).all()):  # or is not a number
            raise ValueError(
                f"`train_X` must lie within {largest**0.5:.1e} lengthscales of its mean for"
                f" distances in {X.dtype}, got {squares.max().sqrt().item():.1e} with inputs up to"
                f" {X.abs().max().item():.1e} in size. Scale the inputs, as"
                " `input_transform=Normalize(d)` does, or set or fit longer lengthscales, or use"
                " float64."
            )


def check_codes(kernel: Kernel, X: Tensor) -> None:
    """Require integers in the columns of X (n, d) that are categories to ``kernel``.

    Raises:
        ValueError: naming a column and a value.
    """
    parts = leaves(kernel, torch.arange(X.shape[1], device="cpu"))
    codes_of = [own for part, own in parts if isinstance(part, CategoricalKernel)]
    for column in sorted({column for own in codes_of for column in own.tolist()}):
        codes = X[:, column]
        bad = codes != codes.round()
        if bad.any():
            raise ValueError(
                "Paths of a CategoricalKernel need categories that are integers, got"
                f" {codes[bad][0].item():g} in column {column}. Number the categories 0, 1, 2, …,"
                " and leave them out of input transforms."
            )


def noise_at(likelihood: Any, X: Tensor) -> Tensor:
    """Return the noise variances of data at X (*B, n, d), differentiable in their parameters: a
    scalar if all data share one variance, otherwise the variance of each datum, (*B, n), which is
    known or is that of the datum's task.
    """
    noise: Tensor = likelihood.noise
    if (tasks := tasks_with_noise(likelihood, X)) is not None:
        return noise[tasks]
    return noise.reshape(()) if noise.numel() == 1 else noise


def tasks_with_noise(likelihood: Any, X: Tensor) -> Tensor | None:
    """Return the tasks of data at X (*B, n, d) if each has a noise variance of its own."""
    if isinstance(likelihood, HadamardGaussianLikelihood):
        return task_numbers(X[..., likelihood.task_feature_index], likelihood.num_tasks)
    return None


def check_no_noise_of_tasks(likelihood: Any) -> None:
    """Require noise that does not depend on tasks.

    Raises:
        ValueError: naming the kind of the likelihood.
    """
    if isinstance(likelihood, HadamardGaussianLikelihood):
        raise ValueError(
            "`model.likelihood` must have one noise variance for this fit, or known ones, got a"
            f" {type(likelihood).__name__}. Give known ones as `train_Yvar`."
        )


def parts_with_lengthscales(kernel: Kernel, dim: int) -> list[tuple[Kernel, Tensor]]:
    """Return the parts of ``kernel`` whose lengthscales are distances of its ``dim`` inputs, and
    which of them each looks at: not the kernels inside those that transform their inputs.
    """
    return [
        (part, columns)
        for part, columns in leaves(kernel, torch.arange(dim, device="cpu"))
        if part.has_lengthscale and part.lengthscale.shape[-1] in (1, len(columns))
    ]


def _gap(column: Tensor, width: Tensor) -> Tensor:
    gaps = column.sort().values.diff()
    positive = gaps[gaps > RESOLUTION * width]
    return positive.median() if len(positive) else column.new_ones(())
