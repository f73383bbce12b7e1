"""The numbers of TF32, the format of a tensor core's factors: float32 without 13 bits."""

import torch
from torch import Tensor

DROPPED_BITS = 13  # of float32's mantissa


def halves(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return the numbers of TF32 that are nearest to float32 ones, and what is left of these."""
    half = 1 << (DROPPED_BITS - 1)
    high = ((A.view(torch.int32) + half) & (-1 << DROPPED_BITS)).view(torch.float32)
    return high, A - high
