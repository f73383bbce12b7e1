"""Fused products on a CUDA device: which products have a Triton kernel; tiles do the others.

Notation: X1 (m, d), X2 (n, d), W (n, s), as in ``tiles.py``. ``SCALABLE_BO_COMPILE=never`` switches
the kernels off, too.
"""

import functools
import importlib
import importlib.util
import logging
import os
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from surrogates.operators.tiles import StationaryTiles

logger = logging.getLogger(__name__)

DEVICE_TYPES = {"cuda"}
FEWEST_ENTRIES = 2**20  # of a kernel matrix: smaller products take less time than the launch

Result = TypeVar("Result")

_unavailable: set[str] = set()  # the kernels that failed to compile or to run


def fused_matmul(tiles: "StationaryTiles", W: Tensor) -> Tensor | None:
    """Return k(X1, X2) @ W, (m, s), by a fused kernel, or ``None`` where tiles are to do it."""
    kernels = _kernels_for(tiles, W)
    if kernels is None or W.shape[1] > kernels.LARGEST_WIDTH:
        return None
    product: Callable[..., Tensor] = kernels.matmul
    values = _attempt(product, tiles, W)
    return None if values is None else tiles.outputscale * values


def fused_rowwise(tiles: "StationaryTiles", W: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return values (m,) and gradients (m, d) of each function at its own points by a fused kernel,
    or ``None``; see ``tiled_rowwise``.
    """
    kernels = _kernels_for(tiles, W)
    if kernels is None:
        return None
    product: Callable[..., tuple[Tensor, Tensor]] = kernels.rowwise
    result = _attempt(product, tiles, W)
    if result is None:
        return None
    gradient = tiles.kernel.unscaled_gradient(result[1], tiles.X1.shape[1])
    return tiles.outputscale * result[0], tiles.outputscale * gradient


def _kernels_for(tiles: "StationaryTiles", W: Tensor) -> ModuleType | None:
    m = len(tiles.X1)
    n = len(tiles.X2)
    s = W.shape[1]
    d = tiles.L.shape[1] - 2
    if (
        W.device.type not in DEVICE_TYPES
        or not s
        or m * n < FEWEST_ENTRIES
        or os.environ.get("SCALABLE_BO_COMPILE") == "never"
    ):
        return None
    kernels = _triton_kernels()
    if (
        kernels is None
        or d > kernels.LARGEST_DIM
        or max(m, n) * max(d + 1, s) > kernels.LARGEST_OFFSET
    ):
        return None
    return kernels


@functools.cache
def _triton_kernels() -> ModuleType | None:
    if importlib.util.find_spec("triton") is None:
        logger.info("Triton is not installed: products with few columns are evaluated tile by tile")
        return None
    return importlib.import_module("surrogates.operators.triton_kernels")


def _attempt(product: Callable[..., Result], tiles: "StationaryTiles", W: Tensor) -> Result | None:
    name = f"{product.__name__} of {tiles.kernel.profile} in {W.dtype}"
    if name in _unavailable:
        return None
    try:
        with torch.cuda.device_of(W):  # where Triton launches
            return product(tiles.kernel.profile, tiles.L[:, :-2], -0.5 * tiles.R[:, :-2], W)
    except torch.cuda.OutOfMemoryError:
        return None  # tiles need less
    except Exception as error:  # any failure of the tool chain: the tiles are always there
        _unavailable.add(name)
        logger.warning(
            "the fused %s failed (%s: %s); going on with tiles", name, type(error).__name__, error
        )
        return None
