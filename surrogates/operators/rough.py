"""Kernel products in bfloat16, or on CUDA in TF32, for steps that later ones correct.

bfloat16 keeps 8 bits: kernel values and weights are off by up to 0.4 %, and a product by about 0.3
% of the root of the sum of squares of its terms. The products of two such numbers are summed in
float32, over a few thousand columns at a time. TF32 keeps 11 bits; errors are an eighth of that.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from surrogates import memory
from surrogates.operators.gemm import capabilities
from surrogates.operators.tf32 import float32_products, has_tf32
from surrogates.operators.tiles import SMALLEST_SIDE, TILE_ASPECT, spans, tile_side, tile_spans

# Of W, below which evaluating and rounding the kernel takes longer than bfloat16 saves
FEWEST_COLUMNS = 128
PANEL = 4  # tiles side by side that are multiplied at once


def pays(W: Tensor) -> bool:
    """Whether a product with W (n, s) is faster in bfloat16 or TF32 than in its own precision."""
    if W.dtype != torch.float32 or W.shape[1] < FEWEST_COLUMNS:
        return False
    return cpu_multiplies_bfloat16() if W.device.type == "cpu" else has_tf32(W.device)


def cpu_multiplies_bfloat16() -> bool:
    """Whether the processor has instructions for products in bfloat16;
    others would emulate them.
    """
    return any(capabilities().get(name, False) for name in ("avx512_bf16", "amx_bf16"))


def matmul(part: Callable[[slice, slice], Tensor], num_rows: int, W: Tensor) -> Tensor:
    """Return A @ W, (m, s), in bfloat16 or, on CUDA, TF32, with sums in float32.

    Args:
        part: gives A[i, j] for slices i, j.
        num_rows: m.
        W: (n, s).
    """
    if W.is_cuda:
        return memory.halving(
            lambda side: _tf32_matmul(side, part, num_rows, W),
            tile_side(W.device),
            SMALLEST_SIDE,
            "A tile",
        )
    side = tile_side(W.device)
    num_columns, s = W.shape
    out = W.new_zeros(num_rows, s)
    height = max(1, min(num_rows, TILE_ASPECT.get(W.device.type, 1) * side))
    panel = W.new_empty(height, min(num_columns, PANEL * side), dtype=torch.bfloat16)
    for i in spans(num_rows, height):
        for strip in spans(num_columns, PANEL * side):
            values = panel[: i.stop - i.start, : strip.stop - strip.start]
            for j in spans(values.shape[1], side):
                values[:, j] = part(i, slice(strip.start + j.start, strip.start + j.stop))
            out[i].add_(values @ W[strip].to(torch.bfloat16))
    return out


def _tf32_matmul(
    side: int, part: Callable[[slice, slice], Tensor], num_rows: int, W: Tensor
) -> Tensor:
    out = W.new_zeros(num_rows, W.shape[1])
    for i, j in tile_spans(num_rows, len(W), side, W.device):
        values = part(i, j)  # in full precision
        with float32_products(tf32=True):
            out[i].addmm_(values, W[j])
    return out
