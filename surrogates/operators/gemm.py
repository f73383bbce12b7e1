"""Matrix products at the processor's own rate.

PyTorch multiplies float32 matrices by MKL, which uses AVX-512 on Intel's processors alone and stops
at AVX2 on others. oneDNN, which comes with PyTorch, uses what it finds: on an AMD processor with
AVX-512 it is twice as fast, and four times for fewer than ten columns, in the same precision.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from surrogates.operators.tf32 import float32_products

LEAST_WORK = 2**20  # m · n · s, below which setting up oneDNN takes longer than the product
TOLERANCE = 1e-5  # of float32 products; one in bfloat16 is off by 2e-3


def matmul(A: Tensor, B: Tensor) -> Tensor:
    """Return A @ B, (m, s), for A (m, n) and B (n, s), in the precision of both."""
    if A.is_cuda:
        with float32_products(tf32=False):
            return A @ B
    return _onednn_matmul(A, B) if _onednn_pays(A, B) else A @ B


def add_matmul_(out: Tensor, A: Tensor, B: Tensor) -> Tensor:
    """Add A @ B to ``out`` (m, s) in place, and return it."""
    if A.is_cuda:
        with float32_products(tf32=False):
            return out.addmm_(A, B)
    return out.add_(_onednn_matmul(A, B)) if _onednn_pays(A, B) else out.addmm_(A, B)


def _onednn_pays(A: Tensor, B: Tensor) -> bool:
    return (
        A.device.type == "cpu"
        and A.dtype == B.dtype == torch.float32
        and B.shape[1] > 1
        and A.numel() * B.shape[1] >= LEAST_WORK
        and not (torch.is_grad_enabled() and (A.requires_grad or B.requires_grad))
        and onednn_is_faster()
    )


def _onednn_matmul(A: Tensor, B: Tensor) -> Tensor:
    # A part of a wider matrix would take a thousand times as long
    weight = B.T if B.T.is_contiguous() else B.contiguous().T
    return torch.ops.mkldnn._linear_pointwise(A, weight, None, "none", [], "")


@cache
def onednn_is_faster() -> bool:
    """Whether oneDNN's float32 product uses wider vectors than MKL's here, and gives the same."""
    not_intel = "Intel" not in str(capabilities().get("cpu_name", "Intel"))
    if not (
        not_intel and capabilities().get("avx512_f", False) and torch.backends.mkl.is_available()
    ):
        return False
    generator = torch.Generator().manual_seed(0)
    A, B = (torch.rand(64, 64, generator=generator, dtype=torch.float64) for _ in range(2))
    try:
        product = _onednn_matmul(A.float(), B.float()).double()
    except (AttributeError, RuntimeError, TypeError):  # the operator is not of the public interface
        return False
    return bool(
        torch.linalg.matrix_norm(product - A @ B) <= TOLERANCE * torch.linalg.matrix_norm(A @ B)
    )


@cache
def capabilities() -> Mapping[str, Any]:
    """Return what the processor is and can do, by PyTorch's names;
    nothing where PyTorch is too old to know.
    """
    return getattr(torch.cpu, "get_capabilities", dict)()
