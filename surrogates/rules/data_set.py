"""What a posterior is of."""

from typing import NamedTuple

from gpytorch.kernels import Kernel
from torch import Tensor, nn


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
    mean_module: nn.Module
