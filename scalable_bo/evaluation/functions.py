"""Functions that are named by text: "module:function"."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

REFERENCE = r"^[\w.]+:\w+(\.\w+)*$"


def require_reference(key: str, reference: Any) -> None:
    """Raise ValueError, which names the ``key``, if a text could not name a function."""
    if not isinstance(reference, str) or not re.fullmatch(REFERENCE, reference):
        raise ValueError(f'`{key}` must be "module:function", got {reference!r}.')


def load_function(key: str, reference: str, folder: Path) -> Callable[..., Any]:
    """Import "module:function", or "module:Class.method", from a folder or as Python finds modules;
    if there is none, a ValueError names the ``key`` that has the reference.
    """
    require_reference(key, reference)
    module_name, _, name = reference.partition(":")
    if (place := str(folder.resolve())) not in sys.path:
        sys.path.insert(0, place)
    try:
        function = attrgetter(name)(import_module(module_name))
    except (ImportError, AttributeError) as error:
        raise ValueError(f"`{key}` must be importable, got {reference!r}: {error}.") from error
    if not callable(function):
        raise ValueError(
            f"`{key}` must be a function, got {reference!r}, which is {type(function).__name__}."
        )
    return function
