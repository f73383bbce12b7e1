"""What representer weights are fitted to."""

from typing import NamedTuple

import torch
from torch import Tensor


class Targets(NamedTuple):
    """What the representer weights have to fit at the n data points, in two parts.

    Attributes:
        values: (n, s) function values f: ``y − μ(X)`` for the mean, prior values for samples.
        noise_draw: (n, s) noise ε ~ N(0, Σ) of the samples, 0 for the mean. Solvers that reduce
            variance by it keep it apart.
    """

    values: Tensor
    noise_draw: Tensor

    def to(self, dtype: torch.dtype) -> "Targets":
        """Return both parts in another precision."""
        return Targets(self.values.to(dtype), self.noise_draw.to(dtype))


class Regression(NamedTuple):
    """What the weights are fitted to, for methods that draw batches of data.

    Attributes:
        rhs: (num_data, s) f + ε.
        noise_draw: (num_data, s) ε, 0 if it is not known apart.
        projected_noise: (n, s) K_ZX Σ⁻¹ ε, exactly, where the unknowns weigh other points than the
            data; ``None`` where they weigh those.
    """

    rhs: Tensor
    noise_draw: Tensor
    projected_noise: Tensor | None
