"""What a posterior is of."""

from typing import NamedTuple

from gpytorch.kernels import Kernel
from torch import Tensor, nn


class DataSet(NamedTuple):
    """What one posterior is of, on transformed inputs and in standardised units; frozen copies."""

    X: Tensor  # (n, d)
    y: Tensor  # (n,)
    noise: Tensor  # Σ, a scalar or (n,) variances
    kernel: Kernel  # without batch shape
    mean_module: nn.Module  # maps (..., q, d) to (..., q)
