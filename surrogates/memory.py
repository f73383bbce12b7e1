"""Predicted memory: what fits is taken, what cannot is refused with its number before anything is allocated."""

import psutil
import torch

GIBIBYTE = 2**30
DEFAULT_CPU_BUDGET = 2 * GIBIBYTE


def default_budget(device: torch.device) -> int:
    """Return the bytes that a kept kernel matrix or one temporary may take: 2 GiB, or a quarter of a CUDA device's memory."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory // 4
    return DEFAULT_CPU_BUDGET


def available(device: torch.device) -> int:
    """Return the bytes free on ``device`` now."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available


def require(num_bytes: int, device: torch.device, what: str, remedy: str) -> None:
    """Raise ``MemoryError`` naming ``what``, the bytes it needs and the ``remedy`` if they are not free on ``device``."""
    free = available(device)
    if num_bytes > free:
        raise MemoryError(f"{what} needs {num_bytes / GIBIBYTE:.1f} GiB and {free / GIBIBYTE:.1f} GiB are free on {device}. {remedy}")
