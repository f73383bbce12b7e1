"""Fused products on a CUDA device: which products have a Triton kernel; tiles do the others.

Notation: X1 (m, d), X2 (n, d), W (n, s), as in ``tiles.py``. ``SCALABLE_BO_COMPILE=never`` switches
the kernels off, too.
"""

import functools
import importlib
import importlib.util
import logging
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

import torch
from torch import Tensor

from surrogates.operators import native

logger = logging.getLogger(__name__)

DEVICE_TYPES = {"cuda"}

Result = TypeVar("Result")

_unavailable: set[str] = set()  # the kernels that failed to compile or to run


def fused_matmul(
    profile: str, X: Tensor, Z: Tensor, W: Tensor, most_work: int = 1024
) -> Tensor | None:
    """Return κ(X, Z) @ W, (m, s), by a fused kernel, or ``None`` where tiles are to do it;
    called on ``DEVICE_TYPES`` alone.

    Args:
        profile: of κ, one of ``PROFILES``.
        X: (m, d) points in units of the lengthscale.
        Z: (n, d), likewise.
        W: (n, s).
        most_work: the largest number of columns times inputs, of which 8 count at least. On an
            H200 (``device_costs.json``) 128 columns of 8 inputs take .6 of the time of tiles in
            float32, and the same time in float64.
    """
    kernels = _kernels_for(X, Z, W)
    if kernels is None or W.shape[1] * max(X.shape[1], 8) > most_work:
        return None

    def product(profile: str, X: Tensor, Z: Tensor, W: Tensor) -> Tensor:
        passes = W.split(kernels.LARGEST_WIDTH, 1)
        return torch.cat([kernels.product(profile, X, Z, part) for part in passes], 1)

    return _attempt(product, profile, X, Z, W)


def fused_rowwise(profile: str, X: Tensor, Z: Tensor, W: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return values (m,) and gradients (m, d) of each function at its own points by a fused kernel,
    or ``None``; see ``tiled_rowwise``, and for the arguments ``fused_matmul``.
    """
    kernels = _kernels_for(X, Z, W)
    if kernels is None:
        return None
    return _attempt(kernels.rowwise, profile, X, Z, W)


def _kernels_for(X: Tensor, Z: Tensor, W: Tensor, fewest_entries: int = 2**20) -> ModuleType | None:
    """Return the kernels; ``None`` if there are none, or too few entries to be worth a launch."""
    m, d = X.shape
    n, s = W.shape
    if not s or m * n < fewest_entries or native.mode() == "never":
        return None
    kernels = _triton_kernels()
    if kernels is None or d > kernels.LARGEST_WIDTH:
        return None
    return kernels if max(m, n) * max(d + 1, s) <= kernels.LARGEST_OFFSET else None


@functools.cache
def _triton_kernels() -> ModuleType | None:
    if importlib.util.find_spec("triton") is None:
        logger.info("Triton is not installed: products with few columns are evaluated tile by tile")
        return None
    return importlib.import_module("surrogates.operators.triton_kernels")


def _attempt(
    product: Callable[..., Result], profile: str, X: Tensor, Z: Tensor, W: Tensor
) -> Result | None:
    name = f"{product.__name__} of {profile} in {W.dtype}"
    if name in _unavailable:
        return None
    try:
        with torch.cuda.device_of(W):  # where Triton launches
            return product(profile, X, Z, W)
    except torch.cuda.OutOfMemoryError:
        return None  # tiles need less
    except Exception as error:  # any failure of the tool chain: the tiles are always there
        _unavailable.add(name)
        logger.warning(
            "the fused %s failed (%s: %s); going on with tiles", name, type(error).__name__, error
        )
        return None
