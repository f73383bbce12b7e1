"""Waves of BoTorch's kernel of categories, which are finite functions of integer codes.

Over c columns it is a product, k(x, z) = Π_j (ρ_j + (1 − ρ_j) [x_j = z_j]) with ρ_j = exp(−1 / c
ℓ_j). Of integers, [x = z] = E cos ω(x − z) for ω uniform in [0, 2π).
"""

import torch
from botorch.models.kernels.categorical import CategoricalKernel
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel, ScaleKernel
from torch import Tensor

from surrogates.operators.stationary import kind_of


def category_frequencies(
    kernel: CategoricalKernel, num_columns: int, count: int, generator: torch.Generator
) -> Tensor:
    """Return frequencies (c, h) for ``num_columns`` = c and ``count`` = h: 0 with probability ρ_j,
    else uniform. Both come from one number, stratified over the waves of a column.
    """
    shape = (num_columns, count)
    device = generator.device
    order = torch.rand(shape, generator=generator, device=device).argsort(1)
    within = torch.rand(shape, generator=generator, device=device, dtype=torch.float64)
    uniform = (order + within) / count
    lengthscale = kernel.lengthscale.detach().reshape(-1, 1).to(uniform)
    ignored = torch.exp(-1.0 / (num_columns * lengthscale))
    rest = -torch.expm1(-1.0 / (num_columns * lengthscale))
    return 2.0 * torch.pi * (uniform - ignored).clamp_min(0.0) / rest


def check_codes(kernel: Kernel, X: Tensor) -> None:
    """Require integers in the columns of X (n, d) that are categories to ``kernel``.

    Raises:
        ValueError: naming a column and a value.
    """
    for column in sorted(_category_columns(kernel, torch.arange(X.shape[1]))):
        codes = X[:, column]
        bad = codes != codes.round()
        if bad.any():
            raise ValueError(
                "Paths of a CategoricalKernel need categories that are integers, got"
                f" {codes[bad][0].item():g} in column {column}. Number the categories 0, 1, 2, …,"
                " and leave them out of input transforms."
            )


def visible(kernel: Kernel, columns: Tensor) -> Tensor:
    """Return those of the input ``columns`` that ``kernel`` picks when it is called."""
    return columns if kernel.active_dims is None else columns[kernel.active_dims.to(columns.device)]


def _category_columns(kernel: Kernel, columns: Tensor) -> set[int]:
    columns = visible(kernel, columns)
    while kind_of(kernel) is ScaleKernel:  # has taken over the active dimensions of its base kernel
        kernel = kernel.base_kernel
    if isinstance(kernel, CategoricalKernel):
        return set(columns.tolist())
    parts = kernel.kernels if kind_of(kernel) in (AdditiveKernel, ProductKernel) else ()
    return {column for part in parts for column in _category_columns(part, columns)}
