"""Products of float32 matrices by three products in TF32, to float32's precision: on tensor cores,
which products in float32 do not use.

TF32 keeps 11 of float32's 24 bits. A matrix is split into what TF32 holds of it, rounded to
nearest, and the rest, A = A_h + A_l. Then ``A B ≈ A_h B_h + A_h B_l + A_l B_h`` misses about 2⁻²²
of the products of entries, less than their sum in float32 does. A single product in TF32 misses
2⁻¹², which is useless where the weights of paths are large beside their values.

References:
    Ootomo, Yokota (2022), "Recovering single precision accuracy from Tensor Cores while surpassing
    the FP32 theoretical peak performance". Differs: the rest is not scaled, as kernel values and
    weights are far from float32's smallest numbers.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from surrogates import memory
from surrogates.operators.tf32 import halves

DEVICE_TYPES = {"cuda"}
FEWEST_COLUMNS = 64  # with fewer, evaluating or reading the matrix takes the time
TRIAL = (4096, 512)  # rows and columns
LARGEST_ERROR = 2.0  # of the trial, over that of a product in float32


@dataclass(frozen=True, eq=False)
class Halves:
    """A float32 matrix as the sum of what TF32 holds of it, and the rest."""

    high: Tensor
    low: Tensor

    @classmethod
    def of(cls, A: Tensor) -> "Halves":
        """Return the halves of a float32 matrix."""
        return cls(*halves(A))

    def rows(self, index: slice) -> "Halves":
        """Return those of some of its rows."""
        return Halves(self.high[index], self.low[index])


def halves_if_faster(W: Tensor) -> Halves | None:
    """Return the halves of W (n, s) where products with it are faster by them; ``None`` elsewhere,
    and where the process's settings are not to be changed.
    """
    pays = (
        W.device.type in DEVICE_TYPES
        and W.dtype == torch.float32
        and W.shape[1] >= FEWEST_COLUMNS
        and memory.may_change()
        and not (torch.is_grad_enabled() and W.requires_grad)
        and is_faster(W.device)
    )
    return Halves.of(W) if pays else None


def add_product(A: Halves, B: Halves, add_to: Tensor) -> Tensor:
    """Add A B to ``add_to``, in place, and return it."""
    for left, right in ((A.low, B.high), (A.high, B.low), (A.high, B.high)):
        add_tf32_product(left, right, add_to)
    return add_to


def add_tf32_product(A: Tensor, B: Tensor, add_to: Tensor) -> None:
    """Add A B to ``add_to`` in TF32, in place."""
    with memory.tf32():
        add_to.addmm_(A, B)


@cache
def is_faster(device: torch.device) -> bool:
    """Whether a split product, the splitting of the left factor included, takes less time on
    ``device`` than one in float32, and is as precise; tried once.
    """
    n, s = TRIAL
    generator = torch.Generator().manual_seed(0)
    A = torch.rand(n, n, generator=generator, device=generator.device).to(device)
    B = torch.randn(n, s, generator=generator, device=generator.device).to(device)
    right = Halves.of(B)

    def split() -> Tensor:
        return add_product(Halves.of(A), right, torch.zeros_like(B))

    def whole() -> Tensor:
        with memory.full_precision():
            return A @ B

    few = slice(0, 64)
    exact = A[few].double() @ B.double()
    errors = [torch.linalg.matrix_norm(found()[few].double() - exact) for found in (split, whole)]
    if not bool(errors[0] <= LARGEST_ERROR * errors[1]):
        return False
    return memory.seconds(split, device) < memory.seconds(whole, device)
