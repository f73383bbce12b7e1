"""The range that a fit keeps every lengthscale in: what data can tell of it."""

from collections.abc import Iterator

import torch
from gpytorch.kernels import Kernel, PeriodicKernel, ScaleKernel
from torch import Tensor
from torch.nn import ModuleList

LONGEST = 1e3  # times the range of an input: the kernel no longer depends on it
SHORTEST = 0.1  # times the median gap between its values: every two of them are uncorrelated


def lengthscale_limits(kernel: Kernel, X: Tensor) -> Iterator[tuple[Kernel, Tensor, Tensor]]:
    """Yield the parts of ``kernel`` with lengthscales, and the bounds of each, in their shape.

    The lengthscale of an input lies between a tenth of the median gap between its neighbouring
    values, and a thousand times its range; one for several inputs, between the least of the former
    and the largest of the latter. Periodic kernels, whose lengthscales are no distances of inputs,
    are left out.

    Args:
        X: (..., n, d), as the kernel sees them.
    """
    points = X.detach().reshape(-1, X.shape[-1])
    lower = SHORTEST * torch.stack([_gap(column) for column in points.unbind(1)])
    width = points.amax(0) - points.amin(0)
    upper = LONGEST * torch.where(width > 0, width, 1.0)
    for part, columns in parts_with_lengthscales(kernel, torch.arange(X.shape[-1])):
        if isinstance(part, PeriodicKernel):
            continue
        own = part.lengthscale
        columns = columns.to(points.device)
        if own.shape[-1] == len(columns):
            yield part, lower[columns].expand_as(own), upper[columns].expand_as(own)
        else:
            yield part, lower[columns].min().expand_as(own), upper[columns].max().expand_as(own)


@torch.no_grad()
def clamp_lengthscales(kernel: Kernel, X: Tensor) -> None:
    """Put the lengthscales that are learned, and lie outside their range, on its bounds."""
    for part, lower, upper in lengthscale_limits(kernel, X):
        value = part.lengthscale
        inside = value.clamp(lower.to(value), upper.to(value))
        if part.raw_lengthscale.requires_grad and not torch.equal(value, inside):
            part.lengthscale = inside


def parts_with_lengthscales(
    kernel: Kernel, columns: Tensor, called: bool = True
) -> Iterator[tuple[Kernel, Tensor]]:
    """Yield the parts of ``kernel`` that have lengthscales, and which of the inputs ``columns``
    each looks at.
    """
    # ScaleKernel selects for the kernel below it, which it does not call
    if called and kernel.active_dims is not None:
        columns = columns[kernel.active_dims.to(columns.device)]
    if kernel.has_lengthscale:
        yield kernel, columns
    if isinstance(kernel, ScaleKernel):
        yield from parts_with_lengthscales(kernel.base_kernel, columns, called=False)
        return
    for child in kernel.children():
        for part in child if isinstance(child, ModuleList) else (child,):
            if isinstance(part, Kernel):
                yield from parts_with_lengthscales(part, columns)


def _gap(column: Tensor) -> Tensor:
    gaps = column.sort().values.diff()
    positive = gaps[gaps > 0]
    return positive.median() if len(positive) else column.new_ones(())
