"""The precision of float32 products on CUDA: what a product may be, whatever the user has set for
other work.

TF32 keeps 11 of float32's 24 bits and multiplies up to eight times as fast. PyTorch has one setting
for the whole process. Kernel products and distances do not follow it (‖x‖² − 2xᵀz + ‖z‖² would lose
all digits of a small distance): they are in full precision, but for products that ask for TF32
because later steps correct them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

SMALLEST_CAPABILITY = (8, 0)  # of a device that has TF32


@contextmanager
def float32_products(*, tf32: bool) -> Iterator[None]:
    """Multiply float32 matrices on CUDA in TF32, or in full precision, inside the context,
    and as before after it.
    """
    settings = torch.backends.cuda.matmul
    # PyTorch is replacing the one setting by the other, and refuses to read the old one once the
    # new one was set.
    name, value = (
        ("fp32_precision", "tf32" if tf32 else "ieee")
        if _has_precisions()
        else ("allow_tf32", tf32)
    )
    before = getattr(settings, name)
    setattr(settings, name, value)
    try:
        yield
    finally:
        setattr(settings, name, before)


def has_tf32(device: torch.device) -> bool:
    """Whether products on ``device`` are faster in TF32."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= SMALLEST_CAPABILITY


def _has_precisions() -> bool:
    return hasattr(torch.backends.cuda.matmul, "fp32_precision")
