"""Elementwise functions of a kernel tile, compiled once they have enough work before them.

A tile's elementwise part costs about 1.7 ns an entry in eager mode and 0.5 ns compiled (two CPU
cores, float32), and compiling costs about ten seconds where nothing is cached. A function therefore
runs eagerly until it has processed so many entries that compiling would have paid for itself, and
compiled from then on: a GP of a few thousand points never compiles, a long study does so once,
whatever the shapes. Both modes compute the same formula and agree to rounding.

The environment variable ``SCALABLE_BO_COMPILE`` overrides the rule: ``always``, ``never`` or
``auto`` (the default).
"""

import logging
import os
import shutil
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

logger = logging.getLogger(__name__)

ENTRIES_BEFORE_COMPILING = {"cpu": 10**10, "cuda": 10**12}
# Entries: larger temporaries go back to the system and are mapped anew, at four times the cost
EAGER_PART = {"cpu": 2**16}
# Below this the call's own overhead dominates, and sizes 0 and 1 would be specialised
SMALLEST_COMPILED_TILE = 4096


class Fused:
    """A pure function of tensors that is replaced by its compiled version when that pays.

    Args:
        function: pure; its first argument is the tile whose entries are counted.
    """

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self._compiled: Callable[..., Any] | None = None
        self._unavailable = False
        self._entries = 0

    def __call__(self, tile: torch.Tensor, *others: torch.Tensor) -> Any:
        if tile.numel() < SMALLEST_COMPILED_TILE or not self._use_compiled(tile):
            return self._eagerly(tile, *others)
        if self._compiled is None:
            self._compiled = torch.compile(_with_own_code(self.function), dynamic=True)
            logger.info("compiling the kernel's elementwise part; this takes some seconds, once")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the compiler's own, about its internals
                return self._attempt(tile, *others)
        return self._attempt(tile, *others)

    def _use_compiled(self, tile: torch.Tensor) -> bool:
        mode = os.environ.get("SCALABLE_BO_COMPILE", "auto")
        if mode not in ("auto", "always", "never"):
            raise ValueError(
                f"`SCALABLE_BO_COMPILE` must be 'auto', 'always' or 'never', got {mode!r}."
            )
        if mode == "never" or self._unavailable:
            return False
        if mode == "auto" and self._compiled is None:
            self._entries += tile.numel()
            if self._entries < ENTRIES_BEFORE_COMPILING.get(
                tile.device.type, ENTRIES_BEFORE_COMPILING["cuda"]
            ):
                return False
        if self._compiled is None and tile.device.type == "cpu" and not has_cpp_compiler():
            self._unavailable = True
            logger.info(
                "no C++ compiler found: the kernel's elementwise part stays uncompiled, about three"
                " times slower"
            )
            return False
        return True

    def _attempt(self, *arguments: torch.Tensor) -> Any:
        try:
            return self._compiled(*arguments)  # type: ignore[misc]
        except torch.cuda.OutOfMemoryError:
            raise  # for smaller tiles
        # Any failure of the tool chain, at a later compilation, too: the eager formula is always
        # there
        except Exception as error:
            self._unavailable = True
            self._compiled = None
            reason = str(error).partition("\n")[0]
            logger.warning(
                "compiling failed (%s: %s); going on uncompiled", type(error).__name__, reason
            )
            return self._eagerly(*arguments)

    def _eagerly(self, tile: torch.Tensor, *others: torch.Tensor) -> Any:
        return self.function(tile, *others)


class InPlace(Fused):
    """An elementwise function whose values overwrite its first argument, a flat tile: no memory is
    taken for another.

    Args:
        function: pure, of one number at a time.
    """

    def __init__(self, function: Callable[..., torch.Tensor]):
        def overwrite(tile: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
            return tile.copy_(function(tile, *others))

        super().__init__(overwrite)

    def _eagerly(self, tile: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        for part in tile.split(EAGER_PART.get(tile.device.type, max(1, len(tile)))):
            self.function(part, *others)
        return tile


def _with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` with a code object of its own.

    The compiler limits how often one code object is recompiled, and the kernels' functions are
    closures of one: the second or third kernel of a process would silently stay uncompiled.
    """
    if not isinstance(function, FunctionType):
        return function
    code = function.__code__.replace()
    return FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )


def has_cpp_compiler() -> bool:
    """Whether a C++ compiler that ``torch.compile`` can use is on the path."""
    candidates = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    return any(shutil.which(candidate) for candidate in candidates)
